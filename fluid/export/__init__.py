"""Exported models: files with programs as StableHLO and their parameters, which run without the program functions."""

from fluid.export.archive import is_artifact
from fluid.export.labels import unlabelled
from fluid.export.load import Artifact, ExportedProgram, load
from fluid.export.onnx import save_onnx
from fluid.export.save import save, save_step

__all__ = ["Artifact", "ExportedProgram", "is_artifact", "load", "save", "save_onnx", "save_step", "unlabelled"]
