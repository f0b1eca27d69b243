"""Conditional random fields: compared with sums over all tag sequences."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.layer_table import real, whole
from layers.run_program import feeds, run

import fluid
from fluid import errors, layers


def score(row, tags, moves):
    """Compute the scores of tag sequences `[..., time]` of a linear-chain CRF by the defining formula."""
    tags = np.asarray(tags)
    total = moves[0, tags[..., 0]] + moves[1, tags[..., -1]] + row[np.arange(len(row)), tags].sum(-1)
    return total + moves[2 + tags[..., :-1], tags[..., 1:]].sum(-1)


def every(row, moves):
    """Return all possible tag sequences for a row of the batch, and the score of each tag sequence."""
    found = list(itertools.product(range(row.shape[1]), repeat=len(row)))
    return found, score(row.astype("float64"), found, moves.astype("float64"))


def cost(x, tags, **options):
    return layers.linear_chain_crf(x, tags, param_attr="crfw", **options)


def ragged(lengths, tags, seed, garbage=np.nan):
    """Return inputs and labels of these lengths, with `garbage` as padding."""
    time = 5
    x = np.full((len(lengths), time, tags), garbage, "float32")
    y = np.full((len(lengths), time, 1), -7 if np.isnan(garbage) else 0)
    rng = np.random.default_rng(seed)
    for i, n in enumerate(lengths):
        x[i, :n], y[i, :n] = rng.normal(size=(n, tags)) * 2, rng.integers(0, tags, (n, 1))
    lengths = np.array(lengths, "int32")
    return fluid.SequenceBatch(x, lengths), fluid.SequenceBatch(y, lengths)


@functools.cache
def decoder(tags):
    """Compile a conditional random field; the function returns costs, best tags, and 1 if a best tag is the label."""
    x, y = ragged([1, 1, 1], tags, 0)

    def program():
        x_, y_ = feeds(x=x, y=y)
        return cost(x_, y_), layers.crf_decoding(x_, "crfw"), layers.crf_decoding(x_, "crfw", label=y_)

    known = fluid.Program(program)
    return jax.jit(lambda arrays, feed: known.apply(arrays, feed, key=None, mode="train").outputs)


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(0, 5), min_size=3, max_size=3), tags=st.integers(1, 3), seed=st.integers(0, 2**16))
def test_cost_and_best_tags_match_an_enumeration(lengths, tags, seed):
    x, y = ragged(lengths, tags, seed)
    moves = np.random.default_rng(seed + 1).normal(size=(tags + 2, tags)).astype("float32")
    costs, best, hits = decoder(tags)({"crfw": moves}, {"x": x, "y": y})
    for i, (row, right) in enumerate(zip(x.rows(), y.rows(), strict=True)):
        if not len(row):
            assert float(costs[i, 0]) == 0
            continue
        found, scores = every(row, moves)
        want = np.logaddexp.reduce(scores) - score(row, right[:, 0], moves)
        np.testing.assert_allclose(float(costs[i, 0]), want, rtol=1e-4, atol=1e-5)
        assert best.rows()[i][:, 0].tolist() == list(found[int(np.argmax(scores))])
        assert hits.rows()[i].tolist() == (best.rows()[i] == right).tolist()
    assert not best.data[~np.asarray(best.mask)].any()


@functools.cache
def differentiated(tags):
    """Return a compiled function: costs of a CRF, their weighted sum, and its gradients for inputs and transitions."""
    known = fluid.Program(lambda: cost(*feeds(**dict(zip("xy", ragged([1], tags, 0), strict=True)))))

    def total(data, moves, x, y):
        costs = known.apply({"crfw": moves}, {"x": x.with_data(data), "y": y}, key=None, mode="train").outputs[0]
        return jnp.sum(costs[:, 0] * jnp.arange(1.0, 1 + len(costs))), costs

    return jax.jit(jax.value_and_grad(total, argnums=(0, 1), has_aux=True))


def gradients(x, y, moves):
    (_, costs), (of_x, of_moves) = differentiated(x.shape[2])(x.data, moves, x, y)
    return [np.asarray(v) for v in (costs, of_x, of_moves)]


MOVES = real(5, 3, salt="moves")


def test_gradients_match_tag_marginals_minus_labels():
    """Compare gradients with marginals, the shares of tag sequences with a tag at a step, minus the labels."""
    x, y = ragged([3, 1], 3, 5)
    _, of_x, of_moves = gradients(x, y, MOVES)
    want_x, want_moves = np.zeros(x.shape), np.zeros((5, 3))
    for i, (row, right) in enumerate(zip(x.rows(), y.rows(), strict=True)):
        found, scores = every(row, MOVES)
        shares = np.exp(scores - np.logaddexp.reduce(scores))
        for tags, share in [*zip(found, shares, strict=True), (tuple(right[:, 0]), -1.0)]:
            part = share * (i + 1)
            want_x[i, np.arange(len(tags)), tags] += part
            want_moves[0, tags[0]] += part
            want_moves[1, tags[-1]] += part
            for a, b in itertools.pairwise(tags):
                want_moves[2 + a, b] += part
    np.testing.assert_allclose(of_x, want_x, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(of_moves, want_moves, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("garbage", [0.0, 1e30, np.inf, np.nan])
def test_padding_changes_nothing(garbage):
    lengths = [3, 0, 4]
    costs, of_x, of_moves = gradients(*ragged(lengths, 3, 5, garbage), MOVES)
    clean = gradients(*ragged(lengths, 3, 5, 0.5), MOVES)
    for got, want in zip((costs, of_x, of_moves), clean, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert not of_x[np.arange(5)[None] >= np.array(lengths)[:, None]].any()


def test_rows_do_not_know_of_each_other():
    x, y = ragged([4, 2, 3], 3, 7)
    together = gradients(x, y, MOVES)
    for i in range(3):
        alone = [fluid.SequenceBatch(v.data[i : i + 1], v.lengths[i : i + 1]) for v in (x, y)]
        costs, of_x, _ = gradients(*alone, MOVES)
        np.testing.assert_allclose(together[0][i], costs[0], rtol=1e-5)
        np.testing.assert_allclose(together[1][i], of_x[0] * (i + 1), rtol=1e-4, atol=1e-6)


def test_padded_arrays_and_sequence_batches_agree():
    x, y = ragged([4, 0, 3], 3, 9)
    n = np.asarray(x.lengths)[:, None]

    def padded():
        x_, y_, n_ = feeds(x=x.data, y=y.data, n=n)
        return (
            cost(x_, y_, length=n_),
            layers.crf_decoding(x_, "crfw", y_, n_),
            layers.crf_decoding(x_, "crfw", None, n_),
        )

    def sequences():
        x_, y_ = feeds(x=x, y=y)
        return cost(x_, y_), layers.crf_decoding(x_, "crfw", y_), layers.crf_decoding(x_, "crfw")

    got = run(padded, {"x": x.data, "y": y.data, "n": n}, arrays={"crfw": MOVES}).outputs
    want = run(sequences, {"x": x, "y": y}, arrays={"crfw": MOVES}).outputs
    np.testing.assert_array_equal(got[0], want[0])
    for a, b in zip(got[1:], want[1:], strict=True):
        assert a.shape == x.shape[:2]
        np.testing.assert_array_equal(a, b.data[..., 0])


def test_scores_that_are_far_apart():
    """Check that a CRF has finite costs and gradients if float32 exponentials of its scores are 0 or infinite."""
    x, y = ragged([3], 3, 1)
    x = x.with_data(x.data * 200)
    moves = MOVES * 300
    found, scores = every(x.rows()[0].astype("float64"), moves.astype("float64"))
    worst = found[int(np.argmin(scores))]
    y = y.with_data(np.array([*worst, 0, 0]).reshape(1, 5, 1))
    costs, of_x, of_moves = gradients(x, y, moves)
    np.testing.assert_allclose(costs[0, 0], np.ptp(scores), rtol=1e-5)
    assert np.isfinite(of_x).all() and np.isfinite(of_moves).all()


def test_an_invalid_tag_makes_the_cost_nan():
    x, y = ragged([2, 3], 3, 3)
    y.data[0, 1] = 3
    costs, _, _ = gradients(x, y, MOVES)
    assert np.isnan(costs[0]) and np.isfinite(costs[1])
    assert fluid.Program(lambda: cost(*feeds(x=x, y=y))).feeds["y"].limits == (0, 3, None)


def test_a_batch_of_nothing():
    x, y = (fluid.SequenceBatch(v, np.zeros(2, "int32")) for v in (np.zeros((2, 0, 3), "f"), np.zeros((2, 0, 1), "i")))
    program = fluid.Program(lambda: (cost(*feeds(x=x, y=y)), layers.crf_decoding(feeds(x=x)[0], "crfw")))
    costs, best = program.apply({"crfw": jnp.asarray(MOVES)}, {"x": x, "y": y}, key=None, mode="test").outputs
    assert costs.tolist() == [[0.0], [0.0]] and best.shape == (2, 0, 1)


def test_crf_learns_transitions_between_tags():
    """Check that a CRF learns that tags rotate, and so finds more tags than the noisy inputs alone show."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 3, [200, 1])
    tags = (first + np.arange(6)) % 3
    x = (np.eye(3)[tags] + rng.normal(0, 1.2, [200, 6, 3])).astype("float32")
    lengths = rng.integers(3, 7, 200).astype("int32")
    batch, right = fluid.SequenceBatch(x, lengths), fluid.SequenceBatch(tags[..., None], lengths)

    def program():
        x_, y_ = feeds(x=batch, y=right)
        loss = layers.mean(cost(x_, y_))
        fluid.optimizer.Adam(0.1).minimize(loss)
        return loss, layers.mean(layers.cast(layers.crf_decoding(x_, "crfw", label=y_), "float32"))

    session = fluid.Session(program)
    for _ in range(60):
        results = session.run(program, {"x": batch, "y": right})
    alone = np.mean((x.argmax(2) == tags)[np.asarray(batch.mask)])
    assert float(results[1]) > 0.8 > 0.7 > alone


X, Y = ragged([2, 1], 3, 0)
PADDED = {"x": real(2, 4, 3), "y": whole(3, 2, 4), "n": np.array([[4], [1]])}


@pytest.mark.parametrize(
    ("build", "given", "message"),
    [
        (lambda x, y: layers.crf_decoding(x, None), {"x": X, "y": Y}, r"ParamAttr\(name="),
        (lambda x, y: cost(x, y, length=np.array([1, 2])), {"x": X, "y": Y}, "leave out length="),
        (lambda x, y: cost(x, layers.cast(y, "float32")), {"x": X, "y": Y}, "integers"),
        (lambda x, y: cost(x, layers.concat([y, y], axis=1)), {"x": X, "y": Y}, "one tag for each step"),
        (lambda x, y: cost(layers.concat([y, y], axis=1), y), {"x": X, "y": Y}, "floats"),
        (lambda x, y, n: cost(x, y), PADDED, "length=..."),
        (lambda x, y, n: cost(x, y, length=x), PADDED, "integers"),
        (lambda x, y, n: cost(x, y, length=y), PADDED, "one number for each sequence"),
        (lambda x, y, n, s: cost(x, s, length=n), {**PADDED, "s": Y}, "the other is not"),
    ],
)
def test_bad_arguments(build, given, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(**given)))
