"""Handlers for `trainer.train(..., handlers=[...])`: tests, early stopping, logs, plots, timing, the NaN report."""

from fluid.handlers.gradients import GradientMonitor
from fluid.handlers.monitors import Checkpoint, EarlyStopping, LearningRateMonitor, SaveBest
from fluid.handlers.nan import TerminateOnNaN
from fluid.handlers.nan_report import NonFiniteReport
from fluid.handlers.plot import LivePlot
from fluid.handlers.rates import ReduceLROnPlateau
from fluid.handlers.records import CSVLogger, TensorBoard
from fluid.handlers.testing import TestEvery
from fluid.handlers.timing import Profiler, Timer
from fluid.trainer import Handler, ProgressBar

__all__ = [
    "CSVLogger",
    "Checkpoint",
    "EarlyStopping",
    "GradientMonitor",
    "Handler",
    "LearningRateMonitor",
    "LivePlot",
    "NonFiniteReport",
    "Profiler",
    "ProgressBar",
    "ReduceLROnPlateau",
    "SaveBest",
    "TensorBoard",
    "TerminateOnNaN",
    "TestEvery",
    "Timer",
]
