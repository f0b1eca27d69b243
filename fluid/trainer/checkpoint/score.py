"""Which checkpoint is best: by the mean of an output over the training steps before each, or by a measured value."""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fluid import errors
from fluid.core import Program
from fluid.runtime import Results
from fluid.storage import NONSENSE
from fluid.storage.folder import Folder
from fluid.trainer.evaluation.means import is_computed, on_host
from fluid.trainer.evaluation.values import by_name, number, output_names, value_name
from fluid.trainer.events import BeginTrainEvent, MeasuredEvent
from fluid.trainer.handlers import Handler


class Score:
    """Computes the score of each checkpoint, and compares them.

    The score is the mean of an output over the steps since the checkpoint before; or a value that a handler announces,
    such as "test_loss", for the checkpoint of the step at which it was measured.

    Args:
      programs: by name; an output of one of them it may be.
      output: the name of the value, or the position of the output where there is one program.
      mode: "min" or "max".

    Attributes:
      output: the same.
      measured: whether it is a value that a handler announces.

    Raises:
      UnknownNameError: there is no such output, and no such name is likely to be announced; ArgumentError: the output
        is no scalar.
    """

    def __init__(self, programs: Mapping[str, Program], output: str | int, mode: str):
        places = _places(programs)
        known = output in places
        if not known and (isinstance(output, int) or _mistyped(output, [n for n in places if isinstance(n, str)])):
            owner = f"the program {next(iter(programs))} has" if len(programs) == 1 else "the programs have"
            hint = errors.nearest(str(output), [n for n in places if isinstance(n, str)] or map(str, places))
            raise errors.UnknownNameError(f"keep_best: {owner} no output {output!r}. {hint}")
        self.output = output
        self.measured = not known
        self._program, self._position = places.get(output, ("", 0))
        if known:
            shape = programs[self._program].outputs[self._position].shape
            if shape != ():
                raise errors.ArgumentError(
                    f"keep_best compares scalars, and the output {output!r} is {list(shape)}; return its mean"
                )
        self._mode = mode
        self._waiting: list[Any] = []
        self._total = 0.0
        self._count = 0
        self._announced = (-1, math.nan)  # training steps done, and the value that was measured then

    def add(self, metrics: Results, program: str) -> None:
        """Count the output of a step of a program, without waiting for it."""
        if self.measured or program != self._program:
            return
        self._waiting.append(metrics.unread(self._position))
        newest = self._waiting[min(55, len(self._waiting) - 1)]
        if len(self._waiting) > 64 and is_computed(newest):
            self._fold(56)  # all but the newest are computed by now

    def announce(self, step: int, value: float) -> None:
        """Note a value that was measured after so many training steps."""
        self._announced = (step, value)

    def take(self, step: int) -> dict[str, Any]:
        """The score of the checkpoint of a step, as JSON to be kept with it; a new mean begins."""
        self._fold(len(self._waiting))
        value = self._total / self._count if self._count else math.nan
        if self.measured:
            value = self._announced[1] if self._announced[0] == step else math.nan
        self._total = 0.0
        self._count = 0
        return {"output": self.output, "mode": self._mode, "value": value if math.isfinite(value) else None}

    def best(self, folder: Folder, steps: Iterable[int]) -> int | None:
        """Which of the checkpoints is best, the newest of equal ones; None when no score is known."""
        known = self._known(folder, steps)
        return max(known, key=lambda step: (known[step], step), default=None)

    def improves(self, folder: Folder, value: float) -> bool:
        """Whether a value is better than the scores of all checkpoints."""
        try:
            known = self._known(folder, folder.steps())
        except errors.CheckpointError:  # a store that cannot be reached now: rather a checkpoint too many
            known = {}
        return math.isfinite(value) and self._goodness(value) > max(known.values(), default=-math.inf)

    def _known(self, folder: Folder, steps: Iterable[int]) -> dict[int, float]:
        """How good those checkpoints are whose scores are known."""
        scores = {step: self._of(folder, step) for step in steps}
        return {step: score for step, score in scores.items() if score is not None}

    def _of(self, folder: Folder, step: int) -> float | None:
        """How good a checkpoint is, more being better; None when that is not known."""
        try:
            score = folder.meta(step).get("score") or {}
            if (score.get("output"), score.get("mode")) != (self.output, self._mode) or score["value"] is None:
                return None
            return self._goodness(float(score["value"]))
        except errors.CheckpointError:  # a store that cannot be reached now: what is best must not be deleted
            raise
        except (OSError, *NONSENSE):
            return None

    def _goodness(self, value: float) -> float:
        return value if self._mode == "max" else -value

    def _fold(self, count: int) -> None:
        self._total += math.fsum(map(float, on_host(self._waiting[:count])))
        self._count += count
        del self._waiting[:count]


class BestMeasured(Handler):
    """Asks for a checkpoint whenever the value that `keep_best` names is the best so far.

    Args:
      score: of which value.
      is_best: whether a value is better than those of all checkpoints.
    """

    def __init__(self, score: Score, is_best: Callable[[float], bool]):
        self._score = score
        self._is_best = is_best

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Refuse a name that nothing will be announced by."""
        announced = self._dispatcher.measures()
        if self._score.output not in announced:
            raise errors.UnknownNameError(
                f"keep_best names {self._score.output!r}, which nothing here measures. "
                f"{errors.nearest(str(self._score.output), announced)} Results of tests come from "
                f"trainer.train(..., test_reader=test_reader)"
            )

    def measured(self, event: MeasuredEvent) -> None:
        """Note the value, and ask for a checkpoint of this step."""
        announced = by_name(event.metrics)
        if self._score.output in announced:
            value = number(announced[self._score.output])
            self._score.announce(self.done, value)
            if self._is_best(value):
                self.trainer.save_checkpoint()


def _places(programs: Mapping[str, Program]) -> dict[str | int, tuple[str, int]]:
    """Where the outputs of programs are: the name of the program and the place; by name, and of one also by place."""
    found: dict[str | int, tuple[str, int]] = {}
    for program, its in programs.items():
        names = output_names(its) if len(programs) > 1 else its.output_names or ()
        found |= {value_name(programs, program, name): (program, place) for place, name in enumerate(names)}
        if len(programs) == 1:
            found |= {place: (program, place) for place in range(len(its.outputs))}
    return found


def _mistyped(name: str, outputs: Iterable[str]) -> bool:
    """Whether a name is most likely meant to be that of an output, and not of what is measured, such as a test's."""
    known = list(outputs)
    measured = any(name.endswith(f"_{output}") for output in known)
    return not measured and bool(difflib.get_close_matches(name, known, n=1, cutoff=0.85))
