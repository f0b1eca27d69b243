"""Population: a Trainer for many independent trainings of one program at once, compiled to one XLA program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from fluid import errors
from fluid.checkpoint import PathLike, source_of
from fluid.core import TEST, Program, fitting, own_array, warn, whole_number
from fluid.distributed import group
from fluid.optimizer.base import OptimizerLike
from fluid.place import Place
from fluid.reader.base import Reader, ReaderLike
from fluid.reader.buckets import MAX_COMPILATIONS, Ladders
from fluid.runtime import StepFunction
from fluid.runtime.engine import Engine
from fluid.runtime.state_io import ReadOnlyArrays
from fluid.sweeps.members import (
    Members,
    MembersEvaluator,
    MembersValidation,
    PopulationSession,
    Separately,
    each_member,
    mean_of_members,
    separate,
)
from fluid.sweeps.vary import Varied, Vary
from fluid.trainer import CheckpointConfig, Trainer
from fluid.trainer.agreement import compare
from fluid.trainer.checkpoint.train_calls import Readers
from fluid.trainer.loop import Training
from fluid.trainer.programs import ProgramFunction, declared_programs, discovered


class Population(Trainer):
    """A trainer that runs many trainings of one program at once, with different seeds and hyperparameters.

    The trainings are called the members of the population. They share the program, the shapes and, by default, the
    minibatches. Each member has separate parameters, states, optimizer state and random numbers, equal to the values of
    a Trainer with the member's seed and hyperparameters. All members run as one XLA program, which for small models is
    many times faster than successive trainings. A Population returns the results of a Trainer with a leading axis of
    members: metrics of events and tests are arrays `[members]`, and `population.params` are arrays `[members, ...]`.
    See also `docs/population.md`.

    Args:
      program_func: as for Trainer. It may take the arguments that `vary` names.
      optimizer: as for Trainer.
      size: the number of members; by default the number of seeds, or of values in `vary`.
      seeds: for each member, the seed of its initial values and random layers; `0, 1, 2 ...` by default.
      vary: hyperparameters that differ among the members: a list with one number per member, by name. A name is an
        argument of the program function, or a number of the optimizer such as `learning_rate`, `beta1` or
        `weight_decay`. An argument, such as `dropout` in `def program(dropout=0.5)`, is passed as a traced scalar.
        Varied learning rates replace a constant rate, and multiply a schedule.
      place: a device; None for JAX's default.
      precision: as for Trainer.
      buckets: as for Trainer.
      max_compilations: as for Trainer.
      checkpoint_config: as for Trainer, without `keep_best`: the best checkpoint differs among the members.
      step: as for Trainer.
      params: initial arrays by name: stacked arrays `[members, ...]`, or the arrays of one training for all members.
      param_path: a file with initial arrays.

    Attributes:
      session: the Session that runs the steps; its scope has arrays `[members, ...]`.
      program: the Program.
      seeds: the seed of each member.
      vary: the numbers of each member, by name.

    Raises:
      UnknownNameError: a name in `vary` is neither an argument of the program function nor a number of the optimizer.
      ArgumentError: the length of a list in `vary` or `seeds` differs from the number of members; a value has no
        effect, changes the structure of the program, or is out of range.
      FluidError: as from Trainer.

    Example:
      >>> import fluid, numpy as np
      >>> def program(scale=1.0):
      ...     x = fluid.layers.data("x", shape=[2])
      ...     y = fluid.layers.data("y", shape=[1])
      ...     error = fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y)
      ...     return {"loss": scale * fluid.layers.mean(error)}
      >>> x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
      >>> data = fluid.reader.arrays((x, x.sum(1, keepdims=True)), batch_size=16)
      >>> rates = [0.0, 0.01, 0.1]
      >>> population = fluid.Population(program, fluid.optimizer.SGD(), vary={"learning_rate": rates})
      >>> history = population.train(data, num_epochs=20)
      >>> population.test(data)["loss"].shape, population.best("loss")
      ((3,), 2)
      >>> best = fluid.Trainer(program, fluid.optimizer.SGD(), params=population[2])
      >>> bool(best.test(data)["loss"] < 1e-4)
      True
    """

    _evaluator: MembersEvaluator

    @fitting("fluid.Population")
    def __init__(
        self,
        program_func: ProgramFunction | None = None,
        optimizer: OptimizerLike | None = None,
        size: int | None = None,
        *,
        seeds: Sequence[int] | None = None,
        vary: Vary | None = None,
        place: Place = None,
        precision: str | None = None,
        buckets: Ladders = None,
        max_compilations: int = MAX_COMPILATIONS,
        checkpoint_config: CheckpointConfig | None = None,
        step: StepFunction | None = None,
        params: Mapping[str, Any] | None = None,
        param_path: PathLike | None = None,
    ):
        function = _checked(program_func)
        vary = {} if vary is None else vary
        self.seeds = _seeds(size, seeds, vary)
        self._varied = Varied(function, vary, len(self.seeds))
        if len(set(self.seeds)) == 1 and all(value == values[0] for values in vary.values() for value in values):
            warn(
                f"Population(seeds={list(self.seeds)}): the members have one seed, and nothing varies, so that they "
                f"are the same training; leave seeds= out for the seeds 0, 1, 2 ..., or give vary= other values"
            )
        self.vary = {name: list(values) for name, values in vary.items()}
        if checkpoint_config is not None and getattr(checkpoint_config, "keep_best", None) is not None:
            raise errors.ArgumentError(
                f"keep_best={checkpoint_config.keep_best!r}: which checkpoint is best differs among the members of a "
                f"Population, expected keep_best=None"
            )
        self._plan = None
        self._inference = None
        self._stacked = Members(self._varied, self.seeds)
        with self._varied.explaining(precision):
            self._varied.check_values(precision)
            declared = declared_programs(self._varied.program(function), optimizer)
            (program,) = discovered(declared, precision)
            session = PopulationSession(
                program,
                self._stacked,
                place,
                mode=TEST,
                function=step,
                precision=precision,
                buckets=buckets,
                max_compilations=max_compilations,
            )
            self._check_varied(session.engine, program)
        self._set_up(declared, session, MembersEvaluator(session, len(self)))
        self._start_from([source for source in (param_path, params) if source is not None])
        compare(group(), session, [program], seed=0, precision=precision)
        self._keep_checkpoints(checkpoint_config, MembersValidation)

    def _check_varied(self, engine: Engine, program: Program) -> None:
        """Check that each hyperparameter that differs among the trainings has an effect on a training step."""
        self._varied.check_names(engine.rules[program.name])
        try:
            unused = sorted(self._stacked.unused(engine, program))
        except jax.errors.JAXTypeError as error:
            raise errors.ArgumentError(
                f"vary: one of {', '.join(map(repr, self._varied.numbers))} decides what the optimizer does, found "
                f"{type(error).__name__} for a scalar that stands for the numbers of all members; train a Population "
                f"for each value of it"
            ) from error
        if unused:
            raise errors.ArgumentError(
                f"vary={{{unused[0]!r}: ...}} changes nothing: a training step does not depend on it, expected "
                f"something that it does; use {unused[0]!r} in the program, or leave it out of vary"
            )

    def __len__(self) -> int:
        return len(self.seeds)

    def __getitem__(self, member: int) -> ReadOnlyArrays:
        """Return copies of the parameters and states of one member, by name, as `Trainer.params` does for a Trainer.

        Raises:
          ArgumentError: the index is out of range.
        """
        size = len(self)
        index = whole_number("population", "member", member, least=-size, most=size - 1)
        scope = self.session.scope
        with scope.lock:
            arrays = {name: own_array(np.asarray(array)[index]) for name, array in scope.arrays.items()}
        return ReadOnlyArrays(arrays)

    def __iter__(self) -> Iterator[dict[str, jax.Array]]:
        return (self[member] for member in range(len(self)))

    @property
    def active(self) -> np.ndarray:
        """The state of each member: bool `[members]`, True for members in training, False for stopped members."""
        return self._stacked.active.copy()

    @property
    def each(self) -> Separately:
        """A value for `fluid.Inferencer(params=...)` that selects the outputs of each member instead of their mean.

        The outputs have the shape `[batch, members, ...]`.

        Example:
          >>> import fluid
          >>> def program():
          ...     x = fluid.layers.data("x", shape=[2])
          ...     return fluid.layers.mean(fluid.layers.fc(x, size=1, name="guess"))
          >>> def guess():
          ...     return fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, name="guess")
          >>> population = fluid.Population(program, fluid.optimizer.SGD(0.1), size=3)
          >>> feed = {"x": [[1, 2], [3, 4]]}
          >>> fluid.Inferencer(guess, params=population).infer(feed)[0].shape
          (2, 1)
          >>> fluid.Inferencer(guess, params=population.each).infer(feed)[0].shape
          (2, 3, 1)
        """
        return Separately(functools.partial(self._inference_session, each_member))

    def inference_session(self, function: ProgramFunction, place: Place, precision: str | None) -> PopulationSession:
        """Return a session for `fluid.Inferencer(function, params=population)`, with means over members as outputs."""
        return self._inference_session(mean_of_members, function, place, precision)

    @staticmethod
    def separate(readers: Sequence[ReaderLike]) -> Reader:
        """Return a reader for `train` that gives each member (one of the parallel trainings) separate minibatches.

        Args:
          readers: one reader for each member, with equal numbers and sizes of minibatches. Sequences are not
            supported.

        Raises:
          ReaderError: one reader ends before the others; raised when `train` reads the data.

        Example:
          >>> import fluid, numpy as np
          >>> def program():
          ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
          >>> x = np.random.default_rng(0).normal(size=(8, 2)).astype("float32")
          >>> readers = [fluid.reader.arrays((x,), batch_size=4, shuffle=True, seed=seed) for seed in range(3)]
          >>> population = fluid.Population(program, fluid.optimizer.SGD(0.1), size=3)
          >>> history = population.train(fluid.Population.separate(readers))
          >>> history["loss"][0].shape
          (3,)
        """
        return separate(readers)

    def stop(self, members: Sequence[int] | None = None) -> None:
        """Stop the training of all members, or of some members, after the current step.

        The parameters, states and optimizer state of a stopped member stay unchanged until the next call of `train`.
        Training ends when all members have stopped.

        Args:
          members: indices of the members; all by default.
        """
        active = self.active
        active[slice(None) if members is None else np.asarray(members, int)] = False
        if members is not None and (active != self.active).any():
            self._stacked.activate(active)
        if not active.any():
            super().stop()

    def best(self, name: str | None = None, mode: str = "auto") -> int:
        """Return the index of the member with the best value in the last test, including tests during training.

        Args:
          name: the name of the value: an output of the program or a metric; the first output by default. Outputs
            without names are called `loss`, `output_1` and so on.
          mode: "min" or "max": the direction of better values. By default, the direction is derived from the name; for
            the first output, the loss, it is "min". Members with an infinite or NaN value are ignored.

        Raises:
          ArgumentError: there was no test, the value is not a single number per member, no member has a finite value,
            or no direction can be derived from the name.
          UnknownNameError: no value of the test has this name.
        """
        return self._evaluator.best(name, mode)

    def save_inference_model(self, *arguments: Any, **options: Any) -> NoReturn:
        """Raise ArgumentError: a file of an exported model holds one model, but a population has several."""
        raise errors.ArgumentError(
            "a file of an exported model holds one model, found a Population, expected the parameters of a member: "
            "fluid.io.save_inference_model(path, infer_func, population[i])"
        )

    def _train(self, run: Training, num_epochs: int, readers: Readers) -> None:
        if run.progress.epoch < num_epochs and not run.progress.resuming:
            self._stacked.activate(np.ones(len(self), bool))
        super()._train(run, num_epochs, readers)

    def _inference_session(
        self, combine: Callable[[Any], Any], function: ProgramFunction, place: Place, precision: str | None
    ) -> PopulationSession:
        program = Program(self._varied.program(function), precision=precision)
        session = PopulationSession(program, Members(self._varied, self.seeds, combine), place)
        session._take_params(source_of(self.params), allow_extra=True)
        return session


def _checked(function: Any) -> ProgramFunction:
    """Check that the argument `program_func` is one program function, and return it."""
    if not callable(function) or isinstance(function, type | Program):
        raise errors.ArgumentTypeError(
            f"a Population trains one program function, found {function!r}; write fluid.Population(program, optimizer, "
            f"size=16)"
        )
    return function


def _seeds(size: int | None, seeds: Sequence[int] | None, vary: Any) -> tuple[int, ...]:
    """Return the seed of each member, from the arguments `size`, `seeds` and `vary` of Population."""
    given = next((len(v) for v in vary.values() if hasattr(v, "__len__")), None) if isinstance(vary, Mapping) else None
    count = size if size is not None else len(seeds) if seeds is not None else given
    if count is None:
        raise errors.ArgumentError(
            "Population: how many members there are is not said, expected size=16, seeds=[...] or a list in vary"
        )
    # A Population needs at least two members (trainings). For one member, a Trainer is better, because a Trainer
    # returns scalars instead of arrays.
    count = whole_number("Population", "size", count, least=2)
    seeds = range(count) if seeds is None else seeds
    if len(seeds) != count:
        raise errors.ArgumentError(
            f"Population(seeds=...): found {len(seeds)} seeds, expected one for each of the {count} members"
        )
    return tuple(whole_number("Population", "seeds", seed, least=0) for seed in seeds)
