"""Conversions between sequence batches and padded arrays with lengths."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fluid import core, errors
from fluid.layers.base import Layer, array_of, dense, describe, layer
from fluid.layers.checks import check_ids, dtype_of
from fluid.layers.sequence.steps import check_sequence, flat, nested_like, sequence_batch, taken


@layer
def sequence_mask(
    x: core.Value, maxlen: int | None = None, dtype: DTypeLike = "int64", name: str | None = None
) -> jax.Array:
    """Return a mask for each length: as many ones as the length, followed by zeros.

    Args:
      x: lengths, integers `[...]`.
      maxlen: the size of the mask. It must be given, since a shape cannot depend on data.
      dtype: the dtype of the mask.
      name: name of the layer; by default `sequence_mask_N`.

    Returns:
      `[..., maxlen]`.

    Raises:
      ArgumentError: `maxlen` is not given, or negative.
      ArgumentTypeError: the lengths are no integers.

    Example:
      >>> import fluid
      >>> def program():
      ...     lengths = fluid.layers.data("lengths", shape=[], dtype="int64")
      ...     return fluid.layers.sequence_mask(lengths, maxlen=5, dtype="float32")
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5]
    """
    this = Layer("sequence_mask", name)
    lengths = check_ids(this.name, array_of(this, x))
    if maxlen is None:
        raise errors.ArgumentError(
            f"{this.name}: maxlen=None for lengths {describe(x)}; the size of the mask cannot depend on data: "
            f"give maxlen=, or the size of what is masked, as in maxlen=x.shape[1]"
        )
    steps = jnp.arange(core.whole_number(this.name, "maxlen", maxlen, least=0))
    return this.output((steps < lengths[..., None]).astype(dtype_of("sequence_mask", dtype)))


@layer
def sequence_pad(
    x: core.Value, pad_value: core.Value | float, maxlen: int | None = None, name: str | None = None
) -> Any:
    """Convert a sequence batch to a padded array and lengths.

    Args:
      x: a SequenceBatch `[batch, time, ...]`; for a NestedSequenceBatch, the innermost sequences are padded.
      pad_value: the value beyond the end of each sequence: a number, or an array of the shape of a step.
      maxlen: the number of steps of the array; longer sequences are cut. The default is the `time` of `x`, which is
        at least the length of the longest sequence.
      name: name of the layer; by default `sequence_pad_N`.

    Returns:
      The array `[batch, maxlen, ...]`, and the lengths `[batch]`, of JAX's default integer; for a NestedSequenceBatch,
      a SequenceBatch of each.

    Raises:
      ArgumentError: `maxlen` is no positive integer.
      ShapeError: `x` is no sequence batch, or `pad_value` does not fit its steps.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[1], lod_level=1)
      ...     return fluid.layers.sequence_pad(x, pad_value=-1.0, maxlen=3)
      >>> padded, lengths = fluid.Session(program).run(program, {"x": [[1, 2, 3], [4]]})
      >>> padded[:, :, 0].tolist(), lengths.tolist()
      ([[1.0, 2.0, 3.0], [4.0, -1.0, -1.0]], [3, 1])
    """
    this = Layer("sequence_pad", name)
    batch = flat(check_sequence(this, x, "x"))
    size = batch.shape[1] if maxlen is None else core.whole_number(this.name, "maxlen", maxlen)
    fill = dense(pad_value).astype(batch.dtype)
    step = batch.shape[2:]
    if fill.size != 1 and fill.shape not in (step, (1, *step)):
        raise errors.ShapeError(
            f"{this.name}: pad_value {describe(fill)} does not fit the steps of x {describe(x)}; expected a number, or "
            f"{list(step)}"
        )
    lengths = jnp.minimum(batch.lengths, size)
    whole = taken(batch, jnp.broadcast_to(jnp.arange(size), (batch.shape[0], size)), lengths)
    valid = core.spread_mask(whole, len(whole.shape))
    padded = jnp.where(valid, whole.data, fill.reshape(step if fill.size > 1 else ()))
    lengths = lengths.astype(dtype_of(this.name, "int64"))
    return this.output(nested_like(x, padded)), this.output(nested_like(x, lengths))


@layer
def sequence_unpad(x: core.Value, length: core.Value, name: str | None = None) -> core.SequenceBatch:
    """Convert a padded array and lengths to a sequence batch.

    Args:
      x: `[batch, time, ...]`.
      length: the number of valid steps of each row, integers `[batch]` or `[batch, 1]`.
      name: name of the layer; by default `sequence_unpad_N`.

    Returns:
      A SequenceBatch `[batch, time, ...]`.

    Raises:
      ArgumentTypeError: the lengths are no integers.
      ShapeError: there is not one length for each row, or there are no steps.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     return fluid.layers.sequence_unpad(x, fluid.layers.data("length", shape=[1], dtype="int64"))
      >>> found, = fluid.Session(program).run(program, {"x": [[1, 2, 3], [4, 5, 6]], "length": [2, 1]})
      >>> [row.tolist() for row in found.rows()]
      [[1.0, 2.0], [4.0]]
    """
    this = Layer("sequence_unpad", name)
    array = array_of(this, x)
    lengths = check_ids(this.name, array_of(this, length))
    if array.ndim < 2 or lengths.shape not in ((array.shape[0],), (array.shape[0], 1)):
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} and length {describe(length)} do not fit; expected [batch, time, ...] and "
            f"one length for each row, [batch] or [batch, 1]"
        )
    if array.shape[1] != this.frame.placeholder_batch:
        core.limit_feed(length, 0, array.shape[1] + 1)
    return this.output(sequence_batch(array, jnp.clip(lengths.reshape(-1), 0, array.shape[1])))
