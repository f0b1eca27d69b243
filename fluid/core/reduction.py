"""Reductions: the rules that combine the values of an output for several minibatches into one value for the data set.

The equations of a program show how each output depends on the rows of a minibatch, see `core.rows`. A layer may record
the rule of its output, for values that the equations leave open, such as the quotient of two sums. A rule that the user
declares by `layers.metric` holds in any case.
"""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid.core.frame import Frame
from fluid.core.rows import MIXED, Noted, Reading, Trace, counts_examples, line_of, sizes


class Reduced(NamedTuple):
    """A layer's record of the rule that combines the layer's results for several minibatches.

    `Frame.note` attaches the record to the result, under the name "reduced". A layer that returns a mean attaches a
    "weight" instead.

    Attributes:
      kind: "mean", "sum", "max", "min", "last" or "function".
      parts: the arguments of `function`, computed from one minibatch.
      function: called with `parts`, after each of them is reduced over all minibatches; None for other kinds.
      over_steps: the kind of rule that combines values of successive training steps, if it differs from `kind`; else
        None.
    """

    kind: str
    parts: tuple[Any, ...] = ()
    function: Callable[..., Any] | None = None
    over_steps: str | None = None


class Reduction(NamedTuple):
    """The rule that combines the values of one output over several minibatches.

    Attributes:
      kind: "mean", a weighted mean; "sum", "max" or "min"; "last", the last value, also if all values are equal;
        "rows", a concatenation; or "function", a function of values that are reduced by separate rules.
      weight: for a mean, `OWN` if the layers have recorded a weight for the output; the name of a recorded mean with an
        equal weight if the output was computed from other means; None if the number of examples is the weight.
      parts: the rules of the arguments of `function`.
      function: called with its arguments, in the order of `parts`, after each is reduced over all minibatches.
      over_steps: the rule for the values of training steps, "mean", "sum", "max", "min" or "last", if this rule differs
        from `kind`; else None.
      doubt: the source line that computes the output, if `kind` is a guess; else None.
    """

    kind: str
    weight: str | None = None
    parts: tuple["Reduction", ...] = ()
    function: Callable[..., Any] | None = None
    over_steps: str | None = None
    doubt: str | None = None


OWN = ""


def guess(shape: Sequence[int | None], doubt: str | None) -> Reduction:
    """Guess how to combine a program output over several minibatches, if the layers have recorded no rule.

    The values of a scalar are averaged ("mean"); the rows of other outputs are concatenated ("rows").
    """
    return Reduction("mean" if tuple(shape) in ((), (1,)) else "rows", doubt=doubt)


class Contribution(NamedTuple):
    """The contribution of one minibatch to the value of an output over several minibatches.

    Attributes:
      value: the output for the minibatch. If the output is a function of several values, such as a ratio of two sums,
        a tuple with the Contribution of each value.
      weight: the weight if the output is a mean, a float32 scalar; else None.
    """

    value: Any
    weight: Any = None


def said_of(frame: Frame, value: Any) -> Reduction | None:
    """Return the rule that combines a value over several minibatches; None if the layers recorded no rule."""
    reduced = frame.fact(value, "reduced")
    if reduced is None:
        return None if frame.fact(value, "weight") is None else Reduction("mean")
    parts = [said_of(frame, part) for part in reduced.parts]
    known = tuple(part for part in parts if part is not None)
    if len(known) < len(parts):
        return None
    return Reduction(reduced.kind, None, known, reduced.function, reduced.over_steps)


def part_of(frame: Frame, value: Any, reduction: Reduction, examples: int) -> Contribution:
    """Return the contribution of one minibatch to the value of an output over several minibatches."""
    if reduction.kind == "function":
        inner = zip(frame.fact(value, "reduced").parts, reduction.parts, strict=True)
        return Contribution(tuple(part_of(frame, part, rule, examples) for part, rule in inner))
    if reduction.kind != "mean":
        return Contribution(value)
    source = frame.made.values[reduction.weight] if reduction.weight else value
    known = frame.fact(source, "weight")
    return Contribution(value, jnp.asarray(examples if known is None else known, jnp.float32))


def over_steps(reduction: Reduction) -> Reduction:
    """Return the rule that combines the values of successive training steps."""
    return reduction if reduction.over_steps is None else Reduction(reduction.over_steps)


def is_of_output(reduction: Reduction) -> bool:
    """Return whether the outputs and the numbers of examples of some minibatches are enough to combine the outputs."""
    return reduction.kind != "function" and (reduction.kind != "mean" or reduction.weight is None)


def rest_of(frame: Frame, value: Any, reduction: Reduction, examples: int) -> Any:
    """Return the values of a training step that are needed to combine an output over several steps."""
    is_known = reduction.kind != "function" or frame.fact(value, "reduced") is not None
    if is_of_output(reduction) or not is_known or jnp.shape(value) not in ((), (1,)):
        return None
    if reduction.weight and reduction.weight not in frame.made.values:
        return None
    part = part_of(frame, value, reduction, examples)
    return part.value if reduction.kind == "function" else part.weight


def completed(value: Any, rest: Any, reduction: Reduction, examples: Any) -> Contribution:
    """Return the Contribution of a training step from an output and the result of `rest_of`."""
    if reduction.kind == "function":
        return Contribution(rest)
    return Contribution(value, examples if rest is None else rest)


def weighs_examples(frame: Frame, examples: int) -> bool:
    """Return whether all recorded means of a traced run are weighted by the number of examples.

    Then all scalars of the program are combined from their values and the numbers of examples.
    """
    facts = frame.annotations.values()
    weights = [known["weight"] for known in facts if known.get("weight") is not None]
    is_function = any(getattr(known.get("reduced"), "function", None) is not None for known in facts)
    return not is_function and all(isinstance(weight, int) and weight == examples for weight in weights)


Run = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[Frame, list[Any]]]
"""The type of a function that runs a program on arrays and feeds, and returns the Frame (state) and the outputs."""


class _Output(NamedTuple):
    """A record of the layers about an output, from one traced run.

    Attributes:
      reduced: the record of a layer if the output is a function of several values, such as a ratio of sums; else None.
      rules: the rules that were recorded for these values, or for the output itself; None for each missing rule.
      declared: for each rule, True if the user has declared it by `layers.metric`.
    """

    reduced: Reduced | None
    rules: list[Reduction | None]
    declared: list[bool]


class Untraceable(Exception):
    """The error of a program function in test mode at the dummy sizes of a trace; its cause is the original error."""


class _Traced(NamedTuple):
    """One traced run of a program in test mode.

    Attributes:
      trace: the equations.
      records: the records of the layers about each output.
      outputs: the variables of each output; a sequence batch has several.
      parts: the variables of each value that an output is a function of, or of the output itself.
      weights: the variable of the weight that was recorded for each of these parts; None without a recorded weight.
      values: the variables of each named value and feed, by name.
    """

    trace: Trace
    records: list[_Output]
    outputs: list[list[Any]]
    parts: list[list[Any]]
    weights: list[Any]
    values: dict[str, list[Any]]


class FollowedProgram:
    """The rows of a program in test mode, followed through the equations.

    Args:
      others: the same for the second trace: the first that the program works for is taken. Empty for a program that
        works for one batch size only.

    Raises:
      Untraceable: the program function raises an error in the first trace.
    """

    def __init__(
        self,
        run: Run,
        arrays: Mapping[str, Any],
        first: tuple[int, Mapping[str, Any]],
        others: Sequence[tuple[int, Mapping[str, Any]]],
    ):
        self._first = _traced(run, arrays, *first)
        self._second: _Traced | None = None
        self._reading: Reading | None = None
        for other in others:
            with contextlib.suppress(Untraceable):  # some program functions work for one batch size only
                self._second = _traced(run, arrays, *other)
            self._reading = None if self._second is None else Reading.of(self._first.trace, self._second.trace)
            if self._reading is not None:
                break

    def reductions(self) -> list[Reduction]:
        """Return for each output the rule that combines its values over several minibatches."""
        second = self._second or self._first
        parts = zip(self._first.parts, second.parts, strict=True)
        weights = zip(self._first.weights, second.weights, strict=True)
        found = []
        for record in self._first.records:
            rules = [
                _rule(self._reading, *next(parts), self._weighed(rule, *next(weights)), declared)
                for rule, declared in zip(record.rules, record.declared, strict=True)
            ]
            made = record.reduced
            function = (
                None if made is None else Reduction("function", None, tuple(rules), made.function, made.over_steps)
            )
            found.append(function or rules[0])
        return found

    def _weighed(self, rule: Reduction | None, weight: Any, twin: Any) -> Reduction | None:
        """Return the recorded rule of a value with the source of its weight: `OWN`, or None for the examples."""
        known = self._second is not None and counts_examples(
            weight, twin, (self._first.trace.rows, self._second.trace.rows)
        )
        return rule if rule is None or weight is None or known else rule._replace(weight=OWN)

    def mixing(self, wanted: Sequence[str | int] | None, overrides: Sequence[str] = ()) -> str | None:
        """Return the user's source line where the rows of results begin to depend on other rows of the minibatch."""
        if self._second is None or self._reading is None:
            return "its program"
        both = (self._first, self._second)
        wanted = range(len(self._first.outputs)) if wanted is None else wanted
        known = self._first.values.keys() & self._second.values.keys()
        if not {*overrides, *(name for name in wanted if isinstance(name, str))} <= known:
            return "its program"
        reading: Reading | None = self._reading
        if overrides:
            given = ([v for name in overrides for v in traced.values[name]] for traced in both)
            reading = Reading.of(self._first.trace, self._second.trace, list(zip(*given, strict=True)))
        leaves = (
            [v for each in wanted for v in (one.values[each] if isinstance(each, str) else one.outputs[each])]
            for one in both
        )
        kinds = (MIXED if reading is None else reading.by_row(v, w) for v, w in zip(*leaves, strict=True))
        return next((line_of(kind) for kind in kinds if kind is not None), None)


def _rule(
    reading: Reading | None, variables: Sequence[Any], twins: Sequence[Any], known: Reduction | None, declared: bool
) -> Reduction:
    """Return the rule of a value from its kind in the equations, and from the rule that was recorded for it, if any."""
    variable, twin = variables[0], twins[0]
    kind = MIXED if reading is None else reading.kind(variable, twin)
    if known is not None and (declared or reading is None or kind.name != "mixed"):
        return known
    if reading is not None:
        of_rows = [reading.by_row(v, w) for v, w in zip(variables, twins, strict=True)]
        if not any(of_rows):
            return Reduction("rows")
        kind = next(found for found in of_rows if found is not None) if len(variables) > 1 else kind
        if all(a == b for a, b in sizes(variable, twin)) and (name := _COMBINED.get((kind.name, kind.scale))):
            return Reduction(name, kind.noted.name if kind.noted else None)
    return guess(variable.aval.shape, line_of(kind))


# `_COMBINED`: the reduction rule of a value without rows, by the name and the scale of its kind.
_COMBINED: Mapping[tuple[str, int], str] = {
    ("constant", 0): "last",
    ("constant", 1): "sum",
    ("sum", 0): "sum",
    ("sum", -1): "mean",
    ("mean", 0): "mean",
    ("max", 0): "max",
    ("min", 0): "min",
}


def _traced(run: Run, arrays: Mapping[str, Any], rows: int, feeds: Mapping[str, Any]) -> _Traced:
    records: list[_Output] = []
    rules: list[tuple[str, str, bool]] = []

    def traced(arrays: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
        try:
            frame, outputs = run(arrays, feeds)
        except Exception as error:
            raise Untraceable from error
        parts: list[Any] = []
        for output in outputs:
            reduced = frame.fact(output, "reduced")
            # `reduced` describes how a layer has computed the output from other values by a function. Without a
            # function, it is a rule that combines values of the output, and `said_of` returns this rule.
            if reduced is not None and reduced.function is None:
                reduced = None
            own = [output] if reduced is None else list(reduced.parts)
            declared = [bool(frame.fact(part, "declared")) for part in own]
            records.append(_Output(reduced, [said_of(frame, part) for part in own], declared))
            parts.extend(own)
        said = {name: said_of(frame, value) for name, value in frame.made.values.items()}
        noted = {name: rule for name, rule in said.items() if rule is not None}
        made = [frame.made.values[name] for name in noted]
        rules.extend(
            (name, rule.kind, bool(frame.fact(value, "declared")))
            for (name, rule), value in zip(noted.items(), made, strict=True)
        )
        weights = [frame.fact(value, "weight") for value in made]
        own = [frame.fact(part, "weight") for part in parts]
        return parts, own, outputs, made, weights, {**frame.given.feeds, **frame.made.values}

    closed, shapes = jax.make_jaxpr(traced, return_shape=True)(arrays, feeds)
    found = jax.tree.unflatten(jax.tree.structure(shapes), closed.jaxpr.outvars)
    parts, own, outputs, made, weights, values = found
    noted = [Noted(*rule, value, weight) for rule, value, weight in zip(rules, made, weights, strict=True)]
    given = closed.jaxpr.invars[len(jax.tree.leaves(arrays)) :]
    return _Traced(
        Trace(rows, closed, given, noted),
        records,
        list(map(jax.tree.leaves, outputs)),
        list(map(jax.tree.leaves, parts)),
        own,
        {name: jax.tree.leaves(value) for name, value in values.items()},
    )
