"""Checkpoints: when to save a training, the content of a checkpoint, and how to restore it."""

from fluid.trainer.checkpoint.checkpoints import Checkpoints, NoCheckpoints
from fluid.trainer.checkpoint.config import CheckpointConfig

__all__ = ["CheckpointConfig", "Checkpoints", "NoCheckpoints"]
