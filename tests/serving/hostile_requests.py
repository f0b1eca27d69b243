"""Requests of hostile clients, drawn from a seed: for a server of models and for the server of an OnlineTrainer.

The module imports nothing from fluid, because fluid's code could repeat a mistake of fluid's parser.
"""

import contextlib
import copy
import functools
import json
import re
import socket
import struct
import threading
from typing import NamedTuple

MEGABYTE = 1 << 20
# The maximum bytes of a JSON body, and of any body of a request, for servers of models and of an OnlineTrainer.
JSON_LIMIT, BODY_LIMIT = 16 * MEGABYTE, 64 * MEGABYTE
# The maximum bytes of a head, of the trailers, and of the frame of a chunk; the maximum headers with the trailers.
HEAD_LIMIT, HEADERS_LIMIT = 32 << 10, 100


class Message(NamedTuple):
    """The bytes that a client sends, and the manner of sending.

    Attributes:
      kind: the name of the fault, which failure messages contain.
      data: the bytes of one request, of several requests, or of a part of a request.
      manner: the behaviour of the client: "answered" reads one answer; "read" reads all answers; "shut" closes the
        sending side before it reads all answers; "gone" disconnects without reading; "slow" sends small pieces while
        other clients are served; "deaf" sends all bytes and reads nothing until the end of the test; "sipping" sends
        all bytes and reads a few bytes now and then.
      expected: the statuses that an answer may have; None allows every status below 500, and 503 and 504.
      answers: the number of answers to a message with the manner "read"; None allows every number.
    """

    kind: str
    data: bytes
    manner: str = "shut"
    expected: frozenset[int] | None = None
    answers: int | None = None


class Raw(str):
    """Text that `written` writes to JSON unchanged, even if it is not valid JSON."""


class Pairs(list):
    """A JSON object as a list of (name, value) pairs, so a name may occur twice."""


def written(value):
    """Return a value as JSON text; a `Raw` part of the value can make this JSON invalid."""
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, Pairs | dict):
        pairs = value if isinstance(value, Pairs) else value.items()
        return "{" + ", ".join(f"{json.dumps(name)}: {written(each)}" for name, each in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


ODD = [
    *map(Raw, ["NaN", "-Infinity", "1e999", "-1e400", "1e-400", "9" * 4000, "9" * 5000, "-" + "1" * 9000, "01", "+1"]),
    *map(Raw, ["1.", ".5", "0x10", "True", "nul", "", ",", '"\\ud800"', '"\\u0000"', '"\\x"', '"', "'a'", "[" * 3000]),
    *map(Raw, ['{"a":' * 3000, "[" * 900 + "]" * 900, '{"a": 1, "a": 2}', "\xff", "\ufeff{}", "1e5000", "[,]"]),
    *(-1, 0, 1, 1 << 31, 1 << 32, 1 << 62, 1 << 63, 1 << 64, -(1 << 63) - 1, 10**30, -0.0, 0.5, 1e38, 1e39, True, None),
    *("", "x", "x" * 10_000, "\0", "\u2028", "words"), *"FP32 FP64 BF16 INT8 INT64 UINT8 BOOL BYTES".split(),
    *([], {}, [[]], [{}], [[[[]]]], [None], ["1"], [[1], [2, 3]], [1, [2]], {"name": "x"}, [0] * 5000, [[]] * 2000),
    *([-1], [0], [0, -1], [-1, 1, 8, 8], [1 << 31], [1 << 62, 4], [1 << 16] * 4, [0, 1 << 31], [1] * 33, [2, 2, 0]),
]  # fmt: skip
SIZES = [-1, 0, 1, 7, 255, 257, 1 << 31, 1 << 62, 1 << 64, 10**30, 1.5, "256", None, True, [256], {}]


HEADERS = {
    "Transfer-Encoding": ("chunked", "gzip", "gzip, chunked", "chunked, gzip", "chunked, chunked", "", "x"),
    "Content-Encoding": ("gzip", "br", "", "identity", "x" * 9000),
    "Connection": ("close", "Upgrade", "x, close", "keep-alive"), "Upgrade": ("websocket", "h2c", "x"),
    "Expect": ("100-continue", "200-ok"), "Inference-Header-Content-Length": (-1, "1e3", 10**30, 1, 1 << 30),
    "Content-Type": ("text/plain", "", "x" * 5000, "application/json"),
    "Idempotency-Key": ("", "k" * 5000, "\xff", "\t", "a b"), "X": ("y" * 9000, "y" * 40_000, "y" * 200_000),
    "Y": ("\0", "\x7f\x01", "\t", "a\r\n folded: b", "\r\n".join(f"Y{number}: z" for number in range(5000))),
    "\0": ("x",), "X ": ("y",), "": ("y",), "\xdc": ("\xff",),
}  # fmt: skip

STRANGERS = {
    "Origin": ("http://evil.example", "null", "", "http://localhost:1", "x" * 5000, "file://"),
    "Host": ("evil.example", "localhost.evil.example", "", "127.0.0.1.evil.example", "[" * 500, "localhost:1:2", "0"),
    "Authorization": ("", "Bearer", "Bearer ", "Bearer \xff", "\t" * 100, "Bearer " + "x" * 9000),
}


def anything(rng, depth=4):
    """Draw a JSON value of any kind."""
    kind = rng.randrange(8)
    if kind == 0 and depth:
        return [anything(rng, depth - 1) for _ in range(rng.randrange(5))]
    if kind == 1 and depth:
        names = ["name", "shape", "datatype", "data", "parameters", "binary_data_size", "x", "\0"]
        return Pairs((rng.choice(names), anything(rng, depth - 1)) for _ in range(rng.randrange(5)))
    return copy.deepcopy(rng.choice(ODD))  # a copy, since callers change the result in place


def mutated(rng, value):
    """Return a copy of a JSON value with some parts replaced, removed or repeated."""
    value = json.loads(json.dumps(value), object_pairs_hook=Pairs)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        place, key = None, None
        inner = value
        while isinstance(inner, list) and inner and (place is None or rng.randrange(4)):
            place, key = inner, rng.randrange(min(len(inner), 8))
            inner = inner[key][1] if isinstance(inner, Pairs) else inner[key]
        if place is None:
            return anything(rng)
        change = rng.randrange(8)
        if change == 0:
            del place[key]
        elif change == 1:
            place.append(place[key])
        elif change == 2:
            place[:] = place * rng.choice((2, 20))
        elif change == 3 and isinstance(place, Pairs):
            place[key] = (rng.choice(["", "shape", "data", "x" * 5000, "\0", "nothing"]), inner)
        else:
            wrong = rng.choice((rng.choice(ODD), rng.choice(SIZES), anything(rng), [inner] * 3, [inner]))
            wrong = copy.deepcopy(wrong)
            place[key] = (place[key][0], wrong) if isinstance(place, Pairs) else wrong
    return value


def garbled(rng, data):
    """Return the bytes `data` with some bytes replaced, removed or added."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 6))):
        at = rng.randrange(min(len(data), 500) + 1)
        piece = rng.choice(
            (b"\r\n", b"\n", b"\0", b":", b" ", b"\r\n\r\n", b"\xff", rng.randbytes(rng.randrange(1, 30)))
        )
        change = rng.randrange(4)
        if change == 0:
            del data[at:]
        elif change == 1:
            del data[at : at + len(piece)]
        else:
            data[at : at + (len(piece) if change == 2 else 0)] = piece
    return bytes(data)


def head(method, path, headers=(), version="HTTP/1.1"):
    """Return the bytes of the request line and the headers of a request."""
    lines = [f"{method} {path} {version}", *[f"{name}: {value}" for name, value in headers]]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def chunked(rng, body):
    """Return a body in chunked transfer coding, with chunks of odd sizes; a stated chunk size may be wrong."""
    pieces = []
    while body:
        size = rng.choice((1, 2, 7, 100, 5000))
        piece, body = body[:size], body[size:]
        told = rng.choice((b"%x", b"%X", b"000%x")) % len(piece)
        pieces.append(told + rng.choice((b"", b"", b";a=b", b';a="\r"')) + b"\r\n" + piece + b"\r\n")
    end = rng.choice((b"0\r\n\r\n", b"0\r\n\r\n", b"0\r\nA: b\r\n\r\n", b"", b"0\r\n", b"00000\r\n\r\n"))
    if rng.randrange(3) == 0:
        lie = rng.choice((b"-1", b"f" * 17, b"f" * 8, b"x", b"", b"1;" + b"e" * 70_000, b"7" + b"f" * 15))
        pieces.insert(rng.randrange(len(pieces) + 1), lie + b"\r\nz\r\n")
    return b"".join(pieces) + end


def floods(size):
    """Return, by name, about `size` bytes that cost the server much work for each byte."""
    headers = b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 99 + b"\r\n"
    return {
        "requests": b"GET / HTTP/1.1\r\n\r\n" * (size // 18),
        "headers": headers * (size // len(headers)),
        "chunks": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * (size // 6),
        "one header": b"GET / HTTP/1.1\r\nX: " + b"y" * size,
    }


_DATA = b'{"inputs": [{"name": "x", "shape": [-1, 1], "datatype": "FP32", "data": [', b"]}]}"
FILLINGS = {
    "lists": (_DATA[0], b"[],", _DATA[1]), "lists of one": (_DATA[0], b"[1],", _DATA[1]),
    "lists of lists": (_DATA[0], b"[[[[[[[[]]]]]]]],", _DATA[1]), "objects": (_DATA[0], b'{"":0},', _DATA[1]),
    "texts": (_DATA[0], b'"",', _DATA[1]), "long texts": (_DATA[0], b'"' + b"x" * 5000 + b'",', _DATA[1]),
    "one text": (b'{"id": "', b"\xf0\x9f\x98\x80", b'"}'), "escapes": (b'{"id": "', b"\\u00e9", b'"}'),
    "nulls": (_DATA[0], b"null,", _DATA[1]), "large numbers": (_DATA[0], b"9" * 4000 + b",", _DATA[1]),
    "numbers": (_DATA[0], b"1.5,", _DATA[1]), "tensors": (b'{"inputs": [', b'{"name": "x"},', b"]}"),
    "depth": (b"", b"[", b"]"), "objects in objects": (b"", b'{"a":', b"}"), "blanks": (b"{", b" ", b"}"),
    "lines": (b"", b"\n", b"{"), "shape": (b'{"inputs": [{"name": "x", "shape": [', b"1,", b"]}]}"),
    "names twice": (b"{", b'"a":1,', b"}"), "zeros": (b"", b"\0", b""), "bytes": (b"", b"\xff\xfe", b""),
}  # fmt: skip
LINES = {
    "rows of nothing": (b"", b"{}\n", b""), "rows": (b"", b'{"x":1}\n', b""), "numbers as rows": (b"", b"0\n", b""),
    "one row": (b'{"words": [', b"1,", b"1]}"), "lists as a row": (b'{"words": [', b"[],", b"1]}"),
    "names in a row": (b"{", b'"a":1,"b":1,"c":1,', b"}"),
}  # fmt: skip


class Grammar:
    """A generator of valid and hostile requests; each subclass knows the valid requests of one kind of server.

    Args:
      rng: the generator that draws the requests.
      token: the access token of the server; None if the server needs no token.
    """

    paths: tuple[str, ...] = ()
    gets: tuple[str, ...] = ()
    body_path = ""

    def __init__(self, rng, token=None):
        self.rng, self.token = rng, token

    def valid(self):
        """Draw a valid request; return its path, its extra headers, its JSON, and the bytes after the JSON or None."""
        raise NotImplementedError

    def headers(self, extra=()):
        """Return the headers of an authorized client, followed by `extra`."""
        token = [("Authorization", f"Bearer {self.token}")] if self.token else []
        return [("Host", "localhost"), *token, *extra]

    def post(self, path, body, extra=(), length=None):
        """Return the bytes of a POST request with a body; `length` replaces the true Content-Length."""
        length = len(body) if length is None else length
        return head("POST", path, self.headers([*extra, ("Content-Length", length)])) + body

    def message(self):
        """Draw the next message, which is hostile in most cases."""
        kinds = (self.good, self.values, self.values, self.lies, self.garbled, self.heads, self.heads, self.pieces)
        kinds += (
            self.composed,
            self.composed,
            self.composed,
            self.pipelined,
            self.half,
            self.slow,
            self.deaf,
            self.strangers,
            self.elsewhere,
        )
        if self.rng.randrange(200) == 0:
            attacks = self.attacks(self.rng.randrange(MEGABYTE, JSON_LIMIT))
            name = self.rng.choice(sorted(attacks))
            return Message(name, attacks[name](), "answered")
        return self.rng.choice(kinds)()

    def good(self):
        path, extra, value, rest = self.valid()
        return Message("good", self.encoded(path, extra, value, rest), "answered", self.fine)

    def repeated(self):
        """Draw a request that always gets the same answer, and return its bytes."""
        return self.encoded(*self.valid())

    fine = frozenset((200, 503, 504))

    def encoded(self, path, extra, value, rest, off=0):
        """Return a POST request of JSON and the bytes `rest`; the stated length of the JSON is wrong by `off`."""
        text = value if isinstance(value, bytes) else written(value).encode("utf-8", "surrogatepass")
        if rest is not None:
            extra = [*extra, ("Inference-Header-Content-Length", len(text) + off)]
        return self.post(path, text + (rest or b""), extra)

    def values(self):
        """Return a message with random changes to the JSON of a valid request."""
        path, extra, value, rest = self.valid()
        value = self.mutated(value)
        return Message("values", self.encoded(path, extra, value, rest), "answered")

    def mutated(self, value):
        return mutated(self.rng, value)

    def lies(self):
        """Return a message whose shapes, sizes and lengths contradict its bytes."""
        rng = self.rng
        tensors = []
        for name in rng.sample(["image", "words", "words.lengths", "x", "y", "other"], rng.randrange(1, 5)):
            shape = [rng.choice((-1, 0, 1, 1, 2, 4, 8, 1 << 31, 1 << 62)) for _ in range(rng.randrange(5))]
            tensor = {"name": name, "shape": shape, "datatype": rng.choice(("FP32", "INT64", "INT32", "BOOL", "BF16"))}
            if rng.randrange(3):
                tensor["parameters"] = {"binary_data_size": rng.choice((*SIZES, 64, 256, 256))}
            if rng.randrange(3) == 0:
                tensor["data"] = anything(rng, 2)
            tensors.append(tensor)
        rest = rng.randbytes(rng.choice((0, 1, 64, 256, 5000)))
        kind = [("Content-Type", "application/octet-stream")]
        data = self.encoded(self.body_path, kind, {"inputs": tensors}, rest, rng.choice((0, 0, 0, -1, 1, 1 << 20)))
        return Message("lies", data, "answered")

    def garbled(self):
        """Return a message with random changes to the bytes of a valid request."""
        start = self.encoded(*self.valid()) if self.rng.randrange(3) else head("GET", self.rng.choice(self.paths))
        return Message("garbled", garbled(self.rng, start))

    def heads(self):
        """Return a message with headers that are too large, contradictory or false."""
        rng = self.rng
        path, extra, value, rest = self.valid()
        body = value if isinstance(value, bytes) else written(value).encode()
        size = len(body)
        lengths = (size, size, size, -1, "1e3", "0x10", f"{size}, {size}", 10**30, "+5", "", "two", 1 << 63, 4 * size)
        name = rng.choice(sorted(HEADERS))
        wrong = [(name, value) for value in rng.choices(HEADERS[name], k=rng.choice((1, 1, 2)))]
        wrong += [("Content-Length", length) for length in rng.choices(lengths, k=rng.choice((0, 1, 1, 1, 2)))]
        rng.shuffle(wrong)
        version = rng.choice(("HTTP/1.1",) * 6 + ("HTTP/1.0", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1 x", "http/1.1", ""))
        data = head("POST", path, self.headers([*extra, *wrong]), version) + body
        if rng.randrange(10) == 0:
            data = data.replace(b"\r\n", rng.choice((b"\n", b"\r", b"\r\r\n", b"\n\r")))
        return Message(f"head {name!r}", data)

    def pieces(self):
        """Return a message with a body in chunked transfer coding, which may be invalid."""
        path, extra, value, rest = self.valid()
        body = value if isinstance(value, bytes) else written(value).encode()
        extra = [*extra, ("Transfer-Encoding", self.rng.choice(("chunked", "Chunked", "chunked", " chunked ")))]
        return Message("pieces", head("POST", path, self.headers(extra)) + chunked(self.rng, body))

    def pipelined(self):
        """Return a message of several requests, which are sent without waiting for the answers."""
        rng = self.rng
        count = rng.choice((2, 3, 20, 500, 5000))
        one = self.encoded(*self.valid()) if rng.randrange(2) else head("GET", rng.choice(self.paths), self.headers())
        if count * len(one) > MEGABYTE:
            count = 2
        last = rng.choice((b"", b"GET /", b"\0"))
        return Message("pipelined", one * count + last, rng.choice(("shut", "gone", "deaf")))

    def composed(self):
        """Return a message of one or more requests, whose heads, chunks, extensions and trailers have drawn sizes.

        The server answers the requests one after the other, until one exceeds a limit.
        """
        rng = self.rng
        wanted = self.size(40)
        data, answers = [], 0
        while answers == len(data) < wanted:
            one, allowed = self.request([("Connection", "close")] if len(data) == wanted - 1 else [])
            data.append(one)
            answers += allowed
        refused = answers < len(data)
        manner = rng.choice(("read", "read", "read", "shut", "gone", "slow", "deaf", "sipping"))
        if manner != "read":
            return Message("composed", b"".join(data), manner)
        statuses = self.fine | ({431} if refused else set())
        # A refused client may lose the answers, because the server closes the connection while the client still sends.
        return Message("composed", b"".join(data), "read", None if refused else statuses, None if refused else answers)

    def request(self, extra=()):
        """Draw a request with headers, chunks, extensions and trailers; return it, and False if it exceeds a limit."""
        rng = self.rng
        if rng.randrange(3):
            path, more, value, rest = self.valid()
            extra = [*extra, *more]
            text = value if isinstance(value, bytes) else written(value).encode()
            if rest is not None:
                extra = [*extra, ("Inference-Header-Content-Length", len(text))]
            method, body = "POST", text + (rest or b"")
        else:
            method, path, body = "GET", rng.choice(self.gets), b""
        headers, trailers = self.headers([*extra, *self.fields()]), []
        frame, ending = 0, body
        if body and rng.randrange(2):
            headers.append(("Transfer-Encoding", "chunked"))
            trailers = self.fields() if rng.randrange(2) else []
            ending, frame = self.in_chunks(body)
            ending += b"0\r\n" + head("", "", trailers).partition(b"\r\n")[2]
        elif body or rng.randrange(2):
            headers.append(("Content-Length", len(body)))
        rng.shuffle(headers)
        start = head(method, path, headers)
        longest = max(len(start), frame, sum(len(name) + len(value) + 4 for name, value in trailers) + 7)
        return start + ending, longest <= HEAD_LIMIT and len(headers) + len(trailers) <= HEADERS_LIMIT

    def size(self, most):
        """Draw a size from 1 to `most`; small and large sizes are equally likely."""
        return round(most ** self.rng.random())

    def fields(self):
        """Draw headers, which may exceed the limits; their names may occur twice, and may be the names of others."""
        rng = self.rng
        count = self.size(rng.choice((1, 8, 8, 8, HEADERS_LIMIT, 10 * HEADERS_LIMIT))) - 1
        length = self.size(rng.choice((100, 1000, 1000, 2 * HEAD_LIMIT))) // max(count, 1)
        names = ("X", "y", "Accept", "authorization-", "Cookie", "x" * self.size(200))
        return [(rng.choice(names), "v" * rng.randint(0, length)) for _ in range(count)]

    def in_chunks(self, body):
        """Return a body in chunks with drawn sizes and extensions, but no end; and the size of the longest frame."""
        rng, pieces, longest = self.rng, [], 0
        size, extended = self.size(len(body)), rng.choice((0, 0, 1, 4))
        while body:
            piece, body = body[:size], body[size:]
            extension = ""
            if rng.randrange(4) < extended:
                extension = f";{'e' * self.size(20)}=" + "v" * self.size(rng.choice((10, 10, 100, 2 * HEAD_LIMIT)))
            line = f"{'0' * rng.choice((0, 0, 3))}{len(piece):x}{extension}\r\n".encode()
            pieces.append(line + piece + b"\r\n")
            longest = max(longest, len(line) + 2)
        return b"".join(pieces), longest

    def half(self):
        """Return a message with the first part of a request; its client then disconnects or closes the sending side."""
        data = self.encoded(*self.valid())
        return Message("half", data[: self.rng.randrange(len(data))], self.rng.choice(("gone", "shut")))

    def slow(self):
        """Return a request, perhaps incomplete, that is sent in pieces while other clients are served."""
        data = self.encoded(*self.valid())
        return Message("slow", data[: self.rng.choice((len(data), self.rng.randrange(len(data))))], "slow")

    def deaf(self):
        """Return requests of a client that does not read the answers."""
        one = self.encoded(*self.valid()) if self.rng.randrange(2) else head("GET", "/metrics", self.headers())
        return Message("deaf", one * max(1, self.rng.choice((1, 10, 100_000 // len(one)))), "deaf")

    def strangers(self):
        """Return a forbidden request: from a page of another site, to another host name, or with a wrong token."""
        rng = self.rng
        path, extra, value, rest = self.valid()
        names = {"Origin": STRANGERS["Origin"], "Host": STRANGERS["Host"]}
        if self.token:  # a server with a token does not check host names
            tokens = [
                f"Bearer {self.token}x",
                f"Bearer {self.token[:-1]}",
                f"bearer {self.token}",
                f"Basic {self.token}",
            ]
            names = {"Origin": STRANGERS["Origin"], "Authorization": [*STRANGERS["Authorization"], *tokens]}
        name = rng.choice(sorted(names))
        headers = [(name, rng.choice(names[name])), *[each for each in self.headers(extra) if each[0] != name]]
        body = value if isinstance(value, bytes) else written(value).encode()
        data = head("POST", path, [*headers, ("Content-Length", len(body))]) + body
        return Message("strangers", data, "answered", frozenset((400, 401, 403, 431)))

    def elsewhere(self):
        """Return a request with a random method, and a valid path with random additions."""
        rng = self.rng
        methods = "GET POST PUT DELETE HEAD OPTIONS TRACE PATCH CONNECT PRI get LINK M-SEARCH".split()
        path = rng.choice((*self.paths, self.body_path))
        ending = rng.choice(("", "", "?a=b", "#x", "/", "//", "%00", "%2e%2e%2f", "%ff", ";x", "\xe9", "x" * 9000))
        start = rng.choice(("", "", "", "http://localhost", "/../..", "//x", "*"))
        version = rng.choice(("HTTP/1.1", "HTTP/1.1", "HTTP/1.0"))
        data = head(rng.choice((*methods, "x" * 1000)), start + path + ending, self.headers(), version)
        return Message("elsewhere", data + rng.choice((b"", b"x", rng.randbytes(100))))

    fillings = FILLINGS
    kinds = ("application/json",)

    def attacks(self, size=JSON_LIMIT):
        """Return functions by name that build requests whose processing may cost much time or memory.

        Some requests repeat one part until they have `size` bytes, and other requests have binary tensors.
        """
        found = {name: functools.partial(self.filled, name, size) for name in self.fillings}
        return found | {name: functools.partial(self.binary, name, size) for name in self.tensors(1 << 16)}

    def filled(self, name, size):
        """Return the bytes of a hostile request, whose body of about `size` bytes repeats the part named `name`."""
        start, piece, end = self.fillings[name]
        body = (start + (piece * (size // len(piece)))[:-1])[: size - len(end)] + end
        return self.post(self.body_path, body, [("Content-Type", self.kinds[-1 if name in LINES else 0])])

    def binary(self, name, size):
        """Return the bytes of a request with the tensors `name`, which follow the JSON as bytes."""
        return self.packed(self.tensors(size)[name])

    def tensors(self, size):
        """Return, by name, lists of tensors with few bytes and a large cost: (name, datatype, shape, bytes)."""
        last = self.columns[-1]
        return {
            "rows of no numbers": [(last, "INT8", [(1 << 31) - 1, 0], b"")],
            "sizes of no numbers": [(last, "INT8", [0] + [(1 << 31) - 1] * 31, b"")],
            "numbers of one byte": [(last, "INT8", [size, 1], bytes(size))],
            "steps of one byte": [(last, "INT8", [1, size], bytes(size)), (f"{last}.lengths", "INT8", [1], b"\1")],
            "lengths": [
                (last, "INT8", [size // 2, 1], bytes(size // 2)),
                (f"{last}.lengths", "INT8", [size // 2], bytes(size // 2)),
            ],
            "long lengths": [(last, "INT8", [1, 1], b"\1"), (f"{last}.lengths", "INT64", [1], b"\xff" * 7 + b"\x7f")],
            "tensors of nothing": [(f"{last}{number}", "INT8", [0], b"") for number in range(size // 100)],
        }

    def packed(self, tensors):
        """Return the bytes of a request with these tensors, which follow the JSON as bytes."""
        return self.encoded(self.body_path, [("Content-Type", "application/octet-stream")], *tensors_of(tensors))


class Models(Grammar):
    """Requests to a server of models: "digits", which takes images, and "sentiment", which takes sequences."""

    body_path = "/v2/models/sentiment/infer"
    columns = ("words",)
    gets = ("/v2", "/v2/health/live", "/v2/models/digits", "/metrics")
    paths = (
        "/", "/page.js", "/metrics", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models", "/v2/models/digits",
        "/v2/models/digits/ready", "/v2/models/digits/versions/1", "/v2/models/sentiment", "/v2/models/nothing/infer",
    )  # fmt: skip

    def valid(self):
        rng = self.rng
        rows = rng.randrange(1, 3)
        binary = rng.random() < 0.4
        if rng.randrange(2):
            path = "/v2/models/digits/infer"
            numbers = [rng.uniform(-1, 1) for _ in range(64 * rows)]
            tensors = [("image", "FP32", [rows, 1, 8, 8], numbers)]
        else:
            path = self.body_path
            lengths = [rng.randrange(1, 5) for _ in range(rows)]
            words = [[rng.randrange(10) for _ in range(length)] for length in lengths]
            if not binary and rng.randrange(2):
                tensors = [("words", "INT64", [rows, -1], words)]
            else:
                flat = [word for row in words for word in row + [0] * (max(lengths) - len(row))]
                tensors = [("words", "INT64", [rows, max(lengths)], flat)]
                tensors.append(("words.lengths", "INT32", [rows], lengths))
        request, rest = tensors_of(tensors, binary)
        if rng.randrange(3) == 0:
            request = {"id": "7", "parameters": {"binary_data_output": bool(rng.randrange(2))}, **request}
        if path == self.body_path and rng.randrange(3) == 0:
            request["outputs"] = [{"name": "score", "parameters": {"binary_data": bool(rng.randrange(2))}}]
        return path, [], request, rest


class Rows(Grammar):
    """Requests to the server of an OnlineTrainer, which collects rows of "x", "words" and "y"."""

    body_path = "/rows"
    paths = ("/status", "/signature", "/metrics", "/health/live", "/health/ready", "/rows", "/", "/v2/models")
    columns = ("x", "y", "words")
    gets = ("/status", "/signature", "/metrics", "/health/live")
    fillings = {**FILLINGS, **LINES}
    kinds = ("application/json", "application/x-ndjson")
    verbs = ("start", "pause", "resume", "save", "publish", "stop")
    fine = frozenset((200, 429, 503, 504))  # 429, because a full journal accepts no rows

    def valid(self):
        rng = self.rng
        rows = rng.randrange(1, 6)
        extra = [("Idempotency-Key", f"key {rng.getrandbits(40)}")] if rng.randrange(2) else []
        x = [[rng.uniform(-1, 1) for _ in range(8)] for _ in range(rows)]
        words = [[rng.randrange(20) for _ in range(rng.randrange(1, 9))] for _ in range(rows)]
        y = [[rng.uniform(-1, 1)] for _ in range(rows)]
        if rng.randrange(2):
            lines = [{"x": a, "words": b, "y": rng.choice((c, c[0]))} for a, b, c in zip(x, words, y, strict=True)]
            text = "".join(written(line) + "\n" for line in lines).encode()
            return self.body_path, [*extra, ("Content-Type", "application/x-ndjson")], text, None
        longest = max(map(len, words))
        tensors = [
            ("x", "FP32", [rows, 8], [n for row in x for n in row]), ("y", "FP32", [rows, 1], sum(y, [])),
            ("words", "INT64", [rows, longest], [n for row in words for n in row + [0] * (longest - len(row))]),
            ("words.lengths", "INT32", [rows], [len(row) for row in words]),
        ]  # fmt: skip
        return self.body_path, [*extra, ("Content-Type", "application/json")], *tensors_of(tensors, rng.random() < 0.5)

    def mutated(self, value):
        if isinstance(value, bytes):
            lines = [json.loads(line) for line in value.splitlines()]
            return "\n".join(written(mutated(self.rng, line)) for line in lines).encode("utf-8", "surrogatepass")
        return super().mutated(value)

    def message(self):
        if self.rng.randrange(40) == 0:
            verb = self.rng.choice((*self.verbs, "start"))
            return Message(f"verb {verb}", self.post(f"/{verb}", b""), self.rng.choice(("answered", "gone")))
        return super().message()

    def repeated(self):
        """Return the bytes of a request with an idempotency key, so a repeated request adds no rows."""
        path, extra, value, rest = self.valid()
        return self.encoded(
            path, [("Idempotency-Key", f"the same {self.rng.getrandbits(40)}"), *extra[-1:]], value, rest
        )

    def tensors(self, size):
        return super().tensors(size) | {
            "small words": self.rows(BODY_LIMIT // (1024 + 14), 1024, b"\1"),
            "short rows": self.rows(size // 14, 1, b"\1"),
        }

    def rows(self, rows, steps, word):
        """Return the tensors of a request with `rows` rows; each row has a sequence of `steps` equal words."""
        datatype = "INT8" if len(word) == 1 else "INT64"
        return [
            ("x", "INT8", [rows, 8], bytes(8 * rows)), ("y", "INT8", [rows, 1], bytes(rows)),
            ("words", datatype, [rows, steps], word * (rows * steps)),
            ("words.lengths", "INT32", [rows], struct.pack("<i", steps) * rows),
        ]  # fmt: skip

    def attacks(self, size=JSON_LIMIT):
        return super().attacks(size) | {"short rows and a long one": functools.partial(self.uneven, size)}

    def uneven(self, size):
        """Return the bytes of a request of many short rows and one long row."""
        short, long = (written({"x": [0] * 8, "words": [1] * steps, "y": 0}).encode() + b"\n" for steps in (1, 1024))
        rows = min(size // len(short), 100_000) - 1
        return self.post(self.body_path, short * rows + long, [("Content-Type", self.kinds[1])])


def tensors_of(tensors, binary=True):
    """Return the JSON of a request with tensors, and the bytes after the JSON; None unless `binary`."""
    described, rest = [], []
    for name, datatype, shape, data in tensors:
        tensor = {"name": name, "datatype": datatype, "shape": shape}
        if binary and not isinstance(data, bytes):
            code = {"FP32": "f", "INT32": "i", "INT64": "q"}[datatype]
            data = struct.pack(f"<{len(data)}{code}", *data)
        if binary:
            rest.append(data)
            described.append({**tensor, "parameters": {"binary_data_size": len(data)}})
        else:
            described.append({**tensor, "data": data})
    return {"inputs": described}, b"".join(rest) if binary else None


class Crowd:
    """Clients of one server: each request has a separate connection, and some connections stay open.

    Args:
      address: host and port of the server.
      rng: the generator that draws the actions of slow clients.
    """

    # The largest number of connections that are open at the same time.
    _most = 40
    # The time limit for an answer, in seconds.
    _patience = 60.0

    def __init__(self, address, rng):
        self._address, self._rng = address, rng
        self._open = []

    def send(self, message):
        """Send a message, and return the statuses and the bytes of the answers."""
        connection = socket.create_connection(self._address, timeout=self._patience)
        if message.manner in ("slow", "deaf", "sipping"):
            connection.setblocking(False)
            if message.manner == "slow":
                pieces = cut(self._rng, message.data)
            else:
                # a client that sips reads at most 100 times: an empty piece means reading
                pieces = iter([message.data] + [b""] * (100 if message.manner == "sipping" else 0))
            self._open.append((connection, pieces))
            found = self._closed(0) if len(self._open) > self._most else b""
        else:
            found = self._answers(connection, message)
        self._go_on()
        return statuses(found), found

    def close(self):
        """Read the answers on all open connections, and close them."""
        found = b"".join([self._closed(0) for _ in range(len(self._open))])
        return statuses(found), found

    def _answers(self, connection, message):
        with connection:
            # The server may refuse a request and close the connection before it has read the whole request.
            with contextlib.suppress(ConnectionError):
                connection.sendall(message.data)
            if message.manner == "gone":
                if self._rng.randrange(2):
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return b""
            found = b""
            with contextlib.suppress(ConnectionError):
                if message.manner == "shut":
                    shut(connection)
                while chunk := connection.recv(1 << 16):
                    found += chunk
                    if message.manner == "answered" and is_whole(found):
                        break
            return found

    def _go_on(self):
        """Continue a slow request: send its next piece on one of the open connections."""
        if not self._open:
            return
        index = self._rng.randrange(len(self._open))
        connection, pieces = self._open[index]
        piece = next(pieces, None)
        try:
            if piece:
                connection.send(piece)
            elif piece is not None:
                connection.recv(self._rng.choice((1, 100, 5000)))
            elif self._rng.randrange(4) == 0:
                self._closed(index)
        except BlockingIOError:
            pass  # the socket is full, so this piece is lost and the body is shorter than its stated length
        except ConnectionError:
            self._closed(index)

    def _closed(self, index):
        connection, _ = self._open.pop(index)
        found = b""
        with connection, contextlib.suppress(BlockingIOError, ConnectionError):
            while chunk := connection.recv(1 << 16):
                found += chunk
        return found


def cut(rng, data):
    """Yield consecutive pieces of `data`, whose sizes are drawn anew for each piece."""
    most, at = rng.choice((1, 3, 100, 5000)), 0
    while at < len(data):
        size = rng.randint(1, most)
        yield data[at : at + size]
        at += size


def shut(connection):
    """Close the sending side of a connection."""
    with contextlib.suppress(OSError):  # no error if the server has closed the connection already
        connection.shutdown(socket.SHUT_WR)


def statuses(found):
    """Return the status codes of all HTTP responses in the received bytes."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", found)]


def is_whole(found):
    """Return True if the received bytes hold a whole answer, head and body."""
    start, end, body = found.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", start)
    return bool(end) and (length is None or len(body) >= int(length[1]))


class Neighbour(threading.Thread):
    """A well-behaved client that repeats the same requests until `stop`.

    Args:
      address: host and port of the server.
      requests: the bytes of each request.

    Attributes:
      answered: the number of answers that equal the first answer to the same request.
      wrong: an answer that differs, or the error of a connection.
    """

    def __init__(self, address, requests):
        super().__init__(daemon=True)
        self._address, self._requests = address, requests
        self._first = {}
        self._ended = threading.Event()
        self.answered, self.wrong = 0, None

    def run(self):
        for request in self._requests:
            # The first answer to a request may differ from later answers, because a repeated request with a key adds no
            # rows. So the first answers are not compared.
            self._ask(request)
        while not self._ended.wait(0.01):
            for request in self._requests:
                try:
                    found = self._ask(request)
                except OSError as error:
                    found = repr(error).encode()
                if found != self._first.setdefault(request, found) or not found.startswith(b"200 "):
                    self.wrong = found
                    return
                self.answered += 1

    def stop(self):
        """Stop the client; return True if it got answers, all with status 200, and equal answers to equal requests."""
        self._ended.set()
        self.join()
        return self.answered > 0 and self.wrong is None

    def _ask(self, request):
        with socket.create_connection(self._address, timeout=60) as connection:
            connection.sendall(request)
            found = b""
            while not is_whole(found) and (chunk := connection.recv(1 << 16)):
                found += chunk
        start, _, body = found.partition(b"\r\n\r\n")
        # Return the status and the body of the HTTP response. The other parts contain the date, which changes.
        return start[9:13] + body
