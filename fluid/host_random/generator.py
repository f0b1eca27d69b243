"""A generator of `jax.random` whose keys are bits that were drawn before."""

import functools
from typing import Any

import jax
import numpy as np

from fluid.host_random.threefry import bits_of

# Sizes for which numbers are made of bits, each a compilation of its own.
_SIZES = [1 << exponent for exponent in (8, 11, 14, 17, 20)]


def padded_bits(words: np.ndarray, count: int) -> np.ndarray:
    """At least `count` elements of `bits_of`: as many as the next of a few sizes, so that few programs serve all."""
    return bits_of(words, next(size for size in (*_SIZES, count) if size >= count))


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
