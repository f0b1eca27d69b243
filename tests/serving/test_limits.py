"""Limits for each client: the memory of its requests, and the time for which they block other clients."""

import asyncio
import contextlib
import gc
import json
import pathlib
import socket
import struct
import threading
import time
import tracemalloc
from collections import Counter

import numpy as np
import pytest
from serving.hostile_requests import floods
from serving.running_server import (
    DIGITS,
    Held,
    ask,
    connected,
    digits,
    image_request,
    params_of,
    post,
    read_answer,
    sentiment,
)
from serving.test_faults import until

import fluid
from fluid import errors
from fluid.__main__ import main
from fluid.serving import connection as limited
from fluid.serving import protocol
from fluid.serving.batching import answer_sizes
from fluid.serving.connection import BufferedTransport
from fluid.serving.http import PendingBytes
from fluid.serving.server import _accept_backlog, _most_connections
from fluid.serving.settings import Settings

ALIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
WIDE = 200_000


@pytest.fixture(scope="module")
def models():
    """Return two models that compile quickly, by name."""
    return {f.__name__: fluid.Inferencer(f, params=params_of(f)) for f in (digits, sentiment)}


@pytest.fixture(scope="module")
def server(models):
    with fluid.serve(models, port=0, max_batch=8, batch_sizes=(1, 8), buckets=(16,), read_timeout=1.0) as running:
        yield running


def memory():
    """Return the resident memory of this process in megabytes."""
    return int(pathlib.Path("/proc/self/status").read_text().split("VmRSS:")[1].split()[0]) / 1024


@contextlib.contextmanager
def traced():
    """Yield a function that returns the megabytes allocated by Python since the start; XLA's memory does not count."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0] / 1e6
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def wide():
    """Return a model whose answers do not fit into socket buffers, so the server must wait for the client to read."""

    def program():
        return {"y": fluid.layers.fc(fluid.layers.data("x", shape=[1]), size=WIDE, name="wide")}

    params = {name: np.ones(p.shape, "float32") for name, p in fluid.Program(program).parameters.items()}
    return fluid.Inferencer(program, params=params)


def wide_request(rows=8, **parameters):
    tensor = {"name": "x", "shape": [rows, 1], "datatype": "FP32", "data": [0.5] * rows}
    return post("/v2/models/wide/infer", json.dumps({"inputs": [tensor], "parameters": parameters}).encode())


BINARY = wide_request(binary_data_output=True)


def test_row_66_pipelined_requests_wait_outside_the_server(server):
    """Check that a client that sends 8 MB of requests without reading an answer takes less than 4 MB in the server."""
    ask(server, "/v2/health/live")
    requests = ALIVE * (8_000_000 // len(ALIVE))
    with connected(server) as connection, traced() as held:
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.sendall(requests)
        until(lambda: server.app.pending.size > 0)
        assert held() < 4
        assert server.app.pending.size < 1 << 20
        assert ask(server, "/v2/health/live")[0] == 200
    until(lambda: server.app.pending.size == 0)


def test_pipelined_requests_are_answered_in_order(server):
    paths = [DIGITS if i % 7 == 0 else f"/v2/models/{i}/infer" for i in range(300)]
    body = json.dumps(image_request()).encode()
    with connected(server) as connection:
        sending = threading.Thread(target=lambda: connection.sendall(b"".join(post(path, body) for path in paths)))
        sending.start()
        stream = connection.makefile("rb")
        for path in paths:
            status = int(stream.readline().split()[1])
            length = 0
            while (line := stream.readline()) != b"\r\n":
                length = int(line[15:]) if line.lower().startswith(b"content-length:") else length
            answer = stream.read(length)
            assert status == (200 if path == DIGITS else 404)
            assert status == 200 or path.split("/")[3].encode() in answer
        sending.join()


def test_pipelined_requests_count_as_memory(models):
    with (
        fluid.serve({"digits": models["digits"]}, port=0, max_batch=1, max_pending=100_000) as server,
        connected(server) as first,
    ):
        with contextlib.suppress(ConnectionError):
            first.settimeout(20)
            first.sendall(ALIVE * 200_000)
        until(lambda: server.app.pending.size == 0)
        assert ask(server, DIGITS, image_request())[0] == 200


def test_row_66_clients_that_do_not_read_are_disconnected(wide):
    with fluid.serve({"wide": wide}, port=0, max_batch=8, write_timeout=0.3) as server:
        with connected(server) as connection:
            connection.sendall(BINARY)
            until(lambda: server.app.pending.size > 0)
            connection.sendall(ALIVE)  # this request waits for the answer to the first request
            assert ask(server, "/v2/health/live")[0] == 200
            until(lambda: server.app.pending.size == 0)
            assert len(everything(connection)) < 8 * WIDE * 4
        with connected(server) as connection:
            connection.sendall(BINARY)
            status, body = read_answer(connection)
            assert status == 200 and len(body) > 8 * WIDE * 4
            connection.sendall(ALIVE)
            assert read_answer(connection)[0] == 200


def test_row_66_unread_answers_count_as_pending_memory(wide):
    with fluid.serve({"wide": wide}, port=0, max_batch=8, max_pending=5 << 20) as server:
        with contextlib.ExitStack() as stack:
            waiting = [stack.enter_context(connected(server)) for _ in range(4)]
            for connection in waiting:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.sendall(BINARY)
            until(lambda: server.app.pending.size > 0)
            assert server.app.pending.size < 5 << 20
        until(lambda: server.app.pending.size == 0)
        with connected(server) as connection:
            connection.sendall(wide_request(1, binary_data_output=True))
            assert read_answer(connection)[0] == 200


def test_row_66_disconnected_clients_cause_no_log_errors(server, caplog):
    body = post(DIGITS, json.dumps(image_request()).encode())
    for data in (body, body * 3, ALIVE * 50, body[:-5], b"?" + body, ALIVE + b"?" * 100) * 5:
        with connected(server) as connection:
            # With a linger time of 0, closing the socket resets the connection.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.sendall(data)
    ask(server, "/v2/health/live")
    until(lambda: server.app.pending.size == 0)
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR" or r.exc_info] == []


def in_chunks(body, size, trailers=b""):
    """Return a request to the model `digits` whose body arrives in chunks of `size` bytes."""
    parts = [body[low : low + size] for low in range(0, len(body), size)]
    head = f"POST {DIGITS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n" + trailers + b"\r\n"


BODY = json.dumps(image_request()).encode()
LONG_HEAD = b"GET /v2 HTTP/1.1\r\nX: " + b"y" * 100_000


def statuses(server, data, count):
    """Send bytes; return the statuses of the next `count` answers, None after the end of the connection."""

    def send():
        with contextlib.suppress(OSError):
            connection.sendall(data)

    found = []
    with connected(server) as connection:
        sending = threading.Thread(target=send)
        sending.start()
        stream = connection.makefile("rb")
        with contextlib.suppress(ConnectionError):
            while len(found) < count and (line := stream.readline()):
                found.append(int(line.split()[1]))
                lengths = [int(line[15:]) for line in iter(stream.readline, b"\r\n") if line[:15] == b"content-length:"]
                stream.read(sum(lengths))
        sending.join()
    return found


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (post(DIGITS, BODY) + LONG_HEAD, [200, 431]),
        (ALIVE + LONG_HEAD, [200, 431]),
        (in_chunks(BODY, 100) + LONG_HEAD, [200, 431]),
        (in_chunks(BODY, 100, b"X: " + b"y" * 100_000 + b"\r\n"), [431]),
        (in_chunks(BODY, 100, b"x:\r\n" * 101), [431]),
        (ALIVE[:-2] + b"x:\r\n" * 99 + b"\r\n", [200]),
        (ALIVE[:-2] + b"x:\r\n" * 100 + b"\r\n", [431]),
        (in_chunks(BODY + b" " * 20_000, 1) + ALIVE, [200, 200]),
        (in_chunks(BODY + b" " * 20_000, 1).replace(b"digits", b"nobody", 1), [404, 431]),
    ],
    ids=[
        "after a body",
        "after a head",
        "after chunks",
        "trailer",
        "trailers",
        "headers",
        "many headers",
        "chunks",
        "unread chunks",
    ],
)
def test_row_66_bytes_outside_of_bodies_are_limited(server, data, expected):
    assert statuses(server, data, len(expected)) == expected


def test_row_66_a_head_grows_only_while_no_request_runs(server, monkeypatch):
    held = Held(server, "digits", monkeypatch)
    with connected(server) as connection, traced() as kept:
        connection.sendall(post(DIGITS, BODY) + LONG_HEAD[:1000])
        held.running.wait()
        connection.settimeout(0.3)
        with pytest.raises(TimeoutError):
            connection.sendall(b"y" * 30_000_000)
        assert kept() < 4
        held.release()
        connection.settimeout(20)
        assert read_answer(connection)[0] == 200


class Socket:
    """A transport that drops all written bytes, and records whether the server reads now, and has closed it."""

    reads, closed = True, False

    def pause_reading(self):
        self.reads = False

    def resume_reading(self):
        self.reads = True

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed, self.reads = True, False

    def get_extra_info(self, name):
        return None

    def set_write_buffer_limits(self, high):
        pass

    write = set_write_buffer_limits


@contextlib.contextmanager
def connections(count, app, pending):
    """Yield connections of an ASGI application, each with a Socket; the end of the context disconnects all."""
    import uvicorn
    from uvicorn.server import ServerState

    kind = limited.connection_class(Settings(), pending)
    config = uvicorn.Config(app, http=kind, log_config=None, lifespan="off")
    config.load()
    made = [kind(config, ServerState(), {}) for _ in range(count)]
    for connection in made:
        connection.connection_made(Socket())
    yield made
    for connection in made:
        connection.connection_lost(ConnectionResetError())


async def answer(send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})


async def bodies(data, size):
    """Let a connection read bytes in pieces of `size` bytes; return the bodies of the requests in them."""
    found = []

    async def app(scope, receive, send):
        parts, more = [], True
        while more:
            message = await receive()
            parts.append(message["body"])
            more = message["more_body"]
        found.append(b"".join(parts))
        await answer(send)

    with connections(1, app, PendingBytes(1 << 30)) as (connection,):
        for low in range(0, len(data), size):
            connection.data_received(data[low : low + size])
            while connection._is_busy() or connection._unparsed or not connection.transport.reads:
                await asyncio.sleep(0)
    return found


RECEIVED = 250_000  # the bytes that a connection of asyncio receives in one turn of the event loop
FLOODS = floods(RECEIVED)


class Loop(asyncio.SelectorEventLoop):
    """An event loop that counts its turns."""

    turn = 0

    def _run_once(self):
        self.turn += 1
        super()._run_once()


async def flooded(flood, count):
    """Send a flood on each of `count` connections, then one request on another connection.

    Return the largest number of bytes and of requests in one turn of the event loop before the answer to this request,
    the number of the turns, and the largest number of unparsed bytes.
    """
    parsed, begun, answered, most = Counter(), Counter(), [], 0
    pending, loop = PendingBytes(1 << 30), asyncio.get_running_loop()

    async def app(scope, receive, send):
        begun[loop.turn] += 1
        if scope["path"] == "/neighbour":
            answered.append(True)
        while (await receive()).get("more_body"):
            pass
        await answer(send)

    with connections(count + 1, app, pending) as (neighbour, *hostile):
        parse = type(neighbour)._parse

        def counted(self, data):
            parsed[loop.turn] += len(data)
            parse(self, data)

        type(neighbour)._parse = counted
        while not answered:
            for connection in hostile:
                if connection.transport.reads:
                    connection.data_received(flood)
            if most == 0:
                first = loop.turn
                neighbour.data_received(b"GET /neighbour HTTP/1.1\r\n\r\n")
            most = max(most, pending.size)
            await asyncio.sleep(0)
    assert pending.size == 0
    return max(parsed.values()), max(begun.values(), default=0), loop.turn - first, most


@pytest.mark.parametrize("count", [60, pytest.param(900, marks=pytest.mark.full)])
@pytest.mark.parametrize("flood", FLOODS)
def test_row_66_floods_share_the_turns_of_the_event_loop(flood, count):
    with asyncio.Runner(loop_factory=Loop) as runner:
        parsed, begun, turns, waiting = runner.run(flooded(FLOODS[flood], count))
    most = Settings().max_header if flood == "one header" else 2 * limited.SHARE
    assert parsed <= limited.TURN + most
    assert begun <= limited.TURN // limited.LEAST
    assert turns <= (count + 1) * most // limited.TURN + 10
    assert waiting <= count * RECEIVED


def test_row_66_requests_in_any_pieces_are_read_alike():
    ends = b"\r\n" * 400
    data = in_chunks(BODY, 50, b"A: b\r\n") + post(DIGITS, BODY + ends) + in_chunks(ends, 300) + ALIVE
    for size in (1, 2, 3, 5, 64, 257, len(data)):
        found = asyncio.run(asyncio.wait_for(bodies(data, size), 60))
        assert found == [BODY, BODY + ends, ends, b""], size


def test_row_67_a_trailer_gives_no_access(models):
    with fluid.serve({"digits": models["digits"]}, port=0, max_batch=1, token="secret") as server:
        assert statuses(server, in_chunks(BODY, 100, b"Authorization: Bearer secret\r\n"), 1) == [401]


def test_writing_to_a_closed_transport_does_nothing():
    class Closed:
        def is_closing(self):
            return True

    class Loop:
        def call_soon(self, call):
            call()

    joined = BufferedTransport(Closed(), Loop())
    joined.write(b"")
    joined.write(b"an answer")
    joined.hold(True)
    joined.resume_reading()


def test_row_66_connections_leave_file_descriptors_free(monkeypatch):
    resource = pytest.importorskip("resource")
    for files, expected in ((1024, 896), (1 << 20, 1024), (resource.RLIM_INFINITY, 1024), (100, 25)):
        monkeypatch.setattr(resource, "getrlimit", lambda which, files=files: (files, files))
        assert _most_connections(1024) == expected


def test_very_many_connections_are_closed_at_once(models, monkeypatch):
    monkeypatch.setattr(limited, "SPARE", 1)
    with fluid.serve({"digits": models["digits"]}, port=0, max_batch=1, max_connections=1) as server:
        with connected(server) as first, connected(server), connected(server) as third:
            with contextlib.suppress(ConnectionError):
                assert third.recv(1) == b""
            first.sendall(ALIVE)
            assert read_answer(first)[0] == 200


# Tests of a server that ends while clients are connected.


def test_an_ending_server_answers_arriving_requests(models):
    server = fluid.serve({"digits": models["digits"]}, port=0, max_batch=1)
    body = post(DIGITS, json.dumps(image_request()).encode())
    with connected(server) as used, connected(server) as new, connected(server) as idle:
        used.sendall(body)
        assert read_answer(used)[0] == 200
        ending = threading.Thread(target=server.close)
        ending.start()
        until(lambda: getattr(server._server.server_state, "ending", False))
        for connection in (used, new):
            connection.sendall(body)
            assert read_answer(connection)[0] == 200
            assert connection.recv(1) == b""  # the server ends the connection normally, without a TCP reset
        assert idle.recv(1) == b""
        ending.join()


def test_connections_in_the_backlog_are_accepted():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        with socket.create_connection(listening.getsockname()) as client:
            (found,) = _accept_backlog(listening)
            with found:
                client.sendall(b"a request")
                found.setblocking(True)
                assert found.recv(100) == b"a request"
            assert _accept_backlog(listening) == []


# Tests of large requests.


def longest_pause(call):
    """Run `call` in a thread; return the longest pause of the present thread, and the time of the call, in seconds."""
    took = []

    def run():
        start = time.perf_counter()
        with contextlib.suppress(errors.FluidError):
            call()
        took.append(time.perf_counter() - start)

    thread = threading.Thread(target=run)
    last, longest = time.perf_counter(), 0.0
    thread.start()
    while thread.is_alive():
        time.sleep(0.001)
        longest, last = max(longest, time.perf_counter() - last), time.perf_counter()
    return longest, took[0]


def asked(data, shape):
    return b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": %b, "data": [%b]}]}' % (shape, data)


MANY = 500_000


@pytest.mark.parametrize(
    "body",
    [
        asked(b",".join([b"1"] * MANY), b"[500000]"),
        asked(b",".join([b"0.123"] * MANY), b"[500000]"),
        asked(b",".join([b"[" + b",".join([b"1.5"] * 500) + b"]"] * (MANY // 500)), b"[1000, 500]"),
        asked(b",".join([b"[" + b",".join([b"1"] * 500) + b"]"] * (MANY // 500)), b"[-1, -1]"),
    ],
    ids=["whole numbers", "numbers", "rows", "rows of any length"],
)
def test_row_66_reading_large_json_yields_to_other_threads(body):
    pause, whole = longest_pause(lambda: protocol.read_request(body))
    assert pause < whole / 2


def test_writing_a_large_answer_yields_to_other_threads():
    response = protocol.InferResponse(
        "m", "1", [protocol.MessageTensor("y", np.linspace(0, 1, MANY // 2, dtype="float32"))]
    )
    pause, whole = longest_pause(lambda: protocol.finished(protocol.write_response(response)))
    assert pause < whole / 2


@pytest.mark.parametrize(
    ("body", "match"),
    [
        (asked(b",".join([b"[]"] * 2 * MANY), b"[1]"), "lists and objects; send flat data"),
        (asked(b",".join([b'""'] * MANY), b"[1]"), "quotes; send numbers"),
        (asked(b'"' + rb"\u0041" * MANY + b'"', b"[1]"), "quotes; send numbers"),
        (b"{" + b",".join(b'"%d":1' % i for i in range(60_000)) + b',"59999":1}', "'59999' stands twice"),
    ],
)
def test_json_that_takes_long_is_refused_at_once(body, match):
    with pytest.raises(errors.ProtocolError, match=match):
        protocol.read_request(body)


@pytest.mark.parametrize("data", [[[1, 2], [3, 4]], [[], []], [], [[[True]], [[False]]], [1, 2.5], [2**63, 1]])
def test_lists_in_pieces_convert_as_by_numpy(data, monkeypatch):
    from fluid.serving.protocol import tensors

    monkeypatch.setattr(tensors, "PIECE", 1)
    want, found = np.asarray(data), tensors._array(data)
    assert found.dtype == want.dtype and found.shape == want.shape and found.tolist() == want.tolist()


def test_a_large_request_is_parsed_in_a_thread(server, monkeypatch):
    go_on, running = threading.Event(), threading.Event()
    read = protocol.read_request

    def slow(*arguments):
        running.set()
        go_on.wait()
        return read(*arguments)

    monkeypatch.setattr(protocol, "read_request", slow)
    with connected(server) as connection:
        connection.sendall(post(DIGITS, json.dumps(image_request()).encode() + b" " * protocol.LONG))
        running.wait()
        assert ask(server, "/v2/health/live")[0] == 200
        go_on.set()
        assert read_answer(connection)[0] == 200


def test_a_large_answer_is_exact_in_json(wide):
    with fluid.serve({"wide": wide}, port=0, max_batch=1) as server, connected(server) as connection:
        connection.sendall(wide_request(1))
        status, body = read_answer(connection)
        assert status == 200 and json.loads(body)["outputs"][0]["data"] == [1.5] * WIDE


def test_row_66_the_counted_size_of_an_answer_is_enough():
    kinds = [np.finfo(d) for d in ("float16", "float32", "float64")] + [np.iinfo(d) for d in ("int8", "uint8", "int64")]
    for kind in kinds:
        extremes = [
            kind.min,
            kind.max,
            *([kind.tiny, -kind.tiny, kind.smallest_subnormal] if kind.dtype.kind == "f" else ()),
        ]
        values = {"y": np.array(extremes * 50, kind.dtype), "b": np.zeros(9, bool), "inf": np.full(9, -np.inf)}
        tensors = [protocol.MessageTensor(name, value) for name, value in values.items()]
        for binary, index in ((frozenset(), 1), (frozenset(values), 0)):
            body, _ = protocol.finished(
                protocol.write_response(protocol.InferResponse("m", "1", tensors, None, binary))
            )
            counted = sum(size[index] for size in answer_sizes(values).values())
            assert counted - 200 < len(body) < counted + 400 if binary else len(body) < counted + 400


def test_row_66_answers_are_counted_before_they_are_computed(wide, monkeypatch):
    with fluid.serve({"wide": wide}, port=0, max_batch=8, max_answers=9 * WIDE * 4) as server:
        held = Held(server, "wide", monkeypatch)
        with connected(server) as first:
            first.sendall(wide_request(5, binary_data_output=True))
            held.running.wait()
            with connected(server) as second:
                second.sendall(wide_request(4, binary_data_output=True))
                until(lambda: server.app.answers.size == 9 * WIDE * 4)
                with connected(server) as third:
                    third.sendall(wide_request(1, binary_data_output=True))
                    head = third.recv(4096)
                    assert b" 503 " in head.splitlines()[0] and b"retry-after: 1" in head
            until(lambda: server.app.answers.size == 5 * WIDE * 4)  # the second client went away
            held.release()
            assert read_answer(first)[0] == 200
        until(lambda: server.app.answers.size == 0)
        for rows, binary, status in ((8, True, 200), (1, True, 200), (2, False, 413), (1, False, 200)):
            with connected(server) as connection:
                connection.sendall(wide_request(rows, binary_data_output=binary))
                found, body = read_answer(connection)
                assert found == status and (status == 200 or b"expected at most 7200000" in body), body[:200]
        until(lambda: server.app.answers.size == 0)


def test_row_66_answers_of_new_shapes_are_counted_too():
    def program():
        x = fluid.layers.data("x", shape=[-1, -1], append_batch_size=False)
        return {"y": fluid.layers.expand(x, [1, 1000])}

    with fluid.serve({"any": fluid.Inferencer(program, params={})}, port=0, max_answers=1 << 19) as server:
        for columns, status in ((2, 200), (30, 413), (30, 413), (2, 200)):
            tensor = {"name": "x", "shape": [1, columns], "datatype": "FP32", "data": [0.5] * columns}
            assert ask(server, "/v2/models/any/infer", {"inputs": [tensor]})[0] == status
        until(lambda: server.app.answers.size == 0)


def test_row_66_a_large_answer_gives_up_its_turn(server, monkeypatch):
    """Write two long responses, whose turns are run by hand: they alternate, and a client that left ends its own."""

    class Request:
        def __init__(self):
            self.left = asyncio.get_running_loop().create_future()

        def disconnect(self):
            return self.left

    order = []

    def turns(name, count, left=None):
        for number in range(count):
            order.append(name)
            if number == 1 and left is not None:
                left.get_loop().call_soon_threadsafe(left.set_result, None)
            yield
        return name

    async def both():
        long, short, left = Request(), Request(), Request()
        calls = [(long, turns("long", 50)), (short, turns("short", 2)), (left, turns("left", 10**9, left.left))]
        return await asyncio.gather(*(server.app.run_turns(*call) for call in calls), return_exceptions=True)

    *names, error = asyncio.run(both())
    assert names == ["long", "short"] and error.status == 400
    assert order[:6] == ["long", "short", "left"] * 2 and order.count("long") == 50


def test_too_many_numbers_are_refused_before_conversion(server):
    rows = [[1] * 20_000] * 8
    tensor = {"name": "words", "shape": [8, -1], "datatype": "INT64", "data": rows}
    status, answer = ask(server, "/v2/models/sentiment/infer", {"inputs": [tensor]})
    assert status == 400 and "found 160000 numbers, expected at most 128" in answer["error"]


def everything(connection):
    """Return all bytes that arrive until the connection is closed."""
    found = []
    with contextlib.suppress(ConnectionError):
        while chunk := connection.recv(1 << 20):
            found.append(chunk)
    return b"".join(found)


def test_too_many_numbers_in_a_line_are_refused():
    from fluid.online.app import parse_lines

    line = b'{"x": [' + b",".join([b"1"] * MANY) + b"]}"
    with pytest.raises(errors.ProtocolError, match="line 2: found 499999 commas, and a row has 2 numbers"):
        parse_lines(b'{"x": 1, "y": 1}\n' + line, 2)
    assert len(parse_lines(line, MANY)) == 1


@pytest.mark.parametrize("shape", [[0, 10**4000], [10**4000], [2**31 - 1] * 32, [0] + [2**31 - 1] * 31, [-(10**4000)]])
@pytest.mark.parametrize("datatype", ["FP32", "BOOL", "INT64"])
def test_shapes_beyond_all_bounds_are_refused(server, shape, datatype):
    size = {"parameters": {"binary_data_size": 0}}
    tensor = {"name": "image", "datatype": datatype, "shape": shape}
    for more in (size, {"data": []}):
        status, answer = ask(server, DIGITS, {"inputs": [tensor | more]}, *_binary(tensor | more))
        assert status == 400 and len(answer["error"]) < 1000


def _binary(tensor):
    """Return a list with the HTTP header for the length of the JSON, or an empty list if no bytes follow the JSON."""
    length = len(json.dumps({"inputs": [tensor]}))
    return [f"Inference-Header-Content-Length: {length}"] if "parameters" in tensor else []


# Tests of the server in a Docker container.


def test_the_container_health_check_uses_the_configured_port(server, monkeypatch, in_tmp, capsys):
    dockerfile = (pathlib.Path(fluid.__file__).parents[1] / "Dockerfile").read_text().replace("\\\n", "")
    _, _, code = json.loads(dockerfile.partition("HEALTHCHECK")[2].partition("CMD")[2])
    monkeypatch.setenv("FLUID_SERVE_PORT_NUMBER", server.url.rpartition(":")[2])
    exec(code)
    (in_tmp / "x.fluid").write_bytes(b"broken")
    assert main(["serve", "x.fluid"]) == 1
    # The server of the fixture already listens on this port.
    assert f"cannot listen on {server.url.removeprefix('http://')}" in capsys.readouterr().err
    monkeypatch.setenv("FLUID_SERVE_PORT_NUMBER", "tcp://10.0.0.1:8000")
    assert main(["serve", "x.fluid"]) == 1
    assert "FLUID_SERVE_PORT_NUMBER='tcp://10.0.0.1:8000', expected a number" in capsys.readouterr().err


def test_refused_large_requests_are_freed_without_garbage_collection(server):
    body = asked(b",".join([b"[]"] * 5_000_000), b"[1]")  # 15 MB of JSON
    ask(server, DIGITS, body)
    before = memory()
    gc.disable()
    try:
        assert {ask(server, DIGITS, body)[0] for _ in range(12)} == {400}
        assert memory() < before + 100
    finally:
        gc.enable()
