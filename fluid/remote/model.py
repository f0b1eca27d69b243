"""RemoteModel: a client of a server of the Open Inference Protocol, such as `python -m fluid serve`."""

import re
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors, protocol
from fluid.core import FeedSpec, LoDTensor, NestedSequenceBatch, SequenceBatch
from fluid.reader.columns import batch_size, check_feed
from fluid.remote.connection import Connection, reported
from fluid.runtime import Results
from fluid.runtime.seeds import Seeds, checked_seed

_MODELS = "/v2/models"
# Paths of a call of the protocol, which are no URL of a server or a model: "/v2/models/digits/versions/2/infer",
# "/v2/models".
_CALL = re.compile(
    r".*?(?:/v2/models/[^/]+(?:/versions/[^/]+)?|(?=/v2(?:/models|/health/\w+)?$))(?!/versions/[^/]+$)(?P<call>/.+)"
)
_KINDS = (errors.FeedError, errors.FeedTypeError, errors.UnknownNameError)


class RemoteModel:
    """A client of one model behind a server, with the method `infer` of an Inferencer.

    The client checks feeds against the signature of the model, and raises the errors of an Inferencer. Several threads
    may use it.

    Args:
      url: URL of a server with one model; or of a model, "http://host:8000/v2/models/digits", to which "/versions/2"
        may be added.
      token: the token that the server requires, or None.
      seed: seed of random numbers; each call of `infer` gets the next seed of a sequence, as for an Inferencer with
        the model. None lets the server draw seeds.

    Attributes:
      url: the URL as given.
      name: name of the model.
      signature: feeds and outputs of the model.

    Raises:
      ArgumentError: `url` is not the URL of a server or a model.
      UnknownNameError: there is no such model, or the URL names none of several models.
      RemoteError: the server does not respond, or refuses.
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
          RemoteError: the server does not respond, or refuses.
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
        """Yield the outputs of the model part by part; see `Inferencer.stream`."""
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
        """Return the outputs `names` in the body of a response, whose first `length` bytes are JSON."""
        response = protocol.read_response(answer, length)
        results = protocol.from_tensors(response.outputs, {o.name: o.lod_level for o in self.signature.outputs})
        ready = [_converted(protocol.padded_as_before(results[name]), return_numpy) for name in names]
        return Results(ready, tuple(names) if self.signature.named or fetched else None)

    def _seed(self, seed: int | None) -> int | None:
        """Return the seed of a request; None if the server chooses the seed, or the model draws no random numbers."""
        if seed is not None:
            seed = checked_seed("infer", seed)
            self._check_random("infer", seed)
        if self.signature.random is False:
            return None
        return self._seeds.next() if seed is None and self._draws else seed

    def _check_random(self, call: str, seed: int) -> None:
        """Warn once about a seed for a model that is known to draw no random numbers."""
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
