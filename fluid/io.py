"""IO: Fluid's functions to save and load parameters, complete Sessions, and models for inference."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid._util.globs import select
from fluid._util.known_names import getattr_of
from fluid._util.paths import local_path
from fluid.checkpoint import (
    PARAMS_FILE,
    PERSISTABLES_FILE,
    LoadReport,
    NameTable,
    Parameters,
    PathLike,
    Rename,
    StateDictReport,
    check_match,
    file_in,
    fit,
    is_safetensors,
    load_arrays,
    newest_checkpoint,
    read_state_dict,
    recognized,
    save_arrays,
    source_of,
)
from fluid.core import Program
from fluid.reader import Table

__all__ = [
    "check_match",
    "load_arrays",
    "load_fluid_params",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_state_dict",
    "load_table",
    "merge_low_rank",
    "read_state_dict",
    "save_arrays",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "update_module",
]

__getattr__ = getattr_of(__name__)


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
      dirname: a folder, which is created if it is missing; or a file whose name ends in ".safetensors".
      main_program: a Program of the Session, to write only its parameters. By default the parameters of all programs.
      filename: the name of the file in the folder; `params.fluid` by default.
      names: names, and globs such as "backbone/*", of the parameters to write; all by default.

    Raises:
      ArgumentError: `names` is empty, or the Program has no parameter of these names.
      UnknownNameError: a name is not the name of a parameter.
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
    names: str | Sequence[str] | None = None,
) -> LoadReport:
    """Read parameters from a file of `save_params` into a Session or Trainer; optimizer state stays unchanged.

    Args:
      executor: a Session or a Trainer.
      dirname: the folder, or a file whose name ends in ".safetensors".
      main_program: a Program of the Session, to read only its parameters. By default all parameters in the file.
      filename: the name of the file in the folder; by default `params.fluid`, or else `persistables.fluid`.
      rename: maps names in the file to names of the program, with globs and `{n}` for numbers, as in
        `{"layers.{n}.kernel": "fc_{n}.w_0"}`.
      strict: False to accept missing parameters, and extra arrays in the file; see `Session.load_params`.
      skip: names and globs of arrays that are not loaded, whatever their shape.
      names: names and globs of the arrays to load, `["backbone/*"]`; all others keep their values. None for all.

    Returns:
      A LoadReport of the loaded, the unused and the missing arrays.

    Raises:
      ParameterFileError: the file is missing or of another format.
      ParameterError: a name, shape or dtype differs, or no array would be loaded; the Session stays unchanged then.
      UnknownNameError: a name in `skip` or `names` is neither in the file nor in the program.

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
        names=names,
        # Without `main_program` and `names`, the file may lack some parameters of the Session, which keep their values.
        allow_missing=not strict or (main_program is None and names is None),
        allow_extra=main_program is not None or not strict,
    )
    if not strict:
        report.tell(may_be_extra=main_program is not None)
    return report


def save_persistables(
    executor: Any, dirname: PathLike, main_program: Program | None = None, filename: str | None = None
) -> None:
    """Write the complete state of a Session or Trainer: parameters, states, optimizer state and counters.

    To save during training, with the position in the data, use `fluid.CheckpointConfig`.

    Args:
      executor: a Session or a Trainer.
      dirname: a folder, which is created if it is missing.
      main_program: accepted for programs written for Fluid, but has no effect: the complete Session is saved.
      filename: the name of the file in the folder; `persistables.fluid` by default.

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
    names: str | Sequence[str] | None = None,
) -> None:
    """Read a file of `save_persistables` into a Session or Trainer whose programs equal the saved programs.

    Args:
      executor: a Session or a Trainer.
      dirname: the folder.
      main_program: accepted for programs written for Fluid, but has no effect: the complete Session is loaded.
      filename: the name of the file in the folder; by default `persistables.fluid`, or else `params.fluid`, which
        leaves the optimizer state unchanged.
      rename: see `Session.load`.
      strict: see `Session.load`.
      skip: see `Session.load`.
      names: see `Session.load`.

    Raises:
      ParameterFileError: the file is missing or of another format.
      ParameterError: names, shapes or dtypes differ; the Session stays unchanged then.

    Example:
      >>> import fluid
      >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> fluid.io.save_persistables(session, "saved")
      >>> fluid.io.load_persistables(session, "saved")
    """
    del main_program
    _session(executor).load(_in_folder(dirname, filename, PERSISTABLES_FILE), strict, rename, skip, names)


def save_inference_model(
    path: Any,
    program_func: Callable[[], Any] | Program | Mapping[str, Callable[[], Any] | Program],
    params: Parameters,
    feed: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    fetch: str | Sequence[str] | Mapping[str, str | Sequence[str]] | None = None,
    **options: Any,
) -> None:
    """Export a model to one file that runs without its program function, by `fluid.Inferencer(param_path=path)`.

    The file is a zip archive. It holds the program as StableHLO, for any batch size and any number of steps, and the
    parameters as plain arrays, each with a checksum. Equal programs and parameters produce equal bytes.

    Args:
      path: the path of the file; in an existing directory, the file `model.fluid` is written.
      program_func: the program function, which is exported in test mode. A dict of functions, by the names of entry
        points, exports one model of several functions that share parameters: `{"encode": f, "decode_step": g}`.
      params: arrays by name, such as `trainer.params`, or a file of `trainer.save_params`. Extra arrays are ignored.
      feed: names of feeds, and of values that fed arrays replace. By default the feeds on which the results depend.
        With several entry points, a dict of lists.
      fetch: names of the results, see `Session.run`; by default the outputs of the program. With several entry points,
        a dict.
      options: `platforms=("cpu", "cuda", "tpu")`: the platforms on which the model can run.
        `precision="bfloat16"`: the dtype of the computation, see `fluid.Program`, and of the stored parameters.
        `batch_sizes=(1, 2, 4, 8, 16, 32)` and `buckets=(4, 8, 16, 32, 64)`, a list or a dict of lists by feed: the
        sizes to export for, if the program uses sizes as Python numbers, so that symbolic sizes are impossible.
        `rename=`: see `load_params`.

    Raises:
      ArtifactError: the program cannot be exported, or the file cannot be written.
      ParameterFileError, ParameterError: parameters are missing or have wrong shapes.
      UnknownNameError, FeedError: a feed or value does not exist, or the results depend on other feeds.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
      >>> params = {"fc_0.w_0": np.ones((2, 1), "float32"), "fc_0.b_0": np.zeros(1, "float32")}
      >>> fluid.io.save_inference_model("line.fluid", program, params)
      >>> fluid.Inferencer(param_path="line.fluid").infer({"x": [[1, 2], [3, 4]]})[0].tolist()
      [[3.0], [7.0]]
    """
    from fluid import export  # imported on use, because most programs do not export models

    export.save(path, program_func, params, feed, fetch, **options)


def load_inference_model(
    dirname: Any, executor: Any = None, model_filename: str | None = None, params_filename: str | None = None
) -> Any:
    """Load a model from `save_inference_model` of this package or of PaddlePaddle Fluid 0.14 to 1.8.

    Args:
      dirname: the file of an exported model, or the folder.
      executor: a Session or Trainer to which the program and its parameters are added; None for neither.
      model_filename: the name of the program in a folder of PaddlePaddle; `__model__` by default.
      params_filename: the name of the file with all parameters in a folder of PaddlePaddle. By default each parameter
        has a separate file, or one file beside the program holds all parameters.

    Returns:
      `(program, feed_target_names, fetch_targets)`. Session and Inferencer run the program, which includes its
      parameters. `feed_target_names` and `fetch_targets` are lists of names; an output without a name is listed by the
      name of its value. A program of PaddlePaddle is a program function: `program.params` holds its arrays by name, and
      `program(fetch=["fc_0.tmp_1"])` returns the given values instead of its outputs.

    Raises:
      ParameterFileError: the file or folder is missing, or a file in the folder is damaged or belongs to another
        program.
      ArtifactError: the exported model is damaged, of a newer version, or for other devices.
      ProgramError: the program has ops that fluid does not support; the message lists all of them.

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
    from fluid.compat import paddle_files

    session = None if executor is None else _session(executor)
    path = local_path(dirname, errors.ParameterFileError)
    file = path / (model_filename or "model.fluid") if path.is_dir() else path
    if recognized(file) == "exported":
        from fluid import export

        program = export.load(file).program()
        if session is not None:
            session.add(program)
        unnamed = program.values if len(program.values) == len(program.outputs) else ()
        return paddle_files.InferenceModel(program, list(program.feeds), list(program.output_names or unnamed))
    return paddle_files.load_inference_model(path, session, model_filename, params_filename)


def load_table(path: PathLike) -> Table:
    """Read the Table for raw rows (see `fluid.reader.frame`) that is saved with parameters.

    Args:
      path: a file of `save_params`, an exported model, a `checkpoint_dir`, or a file of `save_persistables`.

    Raises:
      ParameterFileError: the file is missing or damaged, or has no table.
      CheckpointError: the folder has no complete checkpoint.

    Example:
      >>> import fluid
      >>> table = fluid.reader.Table.fit({"age": [20, 40], "city": ["Rome", "Oslo"]})
      >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.nets.table_features(table), size=1))
      >>> session.save_params("rows.params")
      >>> fluid.io.load_table("rows.params") == table
      True
    """
    target = local_path(path, errors.ParameterFileError)
    kind = recognized(target)
    if kind in ("exported", "checkpoints") or (target / "model.fluid").is_file():
        from fluid import export

        found = newest_checkpoint(target).table if kind == "checkpoints" else export.load(target).table
    else:
        found = source_of(target).table
    if found is None:
        raise errors.ParameterFileError(
            f"{str(target)!r} has no table of raw rows; a program that calls fluid.nets.table_features(table) saves it"
        )
    try:
        return Table.from_json(found)
    except ValueError as error:
        raise errors.ParameterFileError(f"{str(target)!r} holds {error}") from error


def load_fluid_params(path: Any, names: Iterable[str] | None = None, slots: bool = False) -> dict[str, np.ndarray]:
    """Read parameters that PaddlePaddle Fluid saved by `save_params`, `save_persistables` or `save_inference_model`.

    The arrays may be passed to `session.load_params(arrays)` or `fluid.Inferencer(infer_func, params=arrays)`.

    Args:
      path: a folder with a file for each variable, or one file.
      names: names of the variables. In a folder, the variables to read; all by default. A file of several variables
        does not hold their names, so the names of all saved variables are required, in any order.
      slots: whether to also return optimizer state, such as `fc_0.w_0_velocity_0` and `learning_rate_0`.

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
    from fluid.compat import paddle_files

    return paddle_files.load_params(path, names, slots)


def load_state_dict(
    executor: Any, source: PathLike | Mapping[str, Any], table: NameTable, ignore: str | Sequence[str] = ()
) -> StateDictReport:
    """Load weights of another library into parameters and moving statistics, by a table of names.

    Floating-point numbers are converted to the dtype of the program. The shape of a square matrix does not show whether
    it needs a transposition, so compare the outputs of both nets once.

    Args:
      executor: a Session or a Trainer.
      source: a file of safetensors, PyTorch, Keras or NumPy, see `read_state_dict`; or arrays or tensors by name, such
        as `model.state_dict()`.
      table: patterns of names in the file, with `*` and `{n}` for numbers as in `rename=` of `load_params`, to names of
        the program. `("fc_0.w_0", "transpose")` reverses the axes, `("conv2d_0.w_0", (3, 2, 0, 1))` reorders them. A
        list of names, `["q.w_0", "k.w_0", "v.w_0"]`, splits the array in equal parts along its last axis, after a
        transposition. The first row that matches a name applies.
      ignore: names and globs of arrays in the file that are not loaded, and of parameters that stay unchanged. A glob
        may match nothing.

    Returns:
      A StateDictReport, which prints as a list of the loaded arrays for each row of the table.

    Raises:
      ArgumentTypeError: a row of the table is invalid.
      ParameterFileError: the file is missing, or of another format.
      ParameterError: an array matches no row, a row matches no array, a parameter gets no array, or shapes differ. The
        message lists all of these problems, and all parameters stay unchanged.

    Example:
      >>> import fluid, numpy as np
      >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=3))
      >>> weights = {"linear.weight": np.ones((3, 2)), "linear.bias": np.zeros(3)}  # as of torch.nn.Linear
      >>> table = {"linear.weight": ("fc_0.w_0", "transpose"), "linear.bias": "fc_0.b_0"}
      >>> fluid.io.load_state_dict(session, weights, table)
      2 arrays taken from the given weights
      linear.weight  -> fc_0.w_0  transpose, from float64  1 array  float32[2, 3]
      linear.bias    -> fc_0.b_0  from float64             1 array  float32[3]
    """
    session = _session(executor)
    wanted = {name: (tuple(spec.shape), str(spec.dtype)) for name, spec in session.scope.specs.items()}
    arrays, report = fit(source, table, wanted, ignore)
    session._take_params(arrays, allow_missing=True)
    return report


def merge_low_rank(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Add the low-rank adapters of `fluid.LowRankParamAttr` to their matrices.

    The result has the parameter names of the same program without adapters. With these parameters, the program without
    adapters computes the same outputs as the program with adapters.

    Args:
      arrays: all parameters by name, such as `trainer.params`.

    Returns:
      All arrays by name, without the adapter arrays.

    Raises:
      ParameterError: there is no adapter, or one of its arrays is missing.

    Example:
      >>> import fluid
      >>> def net(attr=None):
      ...     return fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=3, param_attr=attr)
      >>> session = fluid.Session(lambda: net(fluid.LowRankParamAttr(rank=2)))
      >>> merged = fluid.io.merge_low_rank(session.params())
      >>> sorted(merged)
      ['fc_0.b_0', 'fc_0.w_0']
      >>> inferencer = fluid.Inferencer(net, params=merged)
    """
    from fluid.layers import reparametrized

    return reparametrized.merged(arrays)


def update_module(module: Any, executor: Any, name: str = "module_0") -> Any:
    """Copy trained values into a module of Flax, Haiku or Equinox that a program called by `layers.module`.

    Args:
      module: the module that was passed to `layers.module`.
      executor: the Session or Trainer that trained.
      name: the name of the layer, with the prefixes of enclosing name scopes; the names of its parameters begin with
        it.

    Returns:
      For Flax NNX, `module` itself, whose variables are set, or a new module if `module` is a function of `rngs`. For
      Equinox, a new module, or a pair of a module and a state. For Flax Linen, the variables that `module.apply` takes:
      `{"params": ..., "batch_stats": ...}`. For Haiku, `(params, state)`, or `params` for a `haiku.Transformed`.

    Raises:
      ArgumentTypeError: `module` is of another library.
      UnknownNameError: the program has no module with this name, or lacks an array of the module.

    Example:
      >>> import fluid, numpy as np
      >>> from flax import nnx
      >>> net = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
      >>> session = fluid.Session(lambda: fluid.layers.module(net, fluid.layers.data("x", shape=[4])))
      >>> session.scope["module_0/bias"] = np.ones(3, "float32")
      >>> fluid.io.update_module(net, session).bias[...].tolist()
      [1.0, 1.0, 1.0]
    """
    from fluid.layers import external_modules

    session = _session(executor)
    states = {state for program in session.programs.values() for state in program.states}
    arrays = session.params()
    return external_modules.update(
        module,
        name,
        {known: array for known, array in arrays.items() if known not in states},
        {known: array for known, array in arrays.items() if known in states},
    )


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
    if filename is None and default == PARAMS_FILE and is_safetensors(folder):  # here `dirname` is a file, no folder
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
