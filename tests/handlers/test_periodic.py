"""Periodic functions: `every` and `once` call a function at an interval."""

import os
import signal

import numpy as np
import pytest

import fluid
from fluid import errors
from fluid.handlers import every, once

X = np.random.default_rng(0).normal(size=(24, 2)).astype("float32")


def program():
    return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))


def make(folder=None):
    config = None if folder is None else fluid.CheckpointConfig(folder, epoch_interval=None, step_interval=1)
    return fluid.Trainer(program, fluid.optimizer.SGD(0.05), checkpoint_config=config)


def reader():
    return fluid.reader.arrays((X,), batch_size=4)  # an epoch has six minibatches


def noting(seen):
    """Return a function that records the epoch and step of each call."""

    def note(event):
        seen.append((event.epoch, event.step if isinstance(event, fluid.EndStepEvent) else "end"))

    return note


@pytest.mark.parametrize(
    "interval, expected",
    [
        (4, [(0, 3), (1, 1), (1, 5), (2, 3)]),
        ("9 steps", [(1, 2), (2, 5)]),
        ("epoch", [(0, "end"), (1, "end"), (2, "end")]),
        ("2 epochs", [(1, "end")]),
        (100, []),
    ],
)
def test_every_and_once_call_at_their_interval(interval, expected):
    always, first = [], []
    handlers = [every(interval)(noting(always)), once(interval)(noting(first))]
    make().train(reader(), 3, handlers=handlers)
    assert always == expected and first == expected[:1]


def test_the_handler_has_the_trainer():
    @every(6)
    def halve(event):
        halve.trainer.learning_rate = halve.trainer.learning_rate / 2

    trainer = make()
    trainer.train(reader(), 3, handlers=[halve])
    assert trainer.learning_rate == pytest.approx(0.05 / 8)


def test_once_runs_once_per_training_despite_interrupts():
    seen = []
    handler = once(4)(noting(seen))

    def interrupt(event):
        if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == (1, 0):
            os.kill(os.getpid(), signal.SIGINT)

    trainer, data = make(), reader()
    with pytest.raises(KeyboardInterrupt):
        trainer.train(data, 3, interrupt, handlers=[handler])
    trainer.train(data, 3, handlers=[handler])
    assert seen == [(0, 3)] and int(trainer.session.scope.step) == 18
    trainer.train(data, 1, handlers=[handler])
    make().train(data, 1, handlers=[handler])
    # Each entry of `seen` is a call of the handler, `(epoch, step)`. The second call came at the 20th step of the first
    # Trainer, the third call at the fourth step of another Trainer.
    assert seen == [(0, 3), (0, 1), (0, 3)]


def test_once_runs_once_over_resumed_processes(tmp_path):
    seen = []

    def fail(event):
        if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == (1, 0):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make(tmp_path).train(reader(), 3, fail, handlers=[once(4)(noting(seen))])
    make(tmp_path).train(reader(), 3, handlers=[once(4)(noting(seen))])
    assert seen == [(0, 3)]


@pytest.mark.parametrize("kind", [every, once])
def test_wrong_arguments_raise_named_errors(kind):
    name = kind.__name__
    for interval in (0, "minute", noting([])):
        with pytest.raises(errors.ArgumentError, match=rf"fluid.handlers.{name}\(.*write {name}\(100\)\(function\)"):
            kind(interval)
    with pytest.raises(errors.ArgumentTypeError, match=rf"{name}\(5\) takes a function of one event, found 7"):
        kind(5)(7)
    with pytest.raises(errors.ArgumentTypeError, match=r"the function <lambda>\(\) cannot be called with one event"):
        kind(5)(lambda: None)
