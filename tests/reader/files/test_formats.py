"""File formats: every format gives the rows that another library reads from the same file."""

import csv
import gzip
import io
import json
import tarfile

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import written_files
import zstandard
from hypothesis import given, settings

from fluid import errors, reader
from fluid.reader.files import column_names
from fluid.reader.files.formats import arrow
from fluid.reader.files.formats.json_lines import lines
from fluid.reader.files.listing import File

few = settings(max_examples=25, deadline=None)


def plain(value):
    """Return a value with all arrays and NumPy numbers in it converted to lists and Python numbers."""
    if isinstance(value, dict):
        return {name: plain(v) for name, v in value.items()}
    if isinstance(value, list | np.ndarray):
        return [plain(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def by_pyarrow(paths):
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def by_json(paths):
    return [json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines()]


def by_csv(paths):
    rows = []
    for path in paths:
        with path.open(newline="", encoding="utf-8") as file:
            rows += csv.DictReader(file)
    return [{**{name: float(row[name]) for name in ("x0", "x1", "x2")}, **row_of(row)} for row in rows]


def row_of(row):
    return {"id": int(row["id"]), "text": row["text"]}


def by_numpy(paths):
    archives = [np.load(path) for path in paths]
    return [{"id": i, "x": x.tolist()} for a in archives for i, x in zip(a["id"].tolist(), a["x"], strict=True)]


def by_tarfile(paths):
    found = {}
    for path in paths:
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                key, _, extension = member.name.partition(".")
                found.setdefault(key, {"__key__": key})[extension] = archive.extractfile(member).read()
    for row in found.values():
        row["cls"] = int(row["cls"])
        row["txt"] = row["txt"].decode()
        row["json"] = json.loads(row["json"])
        row["x.npy"] = np.load(io.BytesIO(row["x.npy"])).tolist()
    return list(found.values())


INDEPENDENT = {
    "parquet": by_pyarrow,
    "jsonl": by_json,
    "csv": by_csv,
    "npz": by_numpy,
    "webdataset": by_tarfile,
}


@pytest.mark.parametrize("format", INDEPENDENT)
def test_rows_equal_the_rows_of_another_library(format, tmp_path):
    pattern = written_files.write(tmp_path, format, [5, 1, 40])
    expected = INDEPENDENT[format](sorted(tmp_path.iterdir()))
    assert len(expected) == 46
    assert [plain(row) for row in reader.files(pattern)] == expected


@pytest.mark.parametrize("packed", [True, False])
def test_tfrecords_equal_records_framed_by_tensorboard(packed, tmp_path, monkeypatch):
    monkeypatch.setattr(written_files, "example", lambda row, make=written_files.example: make(row, packed))
    rows = list(reader.files(written_files.write(tmp_path, "tfrecord", [4, 3])))
    expected = written_files.rows_of(4) + written_files.rows_of(3, 4)
    assert len(rows) == len(expected)
    for found, row in zip(rows, expected, strict=True):
        assert found["id"].tolist() == [row["id"]] and found["id"].dtype == np.int64
        assert found["x"].tobytes() == row["x"].tobytes() and found["x"].dtype == np.float32
        assert found["words"].tolist() == row["words"].tolist()
        assert found["image"] == [row["image"]] and found["text"] == [row["text"].encode()]


def test_negative_integers_and_large_records_of_tfrecord(tmp_path):
    rows = [{"n": np.array([-1, -(2**63), 2**63 - 1]), "b": bytes(100_000)}]
    written_files.tfrecord(tmp_path / "a.tfrecord-00000-of-00001", rows)
    (found,) = reader.files(tmp_path / "a.tfrecord-*")
    assert found["n"].tolist() == rows[0]["n"].tolist() and found["b"] == [rows[0]["b"]]


@pytest.mark.parametrize("format", written_files.FORMATS)
def test_columns_are_picked_and_renamed(format, tmp_path):
    pattern = written_files.write(tmp_path, format, [5])
    source = "cls" if format == "webdataset" else "id"
    rows = list(reader.files(pattern, columns={"a": source, "b": source}, dtypes={"b": "float32"}))
    assert [set(row) for row in rows] == [{"a", "b"}] * 5
    assert [float(np.reshape(row["b"], ())) for row in rows] == [0, 1, 2, 3, 4]
    assert [written_files.id_of({"id": row["a"]}) for row in rows] == [0, 1, 2, 3, 4]
    assert {row["b"].dtype for row in rows} == {np.dtype("float32")}


@pytest.mark.parametrize(("extension", "compress"), [(".gz", gzip.compress), (".zst", zstandard.compress)])
@pytest.mark.parametrize("format", ["jsonl", "csv", "tfrecord", "webdataset"])
def test_compressed_files_are_decompressed(format, extension, compress, tmp_path):
    pattern = written_files.write(tmp_path, format, [3, 4])
    whole = [plain(row) for row in reader.files(pattern)]
    for path in list(tmp_path.iterdir()):
        path.with_name(path.name + extension).write_bytes(compress(path.read_bytes()))
    assert [plain(row) for row in reader.files(pattern + extension)] == whole


def test_tsv_and_explicit_csv_formats_are_read(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tb\n1\tx,y\n")
    (tmp_path / "data").write_text("a,b\n1,2.5\n")
    assert list(reader.files(tmp_path / "a.tsv")) == [{"a": 1, "b": "x,y"}]
    assert list(reader.files(tmp_path / "data", format="csv")) == [{"a": 1, "b": 2.5}]


def test_dtypes_decide_how_csv_text_is_converted(tmp_path):
    (tmp_path / "a.csv").write_text("zip,n,m\n01234,1,\n99999,2,3.5\n")
    rows = list(reader.files(tmp_path / "a.csv", dtypes={"zip": "str", "n": "float32"}))
    assert [row["zip"] for row in rows] == ["01234", "99999"]
    assert [row["n"].dtype for row in rows] == ["float32"] * 2
    assert np.isnan(rows[0]["m"]) and rows[1]["m"] == 3.5, "a missing float is NaN"


numbers = st.integers(-(2**31), 2**31 - 1)
COLUMNS = {
    "int": (numbers, pa.int64()),
    "float": (st.floats(allow_nan=False), pa.float64()),
    "bool": (st.booleans(), pa.bool_()),
    "text": (st.one_of(st.none(), st.text(max_size=3)), pa.string()),
    "bytes": (st.one_of(st.none(), st.binary(max_size=3)), pa.large_binary()),
    "list": (st.lists(numbers, max_size=3), pa.list_(pa.int32())),
    "large list": (st.lists(st.booleans(), max_size=3), pa.large_list(pa.bool_())),
    "fixed": (st.lists(numbers, min_size=2, max_size=2), pa.list_(pa.int64(), 2)),
    "list of lists": (st.lists(st.lists(numbers, max_size=2), max_size=2), pa.list_(pa.list_(pa.int64()))),
    "list of text": (st.lists(st.text(max_size=2), max_size=2), pa.list_(pa.string())),
    "fixed of fixed": (
        st.lists(st.lists(numbers, min_size=2, max_size=2), min_size=3, max_size=3),
        pa.list_(pa.list_(pa.int64(), 2), 3),
    ),
    "struct": (st.fixed_dictionaries({"a": numbers}), pa.struct({"a": pa.int64()})),
}


@few
@given(data=st.data(), count=st.integers(0, 6), low=st.integers(0, 3))
def test_arrow_values_equal_to_pylist(data, count, low):
    columns = {
        name: pa.array(data.draw(st.lists(values, min_size=count, max_size=count), name), type_)
        for name, (values, type_) in COLUMNS.items()
    }
    columns["dictionary"] = columns["text"].dictionary_encode()
    batch = pa.RecordBatch.from_pydict(columns).slice(low)
    found = list(arrow.rows(batch, File(None, "", "file", ""), 0))
    assert [plain(row) for row in found] == batch.to_pylist()
    if found:
        assert found[0]["fixed of fixed"].shape == (3, 2)
        assert found[0]["list"].dtype == np.int32
        found[0]["fixed"][0] = 7  # the arrays of a row are writable
        assert found[0]["fixed"][0] == 7


def test_tensors_of_arrow_keep_their_shape(tmp_path):
    images = np.arange(24, dtype="uint8").reshape(2, 3, 4)
    pq.write_table(pa.table({"image": pa.FixedShapeTensorArray.from_numpy_ndarray(images)}), tmp_path / "a.parquet")
    assert np.array_equal([row["image"] for row in reader.files(tmp_path / "a.parquet")], images)


@few
@given(data=st.binary(max_size=40).map(lambda data: data.replace(b"a", b"\n")), size=st.integers(1, 5))
def test_lines_equal_bytes_split(data, size):
    class Slow(io.BytesIO):
        def read(self, _):
            return super().read(size)

    expected = data.split(b"\n")
    assert list(lines(Slow(data))) == (expected if expected[-1] else expected[:-1])


def test_webdataset_accepts_folders_and_absent_fields(tmp_path):
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("README", "a/1.jpg", "a/1.seg.png", "b/1.jpg", ".hidden"):
            archive.addfile(tarfile.TarInfo(name), io.BytesIO())
    assert list(reader.files(tmp_path / "a.tar")) == [
        {"__key__": "a/1", "jpg": b"", "seg.png": b""},
        {"__key__": "b/1", "jpg": b""},
    ]


def test_tar_members_are_not_kept_in_memory(tmp_path, monkeypatch):
    """Check that tarfile's records of earlier members are dropped, because an archive may have millions of members."""
    kept = []

    class Counted(tarfile.TarFile):
        def next(self):
            kept.append(len(self.members))
            return super().next()

    monkeypatch.setattr(tarfile, "TarFile", Counted)
    monkeypatch.setattr(tarfile, "open", Counted.open)
    written_files.webdataset(tmp_path / "a.tar", written_files.rows_of(50))
    assert len(list(reader.files(tmp_path / "a.tar"))) == 50
    assert len(kept) > 250 and max(kept) < 20


def test_pickled_objects_are_never_read(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.array([{}], object))
    with pytest.raises(errors.ReaderError, match=r"a\.npz: .*Python objects and records are never read"):
        list(reader.files(tmp_path / "a.npz"))


@pytest.mark.parametrize("name", sorted(written_files.FORMATS))
def test_column_names_equal_the_names_in_rows(name, tmp_path):
    pattern = written_files.write(tmp_path, name, [3, 2])
    assert column_names(pattern) == list(next(iter(reader.files(pattern))))
