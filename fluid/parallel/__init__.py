"""Several devices: which part of each array lies where. Session asks it, nobody else."""

from fluid.parallel.layout import OnMesh, layout_of

__all__ = ["OnMesh", "layout_of"]
