from .client import RemoteModel
from .server import Server, create_app, serve
from .settings import Settings

__all__ = ["RemoteModel", "Server", "Settings", "create_app", "serve"]
