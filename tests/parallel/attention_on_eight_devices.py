"""Attention around a ring of eight devices; `test_eight_devices.py` runs this file in a process with eight devices."""

import jax
import numpy as np
import pytest

import fluid
from fluid import layers

RANDOM = np.random.default_rng(0)
WHOLE = {"x": RANDOM.normal(size=(4, 21, 8)).astype("float32")}
RAGGED = {"x": [RANDOM.normal(size=(n, 8)).astype("float32") for n in (5, 21, 1, 13)]}


def net(feed, causal):
    """Return a program of two attention layers; the second has queries from the first layer, and keys from the feed."""

    def program():
        x = layers.data("x", shape=[8], lod_level=1) if feed is RAGGED else layers.data("x", shape=[21, 8])
        y = layers.multi_head_attention(x, num_heads=2, causal=causal, rotary=True, ring="steps")
        z = layers.multi_head_attention(y, x, num_heads=4, size=12, ring="steps")
        return layers.mean(layers.square(layers.tanh(z)))

    return program


def losses_and_gradients(program, feed, parallel=None):
    session = fluid.Session(program, parallel=parallel)
    (found,) = session.programs.values()
    names = [found.output_names[0] if found.output_names else "mean_0", *(f"{n}@GRAD" for n in found.parameters)]
    return [np.asarray(value) for value in session.run(feed=feed, fetch=names)]


@pytest.mark.parametrize(
    ("feed", "causal", "mesh"),
    [
        pytest.param(WHOLE, True, fluid.Mesh(data=2, steps=4), id="whole-causal"),
        pytest.param(RAGGED, False, fluid.Mesh(steps=8), id="ragged"),
        pytest.param(RAGGED, True, fluid.Mesh(data=2, steps=2, model=2), id="ragged-causal", marks=pytest.mark.full),
        pytest.param(WHOLE, False, fluid.Mesh(fsdp=2, steps=4), id="whole", marks=pytest.mark.full),
    ],
)
def test_ring_attention_matches_a_single_device(feed, causal, mesh):
    program = net(feed, causal)
    for found, wanted in zip(
        losses_and_gradients(program, feed, mesh), losses_and_gradients(program, feed), strict=True
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-5 * (1e-2 + np.abs(wanted).max()))


def test_memory_falls_with_the_devices_of_the_ring():
    def program():
        x = layers.shard(layers.data("x", shape=[8192, 32]), (None, "steps"))
        return layers.mean(layers.square(layers.multi_head_attention(x, num_heads=2, causal=True, ring="steps")))

    meshes = [fluid.Mesh(steps=1), fluid.Mesh(steps=8)]
    one, eight = fluid.plan(program, fluid.optimizer.SGD(0.1), 1, meshes).candidates
    assert eight.peak < one.peak / 6
    assert set(eight.work.sent) == {"collective-permute", "all-reduce"}


def test_ring_attention_over_padding_only_is_zero():
    def program():
        x = layers.data("x", shape=[16, 8])
        keys = layers.data("keys", shape=[8], lod_level=1)
        return layers.multi_head_attention(x, keys, num_heads=2, bias_attr=False, ring="steps")

    rows = [np.ones((n, 8), "float32") for n in (3, 0, 16, 1, 2, 0, 1, 1)]
    feed = {"x": np.ones((8, 16, 8), "float32"), "keys": rows}
    with jax.debug_nans(True):
        (found,) = fluid.Session(program, parallel=fluid.Mesh(steps=8)).run(feed=feed)
    assert not np.asarray(found)[[1, 5]].any() and np.asarray(found)[[0, 2, 3, 4, 6, 7]].all()
