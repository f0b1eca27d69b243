"""Layers that repeat, reverse, roll, select, sort or count elements: compared with NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.layer_table import real, whole
from layers.run_program import check, feeds, output, run

import fluid
from fluid import errors, layers

X = real(3, 2, 4)


def test_repeated_and_turned_round():
    y = real(3, 6, 4)
    check(layers.expand_as, np.tile(X, [1, 3, 1]), x=X, y=y)
    check(lambda x: layers.flip(x, [1, -1]), X[:, ::-1, ::-1], x=X)
    check(lambda x: layers.flip(x, 0), X[::-1], x=X)
    check(lambda x: layers.full_like(x, 2.5), np.full_like(X, 2.5), x=X)
    assert output(lambda: layers.full_like(feeds(x=X)[0], 2.5, dtype="int32"), {"x": X}).tolist() == [[[2] * 4] * 2] * 3
    a, b = real(3), real(2)
    got = run(lambda: layers.meshgrid([a, feeds(b=b)[0]]), {"b": b}).outputs
    np.testing.assert_array_equal(got[0], np.tile(a[:, None], [1, 2]))
    np.testing.assert_array_equal(got[1], np.tile(b, [3, 1]))


@settings(max_examples=20)
@given(st.integers(-9, 9), st.integers(-9, 9))
def test_roll_matches_numpy(first, second):
    got = output(lambda: layers.roll(feeds(x=X)[0], [first, second], [1, 2]), {"x": X})
    places = (np.arange(2) - first) % 2, (np.arange(4) - second) % 4
    np.testing.assert_array_equal(got, X[:, places[0]][:, :, places[1]])
    got = output(lambda: layers.roll(feeds(x=X)[0], first), {"x": X})
    np.testing.assert_array_equal(got.ravel(), X.ravel()[(np.arange(24) - first) % 24])


def test_index_select_and_index_sample_match_numpy():
    check(lambda x: layers.index_select(x, np.array([3, 0, 3]), dim=-1), X[..., [3, 0, 3]], x=X)
    rows, index = X[:, 0], whole(4, 3, 2)
    check(layers.index_sample, rows[np.arange(3)[:, None], index], x=rows, index=index)
    got = output(lambda: layers.index_select(feeds(x=X)[0], jnp.array([0, 3, -1]), dim=1), {"x": X})
    assert np.isfinite(got[:, 0]).all() and np.isnan(got[:, 1:]).all()
    with pytest.raises(errors.ArgumentError, match="the number 3 does not exist"):
        fluid.Program(lambda: layers.index_select(feeds(x=X)[0], [0, 3], dim=1))


@settings(max_examples=20)
@given(st.integers(1, 20), st.integers(1, 6), st.data())
def test_shards_deal_out_all_ids(ids, shards, data):
    number = data.draw(st.integers(0, shards - 1))
    every = np.arange(20)[:, None] % ids
    got = output(lambda: layers.shard_index(feeds(i=every)[0], ids, shards, number, -7), {"i": every})
    size = int(np.ceil(ids / shards))
    want = [[i - number * size] if number * size <= i < (number + 1) * size else [-7] for i in every[:, 0]]
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sorted_from_the_largest(axis):
    x = whole(3, 3, 2, 4)
    values, order = run(lambda: layers.argsort(feeds(x=x)[0], axis, descending=True), {"x": x}).outputs
    np.testing.assert_array_equal(values, -np.sort(-x, axis))
    np.testing.assert_array_equal(order, np.argsort(-x, axis, kind="stable"))


@settings(max_examples=20)
@given(st.sampled_from([0, 1, 12]), st.sampled_from([1, 4]), st.data())
def test_unique_keeps_the_first_occurrences(size, room, data):
    values = data.draw(st.lists(st.integers(-3, 3), min_size=size, max_size=size))
    x = np.array(values, "int32")
    first = list(dict.fromkeys(values))
    found, index, counts = run(lambda: layers.unique_with_counts(feeds(x=x)[0]), {"x": x}).outputs
    assert found.rows()[0].tolist() == first
    assert index.tolist() == [first.index(v) for v in values]
    assert counts.rows()[0].tolist() == [values.count(v) for v in first]
    few, index = run(lambda: layers.unique(feeds(x=x)[0], max_length=room), {"x": x}).outputs
    assert few.data.shape == (1, room) and few.rows()[0].tolist() == first[:room]
    assert index.tolist() == [i if i < room else -1 for i in (first.index(v) for v in values)]


def test_unique_of_floats():
    x = np.array([1.5, -0.0, np.inf, 0.0, 1.5, -np.inf, np.inf], "float32")
    values, index = run(lambda: layers.unique(feeds(x=x)[0], dtype="int64"), {"x": x}).outputs
    assert values.rows()[0].tolist() == [1.5, 0.0, np.inf, -np.inf] and index.tolist() == [0, 1, 2, 1, 0, 3, 2]


@pytest.mark.parametrize("dim", [None, 0, [1, 2], -1])
@pytest.mark.parametrize("keep", [False, True])
def test_logsumexp_matches_numpy_without_overflow(dim, keep):
    axes = tuple(dim) if isinstance(dim, list) else dim
    want = np.log(np.exp(X.astype("float64")).sum(axes, keepdims=keep))
    check(lambda x: layers.logsumexp(x, dim, keep), want, x=X)
    check(lambda x: layers.logsumexp(x + 1000, dim, keep), want + 1000, x=X)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: layers.expand_as(x, np.ones([3, 3, 4])), "each of its sizes must divide"),
        (lambda x: layers.roll(x, [1, 2], [0]), "one shift for each dimension"),
        (lambda x: layers.roll(x, [1, 2]), "one shift for each dimension"),
        (lambda x: layers.roll(x, 1, 3), "dims=3 does not exist"),
        (lambda x: layers.meshgrid([x]), "a list of vectors"),
        (lambda x: layers.index_select(x, np.array([[1]])), r"expected \[count\]"),
        (lambda x: layers.index_sample(x, np.array([[1]])), r"expected \[batch, n\]"),
        (lambda x: layers.shard_index(np.array([[1]]), 4, 2, 2), r"shard_id=2\): expected a whole number from 0 to 1"),
        (lambda x: layers.unique(x), "is no vector"),
        (lambda x: layers.unique(np.ones(3), max_length=0), "max_length=0"),
    ],
)
def test_wrong_arguments_raise_value_errors(build, message):
    with pytest.raises(ValueError, match=message) as caught:
        fluid.Program(lambda: build(*feeds(x=X)))
    assert isinstance(caught.value, errors.FluidError)
