"""JSON lines: one JSON object in each line."""

import json
from collections.abc import Iterator
from typing import IO

from fluid import errors
from fluid._util.text import short
from fluid.reader.base import Rows
from fluid.reader.files.format import Fields, Format, Piece, Row, broken

_BLOCK = 1 << 20
# The maximum size of a line in bytes: a small compressed file could expand to a line that fills the memory.
LINE_LIMIT = 1 << 26


class JsonLines(Format):
    """The format of JSON objects, one per line. JSON lists become Python lists, and blank lines are skipped."""

    name = "jsonl"
    extensions = (".jsonl", ".ndjson")

    def read(self, piece: Piece, skip: int, fields: Fields) -> Rows:
        """Yield the lines of a file as bytes, without blank lines."""
        with piece.file.open() as stream:
            try:
                yield from filter(None, map(bytes.strip, lines(stream)))
            except OverflowError:
                raise errors.ReaderError(
                    f"file {piece.file.name}: found a line of more than {LINE_LIMIT >> 20} MiB, expected one JSON "
                    f"object in each line; write a line break after each object"
                ) from None

    def decoded(self, raw: bytes, piece: Piece, number: int, fields: Fields) -> Row:
        """Decode the JSON object in a line to a dict."""
        try:
            row = json.loads(raw)
        except ValueError as error:
            raise broken(
                piece.file,
                number,
                f"{short(raw.decode('utf-8', 'replace'))} is not JSON: {error}; expected one object in a line",
                "Correct the file; is it whole?",
            ) from error
        if not isinstance(row, dict):
            raise broken(
                piece.file,
                number,
                f"{short(row)} is no object, expected one in each line",
                'Give values names: {"x": [0.5, 1.0], "label": 3}',
            )
        return row


def lines(stream: IO[bytes]) -> Iterator[bytes]:
    r"""Yield the lines of a file without line ends; read large blocks, because each read may be a network request.

    Raises:
      OverflowError: a line is longer than `LINE_LIMIT`.

    Example:
      >>> import io
      >>> list(lines(io.BytesIO(b"a\n\nb")))
      [b'a', b'', b'b']
    """
    parts: list[bytes] = []
    size = 0
    while block := stream.read(_BLOCK):
        head, *others = block.split(b"\n")
        parts.append(head)
        size += len(head)
        if size > LINE_LIMIT:
            raise OverflowError("a line is too long")
        for other in others:
            yield b"".join(parts)
            parts, size = [other], len(other)
    if rest := b"".join(parts):
        yield rest
