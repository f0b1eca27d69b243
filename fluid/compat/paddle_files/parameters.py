"""Parameters that PaddlePaddle Fluid saved: a folder with a file for each variable, or one combined file.

A file holds one or several variables without names, one after another. All numbers are little-endian. A variable
consists of: `uint32` version, which is 0; `uint64` number of LoD levels; for each level, its `uint64` size in bytes and
its `uint64` offsets; `uint32` version of the tensor, which is 0; `int32` size of a message `Tensor`; the message; the
elements.
"""

import io
import math
import os
import pathlib
import re
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from fluid import errors
from fluid._util.paths import local_path
from fluid.compat.paddle_files import program_desc
from fluid.compat.paddle_files.program_desc import ProgramDesc, read_program

_MOST_DIMENSIONS = 32  # NumPy 1 allows at most 32 dimensions, NumPy 2 allows 64.
_PICKLE = 0x80


def read_file(path: pathlib.Path, names: list[str]) -> dict[str, np.ndarray]:
    """Read a file of variables that PaddlePaddle saved.

    Raises:
      ParameterFileError: the file does not exist, or is not a file of variables; the message gives the byte position.
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
    """Return the number of variables in a file that PaddlePaddle saved.

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
    """Open a file for reading in binary mode.

    Raises:
      ParameterFileError: the file cannot be read.
    """
    try:
        return path.open("rb")
    except OSError as error:
        raise errors.ParameterFileError(f"cannot read {str(path)!r}: {error.strerror}") from error


class _Reader:
    """A reader of the variables in a file, which checks each size before it reads.

    Attributes:
      left: the number of unread bytes in the file.
    """

    def __init__(self, file: io.BufferedReader, path: pathlib.Path):
        self._file = file
        self._path = path
        self.left = os.fstat(file.fileno()).st_size

    def variable(self, name: str) -> np.ndarray:
        """Read the next variable of the file; only error messages use `name`."""
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
        # Another process may have truncated the file after its size was checked.
        if elements.size != count:
            raise self._error(name, f"{elements.size} elements of {dtype}{list(shape)}")
        return elements.reshape(shape)

    def _tensor(self, data: bytes, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        try:
            tensor = program_desc.parse("Tensor", data)
        except ValueError as error:
            raise self._error(name, str(error)) from error
        dtype = program_desc.DTYPES.get(tensor.data_type) if tensor.HasField("data_type") else None
        shape = tuple(tensor.dims)
        if dtype is None:
            known = ", ".join(program_desc.DTYPES.values())
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


MODEL = "__model__"

# Kinds of optimizer state. For a parameter P, PaddlePaddle names the state `P_KIND_N`, or `P_OPTIMIZER_KIND_N`.
_KINDS = (
    "velocity moment moment1 moment2 inf_norm momentum mean_square mean_grad squared linear _avg_squared_grad "
    "_avg_squared_update beta1_pow_acc beta2_pow_acc _dgc_u_ _dgc_v_ sum_1 sum_2 sum_3 num_accumulates "
    "old_num_accumulates num_updates"
).split()
_TAIL = re.compile(rf"_(?:.+_)?(?:{'|'.join(_KINDS)})_\d+")
_OWN = re.compile(r"learning_rate_\d+|beta[12]_pow_acc_\d+|@LR_DECAY_COUNTER@")


def load_params(path: Any, names: Iterable[str] | None = None, slots: bool = False) -> dict[str, np.ndarray]:
    """Read parameters that PaddlePaddle Fluid saved, as arrays by name; see `fluid.io.load_fluid_params`."""
    place = local_path(path, errors.ParameterFileError)
    if place.is_dir():
        found = _from_folder(place, names, slots)
    else:
        found = read_file(place, _names_in(place, names))
    kept = _without_slots(found) if not slots else list(found)
    return {name: found[name] for name in kept}


def read_model(folder: pathlib.Path, filename: str | None) -> ProgramDesc:
    """Read the program of a saved inference model.

    Raises:
      ParameterFileError: the file does not exist, or does not hold a program.
    """
    path = folder / (filename or MODEL)
    if not path.is_file():
        raise errors.ParameterFileError(
            f"no program at {str(path)!r}; expected what save_inference_model of the original wrote, with "
            f"model_filename= where it has another name than {MODEL}"
        )
    with open_file(path) as file:
        data = file.read()
    try:
        return read_program(data)
    except ValueError as error:
        raise errors.ParameterFileError(
            f"{str(path)!r} is no program that save_inference_model of the original wrote, or is damaged: {error}"
        ) from error


def read_model_params(
    folder: pathlib.Path, program: ProgramDesc, model_filename: str | None = None, params_filename: str | None = None
) -> dict[str, np.ndarray]:
    """Read the parameters of a saved inference model.

    Args:
      params_filename: the combined file of all parameters. By default each parameter has its own file, or the only file
        beside the program is the combined file.

    Raises:
      ParameterFileError: a file does not exist, is damaged or belongs to another program.
    """
    names = program.parameters()
    _check_names(folder, names)
    others = {path.name for path in folder.iterdir()} - {model_filename or MODEL}
    missing = [name for name in names if not (folder / name).is_file()]
    if params_filename is None and missing and len(others) == 1:
        (params_filename,) = others
    if params_filename is not None:
        found = read_file(folder / params_filename, names)
    elif missing:
        raise errors.ParameterFileError(
            f"{str(folder)!r} lacks {len(missing)} of the {len(names)} parameters of its program: "
            f"{', '.join(missing[:20])}; where one file holds all of them, say which: params_filename="
        )
    else:
        found = {name: read_file(folder / name, [name])[name] for name in names}
    _check(folder, program, found)
    return found


def _from_folder(folder: pathlib.Path, names: Iterable[str] | None, slots: bool) -> dict[str, np.ndarray]:
    if (folder / MODEL).is_file():
        found = read_model_params(folder, read_model(folder, None))
        return found if names is None else {name: found[name] for name in _known(folder, names, found)}
    files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    if not files:
        which = f": {_some(list(names))}" if names is not None else ""
        raise errors.ParameterFileError(f"there are no files in {str(folder)!r}; expected one for each variable{which}")
    if names is not None:
        wanted = _known(folder, names, files)
    else:
        wanted = list(files) if slots else _without_slots(files)
    return {name: read_file(files[name], [name])[name] for name in wanted}


def _names_in(path: pathlib.Path, names: Iterable[str] | None) -> list[str]:
    """Return the names of the variables in a combined file in file order; PaddlePaddle sorts them by name."""
    if names is not None:
        return sorted(names)
    if (count := count_variables(path)) != 1:
        raise errors.ParameterFileError(
            f"{str(path)!r} holds {count} variables without their names; say which: "
            f"load_fluid_params({str(path)!r}, names=[...])"
        )
    return [path.name]


def _known(folder: pathlib.Path, names: Iterable[str], there: Collection[str]) -> list[str]:
    wanted = list(names)
    missing = [name for name in wanted if name not in there]
    if len(missing) == 1:
        raise errors.ParameterFileError(
            f"{str(folder)!r} has no variable {missing[0]!r}. {errors.nearest(missing[0], there)}"
        )
    if missing:
        raise errors.ParameterFileError(
            f"{str(folder)!r} lacks {len(missing)} of {len(wanted)} variables: {_some(missing)}; it has "
            f"{_some(there)}; to load a part, say which: names=[...], or in fluid.static "
            f"predicate=lambda v: os.path.exists(os.path.join({str(folder)!r}, v.name))"
        )
    return wanted


def _some(names: Collection[str]) -> str:
    return ", ".join([*list(names)[:20], *(["..."] if len(names) > 20 else [])])


def _without_slots(names: Collection[str]) -> list[str]:
    return [name for name in names if not _OWN.fullmatch(name) and not _is_slot(name, names)]


def _is_slot(name: str, names: Collection[str]) -> bool:
    return any(_TAIL.fullmatch(name, at) for at, sign in enumerate(name) if sign == "_" and name[:at] in names)


def _check_names(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Raise a ParameterFileError if the name of a parameter is a path that leads outside `folder`."""
    for name in names:
        path = pathlib.PurePath(name)
        if not name or path.is_absolute() or ".." in path.parts:
            raise errors.ParameterFileError(
                f"{str(folder)!r}: a parameter is called {name!r}, which is no file in there"
            )


def _check(folder: pathlib.Path, program: ProgramDesc, found: dict[str, np.ndarray]) -> None:
    for name, array in found.items():
        variable = program.variables[name]
        if array.shape != variable.shape or str(array.dtype) != variable.dtype:
            raise errors.ParameterFileError(
                f"{str(folder)!r}: the file of {name!r} holds {array.dtype}{list(array.shape)}, its program declares "
                f"{variable.dtype}{list(variable.shape)}; expected parameters and program of one model"
            )
