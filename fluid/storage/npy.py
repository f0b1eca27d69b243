"""Arrays as `.npy`, with the dtypes that NumPy does not know, such as bfloat16, as integers of the same size."""

import math
from collections.abc import Sequence
from typing import BinaryIO

import jax.numpy as jnp
import numpy as np

from fluid import errors

_HEADER_LIMIT = 1 << 16


def write_npy(file: BinaryIO, name: str, array: np.ndarray) -> None:
    """Write an array in the `.npy` format.

    Args:
      file: open for writing.
      name: for messages.
      array: of numbers, of any shape.

    Raises:
      ArgumentTypeError: it holds no numbers.
    """
    np.lib.format.write_array(file, _storable(name, array), allow_pickle=False)


def size_limit(shape: Sequence[int], dtype: str) -> int:
    """More bytes than such an array takes in the `.npy` format.

    A forged header could ask for any amount of memory, so sizes are compared before anything is read.
    """
    return math.prod(shape) * jnp.dtype(dtype).itemsize + _HEADER_LIMIT


def read_npy(file: BinaryIO, name: str, shape: Sequence[int], dtype: str) -> np.ndarray:
    """Read what `write_npy` wrote.

    Args:
      file: open for reading.
      name: for messages.
      shape: that it is said to have.
      dtype: that it is said to have.

    Raises:
      ValueError: it has others, or is damaged.
    """
    array = np.lib.format.read_array(file, allow_pickle=False)
    wanted = jnp.dtype(dtype)
    if array.shape != tuple(shape) or array.dtype.itemsize != wanted.itemsize:
        raise ValueError(f"the entry {name!r} is {array.dtype}{list(array.shape)}, declared as {dtype}{list(shape)}")
    return array if array.dtype == wanted else array.view(wanted)


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "biufc":
        return array
    if array.dtype.kind == "V" and not array.dtype.hasobject:  # bfloat16 and its like
        return array.view(np.dtype(f"u{array.dtype.itemsize}"))
    raise errors.ArgumentTypeError(
        f"{name!r} has dtype {array.dtype}, and only arrays of numbers can be saved; convert it: x.astype(float)"
    )
