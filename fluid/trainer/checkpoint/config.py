"""CheckpointConfig: where and when to save checkpoints; and a check that all processes see the same folder."""

import os
import secrets
from dataclasses import dataclass
from typing import Any

from fluid import errors
from fluid.checkpoint import PathLike
from fluid.checkpoint.folder import Folder
from fluid.core import fitting, whole_number
from fluid.distributed import Group
from fluid.trainer.evaluation.monitor import AUTO, direction


@fitting("fluid.CheckpointConfig")
@dataclass(frozen=True)
class CheckpointConfig:
    """The folder and the intervals of checkpoints, from which a Trainer continues after its process was killed.

    Saves run in the background during training. A checkpoint is complete or absent. A Trainer with this folder
    continues from the newest complete checkpoint.

    Args:
      checkpoint_dir: a folder for the checkpoints of this training only, created if necessary; `checkpoints` in the
        current folder by default. Or an address such as "s3://bucket/run" in an object store, for a training in one
        process; see `docs/resume.md`.
      max_num_checkpoints: the number of newest checkpoints to keep, at least 1; None keeps all.
      epoch_interval: the number of epochs between two saves at the ends of epochs; None saves at no end of an epoch.
        The end of training is always saved.
      step_interval: the number of steps between two saves; None saves at the ends of epochs and of training only.
      keep_best: also keep the checkpoint with the best value: `(name, "min" or "max")`, or a name that shows the
        direction, such as "accuracy". The name or index of a scalar output, with several programs "generator/loss",
        compares its means over the steps of its program since the last checkpoint. The name of a value that is measured
        during training, such as `("test_loss", "min")`, saves a checkpoint whenever the value is the best so far.

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
    """Check the argument `keep_best`; return the name or index of the value, and "min" or "max"."""
    output, mode = value if isinstance(value, tuple) and len(value) == 2 else (value, AUTO)
    named = isinstance(output, str) or (isinstance(output, int) and not isinstance(output, bool) and mode != AUTO)
    if not named or mode not in ("min", "max", AUTO):
        raise errors.ArgumentError(
            f'keep_best={value!r}: expected an output and "min" or "max": keep_best=("accuracy", "max")'
        )
    return output, direction(output, mode, lambda mode: f"CheckpointConfig(keep_best={(output, mode)!r})")


def check_shared(folder: Folder, group: Group) -> None:
    """Check that all processes see the same folder: the first process writes a file, which the others must find.

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
