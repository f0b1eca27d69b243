"""Members: computations for all trainings (members) of a population at once: steps, tests and ensembles.

`Members` is a strategy of Engine, the class that compiles the steps of a Session. By `jax.vmap`, it runs the step of
one training on stacked arrays `[members, ...]`. If an argument of the program function differs among members, the
argument is a named value that each step overrides. If a number of the optimizer differs, the update rule gets the
member's number while JAX traces the step. For a stopped member, the step selects the old arrays instead of the new
arrays. `PopulationSession` holds the stacked arrays. A test covers all members at once. The outputs of an ensemble are
means over members. A reader may have separate data for each member.
"""

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid._util.host_random import root_key
from fluid.checkpoint import LoadReport
from fluid.checkpoint.source import ArraySource
from fluid.core import TRAIN, NestedSequenceBatch, ParameterSpec, Program, SequenceBatch, stand_in
from fluid.core.equations import unneeded
from fluid.metrics import Metrics
from fluid.place import OneDevice, Place, device_of
from fluid.reader.base import Reader, ReaderLike, Rows, as_readers, opened
from fluid.reader.converter import Separate
from fluid.reader.feeder import FeedOrder
from fluid.runtime import Request, Results, Session
from fluid.runtime.engine import Engine
from fluid.runtime.fetch import RATE
from fluid.runtime.parameter_updates import Rates, Rule
from fluid.runtime.seeds import Draw, root_of, seed_of
from fluid.runtime.step import Constants, OneTraining, Step, TrainingState
from fluid.sweeps.vary import Varied
from fluid.trainer.evaluation.evaluate import DatasetEvaluator
from fluid.trainer.evaluation.means import output_names
from fluid.trainer.evaluation.monitor import AUTO, direction
from fluid.trainer.evaluation.validation import RestoreBest, Tests, Validation
from fluid.trainer.events import EventHandler
from fluid.trainer.handlers import Handler
from fluid.trainer.programs import ProgramInput

# `_STATE` and `_CONSTANTS`: for each argument of a step, the axis of members for `jax.vmap`. The axis is None for the
# step counter and the learning rates, which all members share.
_STATE: Any = TrainingState(arrays=0, slots=0, step=None)  # type: ignore[arg-type]
_CONSTANTS: Any = Constants(arrays=0, root=0, rates=None, members=0)  # type: ignore[arg-type]


class Members(OneTraining):
    """A strategy that computes the steps of all trainings (members) of a population at once, by `jax.vmap`.

    All members share a feed that has its declared number of axes. A feed with one more axis has separate data for each
    member, along the axis after the batch axis. A stopped member still computes the step, but its arrays do not change.
    When the first member stops, the step is compiled again: a step that may return old arrays must copy them.

    Args:
      combine: a function that is applied to the stacked results of a test-mode run, such as their mean over members;
        None returns the stacked results.

    Attributes:
      size: the number of members.
      varied: the hyperparameters that differ among the members.
      seeds: for each member, the seed of its initial values and random layers.
      arguments: varied arguments of the program function, by name: arrays `[size]` on the device.
      numbers: varied numbers of the optimizer, by name: arrays `[size]` on the device.
      active: bool `[size]` on the host, True for members in training, False for stopped members.
      flags: the array `active` on the device; None while all members are active.
    """

    size: int

    def __init__(self, varied: Varied, seeds: tuple[int, ...], combine: Callable[[Any], Any] | None = None):
        self.size = varied.size
        self.varied = varied
        self.seeds = seeds
        self.arguments: dict[str, Any] = varied.arguments
        self.numbers: dict[str, Any] = varied.numbers
        self.active = np.ones(self.size, bool)
        self.flags: Any = None
        self._combine = combine
        self._place: Callable[[Any], Any] = lambda value: value

    @property
    def variant(self) -> str:  # type: ignore[override]
        """The text "members have stopped" if a stopped member (training) requires another compilation, else ""."""
        return "" if self.flags is None else "members have stopped"

    def move(self, place: Callable[[Any], Any]) -> None:
        """Copy the data of the members (the trainings of a population) to a device.

        The data are the hyperparameters that differ among members, and a flag for each member that still trains.
        """
        self._place = place
        self.arguments = place(self.varied.arguments)
        self.numbers = place(self.varied.numbers)
        self.activate(self.active)

    def activate(self, active: np.ndarray) -> None:
        """Set the members (trainings of a population) that later steps train: bool `[size]`, False to stop one."""
        self.active = np.array(active, bool)
        self.flags = None if active.all() else self._place(self.active)

    def specs(self, specs: Mapping[str, ParameterSpec]) -> Mapping[str, ParameterSpec]:
        """Return a copy of `specs`, by name, with a leading axis of members in the shape of each array."""
        return {n: replace(spec, shape=(self.size, *spec.shape)) for n, spec in specs.items()}

    def draw(self, seed: int) -> Draw:
        """Draw a random key for each member (each training of a population), for a run in test mode.

        Returns:
          The data of the keys, `[size, ...]`, and the step number 0.
        """
        return np.stack([root_of(seed_of(seed, i)) for i in range(self.size)]), np.int32(0)

    def constants(self) -> Any:
        """Return the values that a training step of a population gets as `Constants.members`.

        These are the flags of the active members (trainings), and the hyperparameters that differ among the members.
        """
        return {"active": self.flags, "arguments": self.arguments, "numbers": self.numbers}

    def functions(self, step: Step) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return two functions that run all members of a population at once: a training step and a test-mode step."""

        def train(state: TrainingState, constants: Constants, feeds: Any, overrides: Any) -> Any:
            def one(state: TrainingState, constants: Constants, feeds: Any) -> Any:
                return self._train_one(step, state, constants, feeds, overrides)

            axes = (_STATE, _CONSTANTS, _feed_axes(step.program, feeds))
            return jax.vmap(one, axes, (_STATE, 0), axis_size=self.size)(state, constants, feeds)

        def test(
            arrays: Any, feeds: Any, overrides: Any = None, root: Any = None, count: Any = 0, arguments: Any = None
        ) -> Any:
            def one(arrays: Any, root: Any, arguments: Any, feeds: Any) -> Any:
                return step.test(arrays, feeds, {**(arguments or {}), **(overrides or {})}, root, count)

            axes = (0, 0, 0, _feed_axes(step.program, feeds))
            results = jax.vmap(one, axes, axis_size=self.size)(arrays, root, arguments, feeds)
            return results if self._combine is None else self._combine(results)

        return train, test

    def learning_rates(self, rates: Rates, program: str, rules: Sequence[Rule], slots: Any) -> list[jax.Array]:
        """Return the learning rates of all parallel trainings in the next step: `[size]` for each `minimize` call."""
        if self.varied.replaces_rate(rules):
            return [self.numbers[RATE]]
        given = rates.of(program)

        def one(slots: Any, numbers: Mapping[str, Any]) -> list[Any]:
            own = zip(self.varied.rules(rules, numbers), given, slots, strict=True)
            return [rule.rate(rate, state) for rule, rate, state in own]

        return jax.vmap(one, axis_size=self.size)(slots, self.numbers)

    def unused(self, engine: Engine, program: Program) -> set[str]:
        """Return the names of varied hyperparameters of a population that have no effect on a training step."""
        step = Step(program, engine.rules[program.name], Request(TRAIN, None, tuple(program.feeds)), engine.function)
        state, constants = engine.arguments(step)
        one = jax.tree.map(_of_one, (state, constants._replace(members=None)))

        def trained(candidates: Mapping[str, Any], state: TrainingState, constants: Constants, feeds: Any) -> Any:
            arguments, numbers = ({n: candidates[n] for n in part} for part in (self.arguments, self.numbers))
            members = {"active": None, "arguments": arguments, "numbers": numbers}
            return self._train_one(step, state, constants._replace(members=members), feeds, {})

        candidates = {n: values[0] for n, values in self.varied.values.items()}
        feeds = {name: stand_in(spec, 2, steps=(1, 1)) for name, spec in program.feeds.items()}
        return unneeded(trained, candidates, *one, feeds)

    def _train_one(
        self, step: Step, state: TrainingState, constants: Constants, feeds: Any, overrides: Any
    ) -> tuple[TrainingState, Any]:
        """Run one training step of one member, inside `jax.vmap`; for arguments and results, see `Step.train`.

        For a stopped member, return the old arrays and the old optimizer state.
        """
        active, arguments, numbers = (constants.members[name] for name in ("active", "arguments", "numbers"))
        own = copy.copy(step)
        own.rules = self.varied.rules(step.rules, numbers)
        if step.rules and self.varied.replaces_rate(step.rules):
            constants = constants._replace(rates=[numbers[RATE]])
        after, results = own.train(state, constants._replace(members=None), feeds, {**arguments, **overrides})

        def changed(new: Any, old: Any) -> Any:
            new = new.astype(old.dtype)  # a traced hyperparameter may have promoted float16 to float32
            return new if active is None else jnp.where(active, new, old)

        arrays = jax.tree.map(changed, after.arrays, dict(state.arrays))
        return TrainingState(arrays, jax.tree.map(changed, after.slots, state.slots), after.step), results


def _feed_axes(program: Program, feeds: Mapping[str, Any]) -> dict[str, int | None]:
    """Return, for each feed, the index of the axis of population members; None for a feed that all members share."""
    axes: dict[str, int | None] = {}
    for name, value in feeds.items():
        declared = len(program.feeds[name].shape)
        stacked = isinstance(value, jax.Array | np.ndarray | jax.ShapeDtypeStruct) and value.ndim > declared
        axes[name] = min(1, declared) if stacked else None
    return axes


def _of_one(array: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of a stacked array `[members, ...]` without the leading axis of members."""
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)


_ACTIVE = "@active"
_VARIED = "@vary/"


class StackedOnDevice(OneDevice):
    """A layout that puts the arrays of a population on one device, each with a leading axis of members."""

    def __init__(self, device: jax.Device, size: int):
        super().__init__(device)
        self._size = size

    def on(self, device: jax.Device) -> "StackedOnDevice":
        """Return a layout (a placement of arrays) like this one for a population on the device `device`."""
        return StackedOnDevice(device, self._size)

    def initial(self, program: Any, root: jax.Array | None) -> dict[str, Any]:
        """Return the initial parameters and states of a population (several trainings at once), by name.

        The values of all members (trainings) are stacked to arrays `[members, ...]`.
        """
        keys: list[Any] = [None] * self._size
        if root is not None:
            keys = [jax.random.wrap_key_data(one) for one in np.asarray(jax.random.key_data(root))]
        each = [program.init(key) for key in keys]
        stacked: dict[str, Any] = self.place({n: np.stack([np.asarray(found[n]) for found in each]) for n in each[0]})
        return stacked

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return an update rule's initial optimizer state; each array has a first axis of members (trainings)."""
        return self.place(rule.first_slots(parameters, members=self._size))


class PopulationSession(Session):
    """A Session for a population: many trainings (members) of one program at once.

    The arrays, optimizer states and random keys in its scope have a leading axis of members. All members share one step
    counter.
    """

    def __init__(
        self, program: Program, members: Members, place: Place = None, mode: str | None = None, **options: Any
    ):
        layout = StackedOnDevice(device_of(place), members.size)
        engine = Engine(layout, members.seeds[0], strategy=members, **options)
        members.move(engine.place)
        engine.scope.root = layout.place(np.stack([jax.random.key_data(root_key(seed)) for seed in members.seeds]))
        self._members = members
        self._open(engine, [program], mode)

    def _take_params(
        self, source: ArraySource, program: Program | None = None, *rest: Any, **allowed: Any
    ) -> LoadReport:
        """Set the parameters and states of all members from stacked arrays, or from the arrays of one training.

        Args:
          source: the arrays by name: `[members, ...]`, or without the axis of members to set all members equally.
        """
        specs = self.scope.specs
        shared = {n: a for n, a in source.arrays.items() if n in specs and a.shape == specs[n].shape[1:]}
        stacked = {name: np.broadcast_to(array, specs[name].shape) for name, array in shared.items()}
        return super()._take_params(source._replace(arrays={**source.arrays, **stacked}), None, *rest, **allowed)

    def learning_rates(self, program: Any = None) -> tuple[Any, ...]:
        """Return the learning rates of the next step of a population: for each `minimize` call, float32 `[members]`."""
        return tuple(np.asarray(rate) for rate in self.engine.current_rates(self.engine.find(program)))

    def set_learning_rates(self, rates: Any, program: Any = None) -> None:
        """Set the learning rates of all members to equal values; for the arguments, see `Session.set_learning_rates`.

        Raises:
          ArgumentError: `vary` sets a separate learning rate for each member.
        """
        if RATE in self._members.numbers:
            raise errors.ArgumentError(
                f"learning_rate = {rates!r}: vary gives each member a learning rate, expected that it stays; leave "
                f'vary={{"learning_rate": ...}} out to set one for all of them'
            )
        super().set_learning_rates(rates, program)

    def _live_state(self) -> dict[str, Any]:
        """Return all arrays that another session needs to continue the training of the population, by name.

        The dict has the arrays of `Session.state`. `@active` holds the flags of the active members (trainings that are
        not stopped), and `@vary/NAME` holds the values of the varied hyperparameter `NAME`.
        """
        differing = {f"{_VARIED}{n}": v for n, v in {**self._members.arguments, **self._members.numbers}.items()}
        return {**super()._live_state(), **differing, _ACTIVE: self.engine.place(self._members.active)}

    def restore(self, state: Mapping[str, Any], own: Collection[str] = ()) -> None:
        """Restore the arrays that `state` of a session with an equal program returned; see `Session.restore`.

        Raises:
          ParameterError: the varied hyperparameters differ from the saved values; then nothing is restored.
        """
        for name, values in self._members.varied.values.items():
            before = np.asarray(state[f"{_VARIED}{name}"])
            if not np.array_equal(before, values):
                raise errors.ParameterError(
                    f"vary={{{name!r}: {values.tolist()}}}, found {before.tolist()} in what was saved, expected the "
                    f"same: the members would go on with other values than they began with. Give vary as it was, or "
                    f"use another checkpoint_dir"
                )
        super().restore(state, own)
        self._members.activate(np.asarray(state[_ACTIVE]))


class MembersEvaluator(DatasetEvaluator):
    """An evaluator that tests all members of a population, and stores the results of the last test."""

    def __init__(self, session: Any, size: int):
        super().__init__(session)
        self._size = size
        self._results: Results | None = None

    def test(
        self,
        input: ProgramInput,
        reader: ReaderLike,
        feed_order: FeedOrder,
        metrics: Metrics,
        *rest: Any,
        **more: Any,
    ) -> Results:
        """Test all members (trainings of a population) over one pass of a reader.

        The arguments are as for `DatasetEvaluator.test`. Each result has a leading axis of members. The results are
        stored for `best`, except in a test with `fetch`.
        """
        results = super().test(input, reader, feed_order, metrics, *rest, **more)
        if more.get("fetch") is None:
            self._results = Results(list(results), [*output_names(input.program), *metrics])
        return results

    def best(self, name: str | None, mode: str) -> int:
        """Return the index of the member (training) with the best value in the last test; see `Population.best`."""
        if self._results is None:
            raise errors.ArgumentError(
                "best() compares the results of the last test, and there is none; population.test(reader) makes one"
            )
        found = self._results[self._results.keys()[0] if name is None else name]
        if name is not None or mode != AUTO:
            mode = direction(name or "", mode, lambda mode: f"population.best({name!r}, mode={mode!r})")
        values = np.asarray(found, np.float64)
        if found is None or values.size != self._size:
            raise errors.ArgumentError(
                f"best({name!r}): found values of shape {list(values.shape[1:])} for each member, expected one number; "
                f"name a scalar of the program or a metric of the test"
            )
        known = np.where(np.isfinite(values.reshape(-1)), values.reshape(-1), np.nan)
        if np.isnan(known).all():
            raise errors.ArgumentError(f"best({name!r}): the value of every member is infinite or NaN")
        return int(np.nanargmax(known) if mode == "max" else np.nanargmin(known))


class MembersValidation(Validation):
    """The tests of a population during training; handlers that expect the numbers of a single training are refused."""

    def around(
        self, handlers: Sequence[Handler | EventHandler], tests: Tests, best: RestoreBest
    ) -> Sequence[Handler | EventHandler]:
        """Return all handlers of a call of `train`, from the user and from the Trainer; see `Validation.around`.

        Raises:
          ArgumentError: a handler, or `restore_best`, expects one number, not an array with a number for each training.
        """
        for handler in handlers:
            if isinstance(handler, Handler) and not handler.for_members:
                raise errors.ArgumentError(
                    f"{type(handler).__name__} follows the numbers of one training, and in a Population each is an "
                    f"array of one for each member; expected TestEvery, EarlyStopping, or a handler that reads such "
                    f"arrays and says so: for_members = True in its class"
                )
        if best:
            raise errors.ArgumentError(
                f"train(restore_best={best!r}): which moment was best differs among the members; let "
                f"fluid.handlers.EarlyStopping stop each of them, or keep population[i] in a handler of your own"
            )
        return super().around(handlers, tests, best)


def mean_of_members(results: Any) -> Any:
    """Return the mean over the members, `[...]`, of each result `[members, ...]` of a test-mode run.

    Raises:
      ArgumentError: a result is a sequence, or is not floating-point.
    """
    return jax.tree.map(_mean, results, is_leaf=_is_sequence)


def each_member(results: Any) -> Any:
    """Transpose each result of parallel trainings (members) from `[members, batch, ...]` to `[batch, members, ...]`.

    Raises:
      ArgumentError: a result is a sequence.
    """
    return jax.tree.map(_behind_rows, results, is_leaf=_is_sequence)


class Separately:
    """A value for `Inferencer(params=...)` that selects the outputs of each member of a population, not their mean.

    `Population.each` returns it.
    """

    def __init__(self, make: Callable[..., PopulationSession]):
        self.inference_session = make


def _mean(value: Any) -> Any:
    if _is_sequence(value):
        raise errors.ArgumentError(
            "an ensemble gives the mean of what its members compute, found a sequence, expected an array; ask for what "
            "each member computes: fluid.Inferencer(program, params=population[i])"
        )
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        raise errors.ArgumentError(
            f"an ensemble gives the mean of what its members compute, found {value.dtype}{list(value.shape[1:])}, "
            f"expected floating-point numbers, such as probabilities; fetch those, or ask for what each member "
            f"computes: fluid.Inferencer(program, params=population.each)"
        )
    return value.mean(axis=0)


def _behind_rows(value: Any) -> Any:
    if _is_sequence(value):
        raise errors.ArgumentError(
            "the members of an ensemble give arrays, found a sequence; ask one of them: "
            "fluid.Inferencer(program, params=population[i])"
        )
    return jnp.moveaxis(value, 0, min(1, value.ndim - 1))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, SequenceBatch | NestedSequenceBatch)


_END = object()


def separate(readers: Sequence[ReaderLike]) -> Reader:
    """Return a reader that gives each member of a population separate minibatches; see `Population.separate`."""
    found = as_readers("Population.separate", readers)

    def iterate(epoch: int, start: int) -> Rows:
        with opened(found, epoch, start) as rows:
            while True:
                minibatches = tuple(next(its, _END) for its in rows)
                ended = [member for member, minibatch in enumerate(minibatches) if minibatch is _END]
                if len(ended) == len(minibatches):
                    return
                if ended:
                    raise errors.ReaderError(
                        f"the reader of member {ended[0]} has ended, and that of another one has not; expected readers "
                        f"of the same number of minibatches: Population.separate([reader_0, reader_1, ...])"
                    )
                yield Separate(minibatches)

    return Reader(iterate, {"separate": [reader.plan for reader in found]})
