"""Row 47: whatever comes, a server answers with less than 500, or with 503 or 504; it does not grow, and goes on."""

import json
import os
import pathlib
import subprocess
import sys
import types

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving.served import DIGITS, IMAGES, digits, image_request, post, raw, save, sentiment

import fluid

# So many requests of each of three kinds; `make soak` asks for more.
REQUESTS = int(os.environ.get("FLUID_REQUESTS", "300")) // 3
FUZZED = settings(max_examples=REQUESTS, suppress_health_check=list(HealthCheck), database=None)
SENTIMENT = "/v2/models/sentiment/infer"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server in a process of its own, so that its memory can be looked at."""
    folder = tmp_path_factory.mktemp("models")
    models = [str(save(folder / f"{f.__name__}.fluid", f)) for f in (digits, sentiment)]
    options = ["--port", "0", "--max-batch", "2", "--buckets", "4", "--timeout", "10", "--max-body", "1000000"]
    started = subprocess.Popen(
        [sys.executable, "-m", "fluid", "serve", *models, *options], text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(pathlib.Path(fluid.__file__).parents[1])},
    )  # fmt: skip
    with started:
        try:
            found = types.SimpleNamespace(url=started.stdout.readline().strip(), process=started)
            while not good(found):
                assert started.poll() is None
            yield found
        finally:
            started.kill()


def good(server):
    """Whether the next client is served."""
    return raw(server, post(DIGITS, json.dumps(image_request()).encode()))[0] == 200


def memory(server):
    """Megabytes that the process of the server holds."""
    status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def check(server, data, close=True):
    """Send bytes; no more come, so that the server need not wait for the rest."""
    status, body = raw(server, data, close)
    assert status is None or status < 500 or status in (503, 504), (status, body[:300], data[:1000])
    assert server.process.poll() is None
    return status


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["FP32", "INT64", "BOOL", "BF16", "BYTES", "words", "image", "words.lengths"])
    | st.sampled_from([1 << 63, 1 << 31, -1, 1e308]),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from("name shape datatype data parameters binary_data_size".split()), inner),
    max_leaves=12,
)  # fmt: skip


@st.composite
def mutated(draw):
    """A good request in which some values were replaced, at any depth."""
    words = {"name": "words", "shape": [2, -1], "datatype": "INT64", "data": [[1, 2], [3]]}
    padded = {"name": "words", "shape": [2, 2], "datatype": "INT64", "data": [1, 2, 3, 0]}
    lengths = {"name": "words.lengths", "shape": [2], "datatype": "INT32", "data": [2, 1]}
    path, request = draw(
        st.sampled_from(
            [(DIGITS, image_request()), (SENTIMENT, {"inputs": [words]}), (SENTIMENT, {"inputs": [padded, lengths]})]
        )
    )
    request = json.loads(json.dumps(request | {"id": "1", "parameters": {}, "outputs": None}))
    for _ in range(draw(st.integers(1, 3))):
        place, last = request, None
        while isinstance(place, dict | list) and place and draw(st.integers(0, 4)):
            key = draw(st.sampled_from(list(place) if isinstance(place, dict) else list(range(min(len(place), 4)))))
            last, place = (place, key), place[key]
        if last is not None:
            last[0][last[1]] = draw(ANYTHING)
    return path, request


@FUZZED
@given(mutated())
def test_row_47_values_of_any_kind(server, request_):
    path, request = request_
    assert check(server, post(path, json.dumps(request).encode()), close=False) is not None


@FUZZED
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["image", "words", "words.lengths", "other"]), st.lists(st.integers(-2, 70), max_size=5),
            st.sampled_from("FP32 INT64 INT32 BOOL BF16 FP64 UINT8".split()), st.integers(-1, 600),
        ),
        max_size=4,
    ),
    st.binary(max_size=600), st.integers(-3, 3), st.booleans(), st.booleans(),
)  # fmt: skip
def test_row_47_binary_tensors_of_any_kind(server, tensors, rest, off, real, for_digits):
    inputs = [
        {"name": n, "shape": s, "datatype": d, "parameters": {"binary_data_size": size}} for n, s, d, size in tensors
    ]
    if real:
        inputs[:1] = [image_request()["inputs"][0] | {"data": None, "parameters": {"binary_data_size": 256}}]
        rest = IMAGES[:1].tobytes() + rest
    header = json.dumps({"inputs": inputs}).encode()
    length = f"Inference-Header-Content-Length: {len(header) + off}"
    assert check(server, post(DIGITS if for_digits else SENTIMENT, header + rest, length), close=False) is not None


@FUZZED
@given(st.data())
def test_row_47_bytes_of_any_kind(server, data):
    good_one = post(DIGITS, json.dumps(image_request()).encode())
    message = bytearray(data.draw(st.sampled_from([good_one, b"GET /v2/models HTTP/1.1\r\nHost: x\r\n\r\n" * 2, b""])))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, min(len(message), 400)))
        kind = data.draw(st.sampled_from(["replace", "insert", "cut", "drop"]))
        piece = data.draw(
            st.binary(max_size=30)
            | st.sampled_from([b"\r\n", b"\0", b"Content-Length: 9\r\n", b"Transfer-Encoding: chunked\r\n"])
        )
        if kind == "cut":
            del message[at:]
        elif kind == "drop":
            del message[at : at + len(piece)]
        else:
            message[at : at + (len(piece) if kind == "replace" else 0)] = piece
    check(server, bytes(message))


def test_row_47_it_does_not_grow_and_the_next_client_is_served(server):
    """What the tests above have left behind, and what as many requests again add to it."""
    assert good(server)
    bad = [
        post(DIGITS, b"[" * 100_000),
        post(DIGITS, b'{"inputs": [' + b"[]," * 20_000 + b"[]]}"),
        post(DIGITS, json.dumps(image_request(2)).encode().replace(b"FP32", b"INT8")),
        post(f"/v2/models/{'x' * 1000}/infer", b"{}"),
        post(DIGITS, b"x", length=900_000),
    ]

    def again():
        for i in range(REQUESTS):
            check(server, bad[i % len(bad)])
        assert good(server)
        return memory(server)

    before = again()
    assert again() < before + 16
