"""The import paths `fluid.contrib.trainer` and `fluid.contrib.inferencer`, as in PaddlePaddle Fluid 1.x."""

from fluid.contrib import inferencer, trainer

__all__ = ["inferencer", "trainer"]
