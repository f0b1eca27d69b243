"""What a person who watches a training sees of it."""

from fluid.trainer.progress.bar import ProgressBar

__all__ = ["ProgressBar"]
