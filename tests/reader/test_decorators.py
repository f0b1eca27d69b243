"""Properties of reader decorators: no row is lost or doubled, and the order depends on seed and epoch.

A reading that continues from a saved position starts at exactly the next row.
"""

import itertools
import json
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from fluid import errors, reader
from fluid.reader.adapters import minibatches

few = settings(max_examples=40, deadline=None)


def tagged(row):
    return ("mapped", str(row))


def weight(row):
    return sum(map(ord, str(row))) % 30


def joined(*rows):
    return str(rows)


def noisy(row, rng):
    return ("noisy", row, int(rng.integers(1 << 30)))


def crossed(row, other, rng):
    return (row, other, int(rng.integers(1 << 30)))


# Reader decorators by name: a hypothesis strategy for the argument, and a function `(reader, argument) -> reader`.
OPERATIONS = {
    "batch": (st.integers(1, 4), lambda r, n: reader.batch(r, n)),
    "grouped": (st.integers(1, 4), lambda r, n: reader.bucket_by_length(r, n, key=weight, buf_size=2 * n, seed=n)),
    "bounded": (
        st.integers(1, 3),
        lambda r, n: reader.bucket_by_length(r, n, [3, 20], weight, 3 * n, drop_last=n == 2),
    ),
    "drop": (st.integers(1, 4), lambda r, n: reader.batch(r, n, drop_last=True)),
    "shuffle": (st.integers(2, 7), lambda r, n: reader.shuffle(r, n, seed=n)),
    "map": (st.just(0), lambda r, _: reader.map(tagged, r)),
    "map two": (st.just(0), lambda r, _: reader.map(joined, r, reader.shuffle(r, 3))),
    "random map": (st.integers(0, 2), lambda r, n: reader.map(noisy, r, seed=n)),
    "random map two": (st.just(0), lambda r, _: reader.map(crossed, r, reader.shuffle(r, 3), seed=1)),
    "random xmap": (st.integers(1, 3), lambda r, n: reader.xmap(noisy, r, n, 2, seed=n)),
    "buffered": (st.integers(1, 3), lambda r, n: reader.buffered(r, n)),
    "chain": (st.integers(0, 3), lambda r, n: reader.chain(r, list(range(n)), r)),
    "compose": (st.just(0), lambda r, _: reader.compose(r, reader.shuffle(r, 2, seed=1))),
    "unaligned": (st.integers(0, 9), lambda r, n: reader.compose(range(n), r, check_alignment=False)),
    "firstn": (st.integers(0, 9), lambda r, n: reader.firstn(r, n)),
    "cache": (st.just(0), lambda r, _: reader.cache(r)),
    "xmap": (st.integers(1, 3), lambda r, n: reader.xmap(tagged, r, n, 2)),
    "shard": (st.integers(1, 3), lambda r, n: reader.shard(r, n, n - 1)),
}
operations = st.lists(
    st.one_of(*[st.tuples(st.just(name), argument) for name, (argument, _) in OPERATIONS.items()]),
    min_size=1,
    max_size=4,
)


def test_every_decorator_is_among_the_operations():
    used = {name for _, function in OPERATIONS.values() for name in function.__code__.co_names}
    decorators = {name for name in reader.__all__ if name.islower() and not name.endswith("_readers")}
    # These functions decorate no reader: `arrays`, `files` and `frame` make readers, and `prefetch` returns feeds.
    assert decorators - {"arrays", "files", "frame", "prefetch"} <= used


def build(size, steps):
    """Apply the decorators in `steps`, one after the other, to a reader of `size` rows; return the last reader."""
    made = lambda: iter(range(size))  # noqa: E731
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FluidWarning)  # `cache` warns if its reader is random
        for name, argument in steps:
            made = OPERATIONS[name][1](made, argument)
    return made


@settings(max_examples=150, deadline=None)
@given(size=st.integers(0, 12), steps=operations, epoch=st.integers(0, 2), data=st.data())
def test_a_restored_reader_continues_exactly_after_its_position(size, steps, epoch, data):
    whole = build(size, steps)
    passes = [list(whole()) for _ in range(4)]
    read = data.draw(st.integers(0, len(passes[epoch])), "read")

    interrupted = build(size, steps)
    for number in range(epoch):
        assert list(interrupted()) == passes[number]
    rows = interrupted()
    assert list(itertools.islice(rows, read)) == passes[epoch][:read]
    state = json.loads(json.dumps(interrupted.state()))
    rows.close()

    resumed = build(size, steps)
    resumed.restore(state)
    assert resumed.state() == state
    assert list(resumed()) == passes[epoch][read:]
    assert list(resumed()) == passes[epoch + 1]
    # The interrupted reader can be restored too, not only a new reader.
    interrupted.restore(state)
    assert list(interrupted()) == passes[epoch][read:]


@few
@given(size=st.integers(0, 12), steps=operations)
def test_a_restored_reader_gives_further_positions(size, steps):
    expected = list(build(size, steps)())
    given_rows, state = [], build(size, steps).state()
    for _ in expected:
        part = build(size, steps)
        part.restore(state)
        rows = part()
        given_rows.append(next(rows))
        state = part.state()
        rows.close()
    assert given_rows == expected


@few
@given(rows=st.lists(st.integers()), size=st.integers(1, 9), drop=st.booleans())
def test_batches_are_the_rows_cut_in_pieces(rows, size, drop):
    batches = list(reader.batch(rows, size, drop_last=drop))
    expected = [rows[i : i + size] for i in range(0, len(rows), size)]
    assert batches == [b for b in expected if len(b) == size or not drop]


@few
@given(size=st.integers(0, 30), window=st.integers(2, 12), seed=st.integers(0, 5))
def test_shuffle_permutes_each_window(size, window, seed):
    shuffled = list(reader.shuffle(range(size), window, seed))
    for low in range(0, size, window):
        assert sorted(shuffled[low : low + window]) == list(range(size))[low : low + window]


def test_shuffle_is_keyed_by_seed_and_epoch():
    first, second = (reader.shuffle(range(50), 20, seed=3) for _ in range(2))
    passes = [list(first()) for _ in range(3)]
    assert passes == [list(second()) for _ in range(3)]
    assert len({tuple(p) for p in passes}) == 3
    assert list(reader.shuffle(range(50), 20, seed=4)) != passes[0]
    assert sorted(passes[0][:20]) == list(range(20)) and passes[0][:20] != list(range(20))


def draws(row, rng):
    return rng.integers(0, 1 << 62, size=4).tolist()


def test_random_numbers_depend_on_seed_epoch_and_index():
    first, second = (reader.map(draws, range(20), seed=3) for _ in range(2))
    passes = [list(first()) for _ in range(3)]
    assert passes == [list(second()) for _ in range(3)]
    drawn = {number for pass_ in passes for row in pass_ for number in row}
    assert len(drawn) == 3 * 20 * 4, "each row of each pass has numbers of its own"
    assert drawn.isdisjoint(itertools.chain(*reader.map(draws, range(20), seed=4)))
    outer = reader.map(lambda row, rng: (row, draws(row, rng)), reader.map(draws, range(20), seed=3), seed=3)
    assert [row for row, _ in outer] == passes[0]
    assert drawn.isdisjoint(itertools.chain(*(numbers for _, numbers in outer)))
    # The random numbers of `reader.map` also differ from the random numbers of `reader.shuffle` with the same seed.
    window = np.random.Generator(np.random.PCG64([3, 0, 0]))
    assert drawn.isdisjoint(window.integers(0, 1 << 62, size=4).tolist())


@few
@given(rows=st.lists(st.integers()), n=st.integers(1, 4))
def test_buffered_cache_and_xmap_change_nothing(rows, n):
    assert list(reader.buffered(rows, n)) == rows
    assert list(reader.xmap(lambda row: row, rows, n, n)) == rows
    assert list(reader.xmap_readers(lambda row: row, rows, n, n, order=True)) == rows
    cached = reader.cache(iter(rows))  # an iterator can be read only once, so later reads use the cache
    assert [list(cached()) for _ in range(3)] == [rows] * 3


@few
@given(rows=st.lists(st.integers()), shards=st.integers(1, 5))
def test_shards_are_a_partition(rows, shards):
    parts = [list(reader.shard(rows, shards, i)) for i in range(shards)]
    assert sorted(itertools.chain(*parts)) == sorted(rows)
    assert parts == [rows[i::shards] for i in range(shards)]


@few
@given(rows=st.lists(st.integers()), n=st.integers(0, 9))
def test_firstn_chain_map_and_compose_match_itertools(rows, n):
    assert list(reader.firstn(rows, n)) == rows[:n]
    assert list(reader.chain(rows, rows)) == rows + rows
    assert list(reader.map(lambda a, b: a - b, rows, rows[:n])) == [0] * min(n, len(rows))
    assert list(reader.map_readers(abs, rows)) == [abs(r) for r in rows]
    assert list(reader.compose(rows, [(r, -r) for r in rows])) == [(r, r, -r) for r in rows]


def test_firstn_reads_only_the_returned_rows():
    read = []
    source = reader.map(lambda row: read.append(row) or row, itertools.count)
    assert list(reader.firstn(source, 3)) == [0, 1, 2]
    assert read == [0, 1, 2]


def test_compose_refuses_readers_of_different_length():
    rows = reader.compose([1, 2, 3], [1, 2])()
    assert [next(rows), next(rows)] == [(1, 1), (2, 2)]
    with pytest.raises(errors.ReaderError, match="different lengths.*number 1 .*after 2 rows.*check_alignment=False"):
        next(rows)


def test_a_function_is_called_once_for_each_pass():
    calls = []

    def rows():
        calls.append(0)
        yield from range(3)

    shuffled = reader.shuffle(rows, 2)
    assert not calls
    for number in range(3):
        assert sorted(shuffled()) == [0, 1, 2]
        assert len(calls) == number + 1


def test_a_reader_serves_two_consumers_at_once():
    shuffled = reader.shuffle(range(9), 4)
    both = list(reader.compose(shuffled, shuffled))
    assert all(a == b for a, b in both) and len(both) == 9


def test_the_state_follows_the_consumer_not_the_threads():
    rows = reader.batch(reader.buffered(range(100), 50), 3)
    iterator = rows()
    assert rows.state()["given"] == 0
    next(iterator), next(iterator)
    assert (rows.state()["epoch"], rows.state()["given"]) == (0, 2)
    iterator.close()
    assert rows.state()["given"] == 2
    list(rows())
    assert (rows.state()["epoch"], rows.state()["given"]) == (2, 0)


def test_an_older_pass_does_not_move_the_position():
    rows = reader.map(str, range(5))
    old, new = rows(), rows()
    next(new), next(old), next(old)
    assert (rows.state()["epoch"], rows.state()["given"]) == (1, 1)


def test_a_failing_reader_keeps_the_last_position():
    def rows():
        yield from range(2)
        raise OSError("gone")

    made = reader.map(str, rows)
    iterator = made()
    assert [next(iterator), next(iterator)] == ["0", "1"]
    with pytest.raises(OSError, match="gone"):
        next(iterator)
    assert list(iterator) == []
    assert (made.state()["epoch"], made.state()["given"]) == (0, 2)


def test_skipped_rows_are_not_mapped():
    mapped = []
    made = reader.batch(reader.map(lambda row: mapped.append(row) or row, range(10)), 2)
    made.restore({"epoch": 0, "given": 3})
    assert list(made()) == [[6, 7], [8, 9]]
    assert mapped == [6, 7, 8, 9]


def test_a_source_with_state_provides_the_position():
    class Counter:
        """A source that continues to count in each pass over it; its state is the last number."""

        def __init__(self):
            self.number = 0

        def __call__(self):
            while self.number % 4 != 3:
                self.number += 1
                yield self.number
            self.number += 1

        def state(self):
            return self.number

        def restore(self, state):
            self.number = state

    passes = minibatches(Counter())
    rows = passes()
    assert [next(rows), next(rows)] == [1, 2]
    state = json.loads(json.dumps(passes.state()))
    again = minibatches(Counter())
    again.restore(state)
    assert again.state() == state
    assert list(again()) == [3] and list(again()) == [5, 6, 7]


class Loader:
    """A stand-in for a Grain loader, whose iterators have `get_state` and `set_state`."""

    def __init__(self, as_bytes):
        self.as_bytes, self.reads = as_bytes, 0

    def __iter__(self):
        return LoaderIterator(self)


class LoaderIterator:
    def __init__(self, loader):
        self.loader, self.number = loader, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.number == 5:
            raise StopIteration
        self.number += 1
        self.loader.reads += 1
        return self.number

    def get_state(self):
        return json.dumps({"number": self.number}).encode() if self.loader.as_bytes else {"number": self.number}

    def set_state(self, state):
        assert isinstance(state, bytes) == self.loader.as_bytes
        self.number = (json.loads(state) if self.loader.as_bytes else state)["number"]


@pytest.mark.parametrize("as_bytes", [False, True])
def test_resuming_uses_iterator_states_instead_of_rereading(as_bytes):
    passes = minibatches(Loader(as_bytes))
    rows = passes()
    assert list(itertools.islice(rows, 3)) == [1, 2, 3]
    state = json.loads(json.dumps(passes.state()))
    loader = Loader(as_bytes)
    resumed = minibatches(loader)
    resumed.restore(state)
    assert resumed.state() == state
    assert list(resumed()) == [4, 5] and loader.reads == 2
    assert list(resumed()) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    "make, kind, words",
    [
        (lambda: reader.batch([1], 0), errors.ArgumentError, r"reader.batch\(batch_size=0\): .* number from 1 on"),
        (
            lambda: reader.batch([1], 2.5),
            errors.ArgumentError,
            r"reader.batch\(batch_size=2.5\): expected a whole number",
        ),
        (lambda: reader.batch([1], True), errors.ArgumentError, r"reader.batch\(batch_size=True\): expected a whole"),
        (lambda: reader.batch(5, 2), errors.ArgumentTypeError, "reader.batch needs a reader.*found int 5"),
        (lambda: reader.batch("abc", 2), errors.ArgumentTypeError, "found str 'abc'"),
        (lambda: reader.batch({"x": [1]}, 2), errors.ArgumentTypeError, "found a dict.*reader.arrays"),
        (lambda: reader.shuffle([1], 0), errors.ArgumentError, r"shuffle\(buf_size=0\): .* from 1 on"),
        (lambda: reader.shuffle([1], 5, seed=-1), errors.ArgumentError, r"shuffle\(seed=-1\): .* from 0 on"),
        (lambda: reader.map(5, [1]), errors.ArgumentTypeError, "reader.map needs a function.*found int 5"),
        (lambda: reader.map(abs, [1], seed=-1), errors.ArgumentError, r"reader.map\(seed=-1\): .* from 0 on"),
        (lambda: reader.map(abs), errors.ArgumentError, "reader.map needs at least one reader"),
        (lambda: reader.chain(), errors.ArgumentError, "reader.chain needs at least one reader"),
        (lambda: reader.compose(), errors.ArgumentError, "reader.compose needs at least one reader"),
        (lambda: reader.buffered([1], 0), errors.ArgumentError, r"buffered\(size=0\): .* from 1 on"),
        (lambda: reader.firstn([1], -1), errors.ArgumentError, r"firstn\(n=-1\): .* from 0 on"),
        (lambda: reader.cache(None), errors.ArgumentTypeError, "reader.cache needs a reader.*NoneType"),
        (lambda: reader.xmap(None, [1], 1, 1), errors.ArgumentTypeError, "reader.xmap needs a function"),
        (lambda: reader.xmap(abs, [1], 0, 1), errors.ArgumentError, r"xmap\(process_num=0\): .* from 1 on"),
        (lambda: reader.xmap(abs, [1], 1, 0), errors.ArgumentError, r"xmap\(buffer_size=0\): .* from 1 on"),
        (lambda: reader.shard([1], 2, 2), errors.ArgumentError, "index=2 with num_shards=2.*from 0 to 1"),
        (lambda: reader.shard([1], 0, 0), errors.ArgumentError, r"shard\(num_shards=0\): .* from 1 on"),
        (lambda: reader.shard([1], 2, -1), errors.ArgumentError, r"shard\(index=-1\): .* from 0 on"),
        (lambda: list(reader.batch(lambda: None, 2)), errors.ReaderError, "it returned None; yield"),
        (lambda: list(reader.batch(lambda: lambda: [1], 2)), errors.ReaderError, "another function; call it first"),
        (lambda: reader.batch([1], 2).restore({"epoch": 0}), errors.ArgumentError, "restore needs what reader.state"),
        (lambda: reader.batch([1], 2).restore(None), errors.ArgumentError, "found None"),
        (lambda: reader.batch([1], 2).restore({"epoch": -1, "given": 0}), errors.ArgumentError, "found epoch -1"),
    ],
)
def test_wrong_arguments(make, kind, words):
    with pytest.raises(kind, match=words):
        make()


@pytest.mark.parametrize(
    "other",
    [
        lambda: reader.batch(reader.shuffle(range(9), 4, seed=1), 3),
        lambda: reader.batch(reader.shuffle(range(9), 5), 3),
        lambda: reader.batch(reader.shuffle(range(9), 4), 2),
        lambda: reader.batch(reader.buffered(reader.batch(range(9), 3), 4), 1),
        lambda: reader.batch(reader.map(noisy, reader.shuffle(range(9), 4), seed=0), 3),
    ],
)
def test_the_position_in_another_reader_is_refused(other):
    state = reader.batch(reader.shuffle(range(9), 4), 3).state()
    with pytest.raises(errors.ArgumentError, match="taken from another reader.*same decorators"):
        other().restore(state)


def test_positions_are_independent_of_threads_and_buffers():
    state = reader.batch(reader.buffered(reader.shuffle(range(9), 4), 8), 3).state()
    reader.batch(reader.xmap(str, reader.shuffle(range(9), 4), 2, 2), 3).restore(state)
