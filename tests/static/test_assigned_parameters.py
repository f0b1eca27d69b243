"""Parameters that a program assigns after an optimizer update: weight decay, and copies that follow a weight."""

import numpy as np
import pytest
from static.both_styles import fresh, scope_value

import fluid.static as fluid
from fluid.static import layers

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
RATE = 0.1


def regression():
    x = layers.data("x", shape=[3])
    return layers.mean(layers.fc(x, size=1, param_attr="w", bias_attr=False))


def started(startup):
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    return exe


GRADIENT = X.mean(0)[:, None]  # the gradient of the loss with respect to `w`


@pytest.mark.parametrize("fetch_it", [False, True])
def test_a_decay_by_the_program_follows_the_update(fetch_it):
    """Check weight decay as in programs for BERT: after an update, subtract a share of the weight before the update."""
    with fresh() as (main, startup):
        loss = regression()
        rate = layers.create_global_var([1], RATE, "float32", persistable=True, name="rate")
        before = {p.name: p * 1.0 for p in main.global_block().all_parameters()}
        _, pairs = fluid.optimizer.SGD(rate).minimize(loss)
        for parameter, gradient in pairs:
            block = parameter.block.program
            with block._optimized_guard([parameter, gradient]), fluid.framework.name_scope("weight_decay"):
                layers.assign(output=parameter, input=parameter - before[parameter.name] * 0.5 * rate)
        tested = main.clone(for_test=True)
        exe = started(startup)
        for _ in range(2):
            w = scope_value("w")
            found = exe.run(main, {"x": X}, [loss, "w"] if fetch_it else [loss])
            wanted = w - RATE * GRADIENT - w * 0.5 * RATE
            np.testing.assert_allclose(scope_value("w"), wanted, rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(found[0], [(X @ w).mean()], rtol=1e-5)
            np.testing.assert_array_equal(found[-1], scope_value("w") if fetch_it else found[0])
        exe.run(tested, {"x": X}, [loss])
        np.testing.assert_allclose(scope_value("w"), wanted, rtol=1e-5, atol=1e-7)


def test_a_target_follows_weights_every_second_step():
    with fresh() as (main, startup):
        loss = regression()
        target = layers.create_parameter([3, 1], "float32", attr=fluid.ParamAttr(name="target", trainable=False))
        fluid.optimizer.SGD(RATE).minimize(loss)
        step = layers.autoincreased_step_counter(begin=1)
        with layers.Switch() as switch:
            with switch.case(layers.equal(step % 2, layers.zeros_like(step))):
                layers.assign(main.global_block().var("w") * 0.75 + target * 0.25, output=target)
        exe = started(startup)
        wanted = scope_value("target")
        for number in (1, 2, 3, 4):
            exe.run(main, {"x": X}, [loss])
            if number % 2 == 0:
                wanted = 0.75 * scope_value("w") + 0.25 * wanted
            np.testing.assert_allclose(scope_value("target"), wanted, rtol=1e-5)


def test_a_fetched_assigned_parameter_is_kept():
    with fresh() as (main, startup):
        weight = layers.create_parameter([2], "float32", attr="w")
        layers.assign(weight * 2.0, output=weight)
        exe = started(startup)
        before = scope_value("w")
        for factor in (2, 4):
            np.testing.assert_array_equal(exe.run(main, fetch_list=[weight])[0], factor * before)
