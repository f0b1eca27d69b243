"""TFRecord: messages of type tf.train.Example, each with its length and two checksums.

A record is its length in 8 bytes, a checksum of the length, the message, and a checksum of the message. The checksums
are CRC-32C, rotated by 15 bits plus a constant, as in TensorFlow's tensorflow/core/lib/io/record_writer.h and
lib/hash/crc32c.h. Numbers are little-endian.
"""

import functools
import struct
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from fluid._util import protobuf
from fluid.reader.base import Rows
from fluid.reader.files.format import Fields, Format, Piece, Row, broken
from fluid.reader.files.listing import File, library

_HEAD = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MOVED = 0xA282EAD8
_BLOCK = 1 << 24
_DTYPES = {"float_list": np.float32, "int64_list": np.int64}
# The protobuf messages of tensorflow/core/example/{example,feature}.proto: name, number and type of each field. A type
# with `*` is repeated. The map in `Features` is declared as a repeated `Entry`, which has the same encoding.
_MESSAGES = {
    "BytesList": ["value 1 bytes*"],
    "FloatList": ["value 1 float*"],
    "Int64List": ["value 1 int64*"],
    "Feature": ["bytes_list 1 BytesList", "float_list 2 FloatList", "int64_list 3 Int64List"],
    "Entry": ["key 1 string", "value 2 Feature"],
    "Features": ["feature 1 Entry*"],
    "Example": ["features 1 Features"],
}


class TFRecord(Format):
    """The format TFRecord, with messages of type tf.train.Example.

    A feature of numbers becomes an array `[k]`, and a feature of bytes a list of bytes, also for a single value.
    """

    name = "tfrecord"
    extensions = (".tfrecord", ".tfrecords", ".tfrec")

    def read(self, piece: Piece, skip: int, fields: Fields) -> Rows:
        """Yield the records of a file as bytes, each an encoded tf.train.Example."""
        library("google.protobuf", f"the records of {piece.file.name!r} are protobuf messages")
        with piece.file.open() as stream:
            for number, record in enumerate(records(stream, piece.file)):
                if number == 0:
                    _check_is_example(_class().FromString(record), piece.file)
                yield record

    def decoded(self, raw: bytes, piece: Piece, number: int, fields: Fields) -> Row:
        """Decode a record to a dict of the values of its features by name."""
        wanted = fields.sources
        features = _class().FromString(raw).features.feature
        return {
            f.key: _value(f.value, f.key, piece.file, number) for f in features if wanted is None or f.key in wanted
        }


def records(stream: IO[bytes], file: File) -> Iterator[bytes]:
    """Yield the records of a file, after a check of their checksums.

    Raises:
      ReaderError: a checksum differs, or the file ends within a record.
    """
    crc: Callable[[bytes], int] = library("google_crc32c", f"{file.name!r} has checksums of records").value
    number = 0
    while head := _exactly(stream, _HEAD.size):
        length, checksum = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, -1)
        if checksum != _masked(crc(head[:8])):
            raise _damaged(file, number, "the length of a record is damaged, or the file is no TFRecord")
        record = _exactly(stream, length)
        tail = _exactly(stream, _CHECKSUM.size)
        if len(tail) < _CHECKSUM.size:
            raise _damaged(file, number, f"the file ends within a record of {length} bytes")
        if _CHECKSUM.unpack(tail)[0] != _masked(crc(record)):
            raise _damaged(file, number, "the checksum of a record differs from its bytes")
        yield record
        number += 1


def _exactly(stream: IO[bytes], size: int) -> bytes:
    """Read `size` bytes, or fewer at the end of the file.

    Bytes are read in blocks, so that a damaged, too large `size` uses at most as much memory as the file has bytes.
    """
    parts = []
    while size and (part := stream.read(min(size, _BLOCK))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MOVED) & 0xFFFFFFFF


def _value(feature: Any, name: str, file: File, number: int) -> Any:
    """Return the values of one feature of a tf.train.Example: an array `[k]`, or a list of bytes."""
    which = next((w for w in ("bytes_list", *_DTYPES) if feature.HasField(w)), None)
    if which is None:
        raise broken(file, number, f"feature {name!r} has no value", "Write each row with all of its features")
    values = getattr(feature, which).value
    return list(values) if which == "bytes_list" else np.array(values, _DTYPES[which])


def _check_is_example(message: Any, file: File) -> None:
    """Refuse a message that has other fields than tf.train.Example; protobuf would ignore these fields silently."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    if len(UnknownFieldSet(message)):
        raise broken(
            file,
            0,
            "the message has fields that tf.train.Example does not have, as a SequenceExample does",
            "Write messages of the kind tf.train.Example; features of any length may be in them",
        )


def _damaged(file: File, number: int, found: str) -> Exception:
    return broken(file, number, f"{found}, expected whole records", "Copy or write the file again")


@functools.cache
def _class() -> Any:
    return protobuf.classes("fluid.files", _MESSAGES)["Example"]
