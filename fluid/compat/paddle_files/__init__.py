"""PaddlePaddle model files: read models and parameters of PaddlePaddle Fluid, and run them with fluid's layers."""

from fluid.compat.paddle_files.parameters import load_params
from fluid.compat.paddle_files.program import InferenceModel, SavedProgram, is_inference_model, load_inference_model

__all__ = ["InferenceModel", "SavedProgram", "is_inference_model", "load_inference_model", "load_params"]
