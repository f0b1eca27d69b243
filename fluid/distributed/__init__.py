"""Several processes that train together: how each finds its place, how they agree, and how they end when one fails."""

from fluid.distributed.group import Group, group
from fluid.distributed.starting import initialize

__all__ = ["Group", "group", "initialize"]
