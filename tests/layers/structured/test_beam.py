"""Beam search: compared with a list of all hypotheses, with plain Python, and with greedy search."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.layer_table import real
from layers.run_program import run
from layers.small_decoder import END, IDS, ROWS, START, WIDTH, every, step, weights

import fluid
from fluid import errors, layers


@functools.cache
def searcher(beam, longest, penalty):
    """Return a compiled beam search with the net of `small_decoder.py`, for all rows of a feed."""

    def program():
        x, *sizes = weights(0).items()
        w = {name: layers.data(name, value.shape, append_batch_size=False) for name, value in sizes}
        state = layers.data(x[0], [WIDTH])
        return layers.beam_search(
            lambda ids, state: step(ids, state, w), state, START, END, beam, longest, length_penalty=penalty
        )

    known = fluid.Program(program)
    return jax.jit(lambda feed: known.apply({}, feed, key=None, mode="test").outputs)


def hypotheses(outputs, row):
    ids, scores, lengths = (np.asarray(v[row]) for v in outputs)
    assert (ids[np.arange(ids.shape[1])[None] >= lengths[:, None]] == END).all()
    return [(float(s), tuple(i[:n].tolist())) for s, i, n in zip(scores, ids, lengths, strict=True)]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), penalty=st.sampled_from([0.0, 0.6, 2.0, -1.0]))
def test_a_beam_that_holds_all_finds_the_best(seed, penalty):
    w = weights(seed)
    outputs = searcher(27, 4, penalty)(w)
    for row in range(ROWS):
        wants = every(w["x"][row], w, 4, penalty)[:27]
        got = hypotheses(outputs, row)
        np.testing.assert_allclose([s for s, _ in got], [s for s, _ in wants], rtol=1e-4, atol=1e-5)
        gaps = np.diff([s for s, _ in wants])
        if np.all(gaps < -1e-4):  # hypotheses with equal scores may have any order
            assert [ids for _, ids in got] == [ids for _, ids in wants]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), penalty=st.sampled_from([0.0, 1.0]))
def test_a_beam_of_size_1_is_greedy(seed, penalty):
    w = weights(seed)
    outputs = searcher(1, 8, penalty)(w)
    for row in range(ROWS):
        state, said, total = w["x"][row], [], 0.0
        while len(said) < 8 and END not in said:
            scores, state = step(said[-1] if said else START, state, w, np)
            said.append(int(np.argmax(scores)))
            total += float(scores[said[-1]])
        ((score, ids),) = hypotheses(outputs, row)
        assert list(ids) == said
        assert score == pytest.approx(total / ((5 + len(said)) / 6) ** penalty, rel=1e-4)


def by_hand(x, w, beam, longest, penalty):
    """Return the hypotheses `(score, ids)` of a beam search in plain Python, which always runs all steps."""
    live, ended = [(0.0, (), x)], []
    for length in range(1, longest + 1):
        grown = []
        for total, ids, state in live:
            scores, state = step(ids[-1] if ids else START, state, w, np)
            grown += [(total + float(s), (*ids, k), state) for k, s in enumerate(scores)]
        grown = sorted(grown, key=lambda one: -one[0])[:beam]
        over = [one for one in grown if one[1][-1] == END or length == longest]
        ended += [(total / ((5 + length) / 6) ** penalty, ids) for total, ids, _ in over]
        live = [one for one in grown if one[1][-1] != END]
    return sorted(ended, key=lambda one: -one[0])[:beam]


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), penalty=st.sampled_from([0.0, 0.6, -1.0]))
def test_early_end_loses_no_hypothesis_of_narrow_beams(seed, penalty):
    w = weights(seed)
    outputs = searcher(3, 12, penalty)(w)
    for row in range(ROWS):
        wants = by_hand(w["x"][row], w, 3, 12, penalty)
        got = [one for one in hypotheses(outputs, row) if one[0] > -np.inf]
        np.testing.assert_allclose([s for s, _ in got], [s for s, _ in wants], rtol=1e-4, atol=1e-5)


def test_search_ends_when_no_hypothesis_can_win():
    """Check the steps of a beam search: at most 3 if the end id is likely from the start, and 50 if it is unlikely."""
    iterations = []

    def program(sure):
        def count(ids, state):
            jax.debug.callback(iterations.append, state["iteration"], ordered=True)
            scores = jnp.log(jnp.where(jnp.arange(IDS) == END, sure, (1 - sure) / (IDS - 1)))
            return jnp.broadcast_to(scores, (ids.shape[0], IDS)), {**state, "iteration": state["iteration"] + 1}

        x = layers.data("x", shape=[1])
        return layers.beam_search(count, {"x": x, "iteration": 0}, START, END, beam_size=2, max_length=50)

    for sure, most in ((0.98, 3), (0.001, 50)):
        iterations.clear()
        known = fluid.Program(functools.partial(program, sure))
        outputs = jax.jit(lambda feed, known=known: known.apply({}, feed, key=None, mode="test").outputs)
        jax.block_until_ready(outputs({"x": np.zeros((3, 1), "float32")}))
        jax.effects_barrier()
        assert len(iterations) == max(map(int, iterations)) + 1 <= most
        assert sure > 0.5 or len(iterations) == most


def test_rows_do_not_know_of_each_other():
    w = weights(5)
    together = searcher(3, 6, 0.6)(w)
    for row in range(ROWS):
        alone = searcher(3, 6, 0.6)({**w, "x": w["x"][row : row + 1]})
        for got, want in zip(together, alone, strict=True):
            np.testing.assert_allclose(got[row], want[0], rtol=1e-6)


def test_places_without_a_hypothesis():
    """Check that beams without a hypothesis have the score -inf.

    The scores rule out two of the ids, so two steps allow only the hypotheses 1, 2 1 and 2 2 for five beams.
    """

    def program():
        x = layers.data("x", shape=[1])
        scores = jnp.log(jnp.array([0.0, 0.5, 0.5, 0.0]))
        return layers.beam_search(
            lambda ids, state: (jnp.broadcast_to(scores, (ids.shape[0], 4)), state), x, START, END, 5, 2
        )

    outputs = run(program, {"x": np.zeros((1, 1), "float32")}).outputs
    found = hypotheses(outputs, 0)
    assert [ids for _, ids in found[:1]] == [(1,)] and {ids for _, ids in found[1:3]} == {(2, 1), (2, 2)}
    np.testing.assert_allclose([s for s, _ in found], [np.log(0.5), np.log(0.25), np.log(0.25), -np.inf, -np.inf])
    assert outputs[2][0].tolist()[3:] == [0, 0] and (outputs[0][0][3:] == END).all()


def test_search_steps_share_layers_with_training():
    """Check that a beam search uses the parameters of a trained net, which has learned to count down.

    The state of the search is a SequenceBatch.
    """
    names = ("table", "past_w", "past_b", "out_w", "out_b")

    def cell(ids, memory):
        word = layers.embedding(ids, size=[9, 8], param_attr=names[0])
        total = layers.reduce_sum(memory, dim=1) if isinstance(memory, jax.Array) else memory.data[:, 0]
        both = layers.concat([word, total], axis=1)
        hidden = layers.fc(both, size=16, act="tanh", param_attr=names[1], bias_attr=names[2])
        return layers.fc(hidden, size=9, act="softmax", param_attr=names[3], bias_attr=names[4])

    def train_program():
        ids, following = (layers.data(n, shape=[1], dtype="int64") for n in ("ids", "following"))
        memory = layers.data("memory", shape=[4], lod_level=1)
        loss = layers.mean(layers.cross_entropy(cell(ids, memory), following))
        fluid.optimizer.Adam(0.05).minimize(loss)
        return loss

    def infer_program():
        memory = layers.data("memory", shape=[4], lod_level=1)
        first = layers.data("first", shape=[1], dtype="int64")
        return layers.beam_search(lambda ids, m: (cell(ids[:, None], m), m), memory, first, 1, 2, 10)

    session = fluid.Session(train_program, infer_program)
    assert list(session.programs["infer_program"].parameters) == list(names)
    ids = np.arange(2, 9)[:, None]
    memory = fluid.SequenceBatch(np.zeros((7, 2, 4), "float32"), np.full(7, 2, "int32"))
    for _ in range(60):
        session.run(train_program, {"ids": ids, "following": ids - 1, "memory": memory})
    said, scores, lengths = session.run(infer_program, {"first": ids, "memory": memory})
    assert [said[i, 0, : lengths[i, 0]].tolist() for i in range(7)] == [list(range(n - 1, 0, -1)) for n in range(2, 9)]
    # The decoder's step returns probabilities. If the beam search applied a softmax to them, the scores would be lower.
    assert float(np.exp(scores[:, 0]).min()) > 0.5


def test_a_search_beside_a_loss_that_is_minimised():
    def program():
        x, y = layers.data("x", shape=[3]), layers.data("y", shape=[1], dtype="int64")
        scores = layers.fc(x, size=4, param_attr="w", bias_attr=False)
        loss = layers.mean(layers.softmax_with_cross_entropy(scores, y))
        fluid.optimizer.SGD(0.1).minimize(loss)

        def one(ids, state):
            return layers.log_softmax(layers.fc(state, size=4, param_attr="w", bias_attr=False)), state

        return loss, *layers.beam_search(one, x, START, END, beam_size=2, max_length=3)

    def alone():
        return program()[0]

    feed = {"x": real(2, 3), "y": np.array([[1], [2]])}
    ends = []
    for function in (program, alone):
        session = fluid.Session(function)
        for _ in range(3):
            loss = session.run(function, feed)[0]
        ends.append((np.asarray(session.scope["w"]), float(loss)))
    np.testing.assert_allclose(ends[0][0], ends[1][0], rtol=1e-6)
    assert ends[0][1] == pytest.approx(ends[1][1])


def one(ids, state):
    return jnp.broadcast_to(jnp.log(jnp.full(4, 0.25)), (ids.shape[0], 4)), state


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda x: layers.beam_search(one, x, 0, 1, 0, 5),
            r"beam_search_0\(beam_size=0\): expected a whole number",
        ),
        (lambda x: layers.beam_search(one, x, 0, 1, 2, 2.5), r"max_length=2.5\): expected a whole number from 1"),
        (lambda x: layers.beam_search(one, x, 0, 4, 2, 5), "end_id=4"),
        (lambda x: layers.beam_search(one, x, 0, -1, 2, 5), r"end_id=-1\): expected a whole number from 0"),
        (lambda x: layers.beam_search(one, x, 0.5, 1, 2, 5), "start_id is an integer"),
        (lambda x: layers.beam_search(one, (), 0, 1, 2, 5), "one start for each row"),
        (lambda x: layers.beam_search(one, x, np.zeros(29, "int32"), 1, 2, 5), "differ in their first dimension"),
        (lambda x: layers.beam_search(lambda i, s: s, x, 0, 1, 2, 5), "expected a pair"),
        (lambda x: layers.beam_search(lambda i, s: (s[0], s), x, 0, 1, 2, 5), r"\[batch \* beam, ids\]"),
        (lambda x: layers.beam_search(lambda i, s: (s, s[:, :1]), x, 0, 1, 2, 5), "same structure and shapes"),
        (lambda x: layers.beam_search(lambda i, s: (s, i), x, 0, 1, 2, 5), "same structure and shapes"),
        (lambda x: layers.beam_search(lambda i, s: (s, [s]), x, 0, 1, 2, 5), "same structure and shapes"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(layers.data("x", shape=[4])))
