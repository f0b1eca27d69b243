"""Replies: what a server says, and the errors that it says instead."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluid import errors

JSON = "application/json"


@dataclass(frozen=True)
class Reply:
    """One answer.

    Attributes:
      body: its bytes.
      status: of HTTP.
      content_type: of the body.
      headers: beside it.
    """

    body: bytes
    status: int = 200
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)


class Refusal(errors.FluidError):
    """A request is not answered as it was asked.

    Attributes:
      status: of HTTP.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def said(value: Any, status: int = 200, headers: Mapping[str, str] = {}) -> Reply:  # noqa: B006
    """A reply in JSON."""
    return Reply(json.dumps(value).encode(), status, JSON, headers)


def refused(error: errors.FluidError) -> Reply:
    """The reply that tells an error: its message, and its kind for clients that know it."""
    status = error.status if isinstance(error, Refusal) else 404 if isinstance(error, errors.UnknownNameError) else 400
    headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}.get(status, {})
    # A client that sends what nobody reads has to stop.
    if status in (400, 408, 413):
        headers = {**headers, "connection": "close"}
    return said({"error": str(error), "kind": type(error).__name__}, status, headers)
