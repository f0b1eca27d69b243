"""Pooling of sequences, and convolutions over their steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers import functional
from fluid.layers.base import Layer, dense, filled, layer, like, valid_steps, wide
from fluid.layers.functional import Activation
from fluid.layers.kernels.extremes import largest, smallest
from fluid.layers.kernels.lookup_table import times_matrix
from fluid.layers.no_effect import Warned, no_effect
from fluid.layers.sequence.step_selection import check_sequence, innermost, sequence_batch, shifted, step_size, taken
from fluid.param_attr import ParamSetting


@layer
@no_effect(is_test="memory for a gradient is used only where one is computed")
def sequence_pool(
    input: Value, pool_type: str, is_test: bool = False, pad_value: float = 0.0, name: str | None = None
) -> Any:
    """Combine the steps of each sequence into one row.

    Args:
      input: a SequenceBatch `[batch, time, ...]`; for a NestedSequenceBatch, the innermost sequences are pooled.
      pool_type: "sum", "average", "sqrt" (the sum divided by the root of the length), "max", "min", "first" or "last".
      is_test: accepted for programs written for Fluid, but has no effect: memory for a gradient is used only where one
        is computed.
      pad_value: the result for an empty sequence.
      name: name of the layer; by default `sequence_pool_N`.

    Returns:
      `[batch, ...]`; for a NestedSequenceBatch, a SequenceBatch of one step for each inner sequence.

    Raises:
      ArgumentError: there is no such `pool_type`.
      ShapeError: the input is not a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
      ...     return fluid.layers.sequence_pool(fluid.layers.embedding(words, size=[1000, 32]), "max")
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 32]
    """
    this = Layer("sequence_pool", name)
    function = _POOLS.get(str(pool_type).lower())
    if function is None:
        raise errors.ArgumentError(f"{this.name}: pool_type={pool_type!r}. {errors.nearest(str(pool_type), _POOLS)}")

    step, other = ("last", "first") if str(pool_type).lower() == "last" else ("first", "last")
    wrong = {"last": "backwards", "first": "forwards"}.get(str(pool_type).lower(), "")
    if wrong and this.frame.fact(input, "reads") == wrong:
        core.doubt(
            f"{this.name} takes the {step} step of a layer that reads {wrong}, which has seen one step only; the "
            f"{other} step has seen the whole sequence: layers.sequence_pool(x, {other!r})"
        )

    def pool(batch: core.SequenceBatch) -> Any:
        lengths = batch.lengths.reshape(-1, *[1] * (len(batch.shape) - 2))
        return jnp.where(lengths > 0, function(batch, jnp.maximum(lengths, 1)).astype(batch.dtype), pad_value)

    return this.output(innermost(pool, check_sequence(this, input)))


@layer
def sequence_first_step(input: Value, name: str | None = None) -> Any:
    """Return the first step of each sequence, as `sequence_pool(input, "first")`.

    Args:
      input: a SequenceBatch `[batch, time, ...]`; for a NestedSequenceBatch, the innermost sequences are read.
      name: name of the layer; by default `sequence_pool_N`.

    Returns:
      `[batch, ...]`, zeros for an empty sequence.

    Raises:
      ShapeError: the input is not a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.sequence_first_step(fluid.layers.data("x", shape=[4], lod_level=1))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    return sequence_pool(input, "first", name=name)


@layer
def sequence_last_step(input: Value, name: str | None = None) -> Any:
    """Return the last step of each sequence, as `sequence_pool(input, "last")`.

    Args:
      input: a SequenceBatch `[batch, time, ...]`; for a NestedSequenceBatch, the innermost sequences are read.
      name: name of the layer; by default `sequence_pool_N`.

    Returns:
      `[batch, ...]`, zeros for an empty sequence.

    Raises:
      ShapeError: the input is not a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.sequence_last_step(fluid.layers.data("x", shape=[4], lod_level=1))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    return sequence_pool(input, "last", name=name)


@layer
@no_effect(use_cudnn="XLA chooses the kernels")
def sequence_softmax(input: Value, use_cudnn: bool = False, name: str | None = None) -> Any:
    """Compute the softmax over the steps of each sequence.

    Args:
      input: logits, a SequenceBatch `[batch, time]` or `[batch, time, ...]`. If a step has several numbers, each of
        them has its own softmax over the steps. For a NestedSequenceBatch, the softmax is over the innermost sequences.
      use_cudnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.
      name: name of the layer; by default `sequence_softmax_N`.

    Returns:
      A value of the type and shape of the input; the steps of each sequence sum to 1.

    Raises:
      ShapeError: the input is not a sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     scores = fluid.layers.data("scores", shape=[1], lod_level=1)
      ...     return fluid.layers.sequence_softmax(scores)
      >>> fluid.Session(program).run(program, {"scores": [[[1.0], [1.0]], [[7.0]]]})[0].rows()[0].tolist()
      [[0.5], [0.5]]
    """
    this = Layer("sequence_softmax", name)

    def softmax(batch: core.SequenceBatch) -> Any:
        # Fill the padding with the lowest finite number: minus infinity would give NaN for an empty sequence.
        x = filled(batch, float(jnp.finfo(batch.dtype).min))
        return sequence_batch(functional.softmax(x, axis=1), batch.lengths)

    return this.output(innermost(softmax, check_sequence(this, input)))


def _sum(batch: core.SequenceBatch, lengths: Any) -> Any:
    return jnp.sum(wide(batch), axis=1)


# `_POOLS` maps each `pool_type` of `sequence_pool` to a function. The function takes a SequenceBatch
# `[batch, time, ...]` and its lengths `[batch, 1, ...]`, and returns an array `[batch, ...]`. A length of 0 is passed
# as 1, to avoid a division by 0.
_POOLS: dict[str, Callable[[core.SequenceBatch, Any], Any]] = {
    "sum": _sum,
    "average": lambda batch, lengths: _sum(batch, lengths) / lengths,
    "sqrt": lambda batch, lengths: _sum(batch, lengths) / jnp.sqrt(lengths.astype(jnp.float32)),
    "max": lambda batch, lengths: largest(dense(batch), 1, where=valid_steps(batch, len(batch.shape))),
    "min": lambda batch, lengths: smallest(dense(batch), 1, where=valid_steps(batch, len(batch.shape))),
    "first": lambda batch, lengths: dense(taken(batch, jnp.zeros_like(batch.lengths)[:, None], batch.lengths))[:, 0],
    "last": lambda batch, lengths: dense(taken(batch, batch.lengths[:, None] - 1, batch.lengths))[:, 0],
}


@layer
@no_effect(
    padding=Warned(
        "the result is as long as the input",
        asks=lambda value, given: not value,
        instead="cut off the steps near the ends, as in layers.sequence_slice(y, offset, length)",
    )
)
def sequence_conv(
    input: Value,
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
      ShapeError: the input is not a sequence batch of vectors.

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
    input: Value,
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
      A value of the type and shape of the input.

    Raises:
      ArgumentError: the number of steps is negative.
      ShapeError: the input is not a batch of sequences of vectors.

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
