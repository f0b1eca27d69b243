"""CheckpointConfig, the folder and the intervals of checkpoints; and Score, the value that selects the best checkpoint.

The score is the mean of a program output over training steps, or a value that handlers report, such as a test loss.
"""

import difflib
import math
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fluid import errors
from fluid.checkpoint import NONSENSE, PathLike
from fluid.checkpoint.folder import Folder
from fluid.core import Program, fitting, whole_number
from fluid.distributed import Group
from fluid.trainer.device_calls import DeviceCall
from fluid.trainer.evaluation.means import Means, by_name, number, output_names, value_name
from fluid.trainer.evaluation.measurements import Measurements
from fluid.trainer.evaluation.monitor import AUTO, direction
from fluid.trainer.events import BeginTrainEvent, EndTrainEvent, MeasuredEvent
from fluid.trainer.handlers import Handler


@fitting("fluid.CheckpointConfig")
@dataclass(frozen=True)
class CheckpointConfig:
    """The folder and the intervals of checkpoints, from which a Trainer continues after its process was killed.

    Saves run in the background during training. The folder never shows an incomplete checkpoint. A new Trainer with
    this folder continues from the newest complete checkpoint.

    Args:
      checkpoint_dir: a folder for the checkpoints of this training only, created if necessary; `checkpoints` in the
        current folder by default. Or an address such as "s3://bucket/run" in an object store, for a training in one
        process; see `docs/object-store.md`.
      max_num_checkpoints: the number of newest checkpoints to keep, at least 1; None keeps all.
      epoch_interval: the number of epochs between two saves; None saves after no epoch. The state at the end of
        training is always saved.
      step_interval: the number of steps between two saves; None saves at the ends of epochs and of training only.
      keep_best: also keep the checkpoint with the best value: a pair `(name, "min" or "max")`, or a name that shows the
        direction, such as "accuracy". For the name or index of a scalar output, each checkpoint stores the mean of the
        output since the last checkpoint; with several programs the name is like "generator/loss". For the name of a
        value that is measured during training, such as `("test_loss", "min")`, a checkpoint is saved whenever the
        value is the best so far.

    Raises:
      ArgumentError: a number is not a whole number from 1 on, `keep_best` is not a valid pair, or its name does not
        show the direction.
      ArgumentTypeError: `checkpoint_dir` is not a path.

    Example:
      >>> CheckpointConfig("checkpoints", step_interval=1000, keep_best=("accuracy", "max")).max_num_checkpoints
      3
    """

    checkpoint_dir: PathLike = "checkpoints"
    max_num_checkpoints: int | None = 3
    epoch_interval: int | None = 1
    step_interval: int | None = 10
    keep_best: str | tuple[str | int, str] | None = None

    def __post_init__(self) -> None:
        if self.checkpoint_dir is None:
            object.__setattr__(self, "checkpoint_dir", "checkpoints")
        if not isinstance(self.checkpoint_dir, str | os.PathLike) or not os.fspath(self.checkpoint_dir):
            raise errors.ArgumentTypeError(
                f"checkpoint_dir={self.checkpoint_dir!r}: expected the path of a folder: CheckpointConfig('here')"
            )
        for name in ("max_num_checkpoints", "epoch_interval", "step_interval"):
            if getattr(self, name) is not None:
                whole_number("CheckpointConfig", name, getattr(self, name))
        if self.keep_best is not None:
            object.__setattr__(self, "keep_best", _output_and_mode(self.keep_best))


def _output_and_mode(value: Any) -> tuple[str | int, str]:
    """Check the argument `keep_best`. Return the name or index of the compared value, and "min" or "max"."""
    output, mode = value if isinstance(value, tuple) and len(value) == 2 else (value, AUTO)
    named = isinstance(output, str) or (isinstance(output, int) and not isinstance(output, bool) and mode != AUTO)
    if not named or mode not in ("min", "max", AUTO):
        raise errors.ArgumentError(
            f'keep_best={value!r}: expected an output and "min" or "max": keep_best=("accuracy", "max")'
        )
    return output, direction(output, mode, lambda mode: f"CheckpointConfig(keep_best={(output, mode)!r})")


def check_shared(folder: Folder, group: Group) -> None:
    """Check that all processes use one checkpoint folder: the first process writes a file, which the others must find.

    Raises:
      CheckpointError: a process has another folder, or several processes use an object store.
    """
    if group.size == 1:
        return
    if not folder.is_local:
        raise errors.CheckpointError(
            f"{group.size} processes cannot keep checkpoints in {folder.name!r}: of a store only one process writes "
            f"them. Expected a folder that all processes share, such as one on a network file system"
        )
    token = folder.path / f"{group.of_first('the name of a token', secrets.token_hex(8))}.token"
    if group.is_first:
        token.touch()
    group.meet("the folder of checkpoints")
    seen = group.exchange("who sees the folder of checkpoints", token.exists())
    if group.is_first:
        token.unlink(missing_ok=True)
    if not all(seen):
        raise errors.CheckpointError(
            f"the folder of checkpoints, {folder.name!r}, is another one in process "
            f"{', '.join(str(i) for i, found in enumerate(seen) if not found)} than in process 0; expected a folder "
            f"that all processes share, such as one on a network file system"
        )


class Score:
    """The scalar by which checkpoints are compared, to find the best checkpoint for `keep_best`.

    The score of a checkpoint is the mean of a program output over the training steps since the checkpoint before it.
    Or the score is a value that a handler reports, such as "test_loss", measured at the step of the checkpoint.

    Attributes:
      output: the argument `output`.
      measured: True if the score is a value that a handler reports.
      measurements: the values in this call of `train`: of a handler, or the means at the checkpoints.

    Raises:
      UnknownNameError: the name is no output, and is probably a misspelled name of an output.
      ArgumentError: the output is not a scalar.
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
        self.measurements = Measurements()
        self._program, self._position = places.get(output, ("", 0))
        self._programs = programs
        if known:
            shape = programs[self._program].outputs[self._position].shape
            if shape != ():
                raise errors.ArgumentError(
                    f"keep_best compares scalars, and the output {output!r} is {list(shape)}; return its mean"
                )
        self._mode = mode
        self._means = self._no_means()
        # a pair: the number of training steps done, and the value that a handler measured after these steps
        self._announced = (-1, math.nan)

    def add(self, call: DeviceCall) -> None:
        """Add an output of the training steps of a device call to the score, its mean since the last checkpoint.

        The method does not wait for the device. It has no effect if a handler reports the score, or if the steps train
        a program without this output.
        """
        if not self.measured and call.program == self._program:
            for outputs, _, parts in call.results:
                self._means.add(outputs, call.examples, parts)

    def announce(self, step: int, value: float) -> None:
        """Record a value that a handler has measured and reported after `step` training steps."""
        self._announced = (step, value)
        self.measurements.add(value)

    def take(self, step: int) -> dict[str, Any]:
        """Return the score of the checkpoint after `step` training steps, as JSON, and prepare the next score.

        A score that is the mean of a program output covers the steps since the previous checkpoint.
        In the JSON, "value" is None if the score is unknown or not finite.
        """
        value = self._means.read().get("score")
        if value is not None:
            self.measurements.add(value)
        value = math.nan if value is None else value
        if self.measured:
            value = self._announced[1] if self._announced[0] == step else math.nan
        self._means = self._no_means()
        return {"output": self.output, "mode": self._mode, "value": value if math.isfinite(value) else None}

    def best(self, folder: Folder, steps: Iterable[int]) -> int | None:
        """Return the step of the checkpoint with the best score among `steps`, the newest if scores are equal.

        Return None if no score is known.
        """
        known = self._known(folder, steps)
        return max(known, key=lambda step: (known[step], step), default=None)

    def improves(self, folder: Folder, value: float) -> bool:
        """Return whether a finite value is better than the scores of all checkpoints in the folder."""
        try:
            known = self._known(folder, folder.steps())
        # if the object store cannot be reached, treat the value as the best: one save too many is better than none
        except errors.CheckpointError:
            known = {}
        return math.isfinite(value) and self._goodness(value) > max(known.values(), default=-math.inf)

    def _known(self, folder: Folder, steps: Iterable[int]) -> dict[int, float]:
        scores = {step: self._of(folder, step) for step in steps}
        return {step: score for step, score in scores.items() if score is not None}

    def _of(self, folder: Folder, step: int) -> float | None:
        """Return the score of the checkpoint at `step`, negated for mode "min"; None if the score is unknown.

        The score is unknown if the checkpoint has the score of another output, or damaged metadata.
        """
        try:
            score = folder.meta(step).get("score") or {}
            if (score.get("output"), score.get("mode")) != (self.output, self._mode) or score["value"] is None:
                return None
            return self._goodness(float(score["value"]))
        # if the object store cannot be reached, raise: with an unknown score, the best checkpoint could be deleted
        except errors.CheckpointError:
            raise
        except (OSError, *NONSENSE):
            return None

    def _goodness(self, value: float) -> float:
        return value if self._mode == "max" else -value

    def _no_means(self) -> Means:
        program = self._programs.get(self._program, next(iter(self._programs.values())))
        return Means(program, {} if self.measured else {"score": self._position})


class FollowsBest(Handler):
    """A handler that warns if the value named by `CheckpointConfig.keep_best` was of no use in a training."""

    def __init__(self, score: Score):
        self._score = score

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Begin to count the values; a resumed training may have values from before."""
        self._score.measurements.begin(self.done, known=event.resumed)

    def end_train(self, event: EndTrainEvent) -> None:
        """Warn if the value was never measured, or never finite; the last checkpoint is saved already."""
        self._score.measurements.check(
            event,
            self.done,
            f"CheckpointConfig(keep_best=...) follows {self._score.output!r}, which",
            'measure it more often, as in train(..., test_reader=test_reader, test_every="epoch")',
        )


class BestMeasured(FollowsBest):
    """A handler that requests a checkpoint when the value named by `CheckpointConfig.keep_best` is the best so far."""

    def __init__(self, score: Score, is_best: Callable[[float], bool]):
        super().__init__(score)
        self._is_best = is_best

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Raise UnknownNameError if no handler reports a value with the name in `keep_best`."""
        super().begin_train(event)
        announced = self._dispatcher.measures()
        if self._score.output not in announced:
            raise errors.UnknownNameError(
                f"keep_best names {self._score.output!r}, which nothing here measures. "
                f"{errors.nearest(str(self._score.output), announced)} Results of tests come from "
                f"trainer.train(..., test_reader=test_reader)"
            )

    def measured(self, event: MeasuredEvent) -> None:
        """Record the value that `keep_best` names; if it is the best so far, request a checkpoint of this step."""
        announced = by_name(event.metrics)
        if self._score.output in announced:
            value = number(announced[self._score.output])
            self._score.announce(self.done, value)
            if self._is_best(value):
                self.trainer.save_checkpoint()


def _places(programs: Mapping[str, Program]) -> dict[str | int, tuple[str, int]]:
    """Return a dict from the name of each output to a pair (program name, output index).

    With one program, the index of each output is a key too.
    """
    found: dict[str | int, tuple[str, int]] = {}
    for program, its in programs.items():
        names = output_names(its) if len(programs) > 1 else its.output_names or ()
        found |= {value_name(programs, program, name): (program, place) for place, name in enumerate(names)}
        if len(programs) == 1:
            found |= {place: (program, place) for place in range(len(its.outputs))}
    return found


def _mistyped(name: str, outputs: Iterable[str]) -> bool:
    """Return whether `name` is probably a misspelled name of an output.

    A name such as "test_loss", which ends in "_" and the name of an output, is no misspelling: a handler may report it.
    """
    known = list(outputs)
    measured = any(name.endswith(f"_{output}") for output in known)
    return not measured and bool(difflib.get_close_matches(name, known, n=1, cutoff=0.85))
