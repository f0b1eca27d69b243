"""Clients: RemoteModel for a model behind a server, and RemoteTrainer for a training behind a server."""

from fluid.remote.model import RemoteModel
from fluid.remote.trainer import RemoteTrainer

__all__ = ["RemoteModel", "RemoteTrainer"]
