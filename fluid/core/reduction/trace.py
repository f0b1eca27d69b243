"""Trace: the reductions of a program's outputs, from the notes of its layers and else from its equations."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fluid.core.frame import Frame
from fluid.core.reduction.equations import Noted, Traced, reductions_of
from fluid.core.reduction.rule import Reduced, Reduction, said_of

Run = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[Frame, list[Any]]]
"""A function that runs a program function on arrays and feeds by name, and returns its frame and its outputs."""


class _Asked(NamedTuple):
    """One output whose rule is requested: a value, or a function of several values.

    Attributes:
      reduced: the note of the layer for a function; None for a value.
      known: for each value, the rule that layers have noted, or None.
    """

    reduced: Reduced | None
    known: list[Reduction | None]


def find_reductions(
    run: Run, arrays: Mapping[str, Any], feeds: Mapping[int, Mapping[str, Any]], known: Sequence[Reduction | None]
) -> list[Reduction]:
    """Return the reduction of each output.

    Args:
      run: runs the program function in test mode.
      arrays: parameters and states by name, or their shapes and dtypes.
      feeds: for each of two batch sizes, stand-ins of the feeds by name.
      known: for each output its reduction, or None if it is unknown.
    """
    (batch, given), (other, more) = feeds.items()
    first, asked = _trace(run, arrays, batch, given)
    second = None
    with contextlib.suppress(Exception):  # a function may work for one batch size only
        second, _ = _trace(run, arrays, other, more)
    single = [rule if one.reduced is None else None for one, rule in zip(asked, known, strict=True)]
    noted = [rule or said for one, rule in zip(asked, single, strict=True) for said in one.known]
    found = iter(reductions_of(first, second, noted))
    return [_whole(one.reduced, [next(found) for _ in one.known]) for one in asked]


def _whole(reduced: Reduced | None, rules: Sequence[Reduction]) -> Reduction:
    """Return the reduction of an output from the reductions of its values."""
    if reduced is None:
        return rules[0]
    return Reduction("function", None, tuple(rules), reduced.function, reduced.over_steps)


def _trace(run: Run, arrays: Mapping[str, Any], batch: int, feeds: Mapping[str, Any]) -> tuple[Traced, list[_Asked]]:
    asked: list[_Asked] = []
    named: list[tuple[str, str]] = []

    def traced(arrays: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
        frame, outputs = run(arrays, feeds)
        values: list[Any] = []
        for output in outputs:
            reduced = frame.fact(output, "reduced")
            if reduced is not None and reduced.function is None:  # the note is a rule of the output, not of arguments
                reduced = None
            parts = [output] if reduced is None else reduced.parts
            asked.append(_Asked(reduced, [said_of(frame, part) for part in parts]))
            values.extend(parts)
        rules = {name: said_of(frame, value) for name, value in frame.made.values.items()}
        noted = {name: rule for name, rule in rules.items() if rule is not None}
        named.extend((name, rule.kind) for name, rule in noted.items())
        made = [frame.made.values[name] for name in noted]
        return values, made, [frame.fact(value, "weight") for value in made]

    closed, shapes = jax.make_jaxpr(traced, return_shape=True)(arrays, feeds)
    jaxpr = closed.jaxpr
    values, made, weights = jax.tree.unflatten(jax.tree.structure(shapes), jaxpr.outvars)
    given = jaxpr.invars[len(jax.tree.leaves(arrays)) :]
    noted = [Noted(*name, value, weight) for name, value, weight in zip(named, made, weights, strict=True)]
    return Traced(batch, jaxpr, given, values, noted), asked
