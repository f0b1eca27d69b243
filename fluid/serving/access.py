"""Who may ask, and what is written down of every request."""

import hmac
import ipaddress
import json
import logging
import time
from typing import Any

from fluid import errors

LOG = logging.getLogger("fluid.serving.access")
_LONGEST = 200  # characters of what a client chose


class Access:
    """Tells who may ask.

    Args:
      token: that has to stand in the header `Authorization: Bearer TOKEN`; None for none.
      hosts: for which names the server answers, as in the header `Host`; None for all. Without a token this keeps a
        page of another site, whose name somebody made point here, from reading answers.

    Raises:
      ArgumentError: the token is empty, or cannot stand in a header.

    Example:
      >>> Access("secret").allows("Bearer secret"), Access("secret").allows(None)
      (True, False)
    """

    def __init__(self, token: str | None = None, hosts: frozenset[str] | None = None):
        if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
            raise errors.ArgumentError("a token is a word of ASCII letters, digits and signs, without blanks")
        self._expected = None if token is None else f"Bearer {token}".encode()
        self._hosts = hosts

    def allows(self, authorization: str | None) -> bool:
        """Whether the header of a request is the right one."""
        if self._expected is None:
            return True
        return hmac.compare_digest((authorization or "").encode("utf-8", "replace"), self._expected)

    def knows(self, host: str | None) -> bool:
        """Whether the server is called so."""
        return self._hosts is None or host is None or _name(host) in self._hosts

    def lets_page(self, origin: str | None, host: str | None) -> bool:
        """Return whether a page of a browser may send a request: on this machine and without a token, its own page.

        Args:
          origin: the header `Origin`, which a browser sends for a page; None where there is none.
          host: the header `Host`.
        """
        return self._hosts is None or origin is None or origin in (f"http://{host}", f"https://{host}")


def check_address(host: str, token: str | None, allow_anonymous: bool) -> Access:
    """Who may ask a server that listens on an address.

    Raises:
      ArgumentError: everybody could, and nobody said that they may.
    """
    if is_loopback(host):
        return Access(token, None if token is not None else frozenset({"localhost", "127.0.0.1", "::1", host}))
    if token is None and not allow_anonymous:
        raise errors.ArgumentError(
            f"host={host!r} can be reached from other machines, so a token is needed: set FLUID_SERVE_TOKEN, or give "
            f"--token-file FILE; --allow-anonymous lets everybody in, as behind a proxy that asks for one"
        )
    return Access(token)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Record:
    """What is written down of one request, as one line of JSON.

    Args:
      scope: the ASGI scope of the request.

    Attributes:
      infers: whether a model was asked, and not only about it.
      status: of the answer.
      received: bytes of the body.
      sent: bytes of the answer.
      model: its name, where there is such a model.
      version: of the model.
      seconds: from the head of the request to its answer; known after `end`.
    """

    def __init__(self, scope: Any):
        self._scope = scope
        self._start = time.perf_counter()
        self.infers = False
        self.status = 0
        self.received = 0
        self.sent = 0
        self.model = ""
        self.version = ""
        self.seconds = 0.0
        self._ended = 0.0

    def end(self) -> None:
        """The request is answered."""
        self.seconds = time.perf_counter() - self._start
        self._ended = time.time()

    def write(self) -> None:
        """Write it."""
        if not LOG.isEnabledFor(logging.INFO):
            return
        client = self._scope.get("client")
        told = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._ended)),
            "client": client[0] if client else None,
            "method": self._scope["method"][:_LONGEST],
            "path": self._scope["path"][:_LONGEST],
            "status": self.status,
            "ms": round(self.seconds * 1000, 3),
            "received": self.received,
            "sent": self.sent,
            "model": self.model,
            "version": self.version,
        }
        # To find out which line of code logs, as LOG.info does, takes longer than all the rest.
        LOG.handle(LOG.makeRecord(LOG.name, logging.INFO, __file__, 0, json.dumps(told), (), None))


def _name(host: str) -> str:
    """The name in a `Host` header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if host.count(":") == 1 else host
