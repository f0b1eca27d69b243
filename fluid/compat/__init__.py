"""Compatibility: names, values and files that programs for PaddlePaddle Fluid and for other libraries bring along."""
