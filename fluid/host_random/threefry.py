"""Threefry on the host: the bits of `jax.random`, without the seconds that XLA takes to compile for each shape.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., 2011), which JAX uses by default.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_WORD = 32
_IMPLEMENTATION = "threefry2x32"


def key_data(key: Any) -> np.ndarray | None:
    """Return the words of a random key, uint32 `[2]`; None if the key is traced or of another generator.

    Args:
      key: a key of `jax.random`.

    Example:
      >>> key_data(jax.random.key(7)).tolist()
      [0, 7]
    """
    if isinstance(key, jax.core.Tracer) or not _partitionable():
        return None
    if str(jax.random.key_impl(key)) != _IMPLEMENTATION or jnp.ndim(key):
        return None
    words = jax.random.key_data(key)
    # During a trace, JAX also traces operations on a known key.
    return None if isinstance(words, jax.core.Tracer) else np.asarray(words)


def root_key(seed: int) -> Any:
    """Return the key that `jax.random.key` computes from a seed, without a compilation.

    Args:
      seed: an integer of 0 or more.

    Example:
      >>> bool(root_key(7) == jax.random.key(7))
      True
    """
    if seed >= 2**31 or str(jax.config.jax_default_prng_impl) != _IMPLEMENTATION:  # type: ignore[attr-defined]
        return jax.random.key(seed)
    return _key_of(np.array([0, seed], np.uint32))


def fold_in(key: Any, number: int) -> Any:
    """Return the key that `jax.random.fold_in` computes, without a compilation.

    Args:
      key: a key of `jax.random`.
      number: from 0 to 2**32 - 1.

    Example:
      >>> bool(fold_in(jax.random.key(7), 5) == jax.random.fold_in(jax.random.key(7), 5))
      True
    """
    words = key_data(key)
    if words is None:
        return jax.random.fold_in(key, number)
    first, second = _threefry(words, np.zeros(1, np.uint32), np.full(1, number, np.uint32))
    return _key_of(np.concatenate([first, second]))


def bits_of(words: np.ndarray, count: int) -> np.ndarray:
    """Return the bits that `jax.random.bits` draws for any shape of `count` elements, as uint32 `[count]`.

    Args:
      words: the key, from `key_data`.
      count: the number of elements, at most 2**32.

    Example:
      >>> key = jax.random.key(7)
      >>> bits_of(key_data(key), 6).tolist() == jax.random.bits(key, (2, 3)).ravel().tolist()
      True
    """
    first, second = _threefry(words, np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32))
    return first ^ second


def _key_of(words: np.ndarray) -> Any:
    # Not through jax.numpy, which compiles a program to convert an array.
    return jax.random.wrap_key_data(jax.device_put(words), impl=_IMPLEMENTATION)


def _partitionable() -> bool:
    """Return whether JAX counts the elements of an array in order, as it does by default."""
    return bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]


def _threefry(key: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encrypt counters by Threefry-2x32; return the high and the low words of the result.

    Args:
      key: uint32 `[2]`.
      first: the high words of the counters, uint32 `[n]`.
      second: the low words of the counters, uint32 `[n]`.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    with np.errstate(over="ignore"):  # sums are modulo 2**32
        first = first + schedule[0]
        second = second + schedule[1]
        for group in range(5):
            for rotation in _ROTATIONS[group % 2]:
                first = first + second
                second = first ^ ((second << np.uint32(rotation)) | (second >> np.uint32(_WORD - rotation)))
            first = first + schedule[(group + 1) % 3]
            second = second + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return first, second
