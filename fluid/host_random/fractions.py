"""Fractions: uniform random numbers on the host, from which other distributions are computed."""

import math
from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid.host_random.threefry import bits_of

# The number of fractions in a block. All blocks have one size, so that one compiled program serves arrays of any size.
_BLOCK = 1 << 14


def fractions_of(words: np.ndarray, count: int, dtype: Any) -> np.ndarray:
    """Return the `count` numbers in `[0, 1)` that `jax.random.uniform` draws for any shape of this size, as `[count]`.

    Each number has as many random bits as the mantissa of the dtype.

    Args:
      words: the key, from `key_data`.
      count: the number of elements, at most 2**32.
      dtype: a floating-point dtype of at most 32 bits.

    Example:
      >>> import jax
      >>> from fluid.host_random import key_data
      >>> key = jax.random.key(7)
      >>> fractions_of(key_data(key), 6, "float32").tolist() == jax.random.uniform(key, (6,)).tolist()
      True
    """
    kind = jnp.finfo(dtype)
    # JAX draws the smallest sufficient word, of 8, 16 or 32 bits.
    width = kind.bits if kind.nmant >= 8 else 8
    drawn = (bits_of(words, count) & np.uint32((1 << width) - 1)) >> np.uint32(width - kind.nmant)
    return (drawn.astype(np.float32) * np.float32(2.0**-kind.nmant)).astype(dtype)


def blocks_of_fractions(words: np.ndarray, count: int, dtype: Any) -> Iterator[np.ndarray]:
    """Yield the elements of `fractions_of(words, count, dtype)` in blocks of one size.

    Args:
      words: the key, from `key_data`.
      count: the number of elements.
      dtype: a floating-point dtype of at most 32 bits.

    Yields:
      Arrays `[block]` of this dtype; the last block is padded with zeros.
    """
    fractions = fractions_of(words, count, dtype)
    for start in range(0, count, _BLOCK):
        part = fractions[start : start + _BLOCK]
        yield np.pad(part, (0, _BLOCK - len(part)))


def between(words: np.ndarray, count: int, low: float, high: float) -> np.ndarray | None:
    """Return the numbers that `jax.random.uniform` draws between two bounds, for any shape of `count` elements.

    XLA computes `fraction * (high - low) + low` with one rounding, if the processor can. A float64 holds the exact
    product and sum of these float32 numbers, so the conversion to float32 is the only rounding here too.

    Args:
      words: the key, from `key_data`.
      count: the number of elements, at most 2**32.
      low: the lower bound.
      high: the upper bound.

    Returns:
      The numbers, float32 `[count]`; None if the bounds differ so much in size that a float64 would round.

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
