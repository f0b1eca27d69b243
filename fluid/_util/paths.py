"""Paths: checks of arguments that are local paths, or addresses in object stores such as "s3://bucket/run"."""

import os
import pathlib
import re
from typing import Any

from fluid import errors

PathLike = str | os.PathLike[str]
"""The type of arguments that are paths of files or folders."""

TAKE_ADDRESSES = (
    "addresses are taken by fluid.CheckpointConfig(address), fluid.Checkpoint(session, address), "
    "fluid.Inferencer(program, checkpoint=address), fluid.reader.files(address) and `python -m fluid inspect`"
)


def is_address(path: PathLike) -> bool:
    """Return whether a path is an address, such as "s3://bucket/run", and not a local path.

    Example:
      >>> is_address("s3://bucket/run"), is_address("checkpoints")
      (True, False)
    """
    return "://" in os.fspath(path)


def local_path(path: Any, failure: type[errors.FluidError] = errors.ArgumentError) -> pathlib.Path:
    """Convert an argument to a local path; raise an error for an address such as "s3://bucket/run".

    Without this check, `pathlib` would convert the address to a local folder named `s3:`.

    Raises:
      ArgumentTypeError: `path` is not a path.
      ArgumentError: `path` contains a placeholder such as `{name}`, or is an address and `failure` is the default.

    Example:
      >>> local_path("digits.params").name
      'digits.params'
      >>> local_path("file:///data/digits.params")
      Traceback (most recent call last):
      fluid.errors.ArgumentError: 'file:///data/digits.params' is an address, and a local path is needed here: \
'/data/digits.params'
    """
    if not isinstance(path, str | os.PathLike):
        raise errors.ArgumentTypeError(
            f"found {type(path).__name__}, expected the path of a file or folder, as text or pathlib.Path"
        )
    text = os.fspath(path)
    if not is_address(text):
        if braces := re.search(r"\{[A-Za-z_]\w*(:[^{}]*)?\}", str(text)):
            raise errors.ArgumentError(
                f"the path {text!r} holds {braces[0]}, which nothing fills in; expected a name, as of an f-string: "
                f'f"{text}"'
            )
        return pathlib.Path(text)
    scheme, _, rest = text.partition("://")
    if scheme == "file":
        raise failure(f"{text!r} is an address, and a local path is needed here: {rest!r}")
    name = rest.rstrip("/").rpartition("/")[2] or "here"
    raise failure(
        f"{text!r} is an address, and a local path is needed here, such as {name!r}; {TAKE_ADDRESSES}. "
        f"fsspec.filesystem({scheme!r}).put({name!r}, {text!r}) copies a file to an address, get(...) from one"
    )
