"""Where Fluid 1.x keeps the Trainer and the Inferencer: other import paths of the same classes."""

from fluid.contrib import inferencer, trainer

__all__ = ["inferencer", "trainer"]
