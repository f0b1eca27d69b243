"""Settings of a recorded program that change after its first run: the next run has them."""

import numpy as np
import pytest
from static.both_styles import fresh, scope_value

import fluid.static as fluid
from fluid import errors
from fluid.static import layers

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
FEED = {"x": X, "y": X.sum(axis=1, keepdims=True)}


def _net():
    hidden = layers.fc(layers.data("x", shape=[3]), size=2, act="tanh")
    guess = layers.fc(hidden, size=1)
    return hidden, guess, layers.mean(layers.square_error_cost(guess, layers.data("y", shape=[1])))


def _started(startup):
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    return exe


def test_stop_gradient_holds_from_the_next_run():
    with fresh() as (main, startup):
        hidden, guess, loss = _net()
        fluid.optimizer.Momentum(0.1, 0.5).minimize(loss)
        exe = _started(startup)
        fetched = [hidden, guess]
        before = {name: scope_value(name) for name in ("fc_0.w_0", "fc_1.w_0")}
        exe.run(main, feed=FEED, fetch_list=fetched)  # the same fetches as below: nothing else compiles a step anew
        between = {name: scope_value(name) for name in before}
        hidden.stop_gradient = True
        h, g = exe.run(main, feed=FEED, fetch_list=fetched)
        after = {name: scope_value(name) for name in before}
    # The gradient of fc_1 is written by hand; its velocity continues, and fc_0 moves by its old velocity alone.
    gradient = h.T @ (2 * (g - FEED["y"]) / len(X))
    velocity = (before["fc_1.w_0"] - between["fc_1.w_0"]) / 0.1
    np.testing.assert_allclose(after["fc_1.w_0"], between["fc_1.w_0"] - 0.1 * (0.5 * velocity + gradient), rtol=1e-4)
    moved = between["fc_0.w_0"] - before["fc_0.w_0"]
    np.testing.assert_allclose(after["fc_0.w_0"] - between["fc_0.w_0"], 0.5 * moved, rtol=1e-3, atol=1e-7)


def test_stop_gradient_taken_back_trains_again():
    with fresh() as (main, startup):
        hidden, _, loss = _net()
        fluid.optimizer.SGD(0.1).minimize(loss)
        hidden.stop_gradient = True
        exe = _started(startup)
        first = scope_value("fc_0.w_0")
        exe.run(main, feed=FEED)
        np.testing.assert_array_equal(scope_value("fc_0.w_0"), first)
        hidden.stop_gradient = False
        exe.run(main, feed=FEED)
        assert not np.array_equal(scope_value("fc_0.w_0"), first)


def test_precision_holds_from_the_next_run():
    with fresh() as (main, startup):
        _, guess, _ = _net()
        exe = _started(startup)
        (exact,) = exe.run(main, feed=FEED, fetch_list=[guess])
        main.precision = "bfloat16"
        (rounded,) = exe.run(main, feed=FEED, fetch_list=[guess])
    assert str(rounded.dtype) == "bfloat16"
    assert 0 < np.abs(exact - rounded.astype("float32")).max() < 0.02


def test_lost_optimizer_state_is_said():
    with fresh() as (main, startup):
        _, _, loss = _net()
        fluid.optimizer.Adam(0.1).minimize(loss)
        exe = _started(startup)
        exe.run(main, feed=FEED)
        main.precision = "float16"
        with pytest.warns(errors.FluidWarning, match="begins anew"):
            exe.run(main, feed=FEED)


def test_branches_keep_the_number_of_their_line():
    with fresh() as (main, startup):
        x = layers.data("x", shape=[3])
        factor = 2.0
        positive = layers.reduce_sum(x) > -1e9
        y = layers.cond(positive, lambda: x * factor, lambda: x - factor)
        factor = 5.0
        (found,) = _started(startup).run(main, feed={"x": X}, fetch_list=[y])
    assert factor == 5.0
    np.testing.assert_array_equal(found, 2 * X)
