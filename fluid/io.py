"""Save and load named arrays: one file, arrays and JSON only; and Fluid's functions that do so with a Session.

The file is a zip archive of `.npy` entries, one for each name, and a `manifest.json` with shapes and dtypes. `np.load`
reads it too (a dtype that NumPy lacks, such as bfloat16, appears there as raw integers).
"""

import contextlib
import json
import math
import os
import pathlib
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import Program

PathLike = str | os.PathLike[str]
"""The path of a file or a folder."""

FORMAT = "fluid-arrays"
VERSION = 1
_MANIFEST = "manifest.json"
_DIRECTORY_FILE = "params.fluid"
_PERSISTABLES_FILE = "persistables.fluid"
_HEADER_LIMIT = 1 << 16
_SHOWN = 20


def save_arrays(path: PathLike, arrays: Mapping[str, Any], kind: str = "parameters") -> None:
    """Write arrays to one file, atomically: who reads the path meanwhile gets the old file or the new one, whole.

    Args:
      path: of the file; in a directory that exists already, the file `params.fluid` is written.
      arrays: by name.
      kind: noted in the file and returned by `load_arrays`.

    Raises:
      ParameterFileError: the folder is not there or cannot be written.

    Example:
      >>> import tempfile, os
      >>> path = os.path.join(tempfile.mkdtemp(), "digits.params")
      >>> save_arrays(path, {"w": np.ones(3, "float32")})
      >>> load_arrays(path)[0]["w"].tolist()
      [1.0, 1.0, 1.0]
    """
    target = _file(path)
    host = {name: np.asarray(value) for name, value in arrays.items()}
    listing = {n: {"shape": list(a.shape), "dtype": str(a.dtype)} for n, a in host.items()}
    manifest = {"format": FORMAT, "version": VERSION, "kind": kind, "arrays": listing}
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    except OSError as error:
        raise errors.ParameterFileError(
            f"cannot write {str(target)!r}: {error.strerror}; its folder must exist and be writable"
        ) from error
    try:
        with os.fdopen(handle, "wb") as raw:
            with zipfile.ZipFile(raw, "w") as archive:
                archive.writestr(_MANIFEST, json.dumps(manifest, indent=1))
                for name, array in host.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        np.lib.format.write_array(entry, _storable(name, array), allow_pickle=False)
            raw.flush()
            os.fsync(raw.fileno())
        os.replace(temporary, target)
        _sync_folder(target.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def load_arrays(path: PathLike) -> tuple[dict[str, np.ndarray], str]:
    """Read what `save_arrays` wrote.

    Args:
      path: of the file, or of a directory that holds `params.fluid`.

    Returns:
      The arrays by name, and the kind.

    Raises:
      ParameterFileError: there is no such file, it is damaged, or it holds something else.

    Example:
      >>> load_arrays("nowhere")
      Traceback (most recent call last):
      fluid.errors.ParameterFileError: no parameter file at 'nowhere'; write one with trainer.save_params('nowhere')
    """
    target = _file(path)
    if not target.is_file():
        raise errors.ParameterFileError(
            f"no parameter file at {str(target)!r}; write one with trainer.save_params({str(path)!r})"
        )
    try:
        with zipfile.ZipFile(target) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            if manifest["format"] != FORMAT or manifest["version"] > VERSION:
                raise ValueError(f"format {manifest['format']!r}, version {manifest['version']}")
            arrays = {name: _read(archive, name, entry) for name, entry in manifest["arrays"].items()}
            return arrays, str(manifest["kind"])
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, EOFError, OSError, NotImplementedError) as error:
        raise errors.ParameterFileError(
            f"{str(target)!r} is no parameter file of fluid, or is damaged: {error}; "
            f"expected a file that trainer.save_params wrote (format {FORMAT}, version {VERSION})"
        ) from error


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
      dirname: a folder; made when it is not there.
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
    executor: Any, dirname: PathLike, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Read what `save_params` wrote into a Session or Trainer; optimizer slots stay as they are.

    Args:
      executor: a Session or a Trainer.
      dirname: the folder.
      main_program: a Program of the Session: its parameters only. By default all that are in the file.
      filename: in the folder; `params.fluid` by default.

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
    found, _ = load_arrays(path)
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


def check_match(
    found: Mapping[str, Any],
    wanted: Mapping[str, tuple[tuple[int, ...], str]],
    where: Any,
    allow_extra: bool = False,
) -> None:
    """Compare names, shapes and dtypes of arrays with those of a program.

    Args:
      found: arrays by name.
      wanted: shape and dtype by name.
      where: what the arrays came from, for the message.
      allow_extra: accept names that are not wanted.

    Raises:
      ParameterError: they differ; at most twenty differences are listed, with the nearest name for each missing one.

    Example:
      >>> check_match({"w": np.ones(3, "float32")}, {"w": ((3,), "float32")}, "here")
    """
    missing = [n for n in wanted if n not in found]
    extra = [n for n in found if n not in wanted]
    problems = [f"missing: {n} {wanted[n][1]}{list(wanted[n][0])}{_nearest(n, extra)}" for n in missing]
    for name in wanted:
        if name in found:
            shape, dtype = wanted[name]
            value = found[name]
            if tuple(value.shape) != tuple(shape) or str(value.dtype) != str(dtype):
                problems.append(f"{name}: found {value.dtype}{list(value.shape)}, expected {dtype}{list(shape)}")
    if not allow_extra:
        problems += [f"extra: {n} {found[n].dtype}{list(found[n].shape)}" for n in extra]
    if problems:
        more = f"\n  ... and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise errors.ParameterError(
            f"{where} does not match the program:\n  " + "\n  ".join(problems[:_SHOWN]) + more + "\n"
            "parameters and program must come from the same layers and names; check that the program function is the "
            "one that was trained"
        )


def _file(path: PathLike) -> pathlib.Path:
    target = pathlib.Path(os.fspath(path))
    return target / _DIRECTORY_FILE if target.is_dir() else target


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
    if make:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.ParameterFileError(
                f"cannot write to {str(folder)!r}: {error.strerror}; expected a folder that can be written"
            ) from error
    return folder / (filename or _DIRECTORY_FILE)


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "biufc":
        return array
    if array.dtype.kind == "V" and not array.dtype.hasobject:  # such as bfloat16, which the npy format does not know
        return array.view(np.dtype(f"u{array.dtype.itemsize}"))
    raise errors.ArgumentTypeError(
        f"{name!r} has dtype {array.dtype}, and only arrays of numbers can be saved; convert it: x.astype(float)"
    )


def _read(archive: zipfile.ZipFile, name: str, entry: Mapping[str, Any]) -> np.ndarray:
    shape = tuple(int(size) for size in entry["shape"])
    dtype = jnp.dtype(entry["dtype"])
    info = archive.getinfo(f"{name}.npy")
    # A forged header could ask for any amount of memory, so sizes are compared before anything is read.
    if info.compress_type != zipfile.ZIP_STORED or info.file_size > math.prod(shape) * dtype.itemsize + _HEADER_LIMIT:
        raise ValueError(f"the entry {name!r} is larger than its declared shape {list(shape)}")
    with archive.open(info) as raw:
        array = np.lib.format.read_array(raw, allow_pickle=False)
    if array.shape != shape or array.dtype.itemsize != dtype.itemsize:
        raise ValueError(f"the entry {name!r} is {array.dtype}{list(array.shape)}, declared as {entry}")
    return array if array.dtype == dtype else array.view(dtype)


def _nearest(name: str, candidates: list[str]) -> str:
    hint = errors.nearest(name, candidates) if candidates else ""
    return f"  ({hint})" if hint.startswith("Did") else ""


def _sync_folder(folder: pathlib.Path) -> None:
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
