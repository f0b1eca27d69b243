"""What handlers share: when something is due, which outputs are scalars, and reading them late."""

import re
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import Program
from fluid.session import Results
from fluid.trainer import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
    Handler,
    MeasuredEvent,
)
from fluid.trainer.loop import IN_FLIGHT

Interval = int | str


class Every:
    """When something is due, from what a user writes as `every=`.

    Args:
      value: a number of steps, or "epoch", "2 epochs", "step", "100 steps".
      owner: the handler whose argument it is, for messages.

    Raises:
      ArgumentError: it is none of these.

    Example:
      >>> every = Every("100 steps", "TestEvery")
      >>> every.at_step(100), every.at_step(101)
      (True, False)
    """

    def __init__(self, value: Interval, owner: str):
        found = re.fullmatch(r"(?:([1-9]\d*) )?(step|epoch)s?", str(value) if isinstance(value, str) else "")
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            self._count, self._unit = value, "step"
        elif found:
            self._count, self._unit = int(found[1] or 1), found[2]
        else:
            raise errors.ArgumentError(
                f"{owner}(every={value!r}): expected a number of steps, or one of epochs; "
                f'write every=100, every="epoch" or every="2 epochs"'
            )

    def at_step(self, done: int) -> bool:
        """Whether it is due after so many steps."""
        return self._unit == "step" and done % self._count == 0

    def at_epoch(self, event: EndEpochEvent) -> bool:
        """Whether it is due at the end of this epoch; one that was stopped does not count."""
        return self._unit == "epoch" and event.completed and (event.epoch + 1) % self._count == 0


def scalar_outputs(program: Program) -> dict[str, int]:
    """The scalars that a program returns: their places among its outputs, by name.

    Without names, the first is `loss` and the others are `output_1`, `output_2` ...
    """
    names = program.output_names or ["loss", *(f"output_{i}" for i in range(1, len(program.outputs)))]
    return {n: i for i, (n, o) in enumerate(zip(names, program.outputs, strict=True)) if o.shape in ((), (1,))}


def known_values(handler: Handler) -> list[str]:
    """The names of all scalars that a training has: outputs of its program, then what its handlers announce."""
    return [*scalar_outputs(handler.trainer.program), *handler._onion.measures()]


def number(value: Any) -> float:
    """A scalar of a program, of shape `[]` or `[1]`, as a float."""
    return float(value if np.ndim(value) == 0 else value[0])


class Mean:
    """The means of a program's scalars over steps, each read when so many later ones run that nothing waits for it.

    Args:
      places: from `scalar_outputs`.
    """

    def __init__(self, places: Mapping[str, int]):
        self._places = dict(places)
        self._late: deque[list[Any]] = deque()
        self.sums = dict.fromkeys(self._places, 0.0)
        self.count = 0

    def add(self, metrics: Results) -> None:
        """Count one more step."""
        self._late.append([metrics[place] for place in self._places.values()])
        if len(self._late) > IN_FLIGHT + 1:  # the loop has waited for that step
            self._fold()

    def read(self) -> dict[str, float]:
        """The means by name; nothing when there was no step."""
        while self._late:
            self._fold()
        return {name: total / self.count for name, total in self.sums.items()} if self.count else {}

    def state(self) -> dict[str, Any]:
        """For `restore`, as JSON."""
        self.read()
        return {"sums": self.sums, "count": self.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.sums = {name: state["sums"].get(name, 0.0) for name in self._places}
        self.count = state["count"]

    def _fold(self) -> None:
        for name, value in zip(self._places, self._late.popleft(), strict=True):
            self.sums[name] += number(value)
        self.count += 1


class Averaging(Handler):
    """What keeps the means of some outputs of the program, also over an interruption."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._mean = Mean({})
        self._resumed: Mapping[str, Any] | None = None
        self._begun = False

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Find out what the program returns."""
        self._places = self._chosen(scalar_outputs(self.trainer.program))
        self._begun = True

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Begin anew, unless it is an interrupted epoch that goes on."""
        if self._begun and (event.first_step == 0 or self._resumed is not None):
            self._mean = Mean(self._places)
            if self._resumed is not None:
                self._mean.restore(self._resumed)
        self._begun, self._resumed = False, None

    def end_step(self, event: EndStepEvent) -> None:
        """Count the step."""
        self._mean.add(event.metrics)

    def state(self) -> dict[str, Any]:
        """The means that are not yet complete."""
        return self._mean.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with these means."""
        self._resumed = state

    def _chosen(self, places: dict[str, int]) -> dict[str, int]:
        return places

    def _take(self) -> Mean:
        """The means up to here; the next ones begin."""
        mean, self._mean = self._mean, Mean(self._places)
        return mean


class Recorder(Averaging):
    """Gathers scalars, and hands them to `_write` a few steps later, when reading them waits for nothing.

    Args:
      every: how often the outputs of the program are recorded: their means since the last time. What other handlers
        announce is recorded as it comes.
    """

    def __init__(self, every: Interval):
        super().__init__()
        self._every = Every(every, type(self).__name__)
        self._waiting: deque[tuple[int, int, Any]] = deque()

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Write all that waits."""
        super().begin_epoch(event)
        self._flush()

    def begin_step(self, event: BeginStepEvent) -> None:
        """Write what is old enough."""
        self._flush(self.done - IN_FLIGHT)

    def end_step(self, event: EndStepEvent) -> None:
        """Count the step, and close a record that is due."""
        super().end_step(event)
        if self._every.at_step(self.done):
            self._close(event.epoch)

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Close a record that is due."""
        if self._every.at_epoch(event):
            self._close(event.epoch)

    def measured(self, event: MeasuredEvent) -> None:
        """Take what another handler announced."""
        self._waiting.append((event.epoch, self.done, _by_name(event.metrics)))

    def end_train(self, event: EndTrainEvent) -> None:
        """Write all that waits."""
        self._flush()

    def state(self) -> dict[str, Any]:
        """See Averaging; all else is written now, as a resumed training will not repeat it."""
        self._flush()
        return super().state()

    def _close(self, epoch: int) -> None:
        self._waiting.append((epoch, self.done, self._take()))

    def _flush(self, until: float = float("inf")) -> None:
        for epoch, done, values in self._ripe(until):
            self._write(epoch, done, values.read() if isinstance(values, Mean) else values)

    def _ripe(self, until: float) -> Iterator[tuple[int, int, Any]]:
        while self._waiting and self._waiting[0][1] <= until:
            yield self._waiting.popleft()

    def _write(self, epoch: int, done: int, values: Mapping[str, Any]) -> None:
        raise NotImplementedError


def _by_name(metrics: Results) -> dict[str, Any]:
    return dict(zip(metrics.names or (), metrics, strict=True))
