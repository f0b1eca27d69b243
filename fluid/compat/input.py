"""`fluid.data`, `fluid.embedding` and `fluid.one_hot`, whose input shapes differ from the layers in `fluid.layers`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, layer, like
from fluid.layers.checks import check_ids
from fluid.layers.data import data as layers_data
from fluid.layers.embedding import NOT_DISTRIBUTED, embed
from fluid.layers.no_effect import no_effect
from fluid.param_attr import ParamSetting


@layer
def data(
    name: str, shape: Sequence[int | None], dtype: DTypeLike = "float32", lod_level: int = 0
) -> jax.Array | core.SequenceBatch | core.NestedSequenceBatch:
    """Declare a feed by its full shape, including the batch size; `layers.data` takes the shape of one example instead.

    Args:
      name: the name under which data is fed.
      shape: `[batch, ...]`, with None or -1 for the batch size. Without None or -1, all sizes are fixed.
      dtype: the dtype, such as "float32" or "int64".
      lod_level: 0 for arrays, 1 for sequences of any length, with time steps of the shape `shape[1:]`, 2 for
        sequences of sequences.

    Returns:
      An array `[batch, ...]`; or a SequenceBatch with data `[batch, time, ...]`, or a NestedSequenceBatch.

    Raises:
      ArgumentError: the dtype or the level does not exist, or the first size of sequences is not None or -1.
      ArgumentTypeError: the name is not a string.
      ProgramError: another feed of this name has another shape, dtype or level.
      ShapeError: the shape is not a list.

    Example:
      >>> import fluid
      >>> fluid.Program(lambda: fluid.data("image", shape=[None, 1, 28, 28])).feeds["image"].shape
      (None, 1, 28, 28)
    """
    if lod_level and (not isinstance(shape, list | tuple) or not shape or shape[0] not in (None, -1)):
        raise errors.ArgumentError(
            f"fluid.data({name!r}, shape={shape!r}, lod_level={lod_level}): the first size of sequences is that of the "
            f"batch: shape=[None, 1]"
        )
    return layers_data(name, shape, str(dtype), lod_level, append_batch_size=False)


@layer
def one_hot(input: Value, depth: int, allow_out_of_range: bool = False, name: str | None = None) -> Any:
    """Return a one-hot row for each class; `layers.one_hot` takes classes `[..., 1]` instead.

    Args:
      input: classes `[batch, ...]` of an integer dtype, or a SequenceBatch.
      depth: the number of classes.
      allow_out_of_range: True to return a row of zeros for numbers outside `[0, depth)`; False to raise an error if
        these numbers are fed.
      name: the name of the layer, instead of `one_hot_v2_N`.

    Returns:
      `[batch, ..., depth]`, float32.

    Raises:
      ArgumentError: `depth` is not a positive integer.
      ArgumentTypeError: the classes are not integers.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.one_hot(fluid.layers.data("label", shape=[5], dtype="int64"), depth=10)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5, 10]
    """
    this = Layer("one_hot_v2", name)
    core.whole_number(this.name, "depth", depth)
    ids = check_ids(this.name, input)
    if not allow_out_of_range:
        core.limit_feed(input, 0, depth)
    return this.output(like(input, this.frame.compute(jax.nn.one_hot(ids, depth, dtype=jnp.float32))))


@layer
@no_effect(is_distributed=NOT_DISTRIBUTED)
def embedding(
    input: Value,
    size: Sequence[int],
    is_sparse: bool = False,
    is_distributed: bool = False,
    padding_idx: int | None = None,
    param_attr: ParamSetting = None,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> Any:
    """Look up the row of a table for each id; `layers.embedding` takes ids `[..., 1]` instead.

    Args:
      input: integer ids `[batch, ...]`, or a SequenceBatch of ids.
      size: `[number of rows, width]` of the table.
      is_sparse: whether only the rows that are looked up are updated; see `layers.embedding`.
      is_distributed: accepted for programs written for Fluid, but has no effect: the table is held as a whole.
      padding_idx: an id whose row is read as zeros and never trained; a negative id counts from the end.
      param_attr: ParamAttr of the table; embeddings with equal names share one table.
      dtype: dtype of the table.
      name: the name of the layer, instead of `embedding_N`.

    Returns:
      `[batch, ..., width]`.

    Raises:
      ArgumentError: the size is not a pair of positive integers, or the table has no row `padding_idx`.
      ArgumentTypeError: the ids are not integers.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[5], dtype="int64")
      ...     return fluid.embedding(words, size=[1000, 32])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5, 32]
    """
    this = Layer("embedding", name)
    ids = check_ids(this.name, input)
    return embed(this, input, ids, size, is_sparse, padding_idx, param_attr, dtype)
