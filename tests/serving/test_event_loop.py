"""The event loop of a server: it computes, waits and sends for every request."""

import asyncio
import concurrent.futures
import copy
import json
import socket

from serving.running_server import DIGITS, ask, digits, image_request, params_of, post, raw

import fluid
from fluid.serving import app, batching
from fluid.serving.batching import Runner
from fluid.serving.connection import BufferedTransport
from fluid.serving.http import run_in_thread
from fluid.serving.server import _listening


def test_results_at_the_start_of_watching_are_sent(monkeypatch):
    monkeypatch.setattr(app, "_UNWATCHED", 0.0005)
    request = post(DIGITS, json.dumps(image_request()).encode())
    models = {"digits": fluid.Inferencer(digits, params=params_of(digits))}
    with fluid.serve(models, port=0, max_batch=4) as server, concurrent.futures.ThreadPoolExecutor(8) as threads:
        assert {status for status, _ in threads.map(lambda _: raw(server, request), range(400))} == {200}


def test_a_request_follows_its_model_to_a_newer_version(monkeypatch):
    submit, closed = batching.Batcher.submit, []

    def submitted(batcher, job):
        if len(closed) < 5:
            closed.append(job)
            raise batching.Closed("the model is not served any more")
        submit(batcher, job)

    models = {"digits": fluid.Inferencer(digits, params=params_of(digits))}
    with fluid.serve(models, port=0, max_batch=1) as server:
        served = server.app.models.find
        monkeypatch.setattr(batching.Batcher, "submit", submitted)
        status, answer = ask(server, DIGITS, image_request())
        assert (status, answer["error"]) == (503, "the model 'digits' is not served any more")
        monkeypatch.setattr(server.app.models, "find", lambda *names: copy.copy(served(*names)))
        assert ask(server, DIGITS, image_request())[0] == 200 and len(closed) == 5


def test_calls_are_accepted_while_python_ends(monkeypatch):
    monkeypatch.setattr(concurrent.futures.thread, "_shutdown", True)
    assert asyncio.run(run_in_thread(lambda: 3)) == 3


class Transport:
    """A transport that records the bytes that it sends."""

    def __init__(self):
        self.sent = []

    def write(self, data):
        self.sent.append(data)

    def close(self):
        self.sent.append("closed")

    def is_closing(self):
        return "closed" in self.sent


class Turns:
    """A stand-in for an event loop that collects calls; the test runs them."""

    def __init__(self):
        self.calls = []

    def call_soon(self, call):
        self.calls.append(call)


def test_joint_writes_are_sent_in_a_single_packet():
    transport, loop = Transport(), Turns()
    joined = BufferedTransport(transport, loop)
    for data in (b"head", b"body"):
        joined.write(data)
    assert transport.sent == [] and len(loop.calls) == 1
    loop.calls.pop()()
    assert transport.sent == [b"headbody"]
    joined.write(b"last")
    joined.close()
    loop.calls.pop()()
    assert transport.sent == [b"headbody", b"last", "closed"] and joined.is_closing()


def test_answers_do_not_wait_for_acknowledgements():
    """Check that the socket is declared as TCP, because asyncio sets TCP_NODELAY only for sockets declared as TCP."""
    with _listening("127.0.0.1", 0) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_padding_follows_the_measured_cost():
    class Shapes:
        rows = (1, 2, 4, 8)

        def padded_rows(self, rows):
            return next(size for size in self.rows if size >= rows)

    runner = object.__new__(Runner)
    runner._shapes = Shapes()
    runner._seconds = {("arithmetic", size): float(size) for size in Shapes.rows}
    runner._seconds |= {("parameters", size): 1.0 for size in Shapes.rows}
    assert [runner.choose("arithmetic", rows) for rows in range(1, 9)] == [1, 2, 2, 4, 4, 4, 4, 8]
    assert [runner.choose("parameters", rows) for rows in range(1, 9)] == list(range(1, 9))
    assert runner.choose("never seen", 5) == 5
    Shapes.rows = (4, 8)
    assert [runner.choose("arithmetic", rows) for rows in (1, 3, 4, 5)] == [1, 3, 4, 4], "fewer rows than any size has"
