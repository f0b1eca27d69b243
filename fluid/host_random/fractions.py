"""Random fractions, from which numbers of other distributions are made."""

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
