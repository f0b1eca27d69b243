"""Minibatches shared by several processes: each process maps only its rows, and each row appears once."""

import hypothesis
import hypothesis.strategies as st
import jax
import pytest
from divided_readers import share

import fluid
from fluid.parallel.batch_sharding import rows_here
from fluid.reader.adapters import minibatches

reader = fluid.reader


def passes(made, wanted, position=None):
    found = minibatches(made)
    if wanted is not None:
        found.divide(wanted)
    if position is not None:
        found.restore(position)
    return found


KINDS = {
    "batch": lambda rows, f, size: reader.batch(reader.map(f, rows), size),
    "seeded": lambda rows, f, size: reader.batch(reader.map(lambda a, rng: (f(a), rng.random()), rows, seed=3), size),
    "nested": lambda rows, f, size: reader.batch(reader.map(lambda row: [row], reader.map(f, rows)), size),
    "of two": lambda rows, f, size: reader.batch(reader.map(lambda a, b: (f(a), b), rows, range(99)), size),
    "shuffled": lambda rows, f, size: reader.batch(reader.map(f, reader.shuffle(rows, 7, seed=1)), size),
    "threads": lambda rows, f, size: reader.batch(reader.xmap(f, rows, 2), size),
    "ahead": lambda rows, f, size: reader.buffered(reader.batch(reader.buffered(reader.map(f, rows), 3), size), 2),
    "whole": lambda rows, f, size: reader.firstn(reader.batch(reader.map(f, rows), size), 99),
}


@pytest.mark.parametrize("kind", KINDS)
@hypothesis.given(count=st.integers(1, 20), size=st.integers(1, 6), processes=st.integers(1, 3), done=st.integers(0, 3))
@hypothesis.settings(max_examples=12)
def test_shares_of_processes_form_the_whole_minibatches(kind, count, size, processes, done):
    expected = list(passes(KINDS[kind](range(count), lambda row: -row, size), None)())
    done = min(done, len(expected) - 1)
    start = passes(KINDS[kind](range(count), abs, size), None)
    first = start()
    for _ in range(done):
        next(first)
    position = start.state()
    first.close()
    for index in range(processes):
        worked = []

        def work(row, worked=worked):
            worked.append(row)
            return -row

        wanted = share(index, processes)
        source = passes(KINDS[kind](range(count), work, size), wanted, position)
        found = list(source())
        assert [len(minibatch) for minibatch in found] == [len(minibatch) for minibatch in expected[done:]]
        for mine, whole in zip(found, expected[done:], strict=True):
            assert [mine[i] for i in wanted(len(whole))] == [whole[i] for i in wanted(len(whole))]
        assert source.state() == passes_to_the_end(KINDS[kind](range(count), abs, size))
        if kind != "whole":
            assert len(worked) == sum(len(wanted(len(whole))) for whole in expected[done:])


def passes_to_the_end(made):
    source = passes(made, None)
    list(source())
    return source.state()


def test_an_undivided_pass_reads_all_rows_again():
    made = reader.batch(reader.map(lambda row: row, range(4)), 2)
    assert list(passes(made, share(0, 2))()) == [[0, 0], [2, 2]]
    assert list(made()) == [[0, 1], [2, 3]]


def test_a_single_process_reads_all_rows():
    mesh = jax.make_mesh((1,), ("data",))
    assert sorted(rows_here(5, mesh)) == list(range(5))
