"""The layer `embedding`, which looks up rows of a table by integer ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, describe, layer, like, row_dims, valid_steps
from fluid.layers.checks import check_ids
from fluid.layers.kernels.lookup_table import look_up
from fluid.layers.no_effect import Warned, no_effect
from fluid.param_attr import ParamSetting

# The warning for `is_distributed=True`. In Fluid, this argument divides the table among parameter servers.
NOT_DISTRIBUTED = Warned(
    "the table is held as a whole",
    asks=lambda value, given: bool(value),
    instead="is_sparse=True makes updates cost as much as the rows that they touch",
)


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
    """Look up the row of a table for each id.

    Args:
      input: integer ids `[batch, ..., 1]`, or a SequenceBatch of ids.
      size: `[number of rows, width]` of the table.
      is_sparse: set True for a large table of which a batch looks up few rows. Gradients and updates are then computed
        for these rows alone, if this gives equal results (SGD, Adagrad) or the optimizer has `lazy_mode=True`.
      is_distributed: accepted for programs written for Fluid, but has no effect: the table is held as a whole.
      padding_idx: an id whose row is read as zeros and never trained; negative counts from the end.
      param_attr: ParamAttr of the table; equal names share the table between embeddings.
      dtype: the dtype of the table.
      name: name of the layer; by default `embedding_N`.

    Returns:
      `[batch, ..., width]`: the rows replace the last dimension, of size 1.

    Raises:
      ArgumentError: the size is not a pair of positive integers, or the table has no row `padding_idx`.
      ArgumentTypeError: the ids are not integers.
      ShapeError: the last dimension of the ids is not 1.

    Example:
      >>> import fluid
      >>> def program():
      ...     word = fluid.layers.data("word", shape=[1], dtype="int64")
      ...     return fluid.layers.embedding(word, size=[1000, 32])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 32]
    """
    this = Layer("embedding", name)
    ids = check_ids(this.name, input)
    if ids.ndim > row_dims(input) and ids.shape[-1] == 1:
        ids = ids[..., 0]
    elif ids.ndim > row_dims(input):
        raise errors.ShapeError(
            f"{this.name}: ids {describe(input)} do not end in a dimension of 1; expected [batch, ..., 1], "
            f"as from layers.unsqueeze(ids, axes=[-1])"
        )
    return embed(this, input, ids, size, is_sparse, padding_idx, param_attr, dtype)


def embed(
    this: Layer,
    input: Value,
    ids: Any,
    size: Any,
    is_sparse: bool,
    padding_idx: int | None,
    attr: ParamSetting,
    dtype: DTypeLike,
) -> Any:
    """Implement embedding layers: create the table, look up the row of each id, and record the rows.

    Args:
      ids: the ids as an array, `[...]`.
      size: `[number of rows, width]` of the table.

    Returns:
      `[..., width]`, a sequence batch if the input is one.
    """
    rows, width = _table_size(this, size)
    core.limit_feed(input, 0, rows)
    padding = padding_row(this.name, padding_idx, rows)
    table = this.weight(attr, [rows, width], dtype, rows_only=is_sparse)
    if not is_sparse:
        return this.output(like(input, look_up(table, ids, padding)))
    touched = valid_steps(input, ids.ndim) & (ids != (-1 if padding is None else padding))
    result = core.look_up(table, ids, touched)
    return this.output(like(input, result if padding is None else jnp.where((ids == padding)[..., None], 0, result)))


def padding_row(layer_name: str, padding_idx: int | None, rows: int) -> int | None:
    """Convert `padding_idx` to a row index from 0 to `rows - 1`; a negative index counts from the end, None stays None.

    Raises:
      ArgumentError: the table has no row `padding_idx`.
    """
    if padding_idx is None:
        return None
    if not -rows <= padding_idx < rows:
        raise errors.ArgumentError(
            f"{layer_name}: padding_idx={padding_idx} is no row of a table of {rows}; expected {-rows} to {rows - 1}"
        )
    return padding_idx % rows


def _table_size(this: Layer, size: Any) -> tuple[int, int]:
    """Check `size` of an embedding table, and return the number of rows and the width of a row."""
    if not isinstance(size, list | tuple) or len(size) != 2:
        raise errors.ArgumentError(
            f"{this.name}: size={size!r}; expected [number of ids, width], as in size=[1000, 32]"
        )
    return core.whole_number(this.name, "size[0]", size[0]), core.whole_number(this.name, "size[1]", size[1])
