"""`RNNCell` and its kinds in `layers.rnn`: compared with NumPy loops and with each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.layer_table import Elman, real
from layers.run_program import run

import fluid
from fluid import errors, layers

WIDTH, SIZE = 3, 2
KINDS = {"gru": layers.GRUCell, "lstm": layers.LSTMCell}
# For each kind of cell: the number of weight matrices, which is also the number of biases, and the number of states.
COUNTS = {"gru": (2, 1), "lstm": (1, 2)}
EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def test_every_cell_is_tested_here():
    public = [getattr(layers, name) for name in layers.__all__]
    cells = {kind for kind in public if isinstance(kind, type) and issubclass(kind, layers.RNNCell)}
    assert cells - {layers.RNNCell} == set(KINDS.values()) and COUNTS.keys() == STEPS.keys() == KINDS.keys()


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru(x, states, w, gate=sigmoid, act=np.tanh):
    """Compute a step of a GRU in NumPy; `w` lists the parameters of the cell in order of creation."""
    (h,) = states
    d = h.shape[-1]
    gates = gate(np.concatenate([x, h], -1) @ w[0] + (w[2] if len(w) > 2 else 0))
    r, u = gates[..., :d], gates[..., d:]
    c = act(np.concatenate([x, r * h], -1) @ w[1] + (w[3] if len(w) > 2 else 0))
    h = u * h + (1 - u) * c
    return h, [h]


def lstm(x, states, w, gate=sigmoid, act=np.tanh, forget_bias=1.0):
    h, c = states
    sums = np.concatenate([x, h], -1) @ w[0] + (w[1] if len(w) > 1 else 0)
    i, g, f, o = np.split(sums, 4, axis=-1)
    c = gate(f + forget_bias) * c + gate(i) * act(g)
    h = gate(o) * act(c)
    return h, [h, c]


STEPS = {"gru": gru, "lstm": lstm}


def by_loop(step, x, starts, lengths, reverse):
    """Return outputs `[batch, time, width]` and last states, computed by `step` one row at a time."""
    outputs, last = [], []
    for row, *states, length in zip(x, *starts, lengths, strict=True):
        said = np.zeros((len(row), WIDTH))
        for t in sorted(range(len(row)), reverse=reverse):
            said[t], new = step(row[t], states)
            states = new if t < length else states
        outputs.append(said)
        last.append(states)
    return np.stack(outputs), [np.stack(each) for each in zip(*last, strict=True)]


def parameters_of(program):
    """Return random values for the parameters of a program: by name, and as a list in order of creation."""
    arrays = {n: real(*s.shape, salt=i) for i, (n, s) in enumerate(program.parameters.items())}
    return arrays, list(arrays.values())


@functools.cache
def looped(kind, reverse, time_major):
    """Return a program that runs a cell over arrays, with initial states as feeds, and the compiled program."""

    def program():
        x, n = layers.data("x", [4, SIZE]), layers.data("n", [1], "int64")
        shapes = KINDS[kind](WIDTH).state_shape  # one state has the shape `[WIDTH]`, several states have a list
        states = [layers.data(name, [WIDTH]) for name in "hc"[: len(shapes)]]
        x = layers.transpose(x, [1, 0, 2]) if time_major else x
        start = states if isinstance(shapes[0], list) else states[0]
        outputs, last = layers.rnn(KINDS[kind](WIDTH), x, start, n, time_major, reverse)
        outputs = layers.transpose(outputs, [1, 0, 2]) if time_major else outputs
        return outputs, *jax.tree.leaves(last)

    known = fluid.Program(program)
    return known, jax.jit(lambda arrays, feed: known.apply(arrays, feed, key=None).outputs)


@EACH_KIND
@settings(deadline=None, max_examples=12)
@given(
    lengths=st.lists(st.integers(0, 4), min_size=3, max_size=3),
    reverse=st.booleans(),
    time_major=st.booleans(),
    seed=st.integers(0, 99),
)
def test_outputs_and_states_match_a_numpy_loop(kind, lengths, reverse, time_major, seed):
    """Check that a recurrent layer has the outputs and final states of a NumPy loop over each row.

    After the end of a row, the states stay unchanged, while the layer still computes outputs.
    """
    program, apply = looped(kind, reverse, time_major)
    arrays, w = parameters_of(program)
    x = real(3, 4, SIZE, salt=seed)
    starts = {name: real(3, WIDTH, salt=(seed, name)) for name in program.feeds if name in ("h", "c")}
    outputs, *last = apply(arrays, {"x": x, "n": np.array(lengths)[:, None], **starts})
    wants = by_loop(functools.partial(STEPS[kind], w=w), x, list(starts.values()), lengths, reverse)
    np.testing.assert_allclose(outputs, wants[0], rtol=1e-4, atol=1e-6)
    for got, want in zip(last, wants[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@EACH_KIND
@pytest.mark.parametrize("reverse", [False, True])
def test_sequences_are_their_rows(kind, reverse):
    """Check that each row of a batch with NaN as padding equals a NumPy loop over this row."""
    lengths = [4, 0, 2]
    rows = [real(n, SIZE, salt=n) for n in lengths]
    batch = fluid.SequenceBatch.from_rows(rows, "float32", time=6)
    batch = batch.with_data(np.where(batch.mask[..., None], batch.data, np.nan))

    def program():
        outputs, last = layers.rnn(KINDS[kind](WIDTH), layers.data("x", [SIZE], lod_level=1), is_reverse=reverse)
        return outputs, *jax.tree.leaves(last)

    known = fluid.Program(program)
    arrays, w = parameters_of(known)
    outputs, *last = run(program, {"x": batch}, arrays=arrays).outputs
    step = functools.partial(STEPS[kind], w=w)
    for i, (row, got) in enumerate(zip(rows, outputs.rows(), strict=True)):
        (want,), states = by_loop(step, row[None], [np.zeros((1, WIDTH))] * len(last), [len(row)], reverse)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
        for state, found in zip(states, last, strict=True):
            np.testing.assert_allclose(found[i], state[0], rtol=1e-4, atol=1e-6)


SETTINGS = [
    ("gru", {"gate_activation": "tanh", "activation": "relu"}, {"gate": np.tanh, "act": lambda x: np.maximum(x, 0)}),
    ("gru", {"gate_activation": jax.nn.relu, "bias_attr": False}, {"gate": lambda x: np.maximum(x, 0)}),
    ("lstm", {"gate_activation": layers.tanh, "activation": jnp.sin}, {"gate": np.tanh, "act": np.sin}),
    ("lstm", {"forget_bias": -0.5, "bias_attr": False}, {"forget_bias": -0.5}),
]


@pytest.mark.parametrize(("kind", "given", "meant"), SETTINGS)
@pytest.mark.parametrize("inside", [False, True])
def test_settings_hold(kind, given, meant, inside):
    """Check that the settings of a recurrent cell apply, if `rnn` runs the cell or a function that calls the cell."""

    def program():
        cell, x = KINDS[kind](WIDTH, **given), layers.data("x", [4, SIZE])
        start = cell.get_initial_states(x, init_value=0.3)
        return layers.rnn((lambda x, h: cell(x, h)) if inside else cell, x, start)[0]

    known = fluid.Program(program)
    arrays, w = parameters_of(known)
    weights, states = COUNTS[kind]
    assert len(w) == weights * (1 if given.get("bias_attr") is False else 2)
    x, starts = real(3, 4, SIZE), [np.full((3, WIDTH), 0.3)] * states
    want, _ = by_loop(functools.partial(STEPS[kind], w=w, **meant), x, starts, [4] * 3, False)
    np.testing.assert_allclose(run(program, {"x": x}, arrays=arrays).outputs[0], want, rtol=1e-4, atol=1e-6)


@EACH_KIND
def test_a_cell_matches_a_function_calling_the_cell(kind):
    """Check that a cell, a function that calls the cell, and a subclass have equal values and gradients.

    For the cell only, `rnn` computes the contribution of all inputs before the loop.
    """

    class Own(KINDS[kind]):
        pass

    def program(cell, wrap):
        x = layers.data("x", [SIZE], lod_level=1)
        made = cell(WIDTH, name="given")
        outputs, last = layers.rnn(wrap(made), x, made.get_initial_states(x))
        return layers.mean(outputs), *jax.tree.leaves(last)

    x = fluid.SequenceBatch.from_rows([real(n, SIZE, salt=n) for n in (3, 1, 5)], "float32")
    found = []
    for cell, wrap in ((KINDS[kind], lambda c: c), (KINDS[kind], lambda c: lambda x, h: c(x, h)), (Own, lambda c: c)):
        known = fluid.Program(functools.partial(program, cell, wrap))
        arrays, _ = parameters_of(known)

        def total(moved, known=known, arrays=arrays):
            given = {"x": x.with_data(moved["x"])}
            return sum(jnp.sum(o) for o in known.apply(arrays | moved, given, key=None).outputs)

        value, slopes = jax.value_and_grad(total)(arrays | {"x": jnp.asarray(x.data)})
        found.append({"value": value} | slopes)
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for name, want in found[0].items():
            np.testing.assert_allclose(other[name], want, rtol=1e-4, atol=1e-6, err_msg=name)


def test_each_cell_has_a_single_parameter_set():
    def program():
        x = layers.data("x", [4, SIZE])
        cell, other = layers.GRUCell(SIZE), layers.GRUCell(SIZE)
        x, _ = layers.rnn(cell, x)
        x, last = layers.rnn(cell, x)
        hidden, _ = cell(last, last)
        return layers.rnn(other, x, hidden)[1]

    wanted = [f"GRUCell/BasicGRUUnit_{n}.{suffix}" for n in (0, 1) for suffix in ("w_0", "w_1", "b_0", "b_1")]
    assert list(fluid.Program(program).parameters) == wanted


def test_names_inside_scopes():
    def program():
        x = layers.data("x", [4, SIZE])
        with fluid.name_scope("encoder"):
            cell = layers.LSTMCell(SIZE)
            outputs, _ = layers.rnn(cell, x)
        with fluid.name_scope("decoder"):
            outputs, _ = layers.rnn(cell, outputs)
            outputs, _ = layers.rnn(layers.GRUCell(SIZE, name="last"), outputs)
            outputs, _ = layers.rnn(layers.GRUCell(SIZE, param_attr="shared", bias_attr=False), outputs)
        return outputs

    known = fluid.Program(program)
    assert list(known.parameters) == [
        "encoder/LSTMCell/BasicLSTMUnit_0.w_0",
        "encoder/LSTMCell/BasicLSTMUnit_0.b_0",
        "decoder/last/BasicGRUUnit_0.w_0",
        "decoder/last/BasicGRUUnit_0.w_1",
        "decoder/last/BasicGRUUnit_0.b_0",
        "decoder/last/BasicGRUUnit_0.b_1",
        "shared_gate",
        "shared_candidate",
    ]
    assert "encoder/rnn_0.tmp_0" in known.values and "decoder/rnn_2.tmp_0" in known.values


def test_settings_of_parameters_reach_them():
    def program():
        attr = fluid.ParamAttr(initializer=fluid.initializer.Constant(0.25), learning_rate=0.5)
        layers.rnn(layers.LSTMCell(WIDTH, attr, fluid.initializer.Constant(2.0)), layers.data("x", [4, SIZE]))
        return layers.rnn(layers.GRUCell(WIDTH, attr, False), layers.data("x", [4, SIZE]))[1]

    known = fluid.Program(program)
    arrays = known.init(jax.random.key(0))
    assert [float(v.flat[0]) for v in map(np.asarray, arrays.values())] == [0.25, 2.0, 0.25, 0.25]
    assert {s.settings.learning_rate for n, s in known.parameters.items() if ".w_" in n} == {0.5}


class Stacked(layers.RNNCell):
    """A cell that stacks an LSTM and a GRU, and also sums its inputs; its states are nested."""

    def __init__(self):
        self.low, self.high = layers.LSTMCell(WIDTH), layers.GRUCell(SIZE)

    state_shape = {"low": [[WIDTH], [-1, WIDTH]], "high": (SIZE,), "sum": [SIZE]}

    def call(self, inputs, states, scale=1.0):
        hidden, low = self.low(inputs, states["low"])
        output, high = self.high(layers.fc(hidden, 4), states["high"])
        total = states["sum"] + scale * inputs
        return {"output": output, "total": total}, {"low": low, "high": high, "sum": total}


def test_cells_of_cells():
    """Check a recurrent cell that contains two other cells: nested states and outputs, parameters, and an argument.

    Each layer in the cell has one set of parameters for all time steps.
    """

    def program(scale):
        x = layers.data("x", [SIZE], lod_level=1)
        outputs, last = layers.rnn(Stacked(), x, scale=scale)
        assert set(last) == {"low", "high", "sum"} and isinstance(last["low"], list)
        return outputs["output"], outputs["total"], last["sum"], last["low"][0]

    known = fluid.Program(functools.partial(program, 2.0))
    kinds = ["LSTMCell/BasicLSTMUnit_0", "fc_0", "GRUCell/BasicGRUUnit_0"]
    assert [n.rpartition(".")[0] for n in known.parameters] == [kinds[0]] * 2 + [kinds[1]] * 2 + [kinds[2]] * 4
    x = fluid.SequenceBatch.from_rows([real(n, SIZE, salt=n) for n in (3, 1)], "float32")
    outputs, totals, last, _ = run(functools.partial(program, 2.0), {"x": x}).outputs
    assert outputs.shape == (2, 3, SIZE)
    for row, got, end in zip(x.rows(), totals.rows(), last, strict=True):
        np.testing.assert_allclose(got, 2 * np.cumsum(row, 0), rtol=1e-5)
        np.testing.assert_allclose(end, 2 * row.sum(0), rtol=1e-5)


def test_inputs_may_be_several():
    class Sum(layers.RNNCell):
        state_shape = [SIZE]

        def call(self, inputs, states):
            total = states + inputs["a"] * inputs["b"]
            return total, total

    def program():
        x = layers.data("x", [4, SIZE])
        return layers.rnn(Sum(), {"a": x, "b": x})[1]

    x = real(3, 4, SIZE)
    np.testing.assert_allclose(run(program, {"x": x}).outputs[0], (x * x).sum(1), rtol=1e-5)


def test_initial_states():
    """Check the shapes and dtypes of initial states; the batch size comes from the reference value."""

    def program():
        x, ids = layers.data("x", [4, SIZE]), layers.data("ids", [1], "int64")
        words = layers.data("words", [SIZE], lod_level=1)
        gru, two = layers.GRUCell(WIDTH).get_initial_states, layers.LSTMCell(WIDTH).get_initial_states
        found = [
            gru(x),
            gru(ids),
            gru([words, x], dtype="int32", batch_dim_idx=1),
            gru(x, batch_dim_idx=1),
            gru(x, shape=[-1, 5, 6]),
            gru(np.zeros((7, 1), "float32"), shape=[]),
            two(x),
            two(x, shape={"a": [1], "b": [[2], (3,)]}, dtype={"a": "int32", "b": ["float32"] * 2}),
        ]
        specs.append(jax.tree.map(layers.base.describe, found))
        return gru(ids, init_value=2.5)

    specs = []
    known = fluid.Program(program)
    assert specs[0] == [
        "float32[batch, 3]",
        "float32[batch, 3]",
        "int32[batch, 3]",
        "float32[4, 3]",
        "float32[batch, 5, 6]",
        "float32[7]",
        ["float32[batch, 3]"] * 2,
        {"a": "int32[batch, 1]", "b": ["float32[batch, 2]", "float32[batch, 3]"]},
    ]
    words = fluid.SequenceBatch(real(2, 1, SIZE), np.array([1, 1]))
    feed = {"x": real(2, 4, SIZE), "ids": np.zeros((2, 1), int), "words": words}
    (outputs,) = known.apply({}, feed, key=None).outputs
    np.testing.assert_array_equal(outputs, np.full((2, WIDTH), 2.5))


class Counter(layers.RNNCell):
    """A cell that counts the steps, and sums their inputs."""

    state_shape = [[1], [SIZE]]
    state_dtype = ["int32", "float32"]

    def call(self, inputs, states):
        count, total = states
        return total, [count + 1, total + inputs]


def test_states_keep_different_dtypes():
    x = real(3, 4, SIZE)
    count, total = run(lambda: layers.rnn(Counter(), layers.data("x", [4, SIZE]))[1], {"x": x}).outputs
    assert count.dtype == "int32" and count.tolist() == [[4]] * 3
    np.testing.assert_allclose(total, x.sum(1), rtol=1e-5)


def test_mixed_precision_goes_through():
    program = fluid.Program(
        lambda: layers.rnn(Stacked(), layers.data("x", [4, SIZE]))[0]["output"], precision="bfloat16"
    )
    assert str(program.outputs[0].dtype) == "bfloat16"
    assert {spec.dtype for spec in program.parameters.values()} == {"float32"}


def test_a_cell_trains_beside_a_frozen_cell():
    """Check training of an LSTM on a frozen GRU: the loss falls, the GRU is unchanged, and a step compiles once."""

    def program():
        x, y = layers.data("x", [SIZE], lod_level=1), layers.data("y", [1])
        low, _ = layers.rnn(layers.GRUCell(WIDTH, fluid.ParamAttr(trainable=False), name="frozen"), x)
        _, (hidden, _) = layers.rnn(layers.LSTMCell(4), low)
        loss = layers.mean(layers.square_error_cost(layers.fc(hidden, 1), y))
        fluid.optimizer.Adam(0.05).minimize(loss)
        return loss

    rows = [real(n, SIZE, salt=n) for n in (3, 1, 5, 2)]
    feed = {"x": rows, "y": np.stack([row.sum(keepdims=True)[0] for row in rows])}
    with fluid.Session(program) as session:
        before = np.asarray(session.scope["frozen/BasicGRUUnit_0.w_0"])
        losses = [float(session.run(program, feed)[0]) for _ in range(60)]
        assert len(session.compilations) == 1
        np.testing.assert_array_equal(session.scope["frozen/BasicGRUUnit_0.w_0"], before)
    assert losses[-1] < 0.05 * losses[0]


@EACH_KIND
def test_an_ineffective_cell_dtype_warns(kind):
    def program(dtype):
        return layers.rnn(KINDS[kind](WIDTH, dtype=dtype), layers.data("x", [4, SIZE]))[0]

    for harmless in (None, "float32", jnp.float32):
        fluid.Program(functools.partial(program, harmless))
    fluid.Program(functools.partial(program, "float32"), precision="bfloat16")
    with pytest.warns(errors.FluidWarning, match="Unit_0: dtype='bfloat16' has no effect.*cast the input"):
        found = fluid.Program(functools.partial(program, "bfloat16"))
    assert {spec.dtype for spec in found.parameters.values()} == {"float32"}


class Wrong(layers.RNNCell):
    def __init__(self, step=None):
        self.step = step

    def call(self, inputs, states):
        return self.step(inputs, states)


def over(cell, start=None, **arguments):
    """Return a program function that runs a recurrent cell over sequences, or over arrays if a shape `x` is given."""

    def program():
        given = dict(arguments)
        x = given.pop("x", None)
        x = layers.data("x", [SIZE], lod_level=1) if x is None else layers.data("x", x)
        return layers.rnn(cell(), x, None if start is None else start(x), **given)[1]

    return program


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (over(lambda: layers.GRUCell(0)), r"GRUCell\(hidden_size=0\): expected a whole number"),
        (over(lambda: layers.LSTMCell("4")), r"LSTMCell\(hidden_size='4'\)"),
        (over(lambda: layers.GRUCell(3, activation="tahn")), "no activation 'tahn'.*'tanh'"),
        (over(lambda: layers.GRUCell(3, param_attr=False)), "GRUCell/BasicGRUUnit_0 cannot do without"),
        (over(lambda: layers.GRUCell(3, name=5)), "name= is a string, found 5"),
        (over(lambda: layers.LSTMCell(3, name="")), "name= is a string, found ''"),
        (over(lambda: layers.GRUCell), r"cell=<class.*GRUCell'>; expected an RNNCell.*GRUCell\(hidden_size"),
        (over(lambda: 3), "cell=3; expected an RNNCell"),
        (over(lambda: layers.RNNCell(), lambda x: jnp.zeros((x.shape[0], 1))), "RNNCell does not say what a step does"),
        (over(lambda: Wrong()), "Wrong has no state_shape.*initial_states="),
        (over(lambda: layers.GRUCell(3), x=[4]), r"BasicGRUUnit_0 was given float32\[batch\]"),
        (over(lambda: layers.GRUCell(3), x=[4, 2, 2]), r"was given float32\[batch, 2, 2\], expected \[batch, in\]"),
        (over(lambda: layers.GRUCell(3), lambda x: jnp.zeros((x.shape[0], 5))), r"\[batch, 5\], expected \[batch, 3\]"),
        (
            over(lambda: layers.LSTMCell(3), lambda x: jnp.zeros((x.shape[0], 3))),
            r"two states and was given \[float",
        ),
        (
            over(lambda: layers.LSTMCell(3), lambda x: [jnp.zeros((x.shape[0], 3))] * 3),
            "expected the hidden state and",
        ),
        (over(lambda: layers.LSTMCell(3), lambda x: [jnp.zeros((x.shape[0], 2))] * 2), r"2\], expected \[batch, 3\]"),
        (over(lambda: layers.GRUCell(3), lambda x: x), "takes arrays, found a sequence batch"),
        (over(lambda: layers.GRUCell(3), sequence_length=np.ones(3)), "beside sequence batches.*leave it out"),
        (
            over(lambda: Wrong(lambda x, h: (x, (h, h))), lambda x: [jnp.zeros((x.shape[0], 1))]),
            r"the states \[float32\[batch, 1\]\] and returned \(\[",
        ),
        (lambda: layers.GRUCell(3).get_initial_states(None), "batch_ref=None, which has no batch size"),
        (lambda: layers.GRUCell(3).get_initial_states(np.ones((2, 2)), shape=[0]), r"shape=0\): expected a whole"),
        (lambda: layers.GRUCell(3).get_initial_states(np.ones((2, 2)), shape="ab"), "has the shape 'ab'; expected a"),
    ],
)
def test_misuse_of_a_cell_is_refused(program, message):
    with pytest.raises(errors.FluidError, match=f"(?s){message}"):
        fluid.Program(program)


def test_unknown_cell_arguments_are_refused():
    with pytest.raises(TypeError, match="unexpected keyword argument 'scale'"):
        fluid.Program(over(lambda: layers.GRUCell(3), scale=2.0))


def test_an_error_names_the_layer_and_the_line():
    with pytest.raises(errors.ArgumentError) as caught:
        fluid.Program(over(lambda: layers.LSTMCell(0)))
    (note,) = caught.value.__notes__
    assert note.startswith("in the layer LSTMCell, called at ") and "test_rnn_cells.py" in note


def test_a_custom_cell_creates_parameters_once():
    assert list(fluid.Program(over(Elman)).parameters) == ["fc_0.w_0", "fc_0.w_1", "fc_0.b_0"]
