"""Several devices: the sharding of each array on a mesh."""

from fluid.parallel.layout import OnMesh, layout_of
from fluid.parallel.rules import Rules

__all__ = ["OnMesh", "Rules", "layout_of"]
