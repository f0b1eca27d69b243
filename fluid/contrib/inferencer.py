"""Contrib inferencer: `from fluid.contrib.inferencer import Inferencer`, as in programs for Fluid 1.x."""

from fluid.inferencer import Inferencer

__all__ = ["Inferencer"]
