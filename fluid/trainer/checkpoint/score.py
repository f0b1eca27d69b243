"""Which checkpoint is best: by the mean of one output over the training steps before each."""

import math
from collections.abc import Iterable
from typing import Any

from fluid import errors
from fluid.core import Program
from fluid.session import Results
from fluid.storage.folder import Folder


class Score:
    """Computes the score of each checkpoint, the mean of one output over the steps before it, and compares them.

    Args:
      program: which has the output.
      output: its name, or its position.
      mode: "min" or "max".

    Raises:
      UnknownNameError: there is no such output; ArgumentError: it is no scalar.
    """

    def __init__(self, program: Program, output: str | int, mode: str):
        names = program.output_names or ()
        known = output in names if isinstance(output, str) else 0 <= output < len(program.outputs)
        if not known:
            hint = errors.nearest(str(output), names or map(str, range(len(program.outputs))))
            raise errors.UnknownNameError(f"keep_best: the program {program.name} has no output {output!r}. {hint}")
        self._position = list(names).index(output) if isinstance(output, str) else output
        if program.outputs[self._position].shape != ():
            raise errors.ArgumentError(
                f"keep_best compares scalars, and the output {output!r} is "
                f"{list(program.outputs[self._position].shape)}; return its mean"
            )
        self._output = output
        self._mode = mode
        self._waiting: list[Any] = []
        self._total = 0.0
        self._count = 0

    def add(self, metrics: Results) -> None:
        """Count the output of a step, without waiting for it."""
        self._waiting.append(metrics[self._position])
        if len(self._waiting) > 64:
            self._fold(56)  # all but the newest are computed by now

    def take(self) -> dict[str, Any]:
        """The score of a checkpoint, as JSON to be kept with it; a new mean begins."""
        self._fold(len(self._waiting))
        mean = self._total / self._count if self._count else math.nan
        self._total = 0.0
        self._count = 0
        return {"output": self._output, "mode": self._mode, "value": mean if math.isfinite(mean) else None}

    def best(self, folder: Folder, steps: Iterable[int]) -> int | None:
        """Which of the checkpoints is best, the newest of equal ones; None when no score is known."""
        scores = {step: self._of(folder, step) for step in steps}
        known = {step: score for step, score in scores.items() if score is not None}
        return max(known, key=lambda step: (known[step], step), default=None)

    def _of(self, folder: Folder, step: int) -> float | None:
        """How good a checkpoint is, more being better; None when that is not known."""
        try:
            score = folder.meta(step)["score"] or {}
        except (OSError, ValueError, KeyError):
            return None
        if (score.get("output"), score.get("mode")) != (self._output, self._mode) or score["value"] is None:
            return None
        return float(score["value"]) * (1 if self._mode == "max" else -1)

    def _fold(self, count: int) -> None:
        self._total += math.fsum(map(float, self._waiting[:count]))
        self._count += count
        del self._waiting[:count]
