"""Models behind a server."""

from fluid.remote.model import RemoteModel

__all__ = ["RemoteModel"]
