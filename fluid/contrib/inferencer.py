"""`from fluid.contrib.inferencer import Inferencer`, as programs for Fluid 1.x write it."""

from fluid.inferencer import Inferencer

__all__ = ["Inferencer"]
