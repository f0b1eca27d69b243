"""A generator of `jax.random` whose keys are bits that were drawn before."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from fluid.host_random.threefry import bits_of

# For so many numbers at a time are bits made to numbers, so that one program serves arrays of any size.
_BLOCK = 1 << 14


def blocks_of_bits(words: np.ndarray, count: int) -> Iterator[np.ndarray]:
    """The elements of `bits_of(words, count)` in blocks of one size; the last one ends with zeros.

    Args:
      words: from `key_data`.
      count: how many elements.

    Yields:
      uint32 `[block]`.
    """
    bits = bits_of(words, count)
    for start in range(0, count, _BLOCK):
        part = bits[start : start + _BLOCK]
        yield np.pad(part, (0, _BLOCK - len(part)))


def key_of_bits(bits: Any) -> Any:
    """A key from which functions of `jax.random` draw the given bits, in the shape `bits.shape` and no other.

    Args:
      bits: uint32 `[count]`, may be traced.

    Returns:
      A key that can be used once, and neither split nor folded.
    """
    return jax.random.wrap_key_data(bits, impl=_generator(bits.shape[0]))


@functools.cache
def _generator(count: int) -> Any:
    from jax.extend.random import define_prng_impl

    def draw(key: Any, width: int, shape: tuple[int, ...]) -> Any:
        return jax.lax.convert_element_type(key.reshape(shape), f"uint{width}")

    def refuse(*arguments: Any) -> Any:
        raise NotImplementedError("such a key holds bits to be drawn once")

    return define_prng_impl(
        key_shape=(count,), seed=refuse, split=refuse, fold_in=refuse, random_bits=draw, name="bits", tag="bits"
    )
