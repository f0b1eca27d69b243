"""PaddlePaddle model files: read models and parameters of PaddlePaddle Fluid, and run them with fluid's layers."""

from fluid.original.parameters import load_params
from fluid.original.program import InferenceModel, SavedProgram, is_inference_model, load_inference_model

__all__ = ["InferenceModel", "SavedProgram", "is_inference_model", "load_inference_model", "load_params"]
