"""Connection: HTTP requests to one server, over connections that are kept open."""

import http.client
import json
import urllib.parse
import weakref
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fluid import errors, protocol

_TIMEOUT = 60.0  # seconds without an answer of the server after which a request fails


class Connection:
    """A pool of HTTP connections to one server, which several threads may use.

    Args:
      url: URL of the server, or of a path on the server.
      token: the token that the server requires, or None.
      start: the command that starts a server, for the error message when no server responds.
      kinds: classes of the errors that the server may report by name; all other errors become RemoteError.

    Attributes:
      url: the URL as given.
      path: the path in the URL, without a slash at its end.

    Raises:
      ArgumentError: `url` is not the URL of a server, or the token cannot stand in a header.
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

        If the server has closed a connection that was kept open, the request is sent again.

        Returns:
          The HTTP status, the headers by name in lower case, and the body.

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

        The request has a connection of its own, which closes when the caller stops reading.

        Raises:
          FluidError: the server responds with an error, at once or in an event.
          RemoteError: the server does not respond, or not with events.
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
        """Send a request without a body, and return the JSON object of its response; see `call`."""
        return protocol.read_json(self.call(method, path))

    def error(self, status: int | None, body: bytes) -> errors.FluidError:
        """Return the error that the body of a response, or an event, reports; of an unknown class, a RemoteError."""
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
