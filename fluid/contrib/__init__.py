"""Contrib: the import paths of Trainer and Inferencer in Fluid 1.x."""

from fluid.contrib import inferencer, trainer

__all__ = ["inferencer", "trainer"]
