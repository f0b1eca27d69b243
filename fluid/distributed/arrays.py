"""Arrays that are divided among processes: gather them on the host of each process."""

from typing import Any

import jax
import numpy as np


def is_here(array: Any) -> bool:
    """Return True if this process can read the whole array without the other processes.

    Example:
      >>> is_here(np.ones(2)), is_here(jax.numpy.ones(2))
      (True, True)
    """
    return not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated


def whole(tree: Any) -> Any:
    """Return a tree in which each array that is divided among processes becomes a whole NumPy array.

    All processes must call this function if an array is divided; they wait for each other.

    Args:
      tree: a tree of arrays.

    Example:
      >>> whole({"x": np.ones(2)})
      {'x': array([1., 1.])}
    """
    return jax.tree.map(lambda array: array if is_here(array) else _gathered(array), tree)


def _gathered(array: jax.Array) -> np.ndarray:
    from jax.experimental import multihost_utils  # loaded on use: a single process never needs it

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
