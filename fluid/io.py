"""Fluid's functions that save and load: parameters, all that a session holds, and models to be deployed."""

import os
import pathlib
from collections.abc import Sequence
from typing import Any

from fluid import errors
from fluid.core import Program
from fluid.storage import PathLike, Rename, check_match, is_safetensors, load_arrays, renamed, save_arrays

__all__ = [
    "check_match",
    "load_arrays",
    "load_params",
    "load_persistables",
    "save_arrays",
    "save_params",
    "save_persistables",
]

_PARAMS_FILE = "params.fluid"
_PERSISTABLES_FILE = "persistables.fluid"


def save_params(
    executor: Any,
    dirname: PathLike,
    main_program: Program | None = None,
    filename: str | None = None,
    names: Sequence[str] | None = None,
) -> None:
    """Write parameters and moving statistics of a Session or Trainer to a file.

    Args:
      executor: a Session or a Trainer.
      dirname: a folder; made when it is not there. Or a file, when it ends in ".safetensors".
      main_program: a Program of the Session: its parameters only. By default those of all its programs.
      filename: in the folder; `params.fluid` by default.
      names: some of them; all by default.

    Raises:
      UnknownNameError: there is no such parameter.
      ParameterFileError: the file cannot be written.

    Example:
      >>> import fluid
      >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> fluid.io.save_params(session, "saved", names=["fc_0.w_0"])
      >>> sorted(fluid.io.load_arrays("saved")[0])
      ['fc_0.w_0']
    """
    if main_program is not None:
        names = [n for n in (*main_program.parameters, *main_program.states) if names is None or n in names]
    _session(executor).save_params(_in_folder(dirname, filename, make=True), names)


def load_params(
    executor: Any,
    dirname: PathLike,
    main_program: Program | None = None,
    filename: str | None = None,
    rename: Rename = None,
) -> None:
    """Read what `save_params` wrote into a Session or Trainer; optimizer slots stay as they are.

    Args:
      executor: a Session or a Trainer.
      dirname: the folder, or a file that ends in ".safetensors".
      main_program: a Program of the Session: its parameters only. By default all that are in the file.
      filename: in the folder; `params.fluid` by default.
      rename: names in the file to names of the program, with globs and `{n}` for numbers, as in
        `{"layers.{n}.kernel": "fc_{n}.w_0"}`.

    Raises:
      ParameterFileError: there is no such file, or it holds something else.
      ParameterError: a name, shape or dtype differs; nothing is changed then.

    Example:
      >>> import fluid
      >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> fluid.io.save_params(session, "saved")
      >>> fluid.io.load_params(session, "saved")
    """
    scope = _session(executor).scope
    path = _in_folder(dirname, filename)
    found = renamed(load_arrays(path)[0], rename, path)
    if main_program is not None:
        program = {**main_program.parameters, **main_program.states}
        wanted = {n: (spec.shape, spec.dtype) for n, spec in program.items()}
    else:  # the file may hold some of them only
        wanted = {n: (spec.shape, spec.dtype) for n, spec in scope.specs.items() if n in found}
    check_match(found, wanted, path, allow_extra=main_program is not None)
    for name in wanted:
        scope[name] = found[name]


def save_persistables(
    executor: Any, dirname: PathLike, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Write everything that a Session or Trainer needs to continue: parameters, states, optimizer slots, counters.

    To save while training goes on, together with the position in the data, use `fluid.CheckpointConfig`.

    Args:
      executor: a Session or a Trainer.
      dirname: a folder; made when it is not there.
      main_program: accepted for programs written for Fluid; a Session is always saved as a whole.
      filename: in the folder; `persistables.fluid` by default.

    Raises:
      ParameterFileError: the file cannot be written.

    Example:
      >>> import fluid
      >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> fluid.io.save_persistables(session, "saved")
      >>> sorted(fluid.io.load_arrays("saved/persistables.fluid")[0])
      ['@root', '@step', 'fc_0.b_0', 'fc_0.w_0']
    """
    del main_program
    _session(executor).save(_in_folder(dirname, filename or _PERSISTABLES_FILE, make=True))


def load_persistables(
    executor: Any, dirname: PathLike, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Read what `save_persistables` wrote into a Session or Trainer of the same programs.

    Args:
      executor: a Session or a Trainer.
      dirname: the folder.
      main_program: accepted for programs written for Fluid; a Session is always loaded as a whole.
      filename: in the folder; `persistables.fluid` by default.

    Raises:
      ParameterFileError: there is no such file, or it holds something else.
      ParameterError: names, shapes or dtypes differ; nothing is changed then.

    Example:
      >>> import fluid
      >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> fluid.io.save_persistables(session, "saved")
      >>> fluid.io.load_persistables(session, "saved")
    """
    del main_program
    _session(executor).load(_in_folder(dirname, filename or _PERSISTABLES_FILE))


def _session(executor: Any) -> Any:
    session = getattr(executor, "session", executor)
    if not hasattr(session, "save_params"):
        raise errors.ArgumentTypeError(
            f"found {type(executor).__name__} {executor!r}, expected a Session or a Trainer: "
            f"fluid.io.save_params(trainer, 'saved')"
        )
    return session


def _in_folder(dirname: PathLike, filename: str | None, make: bool = False) -> pathlib.Path:
    folder = pathlib.Path(os.fspath(dirname))
    if filename is None and is_safetensors(folder):  # the name of a file
        return folder
    if make:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.ParameterFileError(
                f"cannot write to {str(folder)!r}: {error.strerror}; expected a folder that can be written"
            ) from error
    return folder / (filename or _PARAMS_FILE)
