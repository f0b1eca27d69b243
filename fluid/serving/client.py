"""The class RemoteModel: a client of a server of the Open Inference Protocol, such as `python -m fluid serve`."""

import http.client
import json
import re
import urllib.parse
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core import FeedSpec, LoDTensor, NestedSequenceBatch, SequenceBatch
from fluid.reader.columns import batch_size, check_feed
from fluid.runtime import Results
from fluid.runtime.seeds import Seeds, checked_seed
from fluid.serving import protocol

_TIMEOUT = 60.0  # a request fails if the server sends nothing for this number of seconds


class Connection:
    """A pool of HTTP connections to one server, which several threads may use.

    Attributes:
      url: the argument `url`.
      path: the path in the URL, without a slash at its end.

    Raises:
      ArgumentError: `url` is not the URL of a server, or the token has characters that are not allowed in a header.
    """

    def __init__(self, url: str, token: str | None, start: str, kinds: Iterable[type[errors.FluidError]]):
        found = urllib.parse.urlsplit(url)
        if found.scheme not in ("http", "https") or not found.hostname:
            raise errors.ArgumentError(f"url={url!r}: expected that of a server: http://127.0.0.1:8000")
        if token is not None and (not token.isascii() or not token.isprintable() or " " in token):
            raise errors.ArgumentError(
                "the token holds spaces, the end of a line or other signs that no header can hold, expected the word "
                "alone, without Bearer in front: token=text.strip()"
            )
        self._secure = found.scheme == "https"
        self._address = (found.hostname, found.port)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._kinds = {kind.__name__: kind for kind in kinds}
        self._kept: list[http.client.HTTPConnection] = []
        self._start = start
        weakref.finalize(self, _close, self._kept)
        self.url = url
        self.path = found.path.rstrip("/")

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] = {},  # noqa: B006
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request and return its response.

        If the server has closed the pooled connection meanwhile, the request is sent again on a new one.

        Raises:
          RemoteError: the server does not respond.
        """
        while True:
            is_kept = bool(self._kept)
            connection = self._kept.pop() if is_kept else self._connect()
            try:
                connection.request(method, path, body, {**self._headers, **headers})
                answer = connection.getresponse()
                found = {name.lower(): value for name, value in answer.headers.items()}
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if is_kept and not isinstance(error, TimeoutError):
                    continue
                raise errors.RemoteError(
                    f"{self.url} does not answer: {error!r}; is the server running? {self._start}"
                ) from error
            self._kept.append(connection)
            return answer.status, found, text

    def events(self, path: str, body: bytes, headers: Mapping[str, str]) -> Iterator[bytes]:
        """Send a POST request, and yield the data of each server-sent event of its response.

        The request has a separate connection, which closes when the caller stops reading.

        Raises:
          FluidError: the server responds with an error, instead of events or in an event.
          RemoteError: the server does not respond, or its response has no events.
        """
        connection = self._connect()
        try:
            connection.request("POST", path, body, {**self._headers, "Accept": "text/event-stream", **headers})
            answer = connection.getresponse()
            if answer.status != 200:
                raise self.error(answer.status, answer.read())
            if (found := answer.headers.get_content_type()) != "text/event-stream":
                raise errors.RemoteError(f"{self.url} answered with {found}, expected text/event-stream; use infer")
            kind = b"message"
            for line in answer:
                field, _, value = line.rstrip(b"\r\n").partition(b": ")
                if field == b"event":
                    kind = value
                elif field == b"data" and kind == b"error":
                    raise self.error(None, value)
                elif field == b"data":
                    yield value
        except (OSError, http.client.HTTPException) as error:
            raise errors.RemoteError(f"{self.url} has stopped answering: {error!r}") from error
        finally:
            connection.close()

    def call(self, method: str, path: str) -> bytes:
        """Send a request without a body, and return the body of its response.

        Raises:
          FluidError: the server responds with an error, or does not respond.
        """
        status, _, body = self.exchange(method, path)
        if status != 200:
            raise self.error(status, body)
        return body

    def json(self, method: str, path: str) -> dict[str, Any]:
        """Send a request without a body, and return the JSON object in the response; errors as for `call`."""
        return protocol.read_json(self.call(method, path))

    def error(self, status: int | None, body: bytes) -> errors.FluidError:
        """Return the error that a response body or an event reports; a RemoteError if its class is unknown."""
        message, kind = reported(body)
        if kind in self._kinds:
            return self._kinds[kind](message)
        return errors.RemoteError(f"{self.url} answered{'' if status is None else f' {status}'}: {message}")

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(*self._address, timeout=_TIMEOUT)


def reported(body: bytes) -> tuple[str, str | None]:
    """Return the message in the body of an error response, and the name of the class of the error, or None.

    Example:
      >>> reported(b'{"error": "no such model", "kind": "UnknownNameError"}')
      ('no such model', 'UnknownNameError')
    """
    try:
        found = json.loads(body)
        return str(found["error"]), found.get("kind")
    except (ValueError, TypeError, KeyError):
        return body[:200].decode("utf-8", "replace"), None


def _close(connections: list[http.client.HTTPConnection]) -> None:
    for connection in connections:
        connection.close()


_MODELS = "/v2/models"
# Paths of the protocol that are not the URL of a server or a model, such as "/v2/models/digits/versions/2/infer" and
# "/v2/models".
_CALL = re.compile(
    r".*?(?:/v2/models/[^/]+(?:/versions/[^/]+)?|(?=/v2(?:/models|/health/\w+)?$))(?!/versions/[^/]+$)(?P<call>/.+)"
)
_KINDS = (errors.FeedError, errors.FeedTypeError, errors.UnknownNameError)


class RemoteModel:
    """A client of one model of a server, with the method `infer` of an Inferencer.

    The client checks feeds against the signature of the model, and raises the same errors as an Inferencer. Several
    threads may use it.

    Args:
      url: the URL of a server with one model, or of a model, such as "http://host:8000/v2/models/digits". "/versions/2"
        may follow.
      seed: the seed of random numbers; each call of `infer` uses the next seed of a sequence, as an Inferencer does.
        None lets the server draw seeds.

    Attributes:
      url: the argument `url`.
      name: the name of the model.
      signature: the feeds and outputs of the model.

    Raises:
      ArgumentError: `url` is not the URL of a server or a model.
      UnknownNameError: there is no such model, or the server has several models and the URL names none.
      RemoteError: the server does not respond, or refuses the request.
    """

    def __init__(self, url: str, token: str | None = None, seed: int | None = None):
        self._connection = Connection(url, token, "python -m fluid serve MODEL", _KINDS)
        self.url = url
        if behind := _CALL.fullmatch(self._connection.path):
            right = url.rstrip("/").removesuffix(behind["call"])
            raise errors.ArgumentError(
                f"url={url!r} ends in {behind['call']!r}, which is a call of the protocol, expected the address of the "
                f"server or of a model: fluid.Inferencer(url={right!r})"
            )
        base, model, rest = self._connection.path.partition(f"{_MODELS}/")
        self._path = f"{base}{model}{rest}" if model else f"{base}{_MODELS}/{self._only_model(base)}"
        described = self._get(self._path)
        self.name = str(described.get("name"))
        self.signature = protocol.Signature.from_json(described, url)
        self._draws = seed is not None
        self._seeds = Seeds("Inferencer", seed)
        if seed is not None:
            self._check_random("Inferencer", seed)

    def infer(
        self,
        feed: Mapping[str, Any],
        fetch: str | Sequence[str] | None = None,
        return_numpy: bool = True,
        seed: int | None = None,
    ) -> Results:
        """Return the outputs of the model; see `Inferencer.infer`.

        Raises:
          FeedError: data does not fit its feed.
          UnknownNameError: the model has no such feed or output.
          RemoteError: the server does not respond, or refuses the request.
        """
        names = self._checked_fetch(fetch)
        body, length = self._request(feed, names, seed, binary=True)
        status, headers, answer = self._connection.exchange(
            "POST", f"{self._path}/infer", body, {protocol.HEADER_LENGTH: str(length)}
        )
        if status != 200:
            raise self._connection.error(status, answer)
        found = headers.get(protocol.HEADER_LENGTH)
        return self._results(answer, None if found is None else int(found), names, fetch is not None, return_numpy)

    def stream(
        self, feed: Mapping[str, Any], fetch: str | Sequence[str] | None = None, seed: int | None = None
    ) -> Iterator[Results]:
        """Yield the outputs of the model as the server computes them, part by part; see `Inferencer.stream`."""
        names = self._checked_fetch(fetch)
        body, length = self._request(feed, names, seed, binary=False)
        headers = {protocol.HEADER_LENGTH: str(length)}
        for event in self._connection.events(f"{self._path}/infer", body, headers):
            yield self._results(event, None, names, fetch is not None, return_numpy=True)

    def _request(
        self, feed: Mapping[str, Any], names: Sequence[str], seed: int | None, binary: bool
    ) -> tuple[bytes, int]:
        """Return the body of a request for the outputs `names`, and the number of bytes of JSON at its start."""
        values = {name: check_feed(spec, feed[name]) for name, spec in self._checked_names(feed).items()}
        if values:
            batch_size(values)
        outputs = [protocol.Wanted(name, binary) for name in names]
        return protocol.write_request(
            protocol.InferRequest(protocol.to_tensors(values), outputs, binary=binary, seed=self._seed(seed))
        )

    def _results(
        self, answer: bytes, length: int | None, names: Sequence[str], fetched: bool, return_numpy: bool
    ) -> Results:
        """Return the outputs `names` from the body of a response; its first `length` bytes are JSON."""
        response = protocol.read_response(answer, length)
        results = protocol.from_tensors(response.outputs, {o.name: o.lod_level for o in self.signature.outputs})
        ready = [_converted(protocol.padded_as_before(results[name]), return_numpy) for name in names]
        return Results(ready, tuple(names) if self.signature.named or fetched else None)

    def _seed(self, seed: int | None) -> int | None:
        """Return the seed for a request; None if the server draws the seed or the model has no random numbers."""
        if seed is not None:
            seed = checked_seed("infer", seed)
            self._check_random("infer", seed)
        if self.signature.random is False:
            return None
        return self._seeds.next() if seed is None and self._draws else seed

    def _check_random(self, call: str, seed: int) -> None:
        if self.signature.random is False:
            self._seeds.unused(call, self.name, seed)

    def _checked_names(self, feed: Mapping[str, Any]) -> Mapping[str, FeedSpec]:
        specs = self.signature.feeds
        for name in feed:
            if name not in specs:
                raise errors.UnknownNameError(
                    f"the model {self.name} has no feed {name!r}. {errors.nearest(name, specs)}"
                )
        missing = [name for name in specs if name not in feed]
        if missing:
            raise errors.FeedError(
                f"the model {self.name} needs the feed{'s' if len(missing) > 1 else ''} "
                f"{', '.join(map(repr, missing))}, which nobody gave: feed={{{missing[0]!r}: array of "
                f"{specs[missing[0]].dtype}, ...}}"
            )
        return specs

    def _checked_fetch(self, fetch: str | Sequence[str] | None) -> list[str]:
        known = [output.name for output in self.signature.outputs]
        names = known if fetch is None else [fetch] if isinstance(fetch, str) else list(fetch)
        for name in names:
            if name not in known:
                raise errors.UnknownNameError(
                    f"the model {self.name} gives no {name!r}; what can be fetched is what was exported. "
                    f"{errors.nearest(name, known)}"
                )
        return names

    def _only_model(self, base: str) -> str:
        names = self._get(f"{base}{_MODELS}").get("models", [])
        if len(names) == 1:
            return urllib.parse.quote(str(names[0]), safe="")
        raise errors.UnknownNameError(
            f"{self.url} serves {', '.join(map(repr, names)) or 'no model'}; name one: "
            f"{self.url.rstrip('/')}{_MODELS}/{names[0] if names else 'NAME'}"
        )

    def _get(self, path: str) -> dict[str, Any]:
        status, _, answer = self._connection.exchange("GET", path)
        if status == 404:
            raise errors.UnknownNameError(f"{self.url}: {reported(answer)[0]}")
        if status != 200:
            raise self._connection.error(status, answer)
        return protocol.read_json(answer)


def _converted(value: Any, as_numpy: bool) -> Any:
    if as_numpy:
        return value
    if isinstance(value, SequenceBatch | NestedSequenceBatch):
        return LoDTensor.of(value)
    return jax.tree.map(jnp.asarray, value)
