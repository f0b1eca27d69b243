"""TrainingProgram: one of several programs of a Trainer, with its optimizer, what that moves, and its reader."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fluid import errors
from fluid.core import Program
from fluid.optimizer.base import OptimizerLike
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.trainer.minimizing import trained_program
from fluid.trainer.programs.sharing import warn_of_shared_by_number

ProgramFunction = Callable[[], Any]
"""A function without arguments that calls layers and returns the loss, or several values, the loss first."""


@dataclass(frozen=True)
class TrainingProgram:
    """One of several programs that a Trainer trains, see `docs/programs.md`.

    A pair `(program_func, optimizer)` is short for one of these.

    Args:
      program_func: as for Trainer.
      optimizer: as for Trainer; the one that the Trainer is given for all of them, by default.
      parameter_list: names and globs of the parameters that the optimizer moves, such as `"generator/*"`; all that the
        program uses, by default.
      reader: minibatches of this program alone; by default those of `trainer.train(reader)`.
      feed_order: as for `Trainer.train`, for the minibatches of this program.
      feed_from: feeds that another program computes, by name of the feed: `{"fake": "generator/image"}` is the value
        `image` of the program `generator`. It is computed for each step anew, in test mode, with the parameters as they
        are then; the minibatch has what that program needs for it beside the other feeds.
      name: how events, metrics and `trainer.test(program=...)` call it; the name of the function by default.

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
        """The Program, which minimises its loss.

        Raises:
          FluidError: the program has a mistake that its shapes show, or `parameter_list` names nothing in it.
        """
        program = trained_program(self.program_func, self.optimizer, precision, self.parameter_list)
        program.name = self.name or program.name
        return program


ProgramsLike = Sequence[TrainingProgram | tuple[ProgramFunction, OptimizerLike] | ProgramFunction]
"""What Trainer takes for several programs: pairs of a program function and its optimizer, or TrainingPrograms."""


def declared_programs(
    programs: ProgramFunction | ProgramsLike | None, optimizer: OptimizerLike | None
) -> list[TrainingProgram]:
    """What a Trainer is given as its program, or programs.

    Args:
      programs: as the user gave them.
      optimizer: that of programs which bring none; they do not share its slots.

    Raises:
      ArgumentTypeError: something is no program.
      ArgumentError: there is none.
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
    """The Programs of a Trainer.

    Args:
      declared: from `declared_programs`.
      precision: see `fluid.Program`.

    Raises:
      FluidError: a program has a mistake that its shapes show.
      ArgumentError: two have one name.
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
    """Refuse a list of layers, which other libraries take for one net.

    Raises:
      ArgumentTypeError: the function needs arguments.
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
