"""Serving of models over HTTP: the Open Inference Protocol, dynamic batching, versions, metrics and a web page."""

from fluid.serving.server import Server, create_app, serve
from fluid.serving.settings import Settings

__all__ = ["Server", "Settings", "create_app", "serve"]
