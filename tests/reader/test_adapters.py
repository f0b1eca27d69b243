"""Readers that users pass: arrays, functions, iterables, and objects that are no readers."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fluid import errors, reader
from fluid.reader.adapters import JointMinibatch, minibatches, nonempty


@settings(max_examples=50, deadline=None)
@given(
    count=st.integers(1, 20), size=st.integers(1, 7), shuffle=st.booleans(), drop=st.booleans(), seed=st.integers(0, 3)
)
def test_arrays_give_every_row_once(count, size, shuffle, drop, seed):
    x, y = np.arange(count * 2).reshape(count, 2), np.arange(count)
    made = reader.arrays((x, y), size, shuffle, seed, drop)
    for _ in range(2):
        minibatches = list(made())
        assert [len(m[0]) for m in minibatches] == [len(y[i : i + size]) for i in range(0, count, size)][
            : count // size if drop else None
        ]
        rows = [(tuple(a), b) for xs, ys in minibatches for a, b in zip(xs, ys, strict=True)]
        assert all(a == (2 * b, 2 * b + 1) for a, b in rows), "columns are shuffled alike"
        numbers = [int(b) for _, b in rows]
        assert len(set(numbers)) == len(numbers)
        if not drop:
            assert sorted(numbers) == list(range(count))
        if not shuffle:
            assert numbers == list(range(len(numbers)))


@settings(max_examples=50, deadline=None)
@given(count=st.integers(1, 20), size=st.integers(1, 7), epoch=st.integers(0, 2), data=st.data())
def test_arrays_continue_after_a_position(count, size, epoch, data):
    def make():
        return reader.arrays(np.arange(count), size, shuffle=True, seed=5)

    def numbers(rows):
        return [m[0].tolist() for m in rows]

    whole = make()
    passes = [numbers(whole()) for _ in range(4)]
    read = data.draw(st.integers(0, len(passes[0])))
    first = minibatches(make())
    for _ in range(epoch):
        list(first())
    rows = first()
    assert numbers(next(rows) for _ in range(read)) == passes[epoch][:read]
    second = minibatches(make())
    second.restore(json.loads(json.dumps(first.state())))
    assert numbers(second()) == passes[epoch][read:]
    assert numbers(second()) == passes[epoch + 1]


def test_arrays_of_every_form():
    x = np.arange(4)
    assert isinstance(next(reader.arrays(x, 2)()), tuple)
    assert [m["x"].tolist() for m in reader.arrays({"x": x}, 3)] == [[0, 1, 2], [3]]
    part = next(reader.arrays(x, 2)())[0]
    assert np.shares_memory(part, x), "slices are not copied"


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 60),
    size=st.integers(1, 7),
    width=st.sampled_from([1, 4000, 40_000]),
    shuffle=st.booleans(),
    drop=st.booleans(),
    form=st.sampled_from([lambda x, y: x, lambda x, y: (x, y), lambda x, y: {"x": x, "y": y}]),
    read=st.integers(0, 70),
)
def test_joint_minibatches_split_into_the_same_minibatches(count, size, width, shuffle, drop, form, read):
    x = np.broadcast_to(np.arange(count)[:, None], (count, width))
    y = np.arange(count) / 7
    made = reader.arrays(form(x, y), size, shuffle, 3, drop)
    passes = minibatches(reader.arrays(form(x, y), size, shuffle, 3, drop))
    passes.compact()
    if drop and count < size:
        return
    small = 2 * size * (width + 1) * 8 <= 1 << 18
    for _ in range(2):
        expected, found = list(made()), list(passes())
        assert all((type(part) is JointMinibatch) == small for part in found)
        check_alike(alone(found), expected)
        for part in found if small else ():
            columns = list(part.together.values() if isinstance(part.together, dict) else part.together)
            assert columns[0].nbytes <= 1 << 18 and len(columns[0]) <= 16 * size
            assert not any(np.shares_memory(column, own) for column in columns for own in (x, y))
    rows = passes()
    read = min(read, len(expected))
    for _ in range(read):
        next(rows)
    made.restore(passes.state())
    check_alike(alone(rows), list(made()))


def alone(found):
    return [part.minibatch() if type(part) is JointMinibatch else part for part in found]


def check_alike(found, expected):
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        pairs = zip(*(m.items() if isinstance(m, dict) else enumerate(m) for m in (one, other)), strict=True)
        for (name, column), (same, whole) in pairs:
            assert name == same and column.dtype == whole.dtype
            np.testing.assert_array_equal(column, whole)


def test_arrays_do_not_touch_global_random_numbers():
    before = np.random.get_state()[1].tolist()
    list(reader.arrays(np.arange(9), 2, shuffle=True))
    list(reader.shuffle(range(9), 4))
    assert np.random.get_state()[1].tolist() == before


@pytest.mark.parametrize(
    "make, kind, words",
    [
        (lambda: reader.arrays((np.ones(3), np.ones(2)), 2), errors.ArgumentError, "one length.*0: 3, 1: 2"),
        (lambda: reader.arrays({"x": np.ones(3), "y": np.ones(2)}, 2), errors.ArgumentError, "'x': 3, 'y': 2"),
        (lambda: reader.arrays(np.ones((0, 2)), 2), errors.ArgumentError, "at least 1, found 0: 0"),
        (lambda: reader.arrays(np.array(1.0), 2), errors.ArgumentError, "a scalar"),
        (lambda: reader.arrays((), 2), errors.ArgumentError, "no column"),
        (lambda: reader.arrays([1, 2], 2), errors.ArgumentTypeError, "tuple of columns.*found list"),
        (lambda: reader.arrays(np.ones(3), 0), errors.ArgumentError, r"arrays\(batch_size=0\): .* from 1 on"),
        (lambda: reader.arrays(np.ones(3), 1, True, seed=-1), errors.ArgumentError, r"arrays\(seed=-1\): .* from 0 on"),
        (lambda: minibatches(None), errors.ArgumentTypeError, "reader= needs a reader.*NoneType"),
        (lambda: minibatches(np.ones(3)), errors.ArgumentTypeError, "found arrays.*reader.arrays"),
        (lambda: minibatches((np.ones(3), np.ones(3))), errors.ArgumentTypeError, "reader.arrays"),
        (lambda: minibatches({"x": np.ones(3)}), errors.ArgumentTypeError, "found a dict"),
    ],
)
def test_wrong_arguments(make, kind, words):
    with pytest.raises(kind, match=words):
        make()


def generator():
    yield [1]
    yield [2]


@pytest.mark.parametrize("source", [lambda: [[1], [2]], generator, [[1], [2]], reader.batch([1, 2], 1)])
def test_passes_start_anew(source):
    passes = minibatches(source)
    assert [list(passes()) for _ in range(3)] == [[[1], [2]]] * 3
    assert minibatches(passes) is passes


@pytest.mark.parametrize(
    "make", [generator, lambda: iter([[1], [2]]), lambda: map(str, [1, 2]), lambda: filter(None, [1])]
)
def test_an_iterator_is_refused_in_the_second_pass(make):
    passes = minibatches(make())
    assert list(passes())
    with pytest.raises(
        errors.ReaderError, match="the reader is exhausted.*hand over a function that returns a new iter"
    ):
        next(passes())


def test_a_function_that_returns_a_used_iterator_is_refused():
    rows = iter([[1]])
    passes = minibatches(lambda: rows)
    assert list(passes()) == [[1]]
    with pytest.raises(errors.ReaderError, match="exhausted"):
        next(passes())


def test_an_exhausted_iterator_is_refused():
    rows = generator()
    list(rows)
    with pytest.raises(errors.ReaderError, match="exhausted"):
        next(minibatches(rows)())


class Restarting:
    """An iterator whose `__iter__` restarts it and returns the iterator itself, which is legal and common."""

    def __init__(self, times):
        self.times, self.left = times, 0

    def __iter__(self):
        if self.times:
            self.times -= 1
            self.left = 2
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        self.left -= 1
        return [self.left]


def test_a_restarting_iterator_gives_several_passes():
    passes = minibatches(Restarting(times=2))
    assert [list(passes()), list(passes())] == [[[1], [0]]] * 2
    with pytest.raises(errors.ReaderError, match="exhausted"):
        next(passes())


@pytest.mark.parametrize("source", [[], lambda: iter(()), reader.batch([1, 2], 3, drop_last=True)])
def test_a_pass_without_minibatches_is_refused(source):
    with pytest.raises(errors.ReaderError, match="gave nothing.*at least one.*drop_last"):
        next(minibatches(source)())
    with pytest.raises(errors.ReaderError, match="gave nothing"):
        list(nonempty(iter(())))


def test_a_restored_finished_pass_is_empty_without_error():
    passes = minibatches(reader.batch([1, 2], 1))
    passes.restore({"epoch": 0, "given": 2})
    assert list(passes()) == []
    assert list(passes()) == [[1], [2]]


def test_closing_a_pass_runs_the_readers_finally_blocks():
    ended = []

    def rows():
        try:
            yield 1
            yield 2
        finally:
            ended.append(True)

    handed_over = rows()
    for source in (rows, handed_over, reader.map(str, rows)):
        iterator = minibatches(source)()
        next(iterator)
        iterator.close()
    assert ended == [True] * 2
    assert list(handed_over) == [2], "what the user holds is the user's, who may read on"


def test_a_readers_position_moves_with_its_minibatches():
    mine = reader.batch(range(10), 2)
    rows = minibatches(mine)()
    next(rows), next(rows)
    assert mine.state()["given"] == 2


def test_ragged_arrays_name_the_reader_to_write():
    with pytest.raises(errors.ArgumentError, match=r"'words' with rows of different shapes.*fluid.reader.batch\("):
        reader.arrays({"words": [[1, 2], [3]], "label": [0, 1]}, batch_size=2)
