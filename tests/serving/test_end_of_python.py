"""The end of a script without closing its server: it finishes the requests and keeps its exit status."""

import os
import subprocess
import sys

from serving import running_server

FORGETFUL = """
import atexit
import sys
import threading



def at_the_end():
    asking.join()
    print(answers, [t.name for t in threading.enumerate() if t.name.startswith("fluid")])


atexit.register(at_the_end)

import fluid
from fluid.serving.batching import Runner
from serving import running_server

inside, ending = threading.Event(), threading.Event()
run = Runner.run


def stay(runner, jobs):
    inside.set()
    ending.wait()
    return run(runner, jobs)


server = fluid.serve(sys.argv[1], port=0)
Runner.run = stay
answers = []


def ask():
    answers.append(fluid.Inferencer(url=server.url).infer({"image": running_server.IMAGES[:1]})[0].shape)


asking = threading.Thread(target=ask, daemon=True)
asking.start()
inside.wait()
atexit.register(ending.set)
sys.exit(3)
"""


def test_python_ends_after_the_running_model_has_answered(tmp_path):
    path = running_server.save(tmp_path / "digits.fluid", running_server.digits)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", FORGETFUL, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (3, "[(1, 5)] []\n", "")
