"""TrainingProgram, which declares a trained program; and functions that trace the trained and inference programs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fluid import errors
from fluid.core import CALLED_AT, Program, creation_sites, current_frame, warn
from fluid.optimizer.base import Minimizer, OptimizerLike, as_optimizer
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.runtime import Session

_SHOWN = 3


def warn_of_shared_by_number(programs: Sequence[Program]) -> None:
    """Warn of parameters that several programs share only because layers have equal automatic names.

    Automatic names number the layers of each program from 0 on. So the first `fc` layers of two programs share one
    parameter, `fc_0.w_0`, if the shapes agree. If one line of a common function creates the parameter in both
    programs, the sharing is intended, and there is no warning.
    """
    made: dict[str, tuple[Program, str]] = {}
    found: list[str] = []
    for program in programs:
        for name, spec in program.parameters.items():
            if not (spec.kind and spec.site):
                continue
            first, line = made.setdefault(name, (program, _own_line(spec.site)))
            if line != _own_line(spec.site):
                sites = [f"{each.name}: {creation_sites(each.parameters)[name]}" for each in (first, program)]
                found.append(f"{name} ({'; '.join(sites)})")
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        warn(
            f"the programs share parameters that different lines make, as these have the same automatic names: "
            f"{', '.join(found[:_SHOWN])}{more}. Give each program names of its own, with fluid.name_scope("
            f'"{programs[0].name}"): around its layers; or, where sharing is meant, make the parameter in one function '
            f'that both call, or name it: param_attr="shared.w"'
        )


def _own_line(site: str) -> str:
    return site.partition(CALLED_AT)[0]


ProgramFunction = Callable[[], Any]
"""A function without arguments that calls layers; it returns the loss, or several values with the loss first."""


@dataclass(frozen=True)
class TrainingProgram:
    """One of several programs that a Trainer trains, see `docs/programs.md`.

    A pair `(program_func, optimizer)` is short for a TrainingProgram.

    Args:
      program_func: as for Trainer.
      optimizer: as for Trainer; the optimizer of the Trainer by default.
      parameter_list: names and globs of the parameters that the optimizer updates, such as `"generator/*"`; all
        parameters of the program by default.
      reader: minibatches for this program only; the reader of `trainer.train(reader)` by default.
      feed_order: as for `Trainer.train`, for the minibatches of this program.
      feed_from: feeds that other programs compute, by feed name: `{"fake": "generator/image"}` is the value `image` of
        the program `generator`. The value is computed anew for each step, in test mode, with the current parameters.
        The minibatch also holds the feeds that the other program needs for the value.
      name: the name in events, metrics and `trainer.test(program=...)`; the name of the function by default.

    Example:
      >>> import fluid
      >>> def generator():
      ...     noise = fluid.layers.data("noise", shape=[4])
      ...     with fluid.name_scope("generator"):
      ...         return fluid.layers.mean(fluid.layers.fc(noise, size=2))
      >>> part = fluid.TrainingProgram(generator, fluid.optimizer.Adam(1e-3), parameter_list="generator/*.w_0")
      >>> fluid.Trainer([part]).program.minimizes[0].parameters
      ('generator/fc_0.w_0',)
    """

    program_func: ProgramFunction
    optimizer: OptimizerLike | None = None
    parameter_list: str | Sequence[str] | None = None
    reader: ReaderLike | None = None
    feed_order: FeedOrder = None
    feed_from: Mapping[str, str] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.name is not None and (not isinstance(self.name, str) or not self.name or "/" in self.name):
            raise errors.ArgumentError(
                f"TrainingProgram(name={self.name!r}): expected a name without '/', which stands between the names of "
                f"a program and its values, as in 'generator/loss'"
            )

    def discovered(self, precision: str | None) -> Program:
        """Trace the program function, and return a Program that minimizes the loss with the optimizer.

        Raises:
          FluidError: tracing the program fails, or `parameter_list` matches no parameter.
        """
        program = trained_program(self.program_func, self.optimizer, precision, self.parameter_list)
        program.name = self.name or program.name
        return program


ProgramsLike = Sequence[TrainingProgram | tuple[ProgramFunction, OptimizerLike] | ProgramFunction]
"""Several programs of a Trainer: pairs of a program function and its optimizer, or TrainingPrograms."""


def declared_programs(
    programs: ProgramFunction | ProgramsLike | None, optimizer: OptimizerLike | None
) -> list[TrainingProgram]:
    """Return the programs of a Trainer as TrainingPrograms.

    Raises:
      ArgumentTypeError: an entry is not a program.
      ArgumentError: there are no programs.
    """
    if isinstance(programs, TrainingProgram):
        return [_one(programs, optimizer)]
    if not isinstance(programs, list | tuple):
        return [TrainingProgram(programs, optimizer)]  # type: ignore[arg-type]
    if not programs:
        raise errors.ArgumentError(
            "a Trainer needs at least one program: fluid.Trainer([(discriminator, optimizer_d), (generator, "
            "optimizer_g)])"
        )
    return [_one(program, optimizer) for program in programs]


def discovered(declared: Sequence[TrainingProgram], precision: str | None) -> list[Program]:
    """Trace the program functions of a Trainer, and return one Program for each.

    Raises:
      FluidError: tracing a program fails.
      ArgumentError: two programs have one name.
    """
    programs: list[Program] = []
    for each in declared:
        program = each.discovered(precision)
        if any(program.name == other.name for other in programs):
            raise errors.ArgumentError(
                f"two programs of the Trainer are called {program.name!r}; give one another name: "
                f'fluid.TrainingProgram({program.name}, optimizer, name="{program.name}_2")'
            )
        programs.append(program)
    if len(programs) > 1:
        warn_of_shared_by_number(programs)
    return programs


def _one(given: Any, optimizer: OptimizerLike | None) -> TrainingProgram:
    if isinstance(given, TrainingProgram):
        return given if given.optimizer is not None else replace(given, optimizer=optimizer)
    if isinstance(given, tuple | list) and len(given) == 2 and callable(given[0]):
        return TrainingProgram(given[0], optimizer if given[1] is None else given[1])
    if callable(given):
        _refuse_layer(given)
        return TrainingProgram(given, optimizer)
    raise errors.ArgumentTypeError(
        f"a Trainer takes programs as pairs of a program function and its optimizer, found {given!r}; write "
        f"fluid.Trainer([(discriminator, optimizer_d), (generator, optimizer_g)]), or fluid.TrainingProgram(generator, "
        f"optimizer_g, parameter_list=...) for one of them"
    )


def _refuse_layer(function: Callable[..., Any]) -> None:
    """Raise ArgumentTypeError for a function that needs arguments, such as a layer, in a list of programs.

    Users of other libraries may pass a list of layers as one net.
    """
    parameters = inspect.signature(function).parameters.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    if needed and not any(p.kind is p.VAR_KEYWORD and p.name in needed for p in parameters):
        name = getattr(function, "__name__", type(function).__name__)
        raise errors.ArgumentTypeError(
            f"a list given to a Trainer is one of programs, functions without arguments, and {name} takes "
            f"{', '.join(needed)}; layers are put together in one function: def program(): ..., which calls them and "
            f"returns the loss"
        )


def trained_program(
    function: Callable[[], Any] | None,
    optimizer: OptimizerLike | None,
    precision: str | None,
    parameter_list: str | Sequence[str] | None = None,
) -> Program:
    """Trace the function of a Trainer with one program, and return the Program.

    Raises:
      ArgumentTypeError: there is no function, or no optimizer and no call of `minimize`.
      UnknownNameError: `parameter_list` names no parameter of the program.
      ArgumentError: there is a `parameter_list` without an optimizer.
    """
    if function is None:
        raise errors.ArgumentTypeError("a Trainer needs a program function: fluid.Trainer(train_program, optimizer)")
    if optimizer is not None:
        function = minimizing(function, optimizer, parameter_list)
    elif parameter_list is not None:
        raise errors.ArgumentError(
            f"parameter_list={parameter_list!r} says what an optimizer moves, and none is given with it: "
            f"fluid.TrainingProgram(program, fluid.optimizer.Adam(1e-3), parameter_list=...); a program that calls "
            f"optimizer.minimize itself says it there: minimize(loss, parameter_list=...)"
        )
    program = Program(function, precision=precision)
    if not program.minimizes:
        raise errors.ArgumentTypeError(
            "a Trainer needs an optimizer: fluid.Trainer(train_program, fluid.optimizer.Adam(1e-3)), "
            "or a program function that calls optimizer.minimize(loss)"
        )
    return program


def minimizing(
    function: Callable[[], Any],
    optimizer: OptimizerLike,
    parameter_list: str | Sequence[str] | None = None,
    is_default: bool = False,
) -> Callable[[], Any]:
    """Return a program function that calls `function`, and then minimizes the loss with the optimizer.

    The loss is the output named "loss" of a dict, at any position, or else the first output.

    Args:
      function: returns a value, or a list, tuple or dict of values. Program raises the errors for a function that
        cannot be called, or that returns nothing to minimize.

    Raises:
      ArgumentTypeError: `optimizer` is none of these.
      ArgumentError: raised when the function runs: it calls `minimize` itself, so there would be two update rules.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> fluid.Program(minimizing(program, fluid.optimizer.SGD(0.1))).minimizes[0].parameters
      ('fc_0.w_0', 'fc_0.b_0')
    """
    chosen = as_optimizer(optimizer)
    if not callable(function):
        return function

    @functools.wraps(function)
    def program() -> Any:
        outputs = function()
        if is_default and current_frame("optimizer.minimize").made.minimizations:
            return outputs
        _refuse_two_rules(chosen)
        loss = _loss_of(outputs)
        if loss is not None and not isinstance(loss, list | tuple):
            if isinstance(outputs, Mapping) and "loss" not in outputs:
                current_frame("optimizer.minimize").note(loss, first_of_dict=True)
            chosen.minimize(loss, parameter_list=parameter_list)
        return outputs

    if not hasattr(program, "__name__"):  # a functools.partial has no name: use the name of its function
        program.__name__ = getattr(getattr(function, "func", None), "__name__", "program")
    return program


def _loss_of(outputs: Any) -> Any:
    if isinstance(outputs, Mapping):
        return outputs["loss"] if "loss" in outputs else next(iter(outputs.values()), None)
    return outputs[0] if isinstance(outputs, list | tuple) and outputs else outputs


def _refuse_two_rules(optimizer: Minimizer) -> None:
    recorded = current_frame("optimizer.minimize").made.minimizations
    if recorded:
        raise errors.ArgumentError(
            f"the program calls {type(recorded[0].optimizer).__name__}.minimize itself, and the Trainer was given "
            f"{type(optimizer).__name__} as well, so both rules would change the parameters; leave one out: "
            f"fluid.Trainer(program), or a program that returns its loss only"
        )


InferenceFunction = Callable[[], Any] | Program


def inference_program(
    infer_func: InferenceFunction | None, programs: Sequence[Program], session: Session, precision: str | None
) -> Program | None:
    """Trace `infer_func`, and return the inference program of a Trainer; None if `infer_func` is None.

    Raises:
      ParameterError: the inference program has a parameter or state that the trained programs lack, or have in another
        shape.
    """
    if infer_func is None:
        return None
    found = infer_func if isinstance(infer_func, Program) else Program(infer_func, precision=precision)
    trained = " and ".join(program.name for program in programs)
    specs = session.scope.specs
    for name, spec in (found.parameters | found.states).items():
        if name not in specs:
            raise errors.ParameterError(
                f"infer_func={found.name} has the parameter {name!r}, created at {spec.site}, which the trained "
                f"program {trained} lacks, so nothing would train it. {errors.nearest(name, specs)} Make the net in "
                f'one function that both call, or give its parameters names: param_attr="out.w"'
            )
        if specs[name].shape != spec.shape:
            raise errors.ParameterError(
                f"infer_func={found.name} has the parameter {name!r} of shape {list(spec.shape)}, created at "
                f"{spec.site}, and the trained program {trained} has it of shape {list(specs[name].shape)}, created at "
                f"{specs[name].site}; make the net in one function that both call"
            )
    session.engine.check_paths(found, found.parameters | found.states)
    warn_of_shared_by_number([*programs, found])
    return found
