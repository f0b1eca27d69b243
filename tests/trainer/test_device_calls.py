"""Calls of the device with several steps: the next feeds are copied while the device computes the current call."""

import numpy as np
import pytest
from resumed_programs import X, Y, assert_equal, state, trainer

import fluid
from fluid.place import OneDevice
from fluid.runtime import CompiledStep
from fluid.runtime.results import StepResults
from fluid.trainer.evaluation.means import Means

pytestmark = pytest.mark.usefixtures("optimized")


def columns(on_device=False):
    """Return a reader of 11 minibatches: ten of 4 rows, and a last one of 3 rows."""
    return fluid.reader.arrays((X[:43], Y[:43]), batch_size=4, on_device=on_device)


class Cadence(fluid.Handler):
    """A handler that limits the steps of each device call, records the losses, and sets the feed of some steps to zero.

    Args:
      ahead: the maximum number of steps of each call, in order; 100 after the end of the list.
      override: the numbers of the steps whose feed `x` becomes zero, counted from 0 over all epochs.
    """

    def __init__(self, ahead=(), override=()):
        self._ahead = list(ahead)
        self._override = override
        self._until = 0
        self.losses = []

    def steps_ahead(self):
        if not self._ahead:
            return 100
        if self.done >= self._until:
            self._until = self.done + self._ahead.pop(0)
        return self._until - self.done

    def begin_step(self, event):
        if self.done in self._override:
            event.override({"x": np.zeros(event.feed["x"].shape, "float32")})

    def end_step(self, event):
        self.losses.append(float(event.metrics["loss"]))


@pytest.mark.parametrize("on_device", [False, True])
def test_next_feeds_are_placed_before_the_steps_end(on_device, monkeypatch):
    told = []
    place, run = OneDevice.place, CompiledStep.__call__

    def placing(self, value):
        told.append("number" if isinstance(value, np.int32) else "feeds")
        return place(self, value)

    def calling(self, feed, *given, count=None):
        told.extend([] if count is None else [count])
        return run(self, feed, *given, count=count)

    monkeypatch.setattr(CompiledStep, "__call__", calling)
    made = trainer(steps_per_dispatch=4)
    reader = columns(on_device)
    made.train(reader)  # the first training copies an on-device data set to the device
    told.clear()
    monkeypatch.setattr(OneDevice, "place", placing)
    made.train(reader, handlers=[Told(told)])
    first = ["feeds", "number", 4, "feeds", *["end"] * 4]
    assert told == [*first, 4, "feeds", *["end"] * 4, "number", 2, "end", "end", "end"]


class Told(fluid.Handler):
    def __init__(self, told):
        self._told = told

    def steps_ahead(self):
        return 100

    def end_step(self, event):
        self._told.append("end")


@pytest.mark.parametrize("on_device", [False, True])
@pytest.mark.parametrize(
    "ahead, override", [((4, 2, 4, 1), ()), ((2, 4, 3, 4), ()), ((4, 4), (4,)), ((3, 1, 4), (3, 8))]
)
def test_placed_but_unneeded_minibatches_are_not_fed(ahead, override, on_device):
    def run(together):
        seen = Cadence(ahead, override)
        made = trainer(steps_per_dispatch=together)
        made.train(columns(on_device), 2, handlers=[seen])
        return seen.losses, state(made)

    losses, left = run(1)
    found = run(4)
    assert found[0] == losses
    assert_equal(found[1], left)


class Work:
    """A fake device array with the losses of several steps; `done` is True if the device has computed the losses."""

    def __init__(self, losses, done=False):
        self._losses = losses
        self.done = done

    def __array__(self, dtype=None, copy=None):
        return self._losses

    def is_ready(self):
        return self.done


def test_means_are_computed_while_the_device_works():
    """Check that losses are read while the device works; an idle device gets its next call first, up to a limit."""
    losses = np.random.default_rng(0).normal(size=(20, 50)).astype("float32")
    program = fluid.Program(lambda: fluid.layers.mean(fluid.layers.data("x", shape=[2])))

    def gathered(idle):
        means, waiting = Means(program), []
        for row in losses:
            work = Work(row, idle)
            for number, (metrics, *_) in enumerate(StepResults(([work], (), ()), ["loss"], count=50)):
                work.done = idle or number == 49
                means.add(metrics, examples=1)
                waiting.append(len(means._unread))
        assert means.read()["loss"] == pytest.approx(losses.astype("float64").mean(), rel=1e-12)
        return np.reshape(waiting, losses.shape)

    busy = gathered(idle=False)
    assert (np.diff(busy)[:, -1] == 1).all() and busy.max() <= 90
    assert 90 < gathered(idle=True).max() < 130
