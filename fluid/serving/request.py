"""Request: what a client asks, as ASGI tells it, and the way back to it."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from fluid.serving.access import Record
from fluid.serving.replies import Reply

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
_SAFE = [(b"x-content-type-options", b"nosniff"), (b"cache-control", b"no-store")]


class Request:
    """One request.

    Args:
      scope: of ASGI.
      receive: gives the messages of the client, as ASGI has it.

    Attributes:
      client: the address of its connection, or None.
      method: of HTTP.
      path: without percent signs, and without what an application around this one has taken off.
      headers: by name in lower case; of several with one name the first.
      model: the name that the path has, or None.
      version: the number that the path has, or None.
      record: what is written down of it.
    """

    def __init__(self, scope: Any, receive: Receive):
        self.client: Any = scope.get("client")
        self.method: str = scope["method"]
        self.path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        self.headers: Mapping[str, str] = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])
        }
        self.model: str | None = None
        self.version: str | None = None
        self.receive = receive
        self.record = Record(scope)


async def answer(send: Send, reply: Reply) -> None:
    """Send a reply, as ASGI has it."""
    headers = [
        (b"content-length", b"%d" % len(reply.body)),
        (b"content-type", reply.content_type.encode("latin-1")),
        *_SAFE,
    ]
    headers += [(name.encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
