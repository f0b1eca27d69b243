"""Generated texts that arrive in parts: server-sent events of `/infer`, and local and remote `Inferencer.stream`."""

import asyncio
import functools
import itertools
import json
import logging
import threading
import urllib.error
import urllib.request

import numpy as np
import pytest
from serving.running_server import connected, digits, params_of, post, save

import fluid
from fluid import errors, layers

IDS, END = 11, 0
PROMPTS = [[1, 2, 3], [4]]
URL = "/v2/models/writer/infer"


def written(length):
    text = layers.data("text", shape=[1], dtype="int64", lod_level=1)
    temperature = layers.data("temperature", shape=[1])
    cache = layers.attention_cache(text.shape[0], text.shape[1] + length, 2, 4)

    def step(ids, cache):
        x = layers.embedding(ids, size=[IDS, 8])
        seen, cache = layers.multi_head_attention(x, num_heads=2, rotary=True, cache=cache)
        return layers.dense(x + seen, size=IDS), cache

    more = layers.generate(step, text, length, cache, temperature=temperature, end_id=END)
    return {"text": layers.sequence_concat([text, more]), "more": more}


def writer():
    return written(3)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    models = {program.__name__: save(folder / f"{program.__name__}.fluid", program) for program in (writer, digits)}
    with fluid.serve(models, port=0, batch_sizes=(2,), buckets=(4, 16)) as running:
        yield running


@pytest.fixture
def remote(server):
    return fluid.Inferencer(url=f"{server.url}/v2/models/writer")


def feed(prompts=PROMPTS, temperature=1.0):
    return {"text": prompts, "temperature": np.full((len(prompts), 1), temperature, "float32")}


def rows(batch):
    return [row.ravel().tolist() for row in batch.rows()]


def joined(parts):
    """Return the generated ids of each row, joined over all parts of a stream."""
    return [sum(pieces, []) for pieces in zip(*(rows(part.more) for part in parts), strict=True)]


@functools.cache
def whole():
    """Generate 12 ids for each row in a single call with seed 3, and return the ids of each row."""
    writing = fluid.Inferencer(lambda: written(12), params=params_of(writer), bucket=False)
    return rows(writing.infer(feed(), seed=3)["more"])


def request(body, accept="text/event-stream", **parameters):
    tensors = [
        {"name": "text", "datatype": "INT64", "shape": [2, -1], "data": PROMPTS},
        {"name": "temperature", "datatype": "FP32", "shape": [2, 1], "data": [1, 1]},
    ]
    text = json.dumps({"inputs": tensors, "parameters": {"seed": 3, **parameters}, **body}).encode()
    return text, {"Accept": accept, "Content-Type": "application/json"}


def ask(server, *given, **parameters):
    return urllib.request.urlopen(urllib.request.Request(server.url + URL, *request(*given, **parameters)), timeout=20)


def test_parts_from_a_server_form_the_text(remote):
    parts = list(itertools.islice(remote.stream(feed(), seed=3), 4))
    assert joined(parts) == whole()
    assert [len(row) for row in rows(parts[0].more)] == [3, 3], "a part has three ids"
    assert rows(parts[-1].text) == [a + b for a, b in zip(PROMPTS, joined(parts), strict=True)]


def test_a_local_stream_equals_the_whole_text():
    local = fluid.Inferencer(writer, params=params_of(writer), bucket=False)
    parts = list(itertools.islice(local.stream(feed(), ["more"], seed=3), 4))
    assert joined(parts) == whole()
    assert parts[0].names == ["more"]


def test_equal_seeds_give_equal_local_and_remote_streams(server):
    local = fluid.Inferencer(writer, params=params_of(writer), bucket=False, seed=8)
    remote = fluid.Inferencer(url=f"{server.url}/v2/models/writer", seed=8)
    for _ in range(2):
        first, second = (list(itertools.islice(each.stream(feed()), 2)) for each in (local, remote))
        assert joined(first) == joined(second)


def test_a_stream_ends_with_its_texts(remote):
    ended = [[1, END], [2, END]]
    assert list(remote.stream(feed(ended))) == []


def test_texts_longer_than_all_buckets_raise_an_error(remote):
    # A text ends with the id END. At temperature 0, the model never generates END for the two texts of this feed. So
    # the texts grow beyond the largest bucket (the greatest length that the model accepts).
    parts = remote.stream(feed([[5, 6], [7]], temperature=0.0))
    with pytest.raises(errors.FeedError, match="expected at most 16"):
        for _ in range(20):
            part = next(parts)
    assert 16 < max(map(len, rows(part.text))) <= 19


def test_other_clients_read_server_sent_events(server):
    with ask(server, {"outputs": [{"name": "more"}]}) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        lines = [answer.readline() for _ in range(4)]
    assert lines[1] == lines[3] == b"\n"
    told = [json.loads(line.removeprefix(b"data: ")) for line in lines[::2]]
    assert [output["name"] for output in told[0]["outputs"]] == ["more", "more.lengths"]
    assert told[1]["outputs"][1]["data"] == [len(row[3:6]) for row in whole()]
    assert np.reshape(told[1]["outputs"][0]["data"], (2, 3)).tolist()[1] == whole()[1][3:6]


def before_each_run(server, monkeypatch, seed, call):
    """Make the server call `call(n)` before run n (from 0) of the model for a stream of parts of a text.

    The stream is the response to the request with the seed `seed`.
    """
    runner = server.app.models.find("writer").runner
    run, numbers = runner.run, itertools.count()

    def called(jobs):
        if jobs[0].seed == seed:
            call(next(numbers))
        return run(jobs)

    monkeypatch.setattr(runner, "run", called)


def test_a_part_arrives_before_the_next_is_computed(server, monkeypatch):
    read = threading.Event()
    before_each_run(server, monkeypatch, 51, lambda number: number == 0 or read.wait(20))
    with ask(server, {}, seed=51) as answer:
        assert answer.readline().startswith(b"data: {")
        read.set()


@pytest.mark.parametrize(
    "body, parameters, message",
    [
        ({}, {"binary_data_output": True}, "events of a stream are JSON"),
        ({"outputs": [{"name": "more", "parameters": {"binary_data": True}}]}, {}, "events of a stream are JSON"),
        ({"outputs": [{"name": "less"}]}, {}, "no output 'less'"),
    ],
    ids=str,
)
def test_a_wrong_request_has_its_status(server, body, parameters, message):
    with pytest.raises(urllib.error.HTTPError) as caught:
        ask(server, body, **parameters)
    assert caught.value.code == 400 and message in json.load(caught.value)["error"]


def test_a_model_that_continues_nothing_is_refused(server):
    for model in (
        fluid.Inferencer(url=f"{server.url}/v2/models/digits"),
        fluid.Inferencer(digits, params=params_of(digits)),
    ):
        with pytest.raises(errors.FluidError, match="with the names of their feeds"):
            next(model.stream({"image": np.zeros((2, 1, 8, 8), "float32")}))


def test_a_client_that_goes_away_ends_its_stream(server, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "fluid.serving.access")
    started, logged = threading.Event(), threading.Event()
    handler = logging.Handler()
    lines = []

    def emit(record):
        if "versions/1" in record.getMessage():
            lines.append(json.loads(record.getMessage()))
            logged.set()

    handler.emit = emit

    def wait(number):
        started.set()
        assert logged.wait(20), "the response ends while the model still runs"

    before_each_run(server, monkeypatch, 52, wait)
    logging.getLogger("fluid.serving.access").addHandler(handler)
    try:
        with connected(server) as connection:
            path = URL.replace("writer", "writer/versions/1")
            connection.sendall(post(path, request({}, seed=52)[0], "Accept: text/event-stream"))
            assert started.wait(20)
        assert logged.wait(20)
    finally:
        logging.getLogger("fluid.serving.access").removeHandler(handler)
    assert [line["status"] for line in lines] == [400]


def logged(server, caplog, body, **parameters):
    """Read a stream to its end; return its line of the access log, and all bytes of its body."""
    with caplog.at_level(logging.INFO, "fluid.serving.access"):
        with ask(server, body, **parameters) as answer:
            assert answer.status == 200
            data = answer.read()
        urllib.request.urlopen(f"{server.url}/metrics").close()  # writes all waiting lines
    lines = [json.loads(r.getMessage()) for r in caplog.records if r.name == "fluid.serving.access"]
    (line,) = [line for line in lines if line["path"] == URL]
    return line, data


def test_the_log_describes_the_whole_stream(server, caplog, monkeypatch):
    before_each_run(server, monkeypatch, 55, lambda number: number == 2 and {}["secret"])
    line, data = logged(server, caplog, {}, seed=55)
    assert data.count(b"data: ") == 3 and b"event: error" in data
    assert (line["status"], line["sent"]) == (500, len(data))
    caplog.clear()
    rows = [{"name": "text", "datatype": "INT64", "shape": [2, -1], "data": [[1, END], [2, END]]}]
    rows.append({"name": "temperature", "datatype": "FP32", "shape": [2, 1], "data": [0, 0]})
    line, data = logged(server, caplog, {"inputs": rows})
    assert (line["status"], line["sent"]) == (200, len(data))


def test_one_call_of_receive_waits_at_a_time(server, monkeypatch):
    """Call the application with a `receive` that, like a queue, gives the message to the call that waited first."""
    body, headers = request({})
    application, sent, waiting = server.app, [], []

    async def receive():
        if body_left:
            return {"type": "http.request", "body": body_left.pop(), "more_body": False}
        waiting.append(asyncio.get_running_loop().create_future())
        assert sum(not one.done() for one in waiting) == 1
        return await waiting[-1]

    async def send(message):
        sent.append(message)
        if len(sent) == 2:
            waiting[0].set_result({"type": "http.disconnect"})

    body_left = [body]
    names = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "POST", "path": URL, "headers": names, "client": ("one", 1)}
    monkeypatch.setattr("fluid.serving.app._UNWATCHED", 0.0)
    loop = application._loop
    asyncio.run_coroutine_threadsafe(application(scope, receive, send), loop).result(20)
    assert len(waiting) == 1 and b"the client went away" in sent[-2]["body"]


def test_a_failure_between_parts_ends_in_an_error(server, monkeypatch):
    before_each_run(server, monkeypatch, 53, lambda number: number and {}["secret"])
    with ask(server, {}, seed=53) as answer:
        lines = answer.read().splitlines()
    assert lines[2] == b"event: error" and json.loads(lines[3].removeprefix(b"data: "))["kind"] == "Refusal"
    assert b"secret" not in b"".join(lines)


def test_remote_streams_raise_failures_between_parts(server, remote, monkeypatch):
    before_each_run(server, monkeypatch, 54, lambda number: number and {}["secret"])
    parts = remote.stream(feed([[5, 6], [7]], temperature=0.0), seed=54)
    next(parts)
    with pytest.raises(errors.RemoteError, match="answered: the model failed"):
        list(parts)


def test_a_keep_alive_connection_survives_a_stream(server):
    body, headers = request({"outputs": [{"name": "more"}]})
    body = body.replace(b"[[1, 2, 3], [4]]", b"[[1, 0], [2, 0]]")
    with connected(server) as connection:
        for _ in range(2):
            connection.sendall(post(URL, body, "Accept: text/event-stream"))
            found = b""
            while not found.endswith(b"0\r\n\r\n"):
                found += connection.recv(65536)
            assert found.startswith(b"HTTP/1.1 200") and b"transfer-encoding: chunked" in found.lower()
