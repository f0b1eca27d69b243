"""One minibatch ahead: what is read when, and exceptions where they are due."""

import traceback

import numpy as np
import pytest

from fluid import reader
from fluid.reader.adapters import minibatches
from fluid.reader.prefetch import Prefetcher


def convert(minibatch, index):
    return {"x": np.array(minibatch)}


def test_minibatches_are_read_when_the_loop_has_time():
    log = []

    def rows():
        for i in range(3):
            log.append(f"read {i}")
            yield [i] * (i + 1)

    def noting(minibatch, index):
        log.append(f"convert {index}")
        return convert(minibatch, index)

    ahead = Prefetcher(rows(), noting)
    for item in ahead:
        log.append(f"step {len(item.feed['x'])}")
        ahead.advance()
        ahead.advance()  # at most one is ahead
    assert log == [
        *("read 0", "convert 0", "step 1", "read 1", "convert 1", "step 2", "read 2", "convert 2", "step 3"),
    ]


def test_states_belong_to_their_minibatch():
    passes = minibatches(reader.batch(range(6), 2))
    ahead = Prefetcher(passes(), convert, passes.state)
    given = []
    for item in ahead:
        ahead.advance()
        given.append(item.state["given"])
    assert given == [1, 2, 3]
    assert Prefetcher([[1]], convert).__next__().state is None


def test_a_pass_that_goes_on_counts_on():
    indexes = []
    list(Prefetcher([[1], [2]], lambda m, i: indexes.append(i) or {}, first=5))
    assert indexes == [5, 6]


def test_the_readers_exception_waits_for_its_turn():
    failure = OSError("gone")

    def rows():
        yield [1]
        raise failure

    ahead = Prefetcher(rows(), convert)
    assert next(ahead).feed
    ahead.advance()
    with pytest.raises(OSError) as caught:
        next(ahead)
    assert caught.value is failure
    assert any(f.line == "raise failure" for f in traceback.extract_tb(failure.__traceback__))
    with pytest.raises(StopIteration):
        next(ahead)


def test_an_exception_of_convert_costs_one_minibatch():
    failure = ValueError("batch 1")

    def picky(minibatch, index):
        if index == 1:
            raise failure
        return {"x": np.array(minibatch)}

    ahead = Prefetcher([[0], [1], [2]], picky)
    next(ahead)
    ahead.advance()
    with pytest.raises(ValueError) as caught:
        next(ahead)
    assert caught.value is failure
    assert next(ahead).feed["x"].tolist() == [2]


def test_convert_cannot_end_the_pass_by_accident():
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(Prefetcher([[1]], lambda m, i: next(iter([]))))


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_interrupts_pass_through_and_lose_nothing(interrupt):
    pending = [interrupt()]

    def interrupted(minibatch, index):
        if index == 1 and pending:
            raise pending.pop()
        return convert(minibatch, index)

    ahead = Prefetcher(iter([[0], [1], [2]]), interrupted)
    next(ahead)
    with pytest.raises(interrupt):
        ahead.advance()
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

    ahead = Prefetcher(minibatches(rows)(), convert)
    next(ahead)
    ahead.advance()
    ahead.close()
    ahead.close()
    assert ended == [True] and list(ahead) == []
    Prefetcher([[1]], convert).close()  # what cannot be closed needs no closing
