"""Rows 47 and 65: whatever comes, servers answer with less than 500, or 503 or 504, do not grow, and go on.

Each server is a process of its own, whose memory is looked at.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import pytest
from serving.hostile_requests import Crowd, Message, Models, Neighbour, Rows, head, tensors_of, written
from serving.running_server import digits, save, sentiment

import fluid

pytestmark = pytest.mark.full
# To each of two servers; `make soak` asks for more.
REQUESTS = int(os.environ.get("FLUID_REQUESTS", "300"))
SEED = int(os.environ.get("FLUID_SEED", "0"))
MOST = 100  # megabytes above what the largest request needs that is answered
SLOWER = 10  # times as long as the largest request that is answered, on a machine that has other things to do
WIDE = 1_000_000
WORD = struct.pack("<q", 1)
ROOT = str(pathlib.Path(fluid.__file__).parents[1])


def wide():
    """A model of which a request may be as large as the limits of the server."""
    x = fluid.layers.data("x", shape=[WIDE])
    return {"mean": fluid.layers.reduce_mean(x, dim=1)}


NET = """
import fluid

def program():
    x, y = fluid.layers.data("x", shape=[8]), fluid.layers.data("y", shape=[1])
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    pooled = fluid.layers.sequence_pool(fluid.layers.embedding(words, size=[20, 3]), "sum")
    guess = fluid.layers.fc([x, pooled], size=1, name="guess")
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(guess, y))}

def optimizer():
    return fluid.optimizer.SGD(1e-3)
"""


class Attacked:
    """A server in a process of its own.

    Args:
      folder: for its files.
      arguments: of `python -m fluid`.
      grammar: of the requests that it reads.
      ready: the path that says so.
      token: that it asks for.

    Attributes:
      most: megabytes that it may have: those of the largest requests that are answered, and MOST.
      longest: seconds that an answer may take.
    """

    def __init__(self, folder, arguments, grammar, ready, token=None):
        self.grammar, self.token = grammar, token
        self._log = folder / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fluid", *arguments, "--port", "0"], cwd=folder, text=True,
                stdout=subprocess.PIPE, stderr=log,
                env=os.environ | {"PYTHONPATH": ROOT, "FLUID_SERVE_TOKEN": token or ""},
            )  # fmt: skip
        self.url = self.process.stdout.readline().strip()
        self.address = urllib.parse.urlsplit(self.url).netloc.split(":")
        while not self._answers(ready):
            assert self.process.poll() is None, self.log()
        self.forget()
        took = []
        for data in 3 * largest(self.drawn(0)):  # what is free by then stays with the process
            start = time.monotonic()
            assert self.ask(data)[0] == 200
            took.append(time.monotonic() - start)
            self.wait()
        self.longest, self.most = SLOWER * max(took), self.memory() + MOST

    def drawn(self, seed):
        """The grammar of its requests, with a seed."""
        return self.grammar(random.Random(seed), self.token)

    def ask(self, data):
        """The status and the body of the answer to bytes."""
        found, answer = Crowd(self.address, random.Random(0)).send(Message("asked", data, "answered"))
        return found[-1], answer.partition(b"\r\n\r\n")[2]

    def wait(self):
        """Wait until a trainer has trained on the rows that it has."""
        status = head("GET", "/status", self.drawn(0).headers())
        while self.grammar is Rows and json.loads(self.ask(status)[1])["waiting"] > 1000:
            time.sleep(0.05)

    def memory(self):
        """The most megabytes that the process had since `forget`."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def forget(self):
        """Start to count memory at the present use."""
        pathlib.Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    def log(self):
        return self._log.read_text()

    def close(self):
        self.process.kill()
        self.process.communicate()

    def _answers(self, path):
        with contextlib.suppress(OSError), urllib.request.urlopen(self.url + path):
            return True


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    files = [str(save(folder / f"{f.__name__}.fluid", f)) for f in (digits, sentiment, wide)]
    # Batches of one size: those of another one have other last bits.
    options = ["--max-batch", "16", "--batch-sizes", "16", "--buckets", "4"]
    with contextlib.closing(Attacked(folder, ["serve", *files, *options], Models, "/v2/health/ready")) as server:
        yield server


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainer")
    (folder / "net.py").write_text(NET)
    arguments = ["net.py:program", "kept", "--optimizer", "net.py:optimizer", "--batch-size", "512"]
    arguments += ["--publish-to", "published", "--fetch", "guess", "--platforms", "cpu"]
    with contextlib.closing(Attacked(folder, ["online", *arguments], Rows, "/health/ready", "secret")) as server:
        yield server


@pytest.fixture
def server(request):
    return request.getfixturevalue(request.param)


def largest(grammar):
    """The largest requests that are answered: as JSON, as bytes, and as small bytes of large numbers."""
    if isinstance(grammar, Models):
        path = "/v2/models/wide/infer"
        tensor = {"name": "x", "datatype": "FP32", "shape": [4, WIDE], "data": [1.5] * 4 * WIDE}
        binary = tensors_of([("x", "FP32", [16, WIDE], bytes(4 * 16 * WIDE))])
        return [grammar.post(path, written({"inputs": [tensor]}).encode()), grammar.encoded(path, (), *binary)]
    line = written({"x": [-0.123456] * 8, "words": [1] * 16, "y": 0.5}) + "\n"
    lines = grammar.post("/rows", line.encode() * 100_000, [("Content-Type", "application/x-ndjson")])
    return [lines, *[grammar.packed(grammar.rows(*sizes)) for sizes in ((90_000, 80, WORD), (16_000, 1024, b"\1"))]]


both = pytest.mark.parametrize("server", ["models", "trainer"], indirect=True)


@both
def test_row_65_no_request_costs_more_than_one_that_is_answered(server):
    for name, attack in server.drawn(SEED).attacks().items():
        data = attack()
        server.wait()
        server.forget()
        start = time.monotonic()
        status, answer = server.ask(data)
        seconds = time.monotonic() - start
        assert status < 500, (name, answer)
        assert server.memory() < server.most and seconds < server.longest, (name, server.memory(), seconds)


@both
def test_row_47_requests_at_random(server):
    same = server.drawn(SEED + 1)
    grammar = server.drawn(SEED)
    neighbour = Neighbour(server.address, [same.repeated() for _ in range(3)])
    neighbour.start()
    server.forget()
    crowd = Crowd(server.address, grammar.rng)
    for _ in range(REQUESTS):
        message = grammar.message()
        check(server, message, *crowd.send(message))
    check(server, Message("those that are left", b""), *crowd.close())
    assert neighbour.stop(), neighbour.wrong
    assert "Traceback" not in server.log(), re.split("(?=Traceback)", server.log())[-1][:5000]
    assert server.memory() < server.most


def check(server, message, found, answer):
    """Fail where an answer is none that a message may have."""
    told = (SEED, message.kind, message.manner, found, answer[:500], message.data[:1000])
    assert all(status < 500 or status in (503, 504) for status in found), told
    assert message.expected is None or (found and message.expected.issuperset(found)), told
    assert found or message.manner != "answered", told
    assert not re.search(rb"Traceback|site-packages|\.py\b", answer.replace(b"net.py", b"")), told
    assert server.process.poll() is None, server.log()[-5000:]
