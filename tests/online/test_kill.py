"""An OnlineTrainer that is killed while a client sends rows: no accepted row is lost or trained on twice."""

import os
import pathlib
import signal
import sys
import threading

import forked
import numpy as np
import pytest
from online import trainer_of_stream

import fluid
from fluid import errors

# The number of kills; `make soak` sets 200.
KILLS = int(os.environ.get("FLUID_ONLINE_KILLS", "4"))
SCRIPT = pathlib.Path(trainer_of_stream.__file__)
AHEAD = 60  # the client waits while the server has this number of untrained rows

pytestmark = pytest.mark.full


class Killed:
    """A server that is killed at given moments, and restarted each time.

    Args:
      folder: the folder of the OnlineTrainer.
      environment: the environment variables of the processes.
      moments: a pair for each process to kill. `((lines, seconds), None)` kills the process `seconds` after it has
        printed a number of lines. `(None, requests)` kills the process when it has accepted a number of requests,
        before it can respond to the last request.

    Attributes:
      steps: the checksum of the rows of each step, as printed by the processes.
      kills: the number of killed processes.
    """

    def __init__(self, folder, environment, moments):
        self.steps = {}
        self.kills = 0
        self._folder = folder
        self._environment = environment
        self._moments = list(moments)
        self._url = None
        self._process = None
        self._failure = None
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exception):
        """End the last process with SIGTERM, as a container does."""
        self._moments.clear()
        self.wait(lambda: self._url)
        self._process.send_signal(signal.SIGTERM)
        self._thread.join()
        if self._failure and not exception[0]:
            raise self._failure

    def wait(self, until):
        """Wait until `until()` returns a true value, and return this value; fail if no process runs any more."""
        with self._changed:
            self._changed.wait_for(lambda: until() or not self._thread.is_alive())
            assert until(), self._failure
            return until()

    def send(self, rows, key):
        """Send rows to a server, again whenever it was killed, until a process responds; return the response."""
        while True:
            try:
                return fluid.RemoteTrainer(self.wait(lambda: self._url)).send(rows, key, wait=0)
            except errors.RemoteError:  # the server was killed, perhaps after it accepted the rows
                continue

    def _run(self):
        try:
            for moment in [*self._moments, None]:
                self._run_once(moment)
        except BaseException as error:
            self._failure = error
        finally:
            with self._changed:
                self._changed.notify_all()

    def _run_once(self, moment):
        """Run a server process until it is killed at `moment`; if `moment` is None, until SIGTERM ends it."""
        after, accepted = moment or (None, None)
        command = [SCRIPT, self._folder, *([accepted] if accepted else [])]
        with forked.Process(*command, stderr=None, env=self._environment) as process:
            self._process = process
            for number, line in enumerate(process.stdout, 1):
                if after is not None and number == after[0]:
                    threading.Timer(after[1], process.kill).start()
                self._hear(line.split())
            code = process.wait()
        with self._changed:
            self._url = None
            self.kills += code == -signal.SIGKILL
            self._changed.notify_all()
        assert code == (0 if moment is None else -signal.SIGKILL)

    def _hear(self, words):
        with self._changed:
            if words[0] == "url":
                self._url = words[1]
            elif words[0] == "step":
                # After a kill, a step that runs again has the same rows, and no step is skipped.
                assert int(words[1]) <= len(self.steps)
                assert self.steps.setdefault(int(words[1]), words[2]) == words[2]
            self._changed.notify_all()


@pytest.fixture
def environment():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def test_row_48_killed_trainers_train_each_accepted_row_once(tmp_path, environment):
    rng = np.random.default_rng(KILLS)
    after = [(int(rng.integers(1, 12)), float(rng.uniform(0, 0.1))) for _ in range(KILLS)]
    accepted = rng.integers(1, 5, KILLS).tolist()
    moments = [(None, accepted[i]) if i % 3 == 1 else (after[i], None) for i in range(KILLS)]
    sent = []
    with Killed(tmp_path, environment, moments) as server:
        requests = trainer_of_stream.requests(KILLS)
        while server.kills < KILLS:
            key, rows = next(requests)
            assert server.send(rows, key) == len(sent)
            sent.extend(rows)
            server.wait(lambda: server.kills == KILLS or len(sent) - 5 * len(server.steps) < AHEAD)
        minibatches = trainer_of_stream.divided(sent)
        server.wait(lambda: len(server.steps) == len(minibatches))

    expected = []
    whole = trainer_of_stream.trainer()
    whole.train(minibatches, handlers=[trainer_of_stream.Digests(expected.append)], progress=False)
    assert [f"step {number} {rows}" for number, rows in server.steps.items()] == expected
    killed = trainer_of_stream.trainer(checkpoint_config=fluid.CheckpointConfig(tmp_path / "checkpoints"))
    assert trainer_of_stream.state(killed) == trainer_of_stream.state(whole)
