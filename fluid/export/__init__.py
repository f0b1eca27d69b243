"""Exported models: one file holds programs as StableHLO, and parameters, and runs without the program functions."""

from fluid.export.archive import is_artifact
from fluid.export.labels import unlabelled
from fluid.export.load import Artifact, load
from fluid.export.onnx import save_onnx
from fluid.export.program import ExportedProgram
from fluid.export.save import save
from fluid.export.training import save_step

__all__ = ["Artifact", "ExportedProgram", "is_artifact", "load", "save", "save_onnx", "save_step", "unlabelled"]
