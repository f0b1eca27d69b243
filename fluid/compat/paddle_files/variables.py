"""Variables: PaddlePaddle's binary format of a variable.

All numbers are little-endian. The parts are: `uint32` version, 0; `uint64` number of LoD levels, and for each level its
`uint64` size in bytes and its `uint64` offsets; `uint32` version of the tensor, 0; `int32` size of a message `Tensor`,
and the message; then the elements. A file holds one variable, or several variables one after another, without names.
"""

import io
import math
import os
import pathlib

import numpy as np

from fluid import errors
from fluid.compat.paddle_files import messages

_MOST_DIMENSIONS = 32  # the limit of NumPy 1, which NumPy 2 raises to 64
_PICKLE = 0x80


def read_file(path: pathlib.Path, names: list[str]) -> dict[str, np.ndarray]:
    """Read a file of variables.

    Args:
      path: the file.
      names: the names of the variables in the file, in their order.

    Returns:
      The arrays by name.

    Raises:
      ParameterFileError: the file does not exist, or is not a file of variables; the message names the position.
    """
    found = {}
    with open_file(path) as file:
        reader = _Reader(file, path)
        for number, name in enumerate(names):
            if not reader.left:
                raise errors.ParameterFileError(
                    f"{str(path)!r} ends behind {number} variables, expected {len(names)}: {', '.join(names[:20])}"
                )
            found[name] = reader.variable(name)
        if reader.left:
            raise errors.ParameterFileError(
                f"{str(path)!r} goes on for {reader.left} bytes behind {', '.join(names[-3:])}; expected "
                f"{len(names)} variables and no more; name all that were saved"
            )
    return found


def count_variables(path: pathlib.Path) -> int:
    """Count the variables in a file.

    Raises:
      ParameterFileError: the file does not exist, or is not a file of variables.
    """
    count = 0
    with open_file(path) as file:
        reader = _Reader(file, path)
        while reader.left:
            reader.variable(f"number {count}")
            count += 1
    return count


def open_file(path: pathlib.Path) -> io.BufferedReader:
    """Open a file for reading bytes.

    Raises:
      ParameterFileError: the file cannot be read.
    """
    try:
        return path.open("rb")
    except OSError as error:
        raise errors.ParameterFileError(f"cannot read {str(path)!r}: {error.strerror}") from error


class _Reader:
    """A reader of variables, which never reads beyond the end of the file.

    Attributes:
      left: the number of unread bytes.
    """

    def __init__(self, file: io.BufferedReader, path: pathlib.Path):
        self._file = file
        self._path = path
        self.left = os.fstat(file.fileno()).st_size

    def variable(self, name: str) -> np.ndarray:
        """Read the next variable; `name` appears in error messages only."""
        version = self._number(4, name, "a version")
        if version % 256 == _PICKLE:
            raise self._error(name, "what looks like a pickle, which save of the original writes; it is not read")
        if version != 0:
            raise self._error(name, f"version {version}, expected 0")
        for _ in range(self._number(8, name, "the number of LoD levels")):
            size = self._number(8, name, "the size of a LoD level")
            if size % 8:
                raise self._error(name, f"a LoD level of {size} bytes, which are no offsets of 8 bytes each")
            self._take(size, name, "LoD offsets")
        version = self._number(4, name, "a tensor's version")
        if version != 0:
            raise self._error(name, f"a tensor of version {version}, expected 0")
        dtype, shape = self._tensor(self._take(self._number(4, name, "the size of a message"), name, "a message"), name)
        count = math.prod(shape)
        self._check(count * dtype.itemsize, name, f"{dtype}{list(shape)}")
        elements = np.fromfile(self._file, dtype, count)
        self.left -= elements.nbytes
        if elements.size != count:  # another process has truncated the file since it was opened
            raise self._error(name, f"{elements.size} elements of {dtype}{list(shape)}")
        return elements.reshape(shape)

    def _tensor(self, data: bytes, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        try:
            tensor = messages.parse("Tensor", data)
        except ValueError as error:
            raise self._error(name, str(error)) from error
        dtype = messages.DTYPES.get(tensor.data_type) if tensor.HasField("data_type") else None
        shape = tuple(tensor.dims)
        if dtype is None:
            known = ", ".join(messages.DTYPES.values())
            raise self._error(name, f"data type {tensor.data_type}, which is none of {known}")
        if len(shape) > _MOST_DIMENSIONS or min(shape, default=1) < 1:
            raise self._error(name, f"sizes {list(shape)}")
        return np.dtype(dtype).newbyteorder("<"), shape

    def _number(self, size: int, name: str, what: str) -> int:
        return int.from_bytes(self._take(size, name, what), "little")

    def _take(self, size: int, name: str, what: str) -> bytes:
        self._check(size, name, what)
        self.left -= size
        return self._file.read(size)

    def _check(self, size: int, name: str, what: str) -> None:
        if size > self.left:
            raise self._error(name, f"{what} of {size} bytes, and {self.left} are left")

    def _error(self, name: str, found: str) -> errors.ParameterFileError:
        place = self._file.tell()
        return errors.ParameterFileError(
            f"{str(self._path)!r} is no parameter file of the original, or is damaged: for the variable {name!r}, "
            f"before byte {place}, found {found}"
        )
