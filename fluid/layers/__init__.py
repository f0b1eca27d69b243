"""Layers: what a program function calls."""

from fluid.layers.about import has_inf, has_nan, increment, rank, sequence_mask, shape, size
from fluid.layers.activations import (
    brelu,
    elu,
    gelu,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    log_softmax,
    relu6,
    selu,
    soft_relu,
    softmax,
    stanh,
    swish,
)
from fluid.layers.arrange import concat, expand, flatten, reshape, split, squeeze, stack, transpose, unsqueeze, unstack
from fluid.layers.attention import attention_cache, multi_head_attention
from fluid.layers.beam import beam_search
from fluid.layers.blocks import DynamicRNN, StaticRNN
from fluid.layers.chunks import chunk_eval
from fluid.layers.classification import (
    bpr_loss,
    dice_loss,
    label_smooth,
    sigmoid_focal_loss,
    teacher_student_sigmoid_loss,
)
from fluid.layers.compare import (
    equal,
    greater_equal,
    greater_than,
    isfinite,
    less_equal,
    less_than,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
)
from fluid.layers.control import case, cond, switch_case
from fluid.layers.conv import conv2d, conv2d_transpose, conv3d, conv3d_transpose
from fluid.layers.create import (
    diag,
    eye,
    fill_constant,
    fill_constant_batch_size_like,
    fill_zeros_like,
    linspace,
    ones,
    ones_like,
    range,
    zeros,
    zeros_like,
)
from fluid.layers.crf import crf_decoding, linear_chain_crf
from fluid.layers.ctc import ctc_greedy_decoder, warpctc
from fluid.layers.dense import fc
from fluid.layers.distance import edit_distance
from fluid.layers.dropout import dropout
from fluid.layers.elementwise import (
    elementwise_add,
    elementwise_div,
    elementwise_floordiv,
    elementwise_max,
    elementwise_min,
    elementwise_mod,
    elementwise_mul,
    elementwise_pow,
    elementwise_sub,
)
from fluid.layers.embedding import embedding
from fluid.layers.grid import affine_grid, grid_sampler
from fluid.layers.gru import dynamic_gru, gru_unit
from fluid.layers.index import argmax, argmin, argsort, cumsum, gather, gather_nd, one_hot, slice, strided_slice, topk
from fluid.layers.io import data
from fluid.layers.loops import scan, while_loop
from fluid.layers.losses import (
    cross_entropy,
    sigmoid_cross_entropy_with_logits,
    softmax_with_cross_entropy,
    square_error_cost,
)
from fluid.layers.lstm import dynamic_lstm, dynamic_lstmp, lstm, lstm_unit
from fluid.layers.matrix import bilinear_tensor_product, cos_sim, matmul, mul
from fluid.layers.metrics import accuracy, auc, mean_iou, precision, recall
from fluid.layers.missing import __getattr__ as __getattr__
from fluid.layers.module import module
from fluid.layers.norm import batch_norm, group_norm, instance_norm, l2_normalize, layer_norm, lrn
from fluid.layers.padding import crop, crop_tensor, pad, pad2d, pad_constant_like, reverse
from fluid.layers.pixels import affine_channel, im2sequence, pixel_shuffle, shuffle_channel, space_to_depth, unfold
from fluid.layers.pool import adaptive_pool2d, adaptive_pool3d, pool2d, pool3d
from fluid.layers.positions import rotary_position, sinusoidal_position
from fluid.layers.printing import Print
from fluid.layers.random import (
    gaussian_random,
    gaussian_random_batch_size_like,
    sampling_id,
    uniform_random,
    uniform_random_batch_size_like,
)
from fluid.layers.reduce import (
    mean,
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from fluid.layers.regression import (
    huber_loss,
    kldiv_loss,
    log_loss,
    margin_rank_loss,
    mse_loss,
    npair_loss,
    rank_loss,
    smooth_l1,
)
from fluid.layers.repeat import repeat
from fluid.layers.resize import image_resize, image_resize_short, resize_bilinear, resize_nearest, resize_trilinear
from fluid.layers.rnn import rnn
from fluid.layers.sampled import hsigmoid, nce, sampled_softmax_with_cross_entropy
from fluid.layers.scatter import multiplex, scatter, scatter_nd, scatter_nd_add, where
from fluid.layers.sequence import (
    add_position_encoding,
    row_conv,
    sequence_conv,
    sequence_first_step,
    sequence_last_step,
    sequence_pool,
    sequence_reverse,
    sequence_softmax,
)
from fluid.layers.sequence_index import lod_append, lod_reset, sequence_enumerate, sequence_erase, sequence_scatter
from fluid.layers.sequence_shape import (
    sequence_concat,
    sequence_expand,
    sequence_expand_as,
    sequence_pad,
    sequence_reshape,
    sequence_slice,
    sequence_unpad,
)
from fluid.layers.spectral import spectral_norm
from fluid.layers.tensor import assign, cast, clip, clip_by_norm, create_parameter, identity, pow, scale, sum, sums
from fluid.layers.tensor_array import array_length, array_read, array_write, create_array
from fluid.layers.thresholds import hard_shrink, maxout, prelu, softshrink, thresholded_relu
from fluid.layers.unary import (
    abs,
    acos,
    asin,
    atan,
    ceil,
    cos,
    exp,
    floor,
    log,
    logsigmoid,
    mish,
    reciprocal,
    relu,
    round,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    softplus,
    softsign,
    sqrt,
    square,
    tanh,
    tanh_shrink,
)
from fluid.lr import (
    cosine_decay,
    exponential_decay,
    inverse_time_decay,
    linear_lr_warmup,
    natural_exp_decay,
    noam_decay,
    piecewise_decay,
    polynomial_decay,
)

# fmt: off
__all__ = [
    "DynamicRNN", "Print", "StaticRNN", "abs", "accuracy", "acos", "adaptive_pool2d", "adaptive_pool3d",
    "add_position_encoding", "affine_channel", "affine_grid", "argmax", "argmin", "argsort", "array_length",
    "array_read", "array_write", "asin", "assign", "atan", "attention_cache", "auc", "batch_norm", "beam_search",
    "bilinear_tensor_product", "bpr_loss", "brelu", "case", "cast", "ceil", "chunk_eval", "clip", "clip_by_norm",
    "concat", "cond", "conv2d", "conv2d_transpose", "conv3d", "conv3d_transpose", "cos", "cos_sim", "cosine_decay",
    "create_array", "create_parameter", "crf_decoding", "crop", "crop_tensor", "cross_entropy", "ctc_greedy_decoder",
    "cumsum", "data", "diag", "dice_loss", "dropout", "dynamic_gru", "dynamic_lstm", "dynamic_lstmp", "edit_distance",
    "elementwise_add", "elementwise_div", "elementwise_floordiv", "elementwise_max", "elementwise_min",
    "elementwise_mod", "elementwise_mul", "elementwise_pow", "elementwise_sub", "elu", "embedding", "equal", "exp",
    "expand", "exponential_decay", "eye", "fc", "fill_constant", "fill_constant_batch_size_like", "fill_zeros_like",
    "flatten", "floor", "gather", "gather_nd", "gaussian_random", "gaussian_random_batch_size_like", "gelu",
    "greater_equal", "greater_than", "grid_sampler", "group_norm", "gru_unit", "hard_shrink", "hard_sigmoid",
    "hard_swish", "has_inf", "has_nan", "hsigmoid", "huber_loss", "identity", "im2sequence", "image_resize",
    "image_resize_short", "increment", "instance_norm", "inverse_time_decay", "isfinite", "kldiv_loss", "l2_normalize",
    "label_smooth", "layer_norm", "leaky_relu", "less_equal", "less_than", "linear_chain_crf", "linear_lr_warmup",
    "linspace", "lod_append", "lod_reset", "log", "log_loss", "log_softmax", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logsigmoid", "lrn", "lstm", "lstm_unit", "margin_rank_loss", "matmul", "maxout", "mean", "mean_iou",
    "mish", "module", "mse_loss", "mul", "multi_head_attention", "multiplex", "natural_exp_decay", "nce", "noam_decay",
    "not_equal", "npair_loss", "one_hot", "ones", "ones_like", "pad", "pad2d", "pad_constant_like", "piecewise_decay",
    "pixel_shuffle", "polynomial_decay", "pool2d", "pool3d", "pow", "precision", "prelu", "range", "rank", "rank_loss",
    "recall", "reciprocal", "reduce_all", "reduce_any", "reduce_max", "reduce_mean", "reduce_min", "reduce_prod",
    "reduce_sum", "relu", "relu6", "repeat", "reshape", "resize_bilinear", "resize_nearest", "resize_trilinear",
    "reverse", "rnn", "rotary_position", "round", "row_conv", "rsqrt", "sampled_softmax_with_cross_entropy",
    "sampling_id", "scale", "scan", "scatter", "scatter_nd", "scatter_nd_add", "selu", "sequence_concat",
    "sequence_conv", "sequence_enumerate", "sequence_erase", "sequence_expand", "sequence_expand_as",
    "sequence_first_step", "sequence_last_step", "sequence_mask", "sequence_pad", "sequence_pool", "sequence_reshape",
    "sequence_reverse", "sequence_scatter", "sequence_slice", "sequence_softmax", "sequence_unpad", "shape",
    "shuffle_channel", "sigmoid", "sigmoid_cross_entropy_with_logits", "sigmoid_focal_loss", "sign", "silu", "sin",
    "sinusoidal_position", "size", "slice", "smooth_l1", "soft_relu", "softmax", "softmax_with_cross_entropy",
    "softplus", "softshrink", "softsign", "space_to_depth", "spectral_norm", "split", "sqrt", "square",
    "square_error_cost", "squeeze", "stack", "stanh", "strided_slice", "sum", "sums", "swish", "switch_case", "tanh",
    "tanh_shrink", "teacher_student_sigmoid_loss", "thresholded_relu", "topk", "transpose", "unfold", "uniform_random",
    "uniform_random_batch_size_like", "unsqueeze", "unstack", "warpctc", "where", "while_loop", "zeros", "zeros_like",
]
# fmt: on
