"""Artifact: an alias of `fluid.export`, for programs that import `fluid.artifact`."""

from fluid.export import *  # noqa: F403
from fluid.export import __all__, standalone

__all__ = [*__all__, "standalone"]
