"""Artifact: the import path of `fluid.export` in programs that name it `fluid.artifact`."""

from fluid.export import *  # noqa: F403
from fluid.export import __all__, standalone

__all__ = [*__all__, "standalone"]
