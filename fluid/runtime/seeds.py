"""Seeds for the random numbers of test-mode runs: each run draws new numbers, and a given seed repeats a run.

Runs of programs that draw random numbers are numbered, and `Engine.draw` computes the random key of a run from its
seed. A run with `seed=7` draws the numbers of step 0 of `Session(seed=7)`, in every API that can run a program.
"""

import functools
import hashlib
import itertools
import secrets
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.core import Program, warn
from fluid.core.argument_checks import whole_number

# A pair from which a test-mode run computes its random key: the random root and the step number, both on the device.
Draw = tuple[Any, Any]

_BITS = 64


class Seeds:
    """A sequence of seeds, one for each test-mode run of a program that draws random numbers.

    Run number n uses the seed `seed_of(first, n)`. Threads may share a sequence.

    Attributes:
      first: the seed of the sequence.

    Raises:
      ArgumentError: the seed is not a whole number from 0 to 2**64 - 1.

    Example:
      >>> one, same, other = Seeds("Inferencer", 7), Seeds("Inferencer", 7), Seeds("Inferencer")
      >>> numbers = [one.next() for _ in range(3)]
      >>> numbers == [same.next() for _ in range(3)], len({*numbers, other.next()})
      (True, 4)
    """

    def __init__(self, call: str, seed: int | None = None):
        self.first = secrets.randbits(_BITS) if seed is None else checked_seed(call, seed)
        self._runs = itertools.count()
        self._warned = False

    def next(self) -> int:
        """Return the seed of the next run."""
        return seed_of(
            self.first, next(self._runs)
        )  # `next` of an itertools.count is atomic in CPython, so threads get different numbers

    def of(self, call: str, program: Program, seed: int | None) -> int | None:
        """Return the seed of a test-mode run: `seed` if it is given, else the next seed of the sequence.

        Return None for a program that draws no random numbers in test mode, and warn once if a seed is given for it.

        Raises:
          ArgumentError: the seed is not a whole number from 0 to 2**64 - 1.
        """
        if seed is not None:
            seed = checked_seed(call, seed)
        if program.draws:
            return self.next() if seed is None else seed
        if seed is not None:
            self.unused(call, program.name, seed)
        return None

    def unused(self, call: str, program: str, seed: int) -> None:
        """Warn, once, that `seed=` of a call has no effect, because the program draws no random numbers."""
        if not self._warned:
            self._warned = True
            warn(
                f"{call}(seed={seed}): the program {program} draws no random numbers in test mode, where dropout draws "
                f"none, so that its answers are the same with any seed; leave seed= out, or draw in the program: "
                f"fluid.layers.gaussian_random(shape)"
            )


def seed_of(first: int, run: int) -> int:
    """Return the 64-bit seed of one run in a sequence of runs of a program.

    The file `standalone.py` of an exported model computes seeds by an equal formula.
    """
    return int.from_bytes(hashlib.blake2b(f"{first}/{run}".encode(), digest_size=_BITS // 8).digest(), "little")


def checked_seed(call: str, seed: Any) -> int:
    """Check a seed from a user, and return it as an int.

    Raises:
      ArgumentError: the seed is not a whole number from 0 to 2**64 - 1.

    Example:
      >>> checked_seed("infer", np.int32(7))
      7
      >>> checked_seed("infer", 0.5)
      Traceback (most recent call last):
      fluid.errors.ArgumentError: infer(seed=0.5): expected a whole number from 0 to 2**64 - 1, as in seed=7
    """
    try:
        return whole_number(call, "seed", seed, least=0, most=2**_BITS - 1)
    except errors.ArgumentError:
        raise errors.ArgumentError(
            f"{call}(seed={seed!r}): expected a whole number from 0 to 2**64 - 1, as in seed=7"
        ) from None


def root_of(seed: int) -> np.ndarray:
    """Return the data of the JAX random key for a 64-bit seed. `jax.random.key` uses all 64 bits only with x64.

    Example:
      >>> root_of(7).tolist(), root_of(2**32 + 7).tolist()
      ([0, 7], [1, 7])
    """
    words = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
    # For random generators with keys of more than two words, JAX repeats the two words of the seed.
    return np.tile(words, _key_words(str(jax.config.jax_default_prng_impl)) // len(words))  # type: ignore[attr-defined]


@functools.cache
def _key_words(generator: str) -> int:
    return int(jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0, impl=generator))).shape[0])
