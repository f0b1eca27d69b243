"""Replies: what a server says, and the errors that it says instead."""

import json
import logging
import pathlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluid import errors

LOG = logging.getLogger("fluid.serving")
JSON = "application/json"
_FOLDERS = re.compile(r"""(?<![^\s'"(=])(?:[A-Za-z]:)?[/\\][^\s'":;,()]*[/\\]""")


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


def refused(error: errors.FluidError, folders: Mapping[str, str] = {}) -> Reply:  # noqa: B006
    """The reply that tells an error: its message without folders, and its kind for clients that know it."""
    status = error.status if isinstance(error, Refusal) else 404 if isinstance(error, errors.UnknownNameError) else 400
    headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": "1"}}.get(status, {})
    # A client that sends what nobody reads has to stop.
    if status in (400, 408, 413):
        headers = {**headers, "connection": "close"}
    text = str(error) if isinstance(error, Refusal) else message(error, folders)
    return said({"error": text, "kind": type(error).__name__}, status, headers)


def message(error: errors.FluidError, folders: Mapping[str, str] = {}) -> str:  # noqa: B006
    """Return the message of an error for a client, without names of folders; the log gets all of it."""
    told = without_folders(str(error), folders)
    if told != str(error):
        LOG.warning("a client is told of this without its folders: %s", error)
    return told


def without_folders(text: str, folders: Mapping[str, str] = {}) -> str:  # noqa: B006
    """Return a message in which the folders of this machine are left out.

    Args:
      text: the message.
      folders: names for folders that stand in quotes in the message, and may be relative; other paths are absolute.

    Example:
      >>> without_folders("'/srv/secret/digits.fluid' and 'runs/a' are damaged", {"runs/a": "the folder of versions"})
      "'digits.fluid' and the folder of versions are damaged"
    """
    told = text
    for folder, name in folders.items():
        for last in re.findall(rf"'{re.escape(folder)}(?:[/\\]([^']*))?'", told):
            path = f"{folder}/{last}" if last else folder
            told = told.replace(f"'{path}'", f"'{pathlib.PurePath(last).name}'" if last else name)
    return _FOLDERS.sub("", told)
