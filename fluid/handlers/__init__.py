"""Handlers for the argument `handlers` of `Trainer.train`: tests, early stopping, logs, plots, timing, NaN reports."""

from fluid._util.known_names import getattr_of
from fluid.handlers.logger import CSVLogger, Logger, MLflow, TensorBoard, WandB
from fluid.handlers.monitors import Checkpoint as Checkpoint
from fluid.handlers.monitors import (
    CheckpointEvery,
    EarlyStopping,
    GradientMonitor,
    LearningRateMonitor,
    ReduceLROnPlateau,
)
from fluid.handlers.nan import TerminateOnNaN
from fluid.handlers.nan_report import NonFiniteReport
from fluid.handlers.periodic import every, once
from fluid.handlers.plot import LivePlot
from fluid.handlers.timing import Profiler, Timer
from fluid.trainer import Handler, ProgressBar
from fluid.trainer.evaluation.monitor import SaveBest
from fluid.trainer.evaluation.validation import TestEvery

__all__ = [
    "CSVLogger",
    "CheckpointEvery",
    "EarlyStopping",
    "GradientMonitor",
    "Handler",
    "LearningRateMonitor",
    "LivePlot",
    "Logger",
    "MLflow",
    "NonFiniteReport",
    "Profiler",
    "ProgressBar",
    "ReduceLROnPlateau",
    "SaveBest",
    "TensorBoard",
    "TerminateOnNaN",
    "TestEvery",
    "Timer",
    "WandB",
    "every",
    "once",
]

__getattr__ = getattr_of(__name__)
