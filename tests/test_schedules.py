"""Schedules compared with optax and with formulas; the golden tests cover the recorded numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fluid
from fluid import errors, layers, lr

COUNTS = np.arange(30)


def values(schedule, counts=COUNTS):
    return np.array([float(schedule(int(c))) for c in counts])


def noam(n):
    return 2 * 64**-0.5 * min(n**-0.5, n * 12**-1.5)


@pytest.mark.parametrize(
    ("schedule", "want"),
    [
        (lr.exponential_decay(0.1, 5, 0.5), optax.exponential_decay(0.1, 5, 0.5)),
        (lr.exponential_decay(0.1, 5, 0.5, staircase=True), optax.exponential_decay(0.1, 5, 0.5, staircase=True)),
        (lr.natural_exp_decay(0.2, 6, 0.3), lambda c: 0.2 * np.exp(-0.3 * c / 6)),
        (lr.natural_exp_decay(0.2, 6, 0.3, staircase=True), lambda c: 0.2 * np.exp(-0.3 * (c // 6))),
        (lr.inverse_time_decay(0.1, 5, 0.5, staircase=True), lambda c: 0.1 / (1 + 0.5 * (c // 5))),
        (lr.polynomial_decay(0.2, 12, 0.02, 2.0), optax.polynomial_schedule(0.2, 0.02, 2.0, 12)),
        (lr.polynomial_decay(0.2, 12, 0.02), optax.linear_schedule(0.2, 0.02, 12)),
        (lr.piecewise_decay([4, 10], [1.0, 0.5, 0.1]), lambda c: 1.0 if c < 4 else 0.5 if c < 10 else 0.1),
        (lr.piecewise_decay([], [0.3]), lambda c: 0.3),
        (lr.noam_decay(64, 12, 2.0), lambda c: noam(c + 1)),
        (lr.cosine_decay(0.5, 10, 3), lambda c: 0.25 * (np.cos(np.pi * (c // 10) / 3) + 1)),
        (lr.linear_lr_warmup(0.3, 6, 0.0, 0.1), lambda c: 0.1 * c / 6 if c < 6 else 0.3),
        (
            lr.linear_lr_warmup(lr.piecewise_decay([8], [0.2, 0.1]), 6, 0.05, 0.2),
            lambda c: 0.05 + 0.15 * c / 6 if c < 6 else 0.2 if c < 8 else 0.1,
        ),
        (lr.linear_lr_warmup(optax.constant_schedule(0.3), 6, 0.0, 0.1), lambda c: 0.1 * c / 6 if c < 6 else 0.3),
        (lr.warmup_cosine(0.3, 7, 25), optax.warmup_cosine_decay_schedule(0.0, 0.3, 7, 25)),
        (lr.warmup_cosine(0.3, 7, 25, 0.05, 0.01), optax.warmup_cosine_decay_schedule(0.05, 0.3, 7, 25, 0.01)),
        (lr.warmup_cosine(0.3, 0, 20), optax.cosine_decay_schedule(0.3, 20)),
    ],
)
def test_schedule_values_equal_the_formula(schedule, want):
    np.testing.assert_allclose(values(schedule), [float(want(c)) for c in COUNTS], rtol=1e-5, atol=1e-7)
    compiled = jax.jit(jax.vmap(schedule))(jnp.asarray(COUNTS, jnp.int32))
    np.testing.assert_allclose(compiled, values(schedule), rtol=1e-5, atol=1e-7)


def test_polynomials_may_begin_again():
    found = values(lr.polynomial_decay(0.1, 8, 0.01, cycle=True), [0, 4, 8, 9, 12, 16, 17])
    want = [
        0.09 * (1 - c / length) + 0.01 for c, length in [(0, 8), (4, 8), (8, 8), (9, 16), (12, 16), (1, 1), (17, 24)]
    ]
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_cosines_rise_again_after_the_last_epoch():
    """Check that the rate rises after the last epoch, because the formula of PaddlePaddle continues the cosine."""
    found = values(lr.cosine_decay(0.4, 5, 4), np.arange(0, 45, 5))
    half = np.sqrt(0.5)
    falling = [0.4, 0.2 * (1 + half), 0.2, 0.2 * (1 - half), 0]
    np.testing.assert_allclose(found, falling + falling[-2::-1], rtol=1e-5, atol=1e-7)


def test_staircase_steps_are_exact_after_millions_of_steps():
    late = np.arange(3_000_000, 3_000_100)
    found = jax.vmap(lr.exponential_decay(1.0, 7, 1 - 1e-6, staircase=True))(jnp.asarray(late))
    assert [a != b for a, b in zip(found, found[1:], strict=False)] == [c % 7 == 6 for c in late[:-1]]


def test_layers_offer_them_all():
    names = {n for n, v in vars(lr).items() if getattr(v, "__module__", "") == lr.__name__ and not n.startswith("_")}
    assert all(getattr(layers, name) is getattr(lr, name) for name in names) and len(names) == 9


@pytest.mark.parametrize(
    "call",
    [
        lambda: layers.exponential_decay(0.1, 0, 0.5),
        lambda: layers.natural_exp_decay("fast", 5, 0.5),
        lambda: layers.inverse_time_decay(0.1, -5, 0.5),
        lambda: layers.polynomial_decay(0.1, 0),
        lambda: layers.piecewise_decay([4, 10], [1.0, 0.5]),
        lambda: layers.piecewise_decay([10, 4], [1.0, 0.5, 0.1]),
        lambda: layers.noam_decay(0, 10),
        lambda: layers.cosine_decay(layers.noam_decay(8, 10), 10, 3),
        lambda: layers.linear_lr_warmup(None, 10, 0.0, 0.1),
        lambda: layers.linear_lr_warmup(0.1, True, 0.0, 0.1),
        lambda: layers.warmup_cosine("fast", 5, 10),
        lambda: layers.warmup_cosine(0.1, -1, 10),
        lambda: layers.warmup_cosine(0.1, 5, 5),
        lambda: layers.warmup_cosine(0.1, 5, 10, end_lr=None),
    ],
)
def test_meaningless_schedule_arguments_are_refused(call):
    with pytest.raises(errors.ArgumentError, match=r"expected|write piecewise_decay"):
        call()


def test_errors_suggest_a_rate_or_a_count():
    with pytest.raises(errors.ArgumentError, match=r"start_lr='low'\): expected a number, as in start_lr=0.1"):
        lr.linear_lr_warmup(0.1, 10, "low", 0.1)
    with pytest.raises(
        errors.ArgumentError, match=r"warmup_steps=nan\): expected a positive number, as in warmup_steps=10"
    ):
        lr.linear_lr_warmup(0.1, float("nan"), 0.0, 0.1)


def falling(make_rate):
    """Train `loss = mean(x * w)` with x = 1 for five steps, and return the learning rate of each step.

    The gradient is 1, so each step subtracts the learning rate from w.
    """

    def program():
        x = layers.data("x", shape=[1])
        w = layers.create_parameter([1], "float32", attr=fluid.ParamAttr(name="w"))
        loss = layers.mean(layers.elementwise_mul(x, w))
        fluid.optimizer.SGD(make_rate()).minimize(loss)
        return loss

    session = fluid.Session(program)
    session.scope["w"] = [0.0]
    found = []
    for _ in range(5):
        before = float(session.scope["w"][0])
        session.run(feed={"x": np.ones((2, 1), "float32")})
        found.append(before - float(session.scope["w"][0]))
    return found


@pytest.mark.parametrize("inside", [True, False])
def test_schedule_changes_the_rate_in_each_step(inside):
    schedule = layers.exponential_decay(0.2, 2, 0.5)
    made = falling(lambda: layers.exponential_decay(0.2, 2, 0.5) if inside else schedule)
    np.testing.assert_allclose(made, [0.2 * 0.5 ** (c / 2) for c in range(5)], rtol=1e-5)


def two_rates():
    x = layers.data("x", shape=[2])
    loss = layers.mean(layers.fc(x, size=1))
    fluid.optimizer.Adam(layers.exponential_decay(0.2, 1, 0.5)).minimize(loss, parameter_list=["fc_0.w_0"])
    wrapped = fluid.optimizer.Lookahead(fluid.optimizer.SGD(layers.noam_decay(4, 2), accumulate_steps=2))
    wrapped.minimize(loss, parameter_list=["fc_0.b_0"])
    return {"loss": loss}


def test_the_rate_of_a_step_can_be_fetched():
    session, feed = fluid.Session(two_rates), {"x": np.ones((4, 2), "float32")}
    found = [[float(v) for v in session.run(feed=feed, fetch=["learning_rate_0", "learning_rate_1"])] for _ in range(5)]
    want = [lr.noam_decay(4, 2)(c // 2) for c in range(5)]
    np.testing.assert_allclose(found, [[0.2 * 0.5**c, float(w)] for c, w in enumerate(want)], rtol=1e-5)
    assert [c.mode for c in session.compilations] == ["train"]
    constant = fluid.Trainer(lambda: layers.mean(layers.fc(layers.data("x", shape=[2]), 1)), fluid.optimizer.SGD(0.3))
    assert session.run(feed=feed, fetch=["learning_rate_1", "loss"])[1].shape == ()
    assert float(constant.run(feed, ["learning_rate_0"], mode="train")[0]) == np.float32(0.3)


def test_only_training_steps_have_a_rate():
    session, feed = fluid.Session(two_rates), {"x": np.ones((4, 2), "float32")}
    for fetch, mode in [("learning_rate_0", "test"), ("learning_rate_2", "train"), ("learning_rate_0@GRAD", "train")]:
        with pytest.raises(errors.UnknownNameError, match="learning_rate"):
            session.run(feed=feed, fetch=[fetch], mode=mode)
    bare = fluid.Trainer(lambda: layers.mean(layers.fc(layers.data("x", shape=[2]), 1)), optax.sgd(0.3))
    with pytest.raises(errors.UnknownNameError, match="does not say its learning rate"):
        bare.run(feed, ["learning_rate_0"], mode="train")


@pytest.mark.parametrize(
    "make",
    [
        lambda: lr.exponential_decay(-0.1, 10, 0.5),
        lambda: lr.exponential_decay(0.1, 10, -0.5),
        lambda: lr.noam_decay(64, 10, -1.0),
        lambda: lr.warmup_cosine(-0.1, 10, 100),
        lambda: lr.linear_lr_warmup(-0.1, 10, 0.0, 0.1),
    ],
)
def test_rates_below_0_are_refused(make):
    with pytest.raises(errors.ArgumentError, match="from 0 on"):
        make()


@pytest.mark.parametrize(
    "make", [lambda: lr.linear_lr_warmup(0.1, 10, 0.1, 0.0), lambda: lr.warmup_cosine(0.1, 10, 100, start_lr=0.2)]
)
def test_a_warm_up_that_falls_is_warned_of(make):
    with pytest.warns(errors.FluidWarning, match="the rate falls while it warms up"):
        make()


def test_intentionally_growing_rate_does_not_warn():
    lr.polynomial_decay(1e-5, 100, end_learning_rate=0.1)  # pytest turns warnings into errors
    lr.exponential_decay(1e-5, 100, 10.0)
    lr.linear_lr_warmup(0.1, 10, 0.1, 0.1)


def test_schedule_in_a_program_warns_once_with_line():
    def program():
        loss = layers.mean(layers.fc(layers.data("x", shape=[2]), 1))
        fluid.optimizer.SGD(layers.polynomial_decay(1e-5, 100)).minimize(loss)
        return loss

    with pytest.warns(errors.FluidWarning, match=r"test_schedules.py:\d+ in program: polynomial_decay") as warned:
        fluid.Trainer(program).train([[(np.ones(2, "float32"),)]])
    assert len(warned) == 1
