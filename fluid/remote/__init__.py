"""Models and trainers behind a server."""

from fluid.remote.model import RemoteModel
from fluid.remote.trainer import RemoteTrainer

__all__ = ["RemoteModel", "RemoteTrainer"]
