"""`data_norm`: normalise by the statistics of all data so far."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.initializer import Constant
from fluid.layers.base import Layer, dense, is_sequence, layer, like, valid_steps, wide
from fluid.layers.functional import Activation
from fluid.layers.kernels.layout import along_axis
from fluid.layers.no_effect import no_effect
from fluid.layers.norm.moments import channel_axis_of

# Initial values of the three sums: mean 0 and deviation 1, with the weight of 10000 rows.
_START = {"batch_size": 1e4, "batch_sum": 0.0, "batch_square": 1e4}


@layer
@no_effect(
    in_place="XLA decides which memory is used again",
    moving_mean_name="the statistics are three sums",
    moving_variance_name="the statistics are three sums",
    do_model_average_for_mean_and_var="averages of parameters leave statistics as they are",
    sync_stats="a step sees the whole batch",
)
def data_norm(
    input: core.Value,
    act: Activation = None,
    epsilon: float = 1e-5,
    param_attr: Mapping[str, float] | None = None,
    data_layout: str = "NCHW",
    in_place: bool = False,
    name: str | None = None,
    moving_mean_name: str | None = None,
    moving_variance_name: str | None = None,
    do_model_average_for_mean_and_var: bool = True,
    slot_dim: int = -1,
    sync_stats: bool = False,
    summary_decay_rate: float = 0.9999999,
    enable_scale_and_shift: bool = False,
) -> Any:
    """Normalise each channel by the mean and deviation of all previous batches.

    Three states per channel summarise the data: the number of rows `n`, their sum `s`, and the sum `q` of their squared
    distances from the mean. The result is `(x - s / n) * sqrt(n / q)`. A training step multiplies the states by
    `summary_decay_rate` and adds its batch; the result for this batch uses the states before the update.

    Args:
      input: `[batch, channels, ...]`, or with the channels last for "NHWC"; or a SequenceBatch of `[channels]`.
      act: name of an activation, or a function.
      epsilon: added to the sum of squares for each row.
      param_attr: the initial values of the states: a dict of "batch_size", "batch_sum" and "batch_square"; by
        default 10000 rows of mean 0 and deviation 1.
      data_layout: "NCHW" or "NHWC".
      in_place: accepted for programs written for Fluid, but has no effect: XLA decides which memory is used again.
      name: the prefix of the states, as in `NAME.batch_size`; "dn" by default, shared by all layers without a name.
      moving_mean_name: accepted for programs written for Fluid, but has no effect: the statistics are three sums.
      moving_variance_name: accepted for programs written for Fluid, but has no effect: the statistics are three sums.
      do_model_average_for_mean_and_var: accepted for programs written for Fluid, but has no effect: averages of
        parameters leave statistics as they are.
      slot_dim: not supported; only -1 is accepted.
      sync_stats: accepted for programs written for Fluid, but has no effect: a step sees the whole batch.
      summary_decay_rate: the fraction of the states that each step keeps.
      enable_scale_and_shift: not supported; only False is accepted.

    Returns:
      The same kind and shape as the input.

    Raises:
      ArgumentError: there is no such layout, `param_attr` holds other keys, or an argument is not possible.
      ShapeError: the input has less than two dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.data_norm(fluid.layers.data("x", shape=[3]), name="seen")
      >>> list(fluid.Program(program).states)
      ['seen.batch_size', 'seen.batch_sum', 'seen.batch_square_sum']
    """
    this = Layer("data_norm", name)
    if slot_dim != -1 or enable_scale_and_shift:
        raise errors.ArgumentError(
            f"{this.name}: slot_dim={slot_dim}, enable_scale_and_shift={enable_scale_and_shift} are not possible; "
            f"scale and shift by parameters, as in layers.data_norm(x) * layers.create_parameter([channels])"
        )
    x = wide(input)
    axis = channel_axis_of(this, input, data_layout, "data_layout")
    names, (count, total, squares) = _statistics(this, name, _start(this, param_attr), x, axis)
    shape = along_axis(axis, x.ndim)
    mean = (total / count).reshape(shape)
    added = _of_batch(input, jax.lax.stop_gradient(x), mean, axis, epsilon)
    for state, before, more in zip(names, (count, total, squares), added, strict=True):
        core.set_state(state, summary_decay_rate * before + more)
    result = (x - mean) * jnp.sqrt(count / squares).reshape(shape)
    return this.finish(like(input, result.astype(dense(input).dtype)), act)


def _start(this: Layer, given: Mapping[str, float] | None) -> list[float]:
    """Return the initial values of the three states."""
    if given is None:
        return list(_START.values())
    if not isinstance(given, Mapping) or given.keys() - _START.keys():
        raise errors.ArgumentError(
            f"{this.name}: param_attr={given!r}; expected a dict of {', '.join(map(repr, _START))}, as in "
            f"param_attr={_START}"
        )
    return [float({**_START, **given}[key]) for key in _START]


def _statistics(this: Layer, name: str | None, start: list[float], x: Any, axis: int) -> tuple[list[str], list[Any]]:
    """Create the three states, and return their names and values `[channels]`."""
    stem = "dn" if name is None else this.name
    suffixes = ("batch_size", "batch_sum", "batch_square_sum")
    found = [
        this.state(f"{stem}.{suffix}", "w", [x.shape[axis]], x.dtype, Constant(value))
        for suffix, value in zip(suffixes, start, strict=True)
    ]
    return [state for state, _ in found], [value for _, value in found]


def _of_batch(value: Any, x: Any, mean: Any, axis: int, epsilon: float) -> list[Any]:
    """Compute the increments that a batch adds to the three states.

    Args:
      value: the input; in a SequenceBatch, only the valid steps count.
      x: the array of `value`.
      mean: the mean of all previous data, in a shape that broadcasts to `x`.
      axis: the channel dimension of `x`.
      epsilon: added to the squares for each row.

    Returns:
      The number of rows, their sum, and the sum of their squared distances from the mean, each `[channels]`.
    """
    valid = valid_steps(value, x.ndim) if is_sequence(value) else None
    axes = tuple(i for i in range(x.ndim) if i != axis)
    count, total, squares = (jnp.sum(v, axis=axes, where=valid) for v in (jnp.ones_like(x), x, jnp.square(x - mean)))
    return [count, total, squares + count * epsilon]
