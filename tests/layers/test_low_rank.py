"""Matrices with low-rank adapters: compared with the formula, and with the merged matrices."""

import jax
import numpy as np
import pytest
from layers.layer_table import real
from layers.run_program import feeds, run

import fluid
from fluid import errors, layers

X = real(5, 4)


def line(attr=None):
    return layers.fc(feeds(x=X)[0], 3, param_attr=attr, bias_attr=False)


def test_adapter_adds_scaled_product():
    w, a, b = real(4, 3), real(4, 2, salt=1), real(2, 3, salt=2)
    names = ("fc_0.w_0", "fc_0.w_0.low_rank_a", "fc_0.w_0.low_rank_b", "fc_0.w_0.low_rank_scale")
    attr = fluid.LowRankParamAttr(rank=2, alpha=6)
    arrays = dict(zip(names, (w, a, b, np.float32([3.0])), strict=True))
    done = run(lambda: line(attr), {"x": X}, arrays=arrays)
    np.testing.assert_allclose(done.outputs[0], X @ (w + 3 * a @ b), rtol=1e-5, atol=1e-6)
    start = fluid.Program(lambda: line(attr)).init(jax.random.key(0))
    assert start[names[3]].item() == 3.0 and not start[names[2]].any() and start[names[1]].all()


def attention(attr=None):
    x = layers.data("x", shape=[6, 8])
    y = layers.multi_head_attention(x, num_heads=2, param_attr=attr, name="attn")
    return layers.dense(layers.repeat(lambda h: layers.dense(h, size=8, param_attr=attr), 3, y), size=2, name="head")


def adapted():
    loss = layers.mean(layers.square(attention(fluid.LowRankParamAttr(rank=2, alpha=5)) - 1.0))
    fluid.optimizer.Adam(0.05).minimize(loss, parameter_list=["*.low_rank_?", "head.*"])
    return loss


def test_merged_adapters_compute_the_trained_function():
    """Check that a net keeps its outputs when its trained low-rank changes are added to its matrices.

    The matrices belong to an attention layer, and to three repeated blocks, which share one array.
    """
    data = {"x": np.random.default_rng(0).normal(size=(32, 6, 8)).astype("float32")}
    trainer = fluid.Trainer(adapted)
    before = trainer.params
    losses = trainer.train(fluid.reader.arrays(data, batch_size=8), num_epochs=5)
    after = trainer.params
    moved = {name for name in after if (before[name] != after[name]).any()}
    assert moved == {n for n in after if n.endswith(("low_rank_a", "low_rank_b")) or n.startswith("head.")}
    assert losses is not None
    merged = fluid.io.merge_low_rank(after)
    assert set(merged) == set(fluid.Program(attention).parameters)
    with fluid.Session(lambda: attention(fluid.LowRankParamAttr(rank=2))) as session:
        session.load_params(after)
        (expected,) = session.run(feed=data)
    (found,) = fluid.Inferencer(attention, params=merged).infer(data)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_training_starts_from_the_loaded_matrix():
    with fluid.Session(line) as plain, fluid.Session(lambda: line(fluid.LowRankParamAttr(rank=2))) as session:
        session.load_params(plain.params(), skip=["*.low_rank_*"])
        np.testing.assert_array_equal(session.run(feed={"x": X})[0], plain.run(feed={"x": X})[0])


def test_settings_reach_the_trained_matrices():
    clip = fluid.clip.GradientClipByNorm(1.0)
    attr = fluid.LowRankParamAttr(2, learning_rate=0.5, gradient_clip=clip, sharding=("fsdp", "model"), name="w")
    found = fluid.Program(lambda: line(attr)).parameters
    assert [found[f"w.low_rank_{n}"].settings.sharding for n in "ab"] == [("fsdp", None), (None, "model")]
    assert all(found[f"w.low_rank_{n}"].settings.learning_rate == 0.5 for n in "ab")
    assert found["w"].settings.sharding == ("fsdp", "model") and not found["w"].trainable


def test_equal_names_share_an_adapter():
    attr = fluid.LowRankParamAttr(1, name="w")
    twice = fluid.Program(lambda: layers.fc(layers.fc(feeds(x=X)[0], 4, param_attr=attr), 4, param_attr=attr))
    assert [name for name in twice.parameters if "low_rank_a" in name] == ["w.low_rank_a"]


def test_wrong_settings_raise_argument_errors():
    for setting in ({"rank": 0}, {"alpha": -1}, {"alpha": True}):
        with pytest.raises(errors.ArgumentError, match="LowRankParamAttr"):
            fluid.LowRankParamAttr(**setting)
    with pytest.raises(errors.ArgumentError, match=r"LowRankParamAttr of a parameter of shape \[2, 3, 3, 3\]"):
        image = real(2, 3, 5, 5)
        fluid.Program(lambda: layers.conv2d(feeds(x=image)[0], 2, 3, param_attr=fluid.LowRankParamAttr(2)))
    with pytest.raises(errors.ArgumentError, match="cannot be looked up; is_sparse=False"):
        ids, attr = np.array([[1], [2]]), fluid.LowRankParamAttr(2)
        fluid.Program(lambda: layers.embedding(feeds(i=ids)[0], [5, 2], is_sparse=True, param_attr=attr))
    with pytest.raises(errors.ParameterError, match="found no adapter"):
        fluid.io.merge_low_rank({"w": X})
    with pytest.raises(errors.ParameterError, match=r"lacks w, w\.low_rank_scale"):
        fluid.io.merge_low_rank({"w.low_rank_a": X, "w.low_rank_b": X})
