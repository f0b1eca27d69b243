"""Multi-process training: each process decodes only its rows, and opens only the files that hold them."""

import contextlib
import itertools
import json
import os
from collections import Counter

import hypothesis.strategies as st
import numpy as np
import pytest
import written_files
from divided_readers import share
from hypothesis import given, settings
from written_files import id_of

from fluid import errors, reader
from fluid.reader.adapters import minibatches
from fluid.reader.files import formats, listing

COUNTS = [5, 0, 9, 1, 14, 6]
TOTAL = sum(COUNTS)
few = settings(max_examples=5, deadline=None)
shuffles = st.sampled_from([{}, {"shuffle": True, "buf_size": 1}, {"shuffle": True, "buf_size": 20, "seed": 3}])


@pytest.fixture(scope="module")
def patterns(tmp_path_factory):
    """Write generated files of each format, and return a dict from formats to glob patterns of the paths."""
    return written_files.write_all(tmp_path_factory.mktemp("files"), COUNTS)


@pytest.fixture
def opened(monkeypatch):
    """Return a counter of the bytes that are read from each opened file, by file name."""
    counts = Counter()
    original = listing.File.open

    @contextlib.contextmanager
    def counted(file):
        name = os.path.basename(file.path)
        counts[name] += 0
        with original(file) as stream:
            yield _Counting(stream, lambda size: counts.update({name: size}))

    monkeypatch.setattr(listing.File, "open", counted)
    return counts


class _Counting:
    """A file that reports the number of bytes of each `read` to a function."""

    def __init__(self, stream, tell):
        self._stream = stream
        self._tell = tell

    def read(self, *size):
        data = self._stream.read(*size)
        self._tell(len(data))
        return data

    def __getattr__(self, name):
        return getattr(self._stream, name)


def of_process(made, wanted, state=None):
    """Return the ids of the rows that one process reads, as a list for each minibatch."""
    source = minibatches(made)
    source.divide(wanted)
    if state is not None:
        source.restore(state)
    return [[id_of(minibatch[i]) for i in wanted(len(minibatch))] for minibatch in source()]


def whole(made):
    return [[id_of(row) for row in minibatch] for minibatch in made()]


def check_processes(make, size, processes, done):
    """Check that all processes, after `done` minibatches, read their shares of the minibatches of a single process."""
    expected = whole(reader.batch(make(), size))
    done = min(done, len(expected) - 1)
    alone = reader.batch(make(), size)
    rows = alone()
    next(itertools.islice(rows, done, done), None)
    state = json.loads(json.dumps(alone.state()))
    rows.close()
    for index in range(processes):
        wanted = share(index, processes)
        found = of_process(reader.batch(make(), size), wanted, state)
        assert found == [[ids[i] for i in wanted(len(ids))] for ids in expected[done:]]


@pytest.mark.parametrize("format", written_files.FORMATS)
@few
@given(shuffle=shuffles, size=st.integers(1, 8), processes=st.integers(2, 3), done=st.integers(0, 3))
def test_shares_of_processes_form_the_whole_minibatches(patterns, format, shuffle, size, processes, done):
    check_processes(lambda: reader.files(patterns[format], parallel=2, **shuffle), size, processes, done)


@pytest.mark.parametrize("shuffle", [{}, {"shuffle": True, "buf_size": 20}], ids=["in order", "shuffled"])
@pytest.mark.parametrize("format", ["jsonl", "tfrecord", "webdataset"])
def test_a_process_decodes_only_rows_of_its_share(patterns, format, shuffle, monkeypatch):
    (kind,) = [type(known) for known in formats.FORMATS if known.name == format]
    decoded = []
    original = kind.decoded

    def noted(self, raw, piece, number, fields):
        decoded.append((piece.file.path, number))
        return original(self, raw, piece, number, fields)

    monkeypatch.setattr(kind, "decoded", noted)
    found = [of_process(reader.batch(reader.files(patterns[format], **shuffle), 7), share(i, 7)) for i in range(7)]
    assert len(decoded) == len(set(decoded)) == TOTAL
    assert sorted(itertools.chain.from_iterable(itertools.chain(*found))) == list(range(TOTAL))


def test_an_unreadable_row_fails_only_in_its_process(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": 0}\n{"id": 1}\n{"id": "two"}\n{"id": 3}\n')
    make = lambda **options: reader.batch(reader.files(tmp_path / "a.jsonl", **options), 4)  # noqa: E731
    assert of_process(make(dtypes={"id": "int64"}), share(0, 2)) == [[0, 1]]
    with pytest.raises(
        errors.ReaderError, match=r"a\.jsonl, row 2 .*field 'id' is 'two' \(str\), expected int64"
    ) as caught:
        of_process(make(dtypes={"id": "int64"}), share(1, 2))
    assert caught.value.__cause__ is None and caught.value.__context__ is None
    (tmp_path / "a.jsonl").write_text('{"id": 0}\n{"id": 1}\n{"id": 2}\nbad\n')
    with pytest.raises(errors.ReaderError, match=r"a\.jsonl, row 3 .*'bad' is not JSON"):
        of_process(make(), share(1, 2))


def test_files_without_rows_of_a_process_stay_closed(tmp_path, opened):
    pattern = written_files.write(tmp_path, "npz", [2] * 8)
    for index in range(2):
        rows = reader.files(pattern)
        # To read a first row, the reader opens all files for their metadata. The test counts only later openings.
        next(rows()).clear()
        opened.clear()
        of_process(reader.batch(rows, 8), share(index, 2))
        mine = [index * 2, index * 2 + 1, index * 2 + 4, index * 2 + 5]
        assert sorted(opened) == [f"part-{number:03d}.npz" for number in mine]


def dealt(rows, parts, size):
    """Split `rows` into parts; return minibatches with equally many rows of each part, and a last one with the rest."""
    parts = [list(map(int, part)) for part in np.array_split(rows, parts)]
    share = size // len(parts)
    found = []
    while all(len(part) >= share for part in parts):
        found.append([row for part in parts for row in part[:share]])
        parts = [part[share:] for part in parts]
    rest = [row for part in parts for row in part]
    return [*found, rest] if rest else found


@pytest.mark.parametrize("format", ["parquet", "npz"])
@few
@given(parts=st.integers(1, 9), share=st.integers(1, 9))
def test_minibatches_take_as_many_rows_from_each_part(patterns, format, parts, share):
    size = parts * share
    rows = reader.files(patterns[format], parts=parts, batch_size=size)
    assert whole(reader.batch(rows, size)) == dealt(range(TOTAL), parts, size)


@pytest.mark.parametrize("format", ["parquet", "npz"])
@few
@given(
    shuffle=shuffles,
    parts=st.sampled_from([1, 2, 4, 6]),
    share=st.integers(1, 3),
    processes=st.integers(2, 3),
    done=st.integers(0, 3),
)
def test_processes_share_minibatches_of_parts(patterns, format, shuffle, parts, share, processes, done):
    size = parts * share
    make = lambda: reader.files(patterns[format], parts=parts, batch_size=size, **shuffle)  # noqa: E731
    check_processes(make, size, processes, done)
    passes = make()
    both = [[id_of(row) for row in passes()] for _ in range(2)]
    assert [sorted(ids) for ids in both] == [list(range(TOTAL))] * 2
    assert shuffle == {} or both[0] != both[1]


@pytest.mark.parametrize("shuffle", [False, True])
def test_processes_read_different_files(shuffle, tmp_path, opened):
    pattern = written_files.write(tmp_path, "npz", [6] * 8)
    found = []
    for index in range(2):
        rows = reader.files(pattern, shuffle=shuffle, parts=4, batch_size=12)
        rows.restore({**rows.state(), "given": 48})
        list(rows)
        opened.clear()
        rows.restore({**rows.state(), "epoch": 0, "given": 0})
        ids = of_process(reader.batch(rows, 12), share(index, 2))
        found.append((sorted(itertools.chain.from_iterable(ids)), set(opened)))
    (ids, files), (others, other_files) = found
    assert sorted(ids + others) == list(range(48))
    assert len(files) == len(other_files) == 4 and not files & other_files


def test_processes_read_different_row_groups_of_a_file(tmp_path, opened):
    rng = np.random.default_rng(0)
    rows = [{"id": i, "pixels": rng.normal(size=500)} for i in range(64)]
    written_files.parquet(tmp_path / "a.parquet", rows, row_group_size=4)
    size = (tmp_path / "a.parquet").stat().st_size
    read = []
    for processes in (1, 4):
        made = reader.files(tmp_path / "a.parquet", shuffle=True, parts=8, batch_size=16)
        next(made()).clear()
        opened.clear()
        of_process(reader.batch(made, 16), share(0, processes))
        read.append(opened["a.parquet"])
    assert read[0] > size and read[1] < read[0] * 0.3


def test_parts_are_refused_where_they_cannot_be_kept(patterns):
    for arguments, message in (
        ({"parts": 4}, r"parts=4, batch_size=None\): expected both numbers or none"),
        ({"batch_size": 4}, r"parts=None, batch_size=4\): expected both numbers or none"),
        ({"parts": 0, "batch_size": 4}, r"parts=0\): expected a whole number from 1 on"),
        ({"parts": 4, "batch_size": 30}, r"expected a multiple of 4.*batch_size=32"),
    ):
        with pytest.raises(errors.ArgumentError, match=message):
            reader.files(patterns["npz"], **arguments)
    with pytest.raises(errors.ArgumentError, match=r"'jsonl' do not say how many rows .*expected 'parquet' or 'npz'"):
        reader.files(patterns["jsonl"], parts=2, batch_size=4)


def test_a_position_holds_the_parts(patterns):
    rows = reader.files(patterns["npz"], parts=2, batch_size=4)
    state = json.loads(json.dumps(rows.state()))
    rows.restore(state)
    with pytest.raises(errors.ArgumentError, match=r"another reader: .*'parts': 2.*'parts': 4"):
        reader.files(patterns["npz"], parts=4, batch_size=4).restore(state)


def test_minibatches_of_another_size_are_warned_of(patterns):
    rows = reader.files(patterns["npz"], parts=2, batch_size=4)
    with pytest.warns(errors.FluidWarning, match=r"read in minibatches of 6.*batch_size=6"):
        found = of_process(reader.batch(rows, 6), share(0, 2))
    assert found[0] == whole(reader.batch(rows, 6))[0][:3]


def test_files_that_shrink_while_read_raise_errors(tmp_path):
    pattern = written_files.write(tmp_path, "parquet", [4, 4])
    rows = reader.files(pattern, parts=2, batch_size=2)
    next(rows()).clear()
    for number in range(2):
        written_files.parquet(tmp_path / f"part-{number:03d}.parquet", written_files.rows_of(2))
    with pytest.raises(errors.ReaderError, match="fewer rows than when they were first looked at"):
        list(rows)
