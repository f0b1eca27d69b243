"""Decoders of Fluid's `contrib.decoder`: results equal a DynamicRNN and a beam search in Python."""

import numpy as np
import pytest
from fluid.static.contrib.decoder.beam_search_decoder import BeamSearchDecoder, InitState, StateCell, TrainingDecoder
from static.both_styles import fresh, scope_value
from static.layers.test_beam import END, START, WIDTH, WORDS, by_hand

import fluid.static as fluid
import fluid.static.layers as pd
from fluid import errors

SOURCES, BEAM = 4, 3


def cell_of(context, **inputs):
    cell = StateCell(inputs={"x": None, **inputs}, states={"h": InitState(init=context)}, out_state="h")

    @cell.state_updater
    def update(cell):
        read = [cell.get_state("h"), *(cell.get_input(name) for name in cell.inputs)]
        new = pd.fc(read, size=WIDTH, act="tanh", param_attr=["u", "v", "w"][: len(read)], bias_attr=False)
        cell.set_state("h", new)

    return cell


def started(startup):
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    return exe


def searched(net, states, likes_to_end, feed=()):
    """Run a beam search with random weights; return the sentences and scores for each input, and the weights."""
    draw = np.random.default_rng(1)
    with fresh() as (main, startup):
        ids = pd.data("ids", shape=[1], dtype="int64", lod_level=2)
        scores = pd.data("scores", shape=[1], lod_level=2)
        found = net(pd.data("state", shape=[WIDTH]), ids, scores)
        exe = started(startup)
        weights = {v.name: draw.normal(size=v.shape).astype("float32") * 1.5 for v in main.all_parameters()}
        (bias,) = [name for name in weights if name.endswith("b_0")]
        weights[bias][END] += likes_to_end
        for name, value in weights.items():
            fluid.global_scope().find_var(name).get_tensor().set(value)
        lengths = [[1] * SOURCES, [1] * SOURCES]
        fed = {
            "state": states,
            "ids": fluid.create_lod_tensor(np.full((SOURCES, 1), START, "int64"), lengths, None),
            "scores": fluid.create_lod_tensor(np.zeros((SOURCES, 1), "float32"), lengths, None),
        }
        words, totals = exe.run(main, {**fed, **dict(feed)}, list(found), return_numpy=False)
    outer, inner = words.lod()
    rows = [slice(inner[i], inner[i + 1]) for i in range(len(inner) - 1)]
    listed = [(np.array(words)[r].ravel().tolist(), float(np.array(totals)[r][-1])) for r in rows]
    ends = {"emb": "embedding_0.w_0", "u": "u", "v": "v", "out_b": bias, "out": bias.replace(".b_0", ".w_0")}
    return (
        [listed[a:b] for a, b in zip(outer, outer[1:], strict=False)],
        {n: weights[e] for n, e in ends.items()},
        weights,
    )


def test_a_search_finds_the_sentences_by_hand():
    def net(context, ids, scores):
        decoder = BeamSearchDecoder(
            cell_of(context), ids, scores, WORDS, WIDTH, topk_size=BEAM, max_len=6, beam_size=BEAM, end_id=END
        )
        decoder.decode()
        return decoder()

    states = np.random.default_rng(0).normal(size=(SOURCES, WIDTH)).astype("float32")
    found, weights, _ = searched(net, states, likes_to_end=2.0)
    for source in range(SOURCES):
        wanted = by_hand(states[source], weights, BEAM, 6)
        assert [words for words, _ in found[source]] == [words for words, _ in wanted]
        np.testing.assert_allclose([s for _, s in found[source]], [s for _, s in wanted], rtol=1e-4)


def test_all_steps_of_a_search_read_further_inputs():
    def net(context, ids, scores):
        cell = cell_of(context, source=None)
        source = pd.data("source", shape=[WIDTH])
        decoder = BeamSearchDecoder(cell, ids, scores, WORDS, WIDTH, {"source": source}, BEAM, False, 5, BEAM, END)
        decoder.decode()
        return decoder()

    draw = np.random.default_rng(2)
    states, source = (draw.normal(size=(SOURCES, WIDTH)).astype("float32") for _ in range(2))
    found, weights, every = searched(net, states, 0.0, {"source": source})
    for i in range(SOURCES):
        extended = dict(weights, emb=weights["emb"] @ weights["v"] + source[i] @ every["w"], v=np.eye(WIDTH))
        assert [words for words, _ in found[i]] == [words for words, _ in by_hand(states[i], extended, BEAM, 5)]


def test_a_custom_decoder_block_stops_early():
    def net(context, ids, scores):
        decoder = BeamSearchDecoder(cell_of(context), ids, scores, WORDS, WIDTH, max_len=9, beam_size=1, end_id=END)
        with decoder.block():
            cell = decoder.state_cell
            before = decoder.read_array(init=ids, is_ids=True), decoder.read_array(init=scores, is_scores=True)
            cell.compute_state({"x": pd.embedding(before[0], size=[WORDS, WIDTH])})
            out = pd.log(pd.fc(cell.out_state(), size=WORDS, act="softmax"))
            best, candidates = pd.topk(out, k=1)
            totals = best + before[1]
            selected = pd.beam_search(*before, candidates, totals, 1, END)
            cell.update_states()
            for value, new in zip(before, selected, strict=True):
                decoder.update_array(value, new)
            decoder.early_stop()
            with pytest.raises(errors.ProgramError, match="read_array"):
                decoder.update_array(totals, totals)
        return decoder()

    found, weights, _ = searched(net, np.ones((SOURCES, WIDTH), "float32"), 0.0)
    wanted = by_hand(np.ones(WIDTH, "float32"), weights, 1, 1)
    assert [[words for words, _ in source] for source in found] == [[words for words, _ in wanted]] * SOURCES


def test_a_training_decoder_trains_like_a_dynamic_rnn():
    def by_decoder(context, words):
        decoder = TrainingDecoder(cell_of(context, source=None))
        with decoder.block():
            inputs = {"x": decoder.step_input(words), "source": decoder.static_input(context)}
            decoder.state_cell.compute_state(inputs)
            score = pd.fc(decoder.state_cell.get_state("h"), size=WORDS, act="softmax")
            decoder.state_cell.update_states()
            decoder.output(score)
        return decoder()

    def by_rnn(context, words):
        rnn = pd.DynamicRNN()
        with rnn.block():
            before = rnn.memory(init=context)
            read = [before, rnn.step_input(words), rnn.static_input(context)]
            state = pd.fc(read, size=WIDTH, act="tanh", param_attr=["u", "v", "w"], bias_attr=False)
            score = pd.fc(state, size=WORDS, act="softmax")
            rnn.update_memory(before, state)
            rnn.output(score)
        return rnn()

    draw = np.random.default_rng(0)
    feed = {
        "context": draw.normal(size=(2, WIDTH)).astype("float32"),
        "words": fluid.create_lod_tensor(draw.normal(size=(5, WIDTH)).astype("float32"), [[2, 3]]),
        "next": fluid.create_lod_tensor(draw.integers(0, WORDS, (5, 1)), [[2, 3]]),
    }
    trained = []
    for net in (by_decoder, by_rnn):
        with fresh() as (main, startup):
            scores = net(pd.data("context", shape=[WIDTH]), pd.data("words", shape=[WIDTH], lod_level=1))
            label = pd.data("next", shape=[1], dtype="int64", lod_level=1)
            loss = pd.mean(pd.cross_entropy(scores, label))
            fluid.optimizer.SGD(0.5).minimize(loss)
            exe = started(startup)
            losses = [float(exe.run(main, feed, [loss])[0]) for _ in range(3)]
            trained.append((losses, {v.name: scope_value(v.name) for v in main.all_parameters()}))
    assert trained[0][0] == trained[1][0] and trained[0][1].keys() == trained[1][1].keys()
    for name, value in trained[0][1].items():
        np.testing.assert_array_equal(trained[1][1][name], value, err_msg=name)


def test_mistakes_of_a_cell_are_named():
    with fresh():
        context = pd.data("context", shape=[WIDTH])
        with pytest.raises(errors.ArgumentError, match="InitState for each name"):
            StateCell(inputs={}, states={"h": context}, out_state="h")
        with pytest.raises(errors.ArgumentError, match="init_boot=context"):
            InitState(shape=[-1, 3])
        cell = StateCell(inputs={"x": None}, states={"h": InitState(shape=[-1, 3], init_boot=context)}, out_state="h")
        with pytest.raises(errors.ProgramError, match="inside the block of a decoder"):
            cell.get_state("h")
        decoder, words = TrainingDecoder(cell), pd.data("words", shape=[WIDTH], lod_level=1)
        with pytest.raises(errors.ProgramError, match="belongs to one decoder"):
            TrainingDecoder(cell)
        with decoder.block():
            word = decoder.step_input(words)
            with pytest.raises(errors.UnknownNameError, match="no state 'hidden'"):
                cell.get_state("hidden")
            with pytest.raises(errors.UnknownNameError, match="no input 'x'"):
                cell.get_input("x")
            with pytest.raises(errors.ProgramError, match="@cell.state_updater"):
                cell.compute_state({"x": word})
            cell.update_states()
            decoder.output(cell.out_state())
        assert decoder().shape == (-1, 3)
        search = BeamSearchDecoder(cell_of(context), context, context, WORDS, WIDTH)
        with pytest.raises(errors.ProgramError, match=r"first decoder\.decode"):
            search()
        with pytest.raises(errors.ProgramError, match="inside the block"):
            search.read_array(context)
