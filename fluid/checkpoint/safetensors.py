"""Named arrays in the safetensors format, read and written by the library `safetensors`."""

import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from fluid import errors
from fluid.checkpoint.atomic import replaced

_SUFFIX = ".safetensors"


def is_safetensors(path: pathlib.Path) -> bool:
    """Return whether a file name ends in ".safetensors".

    Example:
      >>> is_safetensors(pathlib.Path("digits.safetensors")), is_safetensors(pathlib.Path("digits.params"))
      (True, False)
    """
    return path.suffix == _SUFFIX


def save(path: pathlib.Path, arrays: Mapping[str, np.ndarray], notes: dict[str, str]) -> None:
    """Write arrays to a file in the safetensors format, atomically.

    Raises:
      ArgumentTypeError: the format does not support the dtype of an array.
      ParameterFileError: the file cannot be written.
    """
    library = _library(path)
    # Arrays are made contiguous, because the library writes the memory of an array as is and ignores its strides.
    packed = {name: np.require(array, requirements=["C"]) for name, array in arrays.items()}
    with replaced(path) as (temporary, _):
        try:
            library.numpy.save_file(packed, temporary, metadata=notes)
        except library.SafetensorError as error:
            dtypes = ", ".join(sorted({str(array.dtype) for array in packed.values()}))
            raise errors.ArgumentTypeError(
                f"cannot write {str(path)!r}, whose arrays are {dtypes}: {error}; a path that does not end in "
                f"{_SUFFIX} is written in fluid's own format"
            ) from error


def load(path: pathlib.Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read the arrays of a .safetensors file by name, and the metadata of the file.

    Raises:
      ParameterFileError: the file is damaged, has another format, or holds a dtype that NumPy does not support.
    """
    library = _library(path)
    try:
        with library.safe_open(path, framework="np") as file:
            arrays = {name: np.asarray(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
            return arrays, dict(file.metadata() or {})
    except (library.SafetensorError, OSError, ValueError, AttributeError) as error:
        raise errors.ParameterFileError(
            f"{str(path)!r} is no safetensors file, or is damaged: {error}; a file in fluid's own format does not end "
            f"in {_SUFFIX}"
        ) from error


def _library(path: pathlib.Path) -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ImportError as error:
        raise errors.ParameterFileError(
            f"{str(path)!r} needs the safetensors library: pip install 'fluid-jax[safetensors]'"
        ) from error
    return safetensors
