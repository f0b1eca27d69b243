"""Traces of layers: a recorded program traces each layer a fixed number of times until the first step."""

import jax
import numpy as np
import pytest
from static.both_styles import fresh

import fluid.static as fluid
from fluid.static import layers

X = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")


@pytest.fixture
def traced():
    """Return an object with a method `layer`, a layer written by a user, and `count`, the number of its calls."""

    class Traced:
        count = 0

        def layer(self, x):
            self.count += 1
            return layers.scale(x, scale=2.0)

    return Traced()


def test_a_layer_is_tried_at_two_batch_sizes(traced):
    with fresh() as (main, _):
        y = main.apply(traced.layer, (layers.data("x", shape=[3]),))
        assert (y.shape, traced.count) == ((-1, 3), 2)


def test_later_layers_do_not_repeat_earlier_ones(traced):
    with fresh() as (main, _):
        y = main.apply(traced.layer, (layers.data("x", shape=[3]),))
        loss = layers.mean(layers.fc(layers.relu(y), size=2))
        fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
        assert traced.count == 2


def test_startup_and_first_step_trace_once_each(traced):
    with fresh() as (main, startup):
        y = main.apply(traced.layer, (layers.data("x", shape=[3]),))
        loss = layers.mean(layers.fc(y, size=2))
        fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        assert traced.count == 3
        for _ in range(2):
            exe.run(main, feed={"x": X}, fetch_list=[loss, y.name])
            assert traced.count == 4


def test_grouped_convolutions_are_tried_in_their_plain_form(monkeypatch):
    convolve, made = jax.lax.conv_general_dilated, []
    monkeypatch.setattr(jax.lax, "conv_general_dilated", lambda *a, **k: made.append(1) or convolve(*a, **k))
    with fresh():
        y = layers.conv2d(layers.data("x", shape=[64, 6, 6]), num_filters=64, filter_size=3, padding=1, groups=16)
    # To find its output shape, fluid traces the layer at two batch sizes, with a single convolution each time. A
    # training on a CPU would run a grouped convolution as several convolutions, one for each block of channels.
    assert (y.shape, len(made)) == ((-1, 64, 6, 6), 2)
