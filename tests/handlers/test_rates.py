"""ReduceLROnPlateau: it lowers the learning rate as documented, also with schedules, several rates and a resume."""

import numpy as np
import optax
import pytest
from handlers.line_fitting import Scripted, make, reader

import fluid
from fluid import errors
from fluid import handlers as H


class Watching(fluid.Handler):
    """A handler that records the learning rate of the last step of each epoch."""

    def __init__(self):
        self.rates = []

    def measured(self, event):
        if "learning_rate_0" in event.metrics.names and event.step == 2:
            self.rates.append(round(float(event.metrics["learning_rate_0"]), 6))


def rates_of(values, optimizer=None, **options):
    """Train with ReduceLROnPlateau; epoch i announces `values[i]`. Return the learning rate of each epoch."""
    watching = Watching()
    trainer = make(optimizer or fluid.optimizer.SGD(0.8))
    reducing = H.ReduceLROnPlateau("test_loss", factor=0.5, **options)
    trainer.train(
        reader(), len(values), handlers=[reducing, Scripted(values), watching, H.LearningRateMonitor()], progress=False
    )
    return watching.rates


@pytest.mark.parametrize(
    ("values", "options", "want"),
    [
        ([4, 3, 2, 1, 0], {"patience": 1}, [0.8, 0.8, 0.8, 0.8, 0.8]),
        ([4, 4, 4, 4, 4], {"patience": 1}, [0.8, 0.8, 0.4, 0.2, 0.1]),
        ([4, 4, 4, 4, 4, 4], {"patience": 2}, [0.8, 0.8, 0.8, 0.4, 0.4, 0.2]),
        ([4, 4, 3, 3, 3, 3], {"patience": 2}, [0.8, 0.8, 0.8, 0.8, 0.8, 0.4]),
        ([1, 2, 3, 3, 3], {"patience": 1, "mode": "max"}, [0.8, 0.8, 0.8, 0.8, 0.4]),
        ([4, 3.9, 3.8, 3.7, 3.5], {"patience": 1, "min_delta": 0.15}, [0.8, 0.8, 0.4, 0.4, 0.2]),
        ([4, 4, 4, 4, 4, 4], {"patience": 1, "cooldown": 1}, [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]),
        ([4, 4, 4, 4, 4], {"patience": 1, "min_lr": 0.3}, [0.8, 0.8, 0.4, 0.3, 0.3]),
    ],
)
def test_reduce_lr_on_plateau_lowers_the_rate(values, options, want):
    assert rates_of(values, **options) == want


def test_value_that_is_always_nan_lowers_the_rate():
    with pytest.warns(errors.FluidWarning, match="ReduceLROnPlateau follows 'test_loss', which was NaN or infinite"):
        assert rates_of([float("nan")] * 3, patience=1) == [0.8, 0.4, 0.2]


def test_reduction_replaces_the_schedule_by_its_current_rate():
    falling = fluid.optimizer.SGD(lambda updates_done: 0.8 * 0.5 ** (updates_done // 3))
    assert rates_of([4, 3, 3, 2, 1], falling, patience=1) == [0.8, 0.4, 0.2, 0.05, 0.05]


def test_rate_below_min_lr_stays_without_compilation():
    trainer = make(fluid.optimizer.SGD(0.8))
    handlers = [H.ReduceLROnPlateau("test_loss", patience=1, min_lr=0.9), Scripted([1, 1, 1])]
    trainer.train(reader(), 3, handlers=handlers)
    assert trainer.learning_rate == np.float32(0.8) and len(trainer.session.compilations) == 1


def test_all_rates_of_a_program_are_lowered():
    def program():
        x = fluid.layers.data("x", shape=[4])
        loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(x, size=1) - fluid.layers.data("y", shape=[1])))
        fluid.optimizer.SGD(0.4).minimize(loss, parameter_list=["fc_0.w_0"])
        fluid.optimizer.Adam(0.2).minimize(loss, parameter_list=["fc_0.b_0"])
        return loss

    trainer = fluid.Trainer(program)
    handlers = [H.ReduceLROnPlateau("test_loss", factor=0.5, patience=1), Scripted([1, 1])]
    trainer.train(reader(), 2, handlers=handlers)
    assert trainer.learning_rate == (np.float32(0.2), np.float32(0.1))


def test_resumed_training_lowers_rate_like_uninterrupted_training(tmp_path):
    values = [4, 4, 4, 4, 4, 4, 4]

    def run(folder, epochs):
        config = fluid.CheckpointConfig(tmp_path / folder)
        trainer = make(checkpoint_config=config)
        handlers = [H.ReduceLROnPlateau("test_loss", factor=0.5, patience=2, cooldown=1), Scripted(values)]
        trainer.train(reader(), epochs, handlers=handlers)
        return trainer

    whole = run("whole", 7)
    for epochs in (2, 4, 5, 7):
        cut = run("cut", epochs)
    assert cut.learning_rate == whole.learning_rate == np.float32(0.025)
    assert all(np.array_equal(whole.params[n], v) for n, v in cut.params.items())


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"factor": 1.0}, "between 0 and 1"),
        ({"factor": 0.0}, "between 0 and 1"),
        ({"patience": 0}, "patience=1"),
        ({"cooldown": -1}, "cooldown=0"),
        ({"min_lr": -1.0}, "from 0 on"),
        ({"mode": "least"}, '"min", "max", or "auto"'),
    ],
)
def test_wrong_arguments_raise_argument_error(arguments, match):
    with pytest.raises(errors.ArgumentError, match=match):
        H.ReduceLROnPlateau("loss", **arguments)


def test_unsettable_rate_raises_before_the_first_step():
    trainer = make(optax.sgd(0.1))
    with pytest.raises(errors.UnknownNameError, match="class Mine"):
        trainer.train(reader(), handlers=[H.ReduceLROnPlateau("loss")])
    assert int(trainer.session.scope.step) == 0
