"""Results of short calls are asked for, those of long ones are waited for asleep; with a clock that the test moves."""

import os
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

import fluid
from fluid.runtime.spin_wait import Threads, soon


class Device:
    """Computes for some microseconds of its own clock, which a look at it moves by one, and sleep by all and 50 more.

    Attributes:
      takes: how long the next call computes, in microseconds.
      asked: how often somebody asked whether the last call is done.
      slept: how often somebody slept until one was.
      gave_way: how often other threads were let run.
    """

    def __init__(self):
        self.now = 0.0
        self.takes = 0.0
        self.asked = 0
        self.slept = 0
        self.gave_way = 0
        self._done = 0.0

    def clock(self):
        return self.now * 1e-6

    def run(self, *arguments):
        self.asked = self.slept = self.gave_way = 0
        self._done = self.now + self.takes
        return types.SimpleNamespace(values=[self, *arguments])

    def is_ready(self):
        self.asked += 1
        self.now += 1
        return self.now >= self._done

    def fetch(self, found):
        if self.now < self._done:
            self.slept += 1
            self.now = self._done + 50
        return found.values[1:]

    def give_way(self):
        self.gave_way += 1


@pytest.fixture
def device():
    return Device()


@pytest.fixture
def threads():
    return Threads()


@pytest.fixture
def call(device, threads):
    return soon(device.run, device.fetch, device.clock, device.give_way, threads)


def test_results_are_asked_for_once_a_call_was_short(device, call):
    device.takes = 100
    call()
    assert device.slept == 1
    began = device.now
    call()
    assert (device.slept, device.asked, device.gave_way) == (0, 100, 99)
    assert device.now - began == 100  # and none of the 50 microseconds in which a thread wakes up


def test_long_calls_are_waited_for_asleep_until_one_is_short_again(device, call):
    device.takes = 100
    call()
    device.takes = 10_000
    call()
    assert (device.slept, device.asked) == (1, 500)
    call()
    assert (device.slept, device.asked) == (1, 0)
    device.takes = 100
    call()
    assert device.slept == 1
    call()
    assert (device.slept, device.asked) == (0, 100)


def test_what_is_done_at_once_is_not_waited_for(device, call):
    for _ in range(3):
        call()
        assert (device.slept, device.gave_way) == (0, 0)


def test_two_threads_at_a_time_sleep_for_a_while(device, threads, call):
    device.takes = 100
    call()
    with threads.first:  # as if another thread were in a call
        call()
        assert device.slept == 1
    call()
    assert device.slept == 1
    device.now += 100_000
    call()
    assert device.slept == 0


def test_all_models_share_what_is_known_of_threads(device, threads):
    calls = [soon(device.run, device.fetch, device.clock, device.give_way, threads) for _ in range(2)]
    device.takes = 100
    for call in calls:
        call()
    with threads.first:
        calls[0]()
    calls[1]()
    assert device.slept == 1


def test_without_a_way_to_let_others_run_nothing_is_asked(device):
    call = soon(device.run, device.fetch, device.clock, None)
    device.takes = 100
    for _ in range(2):
        assert call(1, "two") == [1, "two"]
        assert (device.slept, device.asked) == (1, 0)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not say on which cores one runs")
def test_on_one_core_nothing_is_asked():
    code = "import os; os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:1])\n"
    code += "from fluid.runtime.spin_wait import soon; "
    code += "call = soon(lambda: [1], lambda values: values + [2]); print(call(), call())"  # 1 cannot be asked
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[1, 2] [1, 2]"


def test_a_call_that_cannot_be_fetched_leaves_others_as_they_were(device, threads):
    def fail(values):
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        soon(device.run, fail, device.clock, device.give_way, threads)()
    assert not threads.first.locked()


def test_arguments_and_results_pass_as_they_are(call):
    assert call(1, "two") == [1, "two"]


def test_an_inferencer_asks_for_what_a_cpu_computes(monkeypatch):
    asked = []

    def noted(run, fetch):
        return lambda feeds: asked.append(feeds) or fetch(run(feeds))

    monkeypatch.setattr("fluid.runtime.prediction.soon", noted)

    def double():
        return fluid.layers.data("x", shape=[3]) * 2.0

    inferencer = fluid.Inferencer(double, params={})
    x = np.ones((2, 3), "float32")
    for _ in range(3):
        np.testing.assert_array_equal(inferencer.infer({"x": x})[0], 2 * x)
    assert jax.default_backend() != "cpu" or len(asked) == 2
