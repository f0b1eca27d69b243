"""The module for the import `from fluid.contrib.inferencer import Inferencer`, as in PaddlePaddle Fluid 1.x."""

from fluid.inferencer import Inferencer

__all__ = ["Inferencer"]
