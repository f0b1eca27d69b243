"""The decorator `bucket_by_length`: it groups rows of similar length and loses no row.

test_decorators.py tests the properties that all decorators of readers share.
"""

import itertools
import json

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fluid import errors, reader

few = settings(max_examples=60, deadline=None)
rows_of_lengths = st.lists(st.integers(0, 30), max_size=60).map(
    lambda lengths: [[number] * n for number, n in enumerate(lengths)]
)


@few
@given(rows_of_lengths, st.integers(1, 7), st.integers(1, 30), st.none() | st.just([3, 9]), st.booleans())
def test_every_row_appears_and_all_minibatches_are_full(rows, size, window, boundaries, drop):
    made = reader.bucket_by_length(rows, size, boundaries, buf_size=window, drop_last=drop)
    for _ in range(2):
        got = list(made())
        assert all(len(m) == size for m in (got if drop else got[:-1]))
        flat = sorted(itertools.chain.from_iterable(got))
        if drop:
            assert len(flat) == len(rows) // size * size and all(row in rows for row in flat)
        else:
            assert flat == sorted(rows)


@few
@given(rows_of_lengths, st.integers(1, 7))
def test_minibatches_of_a_window_have_disjoint_lengths(rows, size):
    spans = sorted((min(map(len, m)), max(map(len, m))) for m in reader.bucket_by_length(rows, size))
    assert all(high <= low for (_, high), (low, _) in itertools.pairwise(spans))


@pytest.mark.parametrize("boundaries", [None, [3, 9]])
def test_minibatches_hold_the_longest_row_of_their_window(boundaries):
    rows = [[0] * n for n in (4, 9, 1, 12, 2, 7, 3)]
    made = list(reader.bucket_by_length(rows, 2, boundaries, buf_size=4))
    assert [(len(m.longest), m.together) for m in made] == [(12, 2), (12, 2), (7, 2), (7, 2)]


@few
@given(rows_of_lengths, st.integers(1, 7))
def test_only_leftover_rows_cross_the_boundaries(rows, size):
    bounds = [5, 12, 20]
    group = lambda row: int(np.searchsorted(bounds, len(row)))  # noqa: E731
    mixed = [m for m in reader.bucket_by_length(rows, size, bounds) if len({group(row) for row in m}) > 1]
    left = sum(len([r for r in rows if group(r) == g]) % size for g in range(4))
    assert sum(map(len, mixed)) <= left
    for m in reader.bucket_by_length(rows, size, bounds):
        if m not in mixed and len(m) == size:
            numbers = [rows.index(row) for row in m]
            assert len(row := m[0]) == 0 or row in rows and numbers == sorted(numbers)


def test_the_order_depends_on_seed_and_epoch():
    rows = [[0] * n for n in range(40)]
    made = reader.bucket_by_length(rows, 2, seed=3)
    firsts = [[len(m[0]) for m in made()] for _ in range(3)]
    assert firsts == [[len(m[0]) for m in p()] for p in [reader.bucket_by_length(rows, 2, seed=3)] for _ in range(3)]
    assert len({tuple(f) for f in firsts}) == 3 and firsts[0] != sorted(firsts[0])
    assert [len(m[0]) for m in reader.bucket_by_length(rows, 2, seed=4)] != firsts[0]


def test_resuming_at_a_position_continues_exactly():
    read = []

    def rows():
        for n in range(100):
            read.append(n)
            yield [0] * (n % 9 + 1)

    def make():
        numbers = reader.arrays((np.arange(100),), 1)
        return reader.bucket_by_length(numbers, 5, key=lambda r: int(r[0][0]) % 7, buf_size=20)

    whole = [[int(r[0][0]) for r in m] for m in make()]
    part = make()
    given_first = part()
    taken = [[int(r[0][0]) for r in next(given_first)] for _ in range(9)]
    state = json.loads(json.dumps(part.state()))
    again = make()
    again.restore(state)
    assert taken + [[int(r[0][0]) for r in m] for m in again()] == whole
    made = reader.bucket_by_length(rows, 5, buf_size=20)
    next(made())
    assert len(read) == 20


def test_the_length_of_a_row():
    def lengths(rows, **options):
        return [len(m) for m in reader.bucket_by_length(rows, 1, **options)]

    pairs = [([1, 2, 3], "ab", 7), ([1], "abcdef", 8)]
    assert [m[0] for m in reader.bucket_by_length(pairs, 1, seed=1)] in ([*pairs], pairs[::-1])
    assert lengths([{"x": np.zeros((3, 2)), "y": np.float32(1)}]) == [1]
    assert lengths([[[1, 2], [3]]]) == [1]
    by_both = reader.bucket_by_length([([1, 2], [1]), ([1], [1, 2, 3])], 2, key=lambda r: (len(r[0]), len(r[1])))
    assert list(by_both) == [[([1], [1, 2, 3]), ([1, 2], [1])]]


@pytest.mark.parametrize(
    "arguments, kind, words",
    [
        ({"batch_size": 0}, errors.ArgumentError, r"bucket_by_length\(batch_size=0\): .* from 1 on"),
        ({"batch_size": 2, "buf_size": 0}, errors.ArgumentError, r"bucket_by_length\(buf_size=0\): .* from 1 on"),
        ({"batch_size": 2, "seed": -1}, errors.ArgumentError, r"bucket_by_length\(seed=-1\): .* from 0 on"),
        ({"batch_size": 2, "key": 3}, errors.ArgumentTypeError, "needs a function of a row, found int 3"),
        ({"batch_size": 2, "boundaries": [5, 5]}, errors.ArgumentError, r"boundaries=\[5, 5\], expected increasing"),
        ({"batch_size": 2, "boundaries": []}, errors.ArgumentError, "expected increasing"),
        ({"batch_size": 2, "boundaries": 5}, errors.ArgumentError, "boundaries=5, expected increasing"),
    ],
)
def test_wrong_arguments(arguments, kind, words):
    with pytest.raises(kind, match=words):
        reader.bucket_by_length([[1]], **arguments)


@pytest.mark.parametrize("row", [(1, 2.5), {"x": 1}, np.float32(2)])
def test_rows_without_a_length(row):
    with pytest.raises(errors.ReaderError, match="a row without a sequence.*key=lambda row: len"):
        list(reader.bucket_by_length([row], 2))
