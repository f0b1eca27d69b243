"""Layers: the functions that a program function calls.

`fluid.layers.overview()` lists all layers, one line each. `fluid.layers.overview("Dense")` lists the layers whose line
contains a text, such as a name in Keras, PyTorch or Flax. `help(fluid.layers.fc)` describes one layer. The reference on
the site has a page for each family, here with some of the layers:

  Data and parameters: data, dense, fc, embedding, module
  Create arrays: zeros, ones, range, fill_constant, uniform_random
  Arithmetic: elementwise_add, elementwise_mul, scale, clip, pow
  Matrices: matmul, bmm, dot, diag, cos_sim
  Reduce and search: mean, reduce_sum, argmax, topk, argsort
  Compare: equal, less_than, logical_and, logical_not, isfinite
  Reshape, join and pad: reshape, transpose, concat, split, pad
  Index, gather and scatter: gather, scatter, slice, where, one_hot
  Activations: relu, gelu, sigmoid, tanh, softmax
  Convolution and pooling: conv2d, conv2d_transpose, conv3d, pool2d, adaptive_pool2d
  Resize and rearrange images: image_resize, pad2d, grid_sampler, pixel_shuffle, unfold
  Normalisation and dropout: batch_norm, layer_norm, group_norm, rms_norm, dropout
  Losses of classes: cross_entropy, softmax_with_cross_entropy, sigmoid_focal_loss, label_smooth, nce
  Losses of numbers, and metrics: square_error_cost, mse_loss, huber_loss, accuracy, auc
  Sequences: sequence_pool, sequence_conv, sequence_expand, sequence_mask, sequence_pad
  Recurrent layers: lstm, dynamic_gru, rnn, LSTMCell, DynamicRNN
  Attention: multi_head_attention, attention_cache, rotary_position, add_position_encoding
  Branches, loops and stacks: cond, while_loop, scan, repeat, remat
  Decoding and structured prediction: generate, beam_search, linear_chain_crf, warpctc, edit_distance
  Detection, boxes: prior_box, box_coder, iou_similarity, roi_align, target_assign
  Detection, heads and losses: multi_box_head, ssd_loss, yolov3_loss, multiclass_nms, generate_proposals
  Learning-rate schedules: cosine_decay, noam_decay, piecewise_decay, exponential_decay, linear_lr_warmup

A subpackage is imported when one of its layers is first used. `__init__.pyi` lists the file of each layer.
"""

from fluid._util import known_names, lazy

# Nearly every program calls `data`, `embedding` and `fc`, so these three layers are imported immediately; all other
# layers are imported on first use.
from fluid.layers.data import data  # noqa: F401
from fluid.layers.embedding import embedding  # noqa: F401
from fluid.layers.fc import fc  # noqa: F401

__getattr__, __dir__, __all__ = lazy.attach(
    __name__, otherwise=known_names.getattr_of(__name__), above=["learning_rate_scheduler"]
)
