from .remote_trainer import RemoteTrainer
from .trainer import OnlineTrainer

__all__ = ["OnlineTrainer", "RemoteTrainer"]
