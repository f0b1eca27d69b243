"""`chunk_eval` and `edit_distance`: compared with plain Python."""

import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.layer_table import whole
from layers.run_program import feeds, run

import fluid
from fluid import errors, layers, metrics

KINDS = {"plain": "I", "IOB": "BI", "IOE": "IE", "IOBES": "BIES"}
TIME, TYPES = 6, 2


def spans(tags, scheme):
    """Return the chunks `(first, last, type)` of a row, from left to right."""
    kinds, found, start = KINDS[scheme], [], None
    parts = [None if t >= TYPES * len(kinds) else (t // len(kinds), kinds[t % len(kinds)]) for t in tags] + [None]
    for i, part in enumerate(parts):
        if start is not None:
            type_, kind = parts[i - 1]
            if part is None or part[0] != type_ or part[1] in "BS" or kind in "ES":
                found.append((start, i - 1, type_))
                start = None
        if part is not None and start is None:
            start = i
    return found


@functools.cache
def counter(scheme, excluded):
    x = ragged([[0]] * 3)

    def program():
        return layers.chunk_eval(*feeds(x=x, y=x), scheme, TYPES, list(excluded))

    known = fluid.Program(program)
    return jax.jit(lambda feed: known.apply({}, feed, key=None, mode="test").outputs)


def ragged(rows, garbage=0, time=TIME):
    batch = fluid.SequenceBatch.from_rows([np.reshape(row, (-1, 1)) for row in rows], "int32", time)
    batch.data[~np.asarray(batch.mask)] = garbage
    return batch


@settings(max_examples=60, deadline=None)
@given(data=st.data(), scheme=st.sampled_from(list(KINDS)), excluded=st.sampled_from([(), (1,), (0, 1)]))
def test_chunks_are_those_read_from_left_to_right(data, scheme, excluded):
    lengths = data.draw(st.lists(st.integers(0, TIME), min_size=3, max_size=3))
    tag = st.integers(0, TYPES * len(KINDS[scheme]))
    both = [[data.draw(st.lists(tag, min_size=n, max_size=n)) for n in lengths] for _ in range(2)]
    garbage = data.draw(st.integers(-100, 100))
    found, right = ({(i, *s) for i, row in enumerate(rows) for s in spans(row, scheme)} for rows in both)
    found, right = ({s for s in some if s[3] not in excluded} for some in (found, right))
    feed = dict(zip("xy", (ragged(rows, garbage) for rows in both), strict=True))
    got = counter(scheme, excluded)(feed)
    assert [int(v) for v in got[3:]] == [len(found), len(right), len(found & right)]
    precision, recall = (len(found & right) / max(len(some), 1) for some in (found, right))
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0
    np.testing.assert_allclose(got[:3], [precision, recall, f1], rtol=1e-6)


def test_padded_arrays_and_sequence_batches_agree():
    rows = whole(5, 4, TIME), whole(5, 4, TIME, salt=1)
    lengths = np.array([6, 0, 3, 5])
    feed = {"x": rows[0], "y": rows[1], "n": lengths[:, None]}

    def padded():
        x, y, n = feeds(**feed)
        return *layers.chunk_eval(x, y, "IOB", 2, seq_length=n), layers.edit_distance(x, y, True, None, n, n)[0]

    def sequences():
        x, y = feeds(**batches)
        return *layers.chunk_eval(x, y, "IOB", 2), layers.edit_distance(x, y)[0]

    batches = {n: fluid.SequenceBatch(v[..., None], lengths.astype("int32")) for n, v in zip("xy", rows, strict=True)}
    for got, want in zip(run(padded, feed).outputs, run(sequences, batches).outputs, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_shares_are_exact_over_batches(batch_size):
    """Check that `Trainer.test` returns exact precision, recall and F1 over all batches, with and without a metric."""
    x, y = whole(5, 7, TIME), whole(5, 7, TIME, salt=1)
    y[:, 2:] = x[:, 2:]

    def program():
        loss = layers.mean(layers.fc(layers.data("z", shape=[1]), 1))
        return loss, *layers.chunk_eval(
            *feeds(x=x, y=y), "IOB", 2, seq_length=layers.zeros_like(feeds(x=x)[0])[:, 0] + 5
        )

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    reader = fluid.reader.arrays({"z": np.zeros((7, 1), "float32"), "x": x, "y": y}, batch_size=batch_size)
    names = {"num_infer_chunks": 3, "num_label_chunks": 4, "num_correct_chunks": 5}
    chunks = metrics.ChunkEvaluator().of(**{a: f"chunk_eval_0.tmp_{i}" for a, i in names.items()})
    found, right = ({(i, *s) for i, row in enumerate(v) for s in spans(row[:5], "IOB")} for v in (x, y))
    hits = len(found & right)
    want = hits / len(found), hits / len(right), 2 * hits / (len(found) + len(right))
    np.testing.assert_allclose(trainer.test(reader)[1:4], want, rtol=1e-6)
    assert trainer.test(reader, metrics={"chunks": chunks})["chunks"] == pytest.approx(want)


def levenshtein(a, b):
    """Compute the edit distance of two sequences by the textbook recursion."""

    @functools.cache
    def distance(i, j):
        if not i or not j:
            return i + j
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return distance(len(a), len(b))


@functools.cache
def measure(normalized, ignored):
    x, y = ragged([[0]] * 3), ragged([[0]] * 3, time=TIME + 2)
    known = fluid.Program(lambda: layers.edit_distance(*feeds(x=x, y=y), normalized, list(ignored)))
    return jax.jit(lambda feed: known.apply({}, feed, key=None, mode="test").outputs)


WORDS = st.lists(st.lists(st.integers(0, 3), max_size=TIME), min_size=3, max_size=3)


@settings(max_examples=60, deadline=None)
@given(WORDS, WORDS, st.booleans(), st.sampled_from([(), (0,), (1, 3)]), st.integers(-3, 3))
def test_edit_distance(guesses, truths, normalized, ignored, garbage):
    feed = {"x": ragged(guesses, garbage), "y": ragged(truths, garbage, TIME + 2)}
    distances, count = measure(normalized, ignored)(feed)
    assert int(count) == 3 and distances.shape == (3, 1) and distances.dtype == "float32"
    for got, *pair in zip(distances[:, 0], guesses, truths, strict=True):
        guess, truth = ([v for v in row if v not in ignored] for row in pair)
        assert float(got) == pytest.approx(levenshtein(guess, truth) / (max(len(truth), 1) if normalized else 1))


def test_the_metric_of_distances():
    metric = metrics.EditDistance()
    for values in ([[0.0], [2.0], [0.5]], [[0.0]]):
        metric.update(np.array(values), np.int32(len(values)))
    assert metric.eval() == (2.5 / 4, 2 / 4)
    metric.reset()
    with pytest.raises(errors.ArgumentError, match="call update first"):
        metric.eval()
    with pytest.raises(errors.ArgumentError, match="1 distances of seq_num=2"):
        metric.update([[1.0]], 2)


X, Y = ragged([[1], [2]]), ragged([[1], [2]])
WIDE = {"x": X, "y": Y.with_data(np.repeat(Y.data, 2, axis=2))}


@pytest.mark.parametrize(
    ("build", "given", "message"),
    [
        (lambda x, y: layers.chunk_eval(x, y, "BIO", 2), {"x": X, "y": Y}, "'IOB', 'IOBES', 'IOE', 'plain'"),
        (
            lambda x, y: layers.chunk_eval(x, y, "IOB", 0),
            {"x": X, "y": Y},
            r"chunk_eval_0\(num_chunk_types=0\): expected a whole number from 1 on",
        ),
        (lambda x, y: layers.chunk_eval(x, y, "IOB", 2, [2]), {"x": X, "y": Y}, "from 0 to 1"),
        (lambda x, y: layers.chunk_eval(x, y, "IOB", 2), WIDE, "one tag for each step"),
        (lambda x, y: layers.chunk_eval(layers.cast(x, "float32"), y, "IOB", 2), {"x": X, "y": Y}, "integers"),
        (lambda x, y: layers.chunk_eval(x, y, "IOB", 2), {"x": X, "y": Y.data}, "the other is not"),
        (lambda x, y: layers.edit_distance(x, y), WIDE, "more than one number"),
        (lambda x, y: layers.edit_distance(x, y), {"x": X.data, "y": Y.data}, "input_length=..."),
        (lambda x, y: layers.edit_distance(x, y), {"x": X, "y": Y.data}, "the other is not"),
    ],
)
def test_bad_arguments(build, given, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(**given)))


def test_tag_feeds_are_limited_to_valid_tags():
    program = fluid.Program(lambda: layers.chunk_eval(*feeds(x=X, y=Y), "IOBES", 3))
    assert program.feeds["x"].limits == program.feeds["y"].limits == (0, 13, None)
