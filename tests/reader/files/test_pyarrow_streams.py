"""The end of Python: it waits for threads that read files, and for pyarrow threads that hold blocks of files."""

import contextlib
import io
import threading
import time

import pytest
import written_files

from fluid import reader
from fluid.reader import ahead
from fluid.reader.files import listing, pyarrow_streams
from fluid.reader.files.format import Fields, Piece
from fluid.reader.files.formats.arrow import Csv, Parquet

FORMATS = {"csv": Csv(), "parquet": Parquet()}


def held():
    return [thing for ref, _ in pyarrow_streams._held if (thing := ref()) is not None]


@pytest.fixture(params=FORMATS)
def pattern(request, tmp_path):
    pyarrow_streams._wait()
    assert not held()
    return written_files.write(tmp_path, request.param, [4] * 4)


def first_file(pattern):
    return listing.listed(pattern, None)[0]


def test_streams_held_by_pyarrow_are_released(pattern):
    file = first_file(pattern)
    rows = FORMATS[file.extension[1:]].read(Piece(file), 0, Fields(None, None))
    next(rows)
    assert any(isinstance(thing, pyarrow_streams.LentStream) for thing in held())
    rows.close()
    pyarrow_streams._wait()
    assert not held()


def test_an_exception_releases_the_stream(pattern):
    file = first_file(pattern)
    rows = FORMATS[file.extension[1:]].read(Piece(file), 0, Fields(["id", "none"], None))
    with pytest.raises(Exception, match="there is no field 'none'") as caught:
        next(rows)
    assert caught.value.__traceback__ is not None
    pyarrow_streams._wait()
    assert not held()


def test_releasing_a_stream_runs_no_python_code_there():
    closed_in = []

    class File(io.BytesIO):
        def __del__(self):
            closed_in.append(threading.current_thread())

    handed_over = [pyarrow_streams.LentStream(File(b"some bytes"))]
    thread = threading.Thread(target=handed_over.clear)
    thread.start()
    thread.join()
    assert not held()
    assert thread not in closed_in
    pyarrow_streams.LentStream(io.BytesIO(b""))
    assert closed_in == [threading.current_thread()]


def test_waiting_includes_blocks_of_a_deleted_stream(monkeypatch):
    taken, let_go = threading.Event(), threading.Event()

    def of_another_library():
        stream = pyarrow_streams.LentStream(io.BytesIO(b"some bytes"))
        block = stream.read(4)
        assert (bytes(block), bytes(stream.read())) == (b"some", b" bytes")
        del stream
        taken.set()
        let_go.wait(60)
        del block

    thread = threading.Thread(target=of_another_library)
    thread.start()
    taken.wait(60)

    def sleep(seconds):
        assert len(held()) == 1
        let_go.set()
        thread.join()

    monkeypatch.setattr(time, "sleep", sleep)
    pyarrow_streams._wait()
    assert let_go.is_set()
    assert not held()


def test_the_end_of_python_waits_a_limited_time(monkeypatch):
    block = pyarrow_streams.LentStream(io.BytesIO(b"some bytes")).read()
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + 100 * seconds))
    pyarrow_streams._wait()
    assert pyarrow_streams._PATIENCE <= now[0] < 2 * pyarrow_streams._PATIENCE
    assert held() == [block]


def test_ending_python_waits_for_reads_on_slow_disks(pattern, monkeypatch):
    """Check that the end of Python waits without a time limit for a thread inside pyarrow."""
    begun, released = threading.Event(), threading.Event()
    opened, join, first = listing.File.open, threading.Thread.join, first_file(pattern).name

    @contextlib.contextmanager
    def slow(file):
        with opened(file) as stream:
            if file.name != first:
                begun.set()
                released.wait(60)
            yield stream

    def joined(thread, timeout=None):
        if timeout is None:
            released.set()
        join(thread, timeout)

    rows = reader.files(pattern)
    with contextlib.closing(rows()) as looked_at:
        next(looked_at)
    monkeypatch.setattr(listing.File, "open", slow)
    monkeypatch.setattr(threading.Thread, "join", joined)
    monkeypatch.setattr(ahead, "_PATIENCE", 0.0)
    passed = rows()
    next(passed)
    try:
        assert begun.wait(60)
        ahead.end_all()
        assert released.is_set()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("fluid-reader")]
    finally:
        released.set()
        passed.close()
