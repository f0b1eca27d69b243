"""The module for the import `from fluid.contrib.trainer import Trainer`, as in PaddlePaddle Fluid 1.x."""

from fluid.trainer import BeginEpochEvent, BeginStepEvent, CheckpointConfig, EndEpochEvent, EndStepEvent, Trainer

__all__ = ["BeginEpochEvent", "BeginStepEvent", "CheckpointConfig", "EndEpochEvent", "EndStepEvent", "Trainer"]
