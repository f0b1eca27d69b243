"""Data wait: the time that training waits for data, measured with a clock that the test sets."""

import logging
import time

import numpy as np
import pytest

import fluid
from fluid.trainer.losses import Losses

READING = 3.0
STEP = 1.0


class Clock:
    """A clock that advances only when a test sets it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    return clock


@pytest.fixture(scope="module")
def trainer():
    def program():
        return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))

    return fluid.Trainer(program, fluid.optimizer.SGD(0.1))


class Works(fluid.Handler):
    """A handler that advances the clock of the test in each step, and records epoch ends and announced values."""

    def __init__(self, clock):
        self.clock = clock
        self.ends = []
        self.announced = []

    def end_step(self, event):
        self.clock.now += STEP

    def end_epoch(self, event):
        self.ends.append(event)

    def measured(self, event):
        self.announced.append(dict(zip(event.metrics.names, event.metrics, strict=True)))


def trained(trainer, clock, seconds, steps=4):
    def reader():
        for _ in range(steps):
            clock.now += seconds
            yield {"x": np.ones((2, 2), "float32")}

    works = Works(clock)
    trainer.train(reader, num_epochs=2, handlers=[fluid.handlers.Timer(every=4), works])
    return works


@pytest.mark.parametrize("idle", [True, False])
def test_epoch_end_reports_the_data_wait(trainer, clock, monkeypatch, caplog, idle):
    monkeypatch.setattr(Losses, "idle", idle)
    with caplog.at_level(logging.INFO, "fluid"):
        works = trained(trainer, clock, READING)
    assert [(end.data_wait, end.seconds) for end in works.ends] == [(4 * READING * idle, 4 * (READING + STEP))] * 2
    assert works.ends[1].feeding == ("75% of the time waiting for data" if idle else "")
    assert ("epoch 1: 75% of the time waiting for data" in caplog.messages) == idle
    (times,) = works.announced[-1:]
    assert times["data_ms"] == 1000 * READING
    assert times["data_wait_ms"] == (1000 * READING if idle else 0.0)


@pytest.mark.parametrize("seconds, steps", [(0.1, 20), (0.3, 3)], ids=["a small part", "a short time"])
def test_short_data_wait_is_not_reported(trainer, clock, monkeypatch, seconds, steps):
    monkeypatch.setattr(Losses, "idle", True)
    works = trained(trainer, clock, seconds, steps)
    assert works.ends[1].data_wait == pytest.approx(seconds * steps)
    assert works.ends[1].feeding == ""


def test_quick_readings_are_not_counted_twice(trainer, clock, monkeypatch):
    """Check that the reported time of waiting for data counts each read at most once, even if the reads are short."""
    monkeypatch.setattr(Losses, "idle", True)
    works = trained(trainer, clock, 0.01, steps=40)
    waited = sum(end.data_wait for end in works.ends)
    assert 0.5 * 80 * 0.01 < waited <= 80 * 0.01 + 1e-9
