"""What handlers share: when something is due, which outputs are scalars, and how they are read without waiting."""

import re
from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import Program, whole_number
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
"""What `every=` takes: a number of steps, or a string such as "epoch", "2 epochs" or "100 steps"."""


class Every:
    """Tells when something is due, from what a user writes as `every=`.

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
        """Whether it is due after so many steps."""
        return self._unit == "step" and done % self._count == 0

    def at_epoch(self, event: EndEpochEvent) -> bool:
        """Whether it is due at the end of this epoch; one that was stopped does not count."""
        return self._unit == "epoch" and event.completed and (event.epoch + 1) % self._count == 0


def scalar_outputs(program: Program) -> dict[str, int]:
    """The scalars that a program returns: their places among its outputs, by name.

    Outputs that have no names are called `loss`, `output_1`, `output_2` and so on.
    """
    names = program.output_names or ["loss", *(f"output_{i}" for i in range(1, len(program.outputs)))]
    return {n: i for i, (n, o) in enumerate(zip(names, program.outputs, strict=True)) if o.shape in ((), (1,))}


def known_values(handler: Handler) -> list[str]:
    """The names of all scalars that a training has: outputs of its program, then what its handlers announce."""
    return [*scalar_outputs(handler.trainer.program), *handler._dispatcher.measures()]


def number(value: Any) -> float:
    """A scalar of a program, of shape `[]` or `[1]`, as a float."""
    return float(value if np.ndim(value) == 0 else value[0])


class Mean:
    """The means of a program's scalars over steps.

    A scalar is read from the device some steps later, when it is computed and nothing has to wait for it.

    Args:
      places: from `scalar_outputs`.

    Attributes:
      sums: of the scalars that were read, by name.
      count: how many steps these are.
    """

    def __init__(self, places: Mapping[str, int]):
        self._places = dict(places)
        self._unread: deque[list[Any]] = deque()
        self.sums = dict.fromkeys(self._places, 0.0)
        self.count = 0

    def add(self, metrics: Results) -> None:
        """Count one more step."""
        self._unread.append([metrics[place] for place in self._places.values()])
        if len(self._unread) > IN_FLIGHT + 1:  # the loop itself has waited for the first of them
            self._read_first()

    def read(self) -> dict[str, float]:
        """The means by name; nothing when there was no step."""
        while self._unread:
            self._read_first()
        return {name: total / self.count for name, total in self.sums.items()} if self.count else {}

    def state(self) -> dict[str, Any]:
        """For `restore`, as JSON."""
        self.read()
        return {"sums": self.sums, "count": self.count}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        self.sums = {name: state["sums"].get(name, 0.0) for name in self._places}
        self.count = state["count"]

    def _read_first(self) -> None:
        for name, value in zip(self._places, self._unread.popleft(), strict=True):
            self.sums[name] += number(value)
        self.count += 1


class Averaging(Handler):
    """A handler that keeps the means of some outputs of the program, also over an interruption."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._mean = Mean({})
        self._resumed: Mapping[str, Any] | None = None
        self._begun = False

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Choose the outputs."""
        self._places = self._chosen(scalar_outputs(self.trainer.program))
        self._begun = True

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """In the first epoch of a call of `train`, begin new means, unless an interrupted epoch continues."""
        if self._begun and (event.first_step == 0 or self._resumed is not None):
            self._mean = Mean(self._places)
            if self._resumed is not None:
                self._mean.restore(self._resumed)
        self._begun = False
        self._resumed = None

    def end_step(self, event: EndStepEvent) -> None:
        """Add the outputs of the step to the means."""
        self._mean.add(event.metrics)

    def state(self) -> dict[str, Any]:
        """The means that are not complete yet, as JSON."""
        return self._mean.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue with these means in the next epoch."""
        self._resumed = state

    def _chosen(self, places: dict[str, int]) -> dict[str, int]:
        return places

    def _take(self) -> Mean:
        """The means up to here; new ones begin."""
        mean = self._mean
        self._mean = Mean(self._places)
        return mean


class Recorder(Averaging):
    """A handler that gathers scalars, and hands them to `_write` some steps later, when reading them takes no waiting.

    Args:
      every: how often the outputs of the program are recorded: their means since the last time. What other handlers
        announce is recorded as it comes.
    """

    def __init__(self, every: Interval):
        super().__init__()
        self._every = Every(every, type(self).__name__)
        self._waiting: deque[tuple[int, int, Any]] = deque()  # epoch, steps done, and a Mean or values by name

    def begin_epoch(self, event: BeginEpochEvent) -> None:
        """Write everything that was gathered."""
        super().begin_epoch(event)
        self._flush()

    def begin_step(self, event: BeginStepEvent) -> None:
        """Write the records of steps that the loop itself has waited for."""
        self._flush(self.done - IN_FLIGHT)

    def end_step(self, event: EndStepEvent) -> None:
        """Add the step to the means, and close the record if it is due."""
        super().end_step(event)
        if self._every.at_step(self.done):
            self._close(event.epoch)

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Close the record if it is due."""
        if self._every.at_epoch(event):
            self._close(event.epoch)

    def measured(self, event: MeasuredEvent) -> None:
        """Gather what another handler announced."""
        self._waiting.append((event.epoch, self.done, by_name(event.metrics)))

    def end_train(self, event: EndTrainEvent) -> None:
        """Write everything that was gathered."""
        self._flush()

    def state(self) -> dict[str, Any]:
        """The means that are not complete yet; complete records, which are not part of it, are written before."""
        self._flush()
        return super().state()

    def _close(self, epoch: int) -> None:
        self._waiting.append((epoch, self.done, self._take()))

    def _flush(self, until: float = float("inf")) -> None:
        """Write the records of at most so many steps done."""
        while self._waiting and self._waiting[0][1] <= until:
            epoch, done, values = self._waiting.popleft()
            self._write(epoch, done, values.read() if isinstance(values, Mean) else values)

    def _write(self, epoch: int, done: int, values: Mapping[str, Any]) -> None:
        raise NotImplementedError


def by_name(metrics: Results) -> dict[str, Any]:
    """The values of an announcement by name."""
    return dict(zip(metrics.names or (), metrics, strict=True))
