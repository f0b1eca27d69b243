"""WebDataset: tar files in which the members of one row lie side by side and have the same name up to the first dot.

The convention is that of https://github.com/webdataset/webdataset: `0001.jpg` and `0001.cls` are the fields "jpg" and
"cls" of one row.
"""

import io
import itertools
import json
import posixpath
import tarfile
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from fluid.reader.base import Rows
from fluid.reader.files.fields import Fields
from fluid.reader.files.format import Format, Piece, Row, broken
from fluid.reader.files.formats.npz import read_array

KEY = "__key__"
_Members = tuple[str, dict[str, tuple[str, bytes]]]  # the name of a row, and names and bytes of members by extension
_BLOCK = 1 << 18
# What is made of members by the last part of their extension; all others stay bytes, and nothing is ever unpickled.
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "cls": int,
    "index": int,
    "json": json.loads,
    "npy": lambda data: read_array(io.BytesIO(data)),
    "text": bytes.decode,
    "txt": bytes.decode,
}


class WebDataset(Format):
    """Tar files of WebDataset, read as a stream. Images and sounds are bytes, which the user's own function decodes."""

    name = "webdataset"
    extensions = (".tar", ".tgz")

    def read(self, piece: Piece, skip: int, fields: Fields) -> Rows:
        """The members of each row of a file."""
        wanted = fields.sources
        with piece.file.open() as opened:
            stream = _Watched(opened)
            archive = tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK)
            members = (member for member in archive if member.isfile() and _parts(member)[1])
            for number, (key, group) in enumerate(itertools.groupby(members, lambda member: _parts(member)[0])):
                found: dict[str, tuple[str, bytes]] = {}
                for member in group:
                    extension = _parts(member)[1]
                    if extension in found or extension == KEY:
                        raise broken(
                            piece.file,
                            number,
                            f"two members of {key!r} are called {extension!r}, expected one",
                            "Give each row a name of its own",
                        )
                    if wanted is None or extension in wanted:
                        found[extension] = member.name, _bytes(archive, member)
                yield key, found
                # Or the heads of all members would stay in memory. typeshed does not know this list.
                archive.members.clear()  # type: ignore[attr-defined]
            if not stream.ends_well(archive.offset):
                raise ValueError(f"the archive is damaged or not whole at byte {archive.offset}")

    def decoded(self, raw: _Members, piece: Piece, number: int, fields: Fields) -> Row:
        """The fields of a row; the one whose fields have the name NAME has NAME as "__key__"."""
        key, members = raw
        values = {extension: _decoded(*member, piece, number) for extension, member in members.items()}
        return {KEY: key, **values}


class _Watched(io.RawIOBase):
    """A stream of a tar file that knows how it ends: where a header is damaged, tarfile says nothing and stops."""

    def __init__(self, stream: IO[bytes]):
        self._stream = stream
        self._latest = deque([b""], maxlen=2)
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        """Read so many bytes."""
        block = self._stream.read(size)
        self._position += len(block)
        self._latest.append(block)
        return block

    def ends_well(self, offset: int) -> bool:
        """Whether what was read has an end mark, a block of zeros, in this place, and nothing but zeros behind it."""
        latest = b"".join(self._latest)
        behind = latest[len(latest) - (self._position - offset) :]
        ends = len(behind) >= tarfile.BLOCKSIZE and not behind.strip(b"\0")
        while ends and (block := self._stream.read(_BLOCK)):
            ends = not block.strip(b"\0")
        return ends


def _parts(member: tarfile.TarInfo) -> tuple[str, str]:
    """The name of the row, with its folder, and the name of the field: what is behind the first dot."""
    folder, name = posixpath.split(member.name)
    stem, _, extension = name.partition(".")
    return posixpath.join(folder, stem), extension if stem else ""


def _bytes(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    assert stream is not None  # it is a file
    return stream.read()


def _decoded(name: str, data: bytes, piece: Piece, number: int) -> Any:
    decode = _DECODERS.get(name.rpartition(".")[2])
    if decode is None:
        return data
    try:
        return decode(data)
    except ValueError as error:
        raise broken(
            piece.file,
            number,
            f"{name!r} cannot be read: {error}",
            f"Correct the file; of extensions other than {', '.join(sorted(_DECODERS))} the bytes are given",
        ) from error
