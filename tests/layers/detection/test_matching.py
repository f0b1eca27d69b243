"""Matching of objects with boxes: compared with repeated searches for the largest distance."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.detection.reference import results
from layers.run_program import feeds

import fluid
from fluid import errors, layers

ROWS, COLUMNS = 4, 6


def match(distances, threshold=None):
    """Match rows and columns of a distance matrix; return the row of each column (or -1), and the distances."""
    rows, found = [-1] * distances.shape[1], [0.0] * distances.shape[1]
    pairs = {(i, j): d for (i, j), d in np.ndenumerate(distances) if d >= 1e-6}
    while pairs:
        # Of several pairs with the greatest distance, take the pair with the first column, and then with the first row.
        (i, j), distance = min(pairs.items(), key=lambda pair: (-pair[1], pair[0][1], pair[0][0]))
        rows[j], found[j] = i, distance
        pairs = {(a, b): d for (a, b), d in pairs.items() if a != i and b != j}
    for j, row in enumerate(rows):
        enough = [i for i in range(len(distances)) if threshold is not None and distances[i, j] >= max(threshold, 1e-6)]
        if row < 0 and enough:
            rows[j] = max(enough, key=lambda i: (distances[i, j], -i))
            found[j] = distances[rows[j], j]
    return rows, found


def batch_of(lengths, seed, ties):
    rng = np.random.default_rng(seed)
    data = rng.uniform(0, 1, (len(lengths), ROWS, COLUMNS))
    # Rounding to quarters makes many distances equal, and many distances 0.
    data = np.round(data * 4) / 4 if ties else data
    # The padding has the largest distances. So a layer that reads padding by mistake matches wrong rows, and fails the
    # test.
    data[np.arange(ROWS)[None] >= np.array(lengths)[:, None]] = 9
    return fluid.SequenceBatch(data.astype("float32"), np.array(lengths, "int32"))


@pytest.mark.sample(2)
@settings(max_examples=15)
@given(
    lengths=st.lists(st.integers(0, ROWS), min_size=2, max_size=2),
    seed=st.integers(0, 999),
    ties=st.booleans(),
    threshold=st.sampled_from([None, 0.5, 0.0]),
)
def test_bipartite_match(lengths, seed, ties, threshold):
    x = batch_of(lengths, seed, ties)
    kind = {} if threshold is None else {"match_type": "per_prediction", "dist_threshold": threshold}
    rows, distances = results(lambda: layers.bipartite_match(*feeds(x=x), **kind), {"x": x})
    assert rows.dtype == "int32"
    for i, own in enumerate(x.rows()):
        want = match(own, threshold)
        assert rows[i].tolist() == want[0]
        np.testing.assert_allclose(distances[i], want[1], rtol=1e-6)


@pytest.mark.parametrize("shape", [(3, 5), (5, 3), (1, 4), (4, 1)])
def test_a_matrix_is_a_batch_of_size_1(shape):
    x = np.random.default_rng(0).uniform(0, 1, shape).astype("float32")
    rows, distances = results(lambda: layers.bipartite_match(jax.numpy.asarray(x)), {})
    want = match(x)
    assert rows.tolist() == [want[0]]
    np.testing.assert_allclose(distances[0], want[1], rtol=1e-6)


def test_matches_carry_no_gradient():
    x = batch_of([3, 2], 0, False)
    program = fluid.Program(lambda: layers.bipartite_match(*feeds(x=x))[1])

    def total(data):
        return program.apply({}, {"x": x.with_data(data)}, key=None).outputs[0].sum()

    assert not np.asarray(jax.grad(total)(x.data)).any()


@pytest.mark.sample(2)
@settings(max_examples=10)
@given(
    lengths=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    shared=st.booleans(),
    negatives=st.booleans(),
    seed=st.integers(0, 999),
)
def test_target_assign(lengths, shared, negatives, seed):
    rng = np.random.default_rng(seed)
    things = fluid.SequenceBatch(
        rng.normal(size=(2, 3, 1 if shared else 5, 2)).astype("float32"), np.array(lengths, "int32")
    )
    rows = np.stack([rng.integers(-1, n, 5) for n in lengths])
    feed = {"x": things, "m": rows}
    if negatives:
        feed["n"] = fluid.SequenceBatch(rng.integers(0, 5, (2, 2, 1)), np.array([2, 1], "int32"))
    want, counts = np.full((2, 5, 2), 7.0), np.zeros((2, 5, 1))
    for i, j in np.ndindex(2, 5):
        if rows[i, j] >= 0:
            want[i, j], counts[i, j] = things.data[i, rows[i, j], 0 if shared else j], 1
    for i, chosen in enumerate(feed["n"].rows() if negatives else []):
        for j in chosen[:, 0]:
            want[i, j], counts[i, j] = want[i, j] if rows[i, j] >= 0 else 7, 1
    found = results(lambda: layers.target_assign(*feeds(**feed), mismatch_value=7), feed)
    np.testing.assert_allclose(found[0], want, rtol=1e-6)
    np.testing.assert_array_equal(found[1], counts)


def test_of_no_objects_there_is_nothing_to_assign():
    things = fluid.SequenceBatch(np.zeros((2, 0, 1, 3), "float32"), np.zeros(2, "int32"))
    found = results(
        lambda: layers.target_assign(*feeds(x=things, m=np.full((2, 4), -1))), {"x": things, "m": np.full((2, 4), -1)}
    )
    assert not any(np.asarray(value).any() for value in found)


X = batch_of([2, 1], 0, False)
THINGS = fluid.SequenceBatch(np.zeros((2, 3, 1, 2), "float32"), np.array([2, 1], "int32"))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x, t, m: layers.bipartite_match(x, "greedy"), 'expected "bipartite" or "per_prediction"'),
        (lambda x, t, m: layers.bipartite_match(t), "a matrix"),
        (lambda x, t, m: layers.target_assign(x, m), "do not fit"),
        (lambda x, t, m: layers.target_assign(t, layers.cast(m, "float32")), "integers"),
        (lambda x, t, m: layers.target_assign(t, m, m), "the predictions of each image as a sequence batch"),
    ],
)
def test_bad_arguments(build, message):
    feed = {"x": X, "t": THINGS, "m": np.zeros((2, 5), "int32")}
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(**feed)))
