"""Import strings: find the object that an argument, for example `net.py:train_program`, names."""

import functools
import importlib
import importlib.util
import pathlib
import sys
from types import ModuleType
from typing import Any

from fluid import errors


def find(where: str) -> Any:
    """Return the object that an import string names.

    Args:
      where: `FILE.py:NAME` or `MODULE:NAME`; the name may have dots. The file may import modules of its folder.

    Raises:
      ArgumentError: the file, the module or the name does not exist. Exceptions of the module itself propagate.
    """
    source, _, name = where.rpartition(":")
    if not source or not name:
        raise errors.ArgumentError(f"found {where!r}, expected a file and a function of it: net.py:train_program")
    module = _from_file(name, pathlib.Path(source)) if source.endswith(".py") else _from_package(name, source)
    try:
        return functools.reduce(getattr, name.split("."), module)
    except AttributeError as error:
        known = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        raise errors.ArgumentError(f"there is no {name!r} in {source!r}. {errors.nearest(name, known)}") from error


def _from_package(name: str, source: str) -> ModuleType:
    try:
        return importlib.import_module(source)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{source}.".startswith(f"{error.name}."):
            raise  # the module exists, and an import inside the module fails
        raise errors.ArgumentError(
            f"there is no {name!r} in {source!r}: there is no such module; a file is named with its ending, as in "
            f"net.py:{name}"
        ) from error


def _from_file(name: str, path: pathlib.Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise errors.ArgumentError(f"there is no {name!r} in {str(path)!r}: there is no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses look up their module in sys.modules
    sys.path.insert(0, str(path.parent.resolve()))
    spec.loader.exec_module(module)
    return module
