"""Checkpoints: when a training is saved, what is in a checkpoint, and how training comes back from one."""

from fluid.trainer.checkpoint.checkpoints import CheckpointConfig, CheckpointHooks, Checkpoints, NoCheckpoints

__all__ = ["CheckpointConfig", "CheckpointHooks", "Checkpoints", "NoCheckpoints"]
