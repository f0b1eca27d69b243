"""Exported models: one file holds programs as StableHLO, and parameters, and runs without the program functions."""

from fluid.artifact.archive import is_artifact
from fluid.artifact.labels import unlabelled
from fluid.artifact.load import Artifact, load
from fluid.artifact.onnx import save_onnx
from fluid.artifact.program import ExportedProgram
from fluid.artifact.save import save
from fluid.artifact.training import save_step

__all__ = ["Artifact", "ExportedProgram", "is_artifact", "load", "save", "save_onnx", "save_step", "unlabelled"]
