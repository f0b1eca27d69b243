"""Compatibility with PaddlePaddle Fluid and other libraries: names, LoDTensors and model files."""
