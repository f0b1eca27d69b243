"""The import path `from fluid.contrib.inferencer import Inferencer` of programs for PaddlePaddle Fluid 1.x."""

from fluid.inferencer import Inferencer

__all__ = ["Inferencer"]
