"""Requests and responses of the Open Inference Protocol, version 2, and their conversion to bytes and back."""

import collections
import functools
import json
import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from fluid import errors
from fluid.serving.protocol import tensors
from fluid.serving.protocol.tensors import MessageTensor, short

T = TypeVar("T")
Turns = Generator[None, None, T]
"""Work that takes long: each `yield` ends a turn of a few milliseconds, and the generator returns the result."""
HEADER_LENGTH = "inference-header-content-length"


@dataclass(frozen=True)
class Wanted:
    """A requested output: its `name`, and `binary`, True to send the numbers as bytes instead of JSON."""

    name: str
    binary: bool


@dataclass(frozen=True)
class InferRequest:
    """An inference request.

    Attributes:
      inputs: the tensors of the feeds.
      outputs: the requested outputs, or None for all.
      id: a string of the client that the response repeats, or None.
      binary: True if outputs are sent as bytes, unless `outputs` specifies it for each output.
      seed: the seed of random numbers, for a model that samples; with None, each response has other random numbers.
      rows: raw rows for a model with a table, instead of `inputs`: a dict of columns for each row, whose values are
        strings, numbers or None.
    """

    inputs: Sequence[MessageTensor]
    outputs: Sequence[Wanted] | None = None
    id: str | None = None
    binary: bool = False
    seed: int | None = None
    rows: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class InferResponse:
    """A response to an inference request.

    Attributes:
      model: the name of the model.
      version: the version of the model.
      outputs: the tensors of the outputs.
      id: the id of the request, or None.
      binary: the names of the outputs that are sent as bytes.
    """

    model: str
    version: str
    outputs: Sequence[MessageTensor]
    id: str | None = None
    binary: frozenset[str] = field(default_factory=frozenset)


class _Described(NamedTuple):
    """The description of a tensor in the JSON of a message.

    For a tensor in JSON, `data` has the numbers and `size` is None. For a binary tensor, `size` is the number of bytes.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    size: int | None
    data: Any


class _Header(NamedTuple):
    """The parsed JSON of an inference request, before its tensors are read; the fields are as in `InferRequest`."""

    inputs: Sequence[_Described]
    outputs: Sequence[Wanted] | None
    id: str | None
    binary: bool
    seed: int | None
    rows: Sequence[Mapping[str, Any]] | None


# A cache of parsed JSON: clients with binary tensors send the same few hundred bytes of JSON in each request, and
# parsing them takes longer than a small model. The number of entries is limited, because clients choose the bytes.
_KNOWN: dict[tuple[bytes, int], _Header] = {}
_MOST_KNOWN = 256
_SHORT = 2048  # the maximum size, in bytes, of JSON that is stored in the cache
LONG = 1 << 16
"""The size of JSON, in bytes, above which parsing takes milliseconds, so that a server parses it in another thread."""
# The maximum numbers of lists and strings in long JSON; JSON with more is refused. While Python frees a million lists,
# or collects garbage among them, no other thread runs. Tensors need fewer, because they hold no strings, and each list
# is a row of several numbers.
_MOST_LISTS, _MOST_STRINGS = 1 << 19, 1 << 17


def read_json(text: bytes, in_thread: bool = False) -> dict[str, Any]:
    """Parse a strict JSON object: UTF-8, no repeated names in an object, no NaN, no deep nesting.

    Args:
      text: the bytes of the JSON.
      in_thread: True lets other threads run while JSON longer than `LONG` is parsed, which takes up to three times as
        long. In this case, JSON with too many lists or strings is an error.

    Raises:
      ProtocolError: the bytes are not a strict JSON object.

    Example:
      >>> read_json(b'{"a": 1, "a": 2}')
      Traceback (most recent call last):
      fluid.errors.ProtocolError: no JSON: the name 'a' stands twice in one object
    """
    in_thread = in_thread and len(text) > LONG
    if in_thread:
        check_lists(text)
        if text.count(b'"') + text.count(b"\\") > _MOST_STRINGS:
            raise errors.ProtocolError(f"no JSON of tensors: found more than {_MOST_STRINGS} quotes; send numbers")
    try:
        found = (_YIELDING if in_thread else _DECODER).decode(text.decode("utf-8"))
    except RecursionError:
        raise errors.ProtocolError("no JSON: it is nested too deeply") from None
    except ValueError as error:  # raised for invalid UTF-8, for invalid JSON, or for a number with thousands of digits
        raise errors.ProtocolError(f"no JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise errors.ProtocolError(f"expected a JSON object, found {type(found).__name__}")
    return found


def check_lists(text: bytes) -> None:
    """Check that JSON has at most 524,288 lists and objects.

    Raises:
      ProtocolError: the JSON has more than 524,288 lists and objects.
    """
    if text.count(b"[") + text.count(b"{") > _MOST_LISTS:
        raise errors.ProtocolError(
            f"found more than {_MOST_LISTS} lists and objects; send flat data, binary tensors or several requests"
        )


def read_request(body: bytes, header_length: int | None = None, most_inputs: int = 64) -> InferRequest:
    """Parse an inference request.

    Args:
      header_length: the number of bytes of JSON at the start of the body; None if the whole body is JSON.

    Raises:
      ProtocolError: the body is not a valid request.
    """
    header, rest = _split(body, header_length)
    told = "missing" if header_length is None else str(header_length)
    hint = f". The header {HEADER_LENGTH} is {told}; it counts the bytes of JSON before the binary tensors"
    if header_length is None and b'"binary_data_size"' not in header:
        hint = ""
    found = _KNOWN.get((header, most_inputs)) or _read_header(header, most_inputs, hint)
    tensors = _read_tensors(found.inputs, rest, hint)
    return InferRequest(tensors, found.outputs, found.id, found.binary, found.seed, found.rows)


def write_request(request: InferRequest) -> tuple[bytes, int]:
    """Return the body of a request with binary tensors, and the number of bytes of JSON at the start of the body."""
    header: dict[str, Any] = {"parameters": {"binary_data_output": request.binary}}
    if request.seed is not None:
        header["parameters"]["seed"] = request.seed
    if request.id is not None:
        header["id"] = request.id
    if request.outputs is not None:
        header["outputs"] = [{"name": o.name, "parameters": {"binary_data": o.binary}} for o in request.outputs]
    return finished(_joined(header, "inputs", request.inputs, {t.name for t in request.inputs}))


def read_response(body: bytes, header_length: int | None = None) -> InferResponse:
    """Parse a response to an inference request; the arguments are as for `read_request`.

    Raises:
      ProtocolError: the body is not a valid response.
    """
    header, rest = _split(body, header_length)
    found = read_json(header)
    outputs = _listed(found, "outputs", None)
    if outputs is None:
        raise errors.ProtocolError('an answer has "outputs": a list of tensors, found none')
    name, version = str(found.get("model_name", "")), str(found.get("model_version", ""))
    return InferResponse(name, version, _read_tensors(_described(outputs), rest), found.get("id"))


def write_response(response: InferResponse) -> Turns[tuple[bytes, int | None]]:
    """Write the body of a response, in turns of a few milliseconds, between which others can write.

    The generator returns the body, and the number of bytes of JSON at its start; None if the whole body is JSON.

    Example:
      >>> finished(write_response(InferResponse("m", "1", [MessageTensor("y", np.ones(2))])))[0][-12:]
      b'[1.0,1.0]}]}'
    """
    if response.id is None and response.binary.issuperset(names := [tensor.name for tensor in response.outputs]):
        arrays = [np.asarray(tensor.data) for tensor in response.outputs]
        described = tuple([(name, a.dtype, a.shape) for name, a in zip(names, arrays, strict=True)])
        text = _binary_header(response.model, response.version, described)
        return b"".join([text, *map(tensors.to_bytes, arrays)]), len(text) if names else None
    header: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id is not None:
        header["id"] = response.id
    body, length = yield from _joined(header, "outputs", response.outputs, response.binary)
    return body, length if response.binary else None


def finished(turns: Turns[T]) -> T:
    """Run all turns of a generator one after the other, and return its result."""
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value


def _joined(header: dict[str, Any], key: str, values: Sequence[MessageTensor], binary: Any) -> Turns[tuple[bytes, int]]:
    """Write the bytes of a message in turns; return them, and the number of bytes of JSON at their start.

    Args:
      binary: the names of the tensors whose numbers follow the JSON as bytes.
    """
    text, chunks = [f'{_ENCODER.encode(header)[:-1]},"{key}":['.encode()], []
    for number, tensor in enumerate(values):
        array = np.asarray(tensor.data)
        found = _tensor_header(tensor.name, array.dtype, array.shape)
        text.append(b"," if number else b"")
        if tensor.name in binary:
            chunks.append(tensors.to_bytes(array))
            text.append(_ENCODER.encode(found | {"parameters": {"binary_data_size": len(chunks[-1])}}).encode())
            continue
        text.append(f'{_ENCODER.encode(found)[:-1]},"data":['.encode())
        for place, piece in enumerate(tensors.to_json(array)):
            text.append((b"," if place else b"") + _ENCODER.encode(piece)[1:-1].encode())
            yield
        text.append(b"]}")
    text.append(b"]}")
    return b"".join([*text, *chunks]), sum(map(len, text))


def _tensor_header(name: str, dtype: np.dtype, shape: Sequence[int]) -> dict[str, Any]:
    return {"name": name, "datatype": tensors.datatype_of(dtype), "shape": list(shape)}


@functools.lru_cache(256)
def _binary_header(model: str, version: str, described: tuple[tuple[str, np.dtype, tuple[int, ...]], ...]) -> bytes:
    """Return the JSON at the start of a response whose tensors are all sent as bytes.

    The JSON is cached, because most responses have equal JSON.
    """
    outputs = [
        _tensor_header(name, dtype, shape) | {"parameters": {"binary_data_size": math.prod(shape) * dtype.itemsize}}
        for name, dtype, shape in described
    ]
    return _ENCODER.encode({"model_name": model, "model_version": version, "outputs": outputs}).encode()


def _split(body: bytes, header_length: int | None) -> tuple[bytes, memoryview]:
    if header_length is None:
        return body, memoryview(b"")
    if not 0 <= header_length <= len(body):
        raise errors.ProtocolError(
            f"{HEADER_LENGTH} is {header_length}, and the body has {len(body)} bytes; it counts those of the JSON"
        )
    return body[:header_length], memoryview(body)[header_length:]


def _read_header(header: bytes, most_inputs: int, hint: str) -> _Header:
    """Parse the JSON of a request; cache the result if later requests may repeat exactly the same JSON.

    The text `hint` follows the message of an error in the JSON.
    """
    try:
        found = read_json(header, in_thread=True)
    except errors.ProtocolError as error:
        raise errors.ProtocolError(f"{error}{hint}") from None
    parameters = _parameters(found, "the request")
    inputs = _listed(found, "inputs", most_inputs)
    rows = _rows(found.get("rows"))
    if rows is not None and inputs:
        raise errors.ProtocolError('a request has "inputs" or "rows", found both')
    if not inputs and rows is None:
        raise errors.ProtocolError('a request has "inputs": a list of tensors, found none')
    outputs = _listed(found, "outputs", most_inputs)
    binary = _flag(parameters, "binary_data_output")
    identity = found.get("id")
    if identity is not None and not isinstance(identity, str):
        raise errors.ProtocolError("the id of a request is a string")
    read = _Header(
        _described(inputs or ()),
        None if outputs is None else [_wanted(o, binary) for o in outputs],
        identity,
        binary,
        _seed(parameters),
        rows,
    )
    repeated = identity is None and read.seed is None and rows is None
    if len(header) <= _SHORT and repeated and all(tensor.size is not None for tensor in read.inputs):
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        _KNOWN[header, most_inputs] = read
    return read


def _rows(found: Any) -> list[dict[str, Any]] | None:
    """Check and return the raw rows of a request; None if the request has no raw rows."""
    if found is None:
        return None
    if not isinstance(found, list) or not found or not all(isinstance(row, dict) for row in found):
        raise errors.ProtocolError('"rows" is a list of objects, at least one: {"rows": [{"age": 39, "city": "Oslo"}]}')
    for number, row in enumerate(found):
        for name, value in row.items():
            if not isinstance(value, str | int | float | None):
                raise errors.ProtocolError(
                    f"row {number}: {short(name)} is {short(value)}, expected a text, a number or null"
                )
    return found


def _described(found: Sequence[Any]) -> list[_Described]:
    """Check and return the descriptions of the tensors in the JSON of a message."""
    described: dict[str, _Described] = {}
    for each in found:
        name, datatype, shape = tensors.checked_header(each)
        size = _parameters(each, f"tensor {short(name)}").get("binary_data_size")
        if name in described:
            raise errors.ProtocolError(f"the tensor {short(name)} is there twice")
        if size is not None and (type(size) is not int or size < 0 or "data" in each):
            raise errors.ProtocolError(
                f"tensor {short(name)}: binary_data_size is {short(size)}, expected how many of the bytes left behind "
                f"the JSON it has; a tensor has data or binary_data_size"
            )
        described[name] = _Described(name, datatype, shape, size, each.get("data"))
    return list(described.values())


def _read_tensors(described: Sequence[_Described], rest: memoryview, hint: str = "") -> list[MessageTensor]:
    """Return the tensors of a message; `rest` holds the bytes of all its binary tensors, one after another.

    The text `hint` follows the message of a wrong number of bytes.
    """
    read = []
    for name, datatype, shape, size, data in described:
        if size is None:
            read.append(tensors.from_json(name, datatype, shape, data))
            continue
        if size > len(rest):
            raise errors.ProtocolError(
                f"tensor {short(name)}: binary_data_size is {size}, and {len(rest)} bytes are left behind the "
                f"JSON{hint}"
            )
        read.append(tensors.from_bytes(name, datatype, shape, rest[:size]))
        rest = rest[size:]
    if len(rest):
        raise errors.ProtocolError(f"{len(rest)} bytes are left behind the last binary tensor{hint}")
    return read


def _wanted(found: Any, binary: bool) -> Wanted:
    if not isinstance(found, Mapping) or not isinstance(found.get("name"), str):
        raise errors.ProtocolError('an entry of "outputs" is an object with a name')
    parameters = _parameters(found, f"output {short(found['name'])}")
    return Wanted(found["name"], _flag(parameters, "binary_data", binary))


def _listed(found: Mapping[str, Any], key: str, most: int | None) -> list[Any] | None:
    values = found.get(key)
    if values is None:
        return None
    if not isinstance(values, list):
        raise errors.ProtocolError(f'"{key}" is a list of tensors, found {type(values).__name__}')
    if most is not None and len(values) > most:
        raise errors.ProtocolError(f'"{key}" has {len(values)} tensors, expected at most {most}')
    return values


def _parameters(found: Mapping[str, Any], of: str) -> Mapping[str, Any]:
    parameters = found.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, Mapping):
        raise errors.ProtocolError(f"the parameters of {of} are an object")
    return parameters


def _flag(parameters: Mapping[str, Any], name: str, default: bool = False) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise errors.ProtocolError(f"the parameter {name} is true or false")
    return value


def _seed(parameters: Mapping[str, Any]) -> int | None:
    value = parameters.get("seed")
    if value is not None and (type(value) is not int or not 0 <= value < 2**64):
        raise errors.ProtocolError(
            f"the parameter seed is {short(value)}, expected a whole number from 0 to 2**64 - 1: "
            f'"parameters": {{"seed": 7}}'
        )
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = collections.Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ValueError(f"the name {twice[:60]!r} stands twice in one object")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON; what is not finite is sent as a binary tensor")


def _int(digits: str) -> int:
    return int(digits)


def _float(digits: str) -> float:
    return float(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)
# The JSON decoder above is C code, which holds the interpreter lock until it returns. The decoder below calls a Python
# function for each number, so that other threads can run.
_YIELDING = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_no_constant, parse_int=_int, parse_float=_float
)  # fmt: skip
_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))
