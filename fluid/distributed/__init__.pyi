"""The names of `fluid.distributed` and the modules that define them; `__init__.py` loads each at its first use."""

from .group import Group, group
from .rendezvous import initialize

__all__ = ["Group", "group", "initialize"]
