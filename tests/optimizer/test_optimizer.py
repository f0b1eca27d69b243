"""Optimizers: compared with independent NumPy versions and optax; test_goldens.py compares with recorded numbers."""

import dataclasses
import re

import numpy as np
import optax
import pytest
from optimizer_by_numpy import GRADS, assert_close, norm, numpy_run, run

import fluid
from fluid import errors
from fluid.optimizer import as_optimizer
from fluid.runtime import parameter_updates


def test_sgd_matches_numpy():
    assert_close(run(fluid.optimizer.SGD(0.1)), numpy_run(lambda n, p, g, m, t: p - 0.1 * g))


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_matches_numpy(nesterov):
    def rule(n, p, g, m, t):
        m["v"] = 0.8 * m.get("v", 0) + g
        return p - 0.1 * (g + 0.8 * m["v"] if nesterov else m["v"])

    assert_close(run(fluid.optimizer.Momentum(0.1, 0.8, use_nesterov=nesterov)), numpy_run(rule))


def test_adagrad_matches_numpy():
    def rule(n, p, g, m, t):
        m["s"] = m.get("s", 0.5) + g * g
        return p - 0.1 * g / (np.sqrt(m["s"]) + 1e-3)

    assert_close(run(fluid.optimizer.Adagrad(0.1, 1e-3, 0.5)), numpy_run(rule))


def test_adam_matches_numpy():
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


def test_gradient_clips_match_numpy():
    by_norm = run(fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByNorm(0.5)))
    assert_close(by_norm, numpy_run(lambda n, p, g, m, t: p - 0.1 * g * min(1, 0.5 / norm(g))))
    together = run(fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.5)))
    scaled = [{n: g * min(1, 0.5 / norm(*step.values())) for n, g in step.items()} for step in GRADS]
    assert_close(together, numpy_run(lambda n, p, g, m, t: p - 0.1 * g, grads=scaled))
    by_value = run(fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByValue(0.2, min=-0.1)))
    assert_close(by_value, numpy_run(lambda n, p, g, m, t: p - 0.1 * np.clip(g, -0.1, 0.2)))


def test_optimizers_functions_and_optax_are_accepted():
    sgd = fluid.optimizer.SGD(0.1)
    assert as_optimizer(sgd) is sgd and as_optimizer(lambda: sgd) is sgd
    assert isinstance(as_optimizer(optax.sgd(0.1)), fluid.optimizer.Optax)
    assert isinstance(as_optimizer(lambda: optax.sgd(0.1)), fluid.optimizer.Optax)


@pytest.mark.parametrize("value", [None, 0.1, "adam", fluid.optimizer.SGD, lambda: None])
def test_values_that_are_no_optimizer_are_refused(value):
    with pytest.raises(errors.ArgumentTypeError, match="fluid.optimizer.Adam"):
        as_optimizer(value)


@pytest.mark.parametrize("rate", [-0.1, "fast", True, float("nan")])
def test_bad_rates_are_refused(rate):
    with pytest.raises(errors.ArgumentError, match="learning_rate"):
        fluid.optimizer.SGD(rate)


@pytest.mark.parametrize("rate", [0.0, 1, np.float32(0.5), lambda count: 0.1])
def test_good_rates(rate):
    assert fluid.optimizer.SGD(rate).learning_rate is rate


def test_optax_wraps_transformations_only():
    with pytest.raises(errors.ArgumentTypeError, match="optax.adamw"):
        fluid.optimizer.Optax(0.1)


def test_other_spellings():
    assert fluid.optimizer.AdamOptimizer is fluid.optimizer.Adam
    assert fluid.optimizer.SGDOptimizer(learning_rate=0.1) == fluid.optimizer.SGD(0.1)


def regression():
    x = fluid.layers.data("x", shape=[4])
    return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(x, size=1)))


def test_settings_of_other_optimizers_are_theirs():
    @dataclasses.dataclass(frozen=True)
    class Mine(fluid.optimizer.Optimizer):
        decay: float = 2.0
        rho: float | None = None

        def rule(self):
            return optax.sgd(self.learning_rate)

    fluid.Trainer(regression, Mine(0.1))  # pytest fails if fluid warns


@pytest.mark.parametrize(
    "make",
    [
        lambda o: o.RMSProp(0.1, rho=1.0),
        lambda o: o.RMSProp(0.1, momentum=1.0),
        lambda o: o.Adadelta(rho=1.5),
        lambda o: o.DecayedAdagrad(0.1, decay=1),
        lambda o: o.DecayedAdagrad(0.1, decay=-0.1),
        lambda o: o.Momentum(0.1, 1.0),
        lambda o: o.LarsMomentum(0.1, 9),
        lambda o: o.Muon(0.1, 1.0),
        lambda o: o.Adam(0.1, epsilon=-1e-8),
        lambda o: o.AdamW(0.1, weight_decay=-0.01),
        lambda o: o.Lamb(0.1, lamb_weight_decay=-0.01),
        lambda o: o.LarsMomentum(0.1, lars_coeff=-0.001),
        lambda o: o.Ftrl(0.1, l1=-0.1),
        lambda o: o.Adagrad(0.1, initial_accumulator_value=-0.1),
    ],
)
def test_settings_that_make_rules_diverge_are_refused(make):
    with pytest.raises(errors.ArgumentError, match="expected"):
        make(fluid.optimizer)


def test_a_negative_momentum_is_a_momentum():
    assert fluid.optimizer.Momentum(0.1, -0.5).momentum == -0.5  # used by Gidel et al., 2019


def test_decay_large_enough_to_diverge_warns():
    def program():
        x = fluid.layers.data("x", shape=[4])
        decay = fluid.ParamAttr(regularizer=fluid.regularizer.L2Decay(2.5), learning_rate=2.0)
        return fluid.layers.mean(fluid.layers.fc(x, size=1, param_attr=decay))

    for optimizer in (fluid.optimizer.SGD(0.5), fluid.optimizer.Lookahead(fluid.optimizer.SGD(0.5))):
        with pytest.warns(errors.FluidWarning, match=r"subtracts 1 \* 2.5 of fc_0.w_0"):
            fluid.Trainer(program, optimizer)
    for optimizer in (fluid.optimizer.SGD(0.3), fluid.optimizer.Momentum(0.5, 0.9), fluid.optimizer.Adam(5.0)):
        fluid.Trainer(program, optimizer)  # pytest fails if fluid warns
    with pytest.warns(errors.FluidWarning, match=r"AdamW.*weight_decay=50"):
        fluid.Trainer(regression, fluid.optimizer.AdamW(0.1, weight_decay=50))


def test_two_weight_decays_warn():
    decay = fluid.regularizer.L2Decay(0.01)
    with pytest.warns(errors.FluidWarning, match=r"Lion.* decays weights twice.*Lion\(weight_decay=0.01\)"):
        fluid.optimizer.Lion(1e-4, regularization=decay)
    fluid.optimizer.AdamW(1e-3, weight_decay=0.0, regularization=decay)  # pytest fails if fluid warns
    fluid.optimizer.AdamW(1e-3, regularization=fluid.regularizer.L1Decay(0.01))
    fluid.optimizer.Muon(0.02, regularization=decay)


@pytest.mark.parametrize("exclude", [lambda p: False, lambda p: p.name.endswith("bias"), lambda p: None])
def test_a_function_that_excludes_nothing_is_warned_of(exclude):
    with pytest.warns(errors.FluidWarning, match=r"excludes none of the parameters: fc_0.w_0, fc_0.b_0"):
        fluid.Trainer(regression, fluid.optimizer.AdamW(0.1, exclude_from_weight_decay_fn=exclude))


@pytest.mark.parametrize(
    "exclude",
    [lambda p: p.name, lambda p: p.name.find("b_0"), "b_0", ["fc_0.b_0"]],
    ids=["str", "find", "name", "list"],
)
def test_invalid_weight_decay_exclusions_are_refused(exclude):
    with pytest.raises(errors.ArgumentTypeError, match=r'exclude_from_weight_decay_fn=lambda .*endswith\(".b_0"\)'):
        fluid.Trainer(regression, fluid.optimizer.AdamW(0.1, exclude_from_weight_decay_fn=exclude))


def test_exclusions_in_nets_without_biases_do_not_warn():
    def program():
        x = fluid.layers.data("x", shape=[4])
        return fluid.layers.mean(fluid.layers.fc(x, size=1, bias_attr=False))

    for exclude in (lambda p: len(p.shape) < 2, lambda p: re.search("b_0", p.name)):
        # pytest fails if fluid warns
        fluid.Trainer(program, fluid.optimizer.AdamW(0.1, exclude_from_weight_decay_fn=exclude))
    fluid.Trainer(
        regression, fluid.optimizer.AdamW(0.1, exclude_from_weight_decay_fn=lambda p: re.search("b_", p.name))
    )


def test_advice_on_decay_ignores_names_of_classes():
    class SGD(fluid.optimizer.Adam):
        """An optimizer that divides the decay by the size of the gradients, as Adam does."""

    decay = fluid.regularizer.L2Decay(30.0)
    parameter_updates._check_decay(SGD(0.1, regularization=decay), {"w": None})  # pytest fails if fluid warns
    with pytest.warns(errors.FluidWarning, match="grows without bound"):
        parameter_updates._check_decay(fluid.optimizer.SGD(0.1, regularization=decay), {"w": None})
