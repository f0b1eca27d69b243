"""Means: the means of a program's scalars over training steps, collected without waiting for the device.

The module also has functions for the names of scalars that handlers use.
"""

import logging
import math
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid._util.text import scaled
from fluid.core import Program, Reduction, completed, warn_once
from fluid.runtime import Results
from fluid.runtime.in_flight import IN_FLIGHT
from fluid.trainer.evaluation.total import MANY, Total
from fluid.trainer.events import BeginEpochEvent, BeginTrainEvent, EndStepEvent
from fluid.trainer.handlers import Handler

log = logging.getLogger("fluid")


def output_names(program: Program) -> list[str]:
    """Return the names of a program's outputs; unnamed outputs are `loss`, `output_1`, `output_2` and so on."""
    return list(program.output_names or ["loss", *(f"output_{i}" for i in range(1, len(program.outputs)))])


def scalar_outputs(program: Program) -> dict[str, int]:
    """Return the index of each scalar output of a program (shape `[]` or `[1]`), by name."""
    named = enumerate(zip(output_names(program), program.outputs, strict=True))
    return {name: place for place, (name, output) in named if output.shape in ((), (1,))}


def warn_of_guess(program: Program, name: str, rule: Reduction) -> None:
    """Warn, once for a program, if `rule` is a guess how a test or a history combines the values of minibatches."""
    for part in rule.parts:
        warn_of_guess(program, name, part)
    if rule.doubt is not None:
        how = "their mean, weighted by examples" if rule.kind == "mean" else "all of them, one behind the other"
        text = (
            f"{rule.doubt}: how the values of {name!r} for several minibatches become one is not known, so that tests "
            f"and the history take {how}, and the result depends on the batch size. Say it in the program: "
            f'layers.metric(value, reduce="mean"), "sum", "max", "min" or "last"; or, for a function of values that '
            f"are known, layers.metric(mean, reduce=jnp.sqrt)"
        )
        warn_once(program, text, lambda: text)


def value_name(programs: Collection[str], program: str, name: str) -> str:
    """Return the name of a program's value in a Trainer; with several programs, the program's name comes first.

    Example:
      >>> value_name(["net"], "net", "loss"), value_name(["generator", "discriminator"], "generator", "loss")
      ('loss', 'generator/loss')
    """
    return name if len(programs) == 1 else f"{program}/{name}"


def scalars_of(programs: Mapping[str, Program]) -> dict[str, dict[str, int]]:
    """Return, for each program name, a dict from the names of the scalar outputs to their indices.

    With several programs, a scalar output has a name like "generator/loss".
    """
    return {
        program: {value_name(programs, program, name): place for name, place in scalar_outputs(found).items()}
        for program, found in programs.items()
    }


def known_values(handler: Handler) -> list[str]:
    """Return the names of all scalars that a handler can monitor: program outputs, then values that handlers report."""
    outputs = scalars_of(handler.trainer.programs)
    return [*(name for names in outputs.values() for name in names), *handler._dispatcher.measures()]


def number(value: Any) -> Any:
    """Convert a scalar to a float; in a population (several trainings at once), to a float64 array `[members]`."""
    if np.ndim(value) == 0:
        return float(value)
    numbers = np.asarray(value, np.float64).reshape(-1)
    return float(numbers[0]) if len(numbers) == 1 else numbers


def finite(values: Mapping[str, float]) -> dict[str, float | str]:
    """Replace non-finite numbers by the strings "nan", "inf" and "-inf", because JSON has no such numbers."""
    return {name: value if math.isfinite(value) else str(value) for name, value in values.items()}


def as_json(value: Any) -> Any:
    """Convert an array `[members]` of a population (several trainings at once) to a list for JSON; keep a number."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def from_json(value: Any) -> Any:
    """Convert the result of `as_json` back to a number or an array."""
    return np.asarray(value, np.float64) if isinstance(value, list) else value


def spans(values: Mapping[str, Any]) -> dict[str, float]:
    """Convert values to floats for display.

    Each value of a population (several trainings at once) becomes its minimum and its maximum. If both are equal,
    the result has only one number, with the plain name. NaNs are ignored.

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
    """Convert named Results, such as the metrics of a MeasuredEvent, to a dict."""
    return dict(zip(metrics.names or (), metrics, strict=True))


# The number of training steps whose values are read from the device in one copy.
_CHUNK = 32


class Means:
    """The values of a program's scalars over many steps, combined as in a test by the rules of `Program.reductions`.

    A value is read from the device some steps later, when it is already computed, so that training does not wait. The
    number of unread values is bounded for any number of steps.

    Example:
      >>> import fluid
      >>> program = fluid.Program(lambda: fluid.layers.mean(fluid.layers.data("x", shape=[2])))
      >>> means = Means(program)
      >>> means.add(fluid.Results([1.0]), examples=3); means.add(fluid.Results([0.0]), examples=1)
      >>> means.read()
      {'loss': 0.75}
    """

    def __init__(self, program: Program, places: Mapping[str, int] | None = None, members: int | None = None):
        self._program = program
        self._places = dict(scalar_outputs(program) if places is None else places)
        self._members = members
        # For each unread step: its values, and the leaves of what the program returns beside them; and its examples.
        self._unread: deque[tuple[list[Any], int]] = deque()
        self._rests: Any = None  # the structure of these leaves
        self._totals: dict[str, Total] = {}

    @property
    def names(self) -> list[str]:
        """The names of the scalars that are collected."""
        return list(self._places)

    def add(self, metrics: Results, examples: int, parts: Sequence[Any] = ()) -> None:
        """Add the outputs of one training step."""
        values = [metrics[place] for place in self._places.values()]
        if parts:
            rests, self._rests = jax.tree.flatten([parts[place] for place in self._places.values()])
            values += rests
        self._unread.append((values, examples))
        # Reading the values of the oldest steps needs no waiting: the training loop has already waited for these steps.
        # Exception: steps that run in one device call with the newest step may still run.
        if len(self._unread) > _CHUNK + IN_FLIGHT and self._is_computed(_CHUNK):
            self._fold_steps(_CHUNK)

    def read(self) -> dict[str, Any]:
        """Wait for the last steps, and return the value of each scalar over all steps, by name; {} without steps."""
        self._fold_steps(len(self._unread))
        return self._results()

    def running(self) -> dict[str, Any]:
        """Return the value of each scalar over the steps that are already computed, by name; {} without steps."""
        count = len(self._unread) - IN_FLIGHT - 1
        while count > 0 and not self._is_computed(count):
            count -= 1
        self._fold_steps(count)
        return self._results()

    def state(self) -> dict[str, Any]:
        """Return everything that was added, as JSON; wait for the last steps."""
        self.read()
        return {"totals": {name: total.state() for name, total in self._totals.items()}}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state`; ignore scalars that are not collected any more, or by another rule."""
        if "totals" not in state:
            log.warning(
                "the checkpoint is of an earlier version of fluid, so that the means over the interrupted epoch cover "
                "the rest of the epoch only"
            )
        for name, saved in state.get("totals", {}).items():
            if name in self._places:
                total = self._total(name, saved["kind"] == "function")
                if total.kind == saved["kind"]:
                    total.restore(saved)

    def _is_computed(self, count: int) -> bool:
        """Return whether the device has computed the oldest `count` unread steps.

        The training loop waits for old steps. But old steps that run in one device call with newer steps may still be
        in flight.
        """
        return all(is_ready(value) for value in self._unread[count - 1][0][:1])

    def _fold_steps(self, count: int) -> None:
        """Read the values of the oldest `count` unread training steps, and add them to the totals."""
        if count > 0:
            steps = [self._unread.popleft() for _ in range(count)]
            found = on_host([value for values, _ in steps for value in values])
            each = len(found) // count
            self._fold([found[place::each] for place in range(each)], [examples for _, examples in steps])

    def _fold(self, columns: Sequence[Any], counts: Sequence[int]) -> None:
        """Add training steps to the totals: for each value, its numbers in all steps; and the examples of each step."""
        rests = [None] * len(self._places)
        if self._rests is not None:
            rests = jax.tree.unflatten(self._rests, columns[len(self._places) :])
        examples = np.asarray(counts, np.float64)
        for name, values, rest in zip(self._places, columns[: len(self._places)], rests, strict=True):
            total = self._total(name, rest is not None)
            total.add_steps(completed(values, rest, total.reduction, examples))
        kept = {name: total.size for name, total in self._totals.items() if total.size}
        if sum(kept.values()) > MANY:
            warn_once(self._program, "rows of an epoch", lambda: _many_rows(kept))

    def _total(self, name: str, has_parts: bool) -> Total:
        """Return the total of a scalar.

        Args:
          has_parts: True if the steps return the values that the scalar is a function of, if it is one. A scalar that
            is a function only in test mode, or that a custom step computes itself, is averaged over the examples.
        """
        if name not in self._totals:
            rule = self._program.reductions_of_steps[self._places[name]]
            rule = Reduction("mean") if rule.kind == "function" and not has_parts else rule
            warn_of_guess(self._program, name, rule)
            self._totals[name] = Total(rule, self._members)
        return self._totals[name]

    def _results(self) -> dict[str, Any]:
        return {name: number(total.result()) for name, total in self._totals.items()}


def _many_rows(kept: Mapping[str, int]) -> str:
    """Return the warning for a training that collects many rows in memory, from their bytes by name of the scalar."""
    found = ", ".join(f"{name!r} ({scaled(size, 'B')})" for name, size in kept.items())
    return (
        f"the history keeps the rows of this epoch so far, in memory and in checkpoints, to compute {found}; compute "
        f"the value from sums, layers.metric([layers.reduce_sum(x), ...], f), or in tests: trainer.test(reader, "
        f"metrics=...)"
    )


def on_host(values: Sequence[Any]) -> list[np.ndarray]:
    """Copy arrays to the host. Training reads all values from the device with this function."""
    first = values[0] if values else None
    if isinstance(first, jax.Array) and any(device.platform != "cpu" for device in first.devices()):
        values = jax.device_get(list(values))  # the copies from a GPU run at the same time
    return [np.asarray(value) for value in values]


def is_ready(value: Any) -> bool:
    """Return whether the device has computed a value, so that reading it does not wait; numbers are always ready."""
    return bool(getattr(value, "is_ready", lambda: True)())


class TrainingMeans:
    """The means of the scalars of all programs of a Trainer, each over the steps of its own program.

    Args:
      places: for each program name, a dict from the name of a scalar to its output index; by default all scalar
          outputs.
    """

    def __init__(self, trainer: Any, places: Mapping[str, Mapping[str, int]] | None = None):
        programs, members = trainer.programs, trainer.session.engine.members
        places = scalars_of(programs) if places is None else places
        self._means = {name: Means(program, places[name], members) for name, program in programs.items()}
        self._only = next(iter(self._means.values())) if len(self._means) == 1 else None

    @property
    def names(self) -> list[str]:
        """The names of the scalar outputs of all programs, over which this object computes means."""
        return [name for means in self._means.values() for name in means.names]

    def add(self, event: EndStepEvent) -> None:
        """Add the outputs of one training step to the means of the program that the event names."""
        means = self._means[event.program] if self._only is None else self._only
        means.add(event.metrics, event.examples, event.parts)

    def read(self) -> dict[str, Any]:
        """Return the mean of each scalar by name, after waiting for the last steps; omit programs without steps."""
        return {name: value for means in self._means.values() for name, value in means.read().items()}

    def running(self) -> dict[str, Any]:
        """Return the mean of each scalar over the steps that are already computed, by name."""
        return {name: value for means in self._means.values() for name, value in means.running().items()}

    def state(self) -> dict[str, Any]:
        """Return the totals of all programs so far, as JSON for `restore`."""
        if self._only is not None:
            return self._only.state()
        return {name: means.state() for name, means in self._means.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue the means of each program from `state`, a result of the method `state`."""
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
        ] = {}  # for each program name: a dict from the name of each averaged scalar to its output index
        self._names: list[str] = []  # the names of all collected outputs
        self._mean: TrainingMeans | None = None
        self._resumed: Mapping[str, Any] | None = None
        self._begun = False
        self._trained: Any = None  # the Trainer of the last call of `train` with this handler

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Select the outputs to average; reset the handler if another Trainer has used it before."""
        every = scalars_of(self.trainer.programs)
        self._places = {program: self._chosen(places) for program, places in every.items()}
        self._names = [name for places in self._places.values() for name in places]
        if self._trained is not self.trainer:
            self._mean = None
            if self._trained is not None and self._resumed is None:
                self._forget()
        self._trained = self.trainer
        self._begun = True

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Reset the means of the program outputs in the first epoch of a call of `train`.

        An interrupted epoch continues with its saved means.
        """
        if self._begun and (event.first_step == 0 or self._resumed is not None):
            self._mean = None
            if self._resumed is not None:
                self._means().restore(self._resumed)
        self._begun = False
        self._resumed = None

    def end_step(self, event: EndStepEvent) -> None:
        """Add the program outputs of one training step to the means over the epoch."""
        self._means().add(event)

    def state(self) -> dict[str, Any]:
        """Return the means over the current epoch so far, as JSON."""
        return self._means().state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Store the means over an interrupted epoch from a checkpoint; the next `begin_epoch` continues them."""
        self._resumed = state

    def _chosen(self, places: dict[str, int]) -> dict[str, int]:
        """Return the scalar outputs of a program whose means this handler collects, as output indices by name.

        The argument has all scalar outputs. A subclass may select some of them.
        """
        return places

    def _forget(self) -> None:
        """Discard results from the training of another Trainer; subclasses override this method."""

    def _means(self) -> TrainingMeans:
        if self._mean is None:
            self._mean = TrainingMeans(self.trainer, self._places)
        return self._mean

    def _take(self) -> TrainingMeans:
        mean = self._means()
        self._mean = None
        return mean
