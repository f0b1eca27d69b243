"""Helpers of handlers: intervals of steps and epochs, and the scalars of a training by name."""

import math
import re
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import Program, whole_number
from fluid.runtime import Results
from fluid.trainer.events import EndEpochEvent
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
