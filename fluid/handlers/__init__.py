"""Handlers for `trainer.train(..., handlers=[...])`: tests, early stopping, logs, plots, timing, the NaN report."""

from fluid.handlers.monitors import Checkpoint, EarlyStopping, LearningRateMonitor
from fluid.handlers.nan import TerminateOnNaN
from fluid.handlers.nan_report import NonFiniteReport
from fluid.handlers.plot import LivePlot
from fluid.handlers.records import CSVLogger, TensorBoard
from fluid.handlers.timing import Profiler, Timer
from fluid.trainer import Handler, ProgressBar
from fluid.trainer.evaluation.monitor import SaveBest
from fluid.trainer.evaluation.testing import TestEvery

__all__ = [
    "CSVLogger",
    "Checkpoint",
    "EarlyStopping",
    "Handler",
    "LearningRateMonitor",
    "LivePlot",
    "NonFiniteReport",
    "Profiler",
    "ProgressBar",
    "SaveBest",
    "TensorBoard",
    "TerminateOnNaN",
    "TestEvery",
    "Timer",
]
