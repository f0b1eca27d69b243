"""The decoder of chapter 8 of the PaddlePaddle book of 2018: results equal a beam search over lists in Python."""

import numpy as np
import pytest
from static.both_styles import fresh, scope_value

import fluid.static as fluid
import fluid.static.layers as pd

WORDS = 9
WIDTH = 4
START = 0
END = 1


def decoder(context, beam_size, max_length, by_switch=False):
    """Build the decoder of chapter 8 of the PaddlePaddle book.

    If `by_switch` is True, a `Switch` in the program ends the decoding loop.
    """
    array_len = pd.fill_constant(shape=[1], dtype="int64", value=max_length)
    counter = pd.zeros(shape=[1], dtype="int64", force_cpu=True)

    state_array = pd.create_array("float32")
    pd.array_write(context, array=state_array, i=counter)
    ids_array = pd.create_array("int64")
    scores_array = pd.create_array("float32")
    init_ids = pd.data(name="init_ids", shape=[1], dtype="int64", lod_level=2)
    init_scores = pd.data(name="init_scores", shape=[1], dtype="float32", lod_level=2)
    pd.array_write(init_ids, array=ids_array, i=counter)
    pd.array_write(init_scores, array=scores_array, i=counter)

    cond = pd.less_than(x=counter, y=array_len)
    while_op = pd.While(cond=cond)
    with while_op.block():
        pre_ids = pd.array_read(array=ids_array, i=counter)
        pre_state = pd.array_read(array=state_array, i=counter)
        pre_score = pd.array_read(array=scores_array, i=counter)
        pre_state_expanded = pd.sequence_expand(pre_state, pre_score)
        pre_ids_emb = pd.embedding(input=pre_ids, size=[WORDS, WIDTH], dtype="float32", param_attr="emb")
        current_state = pd.fc(
            input=[pre_state_expanded, pre_ids_emb], size=WIDTH, act="tanh", param_attr=["u", "v"], bias_attr=False
        )
        current_state_with_lod = pd.lod_reset(x=current_state, y=pre_score)
        current_score = pd.fc(
            input=current_state_with_lod, size=WORDS, act="softmax", param_attr="out", bias_attr="out_b"
        )
        topk_scores, topk_indices = pd.topk(current_score, k=beam_size)
        accu_scores = pd.elementwise_add(x=pd.log(topk_scores), y=pd.reshape(pre_score, shape=[-1]), axis=0)
        selected_ids, selected_scores = pd.beam_search(
            pre_ids, pre_score, topk_indices, accu_scores, beam_size, end_id=END, level=0
        )

        def write():
            pd.increment(x=counter, value=1, in_place=True)
            pd.array_write(current_state, array=state_array, i=counter)
            pd.array_write(selected_ids, array=ids_array, i=counter)
            pd.array_write(selected_scores, array=scores_array, i=counter)
            length_cond = pd.less_than(x=counter, y=array_len)
            finish_cond = pd.logical_not(pd.is_empty(x=selected_ids))
            pd.logical_and(x=length_cond, y=finish_cond, out=cond)

        if not by_switch:
            write()
        else:
            with pd.Switch() as switch:
                with switch.case(pd.is_empty(selected_ids)):
                    pd.fill_constant(shape=[1], value=0, dtype="bool", force_cpu=True, out=cond)
                with switch.default():
                    write()
    return pd.beam_search_decode(ids=ids_array, scores=scores_array, beam_size=beam_size, end_id=END)


def by_hand(state, weights, beam_size, max_length):
    """Run a beam search in plain Python from the initial state of one input; list `(ids, score)`, best first."""
    rows = [([START], 0.0, state)]
    for _ in range(max_length):
        found = []
        for place, (ids, score, state) in enumerate(rows):
            if ids[-1] == END:
                found.append((score, END, place, state))
                continue
            new = np.tanh(state @ weights["u"] + weights["emb"][ids[-1]] @ weights["v"])
            logits = new @ weights["out"] + weights["out_b"]
            logs = logits - np.log(np.sum(np.exp(logits - logits.max()))) - logits.max()
            found += [(score + logs[i], int(i), place, new) for i in np.argsort(-logs)[:beam_size]]
        best = sorted(found, key=lambda row: -row[0])[:beam_size]
        if all(word == END and rows[place][0][-1] == END for _, word, place, _ in best):
            break
        best.sort(key=lambda row: row[2])
        rows = [([*rows[place][0], word], score, state) for score, word, place, state in best]
    sentences = []
    for ids, score, _ in rows:
        ended = ids.index(END) + 1 if END in ids else len(ids)
        sentences.append((ids[:ended], score))
    return sorted(sentences, key=lambda pair: -pair[1])


@pytest.mark.parametrize(
    ("beam_size", "max_length", "likes_to_end", "by_switch"),
    [(3, 6, 0.0, False), (2, 8, 2.5, False), (4, 5, 1.5, False), (1, 4, 0.0, False), (2, 8, 2.5, True)],
)
def test_decoded_sentences_match_a_python_search(beam_size, max_length, likes_to_end, by_switch):
    draw = np.random.default_rng(beam_size)
    sources = 5
    states = draw.normal(size=(sources, WIDTH)).astype("float32")
    with fresh() as (main, startup):
        ids, scores = decoder(pd.data("state", shape=[WIDTH]), beam_size, max_length, by_switch)
        assert (ids.lod_level, scores.lod_level) == (2, 2)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        weights = {}
        for variable in main.all_parameters():
            weights[variable.name] = draw.normal(size=variable.shape).astype("float32") * 1.5
        weights["out_b"][END] += likes_to_end
        for name, value in weights.items():
            fluid.global_scope().find_var(name).get_tensor().set(value, fluid.CPUPlace())
        lengths = [[1] * sources, [1] * sources]
        feed = {
            "state": states,
            "init_ids": fluid.create_lod_tensor(np.full((sources, 1), START, "int64"), lengths, None),
            "init_scores": fluid.create_lod_tensor(np.zeros((sources, 1), "float32"), lengths, None),
        }
        found_ids, found_scores = exe.run(main, feed=feed, fetch_list=[ids, scores], return_numpy=False)
        assert scope_value("u").shape == (WIDTH, WIDTH)
    outer, inner = found_ids.lod()
    for source in range(sources):
        wanted = by_hand(states[source], weights, beam_size, max_length)
        places = range(outer[source], outer[source + 1])
        sentences = [np.array(found_ids)[inner[i] : inner[i + 1]].ravel().tolist() for i in places]
        assert sentences == [words for words, _ in wanted]
        last = [float(np.array(found_scores)[inner[i + 1] - 1]) for i in places]
        np.testing.assert_allclose(last, [score for _, score in wanted], rtol=1e-4)


def test_a_search_outside_a_loop_is_refused():
    with fresh():
        x = pd.data("x", shape=[1])
        with pytest.raises(fluid.errors.ProgramError, match="into the block of a layers.While"):
            pd.beam_search(x, x, x, x, beam_size=2, end_id=1)
        array = pd.array_write(x, pd.zeros([1], "int64"))
        with pytest.raises(fluid.errors.ProgramError, match="no search was written"):
            pd.beam_search_decode(array, array, beam_size=2, end_id=1)


def test_variables_that_a_search_assigns():
    """Check a beam search whose loop assigns to variables outside the loop; each sentence is decoded as if alone."""
    draw = np.random.default_rng(7)
    encoded = draw.normal(size=(3, 4, WIDTH)).astype("float32")
    beam_size = 3
    with fresh() as (main, startup):
        enc_output = pd.fc(pd.data("encoded", shape=[4, WIDTH]), size=WIDTH, num_flatten_dims=2, bias_attr=False)
        max_len = pd.fill_constant(shape=[1], dtype="int64", value=5)
        step_idx = pd.fill_constant(shape=[1], dtype="int64", value=0, force_cpu=True)
        cond = pd.less_than(x=step_idx, y=max_len)
        while_op = pd.While(cond)
        ids = pd.array_write(pd.data("start", shape=[1], dtype="int64", lod_level=2), step_idx)
        scores = pd.array_write(pd.data("scores", shape=[1], dtype="float32", lod_level=2), step_idx)
        cache = pd.fill_constant_batch_size_like(enc_output, shape=[-1, WIDTH], dtype="float32", value=0.0)
        with while_op.block():
            pre_ids = pd.reshape(pd.array_read(array=ids, i=step_idx), (-1, 1, 1))
            pre_scores = pd.array_read(array=scores, i=step_idx)
            pre_enc_output = pd.sequence_expand(x=enc_output, y=pre_scores)
            pre_cache = pd.sequence_expand(x=cache, y=pre_scores)
            word = pd.reshape(pd.embedding(pre_ids, size=[WORDS, WIDTH]), [-1, WIDTH])
            new_cache = pd.fc([word, pre_cache], size=WIDTH, act="tanh")
            logits = pd.fc([new_cache, pd.reduce_mean(pre_enc_output, dim=1)], size=WORDS)
            topk_scores, topk_indices = pd.topk(input=pd.softmax(logits), k=beam_size)
            total = pd.elementwise_add(x=pd.log(topk_scores), y=pd.reshape(pre_scores, shape=[-1]), axis=0)
            topk_indices = pd.lod_reset(topk_indices, pre_ids)
            selected_ids, selected_scores = pd.beam_search(
                pre_ids=pre_ids, pre_scores=pre_scores, ids=topk_indices, scores=total, beam_size=beam_size, end_id=END
            )
            pd.increment(x=step_idx, value=1.0, in_place=True)
            pd.array_write(selected_ids, i=step_idx, array=ids)
            pd.array_write(selected_scores, i=step_idx, array=scores)
            pd.assign(new_cache, cache)
            pd.assign(pre_enc_output, enc_output)
            finish_cond = pd.logical_not(pd.is_empty(x=selected_ids))
            pd.logical_and(x=pd.less_than(x=step_idx, y=max_len), y=finish_cond, out=cond)
        finished = pd.beam_search_decode(ids, scores, beam_size=beam_size, end_id=END)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)

        def sentences(sources):
            lengths = [[1] * len(sources), [1] * len(sources)]
            feed = {
                "encoded": encoded[sources],
                "start": fluid.create_lod_tensor(np.full((len(sources), 1), START, "int64"), lengths, None),
                "scores": fluid.create_lod_tensor(np.zeros((len(sources), 1), "float32"), lengths, None),
            }
            found, totals = exe.run(main, feed=feed, fetch_list=list(finished), return_numpy=False)
            outer, inner = found.lod()
            words = np.array(found).ravel().tolist()
            each = [
                [words[inner[i] : inner[i + 1]] for i in range(a, b)]
                for a, b in zip(outer[:-1], outer[1:], strict=True)
            ]
            return each, np.array(totals)

        together, _ = sentences([0, 1, 2])
        assert [sentences([i])[0][0] for i in range(3)] == together
        assert len({str(each) for each in together}) == 3
