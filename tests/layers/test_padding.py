"""Padding: neither its amount nor its values, NaN included, affect results or gradients.

The layers come from the table in `sequence_table.py`, which explains how to add a layer.
"""

import functools
import os

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.layer_table import ROWS
from layers.measured_padding import Measured, assert_no_gradient_in_padding, assert_same, cut, roomier, with_lengths
from layers.sequence_table import SEQUENCE_ROWS

import fluid
from fluid import errors, layers, nets

BY_ID = {row.id: row for row in SEQUENCE_ROWS}


@functools.cache
def measured(row_id):
    return Measured(BY_ID[row_id])


def fed(row, draw):
    """Return the feed of a row of the table of layers; hypothesis draws the lengths of the sequences."""
    feed, drawn = dict(row.feed), None
    for salt, (name, value) in enumerate(row.feed.items()):
        if isinstance(value, fluid.SequenceBatch) and row.lengths != "given":
            if drawn is None or row.lengths == "apart":
                length = st.integers(row.shortest, value.shape[1])
                drawn = draw(st.lists(length, min_size=len(value.lengths), max_size=len(value.lengths)))
            feed[name] = with_lengths(value, drawn, salt)
    return feed


def test_the_table_is_sound():
    assert len(BY_ID) == len(SEQUENCE_ROWS), "two rows have one name; give them labels"
    assert all(v.shape[0] == 3 for row in SEQUENCE_ROWS for v in row.feed.values()), "give each three rows"


@pytest.mark.parametrize("row_id", BY_ID)
@settings(max_examples=5 if os.environ.get("FLUID_TEST_ALL") else 2)
@given(data=st.data())
def test_nan_in_the_padding(row_id, data):
    """Check that NaN in the padding reaches no result and no gradient, and that padding has no gradient."""
    row, measure = BY_ID[row_id], measured(row_id)
    feed = fed(row, data.draw)
    clean, spoilt = measure(feed), measure(feed, np.nan)
    assert_same(spoilt, clean, row_id)
    assert_no_gradient_in_padding(spoilt[2])
    if row.mixes:
        assert_same(measure({n: roomier(v, 3) for n, v in feed.items()}, np.nan), clean, row_id)
    else:
        assert_rows_one_by_one(measure, feed, clean, row_id)


def assert_rows_one_by_one(measure, feed, measured_together, row_id):
    """Check that each row of a batch has equal results and gradients if it is fed alone, with more padding."""
    outputs, _, gradients = measured_together
    totals = jax.tree.map(np.zeros_like, gradients["parameters"])
    for i in range(3):
        row = {n: roomier(cut(v, i, i + 1), 3) for n, v in feed.items()}
        alone, _, slopes = measure(row, np.nan)
        assert_same(alone, cut(outputs, i, i + 1), row_id)
        for kind in ("arrays", "sequences"):
            assert_same(slopes[kind], cut(gradients[kind], i, i + 1), row_id)
        totals = jax.tree.map(np.add, totals, slopes["parameters"])
    assert_same(totals, gradients["parameters"], row_id, close=1e-4)


def each_way_to_feed_sequences():
    """Yield test parameters `(row, all_feeds)`: feed all values as sequences, or only the first value."""
    for row in ROWS:
        yield pytest.param(row, False, id=f"{row.id}-first")
        if len(row.feed) > 1:
            yield pytest.param(row, True, id=f"{row.id}-all")


@pytest.mark.sample(3)
@pytest.mark.parametrize("row, all_feeds", list(each_way_to_feed_sequences()))
def test_sequences_are_respected_or_refused(row, all_feeds):
    """Check that a layer raises an error for sequences, or that padding does not change its results."""
    feed = dict(row.feed)
    for name in list(feed)[: None if all_feeds else 1]:
        data = np.stack([feed[name]] * 3, axis=1)
        feed[name] = fluid.SequenceBatch(data, np.arange(len(data), dtype="int32") % 3 + 1)
    if row.name in ("dropout", "img_conv_group"):
        return  # the shape of the padded batch changes the masks of dropout, and so the results
    try:
        measure = Measured(row, feed)
    except errors.FluidError:
        return
    assert_same(measure({n: roomier(v, 2) for n, v in feed.items()}, np.nan), measure())


def sentiment():
    words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
    label = layers.data("label", shape=[1], dtype="int64")
    emb = layers.embedding(words, size=[20, 4], is_sparse=True)
    parts = [
        nets.sequence_conv_pool(emb, 3, size, act="tanh", pool_type=kind) for size, kind in ((3, "max"), (4, "sqrt"))
    ]
    prediction = layers.fc(parts, size=2, act="softmax")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return loss, prediction


def regression():
    """Build a regression on sequences: batch norm, a softmax over the steps, sequence operators, and a loss."""
    x = layers.data("x", shape=[3], lod_level=1)
    hidden = layers.batch_norm(layers.fc(x, size=4, act="relu"))
    score = layers.sequence_softmax(layers.fc(hidden, size=1))
    whole = layers.sequence_pool(hidden * score, "sum")
    steps = layers.fc([hidden, layers.sequence_expand_as(whole, hidden)], size=1) / (1 + x * x)
    loss = layers.mean(layers.square_error_cost(steps, layers.sequence_reverse(x)))
    fluid.optimizer.Adam(0.01).minimize(loss)
    return loss, layers.sequence_last_step(steps)


def recurrent():
    """Build a classifier of sequences: an LSTM, and a DynamicRNN over the outputs of the LSTM."""
    words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
    label = layers.data("label", shape=[1], dtype="int64")
    hidden, _ = layers.dynamic_lstm(layers.fc(layers.embedding(words, size=[20, 4]), size=16), size=16)
    rnn = layers.DynamicRNN()
    with rnn.block():
        step, memory = rnn.step_input(hidden), rnn.memory(shape=[3])
        new = layers.fc([step, memory], size=3, act="tanh")
        rnn.update_memory(memory, new)
        rnn.output(new)
    parts = [layers.sequence_last_step(rnn()), layers.sequence_pool(hidden, "max")]
    prediction = layers.fc(parts, size=2, act="softmax")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss, prediction


def tagger():
    """Build a tagger of words: a convolution over the words, and a CRF over its scores."""
    words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
    tags = layers.data("tags", shape=[1], dtype="int64", lod_level=1)
    scores = layers.sequence_conv(layers.embedding(words, size=[20, 4]), num_filters=3)
    cost = layers.linear_chain_crf(scores, tags, param_attr="transitions")
    loss = layers.mean(cost)
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss, cost


LADDERS = (None, [8], [3, 13])


@functools.cache
def session_of(program, ladder):
    """Return a session of the program, whose two outputs are named `loss` and `other`."""

    @functools.wraps(program)
    def named():
        return [layers.identity(v, name=n) for n, v in zip(("loss", "other"), program(), strict=True)]

    return fluid.Session(named, buckets=None if ladder is None else list(ladder))


def feed_of(program, lengths, rng):
    """Return a feed of a program: its sequences have the given lengths, its other values are random."""
    if program is regression:
        return {"x": [rng.normal(size=(n, 3)).astype("float32") for n in lengths]}
    feed = {"words": [rng.integers(0, 20, (n, 1)) for n in lengths]}
    if program is tagger:
        return {**feed, "tags": [rng.integers(0, 3, (n, 1)) for n in lengths]}
    return {**feed, "label": rng.integers(0, 2, (len(lengths), 1))}


def outcome(session, feed):
    """Return the outputs `loss` and `other` of a program, and the gradient of the loss for each parameter."""
    (program,) = session.programs.values()
    fetch = ["loss", "other", *(f"{name}@GRAD" for name in program.parameters)]
    return [np.asarray(v) for v in session.run(program.name, feed, fetch=fetch, mode="test")]


@pytest.mark.sample(2)
@pytest.mark.parametrize("program", [sentiment, regression, recurrent, tagger])
@settings(max_examples=4)
@given(
    lengths=st.lists(st.integers(1, 8), min_size=3, max_size=3),
    ladder=st.sampled_from(LADDERS),
    more=st.sampled_from([0, 2, 7]),
    seed=st.integers(0, 99),
)
def test_whole_programs_are_their_rows(program, lengths, ladder, more, seed):
    """Check that loss and gradients of a batch of sequences are means over its rows, for any padding.

    The padded length and the values of the padding change from case to case.
    """
    session = session_of(program, None if ladder is None else tuple(ladder))
    feed = feed_of(program, lengths, np.random.default_rng(seed))
    ragged = {n: spoilt(fluid.SequenceBatch.from_rows(v), more) if isinstance(v, list) else v for n, v in feed.items()}
    rows = [outcome(session, {n: v[i : i + 1] for n, v in feed.items()}) for i in range(3)]
    # A mean over the steps of all sequences weights long sequences more.
    weights = np.array(lengths) / sum(lengths) if program is regression else np.full(3, 1 / 3)
    for given_as in (feed, ragged):
        loss, other, *gradients = outcome(session, given_as)
        assert_same(other, np.concatenate([row[1] for row in rows]))
        for i, value in ((0, loss), *enumerate(gradients, 2)):
            assert_same(value, sum(w * row[i] for w, row in zip(weights, rows, strict=True)))


def trained(program, feed):
    """Train for three steps; return the results of the last step, and all arrays of the session by name."""
    session = fluid.Session(program)
    for _ in range(3):
        results = session.run(program, feed)
    return [np.asarray(r) for r in results], {name: np.asarray(value) for name, value in session.scope.items()}


def spoilt(value, more):
    """Return the sequences with `more` steps of padding, and with NaN or 10**6 in all padding."""
    value = roomier(value, more)
    data = np.array(value.data)
    data[~np.asarray(value.mask)] = np.nan if data.dtype.kind == "f" else 10**6
    return value.with_data(data)


@pytest.mark.parametrize("program", [sentiment, regression])
def test_whole_programs(program):
    """Check that training in a Session ends with equal arrays for any padding of the feeds."""
    rng = np.random.default_rng(3)
    if program is sentiment:
        name, rows, feed = "words", [rng.integers(0, 20, (n, 1)) for n in (5, 1, 8)], {"label": [[0], [1], [1]]}
    else:
        name, rows, feed = "x", [rng.normal(size=(n, 3)).astype("float32") for n in (5, 1, 8)], {}
    batch = fluid.SequenceBatch.from_rows(rows)
    want = trained(program, {name: batch, **feed})
    assert_same(trained(program, {name: spoilt(batch, 4), **feed}), want, close=1e-4)
    session = fluid.Session(program)
    _, together = session.run(program, {name: batch, **feed}, mode="test")
    for i in range(3):
        row = {name: spoilt(cut(batch, i, i + 1), 0), **{n: v[i : i + 1] for n, v in feed.items()}}
        assert_same(session.run(program, row, mode="test")[1], together[i : i + 1])
