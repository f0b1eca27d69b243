"""Checkpoints: when a training is saved, what is in a checkpoint, and how training comes back from one."""

from fluid.trainer.checkpoint.checkpoints import Checkpoints, NoCheckpoints
from fluid.trainer.checkpoint.config import CheckpointConfig

__all__ = ["CheckpointConfig", "Checkpoints", "NoCheckpoints"]
