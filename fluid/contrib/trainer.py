"""`from fluid.contrib.trainer import Trainer`, as programs for Fluid 1.x write it."""

from fluid.trainer import BeginEpochEvent, BeginStepEvent, CheckpointConfig, EndEpochEvent, EndStepEvent, Trainer

__all__ = ["BeginEpochEvent", "BeginStepEvent", "CheckpointConfig", "EndEpochEvent", "EndStepEvent", "Trainer"]
