"""Fluid's functions that save and load: parameters, all that a session holds, and models to be deployed."""

import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import Program
from fluid.name_hints import of_io as __getattr__  # noqa: F401
from fluid.naming import select
from fluid.paths import local_path
from fluid.storage import (
    PARAMS_FILE,
    PERSISTABLES_FILE,
    LoadReport,
    PathLike,
    Rename,
    check_match,
    file_in,
    is_safetensors,
    load_arrays,
    recognized,
    save_arrays,
    source_of,
)

__all__ = [
    "check_match",
    "load_arrays",
    "load_fluid_params",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "save_arrays",
    "save_inference_model",
    "save_params",
    "save_persistables",
]


def save_params(
    executor: Any,
    dirname: PathLike,
    main_program: Program | None = None,
    filename: str | None = None,
    names: str | Sequence[str] | None = None,
) -> None:
    """Write parameters and moving statistics of a Session or Trainer to a file.

    Args:
      executor: a Session or a Trainer.
      dirname: a folder; made when it is not there. Or a file, when it ends in ".safetensors".
      main_program: a Program of the Session: its parameters only. By default those of all its programs.
      filename: in the folder; `params.fluid` by default.
      names: names of some of them, and globs such as "backbone/*"; all by default.

    Raises:
      ArgumentError: `names` is empty, or the Program has none of them.
      UnknownNameError: there is no such parameter.
      ParameterFileError: the file cannot be written.

    Example:
      >>> import fluid
      >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> fluid.io.save_params(session, "saved", names=["fc_0.w_0"])
      >>> sorted(fluid.io.load_arrays("saved")[0])
      ['fc_0.w_0']
    """
    session = _session(executor)
    if main_program is not None:
        chosen = None if names is None else select(names, session.scope.specs, "save_params")
        names = [n for n in (*main_program.parameters, *main_program.states) if chosen is None or n in chosen]
    session.save_params(_in_folder(dirname, filename, make=True), names)


def load_params(
    executor: Any,
    dirname: PathLike,
    main_program: Program | None = None,
    filename: str | None = None,
    rename: Rename = None,
    strict: bool = True,
    skip: str | Sequence[str] = (),
) -> LoadReport:
    """Read what `save_params` wrote into a Session or Trainer; optimizer slots stay as they are.

    Args:
      executor: a Session or a Trainer.
      dirname: the folder, or a file that ends in ".safetensors".
      main_program: a Program of the Session: its parameters only. By default all that are in the file.
      filename: in the folder; `params.fluid` by default, or else `persistables.fluid`.
      rename: names in the file to names of the program, with globs and `{n}` for numbers, as in
        `{"layers.{n}.kernel": "fc_{n}.w_0"}`.
      strict: False accepts what is missing, and what no program has, see `Session.load_params`.
      skip: names and globs of what is not taken, whatever its shape is.

    Returns:
      A LoadReport: what was taken, what was left, and what is missing.

    Raises:
      ParameterFileError: there is no such file, or it holds something else.
      ParameterError: a name, shape or dtype differs, or nothing would be taken; nothing is changed then.
      UnknownNameError: something to skip is neither in the file nor in the program.

    Example:
      >>> import fluid
      >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> fluid.io.save_params(session, "saved")
      >>> fluid.io.load_params(session, "saved")
      2 arrays taken from saved/params.fluid
    """
    report: LoadReport = _session(executor)._take_params(
        source_of(_in_folder(dirname, filename)).renamed(rename),
        main_program,
        skip,
        allow_missing=main_program is None or not strict,  # the file may hold some of them only
        allow_extra=main_program is not None or not strict,
    )
    if not strict:
        report.tell(may_be_extra=main_program is not None)
    return report


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
    _session(executor).save(_in_folder(dirname, filename, PERSISTABLES_FILE, make=True))


def load_persistables(
    executor: Any,
    dirname: PathLike,
    main_program: Program | None = None,
    filename: str | None = None,
    rename: Rename = None,
    strict: bool = True,
    skip: str | Sequence[str] = (),
) -> None:
    """Read what `save_persistables` wrote into a Session or Trainer of the same programs.

    Args:
      executor: a Session or a Trainer.
      dirname: the folder.
      main_program: accepted for programs written for Fluid; a Session is always loaded as a whole.
      filename: in the folder; `persistables.fluid` by default, or else `params.fluid`, which leaves optimizer states
        as they are.
      rename: see `Session.load`.
      strict: see `Session.load`.
      skip: see `Session.load`.

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
    _session(executor).load(_in_folder(dirname, filename, PERSISTABLES_FILE), strict, rename, skip)


def save_inference_model(
    path: Any,
    program_func: Callable[[], Any] | Program | Mapping[str, Callable[[], Any] | Program],
    params: Mapping[str, Any] | Any,
    feed: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    fetch: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
    **options: Any,
) -> None:
    """Write a model to one file that runs without its function: `fluid.Inferencer(param_path=path)`.

    The file is a zip archive of the program as StableHLO, for any batch size and any number of steps, and of the
    parameters as plain arrays, with a checksum for each. The same program and parameters make the same bytes.

    Args:
      path: of the file; in a directory that exists already, the file `model.fluid` is written.
      program_func: the program function, which is exported as it is in test mode. A dict of them, by the names of entry
        points, makes one model of several functions that share parameters: `{"encode": f, "decode_step": g}`.
      params: arrays by name, such as `trainer.params`, or a file of `trainer.save_params`. There may be more of them.
      feed: names of what will be fed: feeds, and named values that are replaced. By default the feeds that the results
        depend on. With several entry points, a dict of such lists.
      fetch: names of what will be returned, see `Session.run`; by default the outputs of the program. With several
        entry points, a dict.
      options: `platforms=("cpu", "cuda", "tpu")`, where it shall run.
        `precision="bfloat16"` computes in it, see `fluid.Program`, and stores the parameters in it.
        `batch_sizes=(1, 2, 4, 8, 16, 32)` and `buckets=(4, 8, 16, 32, 64)`, a list or a dict of lists by feed: the
        sizes to export a program for that looks at sizes as numbers, and cannot leave them open.
        `rename=`, see `load_params`.

    Raises:
      ArtifactError: the program cannot be exported, or the file cannot be written.
      ParameterFileError, ParameterError: parameters are missing or misshapen.
      UnknownNameError, FeedError: there are no such feeds or values, or the results depend on other feeds.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
      >>> params = {"fc_0.w_0": np.ones((2, 1), "float32"), "fc_0.b_0": np.zeros(1, "float32")}
      >>> fluid.io.save_inference_model("line.fluid", program, params)
      >>> fluid.Inferencer(param_path="line.fluid").infer({"x": [[1, 2], [3, 4]]})[0].tolist()
      [[3.0], [7.0]]
    """
    from fluid import artifact  # not everybody needs it

    artifact.save(path, program_func, params, feed, fetch, **options)


def load_inference_model(
    dirname: Any, executor: Any = None, model_filename: str | None = None, params_filename: str | None = None
) -> Any:
    """Load a model that `save_inference_model` wrote: here, or in PaddlePaddle Fluid, versions 0.14 to 1.8.

    Args:
      dirname: the file of an exported model, or the folder.
      executor: a Session or Trainer to add the program and its parameters to; None for neither.
      model_filename: the name of the program in a folder of PaddlePaddle; `__model__` by default.
      params_filename: the name of the file with all parameters in such a folder. By default each parameter has a file
        of its own, or one file beside the program holds them all.

    Returns:
      `(program, feed_target_names, fetch_targets)`. Session and Inferencer run the program, which brings its parameters
      along. The names of feeds and outputs are lists of strings; outputs without names are left out. A program of
      PaddlePaddle is a program function: `program.params` holds its arrays by name, and `program(fetch=["fc_0.tmp_1"])`
      returns other values than its outputs.

    Raises:
      ParameterFileError: there is no such file or folder, or a file in it is damaged or of another program.
      ArtifactError: the exported model is damaged, of a newer version, or made for other devices.
      ProgramError: the program has ops that fluid does not know; all of them are listed.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return {"sum": fluid.layers.reduce_sum(fluid.layers.data("x", shape=[2]), dim=1)}
      >>> fluid.io.save_inference_model("sum.fluid", program, params={})
      >>> program, feeds, targets = fluid.io.load_inference_model("sum.fluid")
      >>> feeds, targets
      (['x'], ['sum'])
      >>> fluid.Session(program).run(feed={"x": [[1.0, 2.0]]}, fetch=targets)[0].tolist()
      [3.0]
    """
    from fluid import original

    session = None if executor is None else _session(executor)
    path = local_path(dirname, errors.ParameterFileError)
    file = path / (model_filename or "model.fluid") if path.is_dir() else path
    if recognized(file) == "exported":
        from fluid import artifact

        program = artifact.load(file).program()
        if session is not None:
            session.add(program)
        return original.InferenceModel(program, list(program.feeds), list(program.output_names or ()))
    return original.load_inference_model(path, session, model_filename, params_filename)


def load_fluid_params(path: Any, names: Iterable[str] | None = None, slots: bool = False) -> dict[str, np.ndarray]:
    """Read parameters that the original saved: `save_params`, `save_persistables` or `save_inference_model`.

    They go where arrays by name go: `session.load_params(arrays)`, `fluid.Inferencer(infer_func, params=arrays)`.

    Args:
      path: a folder with a file for each variable, or one file.
      names: of the variables. In a folder: which to read, all by default. A file that holds several does not hold their
        names, so it needs those of all that were saved, in any order.
      slots: whether to return what optimizers keep too, such as `fc_0.w_0_velocity_0` and `learning_rate_0`.

    Returns:
      Arrays by name, in the dtypes of the files.

    Raises:
      ParameterFileError: a file is missing or damaged, or holds other variables.

    Example:
      >>> import fluid
      >>> fluid.io.load_fluid_params("old/params")
      Traceback (most recent call last):
      fluid.errors.ParameterFileError: cannot read 'old/params': No such file or directory
    """
    from fluid import original

    return original.load_params(path, names, slots)


def _session(executor: Any) -> Any:
    session = getattr(executor, "session", executor)
    if not hasattr(session, "save_params"):
        raise errors.ArgumentTypeError(
            f"found {type(executor).__name__} {executor!r}, expected a Session or a Trainer: "
            f"fluid.io.save_params(trainer, 'saved')"
        )
    return session


def _in_folder(dirname: PathLike, filename: str | None, default: str = PARAMS_FILE, make: bool = False) -> pathlib.Path:
    folder = local_path(dirname, errors.ParameterFileError)
    if filename is None and default == PARAMS_FILE and is_safetensors(folder):  # the name of a file
        return folder
    if make:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.ParameterFileError(
                f"cannot write to {str(folder)!r}: {error.strerror}; expected a folder that can be written"
            ) from error
    if filename is None and not make:
        return file_in(folder, default)
    return folder / (filename or default)
