"""Faults of clients: tests of the rows 41 to 46 of tests/FAULTS.md, which concern a server."""

import json
import os
import pathlib
import re
import signal
import socket
import threading
import types
import urllib.request

import forked
import pytest
from serving.running_server import (
    DIGITS,
    Held,
    any_size,
    ask,
    connected,
    digits,
    image_request,
    post,
    raw,
    read_answer,
    save,
)

import fluid
from fluid import errors
from fluid.serving.batching import Runner
from fluid.serving.settings import Settings


def good(server):
    """Return True if the server still answers a valid request."""
    return ask(server, DIGITS, image_request())[0] == 200


def told(server, data, close=False):
    """Send bytes; return the status of the answer and its error message, which is empty unless the answer is JSON."""
    status, body = raw(server, data, close)
    return status, json.loads(body).get("error", "") if body.startswith(b"{") else ""


# Tests of row 41 in the table of tests/FAULTS.md: a server receives invalid requests.


@pytest.mark.sample(3)
@pytest.mark.parametrize(
    ("data", "close", "expected"),
    [
        (post(DIGITS, b"", length=1 << 40), False, {413}),
        (post(DIGITS, b"{", length=100), True, {None, 400}),
        (post(DIGITS, b"{", length=100), False, {408}),
        (f"POST {DIGITS} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(), False, {400}),
        (post(DIGITS, b"", length=-5), False, {400}),
        (post(DIGITS, b"{}", length="two"), False, {400}),
        (post(DIGITS, b"{}", "Transfer-Encoding: chunked"), False, {400}),
        (
            f"POST {DIGITS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n".encode(),
            False,
            {400},
        ),
        (post(DIGITS, b"{}", "Content-Encoding: gzip"), False, {415}),
        (post(DIGITS, b"{}", "Inference-Header-Content-Length: 1e3"), False, {400}),
        (post(DIGITS, b"{}", "Inference-Header-Content-Length: 300"), False, {400}),
        (b"GET /v2 HTTP/1.1\r\nHost: local", True, {None, 408}),
        (b"GET /v2 HTTP/1.1\r\nHost: local", False, {408}),
        (b"", False, {408}),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", False, {400}),
        (b"GET /v2 HTTP/1.1\r\n" + b"X: " + b"y" * (1 << 16), False, {400, 431}),
        (b"GET /" + b"y" * (1 << 16), False, {400, 431}),
    ],
    ids=lambda value: None if isinstance(value, set) else str(value)[:40],
)
def test_row_41_bytes_that_are_no_request(server, data, close, expected):
    assert told(server, data, close)[0] in expected
    assert good(server)


def test_row_41_chunked_bodies_have_the_same_limit(files):
    with fluid.serve(files["digits"], port=0, max_batch=1, max_body=2000, read_timeout=5) as server:
        head = f"POST {DIGITS} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        with connected(server) as connection:
            connection.sendall(head + b"1\r\nx\r\n" * 2001)
            assert read_answer(connection)[0] == 413
        tensor = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "data": [0.5] * 64}
        body = json.dumps({"inputs": [tensor]}).encode()
        pieces = b"".join(b"%x\r\n%b\r\n" % (len(body[i : i + 7]), body[i : i + 7]) for i in range(0, len(body), 7))
        assert told(server, head + pieces + b"0\r\n\r\n")[0] == 200


def test_row_41_idle_connections_do_not_block_other_clients(server):
    with connected(server), connected(server), connected(server) as slow:
        slow.sendall(post(DIGITS, b"{", length=1000))
        assert good(server)
        assert read_answer(slow)[0] == 408


def test_row_41_json_has_a_separate_limit(files):
    with fluid.serve(files["digits"], port=0, max_batch=1, max_json=1000) as server:
        assert told(server, post(DIGITS, json.dumps(image_request()).encode()))[0] == 413
        tensor = {"name": "image", "shape": [1, 1, 8, 8], "datatype": "FP32", "parameters": {"binary_data_size": 256}}
        header = json.dumps({"inputs": [tensor]}).encode()
        length = f"Inference-Header-Content-Length: {len(header)}"
        assert told(server, post(DIGITS, header + bytes(256), length))[0] == 200


# Row 42 of tests/FAULTS.md: invalid JSON.

NO_JSON = {
    "something else": b"hello", "nothing": b"", "zeros": bytes(100), "a list": b"[]", "more behind it": b"{} {}",
    "deep": b"[" * 200_000, "deep objects": b'{"a":' * 200_000,
    "deep data": b'{"inputs": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "a name twice": b'{"inputs": [], "inputs": []}',
    "NaN": b'{"inputs": [NaN]}', "Infinity": b'{"inputs": [-Infinity]}',
    "a number of 5000 digits": b'{"inputs": [' + b"9" * 5000 + b"]}",
    "bad UTF-8": b'{"\xff": 1}', "UTF-16": "{}".encode("utf-16"), "a byte order mark": b"\xef\xbb\xbf{}",
    "a lone surrogate": b'{"inputs": [{"name": "\\ud800"}]}',
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_JSON)
def test_row_42_invalid_json_returns_400(server, kind):
    status, error = told(server, post(DIGITS, NO_JSON[kind]))
    assert status == 400 and error and len(error) < 500
    assert good(server)


def test_row_42_a_number_beyond_all_bounds(server):
    body = json.dumps(image_request()).replace("[1, 1, 8, 8]", "[1,1,8,8]")
    number = re.search(r'"data": \[([^,]*),', body)[1]
    for large in ("1e999", "-1e999", "1e39"):
        status, error = told(server, post(DIGITS, body.replace(number, large, 1).encode()))
        assert status == 400 and "too large" in error


# Row 43 of tests/FAULTS.md: requests that do not fit the model.


def changed(**changes):
    request = image_request()
    request["inputs"][0].update(changes)
    return request


@pytest.mark.parametrize(
    "request_",
    [
        changed(datatype="INT9"), changed(datatype=None), changed(shape=[1, 64]), changed(shape=[64]),
        changed(shape=[]),
        changed(shape=[1, 1, 8, 9]), changed(shape=[1 << 63, 1, 8, 8]), changed(shape=[1 << 31] * 4),
        changed(shape=[0, 1, 8, 8], data=[]), changed(name="img"), changed(data="x"), changed(data=[[1, 2], [3]]),
        changed(shape=[-1, 1, 8, 8]), image_request(9), {"inputs": [image_request()["inputs"][0]] * 2},
        {"inputs": image_request()["inputs"], "outputs": [{"name": "guess"}]}, {"inputs": [changed()] * 65},
        {"inputs": image_request()["inputs"] + changed(name="image.lengths")["inputs"]},
    ],
)  # fmt: skip
def test_row_43_wrong_tensors_return_400(server, request_):
    status, answer = ask(server, DIGITS, request_)
    # The shape [1, 64] is accepted, because its 64 numbers fill an image of 1 x 8 x 8.
    assert status == (200 if request_ == changed(shape=[1, 64]) else 400), answer
    if status == 400:
        assert not re.search(r"Traceback|\.py|/tmp|/work|site-packages", answer["error"]), answer
    assert good(server)


@pytest.mark.parametrize(
    ("words", "lengths"),
    [([[1, 2]], [3]), ([[1, 2]], [-1]), ([[1, 2]], [1, 1]), ([[1, 2]], [[1]]), ([[1, 2]], [1 << 40]), ([[99, 2]], [2]),
     ([[-1, 2]], [2]), ([[1] * 17], [17]), ([[1, 2]], [1.5])],
)  # fmt: skip
def test_row_43_sequences_that_do_not_fit(server, words, lengths):
    shape = [len(lengths), *([1] if isinstance(lengths[0], list) else [])]
    kind = "FP32" if lengths == [1.5] else "INT64"
    inputs = [
        {"name": "words", "shape": [len(words), len(words[0])], "datatype": "INT64", "data": words},
        {"name": "words.lengths", "shape": shape, "datatype": kind, "data": lengths},
    ]
    status, answer = ask(server, "/v2/models/sentiment/infer", {"inputs": inputs})
    assert status == 400, answer


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/v2/models/nothing", "GET", 404), ("/v2/models/nothing/infer", "POST", 404), ("/nothing", "GET", 404),
        ("/v2/models/digits/versions/9/infer", "POST", 404), ("/v2/models/..%2F..%2Fetc%2Fpasswd/infer", "POST", 404),
        ("/v2/models/digits/versions/x", "GET", 404), ("/v2/models/%00", "GET", 404), ("//", "GET", 404),
        ("/v2/models/digits/infer", "GET", 405), ("/v2/models", "POST", 405), ("/v2/health/live", "DELETE", 405),
        ("/metrics", "PUT", 405), ("/v2/repository/models/digits/unload", "POST", 404),
        ("/page.js/../page.py", "GET", 404),
    ],
)  # fmt: skip
def test_row_43_paths_and_verbs(server, path, method, status):
    found, error = told(server, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n".encode())
    assert found == status and error


# Row 44 of tests/FAULTS.md: too many requests at once.


def test_row_44_a_full_queue_and_a_deadline(files, monkeypatch):
    with fluid.serve(files["digits"], port=0, max_batch=1, max_queue=2, timeout=0.5) as server:
        held = Held(server, "digits", monkeypatch)
        with connected(server) as first:
            body = json.dumps(image_request()).encode()
            first.sendall(post(DIGITS, body))
            held.running.wait()
            waiting = [connected(server) for _ in range(2)]
            opened = [manager.__enter__() for manager in waiting]
            batcher = server.app.models.find("digits").batcher
            for count, connection in enumerate(opened, 1):
                connection.sendall(post(DIGITS, body))
                until(lambda count=count: batcher.waiting == count)
            status, answer = ask(server, DIGITS, image_request())
            assert status == 503 and "too many requests are waiting" in answer["error"]
            for connection in (first, *opened):
                assert read_answer(connection)[0] == 504
            assert batcher.waiting == 0
            for manager in waiting:
                manager.__exit__(None, None, None)
        held.release()
        assert good(server)


def test_row_44_requests_of_disconnected_clients_are_dropped(files, monkeypatch):
    with fluid.serve(files["digits"], port=0, max_batch=1, timeout=60) as server:
        held = Held(server, "digits", monkeypatch)
        batcher = server.app.models.find("digits").batcher
        body = json.dumps(image_request()).encode()
        with connected(server) as first:
            first.sendall(post(DIGITS, body))
            held.running.wait()
            with connected(server) as second:
                second.sendall(post(DIGITS, body))
                until(lambda: batcher.waiting == 1)
            until(lambda: batcher.waiting == 0)
            held.release()
            assert read_answer(first)[0] == 200
        assert good(server)


def test_row_44_memory_of_requests_is_limited(files):
    with fluid.serve(files["digits"], port=0, max_batch=1, max_pending=1500, read_timeout=5) as server:
        with connected(server) as slow:
            slow.sendall(post(DIGITS, b" " * 1000, length=1001))
            until(lambda: server.app.pending.size == 1000)
            assert ask(server, DIGITS, image_request())[0] == 503
        until(lambda: server.app.pending.size == 0)
        assert told(server, post(DIGITS, b"{}"))[0] == 400


def test_row_44_connections_have_a_limit(files):
    with fluid.serve(files["digits"], port=0, max_batch=1, max_connections=3) as server:
        body = post(DIGITS, json.dumps(image_request()).encode())
        with connected(server), connected(server), connected(server) as third, connected(server) as fourth:
            for connection, status in ((fourth, 503), (third, 200)):
                connection.sendall(body)
                assert read_answer(connection)[0] == status
        until(lambda: raw(server, post(DIGITS, json.dumps(image_request()).encode()))[0] == 200)


# Row 45 of tests/FAULTS.md: a client sends each request with another shape of its arrays.


def test_row_45_shapes_are_capped(server):
    runner = server.app.models.find("any_size").runner
    before = runner.compilations

    def asked(rows, columns):
        tensor = {"name": "x", "shape": [rows, columns], "datatype": "FP32", "data": [1.0] * rows * columns}
        return ask(server, "/v2/models/any_size/infer", {"inputs": [tensor]})

    found = [asked(rows, columns)[0] for rows in (2, 3) for columns in range(1, 8)]
    # The server compiles the model for 1 column at the start, and `max_shapes=2` allows 2 more numbers of columns.
    assert found.count(200) == 6 and set(found) == {200, 400}
    status, answer = asked(5, 9)
    assert status == 400 and "no more than 2 shapes" in answer["error"]
    # The requests have 2 rows or 3 rows, and the server pads 3 rows to 4. So it compiles the model for 2 rows and for
    # 4 rows, with each of the 2 new numbers of columns.
    assert runner.compilations == before + 4
    sentiment = server.app.models.find("sentiment").runner
    before = sentiment.compilations
    for rows in range(1, 9):
        for steps in range(1, 17):
            tensor = {"name": "words", "shape": [rows, steps], "datatype": "INT64", "data": [1] * rows * steps}
            assert ask(server, "/v2/models/sentiment/infer", {"inputs": [tensor]})[0] == 200
    assert sentiment.compilations == before


def test_row_45_only_shapes_that_run_are_counted():
    program = fluid.Program(any_size)
    runner = Runner(fluid.Session(program), program, Settings(max_batch=1, max_shapes=1), "any_size")
    runner.warm_up()
    first, second = (runner.job({"x": [[1.0] * columns]}, timeout=60.0) for columns in (2, 3))
    assert runner.run([second])[0]["sum"].tolist() == [3.0]
    for call in (lambda: runner.run([first]), lambda: runner.job({"x": [[1.0] * 4]}, timeout=60.0)):
        with pytest.raises(errors.FeedError, match="no more than 1 shapes are compiled"):
            call()


# Row 46 of tests/FAULTS.md: start and end of a server, and a model that fails.


def test_row_46_a_failing_model_returns_500_without_details(server, monkeypatch, caplog):
    def broken(jobs):
        raise FloatingPointError("of /secret/path")

    with monkeypatch.context() as patch:
        patch.setattr(server.app.models.find("digits").runner, "run", broken)
        status, answer = ask(server, DIGITS, image_request())
    assert status == 500 and answer["error"] == "the model failed on this request"
    assert "/secret/path" in caplog.text
    assert good(server)


def test_row_46_ready_returns_503_until_all_is_compiled(files, monkeypatch):
    go_on = threading.Event()
    from fluid.serving.batching import Runner

    warm_up = Runner.warm_up
    monkeypatch.setattr(Runner, "warm_up", lambda self: (go_on.wait(), warm_up(self)))
    server = fluid.serving.Server(files["digits"], port=0)
    starting = threading.Thread(target=server.start)
    starting.start()
    until(lambda: ask_or_none(server, "/v2/health/live") == 200)
    assert ask(server, "/v2/health/ready")[0] == 503
    assert ask(server, "/v2/models/digits/ready")[0] == 503
    assert ask(server, DIGITS, image_request())[0] == 503
    go_on.set()
    starting.join()
    assert ask(server, "/v2/health/ready")[0] == 200 and good(server)
    server.close()


def test_row_46_a_model_that_does_not_compile(files, monkeypatch):
    from fluid.serving.batching import Runner

    def broken(self):
        raise FloatingPointError("broken")

    monkeypatch.setattr(Runner, "warm_up", broken)
    with pytest.raises(errors.RemoteError, match="did not start: broken"):
        fluid.serve(files["digits"], port=0)


@pytest.fixture
def process(tmp_path):
    """Start a server in a separate process, and yield the process and its URL."""
    save(tmp_path / "digits.fluid", digits)
    command = ["-m", "fluid", "serve", tmp_path / "digits.fluid", "--port", "0", "--max-batch", "2"]
    root = str(pathlib.Path(fluid.__file__).parents[1])
    with forked.Process(*command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": root}) as started:
        try:
            yield started, started.stdout.readline().strip()
        finally:
            started.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_row_46_a_signal_finishes_requests_and_ends(process, number):
    started, url = process

    server = types.SimpleNamespace(url=url)
    until(lambda: ask_or_none(server, "/v2/health/ready") == 200)
    with connected(server) as connection:
        body = json.dumps(image_request()).encode()
        request = post(DIGITS, body)
        connection.sendall(request[:-10])  # an unfinished request, in flight when the signal arrives
        assert good(server)
        started.send_signal(number)
        until(lambda: ask_or_none(server, "/v2/health/ready") in (503, None))
        connection.sendall(request[-10:])
        status, answer = read_answer(connection)
        assert status == 200 and json.loads(answer)["outputs"][0]["shape"] == [1, 5]
    assert started.wait() == 0
    log = started.stderr.read()
    lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    assert lines[-1]["status"] == 200 and "Traceback" not in log


def test_row_46_unservable_arguments_end_with_an_error(in_tmp, capsys):
    from fluid.__main__ import main

    (in_tmp / "x.fluid").write_bytes(b"broken")
    listening = socket.create_server(("127.0.0.1", 0))
    taken = listening.getsockname()[1]
    for arguments, match in [
        ("nothing.fluid", "no exported model at"), ("x.fluid", "is damaged"), ("a=x.fluid a=y.fluid", "two models"),
        ("x.fluid --host 0.0.0.0", "a token is needed"), ("x.fluid --token-file nothing", "--token-file"),
        ("x.fluid --max-batch 0", "max_batch=0"), ("x.fluid --port 99999", "a number from 1 to 65535"),
        ("x.fluid --port -1", "port=-1"), (f"x.fluid --port {taken}", "choose another port, or 0"),
    ]:  # fmt: skip
        assert main(["serve", *arguments.split(), *(() if "port" in arguments else ("--port", "0"))]) == 1
        assert match in capsys.readouterr().err
    listening.close()


def ask_or_none(server, path):
    """Send a GET request, and return the status of the answer, or None if no answer comes."""
    try:
        with urllib.request.urlopen(server.url + path) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return None


def until(condition):
    """Wait until `condition()` is true; the test suite limits the time."""
    pause = threading.Event()
    while not condition():
        pause.wait(0.01)
