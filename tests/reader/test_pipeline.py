"""Reading ahead: the order of reads, the time of exceptions, and the minibatches batched in one call."""

import traceback

import numpy as np
import pytest

from fluid import reader
from fluid.reader.adapters import minibatches
from fluid.reader.pipeline import InputPipeline


class Convert:
    """A stand-in for the converter of a session; it applies a function to each minibatch."""

    is_ragged = False

    def __init__(self, function=lambda minibatch, index: {"x": np.array(minibatch)}):
        self._function = function

    def __call__(self, minibatch, index):
        return self._function(minibatch, index)

    def examples(self, feed):
        return len(next(iter(feed.values()), ()))

    def place(self, value):
        return value


convert = Convert()


def started(source, *converters, **options):
    """Start an InputPipeline over the data of any reader, and return an iterator over the converted minibatches."""
    return InputPipeline(minibatches(source), converters or [convert], **options).start()


def test_minibatches_are_read_when_the_loop_has_time():
    log = []

    def rows():
        for i in range(3):
            log.append(f"read {i}")
            yield [i] * (i + 1)

    def noting(minibatch, index):
        log.append(f"convert {index}")
        return {"x": np.array(minibatch)}

    ahead = started(rows, Convert(noting))
    for item in ahead:
        log.append(f"step {len(item.feed['x'])}")
        ahead.read_ahead()
        ahead.read_ahead()  # the second `read_ahead` reads nothing: one minibatch is read ahead already
    assert log == [
        *("read 0", "convert 0", "step 1", "read 1", "convert 1", "step 2", "read 2", "convert 2", "step 3"),
    ]


def test_positions_belong_to_their_minibatch():
    ahead = started(reader.batch(range(6), 2), keeps_positions=True)
    given = []
    for item in ahead:
        ahead.read_ahead()
        given.append((item.before.reader["given"], item.after.reader["given"], item.after.padding))
    assert given == [(0, 1, None), (1, 2, None), (2, 3, None)]
    assert next(started([[1]])).after is None


def test_a_resumed_pass_continues_the_indexes():
    indexes = []
    source = reader.batch(range(6), 2)
    source.restore({"epoch": 0, "given": 1, "reader": source.plan})
    list(started(source, Convert(lambda m, i: indexes.append(i) or {}), keeps_positions=True))
    assert indexes == [1, 2]


def test_minibatches_of_equal_shape_are_batched():
    rows = [[1, 2], [3, 4], [5, 6], [7]]
    ahead = started(rows)
    found = []
    while ahead.peek() is not None:
        for number in range(1, 4):
            ahead.read_ahead(number)
        batch = ahead.take(limit=2 if not found else 4, capacity=4)
        found.append(batch.count)
        assert [list(one.feed["x"]) for one in batch.each] == rows[sum(found[:-1]) : sum(found)]
        if batch.count > 1:
            assert batch.feed.feeds["x"].shape == (4, 2) and int(batch.feed.count) == batch.count
    assert found == [2, 1, 1]


def test_minibatches_of_different_programs_are_not_batched():
    class Turns:
        reads_once = False
        ready = True

        def __call__(self):
            return iter([(0, [1]), (0, [2]), (1, [3]), (1, [4])])

    ahead = InputPipeline(Turns(), [convert, convert]).start()
    found = []
    while ahead.peek() is not None:
        for number in range(1, 5):
            ahead.read_ahead(number)
        batch = ahead.take(limit=4, capacity=4)
        found.append((batch.program, batch.count))
    assert found == [(0, 2), (1, 2)]


def test_the_readers_exception_waits_for_its_turn():
    failure = OSError("gone")

    def rows():
        yield [1]
        raise failure

    ahead = started(rows)
    assert next(ahead).feed
    ahead.read_ahead()
    with pytest.raises(OSError) as caught:
        next(ahead)
    assert caught.value is failure
    assert any(f.line == "raise failure" for f in traceback.extract_tb(failure.__traceback__))
    with pytest.raises(StopIteration):
        next(ahead)


def test_an_exception_of_convert_loses_a_single_minibatch():
    failure = ValueError("batch 1")

    def picky(minibatch, index):
        if index == 1:
            raise failure
        return {"x": np.array(minibatch)}

    ahead = started([[0], [1], [2]], Convert(picky))
    next(ahead)
    ahead.read_ahead()
    with pytest.raises(ValueError) as caught:
        next(ahead)
    assert caught.value is failure
    assert next(ahead).feed["x"].tolist() == [2]


def test_convert_cannot_end_the_pass_by_accident():
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(started([[1]], Convert(lambda m, i: next(iter([])))))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass_through_and_lose_nothing(interrupt):
    pending = [interrupt()]

    def interrupted(minibatch, index):
        if index == 1 and pending:
            raise pending.pop()
        return {"x": np.array(minibatch)}

    ahead = started([[0], [1], [2]], Convert(interrupted))
    next(ahead)
    with pytest.raises(interrupt):
        ahead.read_ahead()
    assert [item.feed["x"].tolist() for item in ahead] == [[1], [2]]


def test_close_ends_the_reader():
    ended = []

    def rows():
        try:
            yield [1]
            yield [2]
            yield [3]
        finally:
            ended.append(True)

    ahead = started(rows)
    next(ahead)
    ahead.read_ahead()
    ahead.close()
    ahead.close()
    assert ended == [True] and list(ahead) == []
