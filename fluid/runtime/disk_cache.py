"""Disk cache: files of compiled programs that several processes read, write and remove at once.

JAX's own cache compresses files with `zstandard` where it is installed (Python 3.14 has it), without a checksum. Of 200
files with one flipped bit, 35 ended the process, 10 gave wrong numbers without an error, and 118 stayed damaged. With
`zlib` all 200 stayed damaged. Of 100 processes that were killed while they wrote, 24 left a file that no later process
replaced. Figures: `python benchmarks/jax_cache.py`, jax and jaxlib 0.10.2, zstandard 0.25.0, November 2026. These files
can go when that command prints "whole" for every case. `docs/compilation.md` promises that a damaged file is compiled
and written anew.
"""

import contextlib
import hashlib
import logging
import os
import pathlib
import tempfile
import time

_SUFFIX = ".xla"
_UNFINISHED = ".tmp"
_DIGEST = 16
# The folder is scanned each time this fraction (1 / _PARTS) of its limit has been written.
_PARTS = 8
# No write takes this many seconds: an older unfinished file is left from a process that was killed.
_HOUR = 3600

log = logging.getLogger("fluid")


class Entries:
    """Compiled programs on disk by key, with the interface of JAX's compilation cache.

    A file appears whole or not at all. It begins with a digest of the key and the value, and is removed when the digest
    does not match. If the folder is not writable, nothing is stored. When all files together exceed the limit, the
    least recently used files are removed.

    Args:
      folder: an existing folder.
      max_bytes: the limit. Each process scans the folder each time it has written an eighth of the limit, so that
        files may exceed the limit by an eighth. A program larger than an eighth is not stored.

    Example:
      >>> entries = Entries(pathlib.Path("."), max_bytes=1 << 20)
      >>> entries.put("jit_step-1f", b"machine code")
      >>> entries.get("jit_step-1f"), entries.get("jit_step-2e")
      (b'machine code', None)
    """

    def __init__(self, folder: pathlib.Path, max_bytes: int):
        self._path = folder  # JAX shows it in a message
        self._max_bytes = max_bytes
        self._written = max_bytes  # by this process since its last scan; at first unknown, so the first write scans
        self._refused = False

    def get(self, key: str) -> bytes | None:
        """Return the value under a key; None if there is no value, or the file is damaged."""
        path = self._file(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, value = content[:_DIGEST], content[_DIGEST:]
        is_whole = digest == _digest(key, value)
        with contextlib.suppress(OSError):  # another process may have removed it meanwhile
            if is_whole:
                os.utime(path)
            else:
                path.unlink()
        return value if is_whole else None

    def put(self, key: str, value: bytes) -> None:
        """Store a value under a key, and replace an older value."""
        content = _digest(key, value) + value
        if len(content) > self._max_bytes // _PARTS:
            return
        try:
            self._write(self._file(key), content)
            self._written += len(content)
            if self._written > self._max_bytes // _PARTS:
                self._written = 0
                self._remove_oldest()
        except OSError as error:
            if not self._refused:
                log.info("compiled programs are not kept in %s: %s", self._path, error)
            self._refused = True

    def _file(self, key: str) -> pathlib.Path:
        return self._path / f"{key}{_SUFFIX}"

    def _write(self, path: pathlib.Path, content: bytes) -> None:
        handle, name = tempfile.mkstemp(dir=self._path, suffix=_UNFINISHED)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _remove_oldest(self) -> None:
        """Remove the oldest files until the rest is within the limit; other processes may remove files at this time."""
        found = []
        with os.scandir(self._path) as files:
            for file in files:
                with contextlib.suppress(OSError):
                    status = file.stat()
                    if file.name.endswith(_SUFFIX):
                        found.append((status.st_mtime, status.st_size, file.path))
                    elif file.name.endswith(_UNFINISHED) and status.st_mtime < time.time() - _HOUR:
                        os.unlink(file.path)
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= self._max_bytes:
                break
            total -= size
            with contextlib.suppress(OSError):
                os.unlink(path)


def _digest(key: str, value: bytes) -> bytes:
    """Return the digest of a value and its key, so that a file under another program's name is not run."""
    return hashlib.blake2b(value, digest_size=_DIGEST, key=hashlib.blake2b(key.encode()).digest()).digest()
