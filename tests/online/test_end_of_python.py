"""Scripts that end without closing their OnlineTrainer: training resumes as after a kill; the exit status is kept."""

import os
import subprocess
import sys

from online import trainer_of_stream

import fluid

FORGETFUL = """
import atexit
import itertools
import os
import sys
import threading

atexit.register(lambda: print([t.name for t in threading.enumerate() if t.name.startswith("fluid")]))

import fluid
from online import trainer_of_stream

reached, ending = threading.Event(), threading.Event()


class Stay(fluid.Handler):
    def begin_step(self, event):
        if event.step == 5:
            reached.set()
            ending.wait()


online = trainer_of_stream.make(sys.argv[1], [Stay()], trainer_of_stream.program)
online.start()
for key, rows in itertools.islice(trainer_of_stream.requests(0), 20):
    online.send(rows, key=key)
reached.wait()
while not os.path.isdir(f"{sys.argv[1]}/checkpoints/4"):  # begun at step 4
    pass
atexit.register(ending.set)
sys.exit(3)
"""


def test_training_resumes_exactly_after_an_abrupt_exit(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FORGETFUL, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (3, "[]\n", "")
    requests = trainer_of_stream.requests(0)
    minibatches = trainer_of_stream.divided([row for _ in range(20) for row in next(requests)[1]])
    assert len(minibatches) > 6
    with trainer_of_stream.make(tmp_path, function=trainer_of_stream.program) as online:
        while (status := online.save())["steps"] < len(minibatches):
            pass
    assert status["steps"] == len(minibatches)
    whole = trainer_of_stream.trainer()
    whole.train(minibatches, progress=False)
    ended = trainer_of_stream.trainer(checkpoint_config=fluid.CheckpointConfig(tmp_path / "checkpoints"))
    assert trainer_of_stream.state(ended) == trainer_of_stream.state(whole)
