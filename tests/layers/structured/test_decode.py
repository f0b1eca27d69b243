"""`dynamic_decode` with `BasicDecoder`: compared with `layers.rnn`, and with loops in NumPy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.layer_table import Feedback, Halving, real
from layers.run_program import run
from layers.small_decoder import END, IDS, ROWS, START, WIDTH, step, weights

import fluid
from fluid import errors, layers

SIZE = 2


def decoder_of(helper, width=WIDTH, **arguments):
    return layers.BasicDecoder(layers.GRUCell(width), helper, **arguments)


def words(*lengths, size=SIZE):
    return fluid.SequenceBatch.from_rows([real(n, size, salt=n) for n in lengths], "float32")


def test_teacher_forcing_is_a_recurrence():
    """Check that decoding with a TrainingHelper has the outputs, states and gradients of `rnn` over sequences."""

    def program(decode):
        x, h = layers.data("x", [SIZE], lod_level=1), layers.data("h", [WIDTH])
        if decode:
            outputs, last, lengths = layers.dynamic_decode(
                decoder_of(layers.TrainingHelper(x), output_fn=lambda h: layers.fc(h, 5)), h, return_length=True
            )
            assert isinstance(outputs.sample_ids, fluid.SequenceBatch)
            return outputs.cell_outputs, last, outputs.sample_ids, lengths
        outputs, last = layers.rnn(layers.GRUCell(WIDTH), x, h)
        said = layers.fc(outputs, 5)
        return said, last, said.with_data(jnp.argmax(said.data, -1)), said.lengths

    found = []
    x = words(3, 1, 0, 5)
    for decode in (True, False):
        known = fluid.Program(functools.partial(program, decode))
        arrays = known.init(jax.random.key(0))

        def total(moved, known=known):
            given = {"x": x.with_data(moved["x"]), "h": moved["h"]}
            outputs = known.apply(moved, given, key=None).outputs
            return jnp.sum(outputs[0].data ** 2, where=outputs[0].mask[..., None]) + jnp.sum(outputs[1]), outputs

        moved = arrays | {"x": jnp.asarray(x.data), "h": jnp.asarray(real(4, WIDTH))}
        found.append(jax.jit(jax.value_and_grad(total, has_aux=True))(moved))
    (value, outputs), slopes = found[0]
    (want, wants), want_slopes = found[1]
    np.testing.assert_allclose(value, want, rtol=1e-5)
    for got, expected in zip(outputs, wants, strict=True):
        if isinstance(got, fluid.SequenceBatch):
            got, expected = np.concatenate(got.rows()), np.concatenate(expected.rows())
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)
    assert slopes.keys() == want_slopes.keys()
    for name, expected in want_slopes.items():
        np.testing.assert_allclose(slopes[name], expected, rtol=1e-4, atol=1e-6, err_msg=name)


@functools.cache
def adder(impute, bound, time_major):
    """Return a compiled function that runs a decoder on arrays; the decoder's state is the sum of the inputs so far."""

    def program():
        x, n = layers.data("x", [5, SIZE]), layers.data("n", [1], "int64")
        x = layers.transpose(x, [1, 0, 2]) if time_major else x
        decoder = layers.BasicDecoder(lambda x, h: (h + x, h + x), layers.TrainingHelper(x, n, time_major))
        outputs, last, lengths = layers.dynamic_decode(
            decoder, layers.zeros_like(x[0] if time_major else x[:, 0]), bound, time_major, impute, return_length=True
        )
        said = outputs.cell_outputs
        return layers.transpose(said, [1, 0, 2]) if time_major else said, last, lengths

    known = fluid.Program(program)
    return jax.jit(lambda feed: known.apply({}, feed, key=None).outputs)


@settings(deadline=None, max_examples=25)
@given(
    lengths=st.lists(st.integers(0, 5), min_size=3, max_size=3),
    impute=st.booleans(),
    bound=st.sampled_from([None, 0, 2, 9]),
    time_major=st.booleans(),
)
def test_decoding_runs_until_all_rows_finish(lengths, impute, bound, time_major):
    """Check that decoding continues for all rows until the last row finishes.

    With `impute`, a finished row keeps its state. Outputs after the last computed step are zeros.
    """
    x = real(3, 5, SIZE)
    said, last, counts = adder(impute, bound, time_major)({"x": x, "n": np.array(lengths)[:, None]})
    steps = 5 if bound is None else min(5, bound + 1)
    run_steps = min(steps, max(lengths))
    assert said.shape == (3, steps, SIZE)
    assert counts.tolist() == [min(n, run_steps) for n in lengths]
    for row, length, got, end in zip(x, lengths, said, last, strict=True):
        state = np.zeros(SIZE)
        for t in range(steps):
            output = state + row[t] if t < run_steps else np.zeros(SIZE)
            np.testing.assert_allclose(got[t], output, rtol=1e-5, atol=1e-6)
            state = output if t < (min(length, run_steps) if impute else run_steps) else state
        np.testing.assert_allclose(end, state, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("time_major", [False, True])
def test_sequences_are_their_rows(time_major):
    """Check that `dynamic_decode` has equal results for a row alone and for the row in a minibatch padded with NaN."""

    def program():
        x = layers.data("x", [SIZE], lod_level=1)
        outputs, last = layers.dynamic_decode(
            decoder_of(layers.TrainingHelper(x)), max_step_num=3, output_time_major=time_major
        )
        return outputs.cell_outputs, last

    x = words(3, 1, 0, 6)
    spoilt = x.with_data(np.where(x.mask[..., None], x.data, np.nan))
    together, last = run(program, {"x": spoilt}).outputs
    for i, row in enumerate(x.rows()):
        alone, end = run(program, {"x": fluid.SequenceBatch.from_rows([row], "float32", time=7)}).outputs
        np.testing.assert_allclose(end[0], last[i], rtol=1e-5)
        if time_major:
            assert together.shape[:2] == (4, 4) and not together[len(row) :, i].any()
            np.testing.assert_allclose(alone[:, 0], together[:, i], rtol=1e-5)
        else:
            assert len(alone.rows()[0]) == min(4, len(row))
            np.testing.assert_allclose(alone.rows()[0], together.rows()[i], rtol=1e-5)


@functools.cache
def speaker(steps):
    """Return a compiled function that decodes greedily with the net of `small_decoder.py`."""

    def program():
        x, *sizes = weights(0).items()
        w = {name: layers.data(name, value.shape, append_batch_size=False) for name, value in sizes}
        state = layers.data(x[0], [WIDTH])
        starts = layers.fill_constant_batch_size_like(state, [-1], "int64", START)
        decoder = layers.BasicDecoder(
            lambda ids, state: step(ids, state, w), layers.GreedyEmbeddingHelper(lambda ids: ids, starts, END)
        )
        outputs, last, lengths = layers.dynamic_decode(decoder, state, steps - 1, return_length=True)
        return outputs.sample_ids, outputs.cell_outputs, lengths

    known = fluid.Program(program)
    return jax.jit(lambda feed: known.apply({}, feed, key=None, mode="test").outputs)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16))
def test_greedy_decoding_returns_the_best_ids(seed):
    w = weights(seed)
    found = speaker(8)(w)
    for row, (ids, scores, length) in enumerate(zip(*found, strict=True)):
        state, said = w["x"][row], []
        while len(said) < 8 and END not in said:
            wanted, state = step(said[-1] if said else START, state, w, np)
            np.testing.assert_allclose(scores[len(said)], wanted, rtol=1e-3, atol=1e-4)
            said.append(int(np.argmax(wanted)))
        assert ids[:length].tolist() == said


def test_steps_after_the_end_are_not_run():
    """Check that the loop runs only the three steps until all rows end, and that its gradient is correct."""
    numbers = []

    def program():
        x = layers.data("x", [IDS])

        def cell(ids, state):
            jax.debug.callback(lambda n: numbers.append(int(n)), state["number"], ordered=True)
            scores = x + jnp.where(jnp.arange(IDS) == END, 9.0, 0.0) * (state["number"] >= 2)
            return scores, {"number": state["number"] + 1, "total": state["total"] + scores}

        starts = jnp.zeros(x.shape[0], "int32")
        decoder = layers.BasicDecoder(cell, layers.GreedyEmbeddingHelper(lambda ids: ids, starts, END))
        states = {"number": 0, "total": layers.zeros_like(x)}
        outputs, last = layers.dynamic_decode(decoder, states, max_step_num=49)
        return layers.reduce_sum(last["total"] * last["total"]), outputs.sample_ids

    known = fluid.Program(program)
    x = np.array([[3.0, 0, 1, 2], [0, 1, 4, 0]], "float32")
    numbers.clear()
    _, ids = jax.jit(lambda x: known.apply({}, {"x": x}, key=None).outputs)(x)
    jax.block_until_ready(ids)
    jax.effects_barrier()
    assert numbers == [0, 1, 2]
    assert ids[:, :4].tolist() == [[0, 0, 1, 0], [2, 2, 1, 0]] and not ids[:, 3:].any()
    slope = jax.grad(lambda x: known.apply({}, {"x": x}, key=None).outputs[0])(jnp.asarray(x))
    np.testing.assert_allclose(slope, 2 * 3 * (3 * x + np.array([0, 9, 0, 0])), rtol=1e-5)


def sampler(softmax, **arguments):
    """Return a program function that draws 40 ids for each row, all with the same probabilities."""

    def program():
        logits = layers.data("logits", [IDS])
        starts = jnp.zeros(logits.shape[0], "int32")
        helper = layers.SampleEmbeddingHelper(lambda ids: ids, starts, 9, **arguments)
        outputs = layers.softmax if softmax else lambda x: x
        decoder = layers.BasicDecoder(lambda ids, state: (outputs(logits + state), state), helper)
        return layers.dynamic_decode(decoder, layers.zeros_like(logits), max_step_num=39)[0].sample_ids

    return program


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("temperature", [None, 0.5])
def test_sampled_ids_follow_their_probabilities(softmax, temperature):
    logits = np.log(np.array([0.1, 0.2, 0.3, 0.4], "float32"))
    program = sampler(softmax, softmax_temperature=temperature)
    ids = np.asarray(run(program, {"logits": np.tile(logits, (200, 1))}).outputs[0])
    wanted = np.exp(logits / (temperature or 1))
    wanted /= wanted.sum()
    # With 8000 draws, the share of an id has a standard deviation of at most 0.5 / sqrt(8000). The test allows four
    # standard deviations.
    np.testing.assert_allclose(np.bincount(ids.ravel()) / ids.size, wanted, atol=4 * 0.5 / np.sqrt(ids.size))
    follows = np.mean(ids[:, 1:] == ids[:, :-1])
    assert abs(follows - np.sum(wanted**2)) < 0.03, "a step draws as the one before did"
    assert len({column.tobytes() for column in ids.T}) == 40


def test_a_seed_fixes_the_draws():
    feed = {"logits": np.zeros((8, IDS), "float32")}
    for arguments, same in (({}, False), ({"seed": 5}, True)):
        first, again = (run(sampler(False, **arguments), feed, key=key).outputs[0] for key in (1, 2))
        assert bool(np.array_equal(first, again)) == same
    assert not np.array_equal(first, run(sampler(False, seed=6), feed).outputs[0])


class Scheduled(layers.TrainingHelper):
    """A decoding helper: the input of an even step is given; the input of an odd step is ten times the last output."""

    def next_inputs(self, time, outputs, states, sample_ids):
        finished, inputs, states = super().next_inputs(time, outputs, states, sample_ids)
        return finished, layers.where((time + 1) % 2 == 0, inputs, outputs * 10), states


def test_a_custom_helper_chooses_the_next_input():
    def program():
        x = layers.data("x", [4, SIZE])
        decoder = layers.BasicDecoder(lambda x, h: (x + 1, h), Scheduled(x))
        return layers.dynamic_decode(decoder, layers.zeros_like(x[:, 0]))[0].cell_outputs

    x = real(3, 4, SIZE)
    said = run(program, {"x": x}).outputs[0]
    wants = [x[:, 0] + 1, (x[:, 0] + 1) * 10 + 1, x[:, 2] + 1, (x[:, 2] + 1) * 10 + 1]
    np.testing.assert_allclose(said, np.stack(wants, axis=1), rtol=1e-5)


class Doubled(layers.BasicDecoder):
    """A decoder that doubles the next inputs, which its helper (the object that chooses inputs) returns."""

    def step(self, time, inputs, states, **arguments):
        outputs, states, inputs, finished = super().step(time, inputs, states, **arguments)
        return outputs, states, inputs * 2, finished


def test_a_custom_decoder_chooses_the_next_input():
    def program():
        x = layers.data("x", [3, SIZE])
        decoder = Doubled(lambda x, h, scale: (x * scale, h), layers.TrainingHelper(x))
        return layers.dynamic_decode(decoder, layers.zeros_like(x[:, 0]), scale=3.0)[0].cell_outputs

    x = real(2, 3, SIZE)
    np.testing.assert_allclose(run(program, {"x": x}).outputs[0], x * np.array([3, 6, 6])[:, None], rtol=1e-5)


def test_layers_before_and_inside_the_loop_share_parameters():
    """Check that `embed` has the same parameters for the start ids, before the loop, and for ids inside the loop."""
    norms = []

    def program():
        context = layers.data("context", [WIDTH])
        starts = layers.fill_constant_batch_size_like(context, [-1], "int64", 0)

        def embed(ids):
            return layers.fc(layers.batch_norm(fluid.embedding(ids, [IDS, 3])), 3)

        helper = layers.GreedyEmbeddingHelper(embed, starts, END)
        decoder = decoder_of(helper, output_fn=lambda h: layers.fc(layers.fc(h, 3), IDS))
        outputs, _ = layers.dynamic_decode(decoder, context, max_step_num=4)
        again, _ = layers.dynamic_decode(decoder, context, max_step_num=4)
        norms.append(list(fluid.core.current_frame("tests").states))
        return outputs.sample_ids, again.sample_ids

    known = fluid.Program(program)
    first = ["embedding_0.w_0", "batch_norm_0.w_0", "batch_norm_0.b_0", "fc_0.w_0", "fc_0.b_0"]
    assert list(known.parameters)[:5] == first
    assert not any(name.startswith("embedding_2") for name in known.parameters)
    assert sorted(n for n in known.parameters if n.startswith("fc_")) == sorted(
        f"fc_{n}.{s}" for n in range(6) for s in ("w_0", "b_0")
    )
    assert norms[-1] == [f"batch_norm_{n}.w_{k}" for n in (0, 1) for k in (1, 2)]


def test_moving_averages_move_in_each_executed_step():
    def program():
        x, n = layers.data("x", [4, SIZE]), layers.data("n", [1], "int64")
        decoder = layers.BasicDecoder(
            lambda x, h: (layers.batch_norm(x, momentum=0.5, moving_mean_name="mean"), h), layers.TrainingHelper(x, n)
        )
        return layers.dynamic_decode(decoder, layers.zeros_like(x[:, 0]))[0].cell_outputs

    x = real(3, 4, SIZE)
    applied = run(program, {"x": x, "n": np.array([[2], [1], [3]])})
    mean = np.zeros(SIZE)
    for t in range(3):
        mean = 0.5 * mean + 0.5 * x[:, t].mean(0)
    np.testing.assert_allclose(applied.states["mean"], mean, rtol=1e-5)


def test_dropout_draws_anew_in_each_step():
    def program():
        x = layers.data("x", [64])
        helper = layers.GreedyEmbeddingHelper(lambda ids: ids, jnp.zeros(x.shape[0], "int32"), 99)
        decoder = layers.BasicDecoder(lambda ids, h: (layers.dropout(layers.ones_like(h), 0.5), h), helper)
        return layers.dynamic_decode(decoder, x, max_step_num=5)[0].cell_outputs

    masks = np.asarray(run(program, {"x": np.zeros((2, 64), "float32")}).outputs[0])
    assert len({masks[:, t].tobytes() for t in range(6)}) == 6 and 0.4 < masks.mean() < 0.6


def test_a_decoder_inside_a_loop():
    """Check a decoder inside a scan over two contexts: equal contexts have equal results, with one embedding table."""

    def program():
        contexts = layers.data("contexts", [2, WIDTH])

        def one(carry, context):
            starts = jnp.zeros(context.shape[0], "int32")
            helper = layers.GreedyEmbeddingHelper(lambda ids: fluid.embedding(ids, [IDS, 3]), starts, END)
            decoder = decoder_of(helper, output_fn=lambda h: layers.fc(h, IDS))
            return carry, layers.dynamic_decode(decoder, context, max_step_num=3)[0].cell_outputs

        return layers.scan(one, 0, layers.transpose(contexts, [1, 0, 2]))[1]

    known = fluid.Program(program)
    assert [n for n in known.parameters if "embedding" in n] == ["embedding_0.w_0"]
    x = real(3, 2, WIDTH)
    x[:, 1] = x[:, 0]
    first, second = run(program, {"contexts": x}).outputs[0]
    np.testing.assert_array_equal(first, second)


def seq2seq(teach):
    """Return a program function that trains a net to count down, or, if `teach` is False, decodes with the net."""

    def program():
        first = layers.data("first", [1], "int64")
        start = layers.fc(fluid.embedding(first[:, 0], [9, 8], param_attr="first"), 16, param_attr="w", bias_attr="b")
        cell = layers.GRUCell(16, "cell_w", "cell_b")
        out = functools.partial(layers.fc, size=9, param_attr="out_w", bias_attr="out_b")

        def embed(ids):
            return fluid.embedding(ids, [9, 8], param_attr="table")

        if not teach:
            starts = layers.fill_constant_batch_size_like(first, [-1], "int64", 0)
            greedy = layers.BasicDecoder(cell, layers.GreedyEmbeddingHelper(embed, starts, 1), out)
            outputs, _, lengths = layers.dynamic_decode(greedy, start, max_step_num=9, return_length=True)
            beam = layers.BeamSearchDecoder(cell, 0, 1, 3, embed, functools.partial(out, num_flatten_dims=2))
            ids, last = layers.dynamic_decode(beam, start, max_step_num=9)
            return outputs.sample_ids, lengths, ids, last.lengths
        said, following = (layers.data(n, [1], "int64", lod_level=1) for n in ("said", "following"))
        helper = layers.TrainingHelper(layers.embedding(said, [9, 8], param_attr="table"))
        outputs, _ = layers.dynamic_decode(layers.BasicDecoder(cell, helper, out), start)
        loss = layers.mean(layers.softmax_with_cross_entropy(outputs.cell_outputs, following))
        fluid.optimizer.Adam(0.05).minimize(loss)
        return loss

    return program


def test_decoders_reproduce_the_taught_sequences():
    teach, say = seq2seq(True), seq2seq(False)
    teach.__name__, say.__name__ = "teach", "say"
    first = np.arange(2, 9)[:, None]
    following = [np.arange(n - 1, 0, -1)[:, None] for n in range(2, 9)]
    said = [np.concatenate([[[0]], row[:-1]]) for row in following]
    with fluid.Session(teach, say) as session:
        assert set(session.programs["say"].parameters) == set(session.programs["teach"].parameters)
        for _ in range(80):
            session.run(teach, {"first": first, "said": said, "following": following})
        greedy, lengths, beams, beam_lengths = session.run(say, {"first": first})
    for row, want in enumerate(following):
        assert greedy[row, : lengths[row]].tolist() == want[:, 0].tolist()
        assert beams[row, : beam_lengths[row, 0], 0].tolist() == want[:, 0].tolist()


class Broken(Halving):
    """A decoder in which `initialize` or `step` returns a wrong value."""

    def __init__(self, **wrong):
        self.wrong = wrong

    def initialize(self, inits):
        return self.wrong["start"](inits) if "start" in self.wrong else super().initialize(inits)

    def step(self, time, inputs, states):
        result = super().step(time, inputs, states)
        return self.wrong["then"](*result) if "then" in self.wrong else result


def decoding(decoder, inits=lambda x: x, steps=3, **arguments):
    def program():
        x = layers.data("x", [3])
        return jax.tree.leaves(layers.dynamic_decode(decoder(x), inits(x), steps, **arguments))

    return program


def greedy(x, starts=None, cell=lambda i, h: (h, h), end=1, embed=lambda ids: ids):
    helper = layers.GreedyEmbeddingHelper(embed, jnp.zeros(x.shape[0], int) if starts is None else starts, end)
    return layers.BasicDecoder(cell, helper)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (decoding(lambda x: Halving(), steps=None), "max_step_num=None.*max_step_num=50"),
        (decoding(lambda x: Halving(), steps=-1), r"max_step_num=-1\): expected a whole number from 0"),
        (decoding(lambda x: layers.GRUCell(3)), "expected a Decoder, as in"),
        (decoding(lambda x: layers.Decoder()), "Decoder lacks a method.*def initialize"),
        (decoding(lambda x: Broken(start=lambda x: x)), "Broken.initialize returned .*three things"),
        (decoding(lambda x: Broken(start=lambda x: (x, x, x))), r"finished is float32\[batch, 3\], expected one bool"),
        (decoding(lambda x: Broken(then=lambda *r: r[:3])), "Broken.step returned tuple; it returns four things"),
        (
            decoding(lambda x: Broken(then=lambda o, s, i, f: (o, s, i[:, :2], f))),
            "one of the inputs starts as",
        ),
        (
            decoding(lambda x: Broken(then=lambda o, s, i, f: (o, s, (i, i), f))),
            r"the inputs float32\[batch, 3\] and",
        ),
        (decoding(lambda x: Broken(then=lambda o, s, i, f: (o, [o], i, f))), r"the states \(\) and returned \[float32"),
        (decoding(lambda x: Broken(then=lambda o, s, i, f: (o, s, i, f[:1]))), r"finished is bool\[1\], expected one"),
        (decoding(lambda x: Broken(then=lambda o, s, i, f: (words(1), s, i, f))), "output of a step is a sequence"),
        (decoding(greedy, lambda x: None), "by the outputs of the cell, which are None; expected scores"),
        (
            decoding(lambda x: greedy(x, cell=lambda i, h: ((h, h), h))),
            r"float32\[batch, 3\], float32.*expected",
        ),
        (decoding(lambda x: greedy(x, cell=layers.GRUCell(3), embed=lambda i: x), lambda x: x[:, :2]), r"batch, 3\]"),
        (decoding(lambda x: greedy(x, cell=lambda i, h: h)), r"BasicDecoder: cell\(x, states\) returned"),
        (decoding(lambda x: greedy(x, cell=lambda i, h: (h, [h]))), r"the states float32\[batch, 3\] and returned \["),
        (decoding(lambda x: greedy(x, cell=layers.GRUCell)), "expected an RNNCell"),
        (decoding(lambda x: greedy(x, starts=x)), "start_tokens are integers"),
        (
            decoding(lambda x: greedy(x, starts=np.zeros((2, 2), int))),
            r"is int32\[2, 2\]; expected one integer",
        ),
        (decoding(lambda x: greedy(x, starts=0)), r"start_tokens is int32\[\]; expected one integer for each row"),
        (decoding(lambda x: greedy(x, end=-1)), r"GreedyEmbeddingHelper\(end_token=-1\)"),
        (decoding(lambda x: layers.BasicDecoder(layers.GRUCell(3), 5)), "helper=5; expected a DecodeHelper"),
        (decoding(lambda x: decoder_of(layers.DecodeHelper())), "DecodeHelper lacks a method.*def initialize"),
        (decoding(lambda x: decoder_of(layers.TrainingHelper(x[:, 0]))), r"TrainingHelper takes arrays \[batch, time"),
        (decoding(lambda x: decoder_of(layers.TrainingHelper(x, np.ones(29)))), "TrainingHelper: sequence_length is"),
        (
            decoding(lambda x: layers.SampleEmbeddingHelper(lambda i: i, jnp.zeros(2, int), 1, softmax_temperature=0)),
            r"SampleEmbeddingHelper\(softmax_temperature=0\): expected a positive",
        ),
    ],
)
def test_misuse_is_refused(program, message):
    with pytest.raises(errors.FluidError, match=f"(?s){message}"):
        fluid.Program(program)


def test_missing_methods_of_subclasses_are_named():
    class Half(layers.Decoder):
        def initialize(self, inits):
            return inits, (), inits[:, 0] > 0

    with pytest.raises(errors.ProgramError, match="Half lacks a method of a Decoder; define it: def step"):
        fluid.Program(decoding(lambda x: Half()))
    for method in ("sample", "next_inputs"):
        part = type("Part", (Feedback,), {method: getattr(layers.DecodeHelper, method)})
        with pytest.raises(errors.ProgramError, match=f"Part lacks a method of a DecodeHelper.*def {method}"):
            fluid.Program(decoding(lambda x, part=part: decoder_of(part(x), 3)))


def test_mixed_precision_goes_through():
    def program():
        x = layers.data("x", [SIZE], lod_level=1)
        outputs, last = layers.dynamic_decode(decoder_of(layers.TrainingHelper(x)))
        return outputs.cell_outputs, last

    program = fluid.Program(program, precision="bfloat16")
    assert [str(o.dtype) for o in program.outputs] == ["bfloat16"] * 2
    assert {spec.dtype for spec in program.parameters.values()} == {"float32"}


def test_initially_finished_rows_take_no_step():
    def program():
        return layers.dynamic_decode(
            Broken(start=lambda x: (x, (), x[:, 0] > 0)), layers.data("x", [3]), 4, return_length=True
        )[::2]

    x = real(ROWS, 3)
    outputs, lengths = run(program, {"x": np.abs(x)}).outputs
    assert not outputs.any() and not lengths.any()
    outputs, lengths = run(program, {"x": x * [[1], [-1], [1]]}).outputs
    assert outputs.any() and outputs.shape == (ROWS, 5, 3)
