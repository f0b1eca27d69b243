"""NPY format: arrays as `.npy` entries of zip archives; dtypes unknown to NumPy, such as bfloat16, become integers."""

import math
import zipfile
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
      name: the name of the array, for messages.
      array: numbers, of any shape.

    Raises:
      ArgumentTypeError: the array does not hold numbers.
    """
    np.lib.format.write_array(file, _storable(name, array), allow_pickle=False)


def size_limit(shape: Sequence[int], dtype: str) -> int:
    """Return an upper bound of the size of an array in the `.npy` format, in bytes.

    A forged header could claim any amount of memory, so the reader compares sizes before it allocates memory.
    """
    return math.prod(shape) * jnp.dtype(dtype).itemsize + _HEADER_LIMIT


def read_npy(file: BinaryIO, name: str, shape: Sequence[int], dtype: str, size: int) -> np.ndarray:
    """Read an array that `write_npy` wrote; allocate memory only after all checks of the header.

    Args:
      file: open for reading.
      name: the name of the array, for messages.
      shape: the declared shape.
      dtype: the declared dtype.
      size: the size of the entry, in bytes.

    Raises:
      ValueError: shape or dtype differ from the declaration, or the entry is damaged.
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
    """Return the dtype in which a file stores an array of dtype `dtype`."""
    return dtype if dtype.kind in "biufc" else np.dtype(f"u{dtype.itemsize}")


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "biufc":
        return array
    if array.dtype.kind == "V" and not array.dtype.hasobject:  # bfloat16 and similar dtypes
        return array.view(np.dtype(f"u{array.dtype.itemsize}"))
    raise errors.ArgumentTypeError(
        f"{name!r} has dtype {array.dtype}, and only arrays of numbers can be saved; convert it: x.astype(float)"
    )


_EPOCH, _UNIX, _MODE = (1980, 1, 1, 0, 0, 0), 3, 0o644 << 16


def zip_entry(name: str) -> zipfile.ZipInfo:
    """Return an entry for `writestr` and `open` of an archive, with a fixed date and operating system.

    Equal contents therefore produce equal archives.

    Args:
      name: the name of the entry.

    Example:
      >>> zip_entry("manifest.json").date_time
      (1980, 1, 1, 0, 0, 0)
    """
    info = zipfile.ZipInfo(name, _EPOCH)
    info.create_system, info.external_attr = _UNIX, _MODE
    return info
