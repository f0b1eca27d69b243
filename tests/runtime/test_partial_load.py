"""Tests that Session.load of a part loads an optimizer state as a whole, or not at all."""

import numpy as np
import optax
import pytest

import fluid
from fluid import errors, layers
from fluid.optimizer import Adam, ExponentialMovingAverage, Lookahead, Momentum, RMSProp
from fluid.optimizer.base import as_optimizer

X = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")


def two_nets(make):
    """Return a program of two nets, `first/*` and `second/*`, each with two layers and a minimize call of its own."""

    def program():
        x = layers.data("x", shape=[3])
        losses = []
        for name in ("first", "second"):
            with fluid.name_scope(name):
                guess = layers.fc(layers.fc(x, size=4, act="tanh"), size=1)
                losses.append(layers.mean(layers.square(guess - 1.0)))
            as_optimizer(make()).minimize(losses[-1], parameter_list=[f"{name}/*"])
        return losses

    return program


def values(session):
    return {name: np.asarray(value) for name, value in session.state().items()}


def trained(program, steps, seed=0):
    session = fluid.Session(program, seed=seed)
    for _ in range(steps):
        session.step({"x": X})
    return session


# Optimizers with state that belongs to all their parameters: counts of updates, of steps, and sums of weights.
WHOLE = {
    "adam": lambda: Adam(0.05),
    "schedule": lambda: Momentum(fluid.lr.exponential_decay(0.1, 2, 0.5), momentum=0.9),
    "lookahead": lambda: Lookahead(Adam(0.05), k=3),
    "average of an average": lambda: ExponentialMovingAverage(0.9).track(
        ExponentialMovingAverage(0.5, name="short").track(RMSProp(0.01))
    ),
    "optax": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(0.05)),
}
of_whole_state = pytest.mark.parametrize("make", WHOLE.values(), ids=WHOLE)


@of_whole_state
def test_one_net_continues_and_the_other_stays(make, tmp_path):
    program = two_nets(make)
    saved, other = trained(program, 5), trained(program, 2, seed=1)
    for options in ({"names": "first/*"}, {"skip": ["second/*"]}):
        saved.save(tmp_path / "all")
        before = values(other)
        other.load(tmp_path / "all", **options)
        assert int(other.scope.step) == int((saved if "skip" in options else other).scope.step)
        for name, value in values(other).items():
            if name.startswith(("second/", "@slots/program/1/")):
                np.testing.assert_array_equal(value, before[name], err_msg=name)
        for session in (saved, saved, saved, other, other, other):
            session.step({"x": X})
        there = values(saved)
        for name, value in values(other).items():
            if name.startswith(("first/", "@slots/program/0/")):
                np.testing.assert_array_equal(value, there[name], err_msg=name)
        other.step({"x": X})


@of_whole_state
@pytest.mark.parametrize(
    "options", [{"names": ["first/fc_0.*", "second/*"]}, {"skip": "second/fc_1.b_0"}], ids=["names", "skip"]
)
def test_part_of_one_optimizer_is_refused(make, options, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = two_nets(make)
    saved, session = fluid.Session(program), fluid.Session(program, seed=1)
    saved.save("all")
    before = values(session)
    with pytest.raises(errors.ParameterError, match="belongs to all of them") as caught:
        session.load("all", **options)
    for name, value in values(session).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)
    eval(str(caught.value).rpartition(": ")[2], {"session": session})  # the call that the message recommends
    left = "second/fc_1.b_0" if "skip" in options else "first/fc_1.w_0"
    np.testing.assert_array_equal(session.scope[left], before[left])
    np.testing.assert_array_equal(session.scope["second/fc_1.w_0"], saved.scope["second/fc_1.w_0"])


def test_momentum_of_some_parameters_is_loaded_with_them(tmp_path):
    program = two_nets(lambda: Momentum(0.1, momentum=0.9))
    saved = trained(program, 5)
    saved.save(tmp_path / "all")
    session = trained(program, 2, seed=1)
    before, there = values(session), values(saved)
    session.load(tmp_path / "all", names="first/fc_1.*")
    taken = [name for name in before if "first/fc_1." in name]
    assert len(taken) == 4
    for name, value in values(session).items():
        np.testing.assert_array_equal(value, (there if name in taken else before)[name], err_msg=name)


def test_parameter_called_like_a_count(tmp_path):
    def program():
        x = layers.data("x", shape=[3])
        guess = layers.fc(x, size=1, param_attr=fluid.ParamAttr(name="count"), bias_attr=False)
        loss = layers.mean(layers.square(layers.fc(guess, size=1, name="head") - 1.0))
        Adam(0.1).minimize(loss)
        return loss

    trained(program, 3).save(tmp_path / "all")
    session = fluid.Session(program)
    with pytest.raises(errors.ParameterError, match="'@slots/program/0/0/count' .* belongs to all"):
        session.load(tmp_path / "all", skip="count")
    with pytest.raises(errors.ParameterError, match=r"leaves out count .*, strict=False, names='head.\*'\)"):
        session.load(tmp_path / "all", names="head.*", strict=False)
    session.load(tmp_path / "all", names="*")
    assert int(session.state()["@slots/program/0/0/count"]) == 3


def test_file_of_another_optimizer_keeps_the_whole_state(tmp_path):
    trained(two_nets(lambda: Momentum(0.1, momentum=0.9)), 1).save(tmp_path / "all")
    session = fluid.Session(two_nets(lambda: Adam(0.1)))
    before = values(session)
    with pytest.raises(errors.ParameterError, match="missing: @slots/program/0/0/count"):
        session.load(tmp_path / "all")
    with pytest.warns(errors.FluidWarning, match="state of Adam in program keeps its values"):
        session.load(tmp_path / "all", strict=False)
    for name, value in values(session).items():
        if name.startswith("@slots/"):
            np.testing.assert_array_equal(value, before[name], err_msg=name)
    assert int(session.scope.step) == 1


def test_rates_come_with_the_optimizer_that_is_loaded(tmp_path):
    program = two_nets(lambda: Adam(0.1))
    saved = fluid.Session(program)
    saved.set_learning_rates([0.03, 0.02])
    saved.save(tmp_path / "all")
    session = fluid.Session(program)
    session.set_learning_rates([None, 0.5])
    session.load(tmp_path / "all", skip="second/*")
    assert session.learning_rates() == (0.03, 0.5)
    session.load(tmp_path / "all", strict=False)
    assert session.learning_rates() == (0.03, 0.02)


def test_state_that_only_the_file_has_is_said(tmp_path):
    trained(two_nets(lambda: Adam(0.1)), 1).save(tmp_path / "all")
    session = fluid.Session(two_nets(lambda: fluid.optimizer.SGD(0.1)))
    with pytest.raises(errors.ParameterError, match="@slots/program/0/0/count"):
        session.load(tmp_path / "all", names="first/*")
