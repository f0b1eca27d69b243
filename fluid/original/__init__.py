"""Models and parameters that the original, PaddlePaddle Fluid, saved: read, and run by fluid's own layers."""

from fluid.original.model import InferenceModel, is_inference_model, load_inference_model
from fluid.original.parameters import load_params
from fluid.original.program import SavedProgram

__all__ = ["InferenceModel", "SavedProgram", "is_inference_model", "load_inference_model", "load_params"]
