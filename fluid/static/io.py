"""Save and load the values of a scope with an Executor."""

import logging
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from fluid import core
from fluid.checkpoint import PARAMS_FILE, PERSISTABLES_FILE, PathLike, check_match, file_in, load_arrays, save_arrays
from fluid.io import load_fluid_params
from fluid.reader import batch, buffered, cache, chain, compose, firstn, map_readers, shuffle, xmap_readers
from fluid.static.executor import Executor, name_of, plain_program
from fluid.static.inference import in_folder, load_inference_model, save_inference_model, scope_of
from fluid.static.readers import DataLoader, PyReader
from fluid.static.scope import Scope
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

_SLOTS = "@slots/"

log = logging.getLogger("fluid")

Chosen = Callable[[Variable], bool] | None
Variables = Sequence[Variable | str] | None


def is_parameter(var: Variable) -> bool:
    """Return whether a variable is a parameter, for `predicate=`; as in Fluid, moving statistics of layers are, too.

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
    """Return whether the value of a variable is kept between runs, for `predicate=`.

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
    """Return a copy of a program in test mode, as `clone(for_test=True)`; a run computes the fetches only.

    Args:
      target_vars: accepted for programs written for Fluid, but has no effect: fetches choose.
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
    """Write values of the global scope to one file: parameters and other values that are kept between runs.

    Args:
      executor: the executor that runs the program.
      dirname: a folder; created if it does not exist.
      main_program: the program; by default the default main program.
      vars: variables or names to write; by default all that are kept between runs.
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

    Arguments as for `save_vars`. As in Fluid, nothing is loaded, with a warning here, if `predicate` is True for no
    variable. A predicate that checks whether a variable has its own file works for folders of PaddlePaddle only.

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
    """Load the parameters and moving statistics of a program from a file of `save_params`; see `load_vars`.

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

    Of PaddlePaddle, parameters, states, counters and learning rates are loaded. The optimizer state stays unchanged,
    with a warning.

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
    if wanted:  # a program without `minimize`, for example for testing, has no optimizer state
        check_match(slots, wanted, str(dirname))
        new = [jax.numpy.array(slots[name]) for name in wanted]
        held = scope.session.scope
        held.slots[scope.program(program, executor.place).name] = scope.session.engine.place(
            jax.tree.unflatten(structure, new)
        )
        held.step = scope.session.engine.place(jax.numpy.array(found["@step"]))
        held.root = scope.session.engine.place(jax.numpy.array(found["@root"]))


def _chosen(program: Program, vars: Variables, predicate: Chosen) -> list[str]:
    """Return the names of the values to save or load."""
    if vars is not None:
        return [program.var(name_of(item)).name for item in vars]
    every = [v for v in program.list_vars() if isinstance(v, Persistent)]
    return [v.name for v in every if predicate is None or predicate(v)]


def _slots(scope: Scope, program: Program) -> Any:
    """Return the optimizer state of a program, as a tree."""
    if not program.version:
        return ()
    return scope.session.scope.slots[scope.program(program, None).name]


def _load(
    scope: Scope, program: Program, names: list[str], dirname: PathLike, filename: str | None, default: str
) -> dict[str, Any]:
    """Load the values `names` into the scope; return all arrays of the file by name."""
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
    """Convert 64-bit integers, such as a counter of PaddlePaddle, to the integer dtype of JAX, if all numbers fit.

    Other arrays are returned unchanged.
    """
    kept = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
    return kept if array.dtype.kind == "i" and np.array_equal(kept, array) else array


def _is_zip(path: pathlib.Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"PK"
