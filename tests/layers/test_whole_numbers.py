"""Arguments that are counts: any integer type is accepted, and other values are refused by name."""

import re

import numpy as np
import pytest
from layers.layer_table import CHANCES, CLASSES, IMAGE, PICKED, X, declare, real
from layers.sequence_table import SEQUENCE_ROWS

import fluid
from fluid import errors, layers

STEPS = {"x": SEQUENCE_ROWS[0].feed["x"]}
IDS = {"x": fluid.SequenceBatch(np.array([[1, 2], [3, 0]]), np.array([2, 1]))}

# For each argument: a function that calls the layer with a count, its feed, a valid count, and the smallest one.
COUNTS = {
    "attention_cache.max_length": (lambda x, n: layers.attention_cache(4, n, 2, 2).keys, X, 5, 1),
    "auc.num_thresholds": (lambda x, y, n: layers.auc(x, y, num_thresholds=n)[0], CHANCES, 9, 1),
    "auc.slide_steps": (lambda x, y, n: layers.auc(x, y, slide_steps=n)[0], CHANCES, 2, 0),
    "accuracy.k": (lambda x, y, n: layers.accuracy(x, y, k=n), CLASSES, 2, 1),
    "conv2d.filter_size": (lambda x, n: layers.conv2d(x, 2, n), IMAGE, 3, 1),
    "conv2d.groups": (lambda x, n: layers.conv2d(x, 2, 3, groups=n), IMAGE, 2, 1),
    "conv2d.num_filters": (lambda x, n: layers.conv2d(x, n, 3), IMAGE, 2, 1),
    "conv2d.stride": (lambda x, n: layers.conv2d(x, 2, 3, stride=[1, n]), IMAGE, 2, 1),
    "embedding.size[0]": (lambda x, n: layers.embedding(x, [n, 3]), IDS, 7, 1),
    "fc.size": (lambda x, n: layers.fc(x, n), X, 2, 1),
    "group_norm.groups": (lambda x, n: layers.group_norm(x, n), IMAGE, 2, 1),
    "hsigmoid.num_classes": (lambda x, y, n: layers.hsigmoid(x, y, n), PICKED, 7, 2),
    "lrn.n": (lambda x, n: layers.lrn(x, n), IMAGE, 3, 1),
    "maxout.groups": (lambda x, n: layers.maxout(x, n), IMAGE, 2, 1),
    "multi_head_attention.num_heads": (
        lambda x, n: layers.multi_head_attention(x, num_heads=n), {"x": real(2, 3, 4)}, 2, 1
    ),
    "nce.num_neg_samples": (lambda x, y, n: layers.nce(x, y, 7, num_neg_samples=n), PICKED, 3, 1),
    "pixel_shuffle.upscale_factor": (lambda x, n: layers.pixel_shuffle(x, n), IMAGE, 2, 1),
    "pool2d.pool_size": (lambda x, n: layers.pool2d(x, n), IMAGE, 2, 1),
    "row_conv.future_context_size": (lambda x, n: layers.row_conv(x, n), STEPS, 2, 0),
    "sequence_conv.num_filters": (lambda x, n: layers.sequence_conv(x, n), STEPS, 2, 1),
    "sequence_enumerate.win_size": (lambda x, n: layers.sequence_enumerate(x, n), IDS, 2, 1),
    "sequence_mask.maxlen": (lambda x, n: layers.sequence_mask(np.array([1, 2]), n), X, 5, 0),
    "sequence_pad.maxlen": (lambda x, n: layers.sequence_pad(x, 0.0, n)[0], STEPS, 5, 1),
    "sequence_reshape.new_dim": (lambda x, n: layers.sequence_reshape(x, n), STEPS, 2, 1),
    "sinusoidal_position.size": (lambda x, n: layers.sinusoidal_position(np.arange(4), n), X, 6, 2),
    "temporal_shift.seg_num": (lambda x, n: layers.temporal_shift(x, n), IMAGE, 2, 1),
    "topk.k": (lambda x, n: layers.topk(x, n)[0], X, 2, 1),
    "unfold.paddings": (lambda x, n: layers.unfold(x, 3, paddings=[0, 0, 0, n]), IMAGE, 2, 0),
}  # fmt: skip


def outcome(name, count):
    build, feed, *_ = COUNTS[name]
    return fluid.Program(lambda: build(*(declare(n, v) for n, v in feed.items()), count))


@pytest.mark.parametrize("name", COUNTS)
def test_integers_of_any_type_count(name):
    possible = COUNTS[name][2]
    plain, numpy = outcome(name, possible), outcome(name, np.int64(possible))
    assert plain.outputs == numpy.outputs
    assert {n: s.shape for n, s in plain.parameters.items()} == {n: s.shape for n, s in numpy.parameters.items()}


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("wrong", ["too small", 1.5, "2", True])
def test_values_that_are_no_count_are_refused(name, wrong):
    argument, least = name.partition(".")[2], COUNTS[name][3]
    value = least - 1 if wrong == "too small" else wrong
    said = re.escape(f"({argument}={value!r}): expected a whole number from {least} ")
    with pytest.raises(errors.ArgumentError, match=said):
        outcome(name, value)
