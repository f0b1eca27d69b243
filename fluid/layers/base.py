"""The base of all layers: the decorator `@layer`, the class `Layer`, and functions that read input values."""

from __future__ import annotations

import copy
import functools
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from fluid import core, errors
from fluid.initializer import Constant, Xavier
from fluid.layers import functional
from fluid.layers.functional import Activation
from fluid.layers.kernels.data_format import elementwise
from fluid.layers.kernels.lookup_table import same_rows
from fluid.param_attr import LowRankParamAttr, ParamSetting, WeightNormParamAttr, to_attr

F = TypeVar("F", bound=Callable[..., Any])

_FOLDER = os.path.dirname(__file__) + os.sep

# An initializer: a function of a random key, a shape and a dtype that returns an array.
Initializer = Callable[..., Any]


REGISTERED: dict[str, str] = {}
"""A dict from the name of each layer to the name of the Python module that defines the layer."""


def layer(function: F) -> F:
    """Decorate a layer function, so that errors name the layer and the line of the user's program.

    Calls of the layer outside a program function raise an error. `make stubs` exports every layer from `fluid.layers`.
    To make a class a layer, decorate its `__init__`.
    """
    name = function.__qualname__.removesuffix(".__init__")
    REGISTERED[name] = function.__module__
    switches = core.switches_of(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        frame = core.current_frame(f"layers.{name}")
        try:
            core.check_switches(f"layers.{name}", switches, kwargs)
            with jax.named_scope(name):
                return function(*args, **kwargs)
        except Exception as error:
            misfit = core.misfit_of(function, f"layers.{name}", args, kwargs) if isinstance(error, TypeError) else None
            noted = misfit or error
            if not any(note.startswith("in the layer") for note in getattr(noted, "__notes__", ())):
                scope = frame.scoped(name)
                noted.add_note(f"in the layer {scope}, called at {core.user_site()}")
            if misfit is None:
                raise
            raise misfit from None

    return wrapper  # type: ignore[return-value]


class Layer:
    """One call of a layer, which creates the parameters of the layer, and records its results under names.

    These names begin with the name of the layer, and end with a counter: the first weight of the layer `fc_0` has the
    name `fc_0.w_0`, and its first result has the name `fc_0.tmp_0`.
    """

    def __init__(self, kind: str, name: str | None = None):
        self._caller = f"layers.{kind}"
        self.frame = core.current_frame(self._caller)
        if name is not None and (not isinstance(name, str) or not name):
            raise errors.ArgumentTypeError(f"name= is a string, found {name!r}")
        self.name = self.frame.unique(self.frame.scoped(kind)) if name is None else self.frame.scoped(name)
        # `automatic_kind` is the beginning of automatic parameter names, such as "fc"; empty if the user named the
        # layer.
        self.automatic_kind = kind if name is None else ""
        self._made: set[str] = set()
        self._named: dict[str, str] = {}

    def here(self) -> Layer:
        """Return a copy of this Layer that records its values in the current frame.

        A frame is the record of one trace by JAX; the body of a loop has its own frame.
        """
        same = copy.copy(self)
        same.frame = core.current_frame(self._caller)
        return same

    def weight(
        self,
        attr: ParamSetting,
        shape: Sequence[int],
        dtype: DTypeLike = "float32",
        default: Initializer | None = None,
        rows_only: bool = False,
    ) -> jax.Array:
        """Create a weight with a name such as `fc_0.w_0`; see `parameter` for the arguments.

        The initializer is taken from `attr`. If `attr` has none, it is `default`; without `default`, it is Xavier
        uniform.
        """
        return self.parameter("w", attr, shape, dtype, default or Xavier(), rows_only)

    def bias(
        self,
        attr: ParamSetting,
        shape: Sequence[int],
        dtype: DTypeLike = "float32",
        default: Initializer | None = None,
    ) -> jax.Array | None:
        """Create a bias with a name such as `fc_0.b_0`, zeros by default; if `attr` is False, return None."""
        return None if attr is False else self.parameter("b", attr, shape, dtype, default or Constant(0.0))

    def parameter(
        self,
        suffix: str,
        attr: ParamSetting,
        shape: Sequence[int],
        dtype: DTypeLike,
        default: Initializer,
        rows_only: bool = False,
    ) -> jax.Array:
        """Create a parameter with an automatic name such as `fc_0.w_0`, or use the parameter that `attr` names.

        Args:
          dtype: the dtype of the data that the layer combines with the parameter; `parameter_dtype` converts it to the
            dtype of the parameter.
          rows_only: whether the layer only looks up rows of the parameter, so that updates may be limited to these
            rows.

        Raises:
          ArgumentError: `attr` is False, which means no parameter.
        """
        settings = to_attr(attr)
        if settings is None:
            raise errors.ArgumentError(
                f"{self.name} cannot do without this parameter; param_attr=False is not possible"
            )
        name = settings.name or self.array_name(suffix)
        if settings.name and self._named.setdefault(name, suffix) != suffix:
            core.doubt(
                f"the weight and the bias of {self.name} are one parameter, since both have the name {name!r}; give "
                f"each a ParamAttr with a name of its own"
            )
        self._check_settings(name, settings)
        if isinstance(settings, WeightNormParamAttr | LowRankParamAttr):
            if rows_only:
                raise errors.ArgumentError(
                    f"{self.name}: rows of a {type(settings).__name__} cannot be looked up; is_sparse=False"
                )
            # Import this module only here, because few programs reparametrize weights.
            from fluid.layers import reparametrized

            kind = "" if settings.name else self.automatic_kind
            return reparametrized.create(name, settings, shape, parameter_dtype(dtype), default, kind, self.owner)
        return core.create_parameter(
            name,
            shape,
            parameter_dtype(dtype),
            settings.initializer or default,
            settings.trainable,
            settings,
            rows_only,
            kind="" if settings.name else self.automatic_kind,
            layer=self.owner,
        )

    def _check_settings(self, name: str, settings: Any) -> None:
        """Warn if a parameter is used again with other settings, which have no effect: the first settings count."""
        known = self.frame.declared.arrays.get(name)
        first = None if known is None else known.settings
        if known is None or first is None or first is settings or self.frame.freezing:
            return
        for field in ("trainable", "initializer"):
            before, now = getattr(first, field), getattr(settings, field)
            if before is not None and now is not None and repr(before) != repr(now):
                core.doubt_reading(
                    f"the parameter {name!r} has {field}={before!r} at {known.site}, and {field}={now!r} here, which "
                    f"has no effect: one name is one array, and its first use counts. Give both uses one ParamAttr, or "
                    f"give the second another name"
                )

    def state(
        self, name: str | None, suffix: str, shape: Sequence[int], dtype: DTypeLike, default: Initializer
    ) -> tuple[str, jax.Array]:
        """Create a state, such as a moving average, and return its name and its value.

        The name of the state is `name`. By default it is computed from the name of the layer: `batch_norm_0.w_1` for
        the suffix "w".
        """
        kind = "" if name else self.automatic_kind
        name = name or self.array_name(suffix)
        return name, core.create_state(name, shape, parameter_dtype(dtype), default, self.owner, kind)

    @property
    def owner(self) -> str:
        """The prefix of the names of the layer's parameters and states: normally the name of the layer.

        All calls of a function of `fluid.shared` share parameters. In each of these calls, the prefix is the name that
        the layer has in the first call.
        """
        return self.frame.array_name(self.name)

    def array_name(self, suffix: str) -> str:
        """Return the name for the next parameter or state of this layer, such as `fc_0.w_0` for the suffix "w"."""
        name = self.frame.array_name(self.frame.unique(f"{self.name}.{suffix}"))
        self._check_name(suffix, name)
        return name

    def _check_name(self, suffix: str, name: str) -> None:
        """Warn if an earlier layer has the same kind and name: the user may expect that both share parameters."""
        declared = self.frame.declared
        first = f"{name.rpartition('_')[0]}_0"
        kind = self._caller.removeprefix("layers.")
        second = not self.automatic_kind and not self._made and first != name and first in declared.arrays
        # The functions of `fluid.nets` give several layers one name, as Fluid does, so do not warn in their calls.
        second = second and not _called_by_library()
        if second and declared.kinds.get(f"{self.name}.tmp_0") == kind:
            core.doubt_reading(
                f"layers.{kind}(name={self.name.rpartition('/')[2]!r}) is a second layer of this name, and has "
                f"parameters of its own: {name!r} is another array than {first!r} of {declared.arrays[first].site}; "
                f"called at {core.user_sites()}. To use one layer twice, share the function that calls it: "
                f"fluid.shared(function); or give the second layer another name="
            )
        self._made.add(suffix)

    def output(self, value: Any) -> Any:
        """Record a result of the layer under a name such as `fc_0.tmp_0`, and return the result.

        If the user overrides the result in this run, return the user's value instead.
        """
        return core.record(self.frame.unique(f"{self.name}.tmp"), value, self._caller)

    def finish(self, value: Any, act: Activation = None) -> Any:
        """Record a result of the layer, then apply an activation and record the result of the activation too."""
        return self.activate(self.output(value), act)

    def record_aside(self, value: Any) -> None:
        """Record a value that the layer does not return, but that Fluid's version outputs, for users to fetch."""
        self.output(value)

    def skip_outputs(self, count: int) -> None:
        """Skip `count` automatic names of results, which Fluid uses for values that this layer does not compute.

        So the names of later results are equal to the names in Fluid.
        """
        for _ in range(count):
            self.frame.unique(f"{self.name}.tmp")

    def activate(self, value: Any, act: Activation) -> Any:
        """Apply an activation, a name or a function, and record the result; if `act` is None, return the value."""
        if act is None:
            return value
        if isinstance(act, str) and act in functional.ELEMENTWISE:
            return self.output(like(value, elementwise(functional.ACTIVATIONS[act], dense(value))))
        raw = on_data(functional.activation(act), value)
        result = self.output(raw)
        if act == "softmax":
            doubt_softmax_of_one(value, -1)
            # Record the logits, so that a cross entropy of this softmax can be computed from the logits, which is more
            # exact. If the user overrides the result in this run, the logits do not belong to it.
            if result is raw:
                self.frame.note(result, logits=value, logits_axis=-1)
        return result


def doubt_softmax_of_one(value: Any, axis: int) -> None:
    """Warn if a softmax is over a single number, or over the rows of a minibatch; both are probably mistakes."""
    sizes = np.shape(dense(value))
    batch = core.current_frame("layers.softmax").placeholder_batch
    if sizes[axis] == 1:
        core.doubt(
            f"a softmax over the last dimension of {describe(value)} is over one number, and so is always 1, whatever "
            f"the input; write act='sigmoid' for one probability, size=2 for two classes, or "
            f"layers.sequence_softmax(x) for weights of the steps of a sequence"
        )
    elif not is_sequence(value) and len(sizes) > 1 and axis % len(sizes) == 0 and sizes.count(batch) == 1:
        if sizes[0] == batch and sizes[-1] > 1:
            core.doubt(
                f"a softmax of {describe(value)} along axis 0 is over the rows of the minibatch, so that the result of "
                f"a row depends on the other rows; write layers.softmax(x) for the last axis"
            )


def _called_by_library() -> bool:
    """Return whether the caller of the running layer is fluid code outside `fluid.layers`, not the user's code."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_FOLDER):
        frame = frame.f_back
    return frame is not None and core.is_library(frame.f_code.co_filename)


def on_data(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Apply an elementwise or stepwise function to values; the result is a sequence batch if any value is one."""
    result = function(*(dense(v) for v in (value, *others)))
    batch = next((v for v in (value, *others) if is_sequence(v)), None)
    return result if batch is None else batch.with_data(result)


def is_sequence(value: Any) -> TypeGuard[core.SequenceBatch | core.NestedSequenceBatch]:
    """Return whether a value is a SequenceBatch or a NestedSequenceBatch."""
    return isinstance(value, core.SequenceBatch | core.NestedSequenceBatch)


def dense(value: Any) -> Any:
    """Convert a value to an array; a sequence batch becomes its data, with zeros for the padding."""
    return filled(value, 0)


def filled(value: Any, fill: float) -> Any:
    """Convert a value to an array; a sequence batch becomes its data, with `fill` for the padding.

    Every layer reads its inputs by this function or by `dense`. Otherwise a NaN in the padding of an input would reach
    parameters, since 0 times NaN is NaN. A NaN in the gradient of the padding would reach the values that the input was
    computed from. Functions that have no value or no derivative at 0 use another `fill`.

    Raises:
      ProgramError: in Fluid, an earlier layer, such as `increment(x, in_place=True)`, would have changed the value.
    """
    core.check_not_changed(core.current_frame("layers"), value)
    if is_sequence(value):
        return same_rows(value.data, core.filled(value, fill))
    if isinstance(value, jax.Array):
        return value
    # Convert a constant to the dtype of the computation: a float32 constant would make all later layers of a
    # mixed-precision program compute in float32.
    return core.current_frame("layers").compute(jnp.asarray(value))


def wide_dtype(dtype: Any) -> Any:
    """Return the dtype for sums of data of `dtype`: float32 for half precision, to limit rounding errors."""
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.floating) else jnp.dtype(dtype)


def wide(value: Any) -> Any:
    """Convert a value to an array for summation; half precision becomes float32."""
    array = dense(value)
    return array.astype(wide_dtype(array.dtype))


def array_of(this: Layer, value: Any) -> Any:
    """Convert a value to an array, and refuse a sequence batch, whose padding would enter the result.

    Raises:
      ShapeError: the value is a sequence batch.
    """
    if is_sequence(value):
        raise errors.ShapeError(
            f"{this.name} takes arrays, found a sequence batch {describe(value)}; make one row of each sequence first, "
            f"as in layers.sequence_pool(x, 'average')"
        )
    return dense(value)


def like(value: Any, data: Any) -> Any:
    """Return `data`; if `value` is a sequence batch, return a sequence batch of `data` with the lengths of `value`."""
    return value.with_data(data) if is_sequence(value) else data


def rows_at(value: Any, numbers: Any) -> Any:
    """Select rows of an array `[rows, ...]`, or steps of a sequence batch, by index.

    Args:
      numbers: the indices, integers `[...]`; negative indices are out of range, and do not count from the end.

    Returns:
      `[..., *shape of a row or step]`. An index out of range gives NaN, or the smallest integer for integer values.
    """
    if not is_sequence(value):
        return dense(value).at[numbers].get(mode="fill", fill_value=None, wrap_negative_indices=False)
    batch = value.flat() if isinstance(value, core.NestedSequenceBatch) else value
    ends = jnp.cumsum(batch.lengths)
    # Find the row of each step by comparisons: `jnp.searchsorted` refuses the symbolic batch size of an export.
    row = jnp.sum(jnp.asarray(numbers)[..., None] >= ends, axis=-1)
    begin = (ends - batch.lengths).at[row].get(mode="clip")
    return steps_at(dense(batch), row, numbers - begin)


def steps_at(data: Any, rows: Any, places: Any) -> Any:
    """Select steps of data `[batch, time, ...]` by row indices and step indices, both of one shape."""
    # An array without steps cannot be indexed, so add one step of zeros. The steps of the result are padding then.
    if data.shape[1] == 0:
        data = jnp.zeros((data.shape[0], 1, *data.shape[2:]), data.dtype)
    return data.at[rows, places].get(mode="fill", wrap_negative_indices=False)


def row_dims(value: Any) -> int:
    """Return the number of leading dimensions of a value that Fluid counts as one dimension, the rows.

    The number is 1 for an array, 2 for a SequenceBatch, whose steps are rows, and 3 for a NestedSequenceBatch.
    """
    if isinstance(value, core.NestedSequenceBatch):
        return 3
    return 2 if isinstance(value, core.SequenceBatch) else 1


def valid_steps(value: Any, ndim: int) -> Any:
    """Return the mask of valid steps of a sequence batch, broadcastable to `ndim` dimensions; for an array, True."""
    return core.spread_mask(value, ndim) if is_sequence(value) else True


def as_rows(this: Layer, *values: Any) -> tuple[list[Any], Callable[[Any], Any]]:
    """Convert values that correspond row by row to arrays `[rows, ...]`; steps of sequence batches become rows.

    Args:
      values: arrays `[rows, ...]`, or sequence batches of equal lengths. If any value is a sequence batch, arrays may
        also have a single row, `[1, ...]`.

    Returns:
      The arrays `[rows, ...]`, and a function that converts a result `[rows, ...]` to the type of the first value
      (array or sequence batch).

    Raises:
      ShapeError: the rows of the values do not correspond.
    """
    first = values[0]
    lead = row_dims(first)
    if not any(is_sequence(v) for v in values):
        return [dense(v) for v in values], lambda result: result
    others = [v for v in values if is_sequence(v) or np.shape(v)[:1] != (1,)]
    if any(row_dims(v) != lead or v.shape[:lead] != first.shape[:lead] for v in others):
        raise errors.ShapeError(
            f"{this.name}: {' and '.join(describe(v) for v in values)} do not go together row by row; declare them "
            f"with one lod_level, or make one row of each sequence: layers.sequence_pool(x, 'average')"
        )
    arrays = [dense(v).reshape(-1, *v.shape[row_dims(v) :]) for v in values]
    return arrays, lambda result: like(first, result.reshape(*first.shape[:lead], *result.shape[1:]))


def axis_of(value: Any, axis: int, argument: str = "axis") -> int:
    """Convert an axis, as users count it, to a dimension of the value's underlying array.

    Axis and dimension differ for a sequence batch, in which batch and time count as one axis: axis 1 of a SequenceBatch
    is dimension 2 of its array.

    Raises:
      ArgumentError: the axis does not exist.
      ArgumentTypeError: the axis is an array.
    """
    if isinstance(axis, jax.Array):
        raise errors.ArgumentTypeError(
            f"{argument}= is the number of a dimension, found {describe(axis)}; several values are given as a list: "
            f"concat([x, y], {argument}=1)"
        )
    extra = row_dims(value) - 1
    dims = dense(value).ndim - extra
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer) or not -dims <= axis < dims:
        raise errors.ArgumentError(
            f"{argument}={axis!r} does not exist in {describe(value)}; expected {-dims} to {dims - 1}"
            f"{', since batch and time count as one dimension' if extra else ''}, as in {argument}=-1"
        )
    place = int(axis) % dims
    return place if place == 0 else place + extra


def parameter_dtype(dtype: Any) -> str:
    """Return the name of the dtype for a parameter that a layer combines with data of `dtype`.

    For float data, the parameter has the dtype of the data; for other data, float32. In a mixed-precision program,
    parameters for data in half precision are float32 too.
    """
    found = jax.dtypes.canonicalize_dtype(dtype)
    computed = core.current_frame("layers").precision
    return str(found) if jnp.issubdtype(found, jnp.floating) and str(found) != computed else "float32"


def describe(value: Any) -> str:
    """Format the dtype and shape of a value for errors and warnings, such as "float32[batch, 4]"."""
    frame = core.current_frame("layers")
    array = value if is_sequence(value) else dense(value)
    return f"{array.dtype}{core.shape_text(array.shape, frame.placeholder_batch)}"
