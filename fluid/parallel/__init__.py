"""Several devices: which part of each array lies where. Session asks it, nobody else."""

from fluid.parallel.layout import OnMesh, layout_of
from fluid.parallel.rules import Rules

__all__ = ["OnMesh", "Rules", "layout_of"]
