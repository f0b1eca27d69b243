"""Several devices: the sharding of each array on a mesh."""

from fluid.parallel.layout import OnMesh, layout_of
from fluid.parallel.parts import OnDevices
from fluid.parallel.rules import Rules

__all__ = ["OnDevices", "OnMesh", "Rules", "layout_of"]
