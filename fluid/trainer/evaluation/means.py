"""Means: the means of a program's scalars over training steps, collected without waiting for the device.

Also here: the names and scalars of a training that handlers use, and intervals of steps and epochs.
"""

import math
import re
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import Program, whole_number
from fluid.runtime import Results
from fluid.runtime.in_flight import IN_FLIGHT
from fluid.runtime.results import Later
from fluid.trainer.events import BeginEpochEvent, BeginTrainEvent, EndEpochEvent, EndStepEvent
from fluid.trainer.handlers import Handler

Interval = int | str
"""The argument `every=`: a number of steps, or a string such as "epoch", "2 epochs" or "100 steps"."""


class Every:
    """The interval of a handler, from its argument `every=`.

    Args:
      value: a number of steps, or "epoch", "2 epochs", "step", "100 steps".
      owner: the name of the handler, for messages.

    Raises:
      ArgumentError: `value` is none of these.

    Example:
      >>> every = Every("100 steps", "TestEvery")
      >>> every.at_step(100), every.at_step(101)
      (True, False)
    """

    def __init__(self, value: Interval, owner: str):
        words = re.fullmatch(r"(?:([1-9]\d*) )?(step|epoch)s?", value) if isinstance(value, str) else None
        try:
            self._count = int(words[1] or 1) if words else whole_number(owner, "every", value)
        except errors.ArgumentError:
            raise errors.ArgumentError(
                f"{owner}(every={value!r}): expected a number of steps, or one of epochs; "
                f'write every=100, every="epoch" or every="2 epochs"'
            ) from None
        self._unit = words[2] if words else "step"

    def at_step(self, done: int) -> bool:
        """Return whether an interval of steps ends after `done` steps."""
        return self._unit == "step" and done % self._count == 0

    def steps_left(self, done: int) -> float:
        """Return the number of steps after `done` to the end of the interval; infinity for an interval of epochs."""
        return self._count - done % self._count if self._unit == "step" else math.inf

    def at_epoch(self, event: EndEpochEvent) -> bool:
        """Return whether an interval of epochs ends with this epoch; a stopped epoch does not count."""
        return self._unit == "epoch" and event.completed and (event.epoch + 1) % self._count == 0


def output_names(program: Program) -> list[str]:
    """Return the names of the outputs of a program; without names, `loss`, `output_1`, `output_2` and so on."""
    return list(program.output_names or ["loss", *(f"output_{i}" for i in range(1, len(program.outputs)))])


def scalar_outputs(program: Program) -> dict[str, int]:
    """Return the position, among the outputs of a program, of each output of shape `[]` or `[1]`, by name."""
    named = enumerate(zip(output_names(program), program.outputs, strict=True))
    return {name: place for place, (name, output) in named if output.shape in ((), (1,))}


def value_name(programs: Collection[str], program: str, name: str) -> str:
    """Return the name of a program's value in a Trainer; with several programs, the program's name comes first.

    Args:
      programs: the names of all programs of the Trainer.
      program: the name of the program.
      name: the name of the value in its program.

    Example:
      >>> value_name(["net"], "net", "loss"), value_name(["generator", "discriminator"], "generator", "loss")
      ('loss', 'generator/loss')
    """
    return name if len(programs) == 1 else f"{program}/{name}"


def scalars_of(programs: Mapping[str, Program]) -> dict[str, dict[str, int]]:
    """Return the index of each scalar output, by the name of its program and its name in the Trainer.

    A name in the Trainer is as in `value_name`.
    """
    return {
        program: {value_name(programs, program, name): place for name, place in scalar_outputs(found).items()}
        for program, found in programs.items()
    }


def known_values(handler: Handler) -> list[str]:
    """Return the names of all scalars in the training of a handler: program outputs, then values of other handlers."""
    outputs = scalars_of(handler.trainer.programs)
    return [*(name for names in outputs.values() for name in names), *handler._dispatcher.measures()]


def number(value: Any) -> Any:
    """Convert a scalar of shape `[]` or `[1]` to a float; in a population, to float64 `[members]`."""
    if np.ndim(value) == 0:
        return float(value)
    numbers = np.asarray(value, np.float64).reshape(-1)
    return float(numbers[0]) if len(numbers) == 1 else numbers


def finite(values: Mapping[str, float]) -> dict[str, float | str]:
    """Return the values with non-finite numbers as texts, "nan", "inf" or "-inf", because JSON has no such numbers."""
    return {name: value if math.isfinite(value) else str(value) for name, value in values.items()}


def as_json(value: Any) -> Any:
    """Return a number unchanged, and an array `[members]` of a population as a list, both valid JSON."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def from_json(value: Any) -> Any:
    """Convert the result of `as_json` back to a number or an array."""
    return np.asarray(value, np.float64) if isinstance(value, list) else value


def spans(values: Mapping[str, Any]) -> dict[str, float]:
    """Return values to show as floats; for a population, the least and the greatest number of the members.

    If both are equal, the number is shown once, under the plain name. NaNs are ignored.

    Example:
      >>> spans({"loss": np.array([0.5, 0.25, np.nan]), "rate": np.array([0.1, 0.1]), "step_ms": 2.0})
      {'least loss': 0.25, 'greatest loss': 0.5, 'rate': 0.1, 'step_ms': 2.0}
    """
    shown: dict[str, float] = {}
    for name, value in values.items():
        least, greatest = np.fmin.reduce(np.ravel(value)), np.fmax.reduce(np.ravel(value))
        differ = bool(least < greatest)
        shown |= (
            {f"least {name}": float(least), f"greatest {name}": float(greatest)} if differ else {name: float(least)}
        )
    return shown


def by_name(metrics: Results) -> dict[str, Any]:
    """Return Results with names, such as the metrics of a MeasuredEvent, as a dict by name."""
    return dict(zip(metrics.names or (), metrics, strict=True))


# The number of steps whose values are read from the device at once.
_CHUNK = 32
# While the device is idle, reading is postponed until it is busy again, but only up to this number of unread steps.
_POSTPONED = 128


class _Chunk(NamedTuple):
    """The values of consecutive steps, stacked into one array for each scalar.

    Attributes:
      values: an array `[steps]` for each scalar; in a population `[steps, members]`. Further axes have size 1.
      examples: the number of examples of each step.
    """

    values: Sequence[Any]
    examples: Sequence[int]


class _Found(NamedTuple):
    """The mean, sum, maximum, minimum and last value of one scalar over the steps that were read so far.

    The field `mean` is the weighted sum of the values: it is not yet divided by the sum of the weights. Each field is a
    float; in a population, an array `[members]`.
    """

    mean: Any
    sum: Any
    max: Any
    min: Any
    last: Any


class Means:
    """The values of a program's scalars over many steps: means, weighted by the number of examples of each step.

    For a scalar that the program declares by `layers.metric` as a sum, a maximum, a minimum or a last value, the value
    is this sum, maximum, minimum or last value instead.

    A value is read from the device some steps later, when it is already computed, so that training does not wait. The
    number of unread values is bounded for any number of steps.

    Args:
      program: the program of the outputs.
      places: the index of each output to collect, by name; all `scalar_outputs` by default.

    Example:
      >>> import fluid
      >>> program = fluid.Program(lambda: fluid.layers.mean(fluid.layers.data("x", shape=[2])))
      >>> means = Means(program)
      >>> means.add(fluid.Results([1.0]), examples=3); means.add(fluid.Results([0.0]), examples=1)
      >>> means.read()
      {'loss': 0.75}
    """

    def __init__(self, program: Program, places: Mapping[str, int] | None = None):
        self._program = program
        self._places = dict(scalar_outputs(program) if places is None else places)
        self._unread: deque[tuple[list[Any], int]] = deque()
        self._chunk: _Chunk | None = None
        self._weight = 0.0
        self._found: dict[str, _Found] = {}

    @property
    def names(self) -> list[str]:
        """The names of the scalars that are collected."""
        return list(self._places)

    def add(self, metrics: Results, examples: int) -> None:
        """Add one step.

        Args:
          metrics: the outputs of the program.
          examples: the number of examples in the step.
        """
        self._unread.append(([metrics.unread(place) for place in self._places.values()], examples))
        # The loop has already waited for the oldest steps, unless they ran in one call with the newest.
        if len(self._unread) > _CHUNK + IN_FLIGHT and self._is_computed(_CHUNK) and not self._is_waited_for():
            self._put_together()

    def read(self) -> dict[str, Any]:
        """Return the values by name, after waiting for the last steps; an empty dict without steps."""
        self._fold_chunk()
        self._fold_steps(len(self._unread))
        return self._results()

    def running(self) -> dict[str, Any]:
        """Return the values, by name, over the steps for which the loop has waited; an empty dict without steps."""
        self._fold_chunk()
        count = len(self._unread) - IN_FLIGHT - 1
        while count > 0 and not self._is_computed(count):
            count -= 1
        self._fold_steps(count)
        return self._results()

    def state(self) -> dict[str, Any]:
        """Return the reductions over all steps so far, as JSON for `restore`, after waiting for the last steps."""
        self.read()
        found = {name: [as_json(value) for value in values] for name, values in self._found.items()}
        return {"found": found, "weight": self._weight}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`; scalars that are not collected any more are dropped."""
        found = {name: state["found"][name] for name in self._places if name in state["found"]}
        self._found = {name: _Found(*map(from_json, values)) for name, values in found.items()}
        self._weight = state["weight"]

    def _is_computed(self, count: int) -> bool:
        """Return whether the oldest `count` unread steps are computed.

        They may not be, although the loop waits for old steps, if they run in one call with newer steps.
        """
        return all(is_computed(value) for value in self._unread[count - 1][0][:1])

    def _is_waited_for(self) -> bool:
        """Return whether reading should be postponed, because the idle device waits for the next call of several steps.

        After `_POSTPONED` unread steps, reading is not postponed any more.
        """
        newest = self._unread[-1][0][:1]
        return len(self._unread) <= _POSTPONED and any(isinstance(v, Later) and v.is_ready() for v in newest)

    def _put_together(self) -> None:
        """Read the values of the oldest `_CHUNK` steps.

        On a device with its own memory, each read is expensive. There, the values are stacked into one array for each
        scalar, and read when the next stack is created.
        """
        first, _ = self._unread[0]
        if not first or isinstance(first[0], Later) or _is_near(first[0]):
            self._fold_steps(_CHUNK)
            return
        self._fold_chunk()
        steps = [self._unread.popleft() for _ in range(_CHUNK)]
        self._chunk = _Chunk(stacked([values for values, _ in steps]), [examples for _, examples in steps])

    def _fold_chunk(self) -> None:
        """Add the stacked steps to the reductions of the epoch; the loop has already waited for newer steps."""
        if self._chunk is not None:
            self._fold(self._chunk)
            self._chunk = None

    def _fold_steps(self, count: int) -> None:
        """Add the values of the oldest `count` steps, which are not stacked, to the reductions of the epoch."""
        if count > 0:
            steps = [self._unread.popleft() for _ in range(count)]
            found = on_host([value for values, _ in steps for value in values])
            columns = [np.array(found[place :: len(self._places)]) for place in range(len(self._places))]
            self._fold(_Chunk(columns, [examples for _, examples in steps]))

    def _fold(self, chunk: _Chunk) -> None:
        """Add the values of a chunk of steps to the reductions of the epoch: sums, maxima, minima and last values."""
        weights = np.asarray(chunk.examples, np.float64)
        self._weight += float(weights.sum())
        for name, array in zip(self._places, on_host(chunk.values), strict=True):
            values = np.asarray(array, np.float64).reshape(len(weights), -1)
            weighted, total, largest, smallest, _ = self._found.get(name, (0.0, 0.0, -math.inf, math.inf, math.nan))
            # Every reduction is computed; `_result` selects the one that the program declares.
            self._found[name] = _Found(
                mean=weighted + number(weights @ values),
                sum=total + number(values.sum(axis=0)),
                max=number(np.maximum(largest, values.max(axis=0))),
                min=number(np.minimum(smallest, values.min(axis=0))),
                last=number(values[-1]),
            )

    def _results(self) -> dict[str, Any]:
        return {name: self._result(name, found) for name, found in self._found.items()}

    def _result(self, name: str, found: _Found) -> Any:
        rule = self._program.reductions[self._places[name]]
        kind = rule.over_steps or rule.kind
        if kind in ("sum", "max", "min", "last"):
            return getattr(found, kind)
        return found.mean / self._weight if self._weight else math.nan


@jax.jit
def stacked(steps: Sequence[Sequence[Any]]) -> list[Any]:
    """Stack the values of each scalar over all steps, `[steps, 1]`; in a population `[steps, members]`.

    The arrays stay on the device, and nothing waits: reading one array is as fast as reading one scalar.
    """
    return [jnp.stack([jnp.reshape(value, (-1,)) for value in column]) for column in zip(*steps, strict=True)]


def on_host(values: Sequence[Any]) -> list[np.ndarray]:
    """Copy arrays to the host; training reads all its values through this function."""
    if any(isinstance(value, Later) for value in values):
        stacks = {id(value.stack): value.stack for value in values if isinstance(value, Later)}
        there = dict(zip(stacks, on_host(list(stacks.values())), strict=True))
        return [there[id(v.stack)][v.number] if isinstance(v, Later) else on_host([v])[0] for v in values]
    if values and not _is_near(values[0]):
        return jax.device_get(list(values))
    return [np.asarray(value) for value in values]


def is_computed(value: Any) -> bool:
    """Return whether a value of a step for which the loop has waited can be read without waiting.

    If the step shares a call with newer steps, its value may not be computed yet.
    """
    return not isinstance(value, Later) or value.is_ready()


def _is_near(value: Any) -> bool:
    """Return whether an array is in the memory of the host, where reading costs almost nothing."""
    return not isinstance(value, jax.Array) or next(iter(value.devices())).platform == "cpu"


class TrainingMeans:
    """The scalars of all programs of a Trainer, each averaged over the steps of its own program.

    Args:
      programs: the programs by name.
      places: for each program, by name, the output index of each scalar to collect, by name; all of `scalars_of` by
        default.
    """

    def __init__(self, programs: Mapping[str, Program], places: Mapping[str, Mapping[str, int]] | None = None):
        places = scalars_of(programs) if places is None else places
        self._means = {name: Means(program, places[name]) for name, program in programs.items()}
        self._only = next(iter(self._means.values())) if len(self._means) == 1 else None

    @property
    def names(self) -> list[str]:
        """The names of the scalars of all programs that are collected."""
        return [name for means in self._means.values() for name in means.names]

    def add(self, event: EndStepEvent) -> None:
        """Add one step of the program that the event names."""
        means = self._means[event.program] if self._only is None else self._only
        means.add(event.metrics, event.examples)

    def read(self) -> dict[str, Any]:
        """Return the values by name, after waiting for the last steps; programs without steps are left out."""
        return {name: value for means in self._means.values() for name, value in means.read().items()}

    def running(self) -> dict[str, Any]:
        """Return the values, by name, over the steps for which the loop has waited."""
        return {name: value for means in self._means.values() for name, value in means.running().items()}

    def state(self) -> dict[str, Any]:
        """Return the reductions over all steps so far, as JSON for `restore`."""
        if self._only is not None:
            return self._only.state()
        return {name: means.state() for name, means in self._means.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state` for each program."""
        if self._only is not None:
            self._only.restore(state)
            return
        for name, means in self._means.items():
            means.restore(state[name])


class Averaging(Handler):
    """A base class of handlers that collect means of program outputs; a resumed training continues these means."""

    def __init__(self) -> None:
        self._places: dict[
            str, dict[str, int]
        ] = {}  # program name -> output name -> index of this output in the collected list
        self._names: list[str] = []  # the names of all collected outputs
        self._mean: TrainingMeans | None = None
        self._resumed: Mapping[str, Any] | None = None
        self._begun = False
        self._trained: Any = None  # the Trainer of the last call of `train` with this handler

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Choose the outputs to collect; reset the handler if another Trainer has used it before."""
        every = scalars_of(self.trainer.programs)
        self._places = {program: self._chosen(places) for program, places in every.items()}
        self._names = [name for places in self._places.values() for name in places]
        if self._trained is not self.trainer:
            self._mean = None
            if self._trained is not None and self._resumed is None:
                self._forget()
        self._trained = self.trainer
        self._begun = True

    def steps_ahead(self) -> float:
        """Return infinity: this handler needs only the values in its events, at any later time."""
        return math.inf

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Begin new means in the first epoch of a call of `train`, unless an interrupted epoch continues."""
        if self._begun and (event.first_step == 0 or self._resumed is not None):
            self._mean = None
            if self._resumed is not None:
                self._means().restore(self._resumed)
        self._begun = False
        self._resumed = None

    def end_step(self, event: EndStepEvent) -> None:
        """Add the outputs of the step to the means over the epoch."""
        self._means().add(event)

    def state(self) -> dict[str, Any]:
        """Return the means of the epoch that has not ended, as JSON."""
        return self._means().state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Store the means of a checkpoint; the next `begin_epoch` restores them."""
        self._resumed = state

    def _chosen(self, places: dict[str, int]) -> dict[str, int]:
        """Return the scalars to collect from `places`, the scalars of one program; all by default."""
        return places

    def _forget(self) -> None:
        """Discard results from the training of another Trainer; subclasses override this method."""

    def _means(self) -> TrainingMeans:
        """Return the means over the steps so far, new ones if there are none."""
        if self._mean is None:
            self._mean = TrainingMeans(self.trainer.programs, self._places)
        return self._mean

    def _take(self) -> TrainingMeans:
        """Return the means over the steps so far, and discard them, so that the next step begins new means."""
        mean = self._means()
        self._mean = None
        return mean
