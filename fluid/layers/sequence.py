"""Layers on sequences: pooling over the steps of each, and what looks at the steps around each step."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fluid import core, errors
from fluid.layers import functional
from fluid.layers.base import (
    Layer,
    dense,
    describe,
    filled,
    layer,
    like,
    row_dims,
    times_matrix,
    valid_steps,
    wide,
    wide_dtype,
)
from fluid.layers.positions import sine_table
from fluid.layers.reduce import largest, smallest
from fluid.layers.steps import check_sequence, innermost, sequence_batch, shifted, taken


@layer
def sequence_pool(
    input: Any, pool_type: str, is_test: bool = False, pad_value: float = 0.0, name: str | None = None
) -> Any:
    """Make one row of each sequence.

    Args:
      input: a SequenceBatch `[batch, time, ...]`; of a NestedSequenceBatch the innermost sequences are pooled.
      pool_type: "sum", "average", "sqrt" (the sum divided by the root of the length), "max", "min", "first" or "last".
      is_test: has no effect.
      pad_value: what an empty sequence gives.
      name: instead of `sequence_pool_N`.

    Returns:
      `[batch, ...]`; for a NestedSequenceBatch a SequenceBatch of one step for each inner sequence.

    Raises:
      ArgumentError: there is no such pooling.
      ShapeError: the input is no sequence batch.

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

    def pool(batch: core.SequenceBatch) -> Any:
        lengths = batch.lengths.reshape(-1, *[1] * (len(batch.shape) - 2))
        return jnp.where(lengths > 0, function(batch, jnp.maximum(lengths, 1)).astype(batch.dtype), pad_value)

    return this.output(innermost(pool, check_sequence(this, input)))


@layer
def sequence_first_step(input: Any, name: str | None = None) -> Any:
    """The first step of each sequence: `sequence_pool(input, "first")`.

    Args:
      input: a SequenceBatch `[batch, time, ...]`; of a NestedSequenceBatch the innermost sequences.
      name: instead of `sequence_pool_N`.

    Returns:
      `[batch, ...]`, zeros for an empty sequence.

    Raises:
      ShapeError: the input is no sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.sequence_first_step(fluid.layers.data("x", shape=[4], lod_level=1))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    return sequence_pool(input, "first", name=name)


@layer
def sequence_last_step(input: Any, name: str | None = None) -> Any:
    """The last step of each sequence: `sequence_pool(input, "last")`.

    Args:
      input: a SequenceBatch `[batch, time, ...]`; of a NestedSequenceBatch the innermost sequences.
      name: instead of `sequence_pool_N`.

    Returns:
      `[batch, ...]`, zeros for an empty sequence.

    Raises:
      ShapeError: the input is no sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.sequence_last_step(fluid.layers.data("x", shape=[4], lod_level=1))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    return sequence_pool(input, "last", name=name)


@layer
def sequence_softmax(input: Any, use_cudnn: bool = False, name: str | None = None) -> Any:
    """Softmax over the steps of each sequence.

    Args:
      input: logits: a SequenceBatch `[batch, time]` or `[batch, time, 1]`; with more numbers in a step each of them is
        taken by itself. Of a NestedSequenceBatch the innermost sequences are taken.
      use_cudnn: has no effect.
      name: instead of `sequence_softmax_N`.

    Returns:
      Like the input; the steps of each sequence sum to 1.

    Raises:
      ShapeError: the input is no sequence batch.

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
        x = filled(batch, float(jnp.finfo(batch.dtype).min))  # not infinite: a row may have nothing else
        return sequence_batch(functional.softmax(x, axis=1), batch.lengths)

    return this.output(innermost(softmax, check_sequence(this, input)))


@layer
def sequence_conv(
    input: Any,
    num_filters: int,
    filter_size: int = 3,
    filter_stride: int = 1,
    padding: bool = True,
    padding_start: int | None = None,
    bias_attr: Any = None,
    param_attr: Any = None,
    act: Any = None,
    name: str | None = None,
) -> Any:
    """Convolution over the steps of each sequence; beyond its ends are zeros.

    Args:
      input: a SequenceBatch `[batch, time, channels]`; of a NestedSequenceBatch the innermost sequences.
      num_filters: size of each step of the result.
      filter_size: how many steps the filters see.
      filter_stride: 1.
      padding: has no effect: the result is as long as the input.
      padding_start: where the filters begin, relative to the step they are for; `-(filter_size // 2)` by default.
      bias_attr: ParamAttr of the bias `[num_filters]`; False for none.
      param_attr: ParamAttr of the filters `[filter_size * channels, num_filters]`.
      act: name of an activation, or a function.
      name: instead of `sequence_conv_N`.

    Returns:
      A SequenceBatch `[batch, time, num_filters]` of the same lengths.

    Raises:
      ArgumentError: the stride is not 1, or a size is not positive.
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
    for argument, value in (("num_filters", num_filters), ("filter_size", filter_size)):
        if not isinstance(value, int) or value < 1:
            raise errors.ArgumentError(f"{this.name}: {argument}={value!r}; expected a positive integer")
    channels = _channels(this, check_sequence(this, input))
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
    input: Any, future_context_size: int, param_attr: Any = None, act: Any = None, name: str | None = None
) -> Any:
    """Lookahead convolution (Wang et al., 2016): each channel of a step with the same channel of the steps after it.

    Args:
      input: a SequenceBatch `[batch, time, channels]`, or such an array, whose rows all have `time` steps; of a
        NestedSequenceBatch the innermost sequences.
      future_context_size: how many steps ahead are seen.
      param_attr: ParamAttr of the weights `[future_context_size + 1, channels]`.
      act: name of an activation, or a function.
      name: instead of `row_conv_N`.

    Returns:
      Like the input.

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
    if not isinstance(future_context_size, int) or future_context_size < 0:
        raise errors.ArgumentError(f"{this.name}: future_context_size={future_context_size!r}; expected 0 or more")
    weight = this.weight(param_attr, [future_context_size + 1, _channels(this, input)], dense(input).dtype)

    def convolve(batch: Any) -> Any:
        x = dense(batch)
        return like(batch, sum(shifted(x, i) * weight[i] for i in range(future_context_size + 1)))

    return this.finish(innermost(convolve, input), act)


@layer
def sequence_reverse(x: Any, name: str | None = None) -> Any:
    """Turn the order of the steps of each sequence around.

    Args:
      x: a SequenceBatch `[batch, time, ...]`; of a NestedSequenceBatch the innermost sequences.
      name: instead of `sequence_reverse_N`.

    Returns:
      Like `x`.

    Raises:
      ShapeError: `x` is no sequence batch.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.sequence_reverse(fluid.layers.data("x", shape=[1], lod_level=1))
      >>> fluid.Session(program).run(program, {"x": [[1, 2, 3], [4]]})[0].rows()[0].tolist()
      [[3.0], [2.0], [1.0]]
    """
    this = Layer("sequence_reverse", name)

    def reverse(batch: core.SequenceBatch) -> Any:
        return taken(batch, batch.lengths[:, None] - 1 - jnp.arange(batch.shape[1]), batch.lengths)

    return this.output(innermost(reverse, check_sequence(this, x, "x")))


@layer
def add_position_encoding(input: Any, alpha: float, beta: float, name: str | None = None) -> Any:
    """Add sines and cosines that tell the steps apart (Vaswani et al., 2017): `alpha * input + beta * encoding`.

    The first half of the channels gets sines, the second cosines, of frequencies from 1 down to 1 / 10000.

    Args:
      input: `[batch, time, channels]`, or a SequenceBatch; of a NestedSequenceBatch the innermost sequences.
      alpha: multiplies the input.
      beta: multiplies the encoding.
      name: instead of `add_position_encoding_N`.

    Returns:
      Like the input.

    Raises:
      ShapeError: the input is no batch of sequences of vectors, or the number of channels is odd.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[5, 8])
      ...     return fluid.layers.add_position_encoding(x, alpha=1.0, beta=1.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5, 8]
    """
    this = Layer("add_position_encoding", name)
    x, channels = dense(input), _channels(this, input)
    if channels % 2:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} has {channels} channels; expected an even number, half of them for "
            f"sines and half for cosines, as from layers.fc(x, size={channels + 1})"
        )
    table = sine_table(jnp.arange(x.shape[-2]), channels, wide_dtype(x.dtype))
    return this.output(like(input, (alpha * x + beta * table).astype(x.dtype)))


def _channels(this: Layer, value: Any) -> int:
    """The size of the steps of sequences `[batch, time, channels]`, or of innermost ones."""
    shape = dense(value).shape
    if len(shape) != max(row_dims(value), 2) + 1:
        raise errors.ShapeError(
            f"{this.name}: input {describe(value)} is no batch of sequences of vectors; expected "
            f"[batch, time, channels], as from layers.data(..., shape=[8], lod_level=1)"
        )
    return int(shape[-1])


def _sum(batch: core.SequenceBatch, lengths: Any) -> Any:
    return jnp.sum(wide(batch), axis=1)


# How each pooling makes one row of the steps of a batch; `lengths [batch, 1, ...]` are at least 1.
_POOLS: dict[str, Callable[[core.SequenceBatch, Any], Any]] = {
    "sum": _sum,
    "average": lambda batch, lengths: _sum(batch, lengths) / lengths,
    "sqrt": lambda batch, lengths: _sum(batch, lengths) / jnp.sqrt(lengths.astype(jnp.float32)),
    "max": lambda batch, lengths: largest(dense(batch), 1, where=valid_steps(batch, len(batch.shape))),
    "min": lambda batch, lengths: smallest(dense(batch), 1, where=valid_steps(batch, len(batch.shape))),
    "first": lambda batch, lengths: dense(taken(batch, jnp.zeros_like(batch.lengths)[:, None], batch.lengths))[:, 0],
    "last": lambda batch, lengths: dense(taken(batch, batch.lengths[:, None] - 1, batch.lengths))[:, 0],
}
