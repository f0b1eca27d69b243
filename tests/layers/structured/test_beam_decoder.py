"""`BeamSearchDecoder`: compared with a search in plain Python, with all hypotheses, and with `beam_search`."""

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


def declared():
    """Return the weights of the net of `small_decoder.py` as feeds, and its initial states as a feed."""
    x, *sizes = weights(0).items()
    w = {name: layers.data(name, value.shape, append_batch_size=False) for name, value in sizes}
    return w, layers.data(x[0], [WIDTH])


@functools.cache
def decoder(beam, steps):
    """Return a compiled decoding with `BeamSearchDecoder` and the net of `small_decoder.py`, for all rows of a feed."""

    def program():
        w, state = declared()
        made = layers.BeamSearchDecoder(lambda ids, state: step(ids, state, w), START, END, beam)
        ids, last, lengths = layers.dynamic_decode(made, state, steps - 1, return_length=True)
        return ids, last.log_probs, lengths, last.finished, last.cell_states

    known = fluid.Program(program)
    return jax.jit(lambda feed: known.apply({}, feed, key=None, mode="test").outputs)


def by_hand(x, w, beam, steps):
    """Return `(score, ids, state)`, best first, of a beam search in plain Python; ended sequences stay in the beam."""
    found = [(0.0, (), x)]
    for _ in range(steps):
        grown = []
        for total, ids, state in found:
            if END in ids:
                grown.append((total, ids, state))
                continue
            scores, new = step(ids[-1] if ids else START, state, w, np)
            grown += [(total + float(score), (*ids, k), new) for k, score in enumerate(scores)]
        found = sorted(grown, key=lambda one: -one[0])[:beam]
    return found


def hypotheses(outputs, row):
    """Return the hypotheses `(score, ids)` that a beam search found for a row; check that `END` pads their ids."""
    ids, scores, lengths, finished = (np.asarray(v[row]) for v in outputs[:4])
    assert (ids.T[np.arange(len(ids))[None] >= lengths[:, None]] == END).all()
    said = [tuple(i[:n].tolist()) for i, n in zip(ids.T, lengths, strict=True)]
    assert [END in one for one in said] == finished.tolist() and all(END not in one[:-1] for one in said)
    return list(zip(scores.tolist(), said, strict=True))


def assert_found(got, wants):
    np.testing.assert_allclose([s for s, _ in got], [s for s, *_ in wants], rtol=1e-3, atol=1e-4)
    # Hypotheses with equal scores may have any order.
    if np.all(np.diff([s for s, *_ in wants]) < -1e-3):
        assert [ids for _, ids in got] == [ids for _, ids, *_ in wants]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), size=st.sampled_from([(1, 8), (2, 6), (4, 7)]))
def test_decoder_matches_a_python_beam_search(seed, size):
    """Check that a beam search has the ids, scores and final cell states of a beam search in plain Python."""
    w = weights(seed)
    outputs = decoder(*size)(w)
    for row in range(ROWS):
        wants = by_hand(w["x"][row], w, *size)
        got = hypotheses(outputs, row)
        assert_found(got, wants)
        for (_, ids), (_, said, state), found in zip(got, wants, outputs[4][row], strict=True):
            if ids == said:
                np.testing.assert_allclose(found, state, rtol=1e-3, atol=1e-4)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_a_full_beam_matches_beam_search(seed):
    w = weights(seed)
    outputs, others = decoder(27, 4)(w), searcher(27, 4)(w)
    for row in range(ROWS):
        wants = every(w["x"][row], w, 4, 0.0)[:27]
        got = hypotheses(outputs, row)
        assert_found(got, wants)
        np.testing.assert_allclose(others[1][row], [s for s, _ in got], rtol=1e-3, atol=1e-4)


@functools.cache
def searcher(beam, longest):
    def program():
        w, state = declared()
        return layers.beam_search(lambda ids, state: step(ids, state, w), state, START, END, beam, longest)

    known = fluid.Program(program)
    return jax.jit(lambda feed: known.apply({}, feed, key=None, mode="test").outputs)


def test_rows_do_not_know_of_each_other():
    w = weights(5)
    together = decoder(4, 7)(w)
    for row in range(ROWS):
        alone = decoder(4, 7)({**w, "x": w["x"][row : row + 1]})
        for got, want in zip(together, alone, strict=True):
            np.testing.assert_allclose(got[row], want[0], rtol=1e-5)


def test_the_loop_ends_with_the_last_hypothesis():
    """Check that a beam search runs its cell three times, until all hypotheses end, and returns right hypotheses."""
    numbers = []

    def program():
        x = layers.data("x", [IDS])

        def cell(ids, states):
            jax.debug.callback(lambda n: numbers.append(int(n)), states["number"], ordered=True)
            sure = jnp.where(jnp.arange(IDS) == END, 30.0, 0.0) * (states["number"] >= 2)
            return states["x"] + sure, {"x": states["x"], "number": states["number"] + 1}

        made = layers.BeamSearchDecoder(cell, START, END, 2)
        ids, last, lengths = layers.dynamic_decode(made, {"x": x, "number": 0}, 19, return_length=True)
        return ids, last.log_probs, lengths, last.finished

    known = fluid.Program(program)
    x = np.log(np.array([[0.6, 0.0001, 0.3, 0.0999], [0.2, 0.0001, 0.1, 0.6999]], "float32"))
    outputs = jax.jit(lambda x: known.apply({}, {"x": x}, key=None).outputs)(x)
    jax.block_until_ready(outputs)
    jax.effects_barrier()
    assert numbers == [0, 1, 2]
    assert [said for _, said in hypotheses(outputs, 0)] == [(0, 0, 1), (0, 2, 1)]
    assert [said for _, said in hypotheses(outputs, 1)] == [(3, 3, 1), (3, 0, 1)]


def test_places_without_a_hypothesis():
    """Check a beam search with more beams than possible hypotheses: the unused beams have the score -inf.

    The scores rule out two of the four ids. So for five beams, two steps allow only the hypotheses 1, 2 1 and 2 2.
    """

    def program():
        x = layers.data("x", [1])
        scores = jnp.log(jnp.array([0.0, 0.5, 0.5, 0.0]))
        made = layers.BeamSearchDecoder(lambda ids, h: (jnp.broadcast_to(scores, (ids.shape[0], 4)), h), START, END, 5)
        ids, last = layers.dynamic_decode(made, x, 1)
        return ids, last.log_probs

    ids, scores = run(program, {"x": np.zeros((1, 1), "float32")}).outputs
    np.testing.assert_allclose(scores[0], [np.log(0.5), np.log(0.25), np.log(0.25), -np.inf, -np.inf])
    assert ids[0, :, 0].tolist() == [1, 1] and sorted(ids[0, :, 1:3].T.tolist()) == [[2, 1], [2, 2]]


def attentive(words, hidden, beam=None):
    """Return the step function of a decoder with attention: each row of ids attends to one sentence in `words`."""
    if beam is not None:
        words = layers.BeamSearchDecoder.tile_beam_merge_with_batch(words, beam)

    def cell(ids, state):
        scores = jnp.einsum("bd,btd->bt", state, words.data)
        context = jnp.einsum("bt,btd->bd", jax.nn.softmax(scores, where=words.mask), layers.base.dense(words))
        both = layers.concat([fluid.embedding(ids, [IDS, WIDTH], param_attr="table"), context], axis=1)
        state = layers.fc([both, state], WIDTH, act="tanh", param_attr=["a", "b"], bias_attr=False)
        return layers.fc(state, IDS, param_attr="out", bias_attr=False), state

    return cell


def test_attended_sequences_have_rows_for_each_hypothesis():
    """Check a beam search with attention over sequences: it returns the log-probabilities of the ids that it finds."""

    def search():
        words, hidden = layers.data("words", [WIDTH], lod_level=1), layers.data("hidden", [WIDTH])
        made = layers.BeamSearchDecoder(attentive(words, hidden, 3), START, END, 3)
        ids, last, lengths = layers.dynamic_decode(made, hidden, 4, return_length=True)
        return ids, last.log_probs, lengths

    def score():
        words, hidden = layers.data("words", [WIDTH], lod_level=1), layers.data("hidden", [WIDTH])
        said = layers.data("said", [5], "int64")
        ids = jnp.concatenate([jnp.zeros_like(said[:, :1]), said[:, :-1]], axis=1).T
        cell = attentive(words, hidden)
        return layers.scan(lambda state, ids: cell(ids, state)[::-1], hidden, ids)[1]

    words = fluid.SequenceBatch(real(2, 3, WIDTH), np.array([3, 2]))
    feed, known = {"words": words, "hidden": real(2, WIDTH)}, fluid.Program(search)
    arrays = {n: 2 * real(*s.shape, salt=n) for n, s in known.parameters.items()}
    ids, scores, lengths = run(search, feed, arrays=arrays).outputs
    for k in range(3):
        (logits,) = run(score, {**feed, "said": np.asarray(ids[:, :, k])}, arrays=arrays).outputs
        steps = jax.nn.log_softmax(logits)
        for row in range(2):
            said = ids[row, : lengths[row, k], k]
            total = sum(float(steps[t, row, i]) for t, i in enumerate(said))
            np.testing.assert_allclose(scores[row, k], total, rtol=1e-4)


def test_log_probability_gradient_matches_the_decoded_path():
    """Check that the gradient of a log-probability is the gradient of the summed scores along the decoded ids."""
    w = weights(3)

    def total(given, said=None):
        """Return the summed log-probability of the best hypothesis of each row, as the decoder returns it.

        With `said`, the ids and lengths of hypotheses, compute the sum from the scores of these ids instead.
        """
        if said is None:
            return jnp.sum(decoder(2, 3)(given)[1][:, 0])
        ids, lengths = said
        result = 0.0
        for row in range(ROWS):
            state, last = given["x"][row], START
            for k in ids[row, : lengths[row, 0], 0].tolist():
                scores, state = step(last, state, given)
                result, last = result + scores[k], k
        return result

    given = {name: jnp.asarray(v) for name, v in w.items()}
    ids, _, lengths, *_ = decoder(2, 3)(given)
    value, slopes = jax.value_and_grad(total)(given)
    want, wants = jax.value_and_grad(total)(given, (np.asarray(ids), np.asarray(lengths)))
    np.testing.assert_allclose(value, want, rtol=1e-5)
    for name, slope in wants.items():
        np.testing.assert_allclose(slopes[name], slope, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("through", ["cell", "output_fn"])
def test_softmax_outputs_are_used_as_probabilities(through):
    """Check that the decoder applies no second softmax if the cell or `output_fn` ends with a softmax."""

    def program(softmax):
        w, state = declared()
        act = "softmax" if softmax else None

        def say(h):
            return layers.fc(h, IDS, num_flatten_dims=len(h.shape) - 1, act=act, param_attr="out", bias_attr=False)

        def cell(ids, state):
            state = jnp.tanh(state @ w["past"] + w["word"][ids])
            return (say(state) if through == "cell" else state), state

        made = layers.BeamSearchDecoder(cell, START, END, 2, output_fn=say if through == "output_fn" else None)
        ids, last = layers.dynamic_decode(made, state, 4)
        return ids, last.log_probs, w["out"]

    w = weights(7)
    plain, softened = (
        run(functools.partial(program, softmax), w, arrays={"out": w["out"]}).outputs for softmax in (False, True)
    )
    np.testing.assert_array_equal(plain[0], softened[0])
    np.testing.assert_allclose(plain[1], softened[1], rtol=1e-5)


def test_layers_in_the_loop_create_parameters_once():
    def program():
        context = layers.data("context", [WIDTH])
        made = layers.BeamSearchDecoder(
            layers.LSTMCell(WIDTH),
            START,
            END,
            3,
            embedding_fn=lambda ids: fluid.embedding(ids, [IDS, 5]),
            output_fn=lambda h: layers.fc(h, IDS, num_flatten_dims=2),
        )
        ids, last = layers.dynamic_decode(made, [context, context], 6, output_time_major=True)
        assert isinstance(last, layers.BeamSearchDecoder.StateWrapper) and isinstance(last.cell_states, list)
        return ids, *last.cell_states

    known = fluid.Program(program)
    assert list(known.parameters) == [
        "embedding_0.w_0",
        "LSTMCell/BasicLSTMUnit_0.w_0",
        "LSTMCell/BasicLSTMUnit_0.b_0",
        "fc_0.w_0",
        "fc_0.b_0",
    ]
    ids, hidden, _ = run(program, {"context": real(2, WIDTH)}).outputs
    assert ids.shape == (7, 2, 3) and hidden.shape == (2, 3, WIDTH)


@settings(max_examples=8, deadline=None)
@given(time=st.integers(1, 6), batch=st.integers(1, 3), beam=st.integers(1, 4), seed=st.integers(0, 99))
def test_gather_tree_follows_the_parents(time, batch, beam, seed):
    rng = np.random.default_rng(seed)
    ids, parents = rng.integers(0, 99, (time, batch, beam)), rng.integers(0, beam, (time, batch, beam))
    found = run(lambda: layers.gather_tree(ids, parents), {}).outputs[0]
    for row in range(batch):
        for last in range(beam):
            place = last
            for t in reversed(range(time)):
                assert found[t, row, last] == ids[t, row, place]
                place = parents[t, row, place]


def test_tile_beam_repeats_rows():
    tile = layers.BeamSearchDecoder.tile_beam_merge_with_batch
    x = real(2, 3)
    np.testing.assert_array_equal(tile(x, 3), np.repeat(x, 3, axis=0))
    batch = fluid.SequenceBatch.from_rows([real(n, 2, salt=n) for n in (3, 1)], "float32")
    several = tile({"words": batch, "x": x, "number": 5}, 2)
    assert several["number"] == 5
    for got, want in zip(several["words"].rows(), [batch.rows()[i] for i in (0, 0, 1, 1)], strict=True):
        np.testing.assert_array_equal(got, want)


def searching(cell=lambda i, h: (h, h), inits=lambda x: x, end=END, beam=2, **arguments):
    def program():
        x = layers.data("x", [IDS])
        decoder = layers.BeamSearchDecoder(cell, arguments.pop("start", START), end, beam, **arguments)
        return layers.dynamic_decode(decoder, inits(x), max_step_num=3)[0]

    return program


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (searching(beam=0), r"BeamSearchDecoder\(beam_size=0\): expected a whole number"),
        (searching(end=-1), r"end_token=-1\): expected a whole number from 0"),
        (searching(start=0.5), r"start_token=0.5\): expected a whole number from 0"),
        (searching(end=IDS), r"logits of a step are float32\[batch, 2, 4\], with end_token=4; expected \[batch, beam"),
        (
            searching(output_fn=lambda h: h[:, 0]),
            r"are float32\[batch, 4\], with end_token=1; expected \[batch, beam",
        ),
        (searching(lambda i, h: ((h, h), h)), r"are float32\[batch, 2, 4\], float32\[batch, 2, 4\], with"),
        (searching(inits=lambda x: None), r"inits=None; expected the states of the cell.*inits="),
        (searching(lambda i, h: h), r"BeamSearchDecoder: cell\(x, states\) returned"),
        (searching(lambda i, h: (h, [h])), r"the states float32\[batch, 2, 4\] and returned \[float32"),
        (searching(lambda i, h: (h, h[:, :1])), r"starts as float32\[batch, 2, 4\] and became float32\[batch, 2, 1\]"),
        (searching(layers.GRUCell), "expected an RNNCell"),
        (lambda: layers.gather_tree(np.zeros((2, 3), int), np.zeros((2, 3), int)), r"expected both \[time, batch, bea"),
        (lambda: layers.gather_tree(np.zeros((1, 2, 3)), np.zeros((1, 2, 3), int)), "holds no integers"),
        (lambda: layers.gather_tree(np.zeros((1, 2, 3), int), np.zeros((1, 2, 3))), "parents are integers"),
    ],
)
def test_misuse_is_refused(program, message):
    with pytest.raises(errors.FluidError, match=f"(?s){message}"):
        fluid.Program(program)
