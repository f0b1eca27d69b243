"""Values whose rows were looked up in a small table, so that layers can compute with the table instead.

An `fc` after an `embedding` multiplies a row once for each time that its id occurs. If there are more ids than rows, a
CPU is faster when it multiplies the table, and then looks up the products.
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
    """A value as rows and ids: `rows[ids]`.

    Attributes:
      rows: `[count, width]`.
      ids: integers `[...]`; 0 in the padding of a sequence batch.
    """

    rows: jax.Array
    ids: jax.Array

    def values(self) -> jax.Array:
        """Return the value, `[..., width]`, with NaN for ids outside the table."""
        width = self.rows.shape[1]
        # If the slices keep both dimensions, XLA adds up the gradient of the rows without copying its inputs.
        both = jax.lax.GatherDimensionNumbers((1, 2), collapsed_slice_dims=(), start_index_map=(0,))
        found = jax.lax.gather(self.rows, self.ids.reshape(-1, 1), both, (1, width), mode="fill", fill_value=np.nan)
        return found.reshape(*self.ids.shape, width)


def looked_up(value: Any) -> LookedUp | None:
    """Return the rows and ids of a value if layers should compute with them; else None."""
    frame = core.present_frame()
    return None if frame is None else frame.fact(core.data_of(value), "looked_up")


def few_rows(table: jax.Array, ids: jax.Array, padding: int | None) -> LookedUp | None:
    """Return the rows that `ids` look up, in training on a CPU with at most half as many rows as ids; else None.

    Args:
      table: `[rows, width]`.
      ids: integers `[...]`; 0 for the padding of a sequence batch, so that no NaN is looked up for the padding.
      padding: an id whose row is read as zeros; None for no such id.
    """
    training = core.current_frame("layers").mode == core.TRAIN
    here = jax.default_backend() == "cpu" and not core.axes_here()
    # In half precision the gradient of a row would be a sum of many numbers, rounded after each addition.
    exact = wide_dtype(table.dtype) == table.dtype
    if not (training and here and exact and 2 * table.shape[0] <= math.prod(ids.shape)):
        return None
    rows = table if padding is None else table.at[padding].set(0)
    return LookedUp(rows, ids)


def computed(value: Any, function: Callable[[jax.Array], jax.Array]) -> LookedUp | None:
    """Apply a row-wise function to the rows of a value; return the result, or None if the value has no known rows."""
    found = looked_up(value)
    return None if found is None else found._replace(rows=function(found.rows))


def made_of(value: V, found: LookedUp | None) -> V:
    """Record that `value` consists of the rows `found.rows` of a table, chosen by `found.ids`; return `value`."""
    if found is not None:
        core.current_frame("layers").note(core.data_of(value), looked_up=found)
    return value


def output_looked_up(this: Layer, value: Any, found: LookedUp | None) -> Any:
    """Record a result of a layer, with its rows and ids if they are known."""
    result = this.output(value)
    # An overridden value was not looked up.
    return made_of(result, found if result is value else None)
