"""Reductions: the rules that combine the values of an output for several minibatches into one value for the data set.

A layer may record the rule of its output. For other outputs, the program is traced with two batch sizes. If both traces
have the same equations, a size or a constant that differs between them depends on the batch size. From the first
equation to the last, each variable gets one of these kinds:

    constant             equal for every minibatch
    rows                 an array with a batch dimension; each row is computed from one example
    examples             proportional to the number of examples
    share                inversely proportional to the number of examples
    mean, sum, max, min  the mean, sum, maximum or minimum over the examples
    unknown              everything else, such as the square root of a mean

The equations also show whether a function computes each row from one example only; see `mixed_rows`.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core.equations import called, inner_jaxprs, is_literal, user_line
from fluid.core.frame import Frame


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
      weight: for a mean that was computed from other means, the name of a recorded mean with an equal weight. None if
        the layer recorded a weight for the output, or if the weight is the number of examples.
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


def guess(shape: Sequence[int | None], doubt: str = "its program") -> Reduction:
    """Guess how to combine a program output over several minibatches, if the layers have recorded no rule.

    The values of a scalar are averaged ("mean"); the rows of other outputs are concatenated ("rows").

    Args:
      shape: the shape of the output.
      doubt: the user's source line that computes the output, for a warning.
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
    """Return the contribution of one minibatch to the value of an output over several minibatches.

    Args:
      frame: the Frame (state) of the run on the minibatch.
      value: the output of the run.
      reduction: the rule that combines the values of the output over minibatches.
      examples: the number of examples of the minibatch.
    """
    if reduction.kind == "function":
        inner = zip(frame.fact(value, "reduced").parts, reduction.parts, strict=True)
        return Contribution(tuple(part_of(frame, part, rule, examples) for part, rule in inner))
    if reduction.kind != "mean":
        return Contribution(value)
    source = value if reduction.weight is None else frame.made.values[reduction.weight]
    known = frame.fact(source, "weight")
    return Contribution(value, jnp.asarray(examples if known is None else known, jnp.float32))


# `_LAYOUT`: JAX primitives that return all or some elements of their first input unchanged.
_LAYOUT = frozenset(
    "reshape broadcast_in_dim transpose squeeze slice rev convert_element_type reduce_precision copy stop_gradient "
    "optimization_barrier".split()
)
# `_OF_ROWS`: for each primitive that reduces over the batch dimension, the kind of its result, such as "sum" over the
# examples.
_OF_ROWS = {
    "reduce_sum": "sum",
    "dot_general": "sum",
    "reduce_max": "max",
    "reduce_or": "max",
    "reduce_min": "min",
    "reduce_and": "min",
}
_ALONG_AN_AXIS = frozenset({"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp", "sort"})
# `_INCREASING`: primitives of increasing functions, which map the maximum of the inputs to the maximum of the results.
_INCREASING = frozenset({"sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "ceil", "floor"})
_OVER_EXAMPLES = frozenset({"mean", "sum", "max", "min", "examples", "share"})


class Noted(NamedTuple):
    """A named value of a program, for which layers have recorded how to combine it over several minibatches.

    Attributes:
      name: the name of the value.
      kind: the kind of the reduction rule, such as "mean" or "sum"; see `Reduction`.
      value: the variable of the value in the traced equations.
      weight: the variable of the weight if the kind is "mean"; else None.
    """

    name: str
    kind: str
    value: Any
    weight: Any


class TestTrace(NamedTuple):
    """One trace of a program in test mode.

    Attributes:
      batch: the batch size of the trace.
      jaxpr: the traced equations.
      feeds: the variables of the feeds.
      outputs: the variables of the outputs.
      noted: the named values with a reduction rule that layers have recorded.
    """

    batch: int
    jaxpr: Any
    feeds: Sequence[Any]
    outputs: Sequence[Any]
    noted: Sequence[Noted]


class _Kind(NamedTuple):
    """The kind of a variable, which states how its value depends on the examples of a minibatch.

    Attributes:
      name: "constant", "rows", "examples", "share", "mean", "sum", "max", "min" or "unknown".
      noted: for a mean, the named value with an equal weight; None if the weight is the number of examples.
      equation: for the kind "unknown", the first equation whose result is of this kind.
    """

    name: str
    noted: Noted | None = None
    equation: Any = None


_CONSTANT = _Kind("constant")


def reductions_of(first: TestTrace, second: TestTrace | None, known: Sequence[Reduction | None]) -> list[Reduction]:
    """Return for each output of a program the rule that combines its values over several minibatches.

    Args:
      first: a trace of the program.
      second: a trace with another batch size; None if the program works for one batch size only.
      known: for each output its rule, or None if the rule must be found.
    """
    alike = second is not None and _alike(first.jaxpr, second.jaxpr)
    reading = _Reading(first, second) if alike and second is not None else None
    outputs = zip(first.outputs, first.outputs if second is None else second.outputs, known, strict=True)
    return [rule or _rule(reading, variable, twin) for variable, twin, rule in outputs]


def _rule(reading: "_Reading | None", variable: Any, twin: Any) -> Reduction:
    kind = _Kind("unknown") if reading is None else reading.kind(variable, twin)
    if kind.name in ("mean", "sum", "max", "min", "rows"):
        return Reduction(kind.name, kind.noted.name if kind.noted else None)
    if kind.name in ("constant", "examples"):
        return Reduction("last" if kind.name == "constant" else "sum")
    shape = variable.aval.shape
    return guess(shape) if kind.equation is None else guess(shape, user_line(kind.equation))


class _Reading:
    """An analysis that finds the kind, such as "mean" or "rows", of each variable of a traced program.

    Args:
      first: a trace of the program.
      second: a trace with equal equations and another batch size.
    """

    def __init__(self, first: TestTrace, second: TestTrace):
        self._batches = (first.batch, second.batch)
        self._makers = {v: e for e in first.jaxpr.eqns for v in e.outvars}
        self._noted: dict[Any, Noted] = {}
        for noted, twin in zip(first.noted, second.noted, strict=True):
            if not is_literal(noted.value):
                self._noted.setdefault(noted.value, self._by_examples(noted, twin))
        given = set(first.feeds)
        self._kinds: dict[Any, _Kind] = {}
        for variable, twin in zip(first.jaxpr.invars, second.jaxpr.invars, strict=True):
            fed = _Kind("rows" if _following(variable, twin) else "unknown")
            self._kinds[variable] = fed if variable in given else _CONSTANT
        self._read(first.jaxpr, second.jaxpr)

    def kind(self, variable: Any, twin: Any) -> _Kind:
        """Return the kind of a variable or literal: the way in which its value depends on the examples of a minibatch.

        The kind is found from two traces of a program, with different batch sizes.

        Args:
          variable: the variable or literal in the first trace.
          twin: the corresponding variable or literal in the second trace.
        """
        if not is_literal(variable):
            return self._kinds.get(variable, _CONSTANT)
        if not is_literal(twin):
            return _Kind("unknown")
        here, there = np.asarray(variable.val), np.asarray(twin.val)
        if here.dtype.kind not in "iuf" or np.array_equal(here, there, equal_nan=here.dtype.kind == "f"):
            return _CONSTANT
        first, second = self._batches
        if np.isclose(here * second, there * first):
            return _Kind("examples")
        return _Kind("share" if np.isclose(here * first, there * second) else "unknown")

    def _by_examples(self, noted: Noted, twin: Noted) -> Noted:
        """Return `noted`, a recorded reduction rule, without its weight if this weight is the number of examples.

        `twin` is the same rule in a second trace of the program, which has another batch size. A constant weight that
        equals the batch size in both traces is the number of examples.
        """
        if noted.weight is None or not is_literal(noted.weight) or not is_literal(twin.weight):
            return noted
        counts = (noted.weight.val, twin.weight.val)
        return noted._replace(weight=None) if counts == self._batches else noted

    def _read(self, first: Any, second: Any) -> None:
        for equation, twin in zip(first.eqns, second.eqns, strict=True):
            inputs = [self.kind(v, w) for v, w in zip(equation.invars, twin.invars, strict=True)]
            inner = called(equation)
            if inner is None:
                results = [self._result(equation, twin, inputs, place) for place in range(len(equation.outvars))]
            else:
                self._kinds.update(zip(inner.invars, inputs, strict=True))
                other = called(twin)
                self._read(inner, other)
                found = [self.kind(v, w) for v, w in zip(inner.outvars, other.outvars, strict=True)]
                # Report an unknown result at the source line of the call. JAX caches traces, so source lines inside the
                # called function may come from an earlier call.
                results = [kind if kind.equation is None else kind._replace(equation=equation) for kind in found]
            for variable, kind in zip(equation.outvars, results, strict=True):
                self._kinds[variable] = self._said(equation, variable, kind)

    def _said(self, equation: Any, variable: Any, kind: _Kind) -> _Kind:
        """Return the kind of a variable: the rule, such as "mean", that combines it over minibatches.

        A rule that a layer has recorded takes precedence over `kind`, the rule that follows from the equation. As an
        exception, a recorded mean of a constant is ignored.
        """
        noted = self._noted.get(variable)
        if noted is None or (kind is _CONSTANT and noted.kind == "mean"):
            return kind
        if noted.kind == "mean":
            return _Kind("mean", None if noted.weight is None else noted)
        return _Kind(noted.kind) if noted.kind in _OVER_EXAMPLES else _Kind("unknown", None, equation)

    def _result(self, equation: Any, twin: Any, inputs: Sequence[_Kind], place: int) -> _Kind:
        """Return the kind of one result of an equation, such as "mean": how it depends on the examples of a minibatch.

        Args:
          equation: an equation of the first trace.
          twin: the corresponding equation of the second trace, which has another batch size.
          inputs: the kinds of the inputs.
          place: the index of the result.
        """
        unknown = next((kind for kind in inputs if kind.name == "unknown"), None)
        if unknown is not None:
            return unknown if unknown.equation is not None else _Kind("unknown", None, equation)
        following = [_following(v, w) for v, w in zip(equation.invars, twin.invars, strict=True)]
        left = _following(equation.outvars[place], twin.outvars[place])
        if left:
            mixed = any(kind.name in _OVER_EXAMPLES for kind in inputs) or left > max((1, *following))
            return _Kind("unknown", None, equation) if mixed or _mixes(equation, twin) else _Kind("rows")
        if any(following):
            kind = _Kind(_OF_ROWS.get(equation.primitive.name, "unknown"))
        elif all(kind is _CONSTANT for kind in inputs):
            kind = _CONSTANT
        else:
            kind = _arithmetic(equation, inputs, self._weighs_the_same)
        return kind._replace(equation=equation) if kind.name == "unknown" else kind

    def _weighs_the_same(self, first: _Kind, second: _Kind) -> bool:
        """Return whether two means over the examples of a minibatch give equal weights to the examples."""
        if first.noted is None or second.noted is None:
            return first.noted is second.noted
        return self._computed_alike(first.noted.weight, second.noted.weight)

    def _computed_alike(self, first: Any, second: Any) -> bool:
        """Return whether equal operations compute two variables from equal inputs, so that their values are equal."""
        if first is second:
            return True
        if is_literal(first) or is_literal(second):
            return is_literal(first) and is_literal(second) and bool(first.val == second.val)
        a, b = self._makers.get(first), self._makers.get(second)
        if a is None or b is None or a.primitive is not b.primitive or str(a.params) != str(b.params):
            return False
        pairs = zip(a.invars, b.invars, strict=True)
        return a.outvars.index(first) == b.outvars.index(second) and all(self._computed_alike(v, w) for v, w in pairs)


def _arithmetic(equation: Any, inputs: Sequence[_Kind], same: Callable[[_Kind, _Kind], bool]) -> _Kind:
    """Return the kind of the result of an arithmetic equation without batch dimensions.

    A kind, such as "mean" or "sum", states how a value depends on the examples of a minibatch.

    Args:
      equation: the equation.
      inputs: the kinds of the inputs of the equation; at least one input is not constant.
      same: a function of the kinds of two means that returns whether their weights are equal.
    """
    name = equation.primitive.name
    first = inputs[0]
    if name in _LAYOUT:
        return first
    rule = _RULES.get(name)
    if rule is not None:
        return rule(equation, inputs, same)
    if name in _INCREASING and first.name in ("max", "min"):
        return first
    return _Kind("unknown")


def _sum(equation: Any, inputs: Sequence[_Kind], same: Callable[[_Kind, _Kind], bool]) -> _Kind:
    """Return the kind of the sum `a + b` from the kinds `inputs` of `a` and `b`.

    The kind of a value, such as "mean" or "unknown", states how the value depends on the examples of a minibatch.
    """
    first, second = inputs
    if first is _CONSTANT:
        first, second = second, first
    if second is _CONSTANT and first.name in ("mean", "max", "min"):
        return first
    alike = first.name == second.name and (first.name == "sum" or (first.name == "mean" and same(first, second)))
    return first if alike else _Kind("unknown")


def _difference(equation: Any, inputs: Sequence[_Kind], same: Callable[[_Kind, _Kind], bool]) -> _Kind:
    """Return the kind of `a - b`; `inputs` are the kinds of `a` and `b`.

    A kind, such as "mean", states how a value depends on the examples of a minibatch.
    """
    return _sum(equation, [inputs[0], _negative(equation, inputs[1:], same)], same)


def _negative(equation: Any, inputs: Sequence[_Kind], same: Callable[[_Kind, _Kind], bool]) -> _Kind:
    """Return the kind of `-a`: "min" if the kind of `a` is "max", "max" if it is "min", else the kind of `a`.

    A kind, such as "mean", states how a value depends on the examples of a minibatch.
    """
    opposite = {"max": _Kind("min"), "min": _Kind("max")}
    return opposite.get(inputs[0].name, inputs[0])


def _product(equation: Any, inputs: Sequence[_Kind], same: Callable[[_Kind, _Kind], bool]) -> _Kind:
    """Return the kind of `a * b`; `inputs` are the kinds of `a` and `b`.

    A kind, such as "mean", states how a value depends on the examples of a minibatch.
    """
    kinds = dict(zip((kind.name for kind in inputs), inputs, strict=True))
    if kinds.keys() == {"sum", "share"}:
        return _Kind("mean")
    other = next((kind for kind in inputs if kind is not _CONSTANT), _CONSTANT)
    return _scaled(equation, other) if "constant" in kinds else _Kind("unknown")


def _quotient(equation: Any, inputs: Sequence[_Kind], same: Callable[[_Kind, _Kind], bool]) -> _Kind:
    """Return the kind of a quotient `a / b`, from `inputs`, the kinds of `a` and `b`.

    The kind of a value, such as "mean" or "sum", states how the value depends on the examples of a minibatch.
    """
    first, second = inputs
    if (first.name, second.name) == ("sum", "examples"):
        return _Kind("mean")
    return _scaled(equation, first) if second is _CONSTANT else _Kind("unknown")


def _scaled(equation: Any, kind: _Kind) -> _Kind:
    """Return the kind of `value * constant` or `value / constant`; `kind` is the kind of the value.

    A kind, such as "mean", states how a value depends on the examples of a minibatch.
    """
    positive = any(is_literal(v) and v.val > 0 for v in equation.invars)
    return kind if kind.name in ("mean", "sum") or positive else _Kind("unknown")


def _kept(*names: str) -> Callable[..., _Kind]:
    """Return a function that finds the kind of a result: the kind of the first input if in `names`, else "unknown".

    A kind, such as "mean", states how a value depends on the examples of a minibatch.
    """
    return lambda equation, inputs, same: inputs[0] if inputs[0].name in names else _Kind("unknown")


def _bound(name: str) -> Callable[..., _Kind]:
    """Return a function that finds the kind (reduction rule) of the result of a JAX equation "max" or "min".

    The kind is `name`, which is "max" or "min", if each input has this kind or is constant; else "unknown".
    """
    return lambda equation, inputs, same: _Kind(name if {k.name for k in inputs} <= {name, "constant"} else "unknown")


_RULES: Mapping[str, Callable[..., _Kind]] = {
    "add": _sum,
    "add_any": _sum,
    "sub": _difference,
    "neg": _negative,
    "mul": _product,
    "div": _quotient,
    "reduce_sum": _kept("mean", "sum"),
    "reduce_max": _kept("max"),
    "reduce_min": _kept("min"),
    "max": _bound("max"),
    "min": _bound("min"),
}


def _mixes(equation: Any, twin: Any) -> bool:
    """Return whether an equation sums, accumulates or sorts along the batch dimension, which mixes several examples.

    `twin` is the corresponding equation of a trace with another batch size.
    """
    variable, other = equation.invars[0], twin.invars[0]
    if equation.primitive.name == "dot_general":
        axes = equation.params["dimension_numbers"][0][0]
    elif equation.primitive.name in _ALONG_AN_AXIS:
        axes = [equation.params.get("axis", equation.params.get("dimension"))]
    else:
        return False
    return any(variable.aval.shape[axis] != other.aval.shape[axis] for axis in axes)


def _alike(first: Any, second: Any) -> bool:
    """Return whether two jaxprs have equal equations, apart from sizes and constants."""
    if len(first.eqns) != len(second.eqns):
        return False
    for equation, twin in zip(first.eqns, second.eqns, strict=True):
        inner, other = called(equation), called(twin)
        if equation.primitive is not twin.primitive or len(equation.invars) != len(twin.invars):
            return False
        if inner is not None and (other is None or not _alike(inner, other)):
            return False
    return True


def _following(variable: Any, twin: Any) -> int:
    """Return the number of dimensions of a variable that depend on the batch size.

    `twin` is the corresponding variable of a trace with another batch size. For literals, the number is 0.
    """
    if is_literal(variable) or is_literal(twin):
        return 0
    return sum(a != b for a, b in zip(variable.aval.shape, twin.aval.shape, strict=True))


_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_or", "reduce_and", "reduce_prod"})


def mixed_rows(traces: Sequence[tuple[int, Any]], given: int) -> str | None:
    """Find a source line where a function computes a row of its results from several rows of its arguments.

    The check does not detect a function that reads another row by its index.

    Args:
      traces: two pairs of a number of rows, and the jaxpr of the function for this number, from `jax.make_jaxpr`.
      given: the number of arguments with rows as their first dimension; they are the last arguments of the function.

    Returns:
      The user's source line, or None if the function computes each row separately.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def traces(function):
      ...     return [(rows, jax.make_jaxpr(function)(jnp.ones((rows, 3))).jaxpr) for rows in (4, 5)]
      >>> mixed_rows(traces(lambda x: x - x.mean(axis=1, keepdims=True)), 1) is None
      True
      >>> mixed_rows(traces(lambda x: x - x.mean(axis=0)), 1) is None
      False
    """
    first, second = (
        TestTrace(rows, jaxpr, jaxpr.invars[len(jaxpr.invars) - given :], jaxpr.outvars, ()) for rows, jaxpr in traces
    )
    found = reductions_of(first, second, [None] * len(first.outputs))
    doubts = (rule.doubt or "its last line" for rule in found if rule.kind != "rows" or rule.doubt)
    return next(doubts, None) or next(_moves(first.jaxpr, second.jaxpr, (first.batch, second.batch)), None)


def _moves(
    jaxpr: Any, twin: Any, counts: tuple[int, int], line: str = "its program", inside: bool = False
) -> Iterator[str]:
    """Yield the user's source lines that reverse the rows of a batch or change their number.

    Dimensions of rows are found from two traces of a function, with different numbers of rows. Inside loops and
    branches, lines that reduce over rows are included.

    Args:
      jaxpr: the equations of the first trace.
      twin: the equations of the second trace.
      counts: the numbers of rows of the two traces.
      line: the source line to report for equations without one.
      inside: True for the equations of a loop or branch.
    """
    for equation, other in zip(jaxpr.eqns, twin.eqns, strict=True):
        here = user_line(equation)
        here = line if here == "unknown line" else here
        following = _pairs(equation.invars, other.invars)
        left = _pairs(equation.outvars, other.outvars)
        name = equation.primitive.name
        turned = name == "rev" and any(a != b for a, b in _sizes(equation, other))
        reduced = inside and name in _REDUCTIONS and following and not left
        if turned or reduced or any(a * counts[1] != b * counts[0] for a, b in left):
            yield here
        # Do not search in while loops: the condition of a loop may reduce over rows on purpose, for example with `any`.
        if name != "while":
            for inner, same in zip(inner_jaxprs(equation), inner_jaxprs(other), strict=True):
                if len(inner.eqns) != len(same.eqns):
                    yield here
                    return
                yield from _moves(inner, same, counts, here, inside or name not in ("jit", "pjit", "closed_call"))


def _pairs(variables: Sequence[Any], others: Sequence[Any]) -> list[tuple[int, int]]:
    """Find the dimensions of variables that differ between two traces of a function with different numbers of rows.

    Returns:
      For each of these dimensions the pair of its sizes in the two traces.
    """
    pairs = zip(variables, others, strict=True)
    shapes = ((v.aval.shape, w.aval.shape) for v, w in pairs if hasattr(v.aval, "shape"))
    return [(a, b) for one, two in shapes for a, b in zip(one, two, strict=True) if a != b]


def _sizes(equation: Any, other: Any) -> list[tuple[int, int]]:
    """Return the sizes of the dimensions that a `rev` (reverse) equation reverses.

    The program was traced with two batch sizes. Each pair in the result has the sizes of one dimension in both traces.
    """
    first, second = equation.invars[0].aval.shape, other.invars[0].aval.shape
    return [(first[i], second[i]) for i in equation.params["dimensions"]]


Run = Callable[[Mapping[str, Any], Mapping[str, Any]], tuple[Frame, list[Any]]]
"""The type of a function that runs a program on arrays and feeds, and returns the Frame (state) and the outputs."""


class _WantedOutput(NamedTuple):
    """An output for which `find_reductions` searches a rule that combines its values over several minibatches.

    Attributes:
      reduced: the record of a layer if the output is a function of several values, such as a ratio of sums; else None.
      known: the rules that layers recorded for these values, or for the output itself; None for each missing rule.
    """

    reduced: Reduced | None
    known: list[Reduction | None]


def find_reductions(
    run: Run, arrays: Mapping[str, Any], feeds: Mapping[int, Mapping[str, Any]], known: Sequence[Reduction | None]
) -> list[Reduction]:
    """Return for each output the rule that combines its values over several minibatches.

    Args:
      run: runs the program function in test mode.
      arrays: parameters and states by name, or their shapes and dtypes.
      feeds: for each of two batch sizes, dummy feeds by name.
      known: for each output its rule, or None if the rule must be found.
    """
    (batch, given), (other, more) = feeds.items()
    first, wanted = _trace(run, arrays, batch, given)
    second = None
    with contextlib.suppress(Exception):  # some program functions work for one batch size only
        second, _ = _trace(run, arrays, other, more)
    single = [rule if one.reduced is None else None for one, rule in zip(wanted, known, strict=True)]
    noted = [rule or said for one, rule in zip(wanted, single, strict=True) for said in one.known]
    found = iter(reductions_of(first, second, noted))
    return [_whole(one.reduced, [next(found) for _ in one.known]) for one in wanted]


def _whole(reduced: Reduced | None, rules: Sequence[Reduction]) -> Reduction:
    """Return the reduction rule of an output: its only rule, or a "function" rule that contains all of `rules`."""
    if reduced is None:
        return rules[0]
    return Reduction("function", None, tuple(rules), reduced.function, reduced.over_steps)


def _trace(
    run: Run, arrays: Mapping[str, Any], batch: int, feeds: Mapping[str, Any]
) -> tuple[TestTrace, list[_WantedOutput]]:
    wanted: list[_WantedOutput] = []
    named: list[tuple[str, str]] = []

    def traced(arrays: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
        frame, outputs = run(arrays, feeds)
        values: list[Any] = []
        for output in outputs:
            reduced = frame.fact(output, "reduced")
            # `reduced` describes how a layer has computed the output from other values by a function. Without a
            # function, it is a rule that combines values of the output, and `said_of` returns this rule.
            if reduced is not None and reduced.function is None:
                reduced = None
            parts = [output] if reduced is None else reduced.parts
            wanted.append(_WantedOutput(reduced, [said_of(frame, part) for part in parts]))
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
    return TestTrace(batch, jaxpr, given, values, noted), wanted
