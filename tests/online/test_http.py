"""OnlineTrainer over HTTP: rows as JSON lines and tensors, commands, limits, tokens; and the client RemoteTrainer."""

import gc
import http.client
import json
import logging
import os
import re
import signal
import sys
import threading

import forked
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from online.trainer_of_stream import make, points, program
from serving.running_server import post, raw

import fluid
from fluid import errors
from fluid.__main__ import main

LINES = "Content-Type: application/x-ndjson"
GOOD = b'{"x": 1.0, "y": [3.0]}\n\n{"y": 5, "x": [2]}\n'
TENSORS = {
    "inputs": [
        {"name": "x", "datatype": "FP32", "shape": [2, 1], "data": [1, 2]},
        {"name": "y", "datatype": "FP32", "shape": [2, 1], "data": [[3], [5]]},
    ]
}


@pytest.fixture(scope="module")
def online(tmp_path_factory):
    folder = tmp_path_factory.mktemp("online")
    with make(
        folder / "online",
        max_rows=100,
        publish_to=folder / "models",
        fetch=["guess"],
        export={"platforms": ["cpu"]},
    ) as online:
        yield online


@pytest.fixture(scope="module")
def server(online):
    with online.serve(port=0, max_body=5000, max_json=4000, read_timeout=1.0) as server:
        yield server


@pytest.fixture
def remote(server):
    return fluid.RemoteTrainer(server.url)


def ask(server, data):
    status, body = raw(server, data)
    return status, json.loads(body)


def send(server, body, *headers):
    return ask(server, post("/rows", body, *headers))


def get(path, *headers):
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode()


def test_rows_as_lines_and_as_tensors(server, online):
    before = online.status()["accepted"]
    told = [
        send(server, GOOD, LINES),
        send(server, json.dumps(TENSORS).encode(), "Content-Type: application/json; charset=utf-8"),
    ]
    packed = online.rows.pack([(1.0, 3.0), (2.0, 5.0)])
    length = f"Inference-Header-Content-Length: {packed.head}"
    told.append(send(server, packed.body, "Content-Type: application/octet-stream", length))
    assert told == [(200, {"first": before + 2 * n, "rows": 2, "repeated": False}) for n in range(3)]
    entries = online._journal.read(before, before + 6)
    assert len({entry.body for entry in entries}) == 1, "they are the same rows"


def test_rows_in_half_precision(server, online):
    before = online.status()["accepted"]
    for datatype in ("BF16", "FP16"):
        dtype = jnp.bfloat16 if datatype == "BF16" else np.float16
        tensors = [
            {"name": name, "datatype": datatype, "shape": [2, 1], "parameters": {"binary_data_size": 4}}
            for name in ("x", "y")
        ]
        head = json.dumps({"inputs": tensors}).encode()
        length = f"Inference-Header-Content-Length: {len(head)}"
        body = head + np.array([1, 2, 3, 5], dtype).tobytes()
        status, told = send(server, body, "Content-Type: application/octet-stream", length)
        assert (status, told["rows"]) == (200, 2)
    entries = online._journal.read(before, before + 4)
    assert {entry.body for entry in entries} == {online.rows.pack([(1.0, 3.0), (2.0, 5.0)]).body}


def test_row_65_padded_rows_have_a_byte_limit(tmp_path):
    with make(tmp_path, function=program, batch_size=4) as online, online.serve(port=0, max_body=1400) as server:
        row = {"x": [0, 0, 0], "words": [1], "y": [0]}
        lines = [json.dumps(row | {"words": [1] * length}) for length in [1] * 30 + [8]]
        status, told = send(server, "\n".join(lines[:30]).encode(), LINES)
        assert status == 200
        status, told = send(server, "\n".join(lines).encode(), LINES)
        assert status == 400 and "when sequences are padded to the longest, expected at most 1400" in told["error"]
        words = {"name": "words", "datatype": "INT8", "shape": [100, 8], "parameters": {"binary_data_size": 800}}
        head = json.dumps({"inputs": [words]}).encode()
        length = f"Inference-Header-Content-Length: {len(head)}"
        status, told = send(server, head + bytes(800), "Content-Type: application/octet-stream", length)
        assert status == 400 and "found rows that have 3200 bytes" in told["error"]
        assert online.status()["accepted"] == 30


def test_row_50_the_same_key_adds_nothing(server, online):
    first = send(server, GOOD, LINES, "Idempotency-Key: the same")
    assert send(server, GOOD, LINES, "Idempotency-Key: the same") == (200, {**first[1], "repeated": True})
    status, told = send(server, b'{"x": 1.0, "y": 1}', LINES, "Idempotency-Key: the same")
    assert (status, told["kind"]) == (409, "OnlineError") and "other rows were sent with the key" in told["error"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "why"),
    [
        (b"", [LINES], 400, "found no line"),
        (b'{"x": 1, "y": 1}\n{"x": 1', [LINES], 400, "line 2: no JSON"),
        (b"[1, 2]", [LINES], 400, "line 1: expected a JSON object, found list"),
        (b'{"x": 1, "x": 2, "y": 1}', [LINES], 400, "the name 'x' stands twice"),
        (b'{"x": 1, "y": NaN}', [LINES], 400, "NaN is no number of JSON"),
        (b'{"x": 1, "y": 1e999}', [LINES], 400, "feed 'y': found NaN or an infinity"),
        (b'{"x": 1}', [LINES], 400, "feed 'y', sample 0"),
        (b'{"x": 1, "y": 1, "z": 1}', [LINES], 400, "found 'z', which the program does not declare"),
        (b'{"x": 1, "y": "one"}', [LINES], 400, "feed 'y'"),
        (b'{"x": [1, 2], "y": 1}', [LINES], 400, "feed 'x'"),
        (GOOD, [], 415, "found the Content-Type '', expected application/x-ndjson"),
        (GOOD, ["Content-Type: application/x-www-form-urlencoded"], 415, "'application/x-www-form-urlencoded'"),
        (GOOD, [LINES, "Content-Encoding: gzip"], 415, "compressed"),
        (GOOD, [LINES, "Idempotency-Key: " + "k" * 200], 400, "a key has 1 to 128"),
        (b"{}", ["Content-Type: application/json"], 400, 'a request has "inputs"'),
        (b'{"inputs": [{"name": "z", "datatype": "FP32", "shape": [1], "data": [1]}]}',
         ["Content-Type: application/json"], 400, "there is no tensor 'z' here"),
        (b"{}", ["Content-Type: application/octet-stream", "Inference-Header-Content-Length: 1e3"], 400, "a number"),
        (b"{}", ["Content-Type: application/octet-stream", "Inference-Header-Content-Length: 30"], 400, "has 2 bytes"),
        (b" " * 4500, [LINES], 413, "4000 bytes of JSON"),
        (b" " * 5500, [LINES], 413, "5000 bytes"),
        (b'{"x": 1, "y": 1}\n' * 600, [LINES], 413, "5000 bytes"),
        (b"{}\n" * 101, [LINES], 400, "found 101 rows at once, expected at most 100; send them in parts"),
        (b'{"inputs": [{"name": "x", "datatype": "UINT8", "shape": [150, 1], "parameters": {"binary_data_size": 150}}]}'
         + bytes(150), ["Content-Type: application/octet-stream", "Inference-Header-Content-Length: 108"], 400,
         "found 150 rows at once"),
        (b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [-1], "data": [' + b"[]," * 150 + b"[]]}]}",
         ["Content-Type: application/json"], 400, "found 151 rows at once"),
        (GOOD, [LINES, "Origin: https://example.org"], 403, "pages in a browser cannot ask this server"),
    ],
)  # fmt: skip
def test_row_50_bad_requests_add_nothing(server, online, body, headers, status, why):
    before = online.status()["accepted"]
    found, told = send(server, body, *headers)
    assert found == status and why in told["error"]
    assert "/" not in re.sub(r"application/[\w-]+|and/or", "", told["error"]), "no path of this machine"
    assert online.status()["accepted"] == before


@settings(max_examples=30)
@given(
    st.binary(max_size=60)
    | st.lists(st.dictionaries(st.sampled_from("xyz"), st.recursive(st.none() | st.floats() | st.text(), st.lists)))
    .map(lambda rows: "\n".join(map(json.dumps, rows)).encode())
)  # fmt: skip
def test_any_body_is_accepted_or_refused(server, body):
    status, told = send(server, body, LINES)
    assert status in (200, 400, 413) and ("error" in told) == (status != 200)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (get("/nothing"), 404),
        (get("/rows"), 405),
        (get("/stop"), 405),
        (post("/status", b""), 405),
        (get("/skip/4"), 405),
        (post("/skip/4,", b""), 404),
        (post(f"/skip/{10**18}", b""), 404),
        (post("/skip/4,7", b""), 409),
        (post("/rows", b"{", LINES, length=100), 408),
        (get("/status", "Host: example.org").replace(b"Host: localhost\r\n", b""), 403),
    ],
)
def test_other_paths_methods_and_names(server, data, status):
    found, told = ask(server, data)
    assert found == status and told["error"]


def test_health_and_metrics(server, online):
    assert ask(server, get("/health/live")) == (200, {"live": True})
    assert ask(server, get("/health/ready")) == (200, {"ready": True, "state": online.status()["state"]})
    status, text = raw(server, get("/metrics"))
    figures = dict(line.rsplit(" ", 1) for line in text.decode().splitlines() if not line.startswith("#"))
    assert status == 200 and float(figures["fluid_online_rows_accepted_total"]) == online.status()["accepted"]
    assert float(figures['fluid_online_requests_total{path="/health/live",status="200"}']) >= 1
    assert {path for path in re.findall('path="([^"]*)"', text.decode())} <= {*server.app._paths, ""}
    assert "fluid_online_rows_trained_total" in online.metrics()


def test_the_verbs_from_afar(remote, online):
    remote.send(points(20))
    assert remote.pause()["state"] == "paused"
    steps = remote.status()["steps"]
    assert remote.resume()["state"] in ("training", "waiting")
    remote.send(points(20))
    while remote.save()["state"] == "training":
        pass
    status = remote.publish()
    assert status["published"] == status["steps"] > steps
    assert remote.stop()["state"] == "stopped"
    with pytest.raises(errors.OnlineError, match="nothing is trained now"):
        remote.save()
    assert remote.start()["steps"] == status["steps"]
    assert f"fluid_online_steps_total {status['steps']}.0" in remote.metrics()


def test_bad_rows_are_the_same_error_from_afar(remote, online):
    for rows in ([(1.0,)], {"z": [1.0]}, [(float("nan"), 1.0)]):
        with pytest.raises(errors.FluidError) as here:
            online.send(rows)
        with pytest.raises(errors.FluidError) as there:
            remote.send(rows)
        assert type(here.value) is type(there.value)
        assert str(here.value) == re.sub(r" \(declared at [^)]*\)", "", str(there.value))


def test_row_49_a_full_journal_answers_429_until_drained(server, online, remote):
    remote.pause()
    while True:
        status, body = raw(server, post("/rows", b'{"x": 1, "y": 1}\n' * 40, LINES))
        if status != 200:
            break
    assert status == 429 and json.loads(body)["kind"] == "JournalFullError"
    with pytest.raises(errors.JournalFullError, match="rows wait to be trained on, of 100"):
        remote.send(points(80), wait=0)
    # With wait=120, the client sends refused rows again, until training has freed capacity in the journal (the database
    # of accepted rows).
    sending = threading.Thread(target=lambda: online.resume())
    sending.start()
    assert remote.send(points(80), wait=120) == online.status()["accepted"] - 80
    sending.join()


def test_retry_after_is_said(server, online, remote):
    remote.pause()
    accepted = online.status()
    online.send(points(100 - accepted["waiting"]))
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"))
    connection.request("POST", "/rows", GOOD, {"Content-Type": "application/x-ndjson"})
    answer = connection.getresponse()
    assert (answer.status, answer.headers["Retry-After"]) == (429, "1")
    answer.read()
    connection.close()
    remote.resume()


def test_answers_name_no_folders_and_the_log_does(in_tmp, caplog):
    with make("secret", publish_to="hidden/models", fetch=["guess"]) as online, online.serve(port=0) as server:
        for folder, name in {"secret": "the folder of the training", "hidden/models": "the folder of versions"}.items():
            message = f"found {folder!r} and {folder + '/a/journal.db'!r} and '/srv/private/b.db' there"

            def broken(message=message):
                raise errors.CheckpointError(message)

            def refused(message=message):
                raise errors.OnlineError(message)

            online.save, online.pause = broken, refused
            for verb, status in (("save", 400), ("pause", 409)):
                found, answer = ask(server, post(f"/{verb}", b""))
                want = f"found {name} and 'journal.db' and 'b.db' there"
                assert (found, answer["error"]) == (status, want)
                assert message in caplog.text
        online._control.failure = RuntimeError("no space in '/srv/private/b.db'")
        for data in (get("/status"), post("/resume", b"")):
            assert "no space in 'b.db'" in ask(server, data)[1]["error"]
        online._control.failure = None


def test_row_67_tokens(online):
    with online.serve(port=0, token="secret") as server:
        for data in (get("/status"), post("/stop", b""), post("/rows", GOOD, LINES)):
            assert ask(server, data)[0] == 401
        assert ask(server, get("/health/live"))[0] == 200
        assert fluid.RemoteTrainer(server.url, token="secret").status()["state"] != "stopped"
        with pytest.raises(errors.RemoteError, match="401"):
            fluid.RemoteTrainer(server.url)
    with pytest.raises(errors.ArgumentError, match="can be reached from other machines, so a token is needed"):
        online.serve(host="0.0.0.0", port=0)


def test_a_port_that_is_taken(online, server):
    with pytest.raises(errors.ArgumentError, match="cannot listen on"):
        online.serve(port=int(server.url.rpartition(":")[2]))


def test_each_request_logs_a_line_of_json(server, caplog):
    with caplog.at_level(logging.INFO, "fluid.serving.access"):
        send(server, GOOD, LINES)
        ask(server, get("/health/live"))  # when this request is answered, the first request has its line in the log
    told = [json.loads(record.getMessage()) for record in caplog.records]
    assert ("/rows", 200, len(GOOD)) in [(line["path"], line["status"], line["received"]) for line in told]


def test_wrong_server_addresses_raise_named_errors(server):
    with pytest.raises(errors.ArgumentError, match="expected that of a server"):
        fluid.RemoteTrainer("localhost:8001")
    with pytest.raises(errors.RemoteError, match="does not answer"):
        fluid.RemoteTrainer("http://127.0.0.1:9")


def test_a_server_that_went_away(tmp_path):
    with make(tmp_path / "online") as online:
        with online.serve(port=0) as server:
            remote = fluid.RemoteTrainer(server.url)
        with pytest.raises(errors.RemoteError, match="python -m fluid online"):
            remote.send(points(1), wait=0)


NET = """
import fluid

def train_program():
    x, y = fluid.layers.data("x", shape=[1]), fluid.layers.data("y", shape=[1])
    guess = fluid.layers.fc(x, size=1, name="guess")
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(guess, y))}

def optimizer():
    return fluid.optimizer.SGD(0.1)
"""


def test_from_a_shell_until_sigterm(in_tmp):
    (in_tmp / "net.py").write_text(NET)
    command = ["-m", "fluid", "online", "net.py:train_program", "kept", "--optimizer", "net.py:optimizer"]
    command += ["--batch-size", "4", "--port", "0", "--publish-to", "models", "--fetch", "guess", "--platforms", "cpu"]
    with forked.Process(*command) as process:
        remote = fluid.RemoteTrainer(process.stdout.readline().strip())
        remote.send(points(30))
        while remote.save()["state"] == "training":
            pass
        assert remote.publish()["published"] == 6
        remote.send(points(14))
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate()
    assert process.returncode == 0, said
    assert re.search(r"ended after (\d+) steps, \1 of them saved", said)
    assert sorted(os.listdir("models")) == ["6"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nowhere.py:program", "kept"], "there is no such file"),
        (["net.py:NET", "kept"], "there is no 'NET'"),
        (["net.py:train_program", "kept", "--batch-size", "0"], "batch_size=0"),
        (["net.py:train_program", "kept", "--fetch", "guess"], "publish_to= where"),
        (["net.py:train_program", "kept", "--host", "0.0.0.0"], "so a token is needed"),
        (["net.py:train_program", "kept", "--token-file", "nowhere"], "--token-file"),
        (["net.py:train_program", "kept", "--port", "99999"], "port=99999, expected a number from 1 to 65535"),
        (["net.py:train_program", "kept", "--port", "-1"], "port=-1"),
        (["net.py:train_program", "kept", "--skip-rows", "0,3"], "cannot skip row 0"),
    ],
)
def test_mistakes_in_a_shell(in_tmp, monkeypatch, capsys, arguments, why):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "net", raising=False)
    monkeypatch.delenv("FLUID_SERVE_TOKEN", raising=False)
    (in_tmp / "net.py").write_text(NET)
    assert main(["online", *arguments]) == 1
    assert why in capsys.readouterr().err
    sys.modules.pop("net", None)


def test_serving_freezes_the_garbage_collector(in_tmp, monkeypatch):
    class Server:
        url = "http://127.0.0.1:1"

        def run(self):
            assert gc.get_freeze_count() > 0

    monkeypatch.setattr(fluid.OnlineTrainer, "host", lambda *arguments: Server())
    (in_tmp / "net.py").write_text(
        "import fluid\ndef train_program():\n    x = fluid.layers.data('x', shape=[1])\n"
        "    return {'loss': fluid.layers.mean(fluid.layers.fc(x, size=1))}\n"
    )
    try:
        assert main(["online", "net.py:train_program", "folder"]) == 0
    finally:
        gc.unfreeze()
