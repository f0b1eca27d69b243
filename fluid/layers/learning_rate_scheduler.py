"""Learning rate schedules: the functions of `fluid.lr`, under the import path that Fluid uses."""

from fluid.lr import (
    cosine_decay,
    exponential_decay,
    inverse_time_decay,
    linear_lr_warmup,
    natural_exp_decay,
    noam_decay,
    piecewise_decay,
    polynomial_decay,
    warmup_cosine,
)

__all__ = [
    "cosine_decay",
    "exponential_decay",
    "inverse_time_decay",
    "linear_lr_warmup",
    "natural_exp_decay",
    "noam_decay",
    "piecewise_decay",
    "polynomial_decay",
    "warmup_cosine",
]
