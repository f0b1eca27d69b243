"""Convolutions over the steps of sequences."""

from typing import Any

import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, dense, layer, like
from fluid.layers.functional import Activation
from fluid.layers.kernels.table import times_matrix
from fluid.layers.no_effect import Warned, no_effect
from fluid.layers.sequence.steps import check_sequence, innermost, shifted, step_size
from fluid.param_attr import ParamSetting


@layer
@no_effect(
    padding=Warned(
        "the result is as long as the input",
        asks=lambda value, given: not value,
        instead="cut off the steps near the ends, as in layers.sequence_slice(y, offset, length)",
    )
)
def sequence_conv(
    input: core.Value,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: ParamSetting = None,
    param_attr: ParamSetting = None,
    act: Activation = None,
    name: str | None = None,
) -> Any:
    """Convolve the steps of each sequence; the steps beyond both ends are zeros.

    Args:
      input: a SequenceBatch `[batch, time, channels]`; for a NestedSequenceBatch, the innermost sequences are
        convolved.
      num_filters: the number of filters, which is the size of the steps of the result.
      filter_size: the number of steps in the window of a filter.
      filter_stride: must be 1.
      padding: accepted for programs written for Fluid, but has no effect: the result is as long as the input.
      padding_start: the first step of the window, relative to the step of the result; `-(filter_size // 2)` by default.
      bias_attr: ParamAttr of the bias `[num_filters]`; False for none.
      param_attr: ParamAttr of the filters `[filter_size * channels, num_filters]`.
      act: name of an activation, or a function.
      name: name of the layer; by default `sequence_conv_N`.

    Returns:
      A SequenceBatch `[batch, time, num_filters]` with the lengths of the input.

    Raises:
      ArgumentError: the stride is not 1, or a number is not positive.
      ShapeError: the input is no sequence batch of vectors.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[8], lod_level=1)
      ...     return fluid.layers.sequence_pool(fluid.layers.sequence_conv(x, num_filters=16, act="tanh"), "max")
      >>> fluid.Program(program).parameters["sequence_conv_0.w_0"].shape
      (24, 16)
    """
    this = Layer("sequence_conv", name)
    if filter_stride != 1:
        raise errors.ArgumentError(f"{this.name}: filter_stride={filter_stride!r}; only 1 is possible")
    core.whole_number(this.name, "num_filters", num_filters)
    core.whole_number(this.name, "filter_size", filter_size)
    channels = step_size(this, check_sequence(this, input))
    start = -(filter_size // 2) if padding_start is None else int(padding_start)
    weight = this.weight(param_attr, [filter_size * channels, num_filters], input.dtype)

    def convolve(batch: core.SequenceBatch) -> Any:
        seen = [shifted(dense(batch), start + i) for i in range(filter_size)]
        return batch.with_data(times_matrix(jnp.concatenate(seen, axis=-1), weight))

    result = this.output(innermost(convolve, input))
    bias = this.bias(bias_attr, [num_filters], input.dtype)
    return this.activate(result if bias is None else this.output(like(result, dense(result) + bias)), act)


@layer
def row_conv(
    input: core.Value,
    future_context_size: int,
    param_attr: ParamSetting = None,
    act: Activation = None,
    name: str | None = None,
) -> Any:
    """Apply a lookahead convolution (Wang et al., 2016): combine each channel of a step with the steps after it.

    Args:
      input: a SequenceBatch `[batch, time, channels]`, or an array of that shape; for a NestedSequenceBatch, the
        innermost sequences are convolved.
      future_context_size: the number of following steps in the window.
      param_attr: ParamAttr of the weights `[future_context_size + 1, channels]`.
      act: name of an activation, or a function.
      name: name of the layer; by default `row_conv_N`.

    Returns:
      A value of the kind and shape of the input.

    Raises:
      ArgumentError: the number of steps is negative.
      ShapeError: the input is no batch of sequences of vectors.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.row_conv(fluid.layers.data("x", shape=[8], lod_level=1), future_context_size=2)
      >>> fluid.Program(program).parameters["row_conv_0.w_0"].shape
      (3, 8)
    """
    this = Layer("row_conv", name)
    core.whole_number(this.name, "future_context_size", future_context_size, least=0)
    weight = this.weight(param_attr, [future_context_size + 1, step_size(this, input)], dense(input).dtype)

    def convolve(batch: Any) -> Any:
        x = dense(batch)
        return like(batch, sum(shifted(x, i) * weight[i] for i in range(future_context_size + 1)))

    return this.finish(innermost(convolve, input), act)
