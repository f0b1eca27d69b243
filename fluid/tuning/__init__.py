"""Tuning: find a good learning rate before a training begins."""

from fluid.tuning.rate_finder import RateSweep, find_learning_rate

__all__ = ["RateSweep", "find_learning_rate"]
