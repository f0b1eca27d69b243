"""Errors that name parameters with NaN or infinity: after a training with finite losses, and when saving them."""

import numpy as np
import pytest

import fluid
from fluid import errors, layers

ROWS = np.array([[1.0, 2.0], [-1.0, -2.0]], "float32")


def roots():
    """Build a finite loss with a gradient that is NaN where `z` is negative."""
    z = layers.fc(layers.data("x", shape=[2]), size=3, bias_attr=False)
    return layers.mean(layers.where(z > 0, layers.sqrt(z), 0 * z))


def trained(program=roots, **options):
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1), **options)
    reader = fluid.reader.arrays({"x": ROWS}, batch_size=2)
    return trainer, lambda: trainer.train(reader)


@pytest.fixture
def spoilt():
    trainer, train = trained()
    with pytest.warns(errors.FluidWarning, match="fc_0.w_0 holds NaN or infinity after this training") as warned:
        history = train()
    assert len(warned) == 1 and np.isfinite(history["loss"]).all()
    return trainer


def test_nan_parameters_under_finite_losses_warn_once(spoilt):
    assert not np.isfinite(spoilt.params["fc_0.w_0"]).all()
    with pytest.warns(errors.FluidWarning, match="the loss is nan") as warned:
        spoilt.train(fluid.reader.arrays({"x": ROWS}, batch_size=2))
    assert len(warned) == 1


def test_saving_nan_parameters_warns(spoilt, tmp_path):
    with pytest.warns(errors.FluidWarning, match="save_params: fc_0.w_0 holds NaN.*SaveBest"):
        spoilt.save_params(tmp_path / "net.params")
    with pytest.warns(errors.FluidWarning, match="save_inference_model: fc_0.w_0 holds NaN.*SaveBest"):
        spoilt.save_inference_model(tmp_path / "net.fluid")
    with pytest.warns(errors.FluidWarning, match="save_params: fc_0.w_0 holds NaN"):
        fluid.io.save_params(spoilt.session, str(tmp_path))


def test_states_are_checked_except_infinite_initial_values(tmp_path):
    def program():
        x = layers.data("x", shape=[2])
        mask = layers.create_parameter([2], default_initializer=fluid.initializer.Constant(-np.inf))
        best = layers.create_state([1], name="best", initializer=np.inf)
        seen = layers.create_state([1], name="seen")
        best.update(layers.elementwise_min(best.value, best.value))
        seen.update(seen.value + layers.log(layers.reshape(layers.reduce_min(x) * 0, [1])))
        loss = layers.mean(layers.fc(x, size=1))
        return loss + layers.reduce_sum(layers.where(mask > 0, mask, 0 * x[0]))

    trainer, train = trained(program)
    trainer.save_params(tmp_path / "first.params")  # no warning yet, because pytest turns warnings into errors
    with pytest.warns(errors.FluidWarning, match="^seen holds NaN or infinity after"):
        train()


def test_populations_with_a_finite_member_do_not_warn():
    population = fluid.Population(roots, fluid.optimizer.SGD(0.1), seeds=range(2))
    weights = np.array(population.session.scope["fc_0.w_0"])
    weights[0] = np.nan
    population.session.scope["fc_0.w_0"] = weights
    assert population.session.engine.members == 2
    from fluid.runtime.finite import became_non_finite

    scope = population.session.scope
    assert became_non_finite(scope.specs, scope.arrays, 2) == []
    assert became_non_finite(scope.specs, scope.arrays) == ["fc_0.w_0"]
