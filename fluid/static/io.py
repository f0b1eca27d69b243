"""Save and load the values of a scope (parameters and other stored variables), and inference models."""

import logging
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fluid import core, errors, io
from fluid._util.paths import local_path
from fluid.checkpoint import PARAMS_FILE, PERSISTABLES_FILE, PathLike, check_match, file_in, load_arrays, save_arrays
from fluid.core.rows import BATCHES
from fluid.io import load_fluid_params
from fluid.reader import batch, buffered, cache, chain, compose, firstn, map_readers, shuffle, xmap_readers
from fluid.static.executor import Executor, name_of, plain_program
from fluid.static.readers import DataLoader, PyReader
from fluid.static.scope import Scope, global_scope
from fluid.static.tape.program import Program
from fluid.static.tape.variable import Persistent, Variable

__all__ = [
    "DataLoader",
    "PyReader",
    "batch",
    "buffered",
    "cache",
    "chain",
    "compose",
    "firstn",
    "get_inference_program",
    "is_parameter",
    "is_persistable",
    "load_fluid_params",
    "load_inference_model",
    "load_params",
    "load_persistables",
    "load_vars",
    "map_readers",
    "save_inference_model",
    "save_params",
    "save_persistables",
    "save_vars",
    "shuffle",
    "xmap_readers",
]


class InferenceModel(NamedTuple):
    """The result of `load_inference_model`, a tuple with the fields in PaddlePaddle Fluid's order.

    Attributes:
      program: the loaded program, which the Executor runs.
      feed_target_names: names of the feeds of the program.
      fetch_targets: the result variables of the program, for `fetch_list`.
    """

    program: Program
    feed_target_names: list[str]
    fetch_targets: list[Variable]


class SavedModel(Program):
    """A program that was loaded from a file of an inference model.

    Example:
      >>> import fluid
      >>> program = fluid.Program(lambda: fluid.layers.data("x", shape=[2]))
      >>> fluid.static.io.SavedModel(program).for_test
      True
    """

    def __init__(self, inner: core.Program):
        super().__init__()
        self.inner = inner
        self.for_test = True

    def discovered(self) -> core.Program:
        """Return the loaded `fluid.Program`, which a Session can run."""
        return self.inner

    @property
    def version(self) -> int:
        """Return 1: layers cannot be recorded into a loaded program, so its version never changes."""
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
    """Write the part of a program that computes `target_vars`, in test mode and with parameters, to one file.

    `fluid.Inferencer(param_path=dirname)` and `load_inference_model` read the file.

    Args:
      dirname: a folder; created if it does not exist.
      feeded_var_names: names of the feeds; without names, the feeds of the program's `py_reader`.
      target_vars: the variables that will be fetched.
      executor: the executor that runs the program.
      main_program: the program; by default the default main program.
      model_filename: the file in the folder; `model.fluid` by default.
      params_filename: accepted for programs written for Fluid, but has no effect: the model file holds the parameters.
      export_for_deployment: accepted for programs written for Fluid, but has no effect.
      program_only: accepted for programs written for Fluid, but has no effect: the file always holds the parameters.

    Returns:
      The names of the target variables.

    Raises:
      ArtifactError: the program cannot be exported, or the file cannot be written.
      FeedError: the targets depend on feeds that `feeded_var_names` lacks.

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
    # With `feed=None`, the exported model has all feeds that its results depend on, also the feeds that readers of the
    # program supply.
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
      model_filename: the name of the model file; by default the file that `save_inference_model` writes.
      params_filename: for a model of PaddlePaddle, the file that holds all parameters.
      pserver_endpoints: accepted for programs written for Fluid, but has no effect: there are no parameter servers.

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
    """Return a variable for the result `name` of a loaded program, with the shape and dtype of `array`."""
    structs = [
        jax.ShapeDtypeStruct(tuple(batch if d is None else d for d in array.shape), array.dtype) for batch in BATCHES
    ]
    return Variable(program, name, tuple(structs))


def scope_of(executor: Any, program: Program) -> Scope:
    """Add `program` to the global scope, the store of the values of its variables; return the scope.

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
    """Return the path of the file `filename` in the folder `dirname`; create the folder if `make` is True."""
    folder = local_path(dirname, errors.ParameterFileError)
    if make:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise errors.ParameterFileError(
                f"cannot write to {str(folder)!r}: {error.strerror}; expected a folder that can be written"
            ) from error
    return folder / filename


_SLOTS = "@slots/"

log = logging.getLogger("fluid")

Chosen = Callable[[Variable], bool] | None
Variables = Sequence[Variable | str] | None


def is_parameter(var: Variable) -> bool:
    """Return whether a variable is a parameter or a moving statistic; usable as `predicate=` of `save_vars`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     y = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
      ...     weight = fluid.default_main_program().global_block().var("fc_0.w_0")
      >>> fluid.io.is_parameter(weight), fluid.io.is_parameter(y)
      (True, False)
    """
    return isinstance(var, Persistent) and var.is_original_parameter


def is_persistable(var: Variable) -> bool:
    """Return whether the value of a variable is stored between runs; usable as `predicate=` of `save_vars`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     y = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
      ...     variables = fluid.default_main_program().list_vars()
      >>> [v.name for v in variables if fluid.io.is_persistable(v)]
      ['fc_0.w_0', 'fc_0.b_0']
    """
    return var.persistable


def get_inference_program(target_vars: Any, main_program: Program | None = None) -> Program:
    """Return a copy of a program in test mode, like `clone(for_test=True)`; a run computes only the fetched variables.

    Args:
      target_vars: accepted for programs written for Fluid, but has no effect: `fetch_list` selects the results.
      main_program: a Program; by default the default main program.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     y = fluid.layers.dropout(fluid.layers.data("x", shape=[2]), 0.5)
      ...     fluid.io.get_inference_program([y]).for_test
      True
    """
    del target_vars
    return plain_program(main_program).clone(for_test=True)


def save_vars(
    executor: Executor,
    dirname: PathLike,
    main_program: Any = None,
    vars: Variables = None,
    predicate: Chosen = None,
    filename: str | None = None,
) -> None:
    """Write values of the global scope to one file: parameters and other persistable variables.

    Args:
      executor: the executor that runs the program.
      dirname: a folder; created if it does not exist.
      main_program: the program; by default the default main program.
      vars: variables or names to write; by default all persistable variables.
      predicate: called with each variable, instead of `vars`; returns True to write the variable.
      filename: the file in the folder; `params.fluid` by default.

    Raises:
      UnknownNameError: the program has no variable of this name.
      ParameterFileError: the file cannot be written.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     with fluid.unique_name.guard():
      ...         y = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
      ...     exe = fluid.Executor(fluid.CPUPlace())
      ...     started = exe.run(fluid.default_startup_program())
      ...     fluid.io.save_vars(exe, "saved", predicate=lambda v: v.name.endswith(".b_0"))
      >>> import fluid
      >>> list(fluid.io.load_arrays("saved/params.fluid")[0])
      ['fc_0.b_0']
    """
    program = plain_program(main_program)
    scope = scope_of(executor, program)
    names = _chosen(program, vars, predicate)
    save_arrays(in_folder(dirname, filename or PARAMS_FILE, make=True), scope.session.scope.copies(names), "parameters")


def load_vars(
    executor: Executor,
    dirname: PathLike,
    main_program: Any = None,
    vars: Variables = None,
    predicate: Chosen = None,
    filename: str | None = None,
) -> None:
    """Load a file that `save_vars` wrote, or parameters of PaddlePaddle, into the global scope.

    Arguments as for `save_vars`. If `predicate` is True for no variable, the function warns, and loads nothing. A
    predicate that checks whether a variable has its own file works only for folders of PaddlePaddle.

    Raises:
      ParameterFileError: the file does not exist, or has another format.
      ParameterError: a name is missing, or a shape or dtype differs; the scope is then unchanged.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.io.load_vars(fluid.Executor(fluid.CPUPlace()), "nowhere", fluid.Program(), vars=[])
      Traceback (most recent call last):
      fluid.errors.ParameterFileError: no parameter file at 'nowhere/params.fluid'; write one with \
trainer.save_params('nowhere/params.fluid')
    """
    program = plain_program(main_program)
    scope = scope_of(executor, program)
    names = _chosen(program, vars, predicate)
    if predicate is not None and not names:
        core.warn(
            f"load_vars({str(dirname)!r}): the predicate is True for no variable of the program, so nothing is loaded; "
            f"fluid.io.load_params(exe, {str(dirname)!r}) loads all parameters from a file that fluid wrote"
        )
        return
    _load(scope, program, names, dirname, filename, PARAMS_FILE)


def save_params(executor: Executor, dirname: PathLike, main_program: Any = None, filename: str | None = None) -> None:
    """Write the parameters and moving statistics of a program; see `save_vars`.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.io.save_params(fluid.Executor(fluid.CPUPlace()), "saved", fluid.Program())
    """
    save_vars(executor, dirname, main_program, predicate=is_parameter, filename=filename)


def load_params(executor: Executor, dirname: PathLike, main_program: Any = None, filename: str | None = None) -> None:
    """Load the parameters and moving statistics of a program from a file that `save_params` wrote; see `load_vars`.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.io.save_params(fluid.Executor(fluid.CPUPlace()), "saved", fluid.Program())
      >>> fluid.io.load_params(fluid.Executor(fluid.CPUPlace()), "saved", fluid.Program())
    """
    program = plain_program(main_program)
    scope = scope_of(executor, program)
    _load(scope, program, _chosen(program, None, is_parameter), dirname, filename, PARAMS_FILE)


def save_persistables(
    executor: Executor, dirname: PathLike, main_program: Any = None, filename: str | None = None
) -> None:
    """Write all values that training needs to continue: parameters, states, optimizer state, the number of steps.

    Args:
      executor: the executor that runs the program.
      dirname: a folder; created if it does not exist.
      main_program: the program; by default the default main program.
      filename: the file in the folder; `persistables.fluid` by default.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.io.save_persistables(fluid.Executor(fluid.CPUPlace()), "saved", fluid.Program())
    """
    program = plain_program(main_program)
    scope = scope_of(executor, program)
    held = scope.session.scope
    arrays: dict[str, Any] = dict(held.copies(_chosen(program, None, None)))
    arrays |= {f"{_SLOTS}{i}": np.asarray(v) for i, v in enumerate(jax.tree.leaves(_slots(scope, program)))}
    arrays |= scope.rates_set(program)
    arrays |= {"@step": np.asarray(held.step), "@root": np.asarray(held.root)}
    save_arrays(in_folder(dirname, filename or PERSISTABLES_FILE, make=True), arrays, "persistables")


def load_persistables(
    executor: Executor, dirname: PathLike, main_program: Any = None, filename: str | None = None
) -> None:
    """Load a file that `save_persistables` wrote, or a folder of PaddlePaddle, into the global scope.

    From a folder of PaddlePaddle, the function loads parameters, states, counters and learning rates. It warns that the
    optimizer state stays unchanged.

    Args:
      executor: the executor that runs the program.
      dirname: the folder.
      main_program: the program; by default the default main program.
      filename: the file in the folder; `persistables.fluid` by default.

    Raises:
      ParameterFileError: the file does not exist, or has another format.
      ParameterError: a name is missing, or a shape or dtype differs; the scope is then unchanged.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.io.save_persistables(fluid.Executor(fluid.CPUPlace()), "saved", fluid.Program())
      >>> fluid.io.load_persistables(fluid.Executor(fluid.CPUPlace()), "saved", fluid.Program())
    """
    program = plain_program(main_program)
    scope = scope_of(executor, program)
    found = _load(scope, program, _chosen(program, None, None), dirname, filename, PERSISTABLES_FILE)
    rates = {name: found[name] for name in program.rates if name in found}
    for name, rate in rates.items():
        scope.put(name, rate)
    if "@step" not in found:
        if rates and jax.tree.leaves(_slots(scope, program)):
            log.warning(
                "%s was written by PaddlePaddle, whose optimizer states are not loaded; they begin anew", dirname
            )
        return
    leaves, structure = jax.tree.flatten(_slots(scope, program))
    wanted = {f"{_SLOTS}{i}": (v.shape, str(v.dtype)) for i, v in enumerate(leaves)}
    slots = {n: v for n, v in found.items() if n.startswith(_SLOTS)}
    if slots and not slots.keys() & wanted.keys():
        log.warning(
            "%s was written by a Session or Trainer, whose optimizer states have other names: parameters are "
            "loaded, and optimizer states stay as they are",
            dirname,
        )
        return
    # A program that minimises no loss has no optimizer state. Then `wanted`, a dict of the expected arrays of optimizer
    # state, is empty, and nothing more is loaded.
    if wanted:
        check_match(slots, wanted, str(dirname))
        new = [jax.numpy.array(slots[name]) for name in wanted]
        held = scope.session.scope
        held.slots[scope.program(program, executor.place).name] = scope.session.engine.place(
            jax.tree.unflatten(structure, new)
        )
        held.step = scope.session.engine.place(jax.numpy.array(found["@step"]))
        held.root = scope.session.engine.place(jax.numpy.array(found["@root"]))


def _chosen(program: Program, vars: Variables, predicate: Chosen) -> list[str]:
    """Return the names of the variables `vars`; by default of all persistable variables that `predicate` accepts."""
    if vars is not None:
        return [program.var(name_of(item)).name for item in vars]
    every = [v for v in program.list_vars() if isinstance(v, Persistent)]
    return [v.name for v in every if predicate is None or predicate(v)]


def _slots(scope: Scope, program: Program) -> Any:
    if not program.version:
        return ()
    return scope.session.scope.slots[scope.program(program, None).name]


def _load(
    scope: Scope, program: Program, names: list[str], dirname: PathLike, filename: str | None, default: str
) -> dict[str, Any]:
    """Load the variables `names` from a file or folder into the scope; return all loaded arrays by name."""
    path = in_folder(dirname, filename) if filename else file_in(in_folder(dirname, ""), default)
    is_original = path.parent.is_dir() and not path.exists() or (path.exists() and not _is_zip(path))
    specs = scope.session.scope.specs
    if is_original:
        rates = [] if path.exists() else [name for name in program.rates if (path.parent / name).is_file()]
        original = load_fluid_params(path if path.exists() else dirname, [*names, *rates], slots=True)
        found: dict[str, Any] = {n: _as_kept(array) for n, array in original.items()}
    else:
        found = load_arrays(path)[0]
    check_match(found, {n: (specs[n].shape, specs[n].dtype) for n in names}, str(path), allow_extra=True)
    scope.load({n: found[n] for n in names})
    return found


def _as_kept(array: np.ndarray) -> np.ndarray:
    """Convert 64-bit integers, such as a counter of PaddlePaddle, to the integer dtype of JAX.

    Arrays of other numbers, and integers that are too large for JAX's integer dtype, are returned unchanged.
    """
    kept = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
    return kept if array.dtype.kind == "i" and np.array_equal(kept, array) else array


def _is_zip(path: pathlib.Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"
