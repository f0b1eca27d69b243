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


def read_npy(file: BinaryIO, name: str, shape: Sequence[int], dtype: str, size: int) -> np.ndarray:
    """Read what `write_npy` wrote. Memory is taken after everything that the file says of itself has been compared.

    Args:
      file: open for reading.
      name: for messages.
      shape: that it is said to have.
      dtype: that it is said to have.
      size: bytes in the file.

    Raises:
      ValueError: it has others, or is damaged.
    """
    wanted = jnp.dtype(dtype)
    version = np.lib.format.read_magic(file)
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    found, by_columns, stored = read_header(file)
    if found != tuple(shape) or stored != _stored(wanted):
        raise ValueError(f"the entry {name!r} is {stored}{list(found)}, declared as {dtype}{list(shape)}")
    count = math.prod(found)
    if size < count * stored.itemsize:
        raise ValueError(f"the entry {name!r} has {size} bytes, and {dtype}{list(shape)} takes more")
    array = np.empty(count, stored)
    if array.nbytes and file.readinto(array.data.cast("B")) != array.nbytes:  # type: ignore[attr-defined]
        raise ValueError(f"the entry {name!r} ends early")
    if file.read(1):
        raise ValueError(f"the entry {name!r} goes on behind its last number")
    array = array.reshape(found[::-1]).T if by_columns else array.reshape(found)
    return array if stored == wanted else array.view(wanted)


def _stored(dtype: np.dtype) -> np.dtype:
    """Return the dtype that the numbers of an array have in a file."""
    return dtype if dtype.kind in "biufc" else np.dtype(f"u{dtype.itemsize}")


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "biufc":
        return array
    if array.dtype.kind == "V" and not array.dtype.hasobject:  # bfloat16 and its like
        return array.view(np.dtype(f"u{array.dtype.itemsize}"))
    raise errors.ArgumentTypeError(
        f"{name!r} has dtype {array.dtype}, and only arrays of numbers can be saved; convert it: x.astype(float)"
    )
