"""An OnlineTrainer whose process is killed while clients send: no accepted row is lost, or trained on twice."""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from online import streamed

import fluid
from fluid import errors

# `make soak` kills 200 times.
KILLS = int(os.environ.get("FLUID_ONLINE_KILLS", "4"))
REQUESTS = 12 * KILLS
SCRIPT = pathlib.Path(streamed.__file__)

pytestmark = pytest.mark.slow


class Killed:
    """A server that is killed at some moments, and started again each time.

    Attributes:
      url: of the one that runs now.
      steps: the rows of each step, as the processes said.
      kills: how many have died.
    """

    def __init__(self, folder, environment, moments):
        self.steps = {}
        self.kills = 0
        self._folder = folder
        self._environment = environment
        self._moments = moments
        self._url = None
        self._changed = threading.Condition()
        self._process = None
        self._ending = False
        self._failure = None
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        """Tell the last one to end, as a container does."""
        with self._changed:
            self._moments = []
            self._changed.wait_for(lambda: self._url or not self._thread.is_alive())
            self._ending = True
        self._process.send_signal(signal.SIGTERM)
        self._thread.join()
        if self._failure and not exception[0]:
            raise self._failure

    def url(self):
        """Where it is, as soon as it is there."""
        with self._changed:
            self._changed.wait_for(lambda: self._url or not self._thread.is_alive())
            assert self._url, self._failure
            return self._url

    def _run(self):
        try:
            while not self._ending:
                self._run_once(self._moments.pop(0) if self._moments else None)
        except BaseException as error:
            self._failure = error
        finally:
            with self._changed:
                self._changed.notify_all()

    def _run_once(self, moment):
        """One process, which is killed after some lines and some more seconds, or lives on."""
        command = [sys.executable, str(SCRIPT), str(self._folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._environment) as process:
            self._process = process
            lines = 0
            for line in process.stdout:
                self._hear(line.split())
                lines += 1
                if moment is not None and lines == moment[0]:
                    threading.Timer(moment[1], process.kill).start()
            code = process.wait()
        with self._changed:
            self._url = None
        assert code == (0 if moment is None else -signal.SIGKILL)
        self.kills += code != 0

    def _hear(self, words):
        if words[0] == "url":
            with self._changed:
                self._url = words[1]
                self._changed.notify_all()
        elif words[0] == "step":
            # A step that is done again has the same rows, and none is left out.
            assert int(words[1]) <= len(self.steps)
            assert self.steps.setdefault(int(words[1]), words[2]) == words[2]


@pytest.fixture
def environment(tmp_path_factory):
    # A process that dies while it writes what it has compiled leaves half of it, which is no other test's business.
    compiled = tmp_path_factory.getbasetemp() / "compiled-to-be-killed"
    return {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(compiled), "PYTHONPATH": os.pathsep.join(sys.path)}


def send(server, rows, key):
    """Send until there is an answer, whichever process gives it."""
    while True:
        try:
            return fluid.RemoteTrainer(server.url()).send(rows, key, wait=0)
        except errors.RemoteError:  # it was killed meanwhile; nobody knows whether the rows were accepted
            continue


def test_killed_at_any_moment_every_accepted_row_is_trained_on_once(tmp_path, environment):
    whole = tmp_path / "whole"
    expected = {}
    with streamed.make(whole, [streamed.Digests(lambda said: expected.update([said.split()[1:]]))]) as online:
        positions = [online.send(rows, key) for key, rows in streamed.requests(KILLS, REQUESTS)]
        settle(online)
    rng = np.random.default_rng(KILLS)
    moments = [(int(rng.integers(1, 12)), float(rng.uniform(0, 0.1))) for _ in range(KILLS)]
    killed = tmp_path / "killed"
    with Killed(killed, environment, moments) as server:
        for number, (key, rows) in enumerate(streamed.requests(KILLS, REQUESTS)):
            assert send(server, rows, key) == positions[number]
        until_all_is_trained(server)
    assert server.kills == KILLS
    assert {str(number): rows for number, rows in server.steps.items()} == expected
    assert streamed.bits(killed) == streamed.bits(whole)


def settle(online):
    """Wait until every whole minibatch is trained on."""
    while online.save()["state"] != "waiting":
        pass


def until_all_is_trained(server):
    """Wait until the last process, which nobody kills, has trained on every whole minibatch."""
    while True:
        try:
            if not server._moments and fluid.RemoteTrainer(server.url()).save()["state"] == "waiting":
                return
        except errors.FluidError:
            continue
