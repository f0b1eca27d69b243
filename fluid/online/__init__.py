"""Training under remote control: rows that arrive are kept in a journal, and each is trained on exactly once."""

from fluid.online.trainer import OnlineTrainer

__all__ = ["OnlineTrainer"]
