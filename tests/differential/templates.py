"""Templates of the lines of random programs: inputs, layers, losses, metrics and functions.

A value of a program has a kind and a size. The kinds are "dense" `[batch, d]`, "image" `[batch, c, h, h]` and "steps",
a sequence with d numbers for each step. Each layer of the table is a template, such as `layers.fc({x}, {w})`:

    {x}    a value of the first kind of the row
    {y}    another value of the kind and size of x, or x again
    {z}    another value of the kind of x, of any size, or x again
    {w}    a new size
    {t}    the width of the table of ids, which all embeddings share
    others a word of `WORDS`, or a size of x
"""

import numpy as np

INPUTS = {
    "x": 'layers.data("x", [4])',
    "y": 'layers.data("y", [1])',
    "label": 'layers.data("label", [1], "int64")',
    "ids": 'layers.data("ids", [1], "int64")',
    "image": 'layers.data("image", [2, 6, 6])',
    "steps": 'layers.data("steps", [3], lod_level=1)',
    "words": 'layers.data("words", [1], "int64", lod_level=1)',
    "tags": 'layers.data("tags", [1], "int64", lod_level=1)',
}
# The first value that is computed from an input: its kind, its size and the expression.
FIRST = {
    "x": [("dense", "4", "x")],
    "image": [("image", "2, 6", "image")],
    "steps": [("steps", "3", "steps")],
    "ids": [
        ("dense", "t", "layers.embedding(ids, [10, {t}], is_sparse={bool}, param_attr='table')"),
        ("dense", "t", "layers.embedding(ids, [10, {t}], padding_idx=0, param_attr='table')"),
        ("dense", "10", "layers.one_hot(ids, 10)"),
    ],
    "words": [
        ("steps", "t", "layers.embedding(words, [10, {t}], is_sparse={bool}, param_attr='table')"),
        ("steps", "10", "layers.one_hot(words, 10)"),
    ],
}
WORDS = {
    "act": ["None", "'relu'", "'tanh'", "'sigmoid'", "'softmax'", "'gelu'"],
    "bool": ["True", "False"],
    "unary": "abs cos sin sigmoid tanh softsign elu gelu hard_swish leaky_relu softmax log_softmax swish softplus mish "
    "brelu stanh logsigmoid relu relu6 selu erf atan hard_sigmoid tanh_shrink softshrink soft_relu".split(),
    "pool": "'sum' 'max' 'average' 'sqrt' 'first' 'last'".split(),
    "rate": ["0.2", "0.5"],
    "way": ["'upscale_in_train'", "'downgrade_in_infer'"],
}
# (kind of x, kind of the result, size of the result): templates. In a size, d, c and h are the sizes of x.
LAYERS = {
    ("dense", "dense", "w"): [
        "layers.fc({x}, {w}, act={act})",
        "layers.fc([{x}, {z}], {w}, act={act})",
        "layers.fc({x}, {w}, act='tanh', param_attr=fluid.WeightNormParamAttr(dim=1))",
        "layers.dense({x}, {w}, bias_attr=False)",
        "layers.bilinear_tensor_product({x}, {z}, {w}, act='tanh')",
        "layers.remat(lambda v: layers.fc(v, {w}, act='tanh'), {x})",
    ],
    ("dense", "dense", "d"): [
        "layers.{unary}({x})",
        "layers.{unary}({x})",
        "layers.layer_norm({x})",
        "layers.rms_norm({x})",
        "layers.batch_norm({x}, act={act})",
        "layers.data_norm({x}, act='tanh')",
        "layers.l2_normalize({x}, axis=1)",
        "layers.dropout({x}, {rate}, dropout_implementation={way})",
        "layers.prelu({x}, 'element')",
        "layers.scale({x}, 0.5, bias=0.1)",
        "layers.clip({x}, -0.5, 0.7)",
        "layers.cumsum({x}, axis=1)",
        "layers.flip({x}, dims=[1])",
        "layers.roll({x}, [1], [1])",
        "layers.sums([{x}, {y}])",
        "layers.elementwise_max({x}, {y})",
        "layers.elementwise_mul({x}, layers.tanh({y}))",
        "layers.elementwise_div({x}, 1.0 + layers.square({y}))",
        "layers.where({x} > 0.1, {x}, 0.5 * {y})",
        "layers.argsort({x}, axis=1)[0]",
        "layers.argsort({x}, axis=1, descending=True)[0]",
        "layers.exp(layers.clip({x}, -2.0, 2.0))",
        "layers.log(1.5 + layers.square({x}))",
        "layers.sqrt(layers.square({x}) + 0.1)",
        "layers.reciprocal(1.5 + layers.square({x}))",
        "layers.squeeze(layers.stack([{x}, {y}], axis=1)[:, 1:], [1])",
        "layers.dot({x}, layers.softmax({y})) * {x}",
        "layers.cos_sim({x}, 0.1 + layers.square({y})) * {x}",
        "layers.clip_by_norm(layers.reduce_mean({x}), 0.1) * 0.0 + {x}",
        "block({x})",
        "block(block({x}))",
        "layers.repeat(lambda v: layers.fc(v, {d}, act='tanh'), 3, {x})",
        "layers.while_loop(lambda i, v: i < 3, lambda i, v: [i + 1, 0.5 * v + layers.sin(v)], [0, {x}], "
        "max_iterations=4)[1]",
        "layers.while_loop(lambda i, v: i < 2, lambda i, v: [i + 1, layers.fc(v, {d}, act='tanh')], [0, {x}], "
        "max_iterations=2)[1]",
        "layers.scan(lambda v, i: (layers.fc(v, {d}, act='tanh'), None), {x}, length=2)[0]",
        "layers.cond(layers.reduce_mean({x}) * 0.0 > -1.0, lambda: layers.fc({x}, {d}), lambda: {x} + 1.0)",
        "layers.switch_case(1, [lambda: {x}, lambda: layers.fc({x}, {d}, act='tanh')])",
        "{x} * layers.create_parameter([{d}], 'float32', default_initializer=fluid.initializer.Constant(0.7))",
        "({x} if layers.is_training() else {x}) + 0.1",
        "layers.rowwise(lambda v: v * 2.0 - layers.reduce_max(v, dim=1, keep_dim=True))({x})",
        "average({x})",
    ],
    ("dense", "dense", "1"): [
        "layers.reduce_max({x}, dim=1, keep_dim=True)",
        "layers.logsumexp({x}, dim=1, keepdim=True)",
        "layers.reduce_mean({x} * {y}, dim=1, keep_dim=True)",
        "layers.cos_sim({x}, {y} + 0.3)",
        "layers.cast(layers.reshape(layers.argmax({x}, axis=1), [-1, 1]), 'float32')",
    ],
    ("dense", "dense", "d + 1"): ["layers.pad({x}, [0, 0, 1, 0], 0.5)"],
    ("dense", "dense", "2 * d"): [
        "layers.concat([{x}, {y}], axis=1)",
        "layers.expand({x}, [1, 2])",
        "layers.reshape(layers.stack([{x}, {y}], axis=2), [-1, 2 * {d}])",
        "layers.concat(layers.split(layers.concat([{x}, {y}], axis=1), 2, dim=1)[::-1], axis=1)",
    ],
    # Layers that mix the rows of a batch in test mode too; programs draw at most one of these, and rarely.
    ("dense", "dense", "mixed"): [
        "{x} - layers.reduce_mean({x}, dim=0, keep_dim=True)",
        "layers.cumsum({x}, axis=0)",
        "layers.reverse({x}, axis=0)",
        "layers.roll({x}, 1, 0)",
        "{x} / layers.cast(layers.shape({x})[0], 'float32')",
        "{x} + layers.clip(layers.reduce_mean({x}), -1.0, 1.0)",
        "layers.clip_by_norm({x}, 1.0)",
        "layers.gather({x}, layers.argsort(layers.reduce_sum({x}, dim=1), axis=0)[1])",
        "layers.while_loop(lambda v: layers.reduce_max(v) > 0.5, lambda v: [0.5 * v], [{x}], max_iterations=9)[0]",
        "layers.cond(layers.reduce_mean({x}) > 0.0, lambda: {x} + 1.0, lambda: 2.0 * {x})",
        "layers.reshape(layers.softmax(layers.reshape({x}, [1, -1]), axis=1), [-1, {d}])",
    ],
    ("steps", "steps", "w"): [
        "layers.fc({x}, {w}, act={act})",
        "layers.fc([{x}, {z}], {w}, act={act})",
        "layers.sequence_conv({x}, {w}, 3, act={act})",
        "layers.dynamic_lstm(layers.fc({x}, 4 * {w}), 4 * {w}, is_reverse={bool}, use_peepholes={bool})[0]",
        "layers.dynamic_gru(layers.fc({x}, 3 * {w}), {w}, is_reverse={bool})",
        "layers.rnn(layers.GRUCell({w}), {x})[0]",
        "layers.rnn(layers.LSTMCell({w}), {x}, is_reverse=True)[0]",
        "layers.multi_head_attention(layers.fc({x}, {w}), causal={bool})",
    ],
    ("steps", "steps", "d"): [
        "layers.{unary}({x})",
        "layers.row_conv({x}, 2)",
        "layers.sequence_reverse({x})",
        "layers.layer_norm({x})",
        "layers.batch_norm({x}, act={act})",
        "layers.dropout({x}, {rate}, dropout_implementation={way})",
        "layers.elementwise_add({x}, {y})",
        "{x} * layers.sequence_softmax(layers.fc({x}, 1))",
        "layers.sequence_expand_as(layers.sequence_pool({x}, {pool}), {x}) + 0.5 * {x}",
        "layers.where({x} > 0.1, {x}, 0.5 * {y})",
        "layers.prelu({x}, 'all')",
        "block({x})",
    ],
    ("steps", "steps", "2 * d"): [
        "layers.concat([{x}, {y}], axis=1)",
        "layers.add_position_encoding(layers.concat([{x}, {y}], axis=1), 0.7, 0.3)",
    ],
    ("steps", "dense", "d"): [
        "layers.sequence_pool({x}, {pool})",
        "layers.sequence_last_step({x})",
        "layers.sequence_first_step({x})",
        "layers.sequence_pool(layers.sequence_concat([{x}, {y}]), {pool})",
        "layers.sequence_pool(layers.sequence_reshape({x}, {d}), {pool})",
    ],
    ("image", "image", "w, h"): [
        "layers.conv2d({x}, {w}, 3, padding=1, act={act})",
        "layers.conv2d({x}, {w}, 1, bias_attr=False)",
        "layers.conv2d({x}, {w}, [3, 1], padding='SAME', dilation=2)",
        "layers.conv2d_transpose({x}, {w}, filter_size=3, padding=1, act={act})",
    ],
    ("image", "image", "c, h"): [
        "layers.{unary}({x})",
        "layers.batch_norm({x}, act={act})",
        "layers.group_norm({x}, 1)",
        "layers.instance_norm({x})",
        "layers.lrn({x}, n=3)",
        "layers.prelu({x}, 'channel')",
        "layers.conv2d({x}, {c}, 3, padding=1, groups={c})",
        "layers.pool2d({x}, 3, 'max', 1, 1)",
        "layers.pool2d({x}, 3, 'avg', 1, 1, exclusive={bool})",
        "layers.flip({x}, dims=[2, 3])",
        "layers.elementwise_add({x}, {y})",
        "layers.dropout({x}, {rate}, dropout_implementation={way})",
        "layers.shuffle_channel({x}, 1)",
        "layers.roll({x}, [1, -1], [2, 3])",
    ],
    ("image", "image", "c, 3"): [
        "layers.adaptive_pool2d({x}, 3, 'avg')",
        "layers.resize_nearest({x}, [3, 3])",
        "layers.resize_bilinear({x}, [3, 3], align_corners={bool})",
    ],
    ("image", "image", "c, h + 2"): ["layers.pad2d({x}, [1, 1, 1, 1], 'reflect')"],
    ("image", "image", "16, 3"): ["layers.space_to_depth(layers.conv2d(layers.resize_nearest({x}, [6, 6]), 4, 1), 2)"],
    ("image", "dense", "c"): [
        "layers.reshape(layers.pool2d({x}, pool_type='avg', global_pooling=True), [-1, {c}])",
        "layers.reduce_max({x}, dim=[2, 3])",
        "layers.sequence_pool(layers.im2sequence({x}, 1, {h}), {pool})",
    ],
    ("image", "dense", "c * h * h"): ["layers.flatten({x})"],
    ("image", "dense", "w"): ["layers.fc({x}, {w}, act={act})"],
}
# (target, what the net computes from {x} as `guess`, the loss of `guess`)
LOSSES = [
    ("y", "layers.fc({x}, 1)", "layers.mean(layers.square_error_cost(guess, y))"),
    ("y", "layers.fc({x}, 1)", "layers.mean(layers.huber_loss(guess, y, 0.7))"),
    ("y", "layers.fc({x}, 1)", "layers.mse_loss(guess, y)"),
    ("y", "layers.fc({x}, 1)", "layers.mean(layers.smooth_l1(guess, y))"),
    ("y", "layers.fc({x}, 1)", "layers.mean(layers.sigmoid_cross_entropy_with_logits(guess, layers.sigmoid(y)))"),
    ("y", "layers.fc({x}, 1, act='sigmoid')", "layers.mean(layers.log_loss(guess, layers.sigmoid(y)))"),
    ("label", "layers.fc({x}, 3, act='softmax')", "layers.mean(layers.cross_entropy(guess, label))"),
    ("label", "layers.fc({x}, 3)", "layers.mean(layers.softmax_with_cross_entropy(guess, label))"),
    ("label", "layers.fc({x}, 3)", "layers.mean(layers.bpr_loss(guess, label))"),
    ("label", "layers.fc({x}, 3)", "layers.mean(layers.hsigmoid(guess, label, 3))"),
    ("label", "layers.fc({x}, 3)", "layers.mean(layers.center_loss(guess, label, 3, 0.1))"),
]
STEP_LOSSES = [
    ("tags", "layers.fc({x}, 3)", "layers.mean(layers.softmax_with_cross_entropy(guess, tags))"),
    ("tags", "layers.fc({x}, 3, act='softmax')", "layers.mean(layers.cross_entropy(guess, tags))"),
    ("tags", "layers.fc({x}, 3)", "layers.mean(layers.linear_chain_crf(guess, tags))"),
]
# Metrics of `guess` and the target, and the same in NumPy, of all valid rows or steps.
METRICS = {
    "layers.reduce_sum(guess)": lambda guess, target: guess.sum(),
    "layers.reduce_mean(guess)": lambda guess, target: guess.mean(),
    "layers.reduce_max(guess)": lambda guess, target: guess.max(),
    "layers.reduce_min(layers.square(guess))": lambda guess, target: (guess**2).min(),
    "layers.metric(layers.mean(layers.square(guess)), jnp.sqrt)": lambda guess, target: (guess**2).mean() ** 0.5,
    "layers.metric([layers.reduce_max(guess), layers.reduce_min(guess)], lambda a, b: a - b)": (
        lambda guess, target: np.ptp(guess)
    ),
    "layers.accuracy(guess, {target})": lambda guess, target: (guess.argmax(1) == target[:, 0]).mean(),
}
HELPERS = {
    "block(": ["@fluid.shared", "def block(v):", "    return layers.fc(v, v.shape[-1], act='tanh')"],
    "average(": [
        "def average(v):",
        "    kept = layers.create_state([v.shape[1]])",
        "    kept.update(0.5 * kept.value + layers.reduce_mean(v, dim=0))",
        "    return v - kept.value",
    ],
}
