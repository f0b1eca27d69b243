"""Readers that refill one buffer: each row that is kept has the numbers that it had when it was read."""

import itertools

import numpy as np
import pytest

import fluid
from fluid import layers, reader

COUNT = 6
WANTED = [[10.0 * i, 10.0 * i + 1] for i in range(COUNT)]


def refilled_tuple():
    x = np.empty(2)
    for row in WANTED:
        x[:] = row
        yield x, 7


def refilled_view():
    memory = np.empty((3, 2))
    for row in WANTED:
        memory[1] = row
        yield memory[1], 7


def refilled_dict():
    fields = {"x": np.empty(2)}
    for row in WANTED:
        fields["x"][:] = row
        yield fields


def refilled_list():
    fields = [[0, 0]]
    for row in WANTED:
        fields[0][:] = row
        yield fields


class Items:
    """A data set whose items are read into one array."""

    def __init__(self):
        self.x = np.empty(2)

    def __getitem__(self, i):
        self.x[:] = WANTED[i]  # an IndexError ends the pass
        return self.x, 7


def values(row):
    """Return the numbers of a row, whose array is its first field or has the name "x"."""
    return [float(value) for value in (row["x"] if isinstance(row, dict) else row[0])]


def filling(row):
    """Return one array for every row, filled anew."""
    filling.out[:] = values(row)
    return filling.out, 7


filling.out = np.empty(2)

SOURCES = [refilled_tuple, refilled_view, refilled_dict, refilled_list, Items()]
DECORATORS = {
    "batch": lambda rows: itertools.chain.from_iterable(reader.batch(rows, 4)),
    "shuffle": lambda rows: reader.shuffle(rows, 3, seed=1),
    "buffered": lambda rows: reader.buffered(rows, 3),
    "cache": lambda rows: (kept := reader.cache(rows), list(kept))[0],
    "map": lambda rows: reader.map(lambda row: row, rows),
    "map of a function with a buffer": lambda rows: reader.map(filling, rows),
    "xmap": lambda rows: reader.xmap(lambda row: row, rows, 2, 4),
    "chain": lambda rows: reader.chain(rows, []),
    "firstn": lambda rows: reader.firstn(rows, COUNT),
    "shard": lambda rows: reader.shard(rows, 1, 0),
    "grouped": lambda rows: itertools.chain.from_iterable(reader.bucket_by_length(rows, 2, key=lambda row: 1)),
}


@pytest.mark.parametrize("decorator", DECORATORS)
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: getattr(source, "__name__", "items"))
def test_rows_of_one_buffer_keep_their_numbers(source, decorator):
    assert sorted(map(values, list(DECORATORS[decorator](source)))) == WANTED


def test_two_readers_of_one_buffer_are_joined():
    shared = np.empty(2)

    def filled(offset):
        def rows():
            for row in WANTED:
                shared[:] = np.add(row, offset)
                yield (shared,)

        return rows

    joined = list(reader.compose(filled(0), filled(0.5)))
    assert [list(x) for x, _ in joined] == WANTED and [list(y) for _, y in joined] == np.add(WANTED, 0.5).tolist()


def test_lists_and_arrays_of_rows_are_not_copied():
    rows = [(np.zeros(2), 1), (np.ones(2), 2)]
    for given in (rows, lambda: rows, tuple(rows)):
        (minibatch,) = reader.batch(given, 2)
        assert all(found is row for found, row in zip(minibatch, rows, strict=True))


def test_training_reads_minibatches_of_one_buffer():
    def program():
        return layers.reduce_sum(layers.fc(layers.data("x", shape=[2]), 1, bias_attr=False, name="h"))

    def minibatches():
        x = np.empty((1, 2), "float32")
        for row in WANTED:
            x[0] = row
            yield {"x": x}

    mine = fluid.Trainer(program, fluid.optimizer.SGD(0.125), steps_per_dispatch=3)
    before = np.array(mine.params["h.w_0"])
    mine.train(minibatches)
    change = (before - np.array(mine.params["h.w_0"]))[:, 0] / 0.125
    assert change == pytest.approx(np.sum(WANTED, axis=0), rel=1e-5)
