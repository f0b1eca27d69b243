"""Products of looked-up rows: a table with few rows is multiplied once, and then its products are looked up.

An `fc` after an `embedding` multiplies a row again for each occurrence of its id. The functions in this module multiply
the table instead if this is faster: on a CPU, in training, with at most half as many rows as ids. For 6,400 ids and
1,000 rows, `fc` takes 31 ms without this method, and 8 ms with it (`benchmarks/KERNELS.md`).
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core
from fluid.layers.kernels.data_format import on_cpu


class LookedUp(NamedTuple):
    """The rows and the ids from which an array was looked up: the array is `rows[ids]`.

    Attributes:
      rows: the table, or the result of a computation on each row of the table, `[count, width]`.
      ids: integers `[...]`; 0 in the padding of a sequence batch, so that the padding is not NaN.
    """

    rows: jax.Array
    ids: jax.Array


def look_up(table: Any, ids: Any, padding: int | None = None) -> Any:
    """Look up the row of a table for each id.

    If later layers compute faster with the rows of the table than with the result, record the table and the ids for
    them.

    Args:
      table: `[rows, width]`.
      ids: integers `[...]`.

    Returns:
      `[..., width]`. An id outside the table yields NaN, so that users notice the mistake. Ids in feeds are checked
      earlier.
    """
    table = jnp.asarray(table)
    result = table.at[ids].get(mode="fill", fill_value=np.nan, wrap_negative_indices=False)
    result = result if padding is None else jnp.where((ids == padding)[..., None], 0, result)
    frame = core.present_frame()
    if frame is not None and frame.mode == core.TRAIN and _few_rows(table, ids):
        rows = table if padding is None else table.at[padding].set(0)
        frame.note(result, looked_up=LookedUp(rows, ids))
    return result


def times_matrix(x: Any, weight: Any) -> Any:
    """Multiply the last axis of an array `[..., inner]` by a matrix `[inner, columns]`, and return `[..., columns]`.

    If `look_up` recorded a table for the array, multiply the rows of the table, and then look up the products.
    """
    known = _looked_up(x)
    if known is not None:
        return _value_of(known._replace(rows=known.rows @ weight))
    # Reshape to one product of two matrices: the gradient of a batched product takes a CPU twice as long.
    return (x.reshape(-1, x.shape[-1]) @ weight).reshape(*x.shape[:-1], weight.shape[-1])


def plus(x: Any, bias: Any) -> Any:
    """Return the sum of an array `[..., width]` and a bias `[width]`.

    If `look_up` recorded a table for the array, add the bias to the rows of the table, and then look up the sums.
    """
    known = _looked_up(x)
    return x + bias if known is None else _value_of(known._replace(rows=known.rows + bias))


def same_rows(x: Any, filled: Any) -> Any:
    """Return `filled`, which equals `x` except for the padding, and copy the record of a lookup from `x` to `filled`.

    If `x` was looked up in a table, later layers can then use the table instead of `filled`.
    """
    known = _looked_up(x)
    if known is not None:
        core.current_frame("layers").note(filled, looked_up=known)
    return filled


def _looked_up(x: Any) -> LookedUp | None:
    frame = core.present_frame()
    return None if frame is None else frame.fact(x, "looked_up")


def _few_rows(table: jax.Array, ids: Any) -> bool:
    """Return whether the layers after an embedding compute faster on all rows of its table than on each id's row.

    The result is False in half precision, where computing on the rows of the table would be less exact.
    """
    # The gradient of a row of the embedding table is a sum over all ids that select the row. In half precision, the
    # sum is rounded after each addition.
    exact = jnp.promote_types(table.dtype, jnp.float32) == table.dtype
    return exact and 2 * table.shape[0] <= math.prod(ids.shape) and on_cpu() and not core.axes_here()


def _value_of(known: LookedUp) -> jax.Array:
    """Look up the row of an embedding table for each id; the result is NaN for ids outside the table.

    The table and the ids are also attached to the result, so that later layers know how it was computed.
    """
    width = known.rows.shape[1]
    # The gather keeps the dimension of size 1 of its slices `[1, width]`. Then XLA computes the gradient of the rows, a
    # sum over ids, without copies of its inputs.
    both = jax.lax.GatherDimensionNumbers((1, 2), collapsed_slice_dims=(), start_index_map=(0,))
    found = jax.lax.gather(known.rows, known.ids.reshape(-1, 1), both, (1, width), mode="fill", fill_value=np.nan)
    value = found.reshape(*known.ids.shape, width)
    core.current_frame("layers").note(value, looked_up=known)
    return value
