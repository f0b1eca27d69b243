"""Writers of test files in each format: where possible, they use other libraries than the readers of fluid."""

import io
import json
import struct
import tarfile

import numpy as np


def rows_of(count, first=0):
    """Generate `count` rows with: a number, from `first` on; an array `[3]`; a list of 0 to 3 numbers; text; bytes."""
    rng = np.random.default_rng(count + 1000 * first)
    return [
        {
            "id": first + i,
            "x": rng.normal(size=3).astype("float32"),
            "words": rng.integers(0, 99, size=int(rng.integers(0, 4))).astype("int64"),
            "text": f'row "{first + i}",\nä',
            "image": rng.bytes(5),
        }
        for i in range(count)
    ]


def parquet(path, rows, row_group_size=4):
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = rows[0] if rows else rows_of(1)[0]
    columns = {name: [row[name] for row in rows] for name in names}
    types = {"id": pa.int64(), "x": pa.list_(pa.float32(), 3), "words": pa.list_(pa.int64()), "image": pa.binary()}
    table = pa.table({name: pa.array(column, types.get(name)) for name, column in columns.items()})
    pq.write_table(table, path, row_group_size=row_group_size)


def jsonl(path, rows):
    path.write_text("".join(json.dumps(plain(row)) + "\n" for row in rows), encoding="utf-8")


def csv(path, rows):
    import csv

    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "x0", "x1", "x2", "text"])
        writer.writerows([row["id"], *map(float, row["x"]), row["text"]] for row in rows)


def npz(path, rows):
    np.savez(
        path,
        id=np.array([row["id"] for row in rows], "int64"),
        x=np.array([row["x"] for row in rows], "float32").reshape(-1, 3),
    )


def tfrecord(path, rows):
    """Write a TFRecord file: TensorBoard's RecordWriter writes the frames, and `example` encodes the rows."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    with path.open("wb") as file:
        writer = RecordWriter(file)
        for row in rows:
            writer.write(example(row))
        writer.flush()


def webdataset(path, rows):
    with tarfile.open(path, "w") as archive:
        for row in rows:
            array = io.BytesIO()
            np.save(array, row["x"])
            members = {
                "cls": str(row["id"]).encode(),
                "x.npy": array.getvalue(),
                "txt": row["text"].encode(),
                "json": json.dumps(row["words"].tolist()).encode(),
                "jpg": row["image"],
            }
            for extension, data in members.items():
                member = tarfile.TarInfo(f"train/{row['id']:06d}.{extension}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def plain(row):
    """Convert a row to JSON types; leave out bytes, which JSON lacks."""
    return {
        name: value.tolist() if hasattr(value, "tolist") else value
        for name, value in row.items()
        if not isinstance(value, bytes)
    }


def example(row, packed=True):
    """Encode a row as a tf.train.Example in protobuf's wire format; `packed` selects packed lists of numbers."""
    features = b""
    for name, value in row.items():
        if isinstance(value, str | bytes):
            data = value.encode() if isinstance(value, str) else value
            feature = _field(1, _field(1, data))
        elif np.asarray(value).dtype.kind == "f":
            floats = np.asarray(value, "<f4").tobytes()
            feature = _field(2, _field(1, floats) if packed else _unpacked(floats))
        else:
            numbers = [_varint(int(v) % (1 << 64)) for v in np.atleast_1d(value)]
            feature = _field(3, _field(1, b"".join(numbers)) if packed else b"".join(b"\x08" + n for n in numbers))
        features += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, features)


def _unpacked(floats):
    return b"".join(b"\x0d" + floats[i : i + 4] for i in range(0, len(floats), 4))


def _field(number, data):
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value):
    out = b""
    while value >= 128:
        out += struct.pack("B", value & 127 | 128)
        value >>= 7
    return out + struct.pack("B", value)


FORMATS = {
    "parquet": (parquet, ".parquet"),
    "jsonl": (jsonl, ".jsonl"),
    "csv": (csv, ".csv"),
    "npz": (npz, ".npz"),
    "tfrecord": (tfrecord, ".tfrecord"),
    "webdataset": (webdataset, ".tar"),
}


def id_of(row):
    """Return the number of a row that was read; the row has the number as `id` or `cls`, in any type."""
    return int(np.asarray(row["id"] if "id" in row else row["cls"]).reshape(()))


def write(folder, format, counts):
    """Write a file for each number of rows in `counts`; return a glob pattern that matches the files."""
    writer, extension = FORMATS[format]
    first = 0
    for number, count in enumerate(counts):
        writer(folder / f"part-{number:03d}{extension}", rows_of(count, first))
        first += count
    return str(folder / f"part-*{extension}")


def write_all(folder, counts):
    """Write files in each format to separate folders; return a dict from formats to glob patterns."""
    found = {}
    for format in FORMATS:
        (folder / format).mkdir()
        found[format] = write(folder / format, format, counts)
    return found
