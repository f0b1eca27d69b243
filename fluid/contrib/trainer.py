"""The import path `from fluid.contrib.trainer import Trainer` of programs for PaddlePaddle Fluid 1.x."""

from fluid.trainer import BeginEpochEvent, BeginStepEvent, CheckpointConfig, EndEpochEvent, EndStepEvent, Trainer

__all__ = ["BeginEpochEvent", "BeginStepEvent", "CheckpointConfig", "EndEpochEvent", "EndStepEvent", "Trainer"]
