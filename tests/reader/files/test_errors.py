"""Errors of `reader.files`: absent, unknown and damaged files, and files with wrong contents."""

import contextlib
import gzip
import json
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import written_files
from written_files import id_of

from fluid import errors, reader
from fluid.reader.files.formats import json_lines

WRONG_CALLS = {
    "no file": (lambda: reader.files("train-*.csv"), "found no file that matches 'train-.*reader.files"),
    "no such file": (lambda: reader.files("train.csv"), "found no file that matches 'train.csv'"),
    "a folder": (lambda: reader.files("folder"), r"'folder' is a folder, expected files: reader.files\('folder/\*'\)"),
    "no path": (lambda: reader.files([]), "was given no path"),
    "an empty path": (lambda: reader.files(""), "needs a path.*found str ''"),
    "a number": (lambda: reader.files(3), "needs a path.*found int 3: reader.files"),
    "numbers": (lambda: reader.files([3]), "needs a path.*found int 3"),
    "a dict": (lambda: reader.files({"a": 1}), "needs a path.*found dict"),
    "unknown protocol": (lambda: reader.files("s4://b/a.csv"), "Protocol not known: s4.*s3://bucket"),
    "unknown extension": (lambda: reader.files("a.dat"), "does not know the format of 'a.dat'.*say.*format='csv'"),
    "unknown format": (lambda: reader.files("a.csv", format="parqet"), "Did you mean 'parquet'"),
    "two formats": (lambda: reader.files(["a.csv", "b.jsonl"]), r"two formats, 'a\.csv' and '.*reader.chain"),
    "columns": (lambda: reader.files("a.csv", columns="id"), r"expected different names.*columns=\['x', 'label'\]"),
    "repeated": (lambda: reader.files("a.csv", columns=["id", "id"]), "expected different names of columns"),
    "numbered": (lambda: reader.files("a.csv", columns=[0]), "expected different names of columns"),
    "no columns": (lambda: reader.files("a.csv", columns=[]), "expected at least one column"),
    "dtype": (lambda: reader.files("a.csv", dtypes={"id": "int65"}), "'int65'.*expected a dtype of numbers.*float32"),
    "object": (lambda: reader.files("a.csv", dtypes={"id": object}), "expected a dtype of numbers"),
    "dtype of none": (
        lambda: reader.files("a.csv", columns=["id"], dtypes={"idd": "int64"}),
        "names 'idd', which is none of the columns. Did you mean 'id'",
    ),
    "parallel": (lambda: reader.files("a.csv", parallel=0), "parallel=0.*from 1 on"),
    "seed": (lambda: reader.files("a.csv", shuffle=True, seed=-1), "seed=-1.*from 0 on"),
    "buffer": (lambda: reader.files("a.csv", buf_size=0), "buf_size=0.*from 1 on"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_wrong_calls(name, in_tmp):
    (in_tmp / "folder").mkdir()
    (in_tmp / "a.csv").write_text("id\n1\n")
    (in_tmp / "a.dat").write_text("id\n1\n")
    (in_tmp / "b.jsonl").write_text("{}")
    call, message = WRONG_CALLS[name]
    with pytest.raises((errors.ArgumentError, errors.ArgumentTypeError), match=message):
        call()


@pytest.mark.parametrize("format", written_files.FORMATS)
def test_an_absent_column_is_refused(format, tmp_path):
    pattern = written_files.write(tmp_path, format, [3])
    with pytest.raises(errors.ReaderError, match=r"part-000.*there is no field 'label'.*columns="):
        list(reader.files(pattern, columns=["label"]))
    with pytest.raises(errors.ReaderError, match=r"part-000.*there is no field 'label'"):
        list(reader.files(pattern, dtypes={"label": "int64"}))


def cut(data):
    return data[: len(data) * 2 // 3]


def flipped(data):
    """Return the data with one flipped bit, at three quarters of the length."""
    at = len(data) * 3 // 4
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGES = {
    "parquet": (cut, "Parquet"),
    "jsonl": (cut, r"row \d+ \(counting from 0\): .* is not JSON"),
    "npz": (cut, "BadZipFile"),
    "tfrecord": (cut, r"row \d+ \(counting from 0\): the file ends within a record"),
    "webdataset": (cut, ""),
}


@pytest.mark.parametrize("format", DAMAGES)
def test_a_damaged_file_is_named_after_its_good_rows(format, tmp_path):
    pattern = written_files.write(tmp_path, format, [10, 10])
    damage, message = DAMAGES[format]
    path = sorted(tmp_path.iterdir())[1]
    path.write_bytes(damage(path.read_bytes()))
    found = []
    with pytest.raises(errors.ReaderError, match=rf"{path.name}.*{message}"):
        for row in reader.files(pattern):
            found.append(id_of(row))
    assert found == list(range(len(found)))
    if format in ("jsonl", "tfrecord", "webdataset"):
        assert 10 < len(found) < 20


def test_every_damage_of_a_tar_file_is_reported(tmp_path):
    """Check that a reader refuses cut and doubled tar files, and damaged headers, which tarfile hides."""
    path = tmp_path / "a.tar"
    written_files.webdataset(path, written_files.rows_of(3))
    data = path.read_bytes()
    end = len(data.rstrip(b"\0"))
    end += -end % 512
    for damaged in [*(data[:at] for at in range(0, end + 512, 256)), data + data, data[:1024] + b"x" + data[1025:]]:
        path.write_bytes(damaged)
        with pytest.raises(errors.ReaderError, match=r"a\.tar"):
            list(reader.files(path, columns=["cls"]))
    path.write_bytes(data[: end + 512])  # a tar archive may end in one block of zeros instead of two blocks
    assert len(list(reader.files(path))) == 3


def test_every_flipped_bit_of_a_tfrecord_is_noticed(tmp_path):
    path = tmp_path / "a.tfrecord"
    written_files.tfrecord(path, written_files.rows_of(1))
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        with pytest.raises(errors.ReaderError, match="row 0.*(damaged|ends within|differs)"):
            list(reader.files(path))


def test_a_flipped_bit_of_parquet_fails_its_checksum(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"x": np.arange(1000.0)})
    pq.write_table(table, path, write_page_checksum=True, use_dictionary=False, compression=None)
    data = path.read_bytes()
    path.write_bytes(data[:4000] + bytes([data[4000] ^ 1]) + data[4001:])
    with pytest.raises(errors.ReaderError, match=r"a\.parquet.*CRC checksum"):
        list(reader.files(path))


WRONG_ROWS = {
    "json": ("a.jsonl", '{"x": 1}\n\n{"x": 2\n', {}, r"row 1 \(.*is not JSON.*Expecting"),
    "no object": ("a.jsonl", "[1, 2]\n", {}, r"row 0 \(.*\[1, 2\] is no object.*Give values names"),
    "missing": ("a.jsonl", '{"x": 1}\n{"y": 2}\n', {"columns": ["x"]}, "row 1 .*no field 'x'"),
    "text": (
        "a.jsonl",
        '{"x": 1}\n{"x": "2"}\n',
        {"dtypes": {"x": "int64"}},
        "row 1 .*'x' is '2' .str., expected int64",
    ),
    "fraction": ("a.jsonl", '{"x": 1.5}', {"dtypes": {"x": "int64"}}, "row 0 .*'x' is 1.5 .float., expected int64"),
    "null": ("a.jsonl", '{"x": null}', {"dtypes": {"x": "float32"}}, "row 0 .*'x' is None"),
    "too large": ("a.jsonl", '{"x": 300}', {"dtypes": {"x": "uint8"}}, "'x' is 300 .*what fits into uint8"),
    "infinite": ("a.jsonl", '{"x": 1e300}', {"dtypes": {"x": "float32"}}, "'x' is 1e.300 .*what fits into float32"),
    "ragged": ("a.jsonl", '{"x": [[1], []]}', {"dtypes": {"x": "int64"}}, "rows of one length.*lod_level=2"),
    "number": ("a.jsonl", '{"x": 1}', {"dtypes": {"x": "str"}}, "'x' is 1 .int., expected str"),
    "csv width": ("a.csv", "x,y\n1,2\n3\n", {}, "row 1 .*Expected 2 columns, got 1"),
    "csv type": ("a.csv", "x,y\n1,2\n3,b\n", {"dtypes": {"y": "int64"}}, "row 1 .*invalid value 'b'.*dtypes="),
    "csv missing": ("a.csv", "x,y\n1,2\n,2\n", {}, "row 1 .*column 'x' has no value"),
    "csv twice": ("a.csv", "x,x\n1,2\n", {}, "row 0 .*two fields are called 'x'"),
    "csv empty": ("a.csv", "", {}, "behind its first 0 rows.*Empty CSV file"),
}


@pytest.mark.parametrize("name", WRONG_ROWS)
def test_a_wrong_row_is_named(name, tmp_path):
    file, text, arguments, message = WRONG_ROWS[name]
    (tmp_path / file).write_text(text)
    with pytest.raises(errors.ReaderError, match=rf"{file}.*{message}"):
        list(reader.files(tmp_path / file, **arguments))


def test_a_wrong_late_row_of_csv_is_numbered(tmp_path):
    lines = ["x,y"] + [f'{i},"text\nin two lines"' for i in range(60_000)]
    lines[50_001] = "half,2"
    (tmp_path / "a.csv").write_text("\n".join(lines))
    with pytest.raises(errors.ReaderError, match=r"a\.csv, row 50000 \(counting from 0\).*'half'"):
        list(reader.files(tmp_path / "a.csv"))


def test_files_with_different_columns_are_named(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "y": [[1], [2]]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": ["1", "2"], "y": [[1], [2]]}), tmp_path / "b.parquet")
    with pytest.raises(
        errors.ReaderError, match=r"b\.parquet: found text in column 'x', expected numbers as in .*a\.pa"
    ):
        list(reader.files(tmp_path / "*.parquet"))
    assert len(list(reader.files(tmp_path / "*.parquet", columns=["y"]))) == 4


def test_other_messages_than_examples_are_refused(tmp_path, monkeypatch):
    """Refuse a SequenceExample: protobuf would read its context and silently drop the sequences."""
    make = written_files.example
    monkeypatch.setattr(written_files, "example", lambda row: make(row) + b"\x12\x02\x0a\x00")
    written_files.tfrecord(tmp_path / "a.tfrecord", written_files.rows_of(2))
    with pytest.raises(errors.ReaderError, match=r"a\.tfrecord, row 0 .*tf.train.Example does not have.*Sequence"):
        list(reader.files(tmp_path / "a.tfrecord"))


def test_a_missing_number_of_parquet_is_named(tmp_path):
    table = pa.table({"x": [1, 2, 3, 4, None], "y": [[1], [2], [3], [4, None], []]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    for column, row in (("x", 4), ("y", 3)):
        with pytest.raises(errors.ReaderError, match=rf"row {row} .*column '{column}' has no value, expected.*int64"):
            list(reader.files(tmp_path / "a.parquet", columns=[column]))


def test_npz_columns_of_unequal_length_are_refused(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((3, 2)), y=np.zeros(2), scale=np.float32(1))
    with pytest.raises(errors.ReaderError, match=r"shapes .*'x': \(3, 2\).*one length.*columns="):
        list(reader.files(tmp_path / "a.npz"))
    assert len(list(reader.files(tmp_path / "a.npz", columns=["x"]))) == 3


def test_a_file_that_goes_away_is_named(tmp_path):
    pattern = written_files.write(tmp_path, "jsonl", [3, 3])
    rows = reader.files(pattern)
    (tmp_path / "part-001.jsonl").unlink()
    with pytest.raises(errors.ReaderError, match=r"part-001\.jsonl.*FileNotFoundError.*Is it still there"):
        list(rows)


LIBRARIES = {
    "fsspec": ("jsonl", "fsspec"),
    "pyarrow.parquet": ("parquet", "Parquet file"),
    "pyarrow.csv": ("csv", "comma separated"),
    "google_crc32c": ("tfrecord", "checksums"),
    "google.protobuf": ("tfrecord", "protobuf messages"),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_a_missing_library_is_named(name, tmp_path, monkeypatch):
    format, why = LIBRARIES[name]
    pattern = written_files.write(tmp_path, format, [3])
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(errors.ReaderError, match=rf"{why}.*{name} is not installed.*pip install 'fluid-jax\[files\]'"):
        list(reader.files(pattern))


def test_the_state_is_small_and_json(tmp_path):
    pattern = written_files.write(tmp_path, "npz", [1] * 50)
    state = json.dumps(reader.files(pattern).state())
    assert len(state) < 50 * 50


def test_an_error_ends_the_pass_and_all_threads(tmp_path):
    import threading

    pattern = written_files.write(tmp_path, "jsonl", [3, 3, 3])
    (tmp_path / "part-000.jsonl").write_text("broken")
    rows = reader.files(pattern)()
    with contextlib.suppress(errors.ReaderError):
        next(rows)
    assert not [t for t in threading.enumerate() if t.name.startswith("fluid-reader")]
    assert list(rows) == []


def test_a_line_that_fills_the_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(json_lines, "LINE_LIMIT", 1 << 21)
    with gzip.open(tmp_path / "a.jsonl.gz", "wb") as file:
        file.write(b'{"x": 1}\n' + b" " * (1 << 23))
    with pytest.raises(errors.ReaderError, match=r"a\.jsonl\.gz: found a line of more than 2 MiB"):
        list(reader.files(tmp_path / "a.jsonl.gz"))
