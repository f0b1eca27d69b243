"""WebDataset: tar files in which the members of a row are adjacent and share their name up to the first dot.

The convention comes from https://github.com/webdataset/webdataset: `0001.jpg` and `0001.cls` are the fields "jpg" and
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

from fluid._util.npy import read_array
from fluid.reader.base import Rows
from fluid.reader.files.format import Fields, Format, Piece, Row, broken

KEY = "__key__"
# The type of a row that is not decoded yet: its name, and a dict by extension with the name and the bytes of each file.
_Members = tuple[str, dict[str, tuple[str, bytes]]]
_BLOCK = 1 << 18
# The decoder of a file in the tar file, by the part of its name after the last dot. Other files stay bytes, also pickle
# files, because unpickling could run code.
_DECODERS: dict[str, Callable[[bytes], Any]] = {
    "cls": int,
    "index": int,
    "json": json.loads,
    "npy": lambda data: read_array(io.BytesIO(data)),
    "text": bytes.decode,
    "txt": bytes.decode,
}


class WebDataset(Format):
    """The format of WebDataset tar files, read as a stream. Images and sounds stay bytes, for the user to decode."""

    name = "webdataset"
    extensions = (".tar", ".tgz")

    def read(self, piece: Piece, skip: int, fields: Fields) -> Rows:
        """Yield each row without decoding it: its name, and the names and bytes of its files by extension."""
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
                # tarfile keeps the header of every file in memory, so the headers are deleted after each row. The type
                # hints of typeshed do not declare `members`.
                archive.members.clear()  # type: ignore[attr-defined]
            if not stream.ends_well(archive.offset):
                raise ValueError(f"the archive is damaged or not whole at byte {archive.offset}")

    def decoded(self, raw: _Members, piece: Piece, number: int, fields: Fields) -> Row:
        """Decode the fields of a row; the field "__key__" holds the name of the row, which its files share."""
        key, members = raw
        values = {extension: _decoded(*member, piece, number) for extension, member in members.items()}
        return {KEY: key, **values}


class _Watched(io.RawIOBase):
    """A stream of a tar file that can check its end, because tarfile stops at a damaged header without an error."""

    def __init__(self, stream: IO[bytes]):
        self._stream = stream
        self._latest = deque([b""], maxlen=2)
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        """Read at most `size` bytes, and remember the last two blocks, in which `ends_well` looks for the end mark."""
        block = self._stream.read(size)
        self._position += len(block)
        self._latest.append(block)
        return block

    def ends_well(self, offset: int) -> bool:
        """Return whether the tar file has an end mark, a block of zeros, at `offset`, and only zeros after it."""
        latest = b"".join(self._latest)
        behind = latest[len(latest) - (self._position - offset) :]
        ends = len(behind) >= tarfile.BLOCKSIZE and not behind.strip(b"\0")
        while ends and (block := self._stream.read(_BLOCK)):
            ends = not block.strip(b"\0")
        return ends


def _parts(member: tarfile.TarInfo) -> tuple[str, str]:
    """Return the names of the row and of the field to which a file of the tar file belongs.

    The name of the row is the path of the file up to the first dot in the file name. The name of the field is the text
    after this dot.
    """
    folder, name = posixpath.split(member.name)
    stem, _, extension = name.partition(".")
    return posixpath.join(folder, stem), extension if stem else ""


def _bytes(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    stream = archive.extractfile(member)
    assert stream is not None  # `extractfile` returns None only for members that are not files
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
