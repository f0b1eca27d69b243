"""The padding of sequence batches: where it is, and how to replace it."""

from typing import Any

import jax.numpy as jnp


def spread_mask(batch: Any, ndim: int) -> Any:
    """Which steps are real, with dimensions of 1 behind, so that it fits arrays of `ndim` dimensions."""
    mask = batch.mask
    return mask.reshape(*mask.shape, *[1] * (ndim - mask.ndim))


def filled(batch: Any, fill: Any) -> Any:
    """The data of a sequence batch with its padding replaced.

    Args:
      batch: a SequenceBatch or NestedSequenceBatch.
      fill: a number.

    Returns:
      An array of the shape and dtype of the data.
    """
    data = jnp.asarray(batch.data)
    return jnp.where(spread_mask(batch, data.ndim), data, jnp.asarray(fill, data.dtype))
