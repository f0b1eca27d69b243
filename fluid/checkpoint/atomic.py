"""Atomic writes: a file is written under another name, and then replaces the old file."""

import contextlib
import os
import pathlib
import secrets
from collections.abc import Iterator
from typing import BinaryIO

from fluid import errors


@contextlib.contextmanager
def replaced(
    target: pathlib.Path, failure: type[errors.FluidError] = errors.ParameterFileError
) -> Iterator[tuple[pathlib.Path, BinaryIO]]:
    """Write a file atomically: a concurrent reader sees the whole old file or the whole new file.

    The bytes go to a temporary file in the folder of `target`. The temporary file replaces `target` when the block
    ends, and is removed when the block fails.

    Example:
      >>> path = pathlib.Path("notes")
      >>> with replaced(path) as (_, file):
      ...     _ = file.write(b"all of it")
      >>> path.read_bytes()
      b'all of it'
    """
    name = str(target.parent / f".{target.name}.{secrets.token_hex(6)}.tmp")
    try:
        # `tempfile` is not used: only the owner can read its files, but a server often runs as another user.
        handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o666)
    except OSError as error:
        raise failure(
            f"cannot write {str(target)!r}: {error.strerror}; its folder must exist and be writable"
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield pathlib.Path(name), file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
        sync(target.parent)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def sync(path: pathlib.Path) -> None:
    """Flush a file or a folder to the disk."""
    if os.name == "posix" or path.is_file():  # only POSIX systems can open a folder, to flush it
        handle = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
