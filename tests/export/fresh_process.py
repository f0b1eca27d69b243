"""A process without program functions: it loads exported models and sends their answers to the tests."""

import base64
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np


def packed(results):
    """Return the dtype, shape and content of every array in `results`, as a list that JSON can hold."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(list(results))]
    return [[str(a.dtype), list(a.shape), base64.b64encode(a.tobytes()).decode()] for a in arrays]


def unpacked(found):
    """Return the arrays that `packed` has encoded as a list of JSON values."""
    return [np.frombuffer(base64.b64decode(data), jnp.dtype(dtype)).reshape(shape) for dtype, shape, data in found]


class Fresh:
    """A client of a fresh Python process, which loads exported models: it sends feeds and receives outputs."""

    def __init__(self, process):
        self._process = process

    def infer(self, path, feeds, entry=None, fetch=None, seed=None):
        """Return the results of an exported model, computed by the process, and the number of its compilations.

        The results are a list of arrays for each feed.
        """
        question = {"path": str(path), "feeds": feeds, "entry": entry, "fetch": fetch, "seed": seed}
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process has ended"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return [unpacked(found) for found in answer["answers"]], answer["compilations"]


@contextlib.contextmanager
def started():
    """Start a process that runs exported models, in an empty folder without user modules; yield its client."""
    root = pathlib.Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen(
            [sys.executable, __file__], cwd=folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": str(root)},
        )  # fmt: skip
        with process:
            yield Fresh(process)
            process.stdin.close()


def answer(question):
    """Load the model that a JSON request names; return its outputs for the feeds, and its number of compilations."""
    import fluid

    inferencer = fluid.Inferencer(param_path=question["path"], entry=question["entry"], seed=question["seed"])
    found = [packed(inferencer.infer(feed, question["fetch"])) for feed in question["feeds"]]
    return {"answers": found, "compilations": len(inferencer.session.compilations)}


if __name__ == "__main__":
    sys.path.pop(0)  # without the folder of this file, this process cannot import the exported programs
    for line in sys.stdin:
        try:
            print(json.dumps(answer(json.loads(line))), flush=True)
        except Exception as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    assert not {"golden_cases", "export.programs", "sklearn"} & sys.modules.keys()
