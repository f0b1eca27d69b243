"""The order of rows: only seed and epoch change it, a reader resumes exactly in it, and shards partition the rows."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading

import hypothesis.strategies as st
import numpy as np
import pytest
import written_files
from hypothesis import given, settings
from written_files import id_of

import fluid
from fluid import errors, reader
from fluid.reader.files import listing, order
from fluid.reader.files.format import Piece

COUNTS = [5, 0, 9, 1, 37, 6]
TOTAL = sum(COUNTS)
few = settings(max_examples=10, deadline=None)
shuffles = st.one_of(st.just({}), st.integers(1, 70).map(lambda n: {"shuffle": True, "buf_size": n, "seed": n % 3}))


@pytest.fixture(scope="module")
def patterns(tmp_path_factory):
    """Write generated data files in each format, and return the file name patterns by format."""
    return written_files.write_all(tmp_path_factory.mktemp("files"), COUNTS)


def ids(rows):
    return [id_of(row) for row in rows]


def ours():
    return [t for t in threading.enumerate() if t.name.startswith("fluid-reader")]


@pytest.mark.sample(3)
@pytest.mark.parametrize("format", written_files.FORMATS)
@few
@given(shuffle=shuffles, parallel=st.integers(1, 7))
def test_a_pass_is_a_permutation_at_any_parallelism(patterns, format, shuffle, parallel):
    first = reader.files(patterns[format], parallel=1, **shuffle)
    second = reader.files(patterns[format], parallel=parallel, **shuffle)
    passes = [ids(first()) for _ in range(2)]
    assert passes == [ids(second()) for _ in range(2)]
    assert [sorted(rows) for rows in passes] == [list(range(TOTAL))] * 2
    assert shuffle or passes[0] == list(range(TOTAL))


@pytest.mark.sample(3)
@pytest.mark.parametrize("format", written_files.FORMATS)
@few
@given(shuffle=shuffles, read=st.integers(0, TOTAL), epoch=st.integers(0, 1), parallel=st.integers(1, 3))
def test_a_resumed_pass_continues_exactly(patterns, format, shuffle, read, epoch, parallel):
    whole = reader.files(patterns[format], **shuffle)
    passes = [ids(whole()) for _ in range(3)]
    interrupted = reader.files(patterns[format], **shuffle)
    for _ in range(epoch):
        list(interrupted())
    rows = interrupted()
    assert ids(itertools.islice(rows, read)) == passes[epoch][:read]
    state = json.loads(json.dumps(interrupted.state()))
    rows.close()
    resumed = reader.files(patterns[format], parallel=parallel, **shuffle)
    resumed.restore(state)
    assert ids(resumed()) == passes[epoch][read:]
    assert ids(resumed()) == passes[epoch + 1]


@pytest.mark.sample(3)
@pytest.mark.parametrize("format", written_files.FORMATS)
@few
@given(shuffle=shuffles, shards=st.integers(1, 5), start=st.integers(0, 9))
def test_shards_take_every_nth_row_of_the_order(patterns, format, shuffle, shards, start):
    whole = ids(reader.files(patterns[format], **shuffle))
    parts = []
    for index in range(shards):
        part = reader.shard(reader.files(patterns[format], **shuffle), shards, index)
        part.restore({**part.state(), "given": start})
        parts.append(ids(part))
    assert parts == [whole[index::shards][start:] for index in range(shards)]


def test_the_order_is_keyed_by_seed_and_epoch(patterns):
    first = reader.files(patterns["parquet"], shuffle=True, buf_size=1)
    passes = [tuple(ids(first())) for _ in range(3)]
    other = tuple(ids(reader.files(patterns["parquet"], shuffle=True, buf_size=1, seed=1)))
    assert len({*passes, other}) == 4
    # With a buffer of one row, only the row groups of four rows are reordered.
    groups = [passes[0][i : i + 2] for i in range(TOTAL - 1)]
    assert sum(b == a + 1 for a, b in groups) >= TOTAL // 2


def test_a_late_file_does_not_change_the_order(patterns, monkeypatch):
    """Check the order of rows while each file opens only after the next file."""
    begun = {}
    opened = listing.File.open
    lock = threading.Lock()

    def event(path):
        with lock:
            return begun.setdefault(path, threading.Event())

    @contextlib.contextmanager
    def late(file):
        event(file.path).set()
        if behind[file.path]:
            assert event(behind[file.path]).wait(30)
        with opened(file) as stream:
            yield stream

    rows = reader.files(patterns["jsonl"], parallel=2)
    names = sorted(e.path for e in os.scandir(os.path.dirname(patterns["jsonl"])))
    behind = dict(zip(names, [*names[1:], None], strict=True))
    monkeypatch.setattr(listing.File, "open", late)
    assert ids(rows) == list(range(TOTAL))
    assert len(begun) == len(names)


def test_parallel_limits_open_files_and_threads_end(patterns, monkeypatch):
    opened = listing.File.open
    lock = threading.Lock()
    now = most = 0

    @contextlib.contextmanager
    def counted(file):
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with opened(file) as stream:
            yield stream
        with lock:
            now -= 1

    monkeypatch.setattr(listing.File, "open", counted)
    rows = reader.files(patterns["webdataset"], parallel=3)()
    next(rows)
    rows.close()
    assert not ours()
    assert len(list(reader.files(patterns["webdataset"], parallel=3))) == TOTAL
    assert not ours()
    assert 1 <= most <= 3 and now == 0


def test_a_restored_pass_skips_files_before_its_position(patterns, monkeypatch):
    opened = listing.File.open
    names = []

    @contextlib.contextmanager
    def noted(file):
        names.append(os.path.basename(file.path))
        with opened(file) as stream:
            yield stream

    rows = reader.files(patterns["npz"], parallel=1)
    assert len(list(rows())) == TOTAL  # the first iteration counts the rows of each file
    rows.restore({**rows.state(), "epoch": 0, "given": TOTAL - 3})
    monkeypatch.setattr(listing.File, "open", noted)
    assert ids(rows) == [TOTAL - 3, TOTAL - 2, TOTAL - 1]
    assert names == ["part-005.npz"]


@few
@given(counts=st.lists(st.integers(1, 5), max_size=6), start=st.integers(0, 30))
def test_pieces_after_a_position_hold_the_remaining_rows(counts, start):
    pieces = [Piece(None, i, rows=count) for i, count in enumerate(counts)]
    rows = [(p.part, i) for p in pieces for i in range(p.rows)]
    left, dropped = order.behind(order.whole(pieces), start)
    assert dropped == 0
    assert [(p.part, i) for p, low, high in left for i in range(low, high)] == rows[start:]


@pytest.mark.parametrize("change", ["replace", "add", "remove"])
def test_restoring_a_position_over_changed_files_is_refused(change, tmp_path):
    pattern = written_files.write(tmp_path, "csv", [3, 3, 3])
    make = lambda: reader.batch(reader.files(pattern, shuffle=True), 2)  # noqa: E731
    batches = make()
    next(batches())
    state = json.loads(json.dumps(batches.state()))
    make().restore(state)
    changed = tmp_path / {"replace": "part-001.csv", "add": "part-0015.csv", "remove": "part-002.csv"}[change]
    if change == "remove":
        changed.unlink()
    else:
        written_files.csv(changed, written_files.rows_of(3, 3))
        os.utime(changed, (1, 1))  # the new file has the same size, and only its date differs
    with pytest.raises(errors.ArgumentError, match=rf"'{changed.name}' is new, gone, or has another .*start anew"):
        make().restore(state)


def test_training_resumes_within_a_file_unless_files_changed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for number in range(3):
        np.savez(f"{number}.npz", x=rng.normal(size=(7, 4)).astype("float32"))

    def program():
        return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1)))

    def trained(folder, num_epochs, event_handler=None):
        config = None if folder is None else fluid.CheckpointConfig(folder, step_interval=4)
        trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1), checkpoint_config=config)
        rows = reader.files("*.npz", shuffle=True, buf_size=5)
        trainer.train(reader.batch(rows, 2), num_epochs, event_handler=event_handler)
        return trainer.params

    def interrupt(event):
        if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == (1, 4):
            raise KeyError

    whole = trained(None, 2)
    for folder in ("again", "changed"):
        with pytest.raises(KeyError):
            trained(folder, 2, interrupt)
    resumed = trained("again", 2)
    assert all(np.array_equal(resumed[name], whole[name]) for name in whole)
    os.utime("1.npz", (1, 1))
    with pytest.raises(errors.ArgumentError, match=r"'1\.npz' is new, gone, or has another") as caught:
        trained("changed", 2)
    assert "another checkpoint_dir" in caught.value.__notes__[0]


def test_a_position_of_another_seed_is_refused_briefly(patterns):
    rows = reader.files(patterns["npz"], shuffle=True, seed=1)
    with pytest.raises(
        errors.ArgumentError, match=r"taken from another reader: .*'seed': 2.*'files': '6 files'"
    ) as caught:
        rows.restore(reader.files(patterns["npz"], shuffle=True, seed=2).state())
    assert "part-000" not in str(caught.value)


BROKEN_OFF = """
import sys
from fluid import reader

for pattern in sys.argv[1:]:
    rows = reader.files(pattern, shuffle=True, buf_size=5)()
    next(rows)
    globals()[pattern] = rows
sys.exit(3)
"""


@pytest.mark.full
def test_python_ends_while_files_are_read(tmp_path):
    """Check the exit status, because a thread that is inside pyarrow while Python ends would crash the process."""
    found = []
    for format in ("parquet", "csv"):
        (tmp_path / format).mkdir()
        found.append(written_files.write(tmp_path / format, format, [400] * 4))
    done = subprocess.run([sys.executable, "-c", BROKEN_OFF, *found], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")


def test_a_position_survives_moving_all_files(tmp_path):
    (tmp_path / "here").mkdir()
    pattern = written_files.write(tmp_path / "here", "npz", [3, 3])
    rows = reader.files(pattern)
    next(rows())
    (tmp_path / "here").rename(tmp_path / "there")
    moved = reader.files(tmp_path / "there" / "*.npz")
    moved.restore(rows.state())
    assert ids(moved) == [1, 2, 3, 4, 5]


def test_file_order_follows_names_and_patterns(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"id": {ord(name)}}}')
    assert ids(reader.files(tmp_path / "*.jsonl")) == [97, 98, 99]
    several = [tmp_path / "c.jsonl", tmp_path / "*.jsonl"]
    assert ids(reader.files(several)) == [99, 97, 98], "each file once, in the order of the patterns"
