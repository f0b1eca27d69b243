"""Training without updates: warnings of accumulated gradients that are never used, and of a rate that stays 0."""

import warnings

import numpy as np
import pytest

import fluid
from fluid import errors
from fluid.optimizer import SGD, Adam

X = np.ones((40, 2), "float32")


def program():
    return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)))


def reader():
    return fluid.reader.arrays(X, batch_size=4)  # an epoch has ten steps


def complaints(optimizer, *calls, build=fluid.Trainer, **options):
    trainer = build(program, optimizer)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for epochs in calls:
            trainer.train(reader(), epochs, **options)
    return [str(warning.message) for warning in found if issubclass(warning.category, errors.FluidWarning)]


@pytest.mark.parametrize("epochs", [1, 3])
def test_accumulation_longer_than_training_is_warned_of(epochs):
    (found,) = complaints(Adam(0.1, accumulate_steps=64), epochs)
    assert f"accumulate_steps=64 makes one update of 64 steps, found {10 * epochs} steps" in found
    assert f"write accumulate_steps={10 * epochs // 4}, or" in found


def population(function, optimizer):
    return fluid.Population(function, optimizer, size=2)


@pytest.mark.parametrize("build", [fluid.Trainer, population])
def test_schedule_length_in_epochs_is_warned_of(build):
    (found,) = complaints(SGD(fluid.layers.warmup_cosine(0.1, warmup_steps=1, total_steps=4)), 4, build=build)
    assert "0 for most of the 10 steps so far, and stays 0" in found
    assert "an epoch has 10 steps" in found and "step_each_epoch=10, epochs=4" in found


def test_schedule_ending_within_training_is_warned_of():
    (found,) = complaints(SGD(fluid.layers.polynomial_decay(0.1, decay_steps=12, end_learning_rate=0.0)), 4)
    assert "0 for most of the 40 steps so far" in found


@pytest.mark.parametrize(
    ("optimizer", "calls"),
    [
        (Adam(0.1, accumulate_steps=10), [1]),
        (Adam(0.1, accumulate_steps=16), [2]),
        (Adam(0.1, accumulate_steps=16), [4, 1]),
        (SGD(fluid.layers.warmup_cosine(0.1, warmup_steps=10, total_steps=40)), [4]),
        (SGD(fluid.layers.warmup_cosine(0.1, warmup_steps=10, total_steps=21), accumulate_steps=2), [4]),
        (SGD(fluid.layers.polynomial_decay(0.1, decay_steps=30, end_learning_rate=0.0)), [4]),
        (SGD(fluid.layers.piecewise_decay([15], [0.0, 0.1])), [3]),  # the rate is 0 for the first 15 steps only
        (SGD(fluid.layers.linear_lr_warmup(0.1, warmup_steps=1000, start_lr=0.0, end_lr=0.1)), [1, 1]),
        (SGD(0.0), [2]),
    ],
)
def test_ordinary_trainings_are_not_complained_of(optimizer, calls):
    assert complaints(optimizer, *calls) == []


def test_set_rate_replaces_the_schedule_without_warning():
    trainer = fluid.Trainer(program, SGD(fluid.layers.warmup_cosine(0.1, warmup_steps=1, total_steps=2)))
    trainer.learning_rate = 0.1
    trainer.train(reader(), 2)


def test_accumulation_in_a_custom_loop_is_warned_of():
    def minimizing():
        loss = program()
        Adam(0.1, accumulate_steps=64).minimize(loss)
        return loss

    session = fluid.Session(minimizing)
    feeds = fluid.reader.prefetch(reader(), session)
    with (
        pytest.warns(errors.FluidWarning, match="accumulate_steps=64 makes one update"),
        fluid.Loop(session, feeds, num_epochs=2) as loop,
    ):
        for feed in loop:
            loop.step(feed)


@pytest.mark.parametrize("build", [fluid.Trainer, population])
def test_a_loss_that_does_not_fall_is_logged(build, caplog):
    # With the rate 0.35, each step goes more than twice as far as the minimum, so the loss does not fall.
    for rate, said in [(0.01, 0), (0.35, 1)]:
        build(program, SGD(rate)).train(reader(), 3)
        found = [record.getMessage() for record in caplog.records if "did not fall" in record.getMessage()]
        assert len(found) == said
    assert "the loss did not fall in 3 epochs" in found[0] and "fluid.find_learning_rate" in found[0]


def test_flat_loss_of_two_epochs_is_not_logged(caplog):
    fluid.Trainer(program, SGD(0.35)).train(reader(), 2)
    assert "did not fall" not in caplog.text
