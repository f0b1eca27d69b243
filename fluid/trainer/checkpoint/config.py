"""CheckpointConfig: where and how often a Trainer saves."""

import os
from dataclasses import dataclass
from typing import Any

from fluid import errors
from fluid.core import fitting, whole_number
from fluid.storage import PathLike
from fluid.trainer.evaluation.direction import AUTO, direction


@fitting("fluid.CheckpointConfig")
@dataclass(frozen=True)
class CheckpointConfig:
    """Where and how often a Trainer saves everything that it needs to continue after its process was killed.

    Saves run in the background while training goes on. A checkpoint is complete or not there at all. A Trainer with the
    same folder continues from the newest one that is whole.

    Args:
      checkpoint_dir: a folder for the checkpoints of this training alone; made when it is not there. By default
        `checkpoints` in the current folder. Or an address such as "s3://bucket/run" in an object store, for a training
        in one process; see `docs/resume.md`.
      max_num_checkpoints: how many of the newest checkpoints are kept, at least 1; None keeps all.
      epoch_interval: save at the end of every so many epochs; None saves none of them. The end of training is always
        saved.
      step_interval: save after every so many steps; None saves at the ends of epochs and of training only.
      keep_best: `(output, "min" or "max")`, or a name that says which way is better, such as "accuracy": also keep the
        checkpoint with the best output. The output is a scalar, given by its name or position, of several programs as
        "generator/loss", and is compared as the mean over the steps of its program since the checkpoint before. Or the
        name of a value that is measured while training goes on, such as `("test_loss", "min")`: when it is the best so
        far, a checkpoint is saved.

    Raises:
      ArgumentError: a number is no whole number from 1 on, `keep_best` is no such pair, or its name does not say
        which way is better.
      ArgumentTypeError: `checkpoint_dir` is no path.

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
    """Check `keep_best`; return the output, and "min" or "max"."""
    output, mode = value if isinstance(value, tuple) and len(value) == 2 else (value, AUTO)
    named = isinstance(output, str) or (isinstance(output, int) and not isinstance(output, bool) and mode != AUTO)
    if not named or mode not in ("min", "max", AUTO):
        raise errors.ArgumentError(
            f'keep_best={value!r}: expected an output and "min" or "max": keep_best=("accuracy", "max")'
        )
    return output, direction(output, mode, lambda mode: f"CheckpointConfig(keep_best={(output, mode)!r})")
