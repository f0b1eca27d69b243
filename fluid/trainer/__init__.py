"""The training loop, its events and handlers, and Trainer."""

from fluid.trainer.checkpoint import Checkpoint, CheckpointConfig
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
