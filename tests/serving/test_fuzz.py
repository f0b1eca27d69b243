"""Random requests, rows 47 and 65 of tests/FAULTS.md: servers survive any bytes, in limited memory and time.

Every answer has a status below 500, or 503 or 504. Each server is a separate process, so its memory can be measured.
"""

import contextlib
import json
import os
import pathlib
import random
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request

import pytest
from serving.hostile_requests import Crowd, Message, Models, Neighbour, Rows, floods, head, tensors_of, written
from serving.running_server import digits, save, sentiment

import fluid

pytestmark = pytest.mark.full
# The number of requests to each of the two servers; `make soak` sends more.
REQUESTS = int(os.environ.get("FLUID_REQUESTS", "300"))
SEED = int(os.environ.get("FLUID_SEED", "0"))
# The memory in megabytes that a server may use beyond the memory of the largest valid requests.
MOST = 100
# An answer may take this multiple of the time of the largest valid request, because the machine may be busy.
SLOWER = 10
# The memory in megabytes that unparsed bytes and unread answers may take, `max_pending`.
PENDING = 256
WIDE = 1_000_000
WORD = struct.pack("<q", 1)
ROOT = str(pathlib.Path(fluid.__file__).parents[1])


def wide():
    """Build a model whose largest requests reach the size limits of the server."""
    x = fluid.layers.data("x", shape=[WIDE])
    return {"mean": fluid.layers.reduce_mean(x, dim=1)}


NET = """
import fluid

def program():
    # Clip numbers such as 3e38, whose squares are infinite: the first infinite parameter ends the training.
    x, y = (fluid.layers.clip(fluid.layers.data(n, shape=[s]), -1.0, 1.0) for n, s in (("x", 8), ("y", 1)))
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    pooled = fluid.layers.sequence_pool(fluid.layers.embedding(words, size=[20, 3]), "average")
    guess = fluid.layers.fc([x, pooled], size=1, name="guess")
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(guess, y))}

def optimizer():
    return fluid.optimizer.SGD(1e-3)
"""


class Attacked:
    """A server in a separate process, to which tests send hostile requests.

    Args:
      folder: the working folder of the process, which gets the log.
      arguments: the arguments of `python -m fluid`.
      grammar: the class that generates requests for this kind of server, `Models` or `Rows`.
      ready: the path of the URL that checks if the server is ready.
      token: the access token that the server requires; None without a token.

    Attributes:
      most: the memory limit in megabytes: the peak memory during the largest valid requests, plus the margin MOST.
      longest: the most seconds that an answer may take.
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
        # The process keeps freed memory, so its size is stable only after several large requests.
        for data in 3 * largest(self.drawn(0)):
            start = time.monotonic()
            assert self.ask(data)[0] == 200
            took.append(time.monotonic() - start)
            self.wait()
        self.longest, self.most = SLOWER * max(took), self.memory() + MOST

    def drawn(self, seed):
        """Return an object that generates random requests for this server; `seed` is the seed of the random numbers."""
        return self.grammar(random.Random(seed), self.token)

    def ask(self, data):
        """Send bytes, and return the status and the body of the last answer."""
        found, answer = Crowd(self.address, random.Random(0)).send(Message("asked", data, "answered"))
        return found[-1], answer.partition(b"\r\n\r\n")[2]

    def wait(self):
        """Wait until an OnlineTrainer has at most 1000 untrained rows; for a server of models, return at once."""
        status = head("GET", "/status", self.drawn(0).headers())
        while self.grammar is Rows and json.loads(self.ask(status)[1])["waiting"] > 1000:
            time.sleep(0.05)

    def memory(self):
        """Return the peak memory of the server process, in megabytes, since the last call of `forget`."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) / 1024

    def forget(self):
        """Reset the peak memory of the process to its present memory."""
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
    # The server has a single batch size, because results of different batch sizes differ in the last bits.
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
    """Return the largest requests that a server accepts: as JSON, as bytes, and for rows also in a small datatype."""
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
def test_row_65_expensive_requests_stay_within_memory_and_time(server):
    for name, attack in server.drawn(SEED).attacks().items():
        data = attack()
        server.wait()
        server.forget()
        start = time.monotonic()
        status, answer = server.ask(data)
        seconds = time.monotonic() - start
        assert status < 500, (name, answer)
        assert server.memory() < server.most and seconds < server.longest, (name, server.memory(), seconds)


@pytest.mark.parametrize("flood", floods(0))
def test_row_66_a_flood_on_900_connections(models, flood):
    data = memoryview(floods(250_000)[flood])
    health = head("GET", "/v2/health/live", models.drawn(0).headers())
    models.forget()
    with contextlib.ExitStack() as stack:
        clients = [[stack.enter_context(socket.create_connection(models.address)), data] for _ in range(900)]
        for client, _ in clients:
            client.setblocking(False)
        assert models.ask(health)[0] == 200  # the server accepts connections in order, so it has accepted all by now
        for _ in range(3):
            for each in clients:
                with contextlib.suppress(BlockingIOError, ConnectionError):
                    each[1] = each[1][each[0].send(each[1]) :]
            assert models.ask(health)[0] == 200
    assert models.memory() < models.most + PENDING
    while len(os.listdir(f"/proc/{models.process.pid}/fd")) > 500:
        time.sleep(0.05)  # the server parses what it has received, before it notices that the clients are gone


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
    """Check the answer to a hostile message: the status is allowed, no traceback is sent, the server still runs."""
    told = (SEED, message.kind, message.manner, found, answer[:500], message.data[:1000])
    assert all(status < 500 or status in (503, 504) for status in found), told
    assert message.answers is None or len(found) == message.answers, (message.answers, *told)
    assert message.expected is None or (found and message.expected.issuperset(found)), told
    assert found or message.manner != "answered", told
    assert not re.search(rb"Traceback|site-packages|\.py\b", answer.replace(b"net.py", b"")), told
    assert server.process.poll() is None, server.log()[-5000:]
