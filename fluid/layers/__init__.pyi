"""The names of `fluid.layers` and their modules, written by `make stubs`; each loads at its first use."""

from .activation import (
    abs,
    acos,
    asin,
    atan,
    brelu,
    ceil,
    cos,
    elu,
    erf,
    exp,
    floor,
    gelu,
    hard_shrink,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    log,
    log1p,
    log_softmax,
    logsigmoid,
    maxout,
    mish,
    prelu,
    reciprocal,
    relu,
    relu6,
    round,
    rsqrt,
    selu,
    sigmoid,
    sign,
    silu,
    sin,
    soft_relu,
    softmax,
    softplus,
    softshrink,
    softsign,
    sqrt,
    square,
    stanh,
    swish,
    tanh,
    tanh_shrink,
    thresholded_relu,
)
from .attention.attention import attention_cache, multi_head_attention
from .attention.position import add_position_encoding, rotary_position, sinusoidal_position
from .control.branch import case, cond, switch_case
from .control.print import Print
from .control.repeat import remat, repeat
from .control.tensor_array import array_length, array_read, array_write, create_array
from .control.while_loop import scan, while_loop
from .custom import create_state, is_training, module, py_func, random_key, rowwise
from .data import data
from .detection.box import box_clip, box_coder, box_decoder_and_assign, iou_similarity, polygon_box_transform
from .detection.faster_rcnn import (
    collect_fpn_proposals,
    distribute_fpn_proposals,
    generate_proposal_labels,
    generate_proposals,
    rpn_target_assign,
)
from .detection.matching import bipartite_match, target_assign
from .detection.prior import anchor_generator, density_prior_box, prior_box
from .detection.retinanet import retinanet_detection_output, retinanet_target_assign
from .detection.roi import prroi_pool, psroi_pool, roi_align, roi_pool
from .detection.ssd import detection_output, multi_box_head, ssd_loss
from .detection.suppression import matrix_nms, multiclass_nms
from .detection.yolo import yolo_box, yolov3_loss
from .embedding import embedding
from .fc import dense, fc
from .image.conv import conv2d, conv2d_transpose, conv3d, conv3d_transpose
from .image.grid import affine_grid, deformable_conv, grid_sampler
from .image.pool import adaptive_pool2d, adaptive_pool3d, pool2d, pool3d
from .image.resize import (
    image_resize,
    image_resize_short,
    interpolate,
    resize_bilinear,
    resize_linear,
    resize_nearest,
    resize_trilinear,
)
from .image.shuffle import im2sequence, pad2d, pixel_shuffle, shuffle_channel, space_to_depth, temporal_shift, unfold
from .learning_rate_scheduler import (
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
from .loss.classification import (
    bpr_loss,
    center_loss,
    dice_loss,
    label_smooth,
    sigmoid_focal_loss,
    teacher_student_sigmoid_loss,
)
from .loss.cross_entropy import cross_entropy, sigmoid_cross_entropy_with_logits, softmax_with_cross_entropy
from .loss.metrics import accuracy, auc, mean_iou, metric, precision, recall
from .loss.regression import (
    huber_loss,
    kldiv_loss,
    log_loss,
    margin_rank_loss,
    mse_loss,
    npair_loss,
    rank_loss,
    smooth_l1,
    square_error_cost,
)
from .loss.sampled import hsigmoid, nce, sampled_softmax_with_cross_entropy
from .norm.batch_norm import batch_norm
from .norm.dropout import dropout
from .norm.layer_norm import feature_norm, group_norm, instance_norm, layer_norm, rms_norm
from .norm.rescale import affine_channel, data_norm, l2_normalize, lrn, spectral_norm
from .overview import overview
from .recurrent.gated_cells import GRUCell, LSTMCell
from .recurrent.gru import dynamic_gru, gru_unit
from .recurrent.lstm import dynamic_lstm, dynamic_lstmp, lstm, lstm_unit
from .recurrent.rnn import RNNCell, rnn
from .recurrent.step_block import DynamicRNN, StaticRNN
from .sequence.convert import lod_append, lod_reset, sequence_mask, sequence_pad, sequence_unpad
from .sequence.index import sequence_enumerate, sequence_erase, sequence_scatter
from .sequence.pool import (
    row_conv,
    sequence_conv,
    sequence_first_step,
    sequence_last_step,
    sequence_pool,
    sequence_softmax,
)
from .sequence.shape import (
    sequence_concat,
    sequence_expand,
    sequence_expand_as,
    sequence_reshape,
    sequence_reverse,
    sequence_slice,
)
from .structured.beam import beam_search, gather_tree
from .structured.chunk import chunk_eval, edit_distance
from .structured.crf import crf_decoding, linear_chain_crf
from .structured.ctc import ctc_greedy_decoder, warpctc
from .structured.decoder import (
    BasicDecoder,
    DecodeHelper,
    Decoder,
    GreedyEmbeddingHelper,
    SampleEmbeddingHelper,
    TrainingHelper,
)
from .structured.dynamic_decode import BeamSearchDecoder, dynamic_decode
from .structured.generate import generate
from .tensor.arithmetic import (
    clip,
    clip_by_norm,
    elementwise_add,
    elementwise_div,
    elementwise_floordiv,
    elementwise_max,
    elementwise_min,
    elementwise_mod,
    elementwise_mul,
    elementwise_pow,
    elementwise_sub,
    increment,
    pow,
    scale,
    sum,
    sums,
)
from .tensor.compare import (
    equal,
    greater_equal,
    greater_than,
    has_inf,
    has_nan,
    isfinite,
    less_equal,
    less_than,
    logical_and,
    logical_not,
    logical_or,
    logical_xor,
    not_equal,
)
from .tensor.concat import concat, expand, expand_as, flip, reverse, roll, split, stack, unstack
from .tensor.create import (
    assign,
    cast,
    create_parameter,
    eye,
    fill_constant,
    fill_constant_batch_size_like,
    fill_zeros_like,
    full_like,
    identity,
    linspace,
    meshgrid,
    ones,
    ones_like,
    range,
    shard,
    zeros,
    zeros_like,
)
from .tensor.index import (
    gather,
    gather_nd,
    index_sample,
    index_select,
    multiplex,
    one_hot,
    scatter,
    scatter_nd,
    scatter_nd_add,
    shard_index,
    slice,
    strided_slice,
    where,
)
from .tensor.matrix import (
    addmm,
    bilinear_tensor_product,
    bmm,
    cos_sim,
    cross,
    diag,
    dist,
    dot,
    fsp_matrix,
    kron,
    matmul,
    mul,
    tril,
    triu,
)
from .tensor.random import (
    gaussian_random,
    gaussian_random_batch_size_like,
    sampling_id,
    uniform_random,
    uniform_random_batch_size_like,
)
from .tensor.reduce import (
    cumsum,
    logsumexp,
    mean,
    reduce_all,
    reduce_any,
    reduce_max,
    reduce_mean,
    reduce_min,
    reduce_prod,
    reduce_sum,
)
from .tensor.reshape import (
    crop,
    crop_tensor,
    flatten,
    pad,
    pad_constant_like,
    rank,
    reshape,
    shape,
    size,
    squeeze,
    transpose,
    unsqueeze,
)
from .tensor.search import argmax, argmin, argsort, topk, unique, unique_with_counts

# fmt: off
__all__ = [
    "BasicDecoder", "BeamSearchDecoder", "DecodeHelper", "Decoder", "DynamicRNN", "GRUCell", "GreedyEmbeddingHelper",
    "LSTMCell", "Print", "RNNCell", "SampleEmbeddingHelper", "StaticRNN", "TrainingHelper", "abs", "accuracy", "acos",
    "adaptive_pool2d", "adaptive_pool3d", "add_position_encoding", "addmm", "affine_channel", "affine_grid",
    "anchor_generator", "argmax", "argmin", "argsort", "array_length", "array_read", "array_write", "asin", "assign",
    "atan", "attention_cache", "auc", "batch_norm", "beam_search", "bilinear_tensor_product", "bipartite_match", "bmm",
    "box_clip", "box_coder", "box_decoder_and_assign", "bpr_loss", "brelu", "case", "cast", "ceil", "center_loss",
    "chunk_eval", "clip", "clip_by_norm", "collect_fpn_proposals", "concat", "cond", "conv2d", "conv2d_transpose",
    "conv3d", "conv3d_transpose", "cos", "cos_sim", "cosine_decay", "create_array", "create_parameter", "create_state",
    "crf_decoding", "crop", "crop_tensor", "cross", "cross_entropy", "ctc_greedy_decoder", "cumsum", "data",
    "data_norm", "deformable_conv", "dense", "density_prior_box", "detection_output", "diag", "dice_loss", "dist",
    "distribute_fpn_proposals", "dot", "dropout", "dynamic_decode", "dynamic_gru", "dynamic_lstm", "dynamic_lstmp",
    "edit_distance", "elementwise_add", "elementwise_div", "elementwise_floordiv", "elementwise_max", "elementwise_min",
    "elementwise_mod", "elementwise_mul", "elementwise_pow", "elementwise_sub", "elu", "embedding", "equal", "erf",
    "exp", "expand", "expand_as", "exponential_decay", "eye", "fc", "feature_norm", "fill_constant",
    "fill_constant_batch_size_like", "fill_zeros_like", "flatten", "flip", "floor", "fsp_matrix", "full_like", "gather",
    "gather_nd", "gather_tree", "gaussian_random", "gaussian_random_batch_size_like", "gelu", "generate",
    "generate_proposal_labels", "generate_proposals", "greater_equal", "greater_than", "grid_sampler", "group_norm",
    "gru_unit", "hard_shrink", "hard_sigmoid", "hard_swish", "has_inf", "has_nan", "hsigmoid", "huber_loss", "identity",
    "im2sequence", "image_resize", "image_resize_short", "increment", "index_sample", "index_select", "instance_norm",
    "interpolate", "inverse_time_decay", "iou_similarity", "is_training", "isfinite", "kldiv_loss", "kron",
    "l2_normalize", "label_smooth", "layer_norm", "leaky_relu", "less_equal", "less_than", "linear_chain_crf",
    "linear_lr_warmup", "linspace", "lod_append", "lod_reset", "log", "log1p", "log_loss", "log_softmax", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logsigmoid", "logsumexp", "lrn", "lstm", "lstm_unit",
    "margin_rank_loss", "matmul", "matrix_nms", "maxout", "mean", "mean_iou", "meshgrid", "metric", "mish", "module",
    "mse_loss", "mul", "multi_box_head", "multi_head_attention", "multiclass_nms", "multiplex", "natural_exp_decay",
    "nce", "noam_decay", "not_equal", "npair_loss", "one_hot", "ones", "ones_like", "overview", "pad", "pad2d",
    "pad_constant_like", "piecewise_decay", "pixel_shuffle", "polygon_box_transform", "polynomial_decay", "pool2d",
    "pool3d", "pow", "precision", "prelu", "prior_box", "prroi_pool", "psroi_pool", "py_func", "random_key", "range",
    "rank", "rank_loss", "recall", "reciprocal", "reduce_all", "reduce_any", "reduce_max", "reduce_mean", "reduce_min",
    "reduce_prod", "reduce_sum", "relu", "relu6", "remat", "repeat", "reshape", "resize_bilinear", "resize_linear",
    "resize_nearest", "resize_trilinear", "retinanet_detection_output", "retinanet_target_assign", "reverse",
    "rms_norm", "rnn", "roi_align", "roi_pool", "roll", "rotary_position", "round", "row_conv", "rowwise",
    "rpn_target_assign", "rsqrt", "sampled_softmax_with_cross_entropy", "sampling_id", "scale", "scan", "scatter",
    "scatter_nd", "scatter_nd_add", "selu", "sequence_concat", "sequence_conv", "sequence_enumerate", "sequence_erase",
    "sequence_expand", "sequence_expand_as", "sequence_first_step", "sequence_last_step", "sequence_mask",
    "sequence_pad", "sequence_pool", "sequence_reshape", "sequence_reverse", "sequence_scatter", "sequence_slice",
    "sequence_softmax", "sequence_unpad", "shape", "shard", "shard_index", "shuffle_channel", "sigmoid",
    "sigmoid_cross_entropy_with_logits", "sigmoid_focal_loss", "sign", "silu", "sin", "sinusoidal_position", "size",
    "slice", "smooth_l1", "soft_relu", "softmax", "softmax_with_cross_entropy", "softplus", "softshrink", "softsign",
    "space_to_depth", "spectral_norm", "split", "sqrt", "square", "square_error_cost", "squeeze", "ssd_loss", "stack",
    "stanh", "strided_slice", "sum", "sums", "swish", "switch_case", "tanh", "tanh_shrink", "target_assign",
    "teacher_student_sigmoid_loss", "temporal_shift", "thresholded_relu", "topk", "transpose", "tril", "triu", "unfold",
    "uniform_random", "uniform_random_batch_size_like", "unique", "unique_with_counts", "unsqueeze", "unstack",
    "warmup_cosine", "warpctc", "where", "while_loop", "yolo_box", "yolov3_loss", "zeros", "zeros_like"
]
