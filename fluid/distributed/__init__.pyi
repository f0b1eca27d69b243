"""What each name of `fluid.distributed` is; `__init__.py` loads it when it is first used."""

from .group import Group, group
from .starting import initialize

__all__ = ["Group", "group", "initialize"]
