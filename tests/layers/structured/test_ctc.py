"""CTC: compared with sums over all alignments, and with optax."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.layer_table import real, whole
from layers.run_program import feeds, run

import fluid
from fluid import errors, layers

TIME, LABELS = 5, 3


def merged(path, blank):
    """Convert the CTC path `path`, a class for each time step, to its label: merge repetitions, then remove blanks."""
    return [k for k, _ in itertools.groupby(path) if k != blank]


def ragged(times, lengths, classes, blank, seed, garbage=np.nan):
    """Return random logits of `times` steps and labels of `lengths` steps as SequenceBatches, padded with `garbage`."""
    rng = np.random.default_rng(seed)
    x = np.full((len(times), TIME, classes), garbage, "float32")
    y = np.full((len(times), LABELS, 1), -9 if np.isnan(garbage) else 0)
    speech = [k for k in range(classes) if k != blank]
    for i, (time, length) in enumerate(zip(times, lengths, strict=True)):
        x[i, :time] = rng.normal(size=(time, classes)) * 2
        y[i, :length, 0] = rng.choice(speech, length)
    return fluid.SequenceBatch(x, np.array(times, "int32")), fluid.SequenceBatch(y, np.array(lengths, "int32"))


@functools.cache
def differentiated(classes, blank, norm_by_times=False):
    """Return a compiled function that computes CTC costs, their weighted sum, and the gradient of the sum."""
    x, y = ragged([1], [1], classes, blank, 0)
    known = fluid.Program(lambda: layers.warpctc(*feeds(x=x, y=y), blank=blank, norm_by_times=norm_by_times))

    def total(data, x, y):
        costs = known.apply({}, {"x": x.with_data(data), "y": y}, key=None, mode="train").outputs[0][:, 0]
        return jnp.sum(costs * jnp.arange(1.0, 1 + len(costs))), costs

    return jax.jit(jax.value_and_grad(total, has_aux=True))


def gradients(x, y, blank=0, **options):
    (_, costs), slopes = differentiated(x.shape[2], blank, **options)(x.data, x, y)
    return np.asarray(costs), np.asarray(slopes)


@settings(max_examples=40, deadline=None)
@given(
    times=st.lists(st.integers(0, TIME), min_size=3, max_size=3),
    lengths=st.lists(st.integers(0, LABELS), min_size=3, max_size=3),
    blank=st.sampled_from([0, 2]),
    seed=st.integers(0, 2**16),
)
def test_cost_sums_over_all_alignments(times, lengths, blank, seed):
    x, y = ragged(times, lengths, 3, blank, seed)
    costs, slopes = gradients(x, y, blank)
    for i, (row, label) in enumerate(zip(x.rows(), y.rows(), strict=True)):
        logs = row.astype("float64") - np.logaddexp.reduce(row.astype("float64"), axis=1, keepdims=True)
        said = [p for p in itertools.product(range(3), repeat=len(row)) if merged(p, blank) == label[:, 0].tolist()]
        if not said:
            assert costs[i] == 0 and not slopes[i].any()
            continue
        each = np.array([sum(logs[t, k] for t, k in enumerate(p)) for p in said])
        np.testing.assert_allclose(costs[i], -np.logaddexp.reduce(each), rtol=1e-4, atol=1e-5)
        # The CTC gradient of a logit is its softmax minus the share of alignments that have its class at this step.
        want = np.zeros(x.shape[1:])
        want[: len(row)] = np.exp(logs)
        for path, share in zip(said, np.exp(each - np.logaddexp.reduce(each)), strict=True):
            want[np.arange(len(row)), list(path)] -= share
        np.testing.assert_allclose(slopes[i], want * (i + 1), rtol=1e-3, atol=1e-5)


def padded_costs(x, y, times, lengths, **options):
    """Return the costs of logits `[batch, time, classes]`, which `warpctc` reads as arrays with time first."""
    return layers.warpctc(jnp.swapaxes(x, 0, 1), y, input_length=times, label_length=lengths, **options)[:, 0]


def test_against_optax():
    rng = np.random.default_rng(0)
    times, lengths = np.array([40, 25, 31, 40]), np.array([9, 12, 0, 1])
    logits, labels = rng.normal(size=(4, 40, 12)).astype("float32") * 3, rng.integers(1, 12, (4, 12))
    labels[1, 3:6] = 7
    after, behind = (1.0 * (np.arange(t) >= n[:, None]) for t, n in ((40, times), (12, lengths)))
    known = fluid.Program(lambda: padded_costs(*feeds(x=logits, y=labels, n=times, m=lengths)))

    def ours(x):
        feed = {"x": x, "y": labels, "n": times, "m": lengths}
        return known.apply({}, feed, key=None, mode="train").outputs[0]

    found = []
    for costs in (ours, lambda x: optax.ctc_loss(x, after, labels, behind)):
        found.append([costs(logits), jax.jit(jax.grad(lambda x, costs=costs: costs(x).sum()))(logits)])
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("garbage", [0.0, 1e30, np.inf, np.nan])
def test_padding_changes_nothing(garbage):
    times, lengths = [5, 0, 4, 2], [2, 0, 3, 3]
    costs, slopes = gradients(*ragged(times, lengths, 3, 0, 5, garbage))
    clean = gradients(*ragged(times, lengths, 3, 0, 5, 0.5))
    for got, want in zip((costs, slopes), clean, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    assert not slopes[np.arange(TIME)[None] >= np.array(times)[:, None]].any()


def test_rows_do_not_know_of_each_other():
    x, y = ragged([5, 3, 4], [2, 3, 1], 4, 0, 7)
    together = gradients(x, y)
    for i in range(3):
        alone = (fluid.SequenceBatch(v.data[i : i + 1], v.lengths[i : i + 1]) for v in (x, y))
        costs, slopes = gradients(*alone)
        np.testing.assert_allclose(together[0][i], costs[0], rtol=1e-5)
        np.testing.assert_allclose(together[1][i], slopes[0] * (i + 1), rtol=1e-4, atol=1e-6)


def test_norm_by_times_divides_the_gradient_only():
    x, y = ragged([5, 1, 4], [2, 1, 1], 3, 0, 7)
    plain, normed = gradients(x, y), gradients(x, y, norm_by_times=True)
    np.testing.assert_array_equal(plain[0], normed[0])
    np.testing.assert_allclose(normed[1], plain[1] / np.array([5, 1, 4])[:, None, None], rtol=1e-6)


def test_padded_arrays_and_sequence_batches_agree():
    x, y = ragged([5, 3, 4], [2, 3, 1], 4, 3, 7, garbage=0.0)
    feed = {"x": x.data, "y": y.data[..., 0], "n": x.lengths, "m": y.lengths}
    got = run(lambda: padded_costs(*feeds(**feed), blank=3), feed).outputs[0]
    np.testing.assert_allclose(got, gradients(x, y, 3)[0], rtol=1e-6)


def test_extreme_and_infinite_logits_have_finite_gradients():
    x, y = ragged([5, 5], [3, 3], 4, 0, 2)
    far = x.with_data(x.data * 500)
    costs, slopes = gradients(far, y)
    shifted = x.data.astype("float64") * 500
    want = optax.ctc_loss(shifted, np.zeros((2, 5)), y.data[..., 0], np.zeros((2, 3)))
    np.testing.assert_allclose(costs, want, rtol=1e-5)
    assert np.isfinite(slopes).all()
    # In CTC, two equal neighbours in a label need a blank between them. Here, the blank has the probability 0, so
    # labels with equal neighbours are impossible.
    never = x.with_data(np.where(np.arange(4) == 0, -np.inf, x.data))
    y.data[:, :, 0] = [[1, 2, 3], [1, 1, 2]]
    costs, slopes = gradients(never, y)
    said = [p for p in itertools.product(range(1, 4), repeat=5) if merged(p, 0) == [1, 2, 3]]
    logs = x.data[0, :, 1:] - np.logaddexp.reduce(x.data[0, :, 1:], axis=1, keepdims=True)
    each = [sum(logs[t, k - 1] for t, k in enumerate(p)) for p in said]
    np.testing.assert_allclose(costs[0], -np.logaddexp.reduce(each), rtol=1e-5)
    assert costs[1] > 1e20 and np.isfinite(slopes).all()


def test_an_invalid_class_makes_the_cost_nan():
    x, y = ragged([5, 5], [2, 2], 3, 0, 3)
    y.data[0, 1] = 3
    costs, _ = gradients(x, y)
    assert np.isnan(costs[0]) and np.isfinite(costs[1])
    assert fluid.Program(lambda: layers.warpctc(*feeds(x=x, y=y))).feeds["y"].limits == (1, 3, None)


def test_a_batch_of_nothing():
    x, y = (fluid.SequenceBatch(np.zeros((2, 0, n), kind), np.zeros(2, "int32")) for n, kind in ((3, "f"), (1, "i")))
    program = fluid.Program(lambda: (layers.warpctc(*feeds(x=x, y=y)), layers.ctc_greedy_decoder(feeds(x=x)[0], 0)))
    costs, best = program.apply({}, {"x": x, "y": y}, key=None, mode="test").outputs
    assert costs.tolist() == [[0.0], [0.0]] and best.shape == (2, 0, 1)


@pytest.mark.parametrize("blank", [0, 2])
def test_greedy_decoder(blank):
    rng = np.random.default_rng(blank)
    path, lengths = rng.integers(0, 3, (20, 12)), np.append(rng.integers(0, 13, 19), 12)
    scores = np.eye(3, dtype="float32")[path] + rng.uniform(0, 0.9, (20, 12, 3)).astype("float32")
    scores[np.arange(12)[None] >= lengths[:, None]] = np.nan
    batch = fluid.SequenceBatch(scores, lengths.astype("int32"))
    wants = [merged(row[:n], blank) for row, n in zip(path.tolist(), lengths, strict=True)]
    got = run(lambda: layers.ctc_greedy_decoder(*feeds(x=batch), blank), {"x": batch}).outputs[0]
    assert got.shape == (20, 12, 1) and got.dtype == "int32"
    assert [row[:, 0].tolist() for row in got.rows()] == wants
    feed = {"x": scores, "n": lengths[:, None]}
    classes, counts = run(
        lambda: layers.ctc_greedy_decoder(feeds(**feed)[0], blank, feeds(**feed)[1], -1), feed
    ).outputs
    assert classes.tolist() == [want + [-1] * (12 - len(want)) for want in wants]
    assert counts.tolist() == [[len(want)] for want in wants]


X, Y = ragged([2, 1], [1, 1], 3, 0, 0)
ARRAYS = {"x": real(4, 2, 3), "y": whole(3, 2, 4), "n": np.array([4, 1])}


@pytest.mark.parametrize(
    ("build", "given", "message"),
    [
        (lambda x, y: layers.warpctc(x, y, blank=3), {"x": X, "y": Y},
         r"warpctc_0\(blank=3\): expected a whole number from 0 to 2"),
        (lambda x, y: layers.ctc_greedy_decoder(x, -1), {"x": X, "y": Y},
         r"ctc_greedy_decoder_0\(blank=-1\): expected a whole number from 0 to 2"),
        (lambda x, y: layers.warpctc(x, layers.cast(y, "float32")), {"x": X, "y": Y}, "integers"),
        (lambda x, y: layers.warpctc(y, y), {"x": X, "y": Y}, "floats"),
        (lambda x, y: layers.warpctc(x, y, label_length=y.lengths), {"x": X, "y": Y}, "leave out label_length="),
        (lambda x, y: layers.warpctc(x, layers.concat([y, y], axis=1)), {"x": X, "y": Y}, "more than one number"),
        (lambda x, y, n: layers.warpctc(x, y), ARRAYS, "input_length=..."),
        (lambda x, y, n: layers.warpctc(x, y, input_length=np.array([1, 1])), ARRAYS, "label_length=..."),
        (lambda x, y, n: layers.warpctc(x, whole(3, 3, 4), 0, False, [1, 1], [1, 1, 1]), ARRAYS, "2 rows"),
        (lambda x, y, n, s: layers.warpctc(x, s), {**ARRAYS, "s": Y}, "the other is not"),
    ],
)  # fmt: skip
def test_bad_arguments(build, given, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(**given)))
