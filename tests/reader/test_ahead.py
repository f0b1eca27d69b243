"""Threads that read data ahead: their errors reach the training loop unchanged, and they end when the loop ends."""

import gc
import itertools
import threading
import traceback

import pytest

import fluid.reader.ahead
from fluid import reader

AHEAD = {
    "buffered": lambda rows: reader.buffered(rows, 3),
    "xmap": lambda rows: reader.xmap(lambda row: row, rows, 3, 4),
    "both": lambda rows: reader.buffered(reader.xmap(lambda row: row, reader.buffered(rows, 2), 2, 2), 2),
    "inside": lambda rows: reader.batch(reader.map(lambda row: row, reader.buffered(rows, 2)), 1),
}


def ours():
    return [t for t in threading.enumerate() if t.name.startswith("fluid-reader")]


@pytest.fixture(params=AHEAD)
def ahead(request):
    assert not ours()
    yield AHEAD[request.param]
    for thread in ours():
        thread.join(10)
    assert not ours(), "a thread was left behind"


def test_threads_end_with_the_pass(ahead):
    assert len(list(ahead(range(20)))) == 20
    assert not ours()


def test_threads_end_when_the_iterator_is_closed(ahead):
    rows = ahead(itertools.count)()
    next(rows)
    assert ours()
    rows.close()
    assert not ours()
    assert list(rows) == []


def test_threads_end_when_the_consumer_breaks_off(ahead):
    for _ in ahead(itertools.count)():
        break
    gc.collect()
    assert not ours()


def test_threads_end_when_a_cycle_is_collected(ahead):
    cycle = [ahead(itertools.count)()]
    next(cycle[0])
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert not ours()


def test_threads_end_before_python_does(ahead):
    rows = ahead(itertools.count)()
    next(rows)
    assert ours()
    fluid.reader.ahead.end_all()  # Python calls `end_all` at the end of a process
    assert not ours()
    rows.close()


def test_threads_start_at_the_first_row(ahead):
    rows = ahead(range(3))()
    assert not ours()
    rows.close()


def test_the_readers_exception_arrives_unchanged(ahead):
    failure = OSError("disk gone")

    def rows():
        yield from range(5)
        raise failure

    received = []
    with pytest.raises(OSError) as caught:
        for row in ahead(rows)():
            received.append(row)
    assert caught.value is failure
    assert len(received) == 5, "rows before the failure are given first"
    assert any(f.name == "rows" and "raise failure" in f.line for f in traceback.extract_tb(failure.__traceback__))
    assert not ours()


def test_an_exception_before_the_first_row_arrives(ahead):
    def rows():
        raise KeyError("nothing")

    with pytest.raises(KeyError, match="nothing"):
        next(ahead(rows)())
    assert not ours()


def test_threads_end_when_the_consumer_fails(ahead):
    with pytest.raises(ZeroDivisionError):
        for _ in reader.map(lambda row: 1 / 0, ahead(itertools.count))():
            pass
    assert not ours()


def test_threads_of_the_other_readers_end_as_well(ahead):
    def short():
        yield 1
        raise OSError

    with pytest.raises(OSError):
        list(reader.compose(ahead(itertools.count), short))
    assert not ours()


def test_finally_blocks_of_the_reader_run(ahead):
    ended = []

    def rows():
        try:
            yield from itertools.count()
        finally:
            ended.append(threading.current_thread())

    iterator = ahead(rows)()
    next(iterator)
    iterator.close()
    assert len(ended) == 1


def test_a_mappers_exception_arrives_at_its_row():
    failure = ValueError("row 3")

    def mapper(row):
        if row == 3:
            raise failure
        return row

    rows = reader.xmap(mapper, itertools.count, 4, 8)()
    assert [next(rows) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ValueError) as caught:
        next(rows)
    assert caught.value is failure
    assert not ours()


def test_a_mapper_cannot_end_the_pass_by_accident():
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(reader.xmap(lambda row: next(iter([])), [1, 2], 2, 2))


def test_rows_keep_their_order_whichever_thread_is_faster():
    turn = threading.Event()

    def mapper(row):
        if row == 0:
            assert turn.wait(10)  # row 0 waits until another thread reads row 3
        if row == 3:
            turn.set()
        return row

    assert list(reader.xmap(mapper, range(8), 4, 8, order=True)) == list(range(8))


def test_buffered_reads_ahead_but_not_too_far():
    read, enough = [], threading.Event()

    def rows():
        for row in itertools.count():
            read.append(row)
            if row == 4:
                enough.set()
            yield row

    iterator = reader.buffered(rows, 4)()
    assert next(iterator) == 0
    assert enough.wait(10), "four rows are read behind the one that was given"
    assert len(read) == 5
    iterator.close()


def test_closing_does_not_wait_for_hanging_readers(monkeypatch):
    monkeypatch.setattr(fluid.reader.ahead, "_PATIENCE", 0.01)
    hang, hanging = threading.Event(), threading.Event()

    def rows():
        yield 1
        hanging.set()
        hang.wait(60)
        yield 2

    iterator = reader.buffered(rows, 2)()
    assert next(iterator) == 1
    assert hanging.wait(10)
    iterator.close()
    (thread,) = ours()
    hang.set()
    thread.join(10)
    assert not ours()
