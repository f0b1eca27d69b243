"""Embeddings: looked-up rows, padding rows, invalid ids, and tables shared by name."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.run_program import output, run

import fluid
from fluid import errors, layers


def embedded(**settings):
    return lambda: layers.embedding(layers.data("ids", [1], "int64"), [5, 2], **settings)


TABLE = np.arange(1, 11, dtype="float32").reshape(5, 2)
IDS = np.array([[3], [0], [3], [4]])


@pytest.mark.parametrize("padding, row", [(3, 3), (-1, 4), (-5, 0)])
def test_the_padding_row_is_zero_and_never_trained(padding, row):
    def total(table):
        applied = run(embedded(padding_idx=padding), {"ids": IDS}, arrays={"embedding_0.w_0": table})
        return jnp.sum(applied.outputs[0]), applied.outputs[0]

    gradient, rows = jax.grad(total, has_aux=True)(jnp.asarray(TABLE))
    want = np.where(IDS == row, 0, TABLE[IDS[:, 0]])
    np.testing.assert_array_equal(rows, want)
    counts = np.bincount(IDS[:, 0], minlength=5) * (np.arange(5) != row)
    np.testing.assert_array_equal(gradient, np.repeat(counts[:, None], 2, 1))


def test_ids_are_limited_by_the_table():
    assert fluid.Program(embedded()).feeds["ids"].limits == (0, 5, None)

    def both():
        ids = layers.data("ids", [1], "int64")
        return layers.embedding(ids, [5, 2]), layers.embedding(ids, [3, 2])

    assert fluid.Program(both).feeds["ids"].limits == (0, 3, None)


@pytest.mark.parametrize("bad", [5, -1])
def test_an_id_outside_the_table_shows(bad):
    got = output(embedded(), {"ids": np.array([[1], [bad]])})
    assert np.isfinite(got[0]).all() and np.isnan(got[1]).all()


def test_ids_keep_their_leading_dimensions():
    for shape, want in (([4, 1], (None, 4, 2)), ([2, 3, 1], (None, 2, 3, 2))):

        def program(shape=shape):
            return layers.embedding(layers.data("ids", shape, "int64"), [5, 2])

        assert fluid.Program(program).outputs[0].shape == want


@pytest.mark.parametrize("time", [1, 3])
def test_sequences_of_plain_ids(time):
    ids = fluid.SequenceBatch(jnp.ones([2, time], jnp.int32), jnp.array([1, time]))
    applied = run(lambda: layers.embedding(layers.data("ids", [], "int64", lod_level=1), [5, 2]), {"ids": ids})
    assert applied.outputs[0].shape == (2, time, 2)


def test_tables_are_shared_by_name():
    def program():
        a, b = layers.data("a", [1], "int64"), layers.data("b", [1], "int64")
        return layers.embedding(a, [5, 2], param_attr="t"), layers.embedding(b, [5, 2], param_attr="t", is_sparse=True)

    assert list(fluid.Program(program).parameters) == ["t"]


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: layers.embedding(layers.data("x", [1]), [5, 2]), "ids are integers"),
        (lambda: layers.embedding(layers.data("x", [4], "int64"), [5, 2]), "unsqueeze"),
        (lambda: layers.embedding(layers.data("x", [1], "int64"), 5), "number of ids, width"),
        (lambda: layers.embedding(layers.data("x", [1], "int64"), [5, 2], padding_idx=5), "no row"),
    ],
)
def test_mistakes_are_explained(build, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(build)
