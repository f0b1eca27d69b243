"""What every layer is made with: `@layer` for errors that name the layer, and `Layer` for names and parameters."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.initializer import Constant, Xavier
from fluid.layers import functional
from fluid.param_attr import to_attr

F = TypeVar("F", bound=Callable[..., Any])


def layer(function: F) -> F:
    """Decorate a layer function: it needs a program function, and its errors name the layer and the user's line."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        frame = core.current_frame(f"layers.{function.__name__}")
        try:
            with jax.named_scope(function.__name__):
                return function(*args, **kwargs)
        except Exception as error:
            if not any(note.startswith("in the layer") for note in getattr(error, "__notes__", ())):
                scope = frame.scoped(function.__name__)
                error.add_note(f"in the layer {scope}, called at {core.user_site()}")
            raise

    return wrapper  # type: ignore[return-value]


class Layer:
    """One call of a layer: its unique name, its parameters, and the names of its results.

    Args:
      kind: the stem of automatic names, such as "fc".
      name: the user's `name=`, which takes the place of `kind_N`.
    """

    def __init__(self, kind: str, name: str | None = None):
        self._caller = f"layers.{kind}"
        self.frame = core.current_frame(self._caller)
        if name is not None and (not isinstance(name, str) or not name):
            raise errors.ArgumentTypeError(f"name= is a string, found {name!r}")
        self.name = self.frame.unique(self.frame.scoped(kind)) if name is None else self.frame.scoped(name)

    def weight(
        self, attr: Any, shape: Sequence[int], dtype: Any = "float32", default: Any = None, rows_only: bool = False
    ) -> jax.Array:
        """Create `NAME.w_K`, Xavier uniform unless `attr` or `default` says otherwise."""
        return self.parameter("w", attr, shape, dtype, default or Xavier(), rows_only)

    def bias(self, attr: Any, shape: Sequence[int], dtype: Any = "float32", default: Any = None) -> jax.Array | None:
        """Create `NAME.b_K`, zeros by default; None when `attr` is False."""
        return None if attr is False else self.parameter("b", attr, shape, dtype, default or Constant(0.0))

    def parameter(
        self, suffix: str, attr: Any, shape: Sequence[int], dtype: Any, default: Any, rows_only: bool = False
    ) -> jax.Array:
        """Create a parameter `NAME.SUFFIX_K`, or the one that `attr` names."""
        settings = to_attr(attr)
        if settings is None:
            raise errors.ArgumentError(
                f"{self.name} cannot do without this parameter; param_attr=False is not possible"
            )
        name = settings.name or self.frame.unique(f"{self.name}.{suffix}")
        dtype = parameter_dtype(dtype)
        initializer = settings.initializer or default
        return core.create_parameter(name, shape, dtype, initializer, settings.trainable, settings, rows_only)

    def state(self, name: str | None, suffix: str, shape: Sequence[int], dtype: Any, default: Any) -> tuple[str, Any]:
        """Create a state `NAME.SUFFIX_K`, or one with the given name; returns its name and value."""
        name = name or self.frame.unique(f"{self.name}.{suffix}")
        return name, core.create_state(name, shape, parameter_dtype(dtype), default)

    def output(self, value: Any) -> Any:
        """Record a result as `NAME.tmp_K`."""
        return core.record(self.frame.unique(f"{self.name}.tmp"), value, self._caller)

    def finish(self, value: Any, act: str | Callable[[Any], Any] | None = None) -> Any:
        """Record a result as `NAME.tmp_K`, then apply and record an activation."""
        return self.activate(self.output(value), act)

    def skip_outputs(self, count: int) -> None:
        """Leave out result names that belong to values which do not exist here."""
        for _ in range(count):
            self.frame.unique(f"{self.name}.tmp")

    def activate(self, value: Any, act: str | Callable[[Any], Any] | None) -> Any:
        """Apply an activation by name, or any function, and record the result; None does nothing."""
        if act is None:
            return value
        raw = on_data(functional.activation(act), value)
        result = self.output(raw)
        if act == "softmax" and result is raw:  # an override has no logits
            self.frame.note(result, logits=value, logits_axis=-1)
        return result


def on_data(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Apply a function that works step by step to arrays, or to the data of SequenceBatches."""
    result = function(*(dense(v) for v in (value, *others)))
    batch = next((v for v in (value, *others) if is_sequence(v)), None)
    return result if batch is None else batch.with_data(result)


def is_sequence(value: Any) -> bool:
    """Whether a value is a SequenceBatch or a NestedSequenceBatch."""
    return isinstance(value, core.SequenceBatch | core.NestedSequenceBatch)


def dense(value: Any) -> Any:
    """The array of a value: the data of a sequence batch with zeros for its padding, or what it is."""
    return filled(value, 0)


def filled(value: Any, fill: float) -> Any:
    """The array of a value, with the padding of a sequence batch replaced.

    Every layer takes its input so: what is no number in the padding of a value would reach parameters as 0 times that,
    and what is none in the padding of a gradient ends here on its way back. Functions without a value or a slope at 0
    fill in something else.
    """
    if is_sequence(value):
        return core.filled(value, fill)
    if isinstance(value, jax.Array):
        return value
    # A constant that the user wrote down must not pull a program of mixed precision back to float32.
    return core.current_frame("layers").compute(jnp.asarray(value))


def times_matrix(x: Any, weight: Any) -> Any:
    """The product `[..., columns]` of arrays `[..., inner]` and `[inner, columns]`."""
    # As one product of two matrices: the gradient of a product of batches takes a CPU twice as long.
    return (x.reshape(-1, x.shape[-1]) @ weight).reshape(*x.shape[:-1], weight.shape[-1])


def wide_dtype(dtype: Any) -> Any:
    """The dtype in which sums of such data are made: float32 for half precision, which cannot hold them."""
    return jnp.promote_types(dtype, jnp.float32) if jnp.issubdtype(dtype, jnp.floating) else jnp.dtype(dtype)


def wide(value: Any) -> Any:
    """The array of a value, as float32 where it is of half precision; losses and statistics are computed from it."""
    array = dense(value)
    return array.astype(wide_dtype(array.dtype))


def array_of(this: Layer, value: Any) -> Any:
    """The array of a value that must not be a sequence.

    Raises:
      ShapeError: it is a sequence batch, whose padding would count here.
    """
    if is_sequence(value):
        raise errors.ShapeError(
            f"{this.name} takes arrays, found a sequence batch {describe(value)}; make one row of each sequence first, "
            f"as in layers.sequence_pool(x, 'average')"
        )
    return dense(value)


def like(value: Any, data: Any) -> Any:
    """Put data computed from a value back around the lengths that the value has, if it is a sequence batch."""
    return value.with_data(data) if is_sequence(value) else data


def at_steps(value: Any, numbers: Any) -> Any:
    """Rows of an array, or steps of the innermost sequences, counted through from the first row to the last."""
    if not is_sequence(value):
        return dense(value).at[numbers].get(mode="fill", fill_value=None, wrap_negative_indices=False)
    batch = value.flat() if isinstance(value, core.NestedSequenceBatch) else value
    ends = jnp.cumsum(batch.lengths)
    # Not by searchsorted, for which the batch size must not be a symbol.
    row = jnp.sum(jnp.asarray(numbers)[..., None] >= ends, axis=-1)
    begin = (ends - batch.lengths).at[row].get(mode="clip")
    return at_places(dense(batch), row, numbers - begin)


def at_places(data: Any, rows: Any, steps: Any) -> Any:
    """What stands in `data [batch, time, ...]` at these rows and steps; what is no number where there is nothing."""
    if data.shape[1] == 0:  # there is nothing to take, and nothing is valid
        data = jnp.zeros((data.shape[0], 1, *data.shape[2:]), data.dtype)
    return data.at[rows, steps].get(mode="fill", wrap_negative_indices=False)


def row_dims(value: Any) -> int:
    """How many leading dimensions stand for what Fluid counts as rows: two, batch and time, for a SequenceBatch."""
    if isinstance(value, core.NestedSequenceBatch):
        return 3
    return 2 if isinstance(value, core.SequenceBatch) else 1


def valid_steps(value: Any, ndim: int) -> Any:
    """Which steps of a sequence batch are real, spread for arrays of so many dimensions; True for other values."""
    return core.spread_mask(value, ndim) if is_sequence(value) else True


def as_rows(this: Layer, *values: Any) -> tuple[list[Any], Callable[[Any], Any]]:
    """The arrays `[rows, ...]` of values that belong together row by row; the steps of sequence batches are rows.

    Returns:
      The arrays, and a function that puts a result `[rows, ...]` back around the lengths.

    Raises:
      ShapeError: some are sequence batches and others, of more than one row, are not; or their sizes differ.
    """
    first, lead = values[0], row_dims(values[0])
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
    """Where an axis lies in the array of a value. The steps of a SequenceBatch count as rows, so axis 1 is its third.

    Raises:
      ArgumentError: there is no such axis.
    """
    extra = row_dims(value) - 1
    dims = dense(value).ndim - extra
    if isinstance(axis, bool) or not isinstance(axis, int | np.integer) or not -dims <= axis < dims:
        raise errors.ArgumentError(
            f"{argument}={axis!r} does not exist in {describe(value)}; expected {-dims} to {dims - 1}, as in "
            f"{argument}=-1"
        )
    place = int(axis) % dims
    return place if place == 0 else place + extra


def parameter_dtype(dtype: Any) -> str:
    """The name of the dtype that a parameter beside data of this dtype is held in.

    Floats keep theirs, others get float32, and so does what a program of mixed precision only computes in.
    """
    found = jax.dtypes.canonicalize_dtype(dtype)
    computed = core.current_frame("layers").precision
    return str(found) if jnp.issubdtype(found, jnp.floating) and str(found) != computed else "float32"


def describe(value: Any) -> str:
    """Dtype and shape of a value for messages, with "batch" for the stand-in batch size of discovery."""
    frame = core.current_frame("layers")
    array = value if is_sequence(value) else dense(value)
    sizes = ["batch" if d == frame.placeholder_batch else str(d) for d in array.shape]
    return f"{array.dtype}[{', '.join(sizes)}]"


def sizes_of(name: str, value: Any, count: int) -> tuple[int, ...]:
    """Read `3` or `[3, 5]` as one size per dimension."""
    sizes = (value,) * count if isinstance(value, int | np.integer) else tuple(value)
    if len(sizes) != count or any(not isinstance(v, int | np.integer) for v in sizes):
        raise errors.ArgumentError(
            f"{name}={value!r}: expected one integer or {count} of them, as in {name}={[1] * count}"
        )
    return tuple(int(v) for v in sizes)
