"""Settled: a run in test mode over arrays that are the same in most calls."""

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# From the filters of a program, `[filters, channels, height, width]`, to those that a CPU computes with, and back.
_LAST = (2, 3, 1, 0)
_FIRST = (3, 2, 0, 1)


class Settled:
    """A compiled function of arrays and feeds, where what depends on the arrays alone is done once for many calls.

    JAX takes a tuple of arrays faster than a dict, which counts where a net answers in microseconds. And a CPU computes
    convolutions with filters `[height, width, channels, filters]`: in the order of the program it would copy them in
    each call. Copies in the other order are kept here; the function that is compiled puts them back in the order of the
    program, two changes of order that XLA takes for none. No number differs by any of this.

    An array that was replaced, by an assignment or a training step, is another object, and is taken over with the next
    call. Several threads may call at once.

    Args:
      function: called with arrays and feeds by name, and the rest; traced.
      arrays: the names of the arrays.
      feeds: the names of the feeds.
      filters: the names of the arrays that are filters of convolutions, and wanted in the order of a CPU.

    Example:
      >>> double = Settled(lambda arrays, feeds: arrays["factor"] * feeds["x"], ["factor"], ["x"], [])
      >>> double({"factor": jnp.float32(2)}, {"x": np.float32([1, 2])}).tolist()
      [2.0, 4.0]
    """

    def __init__(
        self, function: Callable[..., Any], arrays: Sequence[str], feeds: Sequence[str], filters: Collection[str]
    ):
        self._arrays = tuple(arrays)
        self._feeds = tuple(feeds)
        self._filters = frozenset(filters)
        # The arrays of the last call, and what was made of them.
        self._known: tuple[Sequence[Any], Sequence[Any]] = ([None] * len(self._arrays), ())

        def call(arrays: Sequence[Any], feeds: Sequence[Any], *rest: Any) -> Any:
            named = {n: self._as_in_program(n, array) for n, array in zip(self._arrays, arrays, strict=True)}
            return function(named, dict(zip(self._feeds, feeds, strict=True)), *rest)

        self._jitted = jax.jit(call)

    def __call__(self, arrays: Mapping[str, Any], feeds: Mapping[str, Any], *rest: Any) -> Any:
        """Call the function with arrays and feeds by name."""
        known, taken = self._known
        if not all(map(operator.is_, known, map(arrays.__getitem__, self._arrays))):
            taken = self._take(arrays)
        return self._jitted(taken, tuple(map(feeds.__getitem__, self._feeds)), *rest)

    def lower(self, arrays: Mapping[str, Any], feeds: Mapping[str, Any], *rest: Any) -> jax.stages.Lowered:
        """What a call compiles, as `jax.jit` has it."""
        return self._jitted.lower(self._take(arrays), tuple(map(feeds.__getitem__, self._feeds)), *rest)

    def _take(self, arrays: Mapping[str, Any]) -> Sequence[Any]:
        """The arrays as the compiled function takes them, which are kept for the next call."""
        now = [arrays[name] for name in self._arrays]
        taken = tuple(map(self._turned, self._arrays, now))
        self._known = (now, taken)  # both at once, for other threads
        return taken

    def _turned(self, name: str, array: Any) -> Any:
        """An array in the order in which it is computed with."""
        if name not in self._filters:
            return array
        # By NumPy: for XLA each shape would be a program to compile.
        return jax.device_put(np.ascontiguousarray(np.asarray(array).transpose(_LAST)), array.sharding)

    def _as_in_program(self, name: str, array: Any) -> Any:
        return jnp.transpose(array, _FIRST) if name in self._filters else array
