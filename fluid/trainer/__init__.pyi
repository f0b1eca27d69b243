"""What each name of `fluid.trainer` is; `__init__.py` loads it when it is first used."""

from fluid.trainer.checkpoint.config import CheckpointConfig
from fluid.trainer.checkpoint.own_loop import Checkpoint
from fluid.trainer.evaluation.history import History
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
    Event,
    MeasuredEvent,
)
from fluid.trainer.handlers import Handler
from fluid.trainer.one_call import train
from fluid.trainer.own_loop import Loop
from fluid.trainer.programs import TrainingProgram
from fluid.trainer.progress import ProgressBar
from fluid.trainer.trainer import Trainer

__all__ = [
    "BeginEpochEvent",
    "BeginStepEvent",
    "BeginTrainEvent",
    "Checkpoint",
    "CheckpointConfig",
    "EndEpochEvent",
    "EndStepEvent",
    "EndTrainEvent",
    "Event",
    "Handler",
    "History",
    "Loop",
    "MeasuredEvent",
    "ProgressBar",
    "Trainer",
    "TrainingProgram",
    "train",
]
