"""Connection: requests over HTTP to one server, over connections that are kept."""

import http.client
import json
import urllib.parse
import weakref
from collections.abc import Mapping

from fluid import errors

_TIMEOUT = 60.0  # seconds


class Connection:
    """Asks one server; several threads may ask at once.

    Args:
      url: of the server, or of something on it.
      token: what the server was told to ask for, or None.
      start: the command that starts such a server, for the message when none answers.

    Attributes:
      url: as it was given.
      path: the part of the URL behind the server, without a slash at its end.

    Raises:
      ArgumentError: that is no URL, or the token cannot stand in a header.
    """

    def __init__(self, url: str, token: str | None, start: str):
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
        """One request and its answer; once more when a connection that was kept has been closed meanwhile.

        Returns:
          The status, the headers by name in lower case, and the body.

        Raises:
          RemoteError: the server does not answer.
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

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
        return kind(*self._address, timeout=_TIMEOUT)


def told(answer: bytes) -> tuple[str, str | None]:
    """What a refusal says, and which kind of error it names.

    Example:
      >>> told(b'{"error": "no such model", "kind": "UnknownNameError"}')
      ('no such model', 'UnknownNameError')
    """
    try:
        found = json.loads(answer)
        return str(found["error"]), found.get("kind")
    except (ValueError, TypeError, KeyError):
        return answer[:200].decode("utf-8", "replace"), None


def _close(connections: list[http.client.HTTPConnection]) -> None:
    for connection in connections:
        connection.close()
