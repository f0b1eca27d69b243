"""Optimizers against independent NumPy versions and optax; what golden numbers cover is in the golden tests."""

import numpy as np
import optax
import pytest
from optimizing import GRADS, assert_close, norm, numpy_run, run

import fluid
from fluid import errors
from fluid.optimizer import as_optimizer


def test_sgd():
    assert_close(run(fluid.optimizer.SGD(0.1)), numpy_run(lambda n, p, g, m, t: p - 0.1 * g))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum(nesterov):
    def rule(n, p, g, m, t):
        m["v"] = 0.8 * m.get("v", 0) + g
        return p - 0.1 * (g + 0.8 * m["v"] if nesterov else m["v"])

    assert_close(run(fluid.optimizer.Momentum(0.1, 0.8, use_nesterov=nesterov)), numpy_run(rule))


def test_adagrad():
    def rule(n, p, g, m, t):
        m["s"] = m.get("s", 0.5) + g * g
        return p - 0.1 * g / (np.sqrt(m["s"]) + 1e-3)

    assert_close(run(fluid.optimizer.Adagrad(0.1, 1e-3, 0.5)), numpy_run(rule))


def test_adam():
    def rule(n, p, g, m, t):
        m["m"] = 0.5 * m.get("m", 0) + 0.5 * g
        m["v"] = 0.8 * m.get("v", 0) + 0.2 * g * g
        return p - 0.1 * np.sqrt(1 - 0.8**t) / (1 - 0.5**t) * m["m"] / (np.sqrt(m["v"]) + 0.01)

    assert_close(run(fluid.optimizer.Adam(0.1, beta1=0.5, beta2=0.8, epsilon=0.01)), numpy_run(rule))


def test_adam_is_optaxs_but_for_epsilon():
    found, want = run(fluid.optimizer.Adam(0.1, epsilon=1e-12)), run(fluid.optimizer.Optax(optax.adam(0.1, eps=1e-12)))
    assert_close(found, {n: np.asarray(v) for n, v in want.items()})


def test_schedules_see_the_number_of_updates():
    found = run(fluid.optimizer.SGD(lambda count: 0.1 / (1 + count)))
    assert_close(found, numpy_run(lambda n, p, g, m, t: p - 0.1 / t * g))


def test_settings_of_single_parameters():
    settings = {
        "w": fluid.ParamAttr(learning_rate=0.5, gradient_clip=fluid.clip.GradientClipByValue(0.3)),
        "b": fluid.ParamAttr(regularizer=fluid.regularizer.L1Decay(0.2)),
    }
    optimizer = fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(0.4))

    def rule(n, p, g, m, t):
        if n == "w":
            return p - 0.05 * (np.clip(g, -0.3, 0.3) + 0.4 * p)
        return p - 0.1 * (g + 0.2 * np.sign(p))

    assert_close(run(optimizer, settings), numpy_run(rule))


def test_clips():
    by_norm = run(fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByNorm(0.5)))
    assert_close(by_norm, numpy_run(lambda n, p, g, m, t: p - 0.1 * g * min(1, 0.5 / norm(g))))
    together = run(fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.5)))
    scaled = [{n: g * min(1, 0.5 / norm(*step.values())) for n, g in step.items()} for step in GRADS]
    assert_close(together, numpy_run(lambda n, p, g, m, t: p - 0.1 * g, grads=scaled))
    by_value = run(fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByValue(0.2, min=-0.1)))
    assert_close(by_value, numpy_run(lambda n, p, g, m, t: p - 0.1 * np.clip(g, -0.1, 0.2)))


def test_what_is_accepted_as_an_optimizer():
    sgd = fluid.optimizer.SGD(0.1)
    assert as_optimizer(sgd) is sgd and as_optimizer(lambda: sgd) is sgd
    assert isinstance(as_optimizer(optax.sgd(0.1)), fluid.optimizer.Optax)
    assert isinstance(as_optimizer(lambda: optax.sgd(0.1)), fluid.optimizer.Optax)


@pytest.mark.parametrize("value", [None, 0.1, "adam", fluid.optimizer.SGD, lambda: None])
def test_what_is_not(value):
    with pytest.raises(errors.ArgumentTypeError, match="fluid.optimizer.Adam"):
        as_optimizer(value)


@pytest.mark.parametrize("rate", [-0.1, "fast", True, float("nan")])
def test_bad_rates_are_refused(rate):
    with pytest.raises(errors.ArgumentError, match="learning_rate"):
        fluid.optimizer.SGD(rate)


@pytest.mark.parametrize("rate", [0, 1, np.float32(0.5), lambda count: 0.1])
def test_good_rates(rate):
    assert fluid.optimizer.SGD(rate).learning_rate is rate


def test_optax_wraps_transformations_only():
    with pytest.raises(errors.ArgumentTypeError, match="optax.adamw"):
        fluid.optimizer.Optax(0.1)


def test_other_spellings():
    assert fluid.optimizer.AdamOptimizer is fluid.optimizer.Adam
    assert fluid.optimizer.SGDOptimizer(learning_rate=0.1) == fluid.optimizer.SGD(0.1)
