"""Models for tests of a server, and functions that send raw bytes or JSON to a server."""

import contextlib
import json
import socket
import threading
import urllib.parse

import jax
import numpy as np

import fluid

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(40, 1, 8, 8)).astype("float32")
WORDS = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]


def digits():
    image = fluid.layers.data("image", shape=[1, 8, 8])
    hidden = fluid.layers.fc(image, size=8, act="relu", name="hidden")
    return fluid.layers.fc(hidden, size=5, act="softmax", name="guess")


def sentiment():
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    embedded = fluid.layers.embedding(words, size=[10, 4])
    states = fluid.layers.fc(embedded, size=3, act="tanh")
    return {"score": fluid.layers.sequence_pool(states, "sum"), "states": states}


def nested():
    text = fluid.layers.data("text", shape=[1], dtype="int64", lod_level=2)
    inner = fluid.layers.sequence_pool(fluid.layers.embedding(text, size=[10, 4]), "sum")
    return {"sums": inner, "all": fluid.layers.sequence_pool(inner, "sum")}


def centered():
    """Build a model in which the result of each row depends on all rows."""
    x = fluid.layers.data("x", shape=[1])
    return {"centered": x - jax.numpy.mean(x, axis=0)}


def any_size():
    """Build a model with an input of any number of columns, which the server does not pad."""
    x = fluid.layers.data("x", shape=[-1, -1], append_batch_size=False)
    return {"sum": fluid.layers.reduce_sum(x, dim=1)}


def params_of(function, seed=0):
    return {n: np.asarray(v) for n, v in fluid.Session(function, seed=seed).params().items()}


def save(path, function, seed=0):
    """Export a program with the initial parameters of a seed; only for the CPU, which saves time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fluid.io.save_inference_model(path, function, params_of(function, seed), platforms=["cpu"])
    return path


def same(first, second):
    """Return True if two results have equal dtypes and equal bits."""
    pairs = zip(jax.tree.leaves(list(first)), jax.tree.leaves(list(second)), strict=True)
    return all(np.asarray(a).tobytes() == np.asarray(b).tobytes() and a.dtype == b.dtype for a, b in pairs)


@contextlib.contextmanager
def connected(server):
    """Connect to a server, and yield the socket."""
    address = urllib.parse.urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=20) as connection:
        yield connection


def raw(server, data, close=False):
    """Send bytes to the server; return the status and the body of the answer.

    The status is None if no answer comes. With `close`, the sending side of the connection is closed after the bytes.
    """
    with connected(server) as connection:
        connection.sendall(data)
        if close:
            connection.shutdown(socket.SHUT_WR)
        return read_answer(connection)


def read_answer(connection):
    """Return the status and the body of an answer; the status is None if the connection closed without an answer."""
    found = b""
    try:
        while b"\r\n\r\n" not in found:
            chunk = connection.recv(65536)
            if not chunk:
                return None, found
            found += chunk
        head, _, body = found.partition(b"\r\n\r\n")
        length = next(int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        while len(body) < length and (chunk := connection.recv(65536)):
            body += chunk
    except ConnectionError:
        return None, found
    return int(head.split()[1]), body


def post(path, body, *headers, length=None):
    """Return the bytes of a POST request; `length` replaces the true Content-Length."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body) if length is None else length}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + body


def ask(server, path, value=None, *headers):
    """Send a POST request with JSON, or a GET request if `value` is None; return the status and the answer as JSON."""
    if value is None:
        data = "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()
    else:
        data = post(path, value if isinstance(value, bytes) else json.dumps(value).encode(), *headers)
    status, body = raw(server, data)
    return status, json.loads(body)


def image_request(rows=1):
    """Return the JSON of a valid request for the model `digits`."""
    return {
        "inputs": [
            {"name": "image", "shape": [rows, 1, 8, 8], "datatype": "FP32", "data": IMAGES[:rows].ravel().tolist()}
        ]
    }


DIGITS = "/v2/models/digits/infer"


class Held:
    """A model that a test makes slow: each batch waits until the test calls `release`.

    Attributes:
      running: an event that is set while a batch runs.
      batches: the jobs of each batch so far.
    """

    def __init__(self, server, model, monkeypatch):
        self.running, self.batches = threading.Event(), []
        self._go_on = threading.Event()
        runner = server.app.models.find(model).runner
        run = runner.run

        def held(jobs):
            self.batches.append(jobs)
            self.running.set()
            self._go_on.wait()
            return run(jobs)

        monkeypatch.setattr(runner, "run", held)

    def release(self):
        """Let the slow model run all batches that wait."""
        self._go_on.set()
