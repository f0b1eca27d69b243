"""Checkpoints: decide when to save a training, write its state to a folder, and restore it from the folder."""

from fluid.trainer.checkpoint.checkpoints import Checkpoints, NoCheckpoints
from fluid.trainer.checkpoint.config import CheckpointConfig

__all__ = ["CheckpointConfig", "Checkpoints", "NoCheckpoints"]
