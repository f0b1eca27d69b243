"""Random fractions, from which numbers of other distributions are made."""

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid.host_random.threefry import bits_of

# For so many fractions at a time are numbers made of them, so that one program serves arrays of any size.
_BLOCK = 1 << 14


def fractions_of(words: np.ndarray, count: int, dtype: Any) -> np.ndarray:
    """What `jax.random.uniform` draws between 0 and 1 for any shape of so many elements, in order: `[count]`.

    Each has as many random bits as the dtype has digits after the first one.

    Args:
      words: from `key_data`.
      count: at most 2**32.
      dtype: a floating one of at most 32 bits.

    Example:
      >>> import jax
      >>> from fluid.host_random import key_data
      >>> key = jax.random.key(7)
      >>> fractions_of(key_data(key), 6, "float32").tolist() == jax.random.uniform(key, (6,)).tolist()
      True
    """
    kind = jnp.finfo(dtype)
    # JAX draws no more bits than it needs, in words of 8, 16 or 32.
    width = kind.bits if kind.nmant >= 8 else 8
    drawn = (bits_of(words, count) & np.uint32((1 << width) - 1)) >> np.uint32(width - kind.nmant)
    return (drawn.astype(np.float32) * np.float32(2.0**-kind.nmant)).astype(dtype)


def blocks_of_fractions(words: np.ndarray, count: int, dtype: Any) -> Iterator[np.ndarray]:
    """The elements of `fractions_of(words, count, dtype)` in blocks of one size; the last one ends with zeros.

    Args:
      words: from `key_data`.
      count: how many elements.
      dtype: a floating one of at most 32 bits.

    Yields:
      `[block]` of this dtype.
    """
    fractions = fractions_of(words, count, dtype)
    for start in range(0, count, _BLOCK):
        part = fractions[start : start + _BLOCK]
        yield np.pad(part, (0, _BLOCK - len(part)))


def between(words: np.ndarray, count: int, low: float, high: float) -> np.ndarray | None:
    """What `jax.random.uniform` draws between two bounds, for any shape of so many elements: float32 `[count]`.

    XLA computes `fraction * (high - low) + low` with one rounding, where the processor can. A float64 holds the product
    and the sum of such float32 numbers as they are, so that its rounding to a float32 is the only one here as well.

    Args:
      words: from `key_data`.
      count: at most 2**32.
      low: the lower bound.
      high: the upper bound.

    Returns:
      The numbers; None for bounds so far apart in size that a float64 would round.

    Example:
      >>> import jax
      >>> from fluid.host_random import key_data
      >>> key = jax.random.key(7)
      >>> between(key_data(key), 6, -1, 1).tolist() == jax.random.uniform(key, (6,), minval=-1, maxval=1).tolist()
      True
    """
    first = np.float32(low)
    width = np.float32(high) - first
    apart = math.frexp(width)[1] - math.frexp(first)[1] if first else 0
    if not (2.0**-60 < width < 2.0**60 and -5 <= apart <= 28):
        return None
    drawn = fractions_of(words, count, np.float32).astype(np.float64) * float(width) + float(first)
    return np.maximum(drawn.astype(np.float32), first)
