"""Training: the names of `fluid.trainer` and their modules. `__init__.py` imports each module on first use."""

from .checkpoint.config import CheckpointConfig
from .checkpoint.custom_loop import Checkpoint
from .custom_loop import Loop
from .evaluation.history import History
from .events import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
    Event,
    MeasuredEvent,
)
from .handlers import Handler
from .programs import TrainingProgram
from .progress import ProgressBar
from .trainer import Trainer, train

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
