"""A value that a handler or `keep_best` waits for, and that is never measured, or never finite, is said at the end."""

import warnings

import numpy as np
import pytest

import fluid
from fluid import errors

H = fluid.handlers
ROWS = np.linspace(-1, 1, 16, dtype="float32").reshape(8, 2)
STEPS_OF_EPOCH = 4


def reader():
    return fluid.reader.arrays((ROWS,), batch_size=2)


def program():
    loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)))
    return {"loss": loss, "score": loss, "lost": loss * 0 + np.float32("nan")}


class Reports(fluid.Handler):
    """A handler that reports the values of `by_step` as "mine", by number of completed steps."""

    def __init__(self, **by_step):
        self.by_step = {int(name[2:]): value for name, value in by_step.items()}

    def measures(self):
        return ["mine"]

    def end_step(self, event):
        if self.done in self.by_step:
            self.announce(event.epoch, event.step, {"mine": self.by_step[self.done]})


def best(monitor, folder):
    return {"checkpoint_config": fluid.CheckpointConfig(folder / "c", step_interval=2, keep_best=(monitor, "min"))}


# Each entry makes a follower of the value: the options of the Trainer, and the handlers.
FOLLOWERS = {
    "EarlyStopping": lambda value, folder: ({}, [H.EarlyStopping(value, mode="min", patience=50)]),
    "ReduceLROnPlateau": lambda value, folder: ({}, [H.ReduceLROnPlateau(value, mode="min", patience=50)]),
    "SaveBest": lambda value, folder: ({}, [H.SaveBest(folder / "best.params", value, "min")]),
    "keep_best": lambda value, folder: (best(value, folder), []),
}


def train(follower, folder, value="mine", num_epochs=2, **reported):
    options, handlers = FOLLOWERS[follower](value, folder)
    mine = fluid.Trainer(program, fluid.optimizer.SGD(0.1), **options)
    mine.train(reader(), num_epochs=num_epochs, handlers=[Reports(**reported), *handlers])
    return mine


@pytest.mark.parametrize("follower", FOLLOWERS)
def test_value_that_is_never_measured_is_said(follower, tmp_path):
    with pytest.warns(
        errors.FluidWarning, match=f"{follower}.* follows 'mine', which was not measured once in .*8 steps"
    ):
        train(follower, tmp_path)


@pytest.mark.parametrize("follower", FOLLOWERS)
@pytest.mark.parametrize("value", ["mine", "lost"])
def test_value_that_is_never_finite_is_said(value, follower, tmp_path):
    said = f"{follower}.* follows '{value}', which was NaN or infinite each time .* 8 steps"
    with pytest.warns(errors.FluidWarning, match=said):
        train(follower, tmp_path, value, at3=float("nan"), at6=float("-inf"))


@pytest.mark.parametrize("follower", FOLLOWERS)
def test_one_finite_value_is_enough(follower, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(follower, tmp_path, at3=float("nan"), at6=0.5)


@pytest.mark.parametrize("follower", FOLLOWERS)
def test_finite_output_of_the_program_is_not_blamed(follower, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(follower, tmp_path, "score")


def test_early_stop_by_nan_alone_is_said():
    stopping = H.EarlyStopping("lost", mode="min", patience=2)
    mine = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    with pytest.warns(errors.FluidWarning, match=r"EarlyStopping follows 'lost'.* NaN .* 8 steps"):
        mine.train(reader(), num_epochs=10, handlers=[stopping])


def test_second_call_of_train_knows_the_first():
    stopping = H.EarlyStopping("mine", mode="min", patience=50)
    mine = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    handlers = [Reports(at2=1.0), stopping]
    for _ in range(2):
        mine.train(reader(), handlers=handlers)
    assert stopping.best == 1.0


def test_keep_best_of_an_untrained_program_is_said(tmp_path):
    def other():
        return {"error": fluid.layers.mean(fluid.layers.fc(fluid.layers.data("z", shape=[2]), size=1, name="other"))}

    config = fluid.CheckpointConfig(tmp_path, keep_best=("other/error", "min"))
    mine = fluid.Trainer(
        [program, other], fluid.optimizer.SGD(0.1), checkpoint_config=config, schedule=lambda step: "program"
    )
    said = "keep_best.* follows 'other/error', which was not measured once"
    with pytest.warns(errors.FluidWarning, match="gave no step to it"), pytest.warns(errors.FluidWarning, match=said):
        mine.train({"program": reader(), "other": reader()})


@pytest.mark.parametrize("every", [9, "3 epochs"])
def test_logger_whose_interval_never_ends_is_said(every, tmp_path):
    logger = H.CSVLogger(tmp_path / "log.csv", every=every)
    mine = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    said = f"CSVLogger records the mean over {every if isinstance(every, str) else '9 steps'}, which was not measured"
    with pytest.warns(errors.FluidWarning, match=said):
        mine.train(reader(), num_epochs=2, handlers=[logger])
    assert len((tmp_path / "log.csv").read_text().split()) == 1
    mine.train(reader(), num_epochs=1, handlers=[H.CSVLogger(tmp_path / "other.csv", every=4)])


def test_a_stopped_or_resumed_training_is_not_blamed(tmp_path):
    def stop(event):
        if isinstance(event, fluid.EndStepEvent) and event.step == 1:
            mine.stop()

    def made():
        config = fluid.CheckpointConfig(tmp_path / "c")
        return fluid.Trainer(program, fluid.optimizer.SGD(0.1), checkpoint_config=config)

    for event_handler in (stop, None):
        mine = made()
        mine.train(reader(), handlers=[H.CSVLogger(tmp_path / "log.csv", every=9)], event_handler=event_handler)
    assert int(mine.session.scope.step) == STEPS_OF_EPOCH
