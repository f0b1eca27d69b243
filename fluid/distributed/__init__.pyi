"""What each name of `fluid.distributed` is; `__init__.py` loads it when it is first used."""

from fluid.distributed.group import Group, group
from fluid.distributed.starting import initialize

__all__ = ["Group", "group", "initialize"]
