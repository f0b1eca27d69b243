"""Host random: random numbers computed with NumPy on the host, bitwise equal to the numbers of `jax.random`.

With `jax.random`, XLA compiles a program for each shape of a parameter, unless the compilation cache has the program.
So without this module, the first training step takes 2.0 times the CPU time with LeNet, and 1.8 times with the network
of the README. The figures are from jax and jaxlib 0.10.2 on two cores, 24 November 2026:
`python benchmarks/startup.py lenet --beside "drawn by jax"`. One `jax.jit` around all initial values takes as long to
compile, and rounds some values differently. Remove this module when both ratios are at most 1.1.

Uniform numbers between two bounds are bitwise equal to JAX's numbers only on a processor with fused multiply-add, which
rounds once and not twice.

The generator is Threefry-2x32 with 20 rounds (Salmon et al., 2011), the default of JAX.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_WORD = 32
_IMPLEMENTATION = "threefry2x32"


def key_data(key: Any) -> np.ndarray | None:
    """Return the data of a random key, uint32 `[2]`; None if this module cannot compute the key's random numbers.

    Args:
      key: a key of `jax.random`. For a traced key, an array of keys, and a key of another generator than Threefry-2x32,
        the result is None.

    Example:
      >>> key_data(jax.random.key(7)).tolist()
      [0, 7]
    """
    if isinstance(key, jax.core.Tracer) or not _partitionable():
        return None
    if str(jax.random.key_impl(key)) != _IMPLEMENTATION or jnp.ndim(key):
        return None
    words = jax.random.key_data(key)
    # While JAX traces a function, the data of a concrete key is a tracer too, which NumPy cannot read.
    return None if isinstance(words, jax.core.Tracer) else np.asarray(words)


def root_key(seed: int) -> Any:
    """Return the random key of `jax.random.key(seed)`, computed without an XLA compilation.

    Example:
      >>> bool(root_key(7) == jax.random.key(7))
      True
    """
    if seed >= 2**31 or str(jax.config.jax_default_prng_impl) != _IMPLEMENTATION:  # type: ignore[attr-defined]
        return jax.random.key(seed)
    return _key_of(np.array([0, seed], np.uint32))


def fold_in(key: Any, number: int) -> Any:
    """Return the random key of `jax.random.fold_in(key, number)`, computed without an XLA compilation.

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
    """Return the bits that `jax.random.bits` draws for an array of `count` elements, flattened to uint32 `[count]`.

    Args:
      words: the data of the random key, uint32 `[2]`, from `key_data`.

    Example:
      >>> key = jax.random.key(7)
      >>> bits_of(key_data(key), 6).tolist() == jax.random.bits(key, (2, 3)).ravel().tolist()
      True
    """
    first, second = _threefry(words, np.zeros(count, np.uint32), np.arange(count, dtype=np.uint32))
    return first ^ second


def _key_of(words: np.ndarray) -> Any:
    # Use `jax.device_put` and not `jax.numpy`, which compiles a program to convert an array.
    return jax.random.wrap_key_data(jax.device_put(words), impl=_IMPLEMENTATION)


def _partitionable() -> bool:
    return bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]


def _threefry(key: np.ndarray, first: np.ndarray, second: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encrypt counters by the cipher Threefry-2x32; return the high and the low words of the results.

    Args:
      key: the data of the random key, uint32 `[2]`.
      first: the high words of the counters, uint32 `[n]`.
      second: the low words of the counters, uint32 `[n]`.
    """
    schedule = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    with np.errstate(over="ignore"):  # the cipher Threefry adds modulo 2**32, so sums overflow on purpose
        first = first + schedule[0]
        second = second + schedule[1]
        for group in range(5):
            for rotation in _ROTATIONS[group % 2]:
                first = first + second
                second = first ^ ((second << np.uint32(rotation)) | (second >> np.uint32(_WORD - rotation)))
            first = first + schedule[(group + 1) % 3]
            second = second + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return first, second


# `_BLOCK`: the number of random numbers in a block. Blocks of one size need only one compiled program for all arrays.
_BLOCK = 1 << 14


def fractions_of(words: np.ndarray, count: int, dtype: Any) -> np.ndarray:
    """Return the numbers that `jax.random.uniform` draws for an array of `count` elements, flattened to `[count]`.

    The numbers are in `[0, 1)`. Each number has as many random bits as the mantissa of the dtype.

    Args:
      words: the data of the random key, uint32 `[2]`, from `key_data`.

    Example:
      >>> import jax
      >>> from fluid._util.host_random import key_data
      >>> key = jax.random.key(7)
      >>> fractions_of(key_data(key), 6, "float32").tolist() == jax.random.uniform(key, (6,)).tolist()
      True
    """
    kind = jnp.finfo(dtype)
    # JAX draws random words of 8, 16 or 32 bits: the smallest size that fills the mantissa.
    width = kind.bits if kind.nmant >= 8 else 8
    drawn = (bits_of(words, count) & np.uint32((1 << width) - 1)) >> np.uint32(width - kind.nmant)
    return (drawn.astype(np.float32) * np.float32(2.0**-kind.nmant)).astype(dtype)


def blocks_of_fractions(words: np.ndarray, count: int, dtype: Any) -> Iterator[np.ndarray]:
    """Yield the random numbers of `fractions_of(words, count, dtype)` in blocks of equal size.

    Args:
      words: the data of the random key, uint32 `[2]`, from `key_data`.

    Yields:
      Arrays `[16384]` of the dtype; the last block is padded with zeros.
    """
    fractions = fractions_of(words, count, dtype)
    for start in range(0, count, _BLOCK):
        part = fractions[start : start + _BLOCK]
        yield np.pad(part, (0, _BLOCK - len(part)))


def between(words: np.ndarray, count: int, low: float, high: float) -> np.ndarray | None:
    """Return the numbers that `jax.random.uniform` draws between two bounds, flattened to `[count]`.

    XLA computes `fraction * (high - low) + low` with one rounding, if the processor has fused multiply-add. This
    function computes in float64, which represents the product and the sum exactly. So it also rounds only once, in the
    conversion to float32.

    Args:
      words: the data of the random key, uint32 `[2]`, from `key_data`.

    Returns:
      The numbers, float32 `[count]`; None if the magnitudes of the bounds differ so much that float64 would round.

    Example:
      >>> import jax
      >>> from fluid._util.host_random import key_data
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
