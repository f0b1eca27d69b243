"""Layers for recorded programs: the layers of `fluid.layers`, and layers that assign variables.

A call of a layer is recorded into a program, which runs later. At its first use, each layer of `fluid.layers` is
wrapped in a function that records the calls of the layer.
"""

from fluid.layers import __all__ as _of_fluid
from fluid.static.layers.arrays import array_length, array_read, array_write, create_array
from fluid.static.layers.assign import _decay_step_counter as _decay_step_counter
from fluid.static.layers.assign import (
    accuracy,
    assign,
    autoincreased_step_counter,
    cosine_decay,
    create_global_var,
    create_tensor,
    exponential_decay,
    fill_constant,
    increment,
    inverse_time_decay,
    linear_lr_warmup,
    natural_exp_decay,
    noam_decay,
    ones,
    piecewise_decay,
    polynomial_decay,
    py_func,
    warmup_cosine,
    zeros,
)
from fluid.static.layers.beam import beam_search, beam_search_decode, is_empty, lod_reset, sequence_expand
from fluid.static.layers.control import IfElse, ParallelDo, Switch, While, get_places
from fluid.static.layers.data import (
    create_py_reader_by_data,
    data,
    double_buffer,
    py_reader,
    read_file,
    softmax_with_cross_entropy,
)
from fluid.static.layers.rnn import DynamicRNN, StaticRNN
from fluid.static.layers.sizes import (
    image_resize,
    interpolate,
    reshape,
    resize_bilinear,
    resize_nearest,
    resize_trilinear,
)
from fluid.static.tape.program import recorded_layer

__getattr__ = recorded_layer

__all__ = [
    *_of_fluid,
    "accuracy",
    "DynamicRNN",
    "IfElse",
    "ParallelDo",
    "StaticRNN",
    "Switch",
    "While",
    "array_length",
    "array_read",
    "array_write",
    "beam_search",
    "beam_search_decode",
    "is_empty",
    "lod_reset",
    "sequence_expand",
    "assign",
    "autoincreased_step_counter",
    "cosine_decay",
    "create_array",
    "create_global_var",
    "create_py_reader_by_data",
    "create_tensor",
    "data",
    "double_buffer",
    "exponential_decay",
    "fill_constant",
    "get_places",
    "image_resize",
    "increment",
    "interpolate",
    "inverse_time_decay",
    "linear_lr_warmup",
    "natural_exp_decay",
    "noam_decay",
    "ones",
    "piecewise_decay",
    "polynomial_decay",
    "py_func",
    "py_reader",
    "read_file",
    "reshape",
    "resize_bilinear",
    "resize_nearest",
    "resize_trilinear",
    "softmax_with_cross_entropy",
    "warmup_cosine",
    "zeros",
]
