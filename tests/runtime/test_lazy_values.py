"""Lazy values of `Session.value`: each value for a feed is computed when it is requested, without training."""

import numpy as np
import pytest
from compile_counts import counted

import fluid
from fluid import errors

X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


def program():
    x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[1])
    hidden = fluid.layers.batch_norm(fluid.layers.fc(x, size=3, name="hidden"))
    guess = fluid.layers.fc(fluid.layers.dropout(hidden, 0.5, name="drop"), size=1, name="guess")
    loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return {"loss": loss}


def state(session):
    return {name: np.array(value).tobytes() for name, value in session.state().items()}


@pytest.fixture
def session():
    with fluid.Session(program) as opened:
        yield opened


def test_a_lazy_value_is_computed_once(session):
    session.feed({"x": X, "y": Y})
    assert not session.compilations
    hidden = session.value("hidden")
    np.testing.assert_allclose(hidden, X @ session.scope["hidden.w_0"] + session.scope["hidden.b_0"], rtol=1e-5)
    assert len(session.compilations) == 1
    with counted() as compiled:
        assert session.value("hidden") is hidden
        assert session.value(["hidden"])[0] is hidden
    assert not compiled
    session.feed({"x": 2 * X, "y": Y})
    assert not np.allclose(session.value("hidden"), hidden)
    assert len(session.compilations) == 1, "the same step runs on what was fed next"


def test_globs_and_names_compute_only_new_values(session):
    session.feed({"x": X, "y": Y})
    weight = session.value("guess.w_0@GRAD")
    found = session.value(["guess.*@GRAD", "loss"])
    assert found.keys() == ["guess.tmp_0@GRAD", "guess.tmp_1@GRAD", "guess.w_0@GRAD", "guess.b_0@GRAD", "loss"]
    assert found["guess.w_0@GRAD"] is weight
    assert session.value("hid*").keys() == ["hidden.tmp_0", "hidden.tmp_1", "hidden.w_0", "hidden.b_0"]


def test_a_value_needs_only_its_feeds(session):
    session.feed({"x": X})
    assert session.value("guess").shape == (6, 1)
    with pytest.raises(errors.FeedError, match="needs the feed 'y'"):
        session.value("loss")
    session.feed({"guess": Y, "y": Y})
    assert float(session.value("loss")) == 0.0


def test_a_value_is_never_older_than_the_parameters(session):
    session.feed({"x": X, "y": Y})
    before = float(session.value("loss"))
    session.run(feed={"x": X, "y": Y}, mode="train")
    trained = float(session.value("loss"))
    assert trained != before
    assert trained == float(session.run(feed={"x": X, "y": Y}, mode="test").loss)
    session.scope["guess.w_0"] = np.zeros((3, 1))
    session.scope["guess.b_0"] = np.zeros(1)
    assert float(session.value("loss")) == pytest.approx(float(np.mean(Y**2)), rel=1e-5)


def test_train_mode_values_match_the_next_step(session):
    session.feed({"x": X, "y": Y}, mode="train")
    before = state(session)
    names = ["drop", "loss", "hidden.w_0@GRAD"]
    found = [np.array(session.value(name)) for name in names]
    assert not np.array_equal(found[0], session.run(feed={"x": X}, fetch="drop", mode="test")[0])
    statistics = session.value("batch_norm_0.w_*")
    assert state(session) == before
    assert all(np.array_equal(statistics[name], session.scope[name]) for name in statistics.keys())
    trained = session.run(feed={"x": X, "y": Y}, fetch=names, mode="train")
    for mine, theirs in zip(found, trained, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-7)
    assert state(session) != before


def test_train_mode_respects_frozen_parameters(session):
    session.feed({"x": X, "y": Y}, mode="train")
    moving = np.array(session.value("batch_norm_0"))
    session.freeze(["batch_norm_0.*"])
    session.feed({"x": X, "y": Y}, mode="train")
    frozen = np.array(session.value("batch_norm_0"))
    np.testing.assert_array_equal(frozen, session.run(feed={"x": X}, fetch="batch_norm_0", mode="test")[0])
    assert not np.allclose(moving, frozen)


def test_feeds_are_copied_from_the_caller(session):
    mine = X.copy()
    session.feed({"x": mine})
    mine[:] = 0
    np.testing.assert_array_equal(session.value("x"), X)


def test_a_program_of_several_is_named():
    def other():
        return fluid.layers.scale(fluid.layers.data("x", shape=[4]), 3.0, name="scaled")

    session = fluid.Session(program, other)
    with pytest.raises(errors.ArgumentTypeError, match="which program"):
        session.feed({"x": X})
    session.feed({"x": X}, other)
    np.testing.assert_allclose(session.value("scaled"), 3 * X)


def test_wrong_names_modes_and_order_raise_errors(session):
    with pytest.raises(errors.ArgumentError, match=r"found nothing that was fed.*session.feed\("):
        session.value("loss")
    session.feed({"x": X})
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'hidden"):
        session.value("hiden")
    with pytest.raises(errors.UnknownNameError, match=r"matches 'hiden\*'. Did you mean 'hidden"):
        session.value("hiden*")
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'x'"):
        session.feed({"xx": X})
    with pytest.raises(errors.ArgumentError, match='"train" or "test"'):
        session.feed({"x": X}, mode="eval")
    assert session.value("x").shape == (6, 4), "what was fed before stays"
    session.close()
    with pytest.raises(errors.ArgumentError, match="closed"):
        session.value("x")
