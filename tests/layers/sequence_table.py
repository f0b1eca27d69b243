"""Table of layers that accept sequences: one row is enough to test a layer.

    Row("sequence_pool", lambda x: layers.sequence_pool(x, "max"), _seq())

is a call and an example feed of three rows. `test_padding.py` checks for each row that padding, whatever its amount
and values, changes neither results nor gradients, and that a batch equals its rows, computed one at a time.
The tests draw sequences of all lengths, zero included, with equal lengths for all sequences of a row; the fields
`lengths=`, `shortest=` and `mixes=` restrict the lengths. Layers that draw at random have no row: their draws
depend on the shape of the batch.
"""

import jax.numpy as jnp
import numpy as np
from layers.layer_table import (
    BOUNDED,
    REDUCTIONS,
    Row,
    block_of,
    boxes,
    for_each,
    plain,
    positive,
    real,
    recurred,
    rnn_of,
    simplex,
    start_of,
    whole,
)

import fluid
from fluid import layers, nets


def sequence(*shape, lengths, salt=0):
    """Return a sequence batch `[batch, time, ...]` whose padding is zeros."""
    data = real(*shape, salt=salt)
    data[np.arange(shape[1])[None] >= np.array(lengths)[:, None]] = 0
    return fluid.SequenceBatch(data, np.array(lengths, "int32"))


def _seq(**settings):
    return {"x": sequence(3, 4, 2, lengths=[4, 1, 2], **settings)}


def _two_seqs():
    return {**_seq(), "y": sequence(3, 4, 2, lengths=[2, 3, 4], salt=1)}


def _positive_seq():
    x = sequence(3, 4, 2, lengths=[4, 1, 2])
    return {"x": x.with_data(np.abs(x.data) / 2)}


def _seq_classes(high=2):
    labels = fluid.SequenceBatch(whole(high, 3, 4, 1), np.array([4, 1, 2], "int32"))
    return {**_seq(), "label": labels}


def _seq_text():
    labels = fluid.SequenceBatch(1 + whole(2, 3, 2, 1), np.array([2, 1, 0], "int32"))
    return {"x": sequence(3, 6, 3, lengths=[6, 2, 4]), "label": labels}


def _numbers(high=5):
    return {"x": fluid.SequenceBatch(whole(high, 3, 4, 1), np.array([4, 1, 2], "int32"))}


def _deep():
    return {"x": sequence(3, 3, 2, 2, lengths=[2, 1, 3])}


def _rows():
    """Return a feed of an array `x` and three sequences `y`; row i of `x` belongs to sequence i of `y`."""
    return {"x": real(3, 2), "y": sequence(3, 4, 2, lengths=[4, 1, 2])}


def inner(function):
    """Convert a layer on nested sequences to a function of sequences `[batch, time, 2, ...]`.

    The inner sequences have one or two parts in turn.
    """

    def build(x, *others):
        counts = 1 + jnp.arange(x.shape[1]) % 2
        return function(fluid.NestedSequenceBatch(x.data, x.lengths, jnp.tile(counts, (x.shape[0], 1))), *others)

    return build


def teacher_forced(x, last, time_major):
    """Return outputs, last states and lengths of an LSTM decoder that reads the sequences `x` as inputs."""
    decoder = layers.BasicDecoder(layers.LSTMCell(2), layers.TrainingHelper(x))
    (outputs, _), states, lengths = layers.dynamic_decode(
        decoder, max_step_num=last, output_time_major=time_major, return_length=True
    )
    return layers.reduce_sum(outputs, dim=0) if time_major else outputs, *states, lengths


def written(prompt):
    """Return the text that a recurrent net generates after a prompt."""

    def step(ids, state):
        states = layers.dynamic_gru(layers.fc(layers.embedding(ids, [5, 4]), 9), 3, h_0=state)
        return layers.fc(states, 5), layers.sequence_last_step(states)

    return layers.generate(step, prompt, 4, jnp.zeros([prompt.shape[0], 3]), temperature=0, end_id=1)


def _steps(data, lengths=(4, 1, 2)):
    """Return a sequence batch of the given data, with zeros as padding."""
    return fluid.SequenceBatch.from_rows([row[:n] for row, n in zip(data, lengths, strict=True)], time=data.shape[1])


BOXES, PRIOR, SPREAD = {"x": _steps(boxes(3, 4))}, boxes(5, salt=3), [0.1, 0.1, 0.2, 0.2]
DECODED = {**BOXES, "y": _steps(real(3, 4, 8)), "s": _steps(simplex(3, 4, 2))}
OBJECTS = {"x": real(3, 5, 4), "y": real(3, 5, 3), "b": _steps(boxes(3, 4, salt=2)), "k": _steps(1 + whole(2, 3, 4, 1))}
REGIONS = {"x": real(3, 4, 6, 5), "y": _steps(boxes(3, 4, scale=12.0))}
SCORED = {"x": _steps(boxes(3, 4, 2)), "y": _steps(simplex(3, 4, 2))}
INFO, CROWD = np.array([[12.0, 12.0, 1.0]], "float32"), _steps(np.array([[[0], [1], [0], [0]]] * 3))
ANCHORED = {"x": real(3, 5, 4), "y": real(3, 5, 1), "b": _steps(boxes(3, 4, scale=12.0)), "c": CROWD}
SAMPLED = {"x": _steps(boxes(3, 4, scale=12.0), [4, 0, 3]), "c": _steps(1 + whole(2, 3, 4, 1)), "d": CROWD,
           "b": _steps(boxes(3, 4, scale=12.0, salt=2))}  # fmt: skip
IMAGES = {"x": sequence(3, 3, 2, 4, 3, lengths=[2, 1, 3])}
YOLO = {"x": real(3, 14, 4, 3), "b": _steps(positive(3, 4, 4) / 2), "k": _steps(whole(2, 3, 4, 1))}


def restored(x):
    """Distribute boxes to the levels of a feature pyramid, double them, and return all boxes in the original order."""
    levels, restore = layers.distribute_fpn_proposals(x, 2, 4, 4, 1)
    return layers.gather(layers.concat([level * 2 for level in levels], axis=0), restore)


SEQUENCE_ROWS = [
    *plain("relu softmax log_softmax identity gelu", _seq()),
    Row("shard", lambda x: layers.shard(x, ("data",)), _seq()),
    Row("mean", layers.mean, _seq(), mixes=True),
    *plain(REDUCTIONS, _seq(), mixes=True),
    Row("fc", lambda x: layers.fc(x, 3, act="softmax"), _seq()),
    Row("dense", lambda x: layers.dense(x, 3, act="softmax"), _seq()),
    Row("batch_norm", layers.batch_norm, _seq(), mixes=True),
    Row("layer_norm", layers.layer_norm, _seq()),
    Row("feature_norm", layers.feature_norm, _seq()),
    Row("rms_norm", layers.rms_norm, _seq()),
    Row("l2_normalize", lambda x: layers.l2_normalize(x, axis=1), _seq()),
    Row("embedding", lambda x, y: layers.embedding(y, [2, 3]), _seq_classes()),
    Row("cross_entropy", lambda x, y: layers.mean(layers.cross_entropy(layers.softmax(x), y)), _seq_classes(),
        mixes=True),
    Row("softmax_with_cross_entropy", layers.softmax_with_cross_entropy, _seq_classes()),
    Row("accuracy", layers.accuracy, _seq_classes(), mixes=True),
    Row("one_hot", lambda x, y: layers.one_hot(y, 2), _seq_classes()),
    Row("sigmoid_cross_entropy_with_logits",
        lambda x: layers.sigmoid_cross_entropy_with_logits(x, layers.sigmoid(x), normalize=True), _seq(), mixes=True),
    Row("mse_loss", lambda x: layers.mse_loss(x, layers.square(x)), _seq(), mixes=True),
    Row("isfinite", layers.isfinite, _seq(), mixes=True),
    Row("elementwise_add", lambda x: layers.elementwise_add(x, np.array([1.0, 2.0], "float32")), _seq()),
    Row("elementwise_mul", lambda x: layers.elementwise_mul(x, layers.reduce_sum(x, dim=-1, keep_dim=True)), _seq()),
    Row("concat", lambda x: layers.concat([x, x], axis=1), _seq()),
    Row("split", lambda x: layers.split(x, 2, dim=1), _seq()),
    Row("reshape", lambda x: layers.reshape(x, [-1, 2, 1]), _seq()),
    Row("reduce_mean", lambda x: layers.reduce_mean(x, dim=0), _seq(), label="rows", mixes=True),
    Row("logsumexp", lambda x: layers.logsumexp(x, dim=-1), _seq()),
    Row("logsumexp", lambda x: layers.logsumexp(x, dim=0), _seq(), label="rows", mixes=True, shortest=1),
    Row("data_norm", lambda x: layers.data_norm(x), _seq()),
    Row("conv2d", lambda x: layers.conv2d(x, 2, 3, padding=1, act="tanh"), IMAGES),
    Row("conv2d", lambda x: layers.conv2d(x, 2, 3, groups=2, use_cudnn=False), IMAGES, label="depthwise"),
    Row("conv2d_transpose", lambda x: layers.conv2d_transpose(x, 3, filter_size=2, stride=2), IMAGES),
    Row("pool2d", lambda x: layers.pool2d(x, 2, "avg", 1, 1), IMAGES),
    Row("adaptive_pool2d", lambda x: layers.adaptive_pool2d(x, 2), IMAGES),
    Row("image_resize", lambda x: layers.image_resize(x, [3, 6]), IMAGES),
    Row("matmul", lambda x: layers.matmul(x, layers.tanh(x), transpose_y=True), _deep(), label="pairs"),
    Row("full_like", lambda x: layers.full_like(x, 2.5), _seq()),
    Row("flip", lambda x: layers.flip(x, dims=1), _seq()),
    Row("argsort", lambda x: layers.argsort(x, descending=True), _seq()),
    Row("erf", layers.erf, _seq()),
    Row("reduce_max", lambda x: layers.reduce_max(x, dim=[0, 1], keep_dim=True), _seq(), label="keep", mixes=True),
    Row("topk", lambda x: layers.topk(x, 1), _seq()),
    Row("cast", lambda x: layers.cast(x, "int32"), _seq()),
    Row("sums", lambda x: layers.sums([x, x]), _seq()),
    Row("mul", lambda x: layers.mul(x, np.ones([2, 5], "float32")), _seq()),
    Row("slice", lambda x: layers.slice(x, [1], [0], [1]), _seq()),
    *plain(BOUNDED + " reciprocal pow increment", _positive_seq()),
    Row("elementwise_div", lambda x: layers.elementwise_div(x, x + x), _seq()),
    Row("elementwise_pow", lambda x: layers.elementwise_pow(x, x), _positive_seq()),
    Row("log_loss", lambda x: layers.log_loss(x, layers.square(x)), _positive_seq()),
    Row("reverse", lambda x: layers.reverse(x, axis=1), _seq()),
    Row("strided_slice", lambda x: layers.strided_slice(x, [1], [0], [2], [2]), _seq()),
    Row("sum", lambda x: layers.sum([x, x * 2]), _seq()),
    Row("multi_head_attention", lambda x: layers.multi_head_attention(x, num_heads=2, causal=True), _seq()),
    Row("multi_head_attention", lambda x, y: layers.multi_head_attention(x, y, num_heads=2), _two_seqs(), label="cross",
        lengths="apart"),
    Row("multi_head_attention", lambda x, y: layers.multi_head_attention(x, y, dropout_rate=1e-9), _two_seqs(),
        label="weights", lengths="apart"),
    Row("multi_head_attention", lambda x: layers.multi_head_attention(
        x, rotary=True, cache=layers.attention_cache(x.shape[0], 8, 1, 2))[0], _seq(), label="cache"),
    Row("scaled_dot_product_attention", lambda x, y: nets.scaled_dot_product_attention(x, y, y, 2), _two_seqs(),
        lengths="apart"),
    Row("rotary_position", layers.rotary_position, _seq()),
    Row("linear_chain_crf", layers.linear_chain_crf, _seq_classes()),
    Row("crf_decoding", lambda x, y: layers.crf_decoding(x, "crfw", label=y), _seq_classes()),
    Row("chunk_eval", lambda x, y: layers.chunk_eval(layers.crf_decoding(x, "crfw"), y, "IOB", 1), _seq_classes(),
        mixes=True),
    Row("warpctc", lambda x, y: layers.warpctc(x, y, norm_by_times=True), _seq_text(), lengths="given"),
    Row("edit_distance", lambda x, y: layers.edit_distance(layers.ctc_greedy_decoder(x, 0), y), _seq_text(),
        lengths="given", mixes=True),
    Row("dynamic_lstm", lambda x: layers.dynamic_lstm(layers.fc(x, 16), 16), _seq()),
    Row("dynamic_lstmp", lambda x: layers.dynamic_lstmp(layers.fc(x, 16), 16, 3, is_reverse=True), _seq()),
    Row("dynamic_gru", lambda x: layers.dynamic_gru(layers.fc(x, 9), 3, is_reverse=True), _seq()),
    Row("cond", lambda x: layers.cond(True, lambda: layers.fc(x, 2), lambda: x * 2), _seq()),
    Row("while_loop", lambda x: layers.while_loop(
        lambda i, h: i < 2, lambda i, h: [i + 1, layers.fc(h, 2, act="tanh")], [0, x], max_iterations=3)[1], _seq()),
    Row("repeat", lambda x: layers.repeat(lambda h: layers.layer_norm(h + layers.fc(h, 2)), 2, x), _seq()),
    Row("remat", lambda x: layers.remat(layers.fc, x, 2), _seq()),
    Row("rnn", lambda x: layers.rnn(lambda x, h: (h, recurred(x, h)), x, start_of(x), is_reverse=True), _seq()),
    *[Row("rnn", lambda x, cell=cell: rnn_of(cell(2), x, is_reverse=True), _seq(), label=cell.__name__)
      for cell in (layers.GRUCell, layers.LSTMCell)],
    *[Row("dynamic_decode", lambda x, n=n, first=first: teacher_forced(x, n, first), _seq(), label=label)
      for label, n, first in (("whole", None, False), ("cut", 1, False), ("time first", 2, True))],
    Row("DynamicRNN", lambda x: block_of(layers.DynamicRNN(), x), _seq()),
    *[Row("sequence_pool", lambda x, kind=kind: layers.sequence_pool(x, kind, pad_value=-1.5), _seq(), label=kind)
      for kind in ("sum", "average", "sqrt", "max", "min", "first", "last")],
    Row("sequence_pool", inner(lambda x: layers.sequence_pool(x, "max")), _deep(), label="inner"),
    Row("sequence_first_step", layers.sequence_first_step, _seq()),
    Row("sequence_last_step", inner(layers.sequence_last_step), _deep()),
    Row("sequence_softmax", layers.sequence_softmax, _seq()),
    Row("sequence_softmax", inner(layers.sequence_softmax), _deep(), label="inner"),
    Row("sequence_conv", lambda x: layers.sequence_conv(x, 3, act="tanh"), _seq()),
    Row("sequence_conv", lambda x: layers.sequence_conv(x, 3, 2, padding_start=1, bias_attr=False), _seq(),
        label="ahead"),
    Row("sequence_conv", inner(lambda x: layers.sequence_conv(x, 3)), _deep(), label="inner"),
    Row("row_conv", lambda x: layers.row_conv(x, 6), _seq()),
    Row("sequence_reverse", layers.sequence_reverse, _seq()),
    Row("sequence_reverse", inner(layers.sequence_reverse), _deep(), label="inner"),
    Row("add_position_encoding", lambda x: layers.add_position_encoding(x, 0.5, 2.0), _seq()),
    Row("add_position_encoding", inner(lambda x: layers.add_position_encoding(x, 1.0, 1.0)), _deep(), label="inner"),
    Row("sequence_expand", layers.sequence_expand, _rows()),
    Row("sequence_expand", layers.sequence_expand, _two_seqs(), lengths="apart", label="sequences"),
    Row("sequence_expand", inner(lambda y, x: layers.sequence_expand(x, y, ref_level=0)), {**_deep(), "y": real(3, 2)},
        label="outer"),
    Row("sequence_expand_as", layers.sequence_expand_as, _rows()),
    Row("sequence_expand_as", inner(lambda y: layers.sequence_expand_as(layers.sequence_pool(y, "sum"), y)), _deep(),
        label="inner"),
    Row("sequence_concat", lambda x, y: layers.sequence_concat([x, y, x]), _two_seqs(), lengths="apart"),
    Row("sequence_slice", lambda x, i, n: layers.sequence_slice(x, i, n),
        {**_seq(), "i": np.array([[1], [0], [3]]), "n": np.array([[2], [0], [4]])}),
    Row("sequence_pad", lambda x: layers.sequence_pad(x, -1.0, maxlen=3), _seq()),
    Row("sequence_reshape", lambda x: layers.sequence_reshape(x, 4), _seq()),
    Row("sequence_reshape", lambda x: layers.sequence_reshape(x, 3), _seq(), label="rest"),
    Row("sequence_enumerate", lambda x: layers.sequence_enumerate(x, 3, pad_value=7), _numbers()),
    Row("sequence_erase", lambda x: layers.sequence_erase(x, [0, 3]), _numbers()),
    Row("sequence_scatter", layers.sequence_scatter,
        {"x": real(3, 5), "i": _numbers()["x"], "y": sequence(3, 4, 1, lengths=[4, 1, 2])}),
    Row("generate", written, _numbers()),
    Row("lod_reset", lambda x: layers.lod_reset(x, target_lod=[0, 2, 2, 3]), _seq(), mixes=True, shortest=1),
    Row("lod_reset", lambda x, y: layers.lod_reset(y, x), _two_seqs(), mixes=True, lengths="given", label="like"),
    Row("lod_append", lambda x: layers.lod_append(x, [0, 1, 1, 2, 3, 4, 7, 7]), _seq(), mixes=True, lengths="given"),
    Row("sequence_conv_pool", lambda x: nets.sequence_conv_pool(x, 3, 4, act="tanh", pool_type="sqrt"), _seq()),
    Row("glu", lambda x: nets.glu(x, dim=1), _seq()),
    Row("fc", inner(lambda x: layers.fc(x, 3, act="softmax")), _deep(), label="inner"),
    Row("fc", lambda x: layers.fc([x, x], 3, act="tanh"), _seq(), label="two"),
    Row("dense", lambda x: layers.dense(x, 3, act="tanh"), _deep(), label="nested"),
    Row("embedding", lambda x: layers.embedding(x, [5, 2], padding_idx=0, is_sparse=True), _numbers(), label="sparse"),
    Row("reduce_sum", inner(layers.reduce_sum), _deep(), mixes=True, label="inner"),
    Row("cos_sim", lambda x: layers.cos_sim(x, layers.square(x)), _seq()),
    Row("bilinear_tensor_product", lambda x: layers.bilinear_tensor_product(x, x, 3, act="tanh"), _seq()),
    Row("bpr_loss", layers.bpr_loss, _seq_classes()),
    Row("smooth_l1", lambda x: layers.smooth_l1(x, layers.square(x)), _seq()),
    Row("clip_by_norm", lambda x: layers.clip_by_norm(x, 0.5), _seq(), mixes=True),
    Row("has_nan", layers.has_nan, _seq(), mixes=True),
    Row("has_inf", layers.has_inf, _seq(), mixes=True),
    Row("where", lambda x: layers.where(x > 0, x, layers.fill_constant([], "float32", 2.0)), _seq()),
    Row("stack", lambda x: layers.stack([x, x * 2], axis=1), _seq()),
    Row("transpose", lambda x: layers.transpose(layers.stack([x, x, x], axis=-1), [0, 2, 1]), _seq()),
    Row("flatten", lambda x: layers.flatten(layers.stack([x, x], axis=1)), _seq()),
    Row("expand", lambda x: layers.expand(x, [1, 3]), _seq()),
    Row("concat", lambda x, y: layers.concat([x, y], axis=0), _two_seqs(), lengths="apart", mixes=True, label="rows"),
    Row("gather", lambda x, y: layers.gather(x, y), {**_seq(), "y": np.array([[1], [0], [0]])}, mixes=True,
        shortest=1),
    Row("iou_similarity", lambda x: layers.iou_similarity(x, PRIOR), BOXES),
    Row("box_coder", lambda x: layers.box_coder(PRIOR, SPREAD, x), BOXES),
    Row("box_coder", lambda x: layers.box_coder(x, SPREAD, layers.stack([x, x * x], 1), "decode_center_size", axis=1),
        BOXES, label="decode"),
    Row("box_decoder_and_assign", lambda x, y, s: layers.box_decoder_and_assign(x, SPREAD, y, s, 2.0), DECODED),
    Row("box_clip", layers.box_clip, {"x": _steps(5 * real(3, 4, 4)), "y": 3 + positive(3, 3)}),
    Row("bipartite_match", lambda x: layers.bipartite_match(layers.iou_similarity(x, PRIOR), "per_prediction", 0.3),
        BOXES),
    Row("target_assign", lambda x, y: layers.target_assign(
        layers.reshape(x, [-1, 1, 4]), for_each(x, np.array([-1, 0, 0])), y), {**BOXES, "y": _steps(whole(3, 3, 4, 1))},
        lengths="apart", shortest=1),
    Row("ssd_loss", lambda x, y, b, k: layers.ssd_loss(x, y, b, k, PRIOR, SPREAD, normalize=False), OBJECTS),
    Row("ssd_loss", lambda x, y, b, k: layers.ssd_loss(x, y, b, k, PRIOR, SPREAD), OBJECTS, mixes=True,
        label="normalized"),
    Row("multiclass_nms", lambda x, y: layers.multiclass_nms(x, y, 0.1, 3, 4, background_label=-1), SCORED),
    Row("roi_pool", lambda x, y: layers.roi_pool(x, y, 2, 3, 0.5), REGIONS),
    Row("roi_align", lambda x, y: layers.roi_align(x, y, 2, 3, 0.5), REGIONS),
    Row("psroi_pool", lambda x, y: layers.psroi_pool(x, y, 2, 0.5, 2, 1), REGIONS),
    Row("prroi_pool", lambda x, y: layers.prroi_pool(x, y, 0.5, 2, 3), REGIONS),
    Row("yolov3_loss", lambda x, b, k: layers.yolov3_loss(x, b, k, [10, 13, 16, 30], [0, 1], 2, 0.5, 16), YOLO),
    Row("rpn_target_assign", lambda x, y, b, c: layers.rpn_target_assign(
        x, y, 12 * PRIOR, None, b, c, INFO, 4, -1.0, use_random=False), ANCHORED),
    Row("generate_proposal_labels", lambda x, c, d, b: layers.generate_proposal_labels(
        x, c, d, b, INFO, 5, use_random=False, class_nums=3), SAMPLED, lengths="given"),
    Row("retinanet_target_assign", lambda x, y, b, c: layers.retinanet_target_assign(
        x, y, 12 * PRIOR, None, b, c + 1, c, INFO), ANCHORED),
    Row("distribute_fpn_proposals", lambda x: layers.distribute_fpn_proposals(x, 2, 4, 4, 1)[0], BOXES),
    Row("distribute_fpn_proposals", restored, BOXES, label="restored"),
    Row("collect_fpn_proposals", lambda x, y: layers.collect_fpn_proposals([x, x], [y, y * y], 2, 3, 3),
        {**BOXES, "y": _steps(positive(3, 4, 1))}),
]  # fmt: skip
