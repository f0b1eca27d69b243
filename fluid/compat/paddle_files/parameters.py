"""Parameters that PaddlePaddle Fluid saved: a folder with a file for each variable, or one combined file."""

import pathlib
import re
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from fluid import errors
from fluid._util.paths import local_path
from fluid.compat.paddle_files.description import ProgramDesc, read_program
from fluid.compat.paddle_files.variables import count_variables, open_file, read_file

MODEL = "__model__"

# PaddlePaddle names the optimizer state of a parameter P as P_KIND_N; the name of the optimizer may stand before KIND.
_KINDS = (
    "velocity moment moment1 moment2 inf_norm momentum mean_square mean_grad squared linear _avg_squared_grad "
    "_avg_squared_update beta1_pow_acc beta2_pow_acc _dgc_u_ _dgc_v_ sum_1 sum_2 sum_3 num_accumulates "
    "old_num_accumulates num_updates"
).split()
_TAIL = re.compile(rf"_(?:.+_)?(?:{'|'.join(_KINDS)})_\d+")
_OWN = re.compile(r"learning_rate_\d+|beta[12]_pow_acc_\d+|@LR_DECAY_COUNTER@")


def load_params(path: Any, names: Iterable[str] | None = None, slots: bool = False) -> dict[str, np.ndarray]:
    """Read parameters that PaddlePaddle Fluid saved; see `fluid.io.load_fluid_params`."""
    place = local_path(path, errors.ParameterFileError)
    if place.is_dir():
        found = _from_folder(place, names, slots)
    else:
        found = read_file(place, _names_in(place, names))
    kept = _without_slots(found) if not slots else list(found)
    return {name: found[name] for name in kept}


def read_model(folder: pathlib.Path, filename: str | None) -> ProgramDesc:
    """Read the program of a saved inference model.

    Args:
      folder: the folder that PaddlePaddle's `save_inference_model` wrote.
      filename: the file of the program in the folder; `__model__` by default.

    Raises:
      ParameterFileError: the file does not exist, or is not a program.
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
      folder: the folder of the model.
      program: the program of the model.
      model_filename: the file of the program, which holds no parameters.
      params_filename: the combined file. By default, each parameter has a file; a single file beside the program is
        read as the combined file.

    Returns:
      Arrays by name, with the shapes and dtypes that the program declares.

    Raises:
      ParameterFileError: files are absent, damaged or belong to another program.
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
    """Return the names of the variables in a combined file, in file order; the file itself holds no names."""
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
    """Return the names without optimizer state, learning rates and step counters."""
    return [name for name in names if not _OWN.fullmatch(name) and not _is_slot(name, names)]


def _is_slot(name: str, names: Collection[str]) -> bool:
    return any(_TAIL.fullmatch(name, at) for at, sign in enumerate(name) if sign == "_" and name[:at] in names)


def _check_names(folder: pathlib.Path, names: Iterable[str]) -> None:
    """Raise a ParameterFileError for the name of a parameter that is a path outside the folder."""
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
