"""Rows: one analysis that follows the rows of a minibatch through the equations of a program.

The program is traced with two numbers of rows and of time steps. A size, a literal or a parameter of an equation that
differs between the traces depends on one of them. From the first equation to the last, each variable gets a kind:

    constant       equal for every minibatch
    fed            computed from feeds without rows, such as a feed of a fixed shape
    rows           an array with an axis of rows; each row is computed from one row of the feeds
    indices        like rows, and some columns hold the number of the row; only a gather or scatter may read it
    sum, max, min  the sum, maximum or minimum over the rows
    mean           a mean over rows with a weight that a layer has recorded
    whole          one value of the whole minibatch, computed from values over its rows, such as the root of a mean
    mixed          an array with rows that depend on other rows, or a value computed from such an array

A kind has a scale: the value is proportional to the number of rows to this power. So a mean over the rows is a sum of
scale -1, and the number of rows is a constant of scale 1.

The table `_TABLE` knows the primitives. An equation that is not in the table mixes the rows of its inputs. Layers and
users declare by `mark` and `marked` that a computation treats each row alone although the table cannot follow it.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from fluid.core.equations import (
    call_of,
    inner_functions,
    inner_jaxprs,
    is_called_by_user,
    is_literal,
    live_equations,
    scan_counts,
    user_line,
)

Pair = tuple[int, int]
"""A size in the two traces."""

# Numbers of up to this many sequences, plus or minus this many steps, follow the steps of sequences.
_NEAR_STEPS = 3
# In place of a source line: a file of an earlier version does not say whether rows are mixed.
NOT_KNOWN = "not known"
# The pair of dummy batch sizes of traced runs, and further pairs for programs that have a size of an earlier pair. Two
# sizes that differ between the runs depend on the batch size.
BATCHES = (37, 41)
_OTHER_BATCHES = ((43, 47), (53, 59), (67, 71), (73, 79), (83, 89), (97, 101), (103, 107), (109, 113))
# The numbers of steps of dummy sequences: of the outer and of the inner level, in the first and in the second trace.
STEPS, OTHER_STEPS = (3, 5), (4, 6)


def batches_beside(sizes: set[int]) -> Pair:
    """Return the first pair of dummy batch sizes that are not in `sizes`, the sizes of a program.

    Example:
      >>> batches_beside({10, 64}), batches_beside({64, 37})
      ((37, 41), (43, 47))
    """
    return next((pair for pair in (BATCHES, *_OTHER_BATCHES) if sizes.isdisjoint(pair)), BATCHES)


class Noted(NamedTuple):
    """A named value of a program, for which layers or the user have recorded how to combine it over minibatches.

    Attributes:
      name: the name of the value.
      kind: the kind of the reduction rule, such as "mean" or "sum"; see `Reduction`.
      declared: True if the user has declared the rule by `layers.metric`, so that the equations do not matter.
      value: the variable of the value in the traced equations.
      weight: the variable of the weight if the kind is "mean"; else None.
    """

    name: str
    kind: str
    declared: bool
    value: Any
    weight: Any


class Trace(NamedTuple):
    """One trace of a function of rows, such as a program in test mode.

    Attributes:
      rows: the number of rows.
      closed: the traced equations and the constants of the trace.
      given: the variables of the inputs that may have rows in their first dimension; other inputs are constants.
      noted: the named values with a reduction rule that was recorded.
    """

    rows: int
    closed: Any
    given: Sequence[Any]
    noted: Sequence[Noted] = ()


class Kind(NamedTuple):
    """The way in which a variable depends on the rows of a minibatch; the names are listed above.

    Attributes:
      name: the name, such as "rows".
      scale: the value is proportional to the number of rows to this power.
      axis: for "rows", the axis with the rows.
      inner: for "rows", the number of successive positions of the axis that belong to one row, in both traces.
      along: for "constant", the axes of open sizes along which the elements may differ.
      counted: for "constant", the axis along which the elements count the rows: 0, 1, 2 and so on; else None.
      own: for "indices", the indices along the last axis of the columns that hold the number of the row.
      noted: for "mean", the named value with an equal weight.
      equation: for "whole" and "mixed", the first equation whose result has this kind, if it is known.
    """

    name: str
    scale: int = 0
    axis: int = 0
    inner: Pair = (1, 1)
    along: frozenset[int] = frozenset()
    counted: int | None = None
    own: frozenset[int] = frozenset()
    noted: Noted | None = None
    equation: Any = None


CONSTANT, _FED, _WHOLE, MIXED = Kind("constant"), Kind("fed"), Kind("whole"), Kind("mixed")
_REDUCED = frozenset({"sum", "max", "min", "mean", "whole"})
_MARK = "fluid-rows:"


def harmless(value: Any) -> Any:
    """Mark a value of the whole minibatch on which no result depends, such as a condition that ends a loop early.

    A layer may skip steps as soon as all rows have ended, because a row that has ended does not change any more.
    """
    return _labelled(f"{_MARK}harmless", value)


def mark(name: str, value: Any) -> Any:
    """Mark the inputs of a computation that treats each row alone; return them for the computation."""
    return _labelled(f"{_MARK}given:{name}", value)


def marked(name: str, value: Any) -> Any:
    """Mark the results of the computation whose inputs `mark` has marked with an equal name; return the results."""
    return _labelled(f"{_MARK}made:{name}", value)


def _labelled(label: str, value: Any) -> Any:
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, label) if isinstance(leaf, jax.Array) else leaf, value)


def mixed_rows(traces: Sequence[tuple[int, Any]], given: int) -> str | None:
    """Find a source line where a function computes a row of its results from several rows of its arguments.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def traces(function):
      ...     return [(rows, jax.make_jaxpr(function)(jnp.ones((rows, 3)))) for rows in (4, 5)]
      >>> mixed_rows(traces(lambda x: x - x.mean(axis=1, keepdims=True)), 1) is None
      True
      >>> mixed_rows(traces(lambda x: x - x.mean(axis=0)), 1) is None
      False
    """
    first, second = (Trace(rows, closed, closed.jaxpr.invars[-given:]) for rows, closed in traces)
    reading = Reading.of(first, second)
    if reading is None:
        return "its program"
    outputs = zip(first.closed.jaxpr.outvars, second.closed.jaxpr.outvars, strict=True)
    kinds = [reading.by_row(variable, twin) for variable, twin in outputs]
    return next((line_of(kind) for kind in kinds if kind is not None), None)


def line_of(kind: Kind) -> str:
    """Return the user's source line of the first equation with this kind."""
    return "its program" if kind.equation is None else user_line(kind.equation)


class Reading:
    """The kinds of the variables of a jaxpr, found from two traces; a called function has a Reading of its own."""

    def __init__(
        self,
        first: Any,
        second: Any,
        batches: Pair,
        kinds: dict[Any, Kind],
        noted: Mapping[Any, Noted] | None = None,
        marks: dict[str, list[Kind]] | None = None,
        site: Any = None,
    ):
        self.site = site
        self.batches = batches
        self.kinds = kinds
        self.marks: dict[str, list[Kind]] = {} if marks is None else marks
        self.makers = {v: e for e in first.eqns for v in e.outvars}
        noted = noted or {}
        for equation, twin in zip(first.eqns, second.eqns, strict=True):
            results = self._results(equation, twin)
            for variable, kind in zip(equation.outvars, results, strict=True):
                if variable not in self.kinds:  # the kind of an override is known
                    self.kinds[variable] = _as_noted(kind, noted.get(variable))

    @classmethod
    def of(cls, first: Trace, second: Trace, replaced: Sequence[Any] = ()) -> "Reading | None":
        """Return the Reading of two traces; None if their equations differ by more than sizes and constants."""
        jaxpr, twin = first.closed.jaxpr, second.closed.jaxpr
        if not _alike(jaxpr, twin):
            return None
        batches = (first.rows, second.rows)
        kinds = _of_constants(first.closed, second.closed, batches)
        given = dict(zip(first.given, second.given, strict=True))
        for variable, other in [*zip(jaxpr.invars, twin.invars, strict=True), *replaced]:
            is_given = variable in given or (variable, other) in replaced
            kinds[variable] = _given(sizes(variable, other), batches) if is_given else CONSTANT
        noted: dict[Any, Noted] = {}
        for one, same in zip(first.noted, second.noted, strict=True):
            if not is_literal(one.value):
                noted.setdefault(one.value, _by_examples(one, same, batches))
        return cls(jaxpr, twin, batches, kinds, noted)

    def kind(self, variable: Any, twin: Any, reader: Any = None) -> Kind:
        """Return the kind of a variable or literal.

        Args:
          reader: the equation that reads it, if any. A layer may read the number of steps to which sequences are
            padded, since padding changes no result of a layer; elsewhere such a number is a value of the minibatch.
        """
        if not is_literal(variable):
            return self.kinds.get(variable, MIXED)
        if not is_literal(twin):
            return _WHOLE
        kind = _of_values(variable.val, twin.val, self.batches)
        pair = variable.val, twin.val
        return CONSTANT if kind.name == "whole" and reader is not None and self.reads_steps(reader, pair) else kind

    def reads_steps(self, equation: Any, pair: tuple[Any, Any]) -> bool:
        """Return whether a layer of fluid has created an equation with a number that follows the steps of sequences."""
        if is_called_by_user(self.site or equation) or any(np.ndim(n) or n != np.floor(n) for n in pair):
            return False
        count = int(pair[1]) - int(pair[0])  # a sequence has one more step in the second trace
        near = abs(count) == 1 or any(abs(int(pair[0]) - count * steps) <= _NEAR_STEPS for steps in STEPS)
        of_rows = any(pair == (self.batches[0] // part, self.batches[1] // part) for part in range(2, 5))
        multiple = 0 < abs(count) <= _NEAR_STEPS and near and not of_rows
        return multiple or pair == (math.prod(STEPS), math.prod(OTHER_STEPS))

    def by_row(self, variable: Any, twin: Any) -> Kind | None:
        """Return None if each element of the first dimension is computed from one row; else the kind."""
        kind = self.kind(variable, twin)
        own = sizes(variable, twin)[:1] == [self.batches]
        if kind.name == "rows" and own and (kind.scale, kind.axis, kind.inner) == (0, 0, (1, 1)):
            return None
        uniform = kind.name == "constant" and kind.scale == 0 and 0 not in kind.along
        return None if uniform and own else kind

    def _results(self, equation: Any, twin: Any) -> list[Kind]:
        kinds = [self.kind(v, w, equation) for v, w in zip(equation.invars, twin.invars, strict=True)]
        call = Call(equation, twin, kinds, self)
        found = _results_of(call)
        # An inner function reports the line of the call: JAX caches traces, so its own lines may be of another call.
        inner = call.name in _CONTROL
        found = [
            MIXED if kind.name in ("rows", "indices") and _has_other_rows(kind, dims, self.batches) else kind
            for kind, dims in zip(found, call.outputs, strict=True)
        ]
        return [
            kind._replace(equation=equation)
            if kind.name in ("whole", "mixed") and (kind.equation is None or (inner and kind not in kinds))
            else kind
            for kind in found
        ]

    def inside(self, first: Any, second: Any, kinds: Sequence[Kind], site: Any = None) -> list[Kind]:
        """Return the kinds of the results of a called function, from the kinds of its arguments."""
        one, two = getattr(first, "jaxpr", first), getattr(second, "jaxpr", second)
        known = _of_constants(first, second, self.batches) | dict(zip(one.invars, kinds, strict=True))
        reading = Reading(one, two, self.batches, known, None, self.marks, site)
        reader = site or next(reversed(one.eqns), None)
        return [reading.kind(v, w, reader) for v, w in zip(one.outvars, two.outvars, strict=True)]


class Call:
    """One equation with its inputs, as the functions of the table read it.

    Attributes:
      name: the name of the primitive.
      params: the parameters in the first trace.
      others: the parameters in the second trace.
      both: the parameters in both traces.
      inputs: for each input, its sizes in both traces.
      outputs: for each output, its sizes in both traces.
      rows: the kinds of the inputs of the kind "rows".
    """

    def __init__(self, equation: Any, twin: Any, kinds: list[Kind], reading: Reading):
        self.equation, self.twin, self.kinds, self.reading = equation, twin, kinds, reading
        self.name = equation.primitive.name.replace("-", "_")
        self.both = self.params, self.others = equation.params, twin.params
        self.inputs = [sizes(v, w) for v, w in zip(equation.invars, twin.invars, strict=True)]
        self.outputs = [sizes(v, w) for v, w in zip(equation.outvars, twin.outvars, strict=True)]
        self.rows = [kind for kind in kinds if kind.name == "rows"]

    @property
    def has_equal_params(self) -> bool:
        """True if the parameters are equal in both traces."""
        return all(self.others[key] is value or self.others[key] == value for key, value in self.params.items())

    def is_zero(self, place: int) -> bool:
        """Return whether an input is known to hold only zeros."""
        variable = self.equation.invars[place]
        while not is_literal(variable):
            maker = self.reading.makers.get(variable)
            if maker is None or maker.primitive.name not in ("broadcast_in_dim", "convert_element_type", "reshape"):
                return False
            variable = maker.invars[0]
        return not np.any(np.asarray(variable.val))

    def maker(self, place: int) -> Any:
        """Return the equation that computes an input; None if it is computed outside of the jaxpr."""
        variable = self.equation.invars[place]
        return None if is_literal(variable) else self.reading.makers.get(variable)


def sizes(variable: Any, twin: Any) -> list[Pair]:
    """Return the sizes of the dimensions of a variable in both traces."""
    shapes = [getattr(v.aval, "shape", ()) for v in (variable, twin)]
    return list(zip(*shapes, strict=True)) if len(shapes[0]) == len(shapes[1]) else [(-1, -2)]


def _open(dims: Sequence[Pair]) -> frozenset[int]:
    return frozenset(i for i, (a, b) in enumerate(dims) if a != b)


def _proportional(found: Pair, batches: Pair) -> bool:
    return found[0] * batches[1] == found[1] * batches[0]


def _has_other_rows(kind: Kind, dims: Sequence[Pair], batches: Pair) -> bool:
    others = (pair for axis, pair in enumerate(dims) if axis != kind.axis)
    return any(_has_rows(pair, batches) for pair in others)


def _has_rows(size: Pair, batches: Pair) -> bool:
    return size[0] != size[1] and not size[0] % batches[0] and not size[1] % batches[1]


def _given(dims: Sequence[Pair], batches: Pair) -> Kind:
    if dims[:1] == [batches]:
        return Kind("rows")
    return MIXED if _open(dims) else _FED


def _of_values(first: Any, second: Any, batches: Pair) -> Kind:
    """Return the kind of a literal or constant array from its values in both traces."""
    if first is second:
        return CONSTANT
    if jax.numpy.issubdtype(getattr(first, "dtype", np.float32), jax.dtypes.extended):
        return CONSTANT  # a random key
    here, there = np.asarray(first), np.asarray(second)
    if here.shape != there.shape:
        if here.ndim != there.ndim:
            return _WHOLE
        differing = [i for i, (a, b) in enumerate(zip(here.shape, there.shape, strict=True)) if a != b]
        return _along({i for i in differing if not np.all(here == here.take([0], i))})
    if np.array_equal(here, there, equal_nan=here.dtype.kind in "fc"):
        return CONSTANT
    if here.dtype.kind in "iuf":
        if np.allclose(here * float(batches[1]), there * float(batches[0])):
            return Kind("constant", 1)
        if np.allclose(here * float(batches[0]), there * float(batches[1])):
            return Kind("constant", -1)
    return _WHOLE


def _along(axes: Any) -> Kind:
    return Kind("constant", along=frozenset(axes))


def _of_constants(first: Any, second: Any, batches: Pair) -> dict[Any, Kind]:
    """Return the kinds of the constants of a closed jaxpr, by variable; an open jaxpr has none."""
    if not hasattr(first, "consts"):
        return {}
    values = zip(first.jaxpr.constvars, first.consts, second.consts, strict=True)
    return {v: _of_values(a, b, batches) for v, a, b in values}


def counts_examples(weight: Any, twin: Any, batches: Pair) -> bool:
    """Return whether a recorded weight is a multiple of the number of examples, by its variables in both traces."""
    are_known = all(variable is not None and is_literal(variable) for variable in (weight, twin))
    return are_known and _proportional((weight.val, twin.val), batches)


def _by_examples(noted: Noted, twin: Noted, batches: Pair) -> Noted:
    return noted._replace(weight=None) if counts_examples(noted.weight, twin.weight, batches) else noted


def _as_noted(kind: Kind, noted: Noted | None) -> Kind:
    """Return the kind of a variable with a recorded rule.

    A rule of a layer says how a value of the whole minibatch is a mean or a sum. It never overrules an equation that
    mixes rows. A rule that the user has declared does.
    """
    if noted is None or (kind.name == "constant" and noted.kind == "mean"):
        return kind
    if not noted.declared and kind.name not in ("whole", "fed"):
        return kind
    if noted.kind == "mean":
        return Kind("sum", -1) if noted.weight is None else Kind("mean", noted=noted)
    return Kind(noted.kind) if noted.kind in ("sum", "max", "min") else _WHOLE


def _alike(first: Any, second: Any) -> bool:
    """Return whether two jaxprs have equal equations, apart from sizes and constants."""
    if len(first.eqns) != len(second.eqns) or len(first.constvars) != len(second.constvars):
        return False
    for equation, twin in zip(first.eqns, second.eqns, strict=True):
        if equation.primitive is not twin.primitive or len(equation.invars) != len(twin.invars):
            return False
        if len(equation.outvars) != len(twin.outvars) or equation.params.keys() != twin.params.keys():
            return False
        inner, other = inner_jaxprs(equation), inner_jaxprs(twin)
        if len(inner) != len(other) or not all(map(_alike, inner, other)):
            return False
    return True


def _results_of(call: Call) -> list[Kind]:
    """Return the kind of each result of an equation."""
    if call.name == "name":
        return [_declared(call)]
    if _is_wrapped(call):  # the size of the axis does not matter: an index below 0 counts from its end
        return [call.kinds[1]]
    control = _CONTROL.get(call.name)
    if control is not None:
        return control(call)
    count = len(call.outputs)
    if found := next((kind for kind in call.kinds if kind.name == "mixed"), None):
        return [found] * count
    if call.name == "concatenate" and any(kind.counted is not None for kind in call.kinds):
        return [_indices(call)]
    if any(kind.name == "indices" for kind in call.kinds):
        if call.name == "convert_element_type":
            return call.kinds
        if call.name not in ("gather", *_SCATTERS):
            return [MIXED] * count
    reduced = next((kind for kind in call.kinds if kind.name in _REDUCED), None)
    if call.rows or any(kind.name == "indices" for kind in call.kinds):
        if reduced is call.kinds[0] and _SCATTERED.get(call.name) == reduced.name == "sum" and not reduced.scale:
            reduced = None  # another sum over the rows is added
        if reduced is not None:
            return [MIXED._replace(equation=reduced.equation if reduced.name == "mixed" else None)] * count
        followed = _TABLE.get(call.name)
        found = None if followed is None else followed(call)
        if found is None:
            # A result without an axis of open size is one value of the whole minibatch, if the table knows the
            # primitive, and else mixed.
            known = followed is not None and not any(map(_open, call.outputs))
            return [_WHOLE if known else MIXED] * count
        return [found] * count if isinstance(found, Kind) else found
    if reduced is not None:
        return [_of_reduced(call, reduced, dims) for dims in call.outputs]
    return [_of_constant(call, dims) for dims in call.outputs]


def _declared(call: Call) -> Kind:
    """Return the kind of the result of a `name` equation, which may mark a computation that treats each row alone."""
    label = str(call.params["name"])
    (kind,) = call.kinds
    if label == f"{_MARK}harmless":
        return MIXED if _open(call.outputs[0]) else CONSTANT
    if label.startswith(f"{_MARK}given:"):
        call.reading.marks.setdefault(label.removeprefix(f"{_MARK}given:"), []).append(kind)
        return kind
    if not label.startswith(f"{_MARK}made:"):
        return kind
    given = call.reading.marks.get(label.removeprefix(f"{_MARK}made:"), [])
    rows = [one for one in given if one.name == "rows"]
    reduced = next((one for one in given if one.name in _REDUCED or one.name == "mixed"), None)
    if reduced is not None and (rows or reduced.name == "mixed"):
        return MIXED
    if not rows or reduced is not None:
        return reduced or _of_constant(call, call.outputs[0])
    if any((one.axis, one.inner, one.scale) != (0, rows[0].inner, 0) for one in rows):
        return MIXED
    expected = _times(call.reading.batches, rows[0].inner)
    if call.outputs[0][:1] == [expected]:
        return rows[0]
    return MIXED if _open(call.outputs[0]) else _WHOLE


def _times(first: Pair, second: Pair) -> Pair:
    return first[0] * second[0], first[1] * second[1]


# ---- equations without rows -----------------------------------------------------------------------------------------

# Primitives that return all or some elements of their first input unchanged.
_LAYOUT = frozenset(
    "reshape broadcast_in_dim transpose squeeze slice rev convert_element_type reduce_precision copy copy_p "
    "stop_gradient optimization_barrier sharding_constraint reshard".split()
)
# Primitives of increasing functions, which map the maximum of the inputs to the maximum of the results.
_INCREASING = frozenset({"sqrt", "cbrt", "exp", "exp2", "expm1", "log", "log1p", "tanh", "logistic", "ceil", "floor"})
# Primitives of arithmetic on elements, whose results follow the scale of their inputs.
_ARITHMETIC = frozenset(
    "add add_any sub mul div neg max min convert_element_type reduce_precision copy copy_p stop_gradient select_n "
    "optimization_barrier sharding_constraint reshard".split()
)
# Other functions of elements.
_OF_ELEMENTS = frozenset(
    "abs acos acosh and asin asinh atan atan2 atanh bessel_i0e bessel_i1e bitcast_convert_type cbrt ceil clamp clz "
    "complex conj cos cosh digamma eq eq_to erf erf_inv erfc exp exp2 expm1 floor ge gt igamma igamma_grad_a igammac "
    "imag integer_pow is_finite le le_to lgamma log log1p logistic lt lt_to mulhi ne nextafter not or polygamma "
    "population_count pow random_gamma_grad real regularized_incomplete_beta rem round rsqrt shift_left "
    "shift_right_arithmetic shift_right_logical sign sin sinh sqrt square tan tanh threefry2x32 xor zeta".split()
)


def _of_constant(call: Call, dims: Sequence[Pair]) -> Kind:
    """Return the kind of a result with sizes `dims`, computed only from constants and feeds without rows."""
    opened = _open(dims)
    if any(kind.name == "fed" for kind in call.kinds):
        return MIXED if any(kind.along for kind in call.kinds) else _FED
    scale = _scale(call)
    if scale is None:
        return _WHOLE
    # Random numbers of each row: a row may have others at another position, as in another run.
    if call.name in ("random_bits", "random_fold_in", "random_split") and call.reading.batches in dims:
        return Kind("rows", axis=dims.index(call.reading.batches))
    elements = call.name in _ARITHMETIC or call.name in _OF_ELEMENTS
    if (elements and call.has_equal_params) or call.name.startswith("random_"):
        along = frozenset[int]().union(*(kind.along for kind in call.kinds)) & opened
        return Kind("constant", scale, along=along, counted=_counted(call))
    if call.name == "iota":
        axis = call.params["dimension"]
        return _along({axis} & opened)._replace(counted=axis if dims[axis] == call.reading.batches else None)
    if call.name == "tile":
        tiled = {axis for axis, (a, b) in enumerate(zip(call.inputs[0], dims, strict=True)) if a != b and a != (1, 1)}
        return _along((call.kinds[0].along | tiled) & opened)
    if call.name in _MOVES:
        (kind, *_) = call.kinds
        if not kind.along:
            return kind
        if (moved := _moved_constant(call, kind)) is not None:
            return moved
    if call.name in _REDUCTIONS:
        return _of_reduced_constant(call, scale)
    # An array of equal rows, such as zeros, is followed like any rows.
    followed = _TABLE.get(call.name)
    kinds = [_as_rows(kind, dims, call.reading.batches) for kind, dims in zip(call.kinds, call.inputs, strict=True)]
    if followed is not None and kinds != call.kinds:
        found = followed(Call(call.equation, call.twin, kinds, call.reading))
        if isinstance(found, Kind):
            return found
    contracted = call.name == "dot_general" and any(
        _open([dims[axis] for axis in axes])
        for dims, axes in zip(call.inputs, call.params["dimension_numbers"][0], strict=True)
    )
    if scale or contracted:
        return _WHOLE
    # Equal indices read equal rows of a table, and equal rows have equal products.
    equal = call.name in ("gather", "dot_general") and not any(kind.along for kind in call.kinds)
    return CONSTANT if equal else _along(opened)


def _as_rows(kind: Kind, dims: Sequence[Pair], batches: Pair) -> Kind:
    axes = [axis for axis, size in enumerate(dims) if size == batches and axis not in kind.along]
    return Kind("rows", axis=axes[0]) if axes and (kind.name, kind.scale) == ("constant", 0) else kind


def _scale(call: Call) -> int | None:
    """Return the scale of a result computed from constants, or None if the result is not proportional to a power."""
    scales = [kind.scale for place, kind in enumerate(call.kinds) if not call.is_zero(place)]
    if call.name == "select_n" and not call.kinds[0].scale:
        scales = [kind.scale for place, kind in enumerate(call.kinds[1:], 1) if not call.is_zero(place)]
    if not any(scales):
        return 0
    if call.name == "mul":
        return sum(scales)
    if call.name == "div" and len(scales) == 2:
        return scales[0] - scales[1]
    same = len(set(scales)) == 1
    linear = (_ARITHMETIC - {"mul", "div"}) | _LAYOUT | {"reduce_sum", "select_n"}
    return scales[0] if same and call.name in linear else None


def _counted(call: Call) -> int | None:
    return call.kinds[0].counted if call.name in ("convert_element_type", "copy", "stop_gradient") else None


def _is_wrapped(call: Call) -> bool:
    """Return whether an equation is the selection `where(i < 0, i + size, i)`, by which JAX reads negative indices."""
    if call.name != "select_n" or len(call.kinds) != 3:
        return False
    test, index, wrapped = (call.maker(place) for place in range(3))
    if test is None or wrapped is None or test.primitive.name != "lt" or wrapped.primitive.name != "add":
        return False
    variable = call.equation.invars[1]
    return (
        test.invars[0] is variable
        and is_literal(test.invars[1])
        and not np.any(test.invars[1].val)
        and (wrapped.invars[0] is variable or wrapped.invars[1] is variable)
    )


def _moved_constant(call: Call, kind: Kind) -> Kind | None:
    """Return the kind of a constant in another layout; None if the axes cannot be followed."""
    axes = {axis: _moved(call, Kind("rows", axis=axis), call.inputs[0][axis]) for axis in kind.along}
    if any(found is None or found.inner != (1, 1) for found in axes.values()):
        return None
    along = frozenset(found.axis for found in axes.values() if found is not None)
    counted = None if kind.counted is None else axes.get(kind.counted)
    return kind._replace(along=along, counted=None if counted is None else counted.axis)


def _of_reduced_constant(call: Call, scale: int) -> Kind:
    """Return the kind of a reduction of a constant."""
    (kind, *_) = call.kinds
    axes = set(call.params.get("axes", call.params.get("dimensions", ())))
    reduced = {axis for axis in axes if axis in _open(call.inputs[0])}
    if not is_called_by_user(call.reading.site or call.equation):
        # a layer may reduce a mask over the steps of sequences
        reduced = {axis for axis in reduced if _has_rows(call.inputs[0][axis], call.reading.batches)}
    if reduced & kind.along or len(call.kinds) > 1:
        return _WHOLE
    along = frozenset(axis - sum(a < axis for a in axes) for axis in kind.along if axis not in axes)
    if not reduced:
        return Kind("constant", scale, along=along)
    total = functools.reduce(_times, (call.inputs[0][axis] for axis in reduced))
    if call.name in ("reduce_max", "reduce_min", "reduce_and", "reduce_or"):
        return Kind("constant", scale, along=along)
    if call.name == "reduce_sum" and _proportional(total, call.reading.batches):
        return Kind("constant", scale + 1, along=along)
    return _WHOLE


def _of_reduced(call: Call, reduced: Kind, dims: Sequence[Pair]) -> Kind:
    """Return the kind of a result computed from values over the rows, such as means, and from constants."""
    whole = next((kind for kind in call.kinds if kind.name == "whole"), _WHOLE)
    if whole.equation is not None or len(call.outputs) > 1 and call.name != "optimization_barrier":
        return whole
    if call.name in _LAYOUT:
        return call.kinds[0] if call.kinds[0] == reduced else whole
    if _open(dims) or any(map(_open, call.inputs)):
        return whole
    rule = _RULES.get(call.name)
    found = whole if rule is None else rule(call)
    if rule is None and call.name in _INCREASING and reduced.name in ("max", "min"):
        return reduced
    return found


def _add(call: Call, negative: bool = False) -> Kind:
    """Return the kind of `a + b`; of `a - b` if `negative`."""
    first, second = call.kinds
    second = _opposite(second) if negative else second
    for one, other, place in ((first, second, 1), (second, first, 0)):
        if other.name == "constant":
            # a sum over n rows plus n times a constant is the sum over the rows plus this constant
            fitting = one.scale + 1 if one.name == "sum" else 0
            return one if call.is_zero(place) or (one.name != "whole" and other.scale == fitting) else _WHOLE
    if first.name == second.name == "sum" and first.scale == second.scale:
        return first
    if first.name == second.name == "mean":
        return first if _weighs_the_same(call.reading, first.noted, second.noted) else _WHOLE
    return _WHOLE


def _opposite(kind: Kind) -> Kind:
    names = {"max": "min", "min": "max"}
    return kind._replace(name=names.get(kind.name, kind.name))


def _multiply(call: Call) -> Kind:
    """Return the kind of `a * b` or `a / b`, one of which is a value over the rows."""
    first, second = call.kinds
    if call.name == "div" and second.name != "constant":
        return _WHOLE
    one, other, place = (first, second, 1) if second.name == "constant" else (second, first, 0)
    if other.name != "constant":
        return _WHOLE
    scale = -other.scale if call.name == "div" else other.scale
    if one.name == "sum":
        return one._replace(scale=one.scale + scale)
    literal = call.equation.invars[place]
    positive = is_literal(literal) and literal.val > 0
    return one if scale == 0 and (one.name == "mean" or positive) else _WHOLE


def _kept(*names: str) -> Callable[[Call], Kind]:
    return lambda call: call.kinds[0] if call.kinds[0].name in names else _WHOLE


def _product(call: Call) -> Kind:
    one = next(kind for kind in call.kinds if kind.name in _REDUCED)
    constant = any(kind.name == "constant" and not kind.scale for kind in call.kinds)
    return one if constant and one.name in ("mean", "sum") else _WHOLE


def _bound(name: str) -> Callable[[Call], Kind]:
    return lambda call: (
        Kind(name) if {(k.name, k.scale) for k in call.kinds} <= {(name, 0), ("constant", 0)} else _WHOLE
    )


def _joined(call: Call) -> Kind:
    return call.kinds[0] if all(kind == call.kinds[0] for kind in call.kinds) else _WHOLE


_RULES: Mapping[str, Callable[[Call], Kind]] = {
    "add": _add,
    "add_any": _add,
    "sub": functools.partial(_add, negative=True),
    "neg": lambda call: _opposite(call.kinds[0]),
    "mul": _multiply,
    "div": _multiply,
    "dot_general": _product,
    "reduce_sum": _kept("mean", "sum"),
    "reduce_max": _kept("max"),
    "reduce_min": _kept("min"),
    "max": _bound("max"),
    "min": _bound("min"),
    "concatenate": _joined,
}


def _weighs_the_same(reading: Reading, first: Noted | None, second: Noted | None) -> bool:
    return first is second or (
        first is not None and second is not None and _equal(reading, first.weight, second.weight)
    )


def _equal(reading: Reading, first: Any, second: Any) -> bool:
    """Return whether equal operations compute two variables from equal inputs, so that their values are equal."""
    if first is second:
        return True
    if is_literal(first) or is_literal(second):
        return is_literal(first) and is_literal(second) and bool(first.val == second.val)
    a, b = reading.makers.get(first), reading.makers.get(second)
    if a is None or b is None or a.primitive is not b.primitive or str(a.params) != str(b.params):
        return False
    pairs = zip(a.invars, b.invars, strict=True)
    return a.outvars.index(first) == b.outvars.index(second) and all(_equal(reading, v, w) for v, w in pairs)


# ---- equations of rows ----------------------------------------------------------------------------------------------


def _common(call: Call, skipped: Sequence[int] = ()) -> Kind | None:
    """Return the kind of the inputs with rows, if all have the same axis, and constants do not differ along it."""
    kinds = [kind for place, kind in enumerate(call.kinds) if place not in skipped]
    rows = [kind for kind in kinds if kind.name == "rows"]
    first = rows[0]
    if any((kind.axis, kind.inner, kind.scale) != (first.axis, first.inner, first.scale) for kind in rows):
        return None
    if any(first.axis in kind.along or kind.scale != 0 for kind in kinds if kind.name != "rows"):
        return None
    return first


def _elementwise(call: Call) -> Kind | None:
    """Return the kind of a function of elements, such as `a * b`; its inputs are scalars or have equal shapes."""
    if not call.has_equal_params:
        return None
    first = call.rows[0]
    if any((kind.axis, kind.inner) != (first.axis, first.inner) for kind in call.rows):
        return None
    if any(first.axis in kind.along for kind in call.kinds):
        return None
    scale = _scale(call)
    return None if scale is None else first._replace(scale=scale)


def _moved(call: Call, kind: Kind, extent: Pair | None = None) -> Kind | None:
    """Return the kind of the first input in another layout; None if its axis is cut, reversed or merged otherwise."""
    name, axis, params = call.name, kind.axis, call.params
    if name == "reshape":
        return None if params.get("dimensions") is not None else _reshaped(call, kind, extent or call.reading.batches)
    if name == "broadcast_in_dim":
        return kind._replace(axis=params["broadcast_dimensions"][axis])
    if name == "transpose":
        return kind._replace(axis=params["permutation"].index(axis))
    if name == "squeeze":
        return kind._replace(axis=axis - sum(d < axis for d in params["dimensions"]))
    if name == "rev":
        return None if axis in params["dimensions"] else kind
    if name == "slice":
        followed = all(_is_followed(call, i) for i in range(len(call.inputs[0])))
        return kind if followed and _is_full(call, axis) else None
    return None


def _is_full(call: Call, axis: int) -> bool:
    """Return whether a `slice` keeps an axis as it is."""
    params = [call.params, call.others]
    strides = [1 if p["strides"] is None else p["strides"][axis] for p in params]
    limits = tuple(p["limit_indices"][axis] for p in params)
    starts = [p["start_indices"][axis] for p in params]
    return starts == [0, 0] and limits == call.inputs[0][axis] and strides == [1, 1]


def _is_followed(call: Call, axis: int) -> bool:
    """Return whether a `slice` cuts equal numbers of elements from an axis in both traces."""
    (start, other), (limit, end) = (
        (call.params[key][axis], call.others[key][axis]) for key in ("start_indices", "limit_indices")
    )
    size, longer = call.inputs[0][axis]
    begins = start == other or call.reading.reads_steps(call.equation, (start, other))
    ends = limit == end or size - limit == longer - end or call.reading.reads_steps(call.equation, (limit, end))
    return bool(begins and ends)


def _reshaped(call: Call, kind: Kind, extent: Pair) -> Kind | None:
    """Return the kind after a reshape: the axis of rows may be merged with other axes, but not be divided."""
    before, after = [], []
    for trace, batch in enumerate(extent):
        old = [pair[trace] for pair in call.inputs[0]]
        new = [pair[trace] for pair in call.outputs[0]]
        groups = old[kind.axis] // (batch * kind.inner[trace])
        step = math.prod(old[: kind.axis]) * groups  # rows follow each other within groups, of which there are `step`
        for axis, size in enumerate(new):
            start = math.prod(new[:axis])
            if step % start == 0 and (start * size) % (step * batch) == 0:
                before.append(axis)
                after.append(start * size // (step * batch))
                break
    if len(before) != 2 or before[0] != before[1]:
        return None
    return kind._replace(axis=before[0], inner=(after[0], after[1]))


def _layout(call: Call) -> Kind | None:
    return _moved(call, call.kinds[0])


_OVER_ROWS = {"reduce_sum": "sum", "reduce_max": "max", "reduce_or": "max", "reduce_min": "min", "reduce_and": "min"}


def _reduce(call: Call) -> Kind | list[Kind] | None:
    """Return the kind of a reduction: a sum or an extreme over the rows, or rows if another axis is reduced."""
    first = _common(call)
    axes = call.params.get("axes", call.params.get("dimensions"))
    if first is None:
        return None
    if first.axis in axes:
        name = _OVER_ROWS.get(call.name, "whole")
        found = Kind(name, first.scale) if name == "sum" or first.scale == 0 else _WHOLE
        return found if not any(map(_open, call.outputs)) else None
    if first.scale and call.name != "reduce_sum":
        return None
    return first._replace(axis=first.axis - sum(axis < first.axis for axis in axes))


def _if(fits: Callable[[Call, int], bool], scaled: bool = False) -> Callable[[Call], Kind | None]:
    """Return a function for primitives that compute each row alone under a condition, and keep the axis of rows."""

    def follow(call: Call) -> Kind | None:
        first = _common(call)
        return first if first is not None and (scaled or not first.scale) and fits(call, first.axis) else None

    return follow


def _is_along_another(call: Call, axis: int) -> bool:
    named = (call.params[name] for name in ("axis", "dimension", "reduction_dimension") if name in call.params)
    return bool(axis != next(named, -1) % len(call.inputs[0]))


def _leads(call: Call, count: int) -> bool:
    pairs = zip(call.kinds, call.inputs, strict=True)
    return call.has_equal_params and all(k.axis < len(dims) - count for k, dims in pairs if k.name == "rows")


def _has_plain_window(call: Call, axis: int) -> bool:
    trivial = {"window_dimensions": 1, "window_strides": 1, "base_dilation": 1, "window_dilation": 1, "padding": (0, 0)}
    found = [(p[key][axis], plain) for key, plain in trivial.items() for p in call.both if p.get(key) is not None]
    return all(value == plain or (plain == (0, 0) and tuple(value) == plain) for value, plain in found)


def _is_padded_elsewhere(call: Call, axis: int) -> bool:
    return call.kinds[1].name != "rows" and all(tuple(p["padding_config"][axis]) == (0, 0, 0) for p in call.both)


def _convolve(call: Call) -> Kind | None:
    """Return the kind of a convolution, whose input has rows in its batch dimension."""
    first, kernel = call.kinds
    if first.name != "rows" or kernel.name not in ("constant", "fed") or kernel.scale:
        return None
    spec = call.params["dimension_numbers"]
    if first.axis != spec.lhs_spec[0] or call.params["batch_group_count"] != 1:
        return None
    return first._replace(axis=spec.out_spec[0])


def _contract(call: Call) -> Kind | None:
    """Return the kind of a product: of rows with constants, of rows with the same rows, or a sum over the rows."""
    contracted, batched = call.params["dimension_numbers"]
    scale = sum(kind.scale for kind in call.kinds)
    places: list[str] = []
    for kind, summed, shared in zip(call.kinds, contracted, batched, strict=True):
        is_rows = kind.name == "rows"
        places.append(
            "" if not is_rows else "sum" if kind.axis in summed else "batch" if kind.axis in shared else "free"
        )
    if "free" in places:
        side = places.index("free")
        kind, other = call.kinds[side], call.kinds[1 - side]
        if other.name == "rows":
            return None
        free = [i for i in range(len(call.inputs[side])) if i not in (*contracted[side], *batched[side])]
        left = [i for i in range(len(call.inputs[0])) if i not in (*contracted[0], *batched[0])]
        axis = len(batched[0]) + free.index(kind.axis) + (len(left) if side else 0)
        return kind._replace(axis=axis, scale=scale)
    side = 0 if places[0] else 1
    kind, other = call.kinds[side], call.kinds[1 - side]
    axes = (contracted if places[side] == "sum" else batched)[side]
    partner = (contracted if places[side] == "sum" else batched)[1 - side][list(axes).index(kind.axis)]
    if other.name == "rows" and (other.axis, other.inner) != (partner, kind.inner):
        return None
    if partner in other.along:
        return None
    if places[side] == "sum":
        return Kind("sum", scale) if not _open(call.outputs[0]) else None
    return kind._replace(axis=list(axes).index(kind.axis), scale=scale)


def _concatenate(call: Call) -> Kind | None:
    first = _common(call)
    return None if first is None or first.axis == call.params["dimension"] else first


def _cut(call: Call) -> Kind | None:
    """Return the kind of a `dynamic_slice` or `dynamic_update_slice`, which must keep all rows."""
    count = 1 if call.name == "dynamic_slice" else 2
    if any(kind.name == "rows" for kind in call.kinds[count:]):
        return None
    first = _common(call, range(count, len(call.kinds)))
    if first is None:
        return None
    kept = call.outputs[0] if call.name == "dynamic_slice" else call.inputs[1]
    return first if kept[first.axis] == call.inputs[0][first.axis] else None


def _indices(call: Call) -> Kind:
    """Return the kind of concatenated columns of indices, some of which hold the number of the row."""
    last, axis = len(call.outputs[0]) - 1, next(kind.counted for kind in call.kinds if kind.counted is not None)
    column, own = 0, set()
    for kind, dims in zip(call.kinds, call.inputs, strict=True):
        width = dims[-1]
        if width[0] != width[1]:
            return MIXED
        if kind.counted == axis and width == (1, 1):
            own.add(column)
        elif kind.name == "rows":
            if (kind.axis, kind.inner, kind.scale) != (axis, (1, 1), 0):
                return MIXED
        elif kind.name not in ("constant", "fed") or kind.scale or axis in kind.along:
            return MIXED
        column += width[0]
    if call.params["dimension"] != last or axis in (None, last):
        return MIXED
    return Kind("indices", axis=axis, own=frozenset(own))


def _index_of(call: Call) -> Kind | None:
    """Return the kind of the indices of a gather or scatter as "indices"; None if they have no rows to follow."""
    kind, last = call.kinds[1], len(call.inputs[1]) - 1
    numbers = call.params["dimension_numbers"]
    if numbers.operand_batching_dims:
        kind = _as_rows(kind, call.inputs[1], call.reading.batches)
    if kind.name not in ("rows", "indices") or kind.axis == last or kind.scale:
        return None
    return kind._replace(name="indices")


def _gather(call: Call) -> Kind | None:
    """Return the kind of a gather: of rows by constant indices, of constants by rows, of each row by its own index."""
    numbers, operand, indices = call.params["dimension_numbers"], call.kinds[0], _index_of(call)
    dims, axis = call.inputs[0], call.kinds[0].axis
    if operand.scale or operand.name == "indices":
        return None
    gone = (*numbers.collapsed_slice_dims, *numbers.operand_batching_dims)
    batch = [i for i in range(len(call.outputs[0])) if i not in numbers.offset_dims]
    if operand.name == "rows" and axis not in gone:
        # the axis is one of the window, which must have all rows
        full = tuple(p["slice_sizes"][axis] for p in (call.params, call.others)) == dims[axis]
        kept = [i for i in range(len(dims)) if i not in gone]
        return operand._replace(axis=numbers.offset_dims[kept.index(axis)]) if full and indices is None else None
    if indices is None:
        return None
    result = indices._replace(name="rows", axis=batch[indices.axis], own=frozenset())
    if operand.name != "rows":
        chosen = {*numbers.start_index_map, *numbers.operand_batching_dims}
        if numbers.operand_batching_dims and indices.axis in numbers.start_indices_batching_dims:
            own = numbers.start_indices_batching_dims.index(indices.axis)
            chosen -= {numbers.operand_batching_dims[own]} - operand.along
        return None if operand.along & chosen or indices.own else result
    if axis in numbers.operand_batching_dims:
        place = numbers.start_indices_batching_dims[numbers.operand_batching_dims.index(axis)]
        return result if place == indices.axis and operand.inner == indices.inner and not indices.own else None
    column = numbers.start_index_map.index(axis)
    own = column in indices.own and dims[axis] == call.reading.batches and operand.inner == (1, 1)
    return result if own and indices.own == {column} else None


_SCATTERED = {"scatter_add": "sum", "scatter_max": "max", "scatter_min": "min"}
_SCATTERS = frozenset({"scatter", "scatter_mul", "scatter_sub", *_SCATTERED})


def _scatter(call: Call) -> Kind | None:
    """Return the kind of a scatter into each row by its own index, or of a sum over rows, as of a histogram."""
    numbers, (operand, _, updates), indices = call.params["dimension_numbers"], call.kinds, _index_of(call)
    dims = call.inputs[0]
    if any(kind.scale for kind in call.kinds) or "indices" in (operand.name, updates.name):
        return None
    gone = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    if not _open(call.outputs[0]):
        name = _SCATTERED.get(call.name, "whole")
        neutral = operand.name == "sum" or (operand.name == "constant" and (name != "sum" or call.is_zero(0)))
        placed = any(kind.along for kind in call.kinds) or (indices is not None and indices.own)
        return Kind(name) if neutral and not placed else _WHOLE
    if indices is None:
        # updates of all rows: the axis is one of the window
        windows = [axis for axis in range(len(dims)) if axis not in gone]
        for axis, window in zip(windows, numbers.update_window_dims, strict=True):
            rows = [k for k, place in ((operand, axis), (updates, window)) if k.name == "rows" and k.axis == place]
            same = len(rows) == (operand.name == "rows") + (updates.name == "rows")
            uniform = axis not in operand.along and window not in updates.along
            if rows and same and uniform and call.inputs[2][window] == dims[axis]:
                return rows[0]._replace(axis=axis)
        return None
    place = [i for i in range(len(call.inputs[2])) if i not in numbers.update_window_dims][indices.axis]
    if place in updates.along or (updates.name == "rows" and (updates.axis, updates.inner) != (place, indices.inner)):
        return None
    if indices.axis in numbers.scatter_indices_batching_dims and not indices.own:
        axis = numbers.operand_batching_dims[numbers.scatter_indices_batching_dims.index(indices.axis)]
    elif len(indices.own) == 1:
        axis = numbers.scatter_dims_to_operand_dims[next(iter(indices.own))]
        if dims[axis] != call.reading.batches:
            return None
    else:
        return None
    if axis in operand.along or (operand.name == "rows" and (operand.axis, operand.inner) != (axis, indices.inner)):
        return None
    return indices._replace(name="rows", axis=axis, own=frozenset())


def _stack(call: Call) -> Kind | None:
    first = _common(call)
    return None if first is None else first._replace(axis=first.axis + (first.axis >= call.params["axis"]))


_MOVES = frozenset("reshape broadcast_in_dim transpose squeeze rev slice".split())
_REDUCTIONS = frozenset(
    "reduce_sum reduce_max reduce_min reduce_prod reduce_and reduce_or reduce_xor reduce argmax argmin".split()
)
_ORDERS = "cumsum cumprod cummax cummin cumlogsumexp sort top_k approx_top_k".split()
_DRAWS = "random_bits random_fold_in random_wrap random_unwrap random_seed".split()
_MATRICES = ["cholesky", "triangular_solve", "lu", "eigh", "eig", "qr", "svd", "householder_product"]
_WINDOWS = ["reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min", "select_and_gather_add"]
_TABLE: Mapping[str, Callable[[Call], Any]] = {
    **dict.fromkeys(_MOVES, _layout),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_ARITHMETIC | _OF_ELEMENTS, _elementwise),
    **dict.fromkeys(_ORDERS, _if(_is_along_another)),
    **dict.fromkeys(_MATRICES, _if(lambda call, _: _leads(call, 2))),
    **dict.fromkeys(["tridiagonal_solve", "lu_pivots_to_permutation"], _if(lambda call, _: _leads(call, 1))),
    "fft": _if(lambda call, _: _leads(call, len(call.params["fft_lengths"]))),
    **dict.fromkeys(_WINDOWS, _if(_has_plain_window)),
    **dict.fromkeys(["dynamic_slice", "dynamic_update_slice"], _cut),
    **dict.fromkeys(_SCATTERS, _scatter),
    **dict.fromkeys(_DRAWS, _if(lambda call, axis: axis == 0)),
    "gather": _gather,
    "pad": _if(_is_padded_elsewhere),
    "conv_general_dilated": _convolve,
    "dot_general": _contract,
    "concatenate": _concatenate,
    "split": _if(_is_along_another, scaled=True),
    "stack": _stack,
    "tile": _if(lambda call, axis: all(p["reps"][axis] == 1 for p in call.both), scaled=True),
}


# ---- called functions, loops and branches ---------------------------------------------------------------------------


def _called(call: Call) -> list[Kind]:
    """Return the kinds of the results of a called function."""
    pairs = zip(inner_functions(call.equation), inner_functions(call.twin), strict=True)
    for first, second in pairs:
        if len(getattr(first, "jaxpr", first).invars) == len(call.kinds):
            return call.reading.inside(first, second, call.kinds, call.reading.site or call.equation)
    return [MIXED] * len(call.outputs)


def _join(first: Kind, second: Kind) -> Kind:
    """Return the kind of a value that has either of two kinds, such as the result of a branch."""
    if first == second or second.name == "mixed":
        return second
    if first.name == "mixed":
        return first
    names = {first.name, second.name}
    if "rows" in names:
        rows, other = (first, second) if first.name == "rows" else (second, first)
        if other.name == "rows":
            same = (rows.axis, rows.inner, rows.scale) == (other.axis, other.inner, other.scale)
        else:
            same = other.name in ("constant", "fed") and not other.scale and rows.axis not in other.along
            same = same and not rows.scale
        return rows if same else MIXED
    if names == {"constant"} and first.scale == second.scale:
        return Kind("constant", first.scale, along=first.along | second.along)
    return _FED if names == {"constant", "fed"} and not first.scale and not second.scale else _WHOLE


def _branch(call: Call) -> list[Kind]:
    """Return the kinds of the results of a branch; a choice by values of the whole minibatch mixes its rows."""
    index, *kinds = call.kinds
    branches = zip(call.params["branches"], call.others["branches"], strict=True)
    results = [call.reading.inside(first, second, kinds) for first, second in branches]
    found = [functools.reduce(_join, each) for each in zip(*results, strict=True)]
    return _chosen(call, index, found)


def _chosen(call: Call, choice: Kind, found: list[Kind]) -> list[Kind]:
    """Return the kinds of results that depend on `choice`, the kind of a condition or of the index of a branch."""
    if choice.name == "mixed":
        return [choice] * len(found)
    if choice.name == "constant" and not choice.scale:
        return found
    if choice.name == "rows":  # a loop of `jax.vmap`, which ends for each row separately
        return [_join(kind, choice) for kind in found]
    if choice.name == "fed":
        return [_join(kind, _FED) for kind in found]
    return [
        MIXED if kind.name in ("rows", "mixed") or _open(dims) else _WHOLE
        for kind, dims in zip(found, call.outputs, strict=True)
    ]


def _scan(call: Call) -> list[Kind]:
    """Return the kinds of the results of a scan, which mixes rows if it steps along them and carries a value."""
    body, twin = call.params["jaxpr"], call.others["jaxpr"]
    constants, carried = scan_counts(call.equation)
    fixed, carry, stepped = (
        call.kinds[:constants],
        call.kinds[constants : constants + carried],
        call.kinds[constants + carried :],
    )
    stacked = [kind.name == "rows" and kind.axis == 0 for kind in stepped]
    lengths = (call.params["length"], call.others["length"])
    if any(stacked):
        return _each_row(call, fixed, carry, stepped, lengths)
    if lengths[0] != lengths[1] and _proportional(lengths, call.reading.batches):
        return [MIXED] * len(call.outputs)
    inside = [_sliced(kind) for kind in stepped]
    results = _repeated(carry, lambda kinds: call.reading.inside(body, twin, [*fixed, *kinds, *inside]), carried)
    return [*results[:carried], *(_stacked(kind) for kind in results[carried:])]


def _sliced(kind: Kind) -> Kind:
    if kind.name == "rows":
        return kind._replace(axis=kind.axis - 1)
    return kind._replace(along=frozenset(axis - 1 for axis in kind.along if axis), counted=None)


def _stacked(kind: Kind) -> Kind:
    """Return the kind of stacked elements."""
    if kind.name == "rows":
        return kind._replace(axis=kind.axis + 1)
    # the elements of a stack may differ from step to step
    along = frozenset({0, *(axis + 1 for axis in kind.along)})
    return kind._replace(along=along, counted=None) if kind.name == "constant" else kind


def _each_row(call: Call, fixed: list[Kind], carry: list[Kind], stepped: list[Kind], lengths: Pair) -> list[Kind]:
    """Return the kinds of the results of a function that is mapped over the rows one after the other."""
    rows = [kind for kind in stepped if kind.name == "rows"]
    plain = [*fixed, *(kind for kind in stepped if kind.name != "rows")]
    alone = not carry and lengths == call.reading.batches
    alone &= all(kind.name in ("constant", "fed") and not kind.scale for kind in plain)
    alone &= all(0 not in kind.along for kind in stepped)
    alone &= all((kind.axis, kind.inner, kind.scale) == (0, (1, 1), 0) for kind in rows)
    if not alone:
        return [MIXED] * len(call.outputs)
    inside = [CONSTANT if kind.name == "rows" else kind for kind in stepped]
    found = call.reading.inside(call.params["jaxpr"], call.others["jaxpr"], [*fixed, *inside])
    return [Kind("rows") if kind.name in ("constant", "fed") and not kind.scale else MIXED for kind in found]


def _repeated(carry: list[Kind], body: Callable[[list[Kind]], list[Kind]], carried: int) -> list[Kind]:
    """Return the kinds of the results of a loop body, whose carried values have the same kinds before and after it."""
    for _ in range(3 * len(carry) + 3):
        results = body(carry)
        joined = [_join(before, after) for before, after in zip(carry, results[:carried], strict=True)]
        if joined == carry:
            break
        carry = joined
    return [*carry, *results[carried:]]


def _while(call: Call) -> list[Kind]:
    """Return the kinds of the results of a `while` loop; a condition on values of all rows mixes the rows."""
    params, others = call.params, call.others
    tests, bodies = params["cond_nconsts"], params["body_nconsts"]
    read, fixed, carry = call.kinds[:tests], call.kinds[tests : tests + bodies], call.kinds[tests + bodies :]
    body = lambda kinds: call.reading.inside(params["body_jaxpr"], others["body_jaxpr"], [*fixed, *kinds])  # noqa: E731
    found = _repeated(carry, body, len(carry))
    (condition,) = call.reading.inside(params["cond_jaxpr"], others["cond_jaxpr"], [*read, *found])
    return _chosen(call, condition, found)


_CALLS = frozenset(
    "jit pjit closed_call core_call checkpoint remat remat2 custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr "
    "custom_vmap_call".split()
)
_CONTROL: Mapping[str, Callable[[Call], list[Kind]]] = {
    **dict.fromkeys(_CALLS, _called),
    "cond": _branch,
    "scan": _scan,
    "while": _while,
}


# ---- pairs of rows by mistake ---------------------------------------------------------------------------------------


def paired_rows(jaxpr: Any, batch: int, targets: Sequence[Any]) -> list[str]:
    """Return the user's source lines where a function of elements combines `[batch, 1]` and `[batch]` to all pairs.

    JAX broadcasts without a warning, and the result is mostly a mistake. Explicit code, such as
    `x[:, None] - y[None, :]`, has another call for each new axis, and is not reported.
    """
    found: dict[str, None] = {}

    def follow(equations: Sequence[Any], laid_out: dict[Any, tuple[Any, Any]], sites: tuple[Any, ...]) -> None:
        # `laid_out`: the sizes of a variable before its broadcast, and the equation of the broadcast. The sizes are
        # None if the broadcast does not add axes on the left, as NumPy does.
        for equation in equations:
            name = equation.primitive.name
            for inner in inner_jaxprs(equation):
                pairs = zip(inner.invars, equation.invars, strict=False)
                known = {v: laid_out[w] for v, w in pairs if not is_literal(w) and w in laid_out}
                plain = name in _CALLS and len(inner.invars) == len(equation.invars)
                follow(live_equations(inner), known if plain else {}, (*sites, equation) if plain else ())
            sizes_after = getattr(equation.outvars[0].aval, "shape", ()) if equation.outvars else ()
            read = [v for v in equation.invars if not is_literal(v)]
            if name == "broadcast_in_dim" and read:
                before, rank = read[0].aval.shape, len(sizes_after)
                on_the_left = (*equation.params["broadcast_dimensions"],) == (*range(rank - len(before), rank),)
                here = (before if on_the_left else None, equation)
                first = laid_out.get(read[0], here)
                laid_out[equation.outvars[0]] = (
                    first if on_the_left and call_of(first[1]) == call_of(equation) else here
                )
            elif batch in sizes_after[1:] and (name in _ARITHMETIC or name in _OF_ELEMENTS):
                calls = {call_of(each) for each in (equation, *sites)}
                own = {v: laid_out[v] for v in read if v in laid_out and call_of(laid_out[v][1]) in calls}
                shapes = [own[v][0] if v in own else v.aval.shape for v in read]
                if not own or None in shapes:
                    continue
                laid_out[equation.outvars[0]] = (np.broadcast_shapes(*shapes), next(iter(own.values()))[1])
                pairs_made = sizes_after.count(batch) > 1 and all(shape.count(batch) < 2 for shape in shapes)
                if pairs_made and any(0 < len(shape) < len(sizes_after) and batch in shape for shape in shapes):
                    found[user_line(sites[0] if sites else equation)] = None

    follow(live_equations(jaxpr, targets), {}, ())
    return list(found)
