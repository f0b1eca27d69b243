"""Online training: rows arrive over HTTP and are kept in a journal, and a model is trained on each exactly once."""

from fluid.online.trainer import OnlineTrainer

__all__ = ["OnlineTrainer"]
