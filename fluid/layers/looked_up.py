"""Values whose rows were looked up in a small table, so that layers compute with the table in their place.

An `fc` behind an `embedding` multiplies the same row once for each time that its id occurs. Where there are more ids
than rows, a CPU is faster to multiply the table, and to look up the products.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np

from fluid import core
from fluid.layers.base import Layer, wide_dtype

V = TypeVar("V")


class LookedUp(NamedTuple):
    """The rows that make up a value, `rows[ids]`.

    Attributes:
      rows: `[count, width]`.
      ids: integers `[...]`; 0 in the padding of a sequence batch.
    """

    rows: jax.Array
    ids: jax.Array

    def values(self) -> jax.Array:
        """The value itself, `[..., width]`, with NaN for ids outside of the table."""
        width = self.rows.shape[1]
        # Where the rows keep both dimensions, XLA adds up their gradient without a copy of all that comes back.
        both = jax.lax.GatherDimensionNumbers((1, 2), collapsed_slice_dims=(), start_index_map=(0,))
        found = jax.lax.gather(self.rows, self.ids.reshape(-1, 1), both, (1, width), mode="fill", fill_value=np.nan)
        return found.reshape(*self.ids.shape, width)


def looked_up(value: Any) -> LookedUp | None:
    """The rows that make up a value, where it is worth while to compute with them; else None."""
    frame = core.present_frame()
    return None if frame is None else frame.fact(core.data_of(value), "looked_up")


def few_rows(table: jax.Array, ids: jax.Array, padding: int | None) -> LookedUp | None:
    """The rows of a table that some ids look up, if they are few beside these, in training on a CPU; else None.

    Args:
      table: `[rows, width]`.
      ids: integers `[...]`; of a sequence batch with 0 for its padding, so that no NaN is looked up for it.
      padding: an id whose row is read as zeros; None for no such id.
    """
    training = core.current_frame("layers").mode == core.TRAIN
    here = jax.default_backend() == "cpu" and not core.axes_here()
    # In half precision the gradient of a row would be a sum of many numbers that is rounded at each of them.
    exact = wide_dtype(table.dtype) == table.dtype
    if not (training and here and exact and 2 * table.shape[0] <= math.prod(ids.shape)):
        return None
    rows = table if padding is None else table.at[padding].set(0)
    return LookedUp(rows, ids)


def computed(value: Any, function: Callable[[jax.Array], jax.Array]) -> LookedUp | None:
    """The rows that make up what a function of each row by itself makes of a value, if its own are known; else None."""
    found = looked_up(value)
    return None if found is None else found._replace(rows=function(found.rows))


def made_of(value: V, found: LookedUp | None) -> V:
    """The same value, of which it is remembered that it is made of these rows."""
    if found is not None:
        core.current_frame("layers").note(core.data_of(value), looked_up=found)
    return value


def output_looked_up(this: Layer, value: Any, found: LookedUp | None) -> Any:
    """Record a result that is made of these rows, or of none that are known."""
    result = this.output(value)
    # An overridden value was not looked up.
    return made_of(result, found if result is value else None)
