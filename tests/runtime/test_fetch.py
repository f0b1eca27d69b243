"""Values to fetch or override in a Session, found by layer name, glob or output name."""

import numpy as np
import pytest

import fluid
from fluid import errors, layers

FEED = {"x": np.random.default_rng(0).normal(size=(4, 3)).astype("float32"), "y": np.ones((4, 1), "float32")}


def program():
    x, y = layers.data("x", [3]), layers.data("y", [1])
    hidden = layers.fc(x, 5, act="relu", name="hidden")
    shifted = hidden * 2 - 1
    error = layers.fc(shifted, 1) - y
    return {"loss": layers.mean(layers.square(error)), "code": hidden, "shifted": shifted, "error": error}


@pytest.fixture
def session():
    return fluid.Session(program)


def run(session, fetch, feed=FEED, **settings):
    return [np.asarray(v) for v in session.run(program, feed, fetch, **settings)]


def test_a_layer_is_its_last_result(session):
    first, second, third = run(session, ["hidden", "hidden.tmp_2", "fc_0"])
    np.testing.assert_array_equal(first, second)
    assert np.all(first >= 0) and third.shape == (4, 1)


def test_a_layer_is_replaced_by_its_name(session):
    given = np.full((2, 5), 3.0, "float32")
    # The override replaces the layer that reads the feed `x`, so `x` is not needed.
    hidden, shifted = run(session, ["hidden", "shifted"], {"hidden": given})
    np.testing.assert_array_equal(hidden, given)
    np.testing.assert_array_equal(shifted, given * 2 - 1)


def test_an_output_of_a_dict_is_replaced(session):
    given = np.full((2, 5), 3.0, "float32")
    np.testing.assert_array_equal(run(session, "shifted", {"code": given})[0], given * 2 - 1)
    with pytest.raises(errors.UnknownNameError, match=r"layers.identity\(x, name=\"shifted\"\)"):
        run(session, None, {**FEED, "shifted": given})


def test_gradients_use_the_same_names(session):
    one, other = run(session, ["hidden@GRAD", "hidden.tmp_2@GRAD"])
    np.testing.assert_array_equal(one, other)
    assert np.any(one)


def test_globs_fetch_every_matching_name(session):
    found = session.run(program, FEED, ["fc_*.w_0", "hidden.?_0@GRAD", "loss"])
    assert found.keys() == ["fc_0.w_0", "hidden.w_0@GRAD", "hidden.b_0@GRAD", "loss"]
    assert found["fc_0.w_0"].shape == (5, 1) and found["hidden.b_0@GRAD"].shape == (5,)
    everything = session.run(program, FEED, "*").keys()
    assert len(set(everything)) == len(everything) and {"x", "loss", "hidden.tmp_0", "fc_0.b_0"} <= set(everything)
    with pytest.raises(errors.UnknownNameError, match="matches 'conv_\\*'"):
        session.run(program, FEED, "conv_*")


def test_a_line_of_the_program_is_no_name(session):
    with pytest.raises(errors.UnknownNameError, match=r"no value 'net.py:12'.*layers.identity"):
        session.run(program, FEED, "net.py:12")


def test_feeds_and_outputs_need_no_further_trace():
    traced = []

    def program():
        traced.append(1)
        loss = layers.mean(layers.fc(layers.data("x", shape=[3]), size=2))
        fluid.optimizer.SGD(0.1).minimize(loss)
        return {"loss": loss}

    session = fluid.Session(program)
    for fetch in (None, ["loss"], "loss"):
        session.run(program, {"x": np.ones((2, 3), "float32")}, fetch=fetch, mode="train")
    # The program function is traced three times: to find its feeds, for the step with all outputs, and for the step
    # with only the loss.
    assert len(traced) == 3
