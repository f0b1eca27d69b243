"""Warnings of layers whose default axis rarely suits `[batch, time, features]`; programs written for Fluid get none."""

import warnings

import numpy as np
import pytest

import fluid
import fluid.static
from fluid import core, errors, layers

COUNT, LENGTH, WIDTH = 20, 5, 8


def steps():
    return layers.data("x", [5, 8])


def words():
    return layers.data("x", [8], lod_level=1)


def image(*shape):
    return layers.data("x", list(shape))


WARNED = {
    "layer_norm": lambda: layers.layer_norm(steps()),
    "layer_norm in a loop": lambda: layers.repeat(lambda h: layers.layer_norm(h), 2, steps()),
    "fc": lambda: layers.fc(steps(), 2),
    "fc of two": lambda: layers.fc([layers.data("y", [3]), steps()], 2),
    "batch_norm": lambda: layers.batch_norm(steps()),
    "instance_norm": lambda: layers.instance_norm(steps()),
    "group_norm": lambda: layers.group_norm(steps(), 1),
    "concat": lambda: layers.concat([steps(), layers.data("y", [5, 8])]),
    "concat of sequences": lambda: layers.concat([words(), words() * 2]),
    "argmax": lambda: layers.argmax(layers.data("x", [3])),
    "argmin": lambda: layers.argmin(layers.data("x", [3])),
    "dynamic_lstm": lambda: layers.dynamic_lstm(words(), 8)[0],
    "dynamic_lstmp": lambda: layers.dynamic_lstmp(words(), 8, 3)[0],
    "conv2d": lambda: layers.conv2d(image(28, 28, 1), 4, 3, padding=1),
    "conv2d of a scaled image": lambda: layers.conv2d(image(32, 32, 3) / 255.0, 4, 3),
    "conv2d of an oblong image": lambda: layers.conv2d(image(48, 64, 3), 4, 3),
    "conv2d_transpose": lambda: layers.conv2d_transpose(image(8, 8, 3), 4, filter_size=3),
    "pool2d": lambda: layers.pool2d(image(8, 8, 3), 2),
    "adaptive_pool2d": lambda: layers.adaptive_pool2d(image(8, 8, 3), 1),
    "pad2d": lambda: layers.pad2d(image(8, 8, 3), [1, 1, 1, 1]),
    "image_resize": lambda: layers.image_resize(image(8, 8, 3), [4, 4]),
    "resize_bilinear": lambda: layers.resize_bilinear(image(8, 8, 3), [4, 4]),
    "a net": lambda: fluid.nets.simple_img_conv_pool(image(8, 8, 3), 4, 1, 2, 2),
} | {
    name: (lambda name=name: getattr(layers, name)(words(), dim=1))
    for name in ("reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "logsumexp")
}

SILENT = {
    "layer_norm of one step": lambda: layers.layer_norm(layers.data("x", [1, 8])),
    "layer_norm of rows": lambda: layers.layer_norm(layers.data("x", [8])),
    "layer_norm of images": lambda: layers.layer_norm(image(3, 8, 8)),
    "layer_norm of sequences": lambda: layers.layer_norm(words()),
    "layer_norm of the last axis": lambda: layers.layer_norm(steps(), begin_norm_axis=2),
    "layer_norm of both": lambda: layers.layer_norm(steps(), begin_norm_axis=1),
    "fc of rows": lambda: layers.fc(layers.data("x", [8]), 2),
    "fc of images": lambda: layers.fc(layers.conv2d(image(1, 8, 8), 4, 3), 2),
    "fc of one step": lambda: layers.fc(layers.data("x", [1, 8]), 2),
    "fc of sequences": lambda: layers.fc(words(), 2),
    "fc that flattens": lambda: layers.fc(steps(), 2, num_flatten_dims=1),
    "fc of the last axis": lambda: layers.fc(steps(), 2, num_flatten_dims=-1),
    "batch_norm of time": lambda: layers.batch_norm(steps(), data_layout="NCHW"),
    "batch_norm of features": lambda: layers.batch_norm(steps(), data_layout="NHWC"),
    "batch_norm of sequences": lambda: layers.batch_norm(words()),
    "concat of more rows": lambda: layers.concat([steps(), layers.data("y", [5, 8])], axis=0),
    "concat of parameters": lambda: layers.concat([layers.create_parameter([3, 2], "float32") for _ in range(2)]),
    "concat of columns": lambda: layers.concat([layers.data("x", []), layers.data("y", [])]),
    "argmax of rows": lambda: layers.argmax(layers.data("x", [3]), axis=0),
    "argmax of a parameter": lambda: layers.argmax(layers.create_parameter([3, 2], "float32")),
    "reduce_mean of the features": lambda: layers.reduce_mean(words(), dim=-1),
    "reduce_mean of all": lambda: layers.reduce_mean(words()),
    "reduce_mean of the rows": lambda: layers.reduce_mean(words(), dim=0),
    "reduce_mean of an array": lambda: layers.reduce_mean(steps(), dim=1),
    "dynamic_lstm": lambda: layers.dynamic_lstm(layers.fc(words(), 16), 16)[0],
    "conv2d with the channels last": lambda: layers.conv2d(image(28, 28, 1), 4, 3, data_format="NHWC"),
    "conv2d of many channels": lambda: layers.conv2d(image(28, 28, 1), 4, 3, padding=1, data_format="NCHW"),
    "conv2d of digits": lambda: layers.conv2d(image(1, 28, 28), 4, 3),
    "conv2d of electrodes": lambda: layers.conv2d(image(64, 100, 1), 4, [3, 1]),
    "conv2d of small maps": lambda: layers.conv2d(layers.pool2d(image(6, 14, 8), 2, pool_stride=2), 4, 3),
    "conv2d of four by four": lambda: layers.conv2d(image(4, 4, 4), 4, 3),
}


@pytest.mark.parametrize("case", WARNED)
def test_ambiguous_axes_warn_once(case):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        fluid.Program(WARNED[case])
    assert [w.category for w in found] == [errors.FluidWarning]
    assert f"{__file__}:" in str(found[0].message) and found[0].filename == __file__


@pytest.mark.parametrize("case", SILENT)
def test_unambiguous_axes_do_not_warn(case):
    fluid.Program(SILENT[case])


@pytest.mark.parametrize("case", WARNED)
def test_programs_that_were_written_for_fluid_are_silent(case):
    """Check that nothing warns within `as_fluid`, in which `fluid.static` and saved models of Fluid run."""

    def program():
        with core.as_fluid():
            return WARNED[case]()

    fluid.Program(program)


def test_static_programs_are_silent():
    static = fluid.static
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        x = static.layers.data("x", shape=[5, 8])
        both = static.layers.concat([x, x])
        y = static.layers.fc(static.layers.layer_norm(both), size=2)
        sequence = static.layers.data("s", shape=[8], lod_level=1)
        total = static.layers.reduce_sum(static.layers.dynamic_lstm(sequence, size=8)[0], dim=1)
    exe = static.Executor(static.CPUPlace())
    exe.run(startup)
    feed = {"x": np.ones((2, 5, 8), "float32"), "s": fluid.create_lod_tensor(np.ones((3, 8), "float32"), [[1, 2]])}
    rows, totals = exe.run(main, feed=feed, fetch_list=[y, total], return_numpy=False)
    assert np.asarray(rows).shape == (4, 2) and np.asarray(totals).shape == (3,)

    # Programs for fluid.contrib.Trainer are functions that call the layers of fluid.static.
    def function():
        return static.layers.fc(static.layers.data("x", shape=[5, 8]), size=2)

    fluid.Program(function)


def language_model(norm):
    """Build a causal transformer: later words of a sentence must not affect the outputs of earlier words."""
    ids = layers.data("ids", [LENGTH, 1], "int64")
    x = layers.embedding(ids, [COUNT, WIDTH])

    def block(x):
        x = x + layers.multi_head_attention(norm(x), num_heads=2, causal=True)
        return x + layers.dense(layers.dense(norm(x), 4 * WIDTH, act="gelu"), WIDTH)

    return layers.dense(norm(layers.repeat(block, 2, x)), COUNT)


def change(norm):
    """Change the last id of each text, and return the largest change of the outputs at each time step."""
    session = fluid.Session(lambda: language_model(norm), seed=0)
    ids = np.arange(2 * LENGTH).reshape(2, LENGTH, 1) % COUNT
    changed = ids.copy()
    changed[:, -1] += 1
    first, second = (np.asarray(session.run(feed={"ids": v})[0]) for v in (ids, changed))
    return np.abs(first - second).max((0, 2))


@pytest.mark.parametrize("norm", [layers.feature_norm, layers.rms_norm])
def test_a_language_model_does_not_see_the_future(norm):
    moved = change(norm)
    assert moved[-1] > 0.01 and not moved[:-1].any()


def test_default_layer_norm_leaks_later_steps_and_warns():
    with pytest.warns(errors.FluidWarning, match="5 x 8 numbers, time too, .*feature_norm"):
        moved = change(layers.layer_norm)
    assert moved[:-1].min() > 0.01
