"""The training loop, its events and handlers, and Trainer."""

from fluid.trainer.events import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
    Event,
)
from fluid.trainer.handlers import Handler
from fluid.trainer.progress import ProgressBar
from fluid.trainer.trainer import Trainer, train

__all__ = [
    "BeginEpochEvent",
    "BeginStepEvent",
    "BeginTrainEvent",
    "EndEpochEvent",
    "EndStepEvent",
    "EndTrainEvent",
    "Event",
    "Handler",
    "ProgressBar",
    "Trainer",
    "train",
]
