"""Finding good settings for a training before it begins: the learning rate."""

from fluid.tuning.rate_finder import RateSweep, find_learning_rate

__all__ = ["RateSweep", "find_learning_rate"]
