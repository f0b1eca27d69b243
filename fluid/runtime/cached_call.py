"""Settled: a run in test mode over arrays that are the same in most calls."""

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid.core import Order

_SMALL = 4096  # elements up to which vectors are laid end to end

_Pick = Callable[[Mapping[str, Any]], tuple[Any, ...]]


class Settled:
    """A compiled function of arrays and feeds, where what depends on the arrays alone is done once for many calls.

    A small net answers in microseconds, of which each argument takes its share. JAX takes a tuple of arrays faster than
    a dict, and one array faster than many: small vectors, such as biases, are laid end to end. And a CPU computes
    with some arrays in another order of their elements, such as filters `[height, width, channels, filters]`: in that
    of the program it would copy them in each call. Copies in the other order are kept here; the function that is
    compiled takes the vectors apart and puts the others back in the order of the program, which XLA takes for no work.
    No number differs by any of this.

    An array that was replaced, by an assignment or a training step, is another object, and is taken over with the next
    call. Several threads may call at once.

    Args:
      function: called with arrays and feeds by name, and the rest; traced.
      arrays: arrays by name, with the shapes and dtypes of all that will be given.
      feeds: the names of the feeds.
      orders: the order in which an array is computed with, by name, where it is another one.
      vectors: the names of the arrays that are laid end to end where they are small and have a dtype in common.

    Example:
      >>> import jax.numpy as jnp
      >>> arrays = {"factor": jnp.float32(2), "shift": jnp.ones(2)}
      >>> double = Settled(lambda a, feeds: a["factor"] * feeds["x"] + a["shift"], arrays, ["x"], {}, arrays)
      >>> double(arrays, {"x": np.float32([1, 2])}).tolist()
      [3.0, 5.0]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arrays: Mapping[str, Any],
        feeds: Sequence[str],
        orders: Mapping[str, Order],
        vectors: Collection[str],
    ):
        self._shapes = {name: array.shape for name, array in arrays.items()}
        self._orders = {name: order for name, order in orders.items() if name in arrays}
        self._joined = _joined({n: array for n, array in arrays.items() if n in vectors})
        together = {name for names in self._joined for name in names}
        self._alone = [name for name in arrays if name not in together]
        self._pick = _picking(tuple(arrays))
        self._fed = tuple(feeds)
        # The arrays of the last call, and what was made of them.
        self._known: tuple[Sequence[Any], Sequence[Any]] = ([None] * len(arrays), ())

        def call(taken: Sequence[Any], feeds_in_order: Sequence[Any], *rest: Any) -> Any:
            return function(self._named(taken), dict(zip(feeds, feeds_in_order, strict=True)), *rest)

        self._jitted = jax.jit(call)

    def __call__(self, arrays: Mapping[str, Any], feeds: Mapping[str, Any], *rest: Any) -> Any:
        """Call the function with arrays and feeds by name; there may be more of them than it takes."""
        known, taken = self._known
        if not all(map(operator.is_, known, self._pick(arrays))):
            taken = self._take(arrays)
        return self._jitted(taken, _in_order(feeds, self._fed), *rest)

    def over(self, arrays: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Any]:
        """Calls over these arrays, as a function of feeds: the same numbers, with less Python in each call.

        Args:
          arrays: by name, those of a call before; what is assigned there counts from the next call on.
        """
        pick = self._pick
        fed = self._fed
        jitted = self._jitted
        same = operator.is_

        def call(feeds: Mapping[str, Any]) -> Any:
            known, taken = self._known
            fed_in_order = tuple(map(feeds.__getitem__, fed))  # `_in_order`, without a call of Python
            results = jitted(taken, fed_in_order)
            if all(map(same, known, pick(arrays))):  # looked at while the device works; there is little to lose
                return results
            return jitted(self._take(arrays), fed_in_order)

        return call

    def lower(self, arrays: Mapping[str, Any], feeds: Mapping[str, Any], *rest: Any) -> jax.stages.Lowered:
        """What a call compiles, as `jax.jit` has it."""
        return self._jitted.lower(self._take(arrays), _in_order(feeds, self._fed), *rest)

    def _take(self, arrays: Mapping[str, Any]) -> Sequence[Any]:
        """The arrays as the compiled function takes them, which are kept for the next call."""
        now = self._pick(arrays)
        named = dict(zip(self._shapes, now, strict=True))
        alone = (self._turned(name, named[name]) for name in self._alone)
        taken = (*alone, *(_end_to_end([named[name] for name in names]) for names in self._joined))
        self._known = (now, taken)  # both at once, for other threads
        return taken

    def _named(self, taken: Sequence[Any]) -> dict[str, Any]:
        """The arrays of the program, by name, of what the compiled function is given."""
        count = len(self._alone)
        named = {n: self._turned_back(n, array) for n, array in zip(self._alone, taken[:count], strict=True)}
        for names, vector in zip(self._joined, taken[count:], strict=True):
            start = 0
            for name in names:
                stop = start + math.prod(self._shapes[name])
                named[name] = jax.lax.slice(vector, (start,), (stop,)).reshape(self._shapes[name])
                start = stop
        return named

    def _turned(self, name: str, array: Any) -> Any:
        """An array in the order in which it is computed with."""
        order = self._orders.get(name)
        if order is None:
            return array
        # By NumPy: for XLA each shape would be a program to compile.
        return jax.device_put(np.ascontiguousarray(order.applied(np.asarray(array))), array.sharding)

    def _turned_back(self, name: str, array: Any) -> Any:
        """An array as the program has it."""
        order = self._orders.get(name)
        return array if order is None else order.undone(array, self._shapes[name])


def _joined(arrays: Mapping[str, Any]) -> list[list[str]]:
    """Which of the arrays are laid end to end: small vectors and scalars, those of one dtype together.

    Example:
      >>> _joined({"w": np.zeros((2, 2)), "b": np.zeros(2), "n": np.int32(0), "c": np.zeros(3), "d": np.zeros(9999)})
      [['b', 'c']]
    """
    by_dtype: dict[Any, list[str]] = {}
    for name, array in arrays.items():
        if array.ndim <= 1 and array.size <= _SMALL:
            by_dtype.setdefault(array.dtype, []).append(name)
    return [names for names in by_dtype.values() if len(names) > 1]


def _end_to_end(arrays: Sequence[Any]) -> Any:
    """One vector of several, where the first of them lies."""
    return jax.device_put(np.concatenate([np.ravel(np.asarray(array)) for array in arrays]), arrays[0].sharding)


def _in_order(values: Mapping[str, Any], names: Sequence[str]) -> tuple[Any, ...]:
    return tuple(map(values.__getitem__, names))


def _picking(names: tuple[str, ...]) -> _Pick:
    """A function that takes what has these names out of a dict, as a tuple, with as little Python as possible."""
    if not names:
        return lambda values: ()
    if len(names) > 1:
        return operator.itemgetter(*names)
    (name,) = names
    return lambda values: (values[name],)
