"""NestedSequenceBatch: conversions that keep the rows, and a program with two levels of sequences."""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import fluid
from fluid import errors

few = settings(max_examples=60, deadline=None)
rows_of_rows = st.sampled_from([1, 3]).flatmap(
    lambda n: st.lists(st.lists(st.lists(st.integers(1, 99), max_size=3), max_size=3), min_size=n, max_size=n)
)


def plain(rows):
    return [[np.asarray(sequence).tolist() for sequence in row] for row in rows]


@few
@given(rows_of_rows, st.booleans())
def test_rows_in_rows_out(rows, roomy):
    outer, inner = max(map(len, rows)), max((len(s) for row in rows for s in row), default=0)
    sizes = (5, 4) if roomy else (outer, inner)
    batch = fluid.NestedSequenceBatch.from_rows(rows, "int32", *sizes)
    assert batch.shape == (len(rows), *sizes) and batch.dtype == np.int32
    assert plain(batch.rows()) == rows
    assert int(batch.mask.sum()) == sum(len(s) for row in rows for s in row)
    assert np.asarray(batch.data)[~np.asarray(batch.mask)].sum() == 0
    flat = batch.flat()
    assert flat.shape[0] == len(rows) * batch.shape[1]
    got = iter(flat.rows())
    for row in rows:
        padded = [*row, *[[]] * (batch.shape[1] - len(row))]
        assert [next(got).tolist() for _ in padded] == padded


@few
@given(rows_of_rows)
def test_nest_gives_the_rows_back(rows):
    batch = fluid.NestedSequenceBatch.from_rows(rows, "int32")
    flat = batch.flat()
    sums = batch.nest(jnp.where(flat.mask, flat.data, 0).sum(1))
    assert isinstance(sums, fluid.SequenceBatch)
    assert [row.tolist() for row in sums.rows()] == [[sum(s) for s in row] for row in rows]
    doubled = batch.nest(flat * 2)
    assert isinstance(doubled, fluid.NestedSequenceBatch)
    assert plain(doubled.rows()) == [[[2 * n for n in s] for s in row] for row in rows]


def test_lengths_after_the_rows_are_ignored():
    batch = fluid.NestedSequenceBatch(np.ones((2, 2, 3)), np.array([1, 2]), np.array([[2, 99], [1, 3]]))
    assert batch.flat().lengths.tolist() == [2, 0, 1, 3] and int(batch.mask.sum()) == 6
    assert [[len(s) for s in row] for row in batch.rows()] == [[2], [1, 3]]


def test_nested_batch_is_a_pytree():
    batch = fluid.NestedSequenceBatch.from_rows([[[1.0, 2.0]]])
    doubled = jax.jit(lambda b: b.with_data(b.data * 2))(batch)
    assert isinstance(doubled, fluid.NestedSequenceBatch) and plain(doubled.rows()) == [[[2, 4]]]


@pytest.mark.parametrize("value", [np.ones(3), np.float32(1), fluid.SequenceBatch(np.ones((3, 1)), np.ones(3, int))])
def test_nest_refuses_values_of_other_shapes(value):
    batch = fluid.NestedSequenceBatch.from_rows([[[1], [2]], [[3]]])
    with pytest.raises(errors.ShapeError, match=r"expected 4 items, one for each of 2 x 2 sequences.*batch.flat\(\)"):
        batch.nest(value)


def program():
    text = fluid.layers.data("text", shape=[1], dtype="int64", lod_level=2)
    size = fluid.ParamAttr(name="table", initializer=fluid.initializer.NumpyArray(np.arange(9.0).reshape(9, 1)))
    values = fluid.layers.embedding(text, size=[9, 1], param_attr=size)
    flat = values.flat()
    sums = values.nest(jnp.where(flat.mask[..., None], flat.data, 0).sum(1))
    return {"mean": fluid.layers.mean(sums), "sums": sums, "texts": values}


TEXT = [[[1, 2], [3]], [[4, 5, 6], [], [7]]]


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        fluid.NestedSequenceBatch.from_rows(TEXT),
        [[np.array(s, "int64") for s in row] for row in TEXT],
        fluid.create_lod_tensor(TEXT, [[2, 3], [2, 1, 3, 0, 1]], None),
    ],
    ids=["lists", "batch", "arrays", "lod"],
)
def test_a_program_over_two_levels(text):
    found = fluid.Session(program).run(feed={"text": text})
    assert np.isclose(found["mean"], (3 + 3 + 15 + 0 + 7) / 5)
    assert [row.ravel().tolist() for row in found["sums"].rows()] == [[3, 3], [15, 0, 7]]
    assert [[s.ravel().tolist() for s in row] for row in found["texts"].rows()] == TEXT


def test_inferring_and_testing_over_two_levels():
    inferencer = fluid.Inferencer(program, params={"table": np.arange(9.0, dtype="float32").reshape(9, 1)})
    values = inferencer.infer({"text": TEXT}, fetch=["texts"])[0]
    assert isinstance(values, fluid.NestedSequenceBatch) and type(values.data) is np.ndarray
    lod = inferencer.infer({"text": TEXT}, fetch=["texts"], return_numpy=False)[0]
    assert lod.recursive_sequence_lengths() == [[2, 3], [2, 1, 3, 0, 1]]
    assert np.array(lod).ravel().tolist() == [1, 2, 3, 4, 5, 6, 7]

    def training():
        found = program()
        return found["mean"], found["texts"]

    trainer = fluid.Trainer(training, fluid.optimizer.SGD(0.0))
    tested = trainer.test([[(row,) for row in TEXT], [([[8]],)]])
    assert [[s.ravel().tolist() for s in row] for row in tested[1].rows()] == [*TEXT, [[8]]]
    assert np.isclose(tested[0], (3 + 3 + 15 + 0 + 7 + 8) / 6)
