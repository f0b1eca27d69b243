"""Inference models, saved and loaded with an Executor."""

import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from fluid import core, errors, io
from fluid._util.paths import local_path
from fluid.checkpoint import PathLike
from fluid.static.executor import Executor, name_of, plain_program
from fluid.static.scope import Scope, global_scope
from fluid.static.tape.program import Program
from fluid.static.tape.trial import BATCHES
from fluid.static.tape.variable import Variable


class InferenceModel(NamedTuple):
    """The result of `load_inference_model`, with the fields in Fluid's order.

    Attributes:
      program: the program for the Executor.
      feed_target_names: names of the feeds of the program.
      fetch_targets: variables of the results of the program.
    """

    program: Program
    feed_target_names: list[str]
    fetch_targets: list[Variable]


class SavedModel(Program):
    """A program read from a file.

    Args:
      inner: the program that a Session runs.

    Example:
      >>> import fluid
      >>> program = fluid.Program(lambda: fluid.layers.data("x", shape=[2]))
      >>> fluid.static.inference.SavedModel(program).for_test
      True
    """

    def __init__(self, inner: core.Program):
        super().__init__()
        self.inner = inner
        self.for_test = True

    def discovered(self) -> core.Program:
        """Return the program for a Session."""
        return self.inner

    @property
    def version(self) -> int:
        """Return 1: nothing can be recorded into a saved program, so its version never changes."""
        return 1


def save_inference_model(
    dirname: PathLike,
    feeded_var_names: Sequence[str],
    target_vars: Variable | Sequence[Variable],
    executor: Executor,
    main_program: Any = None,
    model_filename: str | None = None,
    params_filename: str | None = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
) -> list[str]:
    """Write the part of a program that computes some variables to one file, in test mode and with its parameters.

    `fluid.Inferencer(param_path=dirname)` and `load_inference_model` read the file.

    Args:
      dirname: a folder; created if it does not exist.
      feeded_var_names: names of the feeds; without names, the feeds that a `py_reader` of the program gives.
      target_vars: the variables that will be fetched.
      executor: the executor that runs the program.
      main_program: the program; by default the default main program.
      model_filename: the file in the folder; `model.fluid` by default.
      params_filename: accepted for programs written for Fluid, but has no effect: one file holds all.
      export_for_deployment: accepted for programs written for Fluid, but has no effect: the file is for deployment.
      program_only: accepted for programs written for Fluid, but has no effect: one file holds all.

    Returns:
      The names of the target variables.

    Raises:
      ArtifactError: the program cannot be exported, or the file cannot be written.
      FeedError: the targets depend on other feeds.

    Example:
      >>> import fluid.static as fluid, numpy as np
      >>> with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     y = fluid.layers.scale(fluid.layers.data("x", shape=[2]), scale=2.0)
      ...     names = fluid.io.save_inference_model("double", ["x"], [y], fluid.Executor())
      >>> exe = fluid.Executor(fluid.CPUPlace())
      >>> with fluid.scope_guard(fluid.Scope()):
      ...     program, feeds, targets = fluid.io.load_inference_model("double", exe)
      ...     exe.run(program, feed={feeds[0]: np.ones((1, 2), "float32")}, fetch_list=targets)[0].tolist()
      [[2.0, 2.0]]
    """
    del params_filename, export_for_deployment, program_only
    program = plain_program(main_program)
    scope = scope_of(executor, program)
    targets = [target_vars] if isinstance(target_vars, Variable) else list(target_vars)
    names = [name_of(target) for target in targets]
    tested = program.clone(for_test=True).discovered()
    params = scope.session.scope.copies([*tested.parameters, *tested.states])
    path = in_folder(dirname, model_filename or "model.fluid", make=True)
    # With `feed=None`, the export keeps all feeds that the targets depend on, such as the feeds of readers.
    feeds = None if program.readers and not feeded_var_names else list(feeded_var_names)
    io.save_inference_model(path, tested, params, feed=feeds, fetch=names)
    return names


def load_inference_model(
    dirname: PathLike,
    executor: Executor,
    model_filename: str | None = None,
    params_filename: str | None = None,
    pserver_endpoints: Any = None,
) -> InferenceModel:
    """Load a model that `save_inference_model` of fluid or of PaddlePaddle wrote, into the global scope.

    Args:
      dirname: the folder.
      executor: the executor that will run the model.
      model_filename: the file in the folder; found by default.
      params_filename: for a model of PaddlePaddle, the file that holds all parameters.
      pserver_endpoints: accepted for programs written for Fluid, but has no effect: there are no such servers.

    Returns:
      `(program, feed_target_names, fetch_targets)`.

    Raises:
      ArtifactError, ParameterFileError: the file does not exist, or is damaged.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.io.load_inference_model("nowhere", fluid.Executor(fluid.CPUPlace()))
      Traceback (most recent call last):
      fluid.errors.ParameterFileError: there is no folder 'nowhere'; expected one that save_inference_model of the \
original wrote
    """
    del pserver_endpoints
    from fluid import export

    path = local_path(dirname, errors.ParameterFileError) / (model_filename or "model.fluid")
    scope = global_scope()
    if path.is_file() and export.is_artifact(path):
        inner: core.Program = export.load(path).program()
        feeds, names = list(inner.feeds), list(inner.output_names or ())
    else:
        function, feeds, names = io.load_inference_model(
            dirname, model_filename=model_filename, params_filename=params_filename
        )
        inner = core.Program(lambda: dict(zip(names, function(), strict=True)), name="inference_program")
    program = SavedModel(inner)
    added = scope.program(program, executor.place)
    scope.load(added.init(jax.random.key(0)))
    targets = [_target(program, name, array) for name, array in zip(names, inner.outputs, strict=True)]
    return InferenceModel(program, feeds, targets)


def _target(program: Program, name: str, array: core.Array) -> Variable:
    """Return a variable for a result of a program from a file."""
    structs = [
        jax.ShapeDtypeStruct(tuple(batch if d is None else d for d in array.shape), array.dtype) for batch in BATCHES
    ]
    return Variable(program, name, tuple(structs))


def scope_of(executor: Any, program: Program) -> Scope:
    """Return the global scope, after adding the program to the scope.

    Raises:
      ArgumentTypeError: `executor` is not an Executor.
    """
    if not hasattr(executor, "place"):
        raise errors.ArgumentTypeError(
            f"found {type(executor).__name__}, expected an Executor: fluid.io.save_params(exe, 'saved')"
        )
    scope = global_scope()
    scope.on(executor.place, program.random_seed)
    if program.version:
        scope.program(program, executor.place)
    return scope


def in_folder(dirname: PathLike, filename: str, make: bool = False) -> pathlib.Path:
    """Return the path of a file in a folder; create the folder if `make` is set."""
    folder = local_path(dirname, errors.ParameterFileError)
    if make:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.ParameterFileError(
                f"cannot write to {str(folder)!r}: {error.strerror}; expected a folder that can be written"
            ) from error
    return folder / filename
