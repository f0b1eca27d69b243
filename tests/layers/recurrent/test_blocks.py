"""Recurrences whose step is any function or block: `rnn`, `DynamicRNN` and `StaticRNN`."""

import concurrent.futures

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.run_program import run

import fluid
from fluid import errors, layers

GOLDENS = [case for case in golden_cases.cases() if any("step_inputs" in call for call in case.spec["calls"])]
LENGTHS = [3, 5, 1, 0]
WIDTH = 4


def words(*lengths, size=3, salt=0):
    rows = [np.random.default_rng(i + salt).normal(size=(n, size)).astype("float32") for i, n in enumerate(lengths)]
    return fluid.SequenceBatch.from_rows(rows, "float32")


def sentence(name="x", size=3):
    return layers.data(name, [size], lod_level=1)


def block(x, step=lambda x, h: layers.fc([x, h], WIDTH, act="tanh"), size=WIDTH):
    """Build a recurrence with a memory, as the block of a `DynamicRNN`."""
    rnn = layers.DynamicRNN()
    with rnn.block():
        now, before = rnn.step_input(x), rnn.memory(shape=[size])
        new = step(now, before)
        rnn.update_memory(before, new)
        rnn.output(new)
    return rnn()


def function(x, step=lambda x, h: layers.fc([x, h], WIDTH, act="tanh"), size=WIDTH):
    """Build a recurrence with a memory by a step function for `layers.rnn`; `block` builds the same recurrence."""
    start = layers.fill_constant_batch_size_like(x, [-1, size], "float32", 0.0)
    return layers.rnn(lambda x, h: (step(x, h),) * 2, x, start)[0]


SPELLINGS = pytest.mark.parametrize("recur", [block, function])


@pytest.mark.parametrize("case", GOLDENS, ids=lambda case: case.id)
def test_a_block_is_a_function(case):
    """Check that a recurrence, written as a block or as a function, has bit-identical outputs and gradients.

    `test_goldens.py` compares the blocks with recorded results of PaddlePaddle Fluid.
    """
    feeds, found = case.feeds(0), []
    arrays = {name: jnp.asarray(value) for name, value in case.arrays("before").items()}
    for functional in (False, True):
        program = fluid.Program(case.program(functional=functional))

        def loss(arrays, program=program):
            outputs = program.apply(arrays, feeds, key=jax.random.key(0), mode="train").outputs
            data = [v.data if isinstance(v, fluid.SequenceBatch) else v for v in outputs]
            return sum(jnp.sum(jnp.sin(v)) for v in data), outputs

        found.append(jax.jit(jax.value_and_grad(loss, has_aux=True))(arrays))
    in_block, in_function = (jax.tree.leaves(each) for each in found)
    assert len(in_block) == len(in_function) > 1
    for got, want in zip(in_block, in_function, strict=True):
        np.testing.assert_array_equal(got, want)


@SPELLINGS
def test_rows_match_a_numpy_loop_despite_padding(recur):
    """Compare each row with a NumPy loop over its steps; the padding after its end is NaN."""
    x = words(*LENGTHS)
    data = np.where(x.mask[..., None], x.data, np.nan)
    applied = run(lambda: recur(sentence()), {"x": x.with_data(data)})
    weights = [np.asarray(applied.values[name]) for name in ("fc_0.w_0", "fc_0.w_1")]
    for row, got in zip(x.rows(), applied.outputs[0].rows(), strict=True):
        state = np.zeros(WIDTH, "float32")
        for step, found in zip(row, got, strict=True):
            state = np.tanh(step @ weights[0] + state @ weights[1])
            np.testing.assert_allclose(found, state, rtol=1e-5, atol=1e-6)


@SPELLINGS
@pytest.mark.parametrize("step", [lambda x, h: h + 1 / x, lambda x, h: h * 0.5 + jnp.log(jnp.abs(x))])
def test_padding_reaches_no_gradient(recur, step):
    """Check that padding changes no gradient of a recurrence, even if its step has no derivative at 0."""
    x = words(*LENGTHS)
    program = fluid.Program(lambda: recur(sentence(), lambda x, h: step(layers.fc(x, WIDTH), h)))
    arrays = program.init(jax.random.key(0))

    def loss(arrays, data):
        (found,) = program.apply(arrays, {"x": x.with_data(data)}, key=jax.random.key(0)).outputs
        return jnp.sum(jnp.where(x.mask[..., None], found.data, 0))

    slopes = [jax.grad(loss)(arrays, np.where(x.mask[..., None], x.data, fill)) for fill in (0.0, np.nan)]
    for name, got in slopes[1].items():
        assert np.isfinite(got).all() and np.any(got)
        np.testing.assert_array_equal(got, slopes[0][name])


def test_last_states_come_from_the_last_valid_step():
    def program():
        x = sentence()
        start = layers.fill_constant_batch_size_like(x, [-1, 3], "float32", 0.5)
        return layers.rnn(lambda x, h: (h + x, h + x), x, start)[1]

    x = words(*LENGTHS)
    last = run(program, {"x": x}).outputs[0]
    np.testing.assert_allclose(last, [0.5 + row.sum(0) for row in x.rows()], rtol=1e-5)


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_rnn_over_arrays(time_major, reverse, lengths):
    x = np.random.default_rng(0).normal(size=(4, 5, 2)).astype("float32")

    def program():
        array = layers.data("x", [5, 2])
        start = layers.fill_constant_batch_size_like(array, [-1, 2], "float32", 1.0)
        array = layers.transpose(array, [1, 0, 2]) if time_major else array
        outputs, last = layers.rnn(
            lambda x, h: (h, h * 0.5 + x),
            array,
            start,
            None if lengths is None else layers.data("n", [1], "int64"),
            time_major=time_major,
            is_reverse=reverse,
        )
        return (layers.transpose(outputs, [1, 0, 2]) if time_major else outputs), last

    given = {} if lengths is None else {"n": np.array(lengths)[:, None]}
    outputs, last = run(program, {"x": x} | given).outputs
    for row, got, end, length in zip(x, outputs, last, lengths or [5] * 4, strict=True):
        state = np.ones(2, "float32")
        for t in sorted(range(length), reverse=reverse):
            np.testing.assert_allclose(got[t], state, rtol=1e-5)
            state = state * 0.5 + row[t]
        np.testing.assert_allclose(end, state, rtol=1e-5)


@SPELLINGS
def test_random_layers_draw_anew_in_each_step(recur):
    def step(x, h):
        return layers.dropout(layers.ones_like(h), 0.5)

    x = words(6, 6, 6)
    first, again = (run(lambda: recur(sentence(), step, 64), {"x": x}).outputs[0].data for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert 0.4 < np.mean(first) < 0.6
    assert len({step.tobytes() for step in np.asarray(first).swapaxes(0, 1)}) == 6


def test_both_spellings_draw_the_same():
    def step(x, h):
        return layers.dropout(layers.ones_like(h), 0.5)

    found = [run(lambda r=r: r(sentence(), step), {"x": words(2, 5)}).outputs[0].data for r in (block, function)]
    np.testing.assert_array_equal(*found)


def nested_block(x):
    """Build a `DynamicRNN` over words, whose block runs a `StaticRNN` of three steps, in the style of 2018."""
    outer = layers.DynamicRNN()
    with outer.block():
        word = outer.step_input(x)
        state = outer.memory(shape=[3], value=0.5)
        inner = layers.StaticRNN()
        with inner.step():
            factor = inner.step_input([1.0, 2.0, 3.0])
            thought = inner.memory(init=state)
            new = layers.elementwise_add(thought * 0.5, word * factor)
            inner.update_memory(thought, new)
            inner.step_output(new)
        last = inner()[-1]
        outer.update_memory(state, last)
        outer.output(last, layers.reduce_sum(last, dim=1))
    return outer()


def test_blocks_inside_blocks():
    x = words(*LENGTHS)
    found, sums = run(lambda: nested_block(sentence()), {"x": x}).outputs
    for row, got, total in zip(x.rows(), found.rows(), sums.rows(), strict=True):
        state = np.full(3, 0.5, "float32")
        for t, word in enumerate(row):
            for factor in (1, 2, 3):
                state = state * 0.5 + word * factor
            np.testing.assert_allclose(got[t], state, rtol=1e-5)
            np.testing.assert_allclose(total[t], state.sum(), rtol=1e-4)


def test_a_block_inside_a_function():
    """Check that layers after a `DynamicRNN` inside the step function of `layers.rnn` get the next free names."""

    def program():
        texts = layers.data("x", [3], lod_level=2)
        start = layers.fill_constant_batch_size_like(texts, [-1, 1], "float32", 0.0)
        return layers.fc(layers.rnn(lambda x, h: (block(x).data[:, -1], h), texts, start)[0], 2)

    assert list(fluid.Program(program).parameters) == ["fc_0.w_0", "fc_0.w_1", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"]


def test_attention_over_a_static_input():
    """Check attention in the block of a DynamicRNN: each step reads all steps of another sequence, a `static_input`."""
    x, memory = words(*LENGTHS), words(2, 4, 3, 1, salt=9)

    def program():
        x, seen = sentence(), sentence("memory")
        rnn = layers.DynamicRNN()
        with rnn.block():
            now, everything = rnn.step_input(x), rnn.static_input(seen)
            scores = jnp.einsum("bd,btd->bt", now, everything.data)
            weights = jax.nn.softmax(scores, where=everything.mask)
            rnn.output(jnp.einsum("bt,btd->bd", weights, everything.data))
        return rnn()

    found = run(program, {"x": x, "memory": memory}).outputs[0]
    for row, keys, got in zip(x.rows(), memory.rows(), found.rows(), strict=True):
        scores = np.exp(row @ keys.T)
        np.testing.assert_allclose(got, scores / scores.sum(1, keepdims=True) @ keys, rtol=1e-4, atol=1e-6)


def classifier():
    ids = layers.data("ids", [1], "int64", lod_level=1)
    rnn = layers.DynamicRNN(name="reader")
    with rnn.block():
        word = layers.embedding(rnn.step_input(ids), [10, 8], is_sparse=True)
        before = rnn.memory(shape=[8])
        hidden = layers.fc([word, before], 8, act="tanh")
        rnn.update_memory(before, hidden)
        rnn.output(hidden)
    prediction = layers.fc(layers.sequence_last_step(rnn()), 2, act="softmax")
    label = layers.data("label", [1], "int64")
    loss = layers.mean(layers.cross_entropy(prediction, label))
    fluid.optimizer.Adam(0.02).minimize(loss)
    return loss


def test_a_block_trains():
    """Check that a block learns whether id 7 comes before id 3, which no single step can decide."""
    random = np.random.default_rng(0)
    rows = [random.permutation(10)[: random.integers(8, 11)] for _ in range(64)]
    rows = [np.unique(np.append(r, [3, 7]), return_index=True) for r in rows]
    rows = [random.permutation(values) for values, _ in rows]
    label = np.array([[list(r).index(7) < list(r).index(3)] for r in rows], "int64")
    ids = fluid.SequenceBatch.from_rows([r[:, None] for r in rows], "int32", time=10)
    with fluid.Session(classifier) as session:
        losses = [float(session.run("classifier", {"ids": ids, "label": label})[0]) for _ in range(150)]
        assert len(session.compilations) == 1
    assert losses[0] > 0.5 and losses[-1] < 0.1


def test_ids_that_a_block_looks_up_are_checked():
    wrong = fluid.SequenceBatch.from_rows([np.array([[1], [10]])], "int32")
    with fluid.Session(classifier) as session, pytest.raises(errors.FeedError, match="ids"):
        session.run("classifier", {"ids": wrong, "label": np.array([[0]])})


def test_mixed_precision_goes_through():
    program = fluid.Program(lambda: block(sentence()), precision="bfloat16")
    assert str(program.outputs[0].dtype) == "bfloat16"
    assert {spec.dtype for spec in program.parameters.values()} == {"float32"}


def test_two_threads_at_once():
    def trace(number):
        return run(lambda: nested_block(sentence()), {"x": words(2, 3, salt=number)}).outputs[0].data

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        together = list(pool.map(trace, range(4)))
    for number, got in enumerate(together):
        np.testing.assert_array_equal(got, trace(number))


def test_an_exception_inside_leaves_no_trace():
    def program():
        rnn = layers.DynamicRNN()
        with rnn.block():
            rnn.memory(init=jnp.zeros((rnn.step_input(sentence()).shape[0], 3)))
            raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        fluid.Program(program)
    assert jax.jit(lambda x: x + 1)(1) == 2
    run(lambda: nested_block(sentence()), {"x": words(2, 3)})


def misuse(act):
    """Return a program function with the block of a `DynamicRNN`, in which the function `act` makes a mistake.

    The arguments of `act` are the DynamicRNN, the current step of the input, the memory, and the whole input.
    """

    def program():
        x = sentence()
        rnn = layers.DynamicRNN()
        with rnn.block():
            now = rnn.step_input(x)
            before = rnn.memory(shape=[3])
            act(rnn, now, before, x)
        return rnn()

    return program


def good(rnn, now, before, x):
    rnn.update_memory(before, before + now)
    rnn.output(before)


def test_the_correct_block_is_accepted():
    fluid.Program(misuse(good))


MISUSES = {
    "is never updated.*update_memory": lambda rnn, now, before, x: rnn.output(now),
    "has no outputs.*rnn.output": lambda rnn, now, before, x: rnn.update_memory(before, now),
    "is updated twice": lambda rnn, now, before, x: [rnn.update_memory(before, now) for _ in "ab"],
    "no memory of this block.*update_memory": lambda rnn, now, before, x: rnn.update_memory(now, before),
    "must keep its shape": lambda rnn, now, before, x: rnn.update_memory(before, layers.fc(now, 5)),
    "became a sequence": lambda rnn, now, before, x: rnn.update_memory(before, x),
    "takes arrays, found a sequence": lambda rnn, now, before, x: rnn.output(x),
    "batch_norm_0.w_1.*feature_norm": lambda rnn, now, before, x: good(rnn, layers.batch_norm(now), before, x),
    "sequence of a step_input is computed inside.*before": lambda rnn, now, before, x: good(
        rnn, rnn.step_input(x * 2), before, x
    ),
    "first value of the memory.*computed inside.*before": lambda rnn, now, before, x: (
        rnn.update_memory(memory := rnn.memory(init=now * 2), memory),
        good(rnn, now, before, x),
    ),
    "needs init=": lambda rnn, now, before, x: rnn.memory(),
    "steps over sequence batches": lambda rnn, now, before, x: rnn.step_input(now),
    "at once": lambda rnn, now, before, x: rnn.step_input(fluid.SequenceBatch(jnp.zeros((2, 9, 1)), jnp.zeros(2))),
    "has one block": lambda rnn, now, before, x: rnn.block().__enter__(),
    "no results yet": lambda rnn, now, before, x: rnn(),
    "is declared inside": lambda rnn, now, before, x: (layers.data("y", [3]), good(rnn, now, before, x)),
    "minimize was called inside": lambda rnn, now, before, x: (
        fluid.optimizer.SGD(0.1).minimize(layers.mean(layers.fc(now, 1))),
        good(rnn, now, before, x),
    ),
    "one row for each": lambda rnn, now, before, x: (good(rnn, now, before, x), rnn.output(now.sum())),
}


@pytest.mark.parametrize("message", MISUSES)
def test_misuse_of_a_block_is_refused(message):
    with pytest.raises(errors.FluidError, match=f"(?s){message}"):
        fluid.Program(misuse(MISUSES[message]))


def test_a_block_without_step_input_is_refused():
    def program():
        rnn = layers.DynamicRNN()
        with rnn.block():
            rnn.output(jnp.zeros((2, 3)))

    with pytest.raises(errors.ProgramError, match="steps over nothing"):
        fluid.Program(program)


@pytest.mark.parametrize("method", ["step_input", "static_input", "memory", "output"])
def test_methods_belong_inside_the_block(method):
    def program():
        getattr(layers.DynamicRNN(), method)(*([] if method == "memory" else [sentence()]))

    with pytest.raises(errors.ProgramError, match=f"{method} belongs inside the block"):
        fluid.Program(program)


@pytest.mark.parametrize("use", [lambda h: layers.fc(h, 2), lambda h: h * 2])
def test_values_from_inside_are_refused_after_the_block(use):
    def program():
        rnn = layers.DynamicRNN()
        x = sentence()
        with rnn.block():
            hidden = layers.fc(rnn.step_input(x), 3)
            rnn.output(hidden)
        return use(hidden)

    with pytest.raises(errors.ProgramError, match=r"outside the loop or block.*rnn\.output"):
        fluid.Program(program)


def over(cell, initial=lambda x: jnp.zeros((x.shape[0], 3)), inputs=lambda x: x):
    def program():
        x = sentence()
        return layers.rnn(cell, inputs(x), initial(x))

    return program


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (over(lambda x, h: h), "returns two things"),
        (over(lambda x, h: (h, (h, h))), "as many new states"),
        (over(lambda x, h: (h, h[:, :2])), "must keep its shape"),
        (over(lambda x, h: (h, h.astype(int))), "must keep its shape"),
        (over(lambda x, h: (words(1), h)), "output of a step is a sequence"),
        (over(lambda x, h: (layers.batch_norm(x), h)), "batch_norm_0.w_1"),
        (over(lambda x, h: (x, h), lambda x: None), "needs initial_states"),
        (over(lambda x, h: (x, h), inputs=lambda x: []), "to step over"),
        (over(lambda x, h: (h, h), inputs=lambda x: [x, x.data]), "all of one kind"),
        (over(lambda x, h: (h, h), inputs=lambda x: jnp.zeros(3)), r"\[batch, time"),
        (over(lambda x, h: (h, h), inputs=lambda x: [x, words(1, 2)]), "at once"),
        (lambda: layers.rnn(lambda x, h: (x, h), np.ones((2, 3)), np.ones(2), np.ones(3)), "one length for each row"),
    ],
)
def test_misuse_of_rnn_is_refused(program, message):
    with pytest.raises(errors.FluidError, match=message) as caught:
        fluid.Program(program)
    assert "in the layer rnn" in "".join(caught.value.__notes__)
