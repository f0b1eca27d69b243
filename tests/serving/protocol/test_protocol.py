"""Messages of the Open Inference Protocol: valid messages survive a round trip, all other bytes are refused."""

import functools
import json
import tracemalloc

import hypothesis.extra.numpy as some
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluid import errors
from fluid.core import NestedSequenceBatch, SequenceBatch
from fluid.serving import protocol
from fluid.serving.protocol import messages, tensors

DTYPES = st.sampled_from([dtype for name, dtype in tensors.DTYPES.items() if name != "BF16"])
ARRAYS = DTYPES.flatmap(lambda d: some.arrays(d, some.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)))


@given(st.dictionaries(st.text(min_size=1, max_size=5), ARRAYS, min_size=1, max_size=3), st.booleans())
def test_requests_survive_a_round_trip(values, binary):
    found = [protocol.MessageTensor(name, array) for name, array in values.items()]
    body, length = protocol.write_request(protocol.InferRequest(found, [protocol.Wanted("y", True)], "7", binary))
    got = protocol.read_request(body, length)
    assert (got.id, got.binary, got.outputs) == ("7", binary, [protocol.Wanted("y", True)])
    for tensor in got.inputs:
        want = values[tensor.name]
        assert tensor.data.dtype == want.dtype and tensor.data.shape == want.shape
        assert tensor.data.tobytes() == want.tobytes()


@given(ARRAYS, st.booleans())
def test_answers_survive_a_round_trip(array, binary):
    names = frozenset({"y"} if binary else ())
    response = protocol.InferResponse("m", "3", [protocol.MessageTensor("y", array)], None, names)
    body, length = protocol.finished(protocol.write_response(response))
    assert (length is not None) == binary
    finite = array.dtype.kind != "f" or np.isfinite(array).all()
    if not binary and not finite:
        data = json.loads(body)["outputs"][0]["data"]
        assert [float(x) for x in data] == pytest.approx(array.ravel().tolist(), nan_ok=True)
        return
    got = protocol.read_response(body, length)
    assert (got.model, got.version) == ("m", "3")
    assert got.outputs[0].data.tobytes() == array.tobytes() and got.outputs[0].data.shape == array.shape


def test_half_precision_of_both_kinds():
    values = {"b": np.array([1.5, -2.0], tensors.DTYPES["BF16"]), "h": np.array([0.25], "float16")}
    body, length = protocol.write_request(protocol.InferRequest(protocol.to_tensors(values)))
    got = {t.name: t.data for t in protocol.read_request(body, length).inputs}
    assert got["b"].dtype == values["b"].dtype and got["b"].tolist() == [1.5, -2.0] and got["h"].tolist() == [0.25]
    assert list(tensors.to_json(values["b"])) == [[1.5, -2.0]]


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=4))
def test_sequences_survive_a_round_trip(rows):
    batch = SequenceBatch.from_rows([np.array(row, "int32") for row in rows], time=16)
    parts = protocol.to_tensors({"s": batch})
    assert [t.name for t in parts] == ["s", "s.lengths"] and parts[0].data.shape[1] == max(map(len, rows))
    (got,) = protocol.from_tensors(parts, {"s": 1}).values()
    assert [row.tolist() for row in got.rows()] == rows
    assert protocol.padded_as_before(got).shape[1] in (4, 8, 16)


@given(st.lists(st.lists(st.lists(st.integers(0, 9), max_size=3), max_size=3), min_size=1, max_size=3))
def test_nested_sequences_survive_a_round_trip(rows):
    batch = NestedSequenceBatch.from_rows([[np.array(s, "int32") for s in row] for row in rows])
    parts = protocol.to_tensors({"s": batch})
    assert [t.name for t in parts] == ["s", "s.lengths", "s.inner_lengths"]
    (got,) = protocol.from_tensors(parts, {"s": 2}).values()
    assert [[s.tolist() for s in row] for row in protocol.padded_as_before(got).rows()] == rows


GOOD = {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2]}


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"name": 3}, "needs a name"), ({"name": ""}, "needs a name"), ({"datatype": "BYTES"}, "expected one of BOOL"),
        ({"datatype": []}, "expected one of BOOL"), ({"shape": "2"}, "a list of at most 32 sizes"),
        ({"shape": [2.0]}, "a list of at most 32"), ({"shape": [True]}, "a list of at most 32"),
        ({"shape": [-2]}, "a list of at most 32"), ({"shape": [1] * 33}, "a list of at most 32"),
        ({"shape": [3]}, r"2 numbers, and the shape \[3\]"), ({"shape": [1 << 62, 1 << 62]}, "a list of at most 32"),
        ({"shape": [0, 1 << 30, 1 << 30], "data": []}, "at most 1024 rows"), ({"data": None}, "as a list"),
        ({"data": {"0": 1}}, "as a list"), ({"data": [1, [2]]}, "differ in length"), ({"data": ["1", "2"]}, "not of"),
        ({"data": [None, 1]}, "not of the"), ({"data": [{}, 1]}, "not of the"),
        ({"data": [1, 1 << 200]}, r"at \[1\] is too large for FP32"),
        ({"data": [1, 10**400]}, "too large for FP32"),
        ({"datatype": "INT64", "data": [1, 1 << 63]}, r"at \[1\] is too large"),
        ({"datatype": "INT32", "data": [2, 1.5]}, r"tensor 'x': 1.5 at \[1\] is not of the datatype INT32"),
        ({"shape": [2, 1], "data": [[1], ["a"]]}, r"'a' at \[1, 0\] is not of the datatype FP32"),
        ({"datatype": "INT8", "data": [1, 300]}, r"tensor 'x': 300 at \[1\] is too large for INT8"),
        ({"datatype": "UINT8", "data": [-1, 0]}, "too large for UINT8"), ({"datatype": "BOOL", "data": [1, 0]}, "BOOL"),
        ({"data": [1e300, 1]}, "too large for FP32"), ({"parameters": []}, "are an object"),
        ({"parameters": {"binary_data_size": 8}}, "data or binary_data_size"), ({"shape": [3, -1]}, "2 rows"),
    ],
)  # fmt: skip
def test_inconsistent_tensors_are_refused(change, match):
    with pytest.raises(errors.ProtocolError, match=match):
        protocol.read_request(json.dumps({"inputs": [GOOD | change]}).encode())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"shape": [5_000_000, 0], "data": []}, "5000000, 0.* at most 1024 rows"),
        ({"shape": [10_000], "data": ["x" * 50_000, *["a"] * 9_999]}, "not of the datatype FP32"),
        ({"shape": [10_000, -1], "data": [["x" * 50_000], *[["a"]] * 9_999]}, "not of the datatype FP32"),
        ({"data": functools.reduce(lambda inner, _: [inner], range(500), [1.0])}, "not of the datatype FP32"),
        ({"shape": [int("9" * 4000), 0], "parameters": {"binary_data_size": 0}}, "a list of at most 32 sizes"),
    ],
)
def test_row_65_small_messages_take_little_memory(change, match):
    body = json.dumps(
        {"inputs": [{k: v for k, v in (GOOD | change).items() if k != "data" or "parameters" not in change}]}
    )
    tracemalloc.start()
    try:
        with pytest.raises(errors.ProtocolError, match=match):
            protocol.read_request(body.encode())
        assert tracemalloc.get_traced_memory()[1] < 3 * len(body) + 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("[]", "expected a JSON object"), ("{}", "a list of tensors"), ('{"inputs": 3}', "is a list of tensors"),
        ('{"inputs": []}', "found none"), ('{"inputs": [3]}', "expected a tensor"), ('{"inputs": [{}], "id": 3}', "id"),
        ('{"inputs": [{}], "parameters": {"binary_data_output": 1}}', "true or false"),
        ('{"inputs": [{}], "outputs": [{}]}', "needs a name"),
    ],
)  # fmt: skip
def test_inconsistent_requests_are_refused(text, match):
    with pytest.raises(errors.ProtocolError, match=match):
        protocol.read_request(text.encode())


@pytest.mark.parametrize("whole", [2**64, -(2**63) - 1, 10**30])
def test_whole_numbers_beyond_64_bits_are_numbers(whole):
    for datatype in ("FP32", "FP64", "BF16"):
        tensor = GOOD | {"shape": [20_000], "datatype": datatype, "data": [1] * 19_999 + [whole]}
        (read,) = protocol.read_request(json.dumps({"inputs": [tensor]}).encode()).inputs
        assert read.data[0] == 1 and float(read.data[-1]) == pytest.approx(whole, rel=0.01)


def test_the_same_tensor_twice_and_too_many():
    with pytest.raises(errors.ProtocolError, match="there twice"):
        protocol.read_request(json.dumps({"inputs": [GOOD, GOOD]}).encode())
    many = [GOOD | {"name": str(i)} for i in range(5)]
    with pytest.raises(errors.ProtocolError, match="5 tensors, expected at most 4"):
        protocol.read_request(json.dumps({"inputs": many}).encode(), most_inputs=4)


def binary(size, shape, body, datatype="FP32"):
    tensor = {"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}
    header = json.dumps({"inputs": [tensor]}).encode()
    return header + body, len(header)


@pytest.mark.parametrize(
    ("message", "match"),
    [
        (binary(8, [2], b"1234"), "4 bytes are left"), (binary(4, [2], b"1234"), "4 bytes, expected 8"),
        (binary(-1, [2], b""), "left behind"), (binary("8", [2], bytes(8)), "left behind"),
        (binary(8, [-1], bytes(8)), "no -1"), (binary(4, [1], bytes(8)), "4 bytes are left behind the last"),
        (binary(2, [2], b"\0\2", "BOOL"), "byte 0 or 1"), (binary(0, [0, 1 << 62, 1 << 62], b""), "at most 32 sizes"),
        ((b"{}", 3), "the body has 2 bytes"),
    ],
)  # fmt: skip
def test_wrong_binary_lengths_are_refused(message, match):
    with pytest.raises(errors.ProtocolError, match=match):
        protocol.read_request(*message)


@pytest.mark.parametrize(("off", "told"), [(None, "is missing"), (-1, r"is \d+; it counts"), (4, r"is \d+; it counts")])
@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"12345678"])
def test_the_header_of_the_length_is_named(off, told, body):
    message, length = binary(8, [2], body)
    if off and off > 0 and not body:
        message += b"    "
    with pytest.raises(errors.ProtocolError, match=f"inference-header-content-length {told}"):
        protocol.read_request(message, None if off is None else length + off)


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"s": [[1]], "t": [1]}, "no tensor 't' here"), ({"s.lengths": np.array([1])}, "no tensor 's.lengths'"),
        ({"s": np.zeros((1, 2)), "s.lengths": np.array([1.5])}, "whole numbers"),
        ({"s": [[1]], "s.lengths": np.array([1])}, "as rows, or padded"),
        ({"n": np.zeros((1, 1, 1)), "n.lengths": np.array([1])}, "as rows, or padded"),
    ],
)  # fmt: skip
def test_inconsistent_sequences_are_refused(given, match):
    with pytest.raises(errors.ProtocolError, match=match):
        protocol.from_tensors([protocol.MessageTensor(n, v) for n, v in given.items()], {"s": 1, "n": 2})


def test_requests_with_equal_json_keep_separate_tensors():
    for number in range(3):
        body, length = protocol.write_request(
            protocol.InferRequest([protocol.MessageTensor("x", np.float32([[number]]))])
        )
        (tensor,) = protocol.read_request(body, length).inputs
        assert tensor.data.tolist() == [[number]]
        with pytest.raises(errors.ProtocolError, match="expected at most 0"):
            protocol.read_request(body, length, most_inputs=0)
    with pytest.raises(errors.ProtocolError, match="left behind the JSON"):
        protocol.read_request(body[:-1], length)


def test_the_cache_of_request_headers_is_bounded():
    for number in range(2 * messages._MOST_KNOWN):
        tensor = protocol.MessageTensor(f"x{number}", np.zeros(1, "float32"))
        protocol.read_request(*protocol.write_request(protocol.InferRequest([tensor])))
        assert len(messages._KNOWN) <= messages._MOST_KNOWN
    before = set(messages._KNOWN)
    for tensor in (
        protocol.MessageTensor("x" * messages._SHORT, np.zeros(1, "float32")),
        protocol.MessageTensor("x", np.zeros(1)),
    ):
        protocol.read_request(*protocol.write_request(protocol.InferRequest([tensor], id="one of many")))
    protocol.read_request(json.dumps({"inputs": [GOOD]}).encode())
    assert set(messages._KNOWN) == before, "nothing long, nothing that comes once, no numbers"


@given(st.lists(st.sampled_from([("FP32", (2, 3)), ("INT64", (1,)), ("BOOL", (0, 2)), ("BF16", (4,))]), max_size=3))
def test_binary_answers_survive_a_round_trip(kinds):
    outputs = [
        protocol.MessageTensor(f"y{i}", np.random.default_rng(i).normal(size=shape).astype(tensors.DTYPES[kind]))
        for i, (kind, shape) in enumerate(kinds)
    ]
    for again in (False, True):
        binary = frozenset(tensor.name for tensor in outputs)
        answer = protocol.InferResponse("model", "7", outputs, binary=binary)
        body, length = protocol.finished(protocol.write_response(answer))
        assert (length is None) == (not outputs), again
        found = protocol.read_response(body, length)
        assert (found.model, found.version, found.id) == ("model", "7", None)
        for mine, theirs in zip(outputs, found.outputs, strict=True):
            assert mine.name == theirs.name and mine.data.dtype == theirs.data.dtype
            assert mine.data.shape == theirs.data.shape and mine.data.tobytes() == theirs.data.tobytes()
