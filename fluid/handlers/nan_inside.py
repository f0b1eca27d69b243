"""Looks into loops and branches for the first named value that is not finite, and the step of the loop that made it."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core.equations import inner_jaxprs, is_literal, labelled, live_equations, scan_counts


class Inside(NamedTuple):
    """A named value inside of a loop or a branch.

    Attributes:
      name: of the value.
      times: which step of the loop made it, from 0; of loops inside of loops the outermost first. For `layers.rnn` and
        its like this is the place in the sequence.
      value: the array.
    """

    name: str
    times: tuple[int, ...]
    value: Any


def first_inside(closed: Any, arguments: Sequence[Any], target: Any, rows: np.ndarray | None) -> Inside | None:
    """The first named value inside of loops and branches that is not finite, of those that a value depends on.

    Loops are run step by step; of each step that makes something infinite or NaN the named values are looked at.

    Args:
      closed: the equations of a program whose values in loops carry labels.
      arguments: of it, flat.
      target: the variable of the value.
      rows: bool `[batch]`: the rows of the minibatch to look at; None for all.

    Returns:
      The value; or None when no value inside explains the target.
    """
    looking = _Looking(rows)
    level = looking.level(closed.jaxpr, closed.consts, [target])
    return looking.search(level, level.run(arguments)[1])


class _Level:
    """The equations of one function, compiled.

    Args:
      jaxpr: the equations.
      consts: the values of its constants.
      targets: only what these variables depend on is looked into; None for everything.

    Attributes:
      events: labels, and equations that hold labels, in order.
    """

    def __init__(self, jaxpr: Any, consts: Sequence[Any], targets: Sequence[Any] | None = None):
        behind = None if targets is None else {id(e) for e in live_equations(jaxpr, targets)}
        self.events = [
            e
            for e in jaxpr.eqns
            if labelled(e) is not None or (_holds_labels(e) and (behind is None or id(e) in behind))
        ]
        self._read = list(dict.fromkeys(v for e in self.events for v in e.invars if not is_literal(v)))
        self._outputs = len(jaxpr.outvars)
        longer = jaxpr.replace(outvars=[*jaxpr.outvars, *self._read])
        self._compiled = jax.jit(functools.partial(jax.core.eval_jaxpr, longer, consts))

    def run(self, arguments: Sequence[Any]) -> tuple[list[Any], Callable[[Any], Any]]:
        """Run the equations; returns the outputs, and a function that gives the values of what events read."""
        found = self._compiled(*arguments)
        values = dict(zip(self._read, found[self._outputs :], strict=True))
        return found[: self._outputs], lambda v: v.val if is_literal(v) else values[v]


class _Looking:
    """Searches for a value that is not finite, from the outside in.

    Args:
      rows: bool `[batch]`: which rows to look at; None for all.
    """

    def __init__(self, rows: np.ndarray | None):
        self._rows = rows
        self._levels: dict[int, tuple[Any, _Level]] = {}

    def level(self, jaxpr: Any, consts: Sequence[Any], targets: Sequence[Any] | None = None) -> _Level:
        """The compiled equations of a function: those of a body are compiled once."""
        if id(jaxpr) not in self._levels:
            self._levels[id(jaxpr)] = (jaxpr, _Level(jaxpr, consts, targets))
        return self._levels[id(jaxpr)][1]

    def search(self, level: _Level, read: Callable[[Any], Any]) -> Inside | None:
        """The first value that is not finite, of a function whose events have read these values."""
        for event in level.events:
            name = labelled(event)
            values = [read(v) for v in event.invars]
            if name is None:
                found = self._inside(event, values)
            else:
                found = Inside(name, (), values[0]) if self._bad(values[0]).any() else None
            if found is not None:
                return found
        return None

    def _inside(self, equation: Any, values: list[Any]) -> Inside | None:
        kind = equation.primitive.name
        params = equation.params
        if kind == "scan":
            return self._loop(params["jaxpr"], *_steps_of_scan(equation, values), scan_counts(equation)[1])
        if kind == "while":
            return self._while(params, values)
        if kind == "cond":
            branch = params["branches"][int(np.clip(values[0], 0, len(params["branches"]) - 1))]
            return self._call(branch, values[1:])
        inner = [e for e in inner_jaxprs(equation) if len(e.invars) == len(values)]
        return self._call(inner[0], values) if inner else None

    def _call(self, function: Any, values: list[Any]) -> Inside | None:
        level = self.level(*_opened(function))
        return self.search(level, level.run(values)[1])

    def _loop(
        self, body: Any, consts: list[Any], carry: list[Any], steps: Iterator[tuple[int, list[Any]]], carried: int
    ) -> Inside | None:
        """Run a loop step by step, up to the first one that makes something infinite or NaN under a name."""
        level = self.level(*_opened(body))
        for number, slices in steps:
            outputs, read = level.run([*consts, *carry, *slices])
            if self._spoils(carry, outputs):
                found = self.search(level, read)
                if found is not None:
                    return found._replace(times=(number, *found.times))
            carry = outputs[:carried]
        return None

    def _while(self, params: Any, values: list[Any]) -> Inside | None:
        first = params["cond_nconsts"]
        second = first + params["body_nconsts"]
        condition = self.level(*_opened(params["cond_jaxpr"]))
        level = self.level(*_opened(params["body_jaxpr"]))
        carry = values[second:]
        number = 0
        while bool(condition.run([*values[:first], *carry])[0][0]):
            outputs, read = level.run([*values[first:second], *carry])
            if self._spoils(carry, outputs):
                found = self.search(level, read)
                if found is not None:
                    return found._replace(times=(number, *found.times))
            carry = outputs
            number += 1
        return None

    def _spoils(self, before: list[Any], after: list[Any]) -> bool:
        """Whether a step makes what is carried infinite or NaN where it was finite, or puts something such out."""
        kept = zip(before, after[: len(before)], strict=True)
        if any((self._bad(new) & ~self._bad(old)).any() for old, new in kept):
            return True
        return any(self._bad(value).any() for value in after[len(before) :])

    def _bad(self, value: Any) -> np.ndarray:
        """Where a value is not finite, in the rows that are looked at."""
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return np.zeros((), bool)
        bad = ~np.asarray(jnp.isfinite(value))  # NumPy's function does not know bfloat16
        return bad[self._rows] if self._rows is not None and bad.shape[:1] == self._rows.shape else bad


def _steps_of_scan(equation: Any, values: list[Any]) -> tuple[list[Any], list[Any], Iterator[tuple[int, list[Any]]]]:
    """What all steps of a scan read, what the first one starts with, and for each step its number and slices."""
    consts, carried = scan_counts(equation)
    carried += consts
    numbers = range(equation.params["length"])
    order = reversed(numbers) if equation.params["reverse"] else numbers
    return values[:consts], values[consts:carried], ((i, [v[i] for v in values[carried:]]) for i in order)


def _opened(function: Any) -> tuple[Any, Sequence[Any]]:
    """The equations and the constants of a function inside of an equation."""
    return getattr(function, "jaxpr", function), getattr(function, "consts", ())


def _holds_labels(equation: Any) -> bool:
    """Whether there are named values inside of an equation, also in branches."""
    inside = (e for jaxpr in inner_jaxprs(equation) for e in jaxpr.eqns)
    return any(labelled(e) is not None or _holds_labels(e) for e in inside)
