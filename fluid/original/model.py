"""Inference models saved by PaddlePaddle Fluid."""

import os
import pathlib
from typing import Any, NamedTuple

from fluid import errors
from fluid.core import Program
from fluid.original.parameters import MODEL, read_model, read_model_params
from fluid.original.program import SavedProgram
from fluid.paths import local_path
from fluid.storage import instead, recognized


class InferenceModel(NamedTuple):
    """The result of `load_inference_model`, with the fields in PaddlePaddle Fluid's order.

    Attributes:
      program: the program function, with the parameters in `program.params`; a Program for an exported model.
      feed_target_names: names of its feeds.
      fetch_targets: names of its outputs.
    """

    program: SavedProgram | Program
    feed_target_names: list[str]
    fetch_targets: list[str]


def is_inference_model(path: Any) -> bool:
    """Return whether `path` is a folder that PaddlePaddle's `save_inference_model` wrote."""
    return isinstance(path, str | os.PathLike) and (pathlib.Path(os.fspath(path)) / MODEL).is_file()


def load_inference_model(
    dirname: Any, session: Any = None, model_filename: str | None = None, params_filename: str | None = None
) -> InferenceModel:
    """Load an inference model of PaddlePaddle Fluid; with a Session, also into the Session. See `fluid.io`."""
    folder = local_path(dirname, errors.ParameterFileError)
    if recognized(folder) != "original parameters" and (found := instead(folder, "original")):
        raise errors.ParameterFileError(found)
    if folder.is_file():
        raise errors.ParameterFileError(
            f"{str(folder)!r} is a file of unknown kind, expected an exported model of fluid, or a folder that "
            f"save_inference_model of the original wrote"
        )
    if not folder.is_dir():
        raise errors.ParameterFileError(
            f"there is no folder {str(folder)!r}; expected one that save_inference_model of the original wrote"
        )
    desc = read_model(folder, model_filename)
    arrays = read_model_params(folder, desc, model_filename, params_filename)
    program = SavedProgram(desc, arrays, str(folder))
    if session is not None:
        added = session.add(program)
        for name in {**added.parameters, **added.states}:
            session.scope[name] = program.params[name]
    return InferenceModel(program, list(program.feeds), list(program.fetches))
