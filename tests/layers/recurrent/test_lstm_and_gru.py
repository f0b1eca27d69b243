"""LSTM and GRU: compared with NumPy loops over single rows; `test_goldens.py` covers the plain cases."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.special import expit
from layers.run_program import run
from scipy.special import expit as sigmoid

import fluid
from fluid import errors, layers

LENGTHS = [3, 5, 1, 0]
WIDTH = 4


def words(size, lengths=LENGTHS):
    rows = [np.random.default_rng(i).normal(size=(n, size)).astype("float32") for i, n in enumerate(lengths)]
    return fluid.SequenceBatch.from_rows(rows, "float32")


def spoilt(batch):
    """Return the batch with NaN as padding."""
    return batch.with_data(np.where(batch.mask[..., None], batch.data, np.nan))


def values(*shape, salt=0):
    return np.random.default_rng(salt).normal(size=shape).astype("float32")


def lstm_step(gates, cell, peepholes, clip=None):
    """Return the new output and cell of an LSTM; `gates` holds candidate, input, forget and output, in this order."""
    candidate, into, forget, out = np.split(gates, 4, axis=-1)
    cell = sigmoid(forget + peepholes[1] * cell) * cell + sigmoid(into + peepholes[0] * cell) * np.tanh(candidate)
    cell = np.clip(cell, -clip, clip) if clip else cell
    return sigmoid(out + peepholes[2] * cell) * np.tanh(cell), cell


def order(length, reverse):
    return range(length - 1, -1, -1) if reverse else range(length)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("bias", [None, False])
def test_dynamic_lstm(reverse, bias):
    x, start = words(4 * WIDTH), (values(4, WIDTH), values(4, WIDTH, salt=1))

    def program():
        h, c = layers.data("h", [WIDTH]), layers.data("c", [WIDTH])
        x = layers.data("x", [4 * WIDTH], lod_level=1)
        return layers.dynamic_lstm(x, 4 * WIDTH, h, c, bias_attr=bias, use_peepholes=bias is None, is_reverse=reverse)

    weight = values(WIDTH, 4 * WIDTH, salt=2)
    biases = values(7 * WIDTH, salt=3) * (bias is None)
    arrays = {"lstm_0.w_0": weight} | ({"lstm_0.b_0": biases[None]} if bias is None else {})
    hidden, cell = run(program, {"x": spoilt(x), "h": start[0], "c": start[1]}, arrays=arrays).outputs
    for row, h, c, got_h, got_c in zip(x.rows(), *start, hidden.rows(), cell.rows(), strict=True):
        for t in order(len(row), reverse):
            h, c = lstm_step(row[t] + h @ weight + biases[: 4 * WIDTH], c, np.split(biases[4 * WIDTH :], 3))
            np.testing.assert_allclose(got_h[t], h, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(got_c[t], c, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("peepholes", [False, True])
def test_gradients_of_an_lstm_in_training(peepholes):
    """Compare the gradients with respect to all inputs of the layer with JAX's gradients of a loop over rows."""
    x, starts = words(4 * WIDTH), (values(4, WIDTH), values(4, WIDTH, salt=1))
    weight, biases = values(WIDTH, 4 * WIDTH, salt=2), values(1, (7 if peepholes else 4) * WIDTH, salt=3)
    wanted = [values(4, max(LENGTHS), WIDTH, salt=salt) for salt in (4, 5)]

    def program():
        h, c = layers.data("h", [WIDTH]), layers.data("c", [WIDTH])
        x = layers.data("x", [4 * WIDTH], lod_level=1)
        return layers.dynamic_lstm(x, 4 * WIDTH, h, c, use_peepholes=peepholes)

    traced = fluid.Program(program)

    def by_layer(data, weight, biases, h, c, both):
        arrays = {"lstm_0.w_0": weight, "lstm_0.b_0": biases}
        feed = {"x": x.with_data(data), "h": h, "c": c}
        outputs = traced.apply(arrays, feed, key=None, mode="train").outputs
        kept = x.mask[..., None]
        return sum(jnp.sum(jnp.where(kept, o.data * w, 0)) for o, w in zip(outputs[:both], wanted, strict=False))

    def by_loops(data, weight, biases, h, c, both):
        total = 0.0
        bias, peeps = biases[0, : 4 * WIDTH], jnp.reshape(biases[0, 4 * WIDTH :], (-1, WIDTH))
        p = peeps if peepholes else jnp.zeros((3, WIDTH))
        for row, length in enumerate(LENGTHS):
            state, cell = h[row], c[row]
            for t in range(length):
                g, i, f, o = jnp.split(data[row, t] + state @ weight + bias, 4)
                cell = expit(f + p[1] * cell) * cell + expit(i + p[0] * cell) * jnp.tanh(g)
                state = expit(o + p[2] * cell) * jnp.tanh(cell)
                total += sum(jnp.sum(v * w[row, t]) for v, w in zip((state, cell)[:both], wanted, strict=False))
        return total

    given = [jnp.asarray(v) for v in (x.data, weight, biases, *starts)]
    for both in (1, 2):
        found, expected = (jax.grad(f, argnums=range(5))(*given, both) for f in (by_layer, by_loops))
        for got, want in zip(found, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


def test_lstm_steps_copy_no_sequence_buffer():
    def program():
        x = layers.data("x", [4 * WIDTH], lod_level=1)
        return layers.reduce_sum(layers.dynamic_lstm(x, 4 * WIDTH)[0])

    traced = fluid.Program(program)
    arrays = traced.init(jax.random.key(0))
    feed = {"x": fluid.SequenceBatch(jnp.ones((4, 21, 4 * WIDTH)), jnp.full(4, 21))}
    gradient = jax.jit(jax.grad(lambda arrays: traced.apply(arrays, feed, key=None, mode="train").outputs[0]))
    # The tests disable most optimizations of XLA, so this call enables the optimizations that users have.
    text = gradient.lower(arrays).compile({"xla_backend_optimization_level": 3}).as_text()
    steps = [re.search(rf"^{name} .*?^}}", text, re.M | re.S).group() for name in re.findall(r"body=(%[\w.-]+)", text)]
    assert len(steps) == 2
    for step in steps:
        made = re.findall(r"= f32\[4,2[12],\d+\]\S* ([\w-]+)\(", step)
        assert set(made) <= {"get-tuple-element", "dynamic-update-slice", "fusion"}, made


def test_dynamic_lstmp_clips_and_projects():
    x, wide = words(4 * WIDTH), 2
    arrays = {
        "lstmp_0.w_0": values(wide, 4 * WIDTH),
        "lstmp_0.w_1": 3 * values(WIDTH, wide, salt=1),
        "lstmp_0.b_0": values(1, 7 * WIDTH, salt=2),
    }
    start = values(4, wide, salt=3), values(4, WIDTH, salt=4)

    def program():
        h, c = layers.data("h", [wide]), layers.data("c", [WIDTH])
        x = layers.data("x", [4 * WIDTH], lod_level=1)
        return layers.dynamic_lstmp(
            x, 4 * WIDTH, wide, proj_activation="identity", h_0=h, c_0=c, cell_clip=0.4, proj_clip=0.3
        )

    projection, cell = run(program, {"x": spoilt(x), "h": start[0], "c": start[1]}, arrays=arrays).outputs
    bias = arrays["lstmp_0.b_0"][0]
    for row, h, c, got_h, got_c in zip(x.rows(), *start, projection.rows(), cell.rows(), strict=True):
        for t, step in enumerate(row):
            gates = step + h @ arrays["lstmp_0.w_0"] + bias[: 4 * WIDTH]
            h, c = lstm_step(gates, c, np.split(bias[4 * WIDTH :], 3), clip=0.4)
            h = np.clip(h @ arrays["lstmp_0.w_1"], -0.3, 0.3)
            np.testing.assert_allclose(got_h[t], h, rtol=1e-4, atol=1e-6)
            np.testing.assert_allclose(got_c[t], c, rtol=1e-4, atol=1e-6)
    assert np.isclose(np.abs(np.concatenate(cell.rows())).max(), 0.4)


def gru_step(x, h, flat, origin_mode):
    gates, candidate = flat[: 2 * WIDTH**2].reshape(WIDTH, -1), flat[2 * WIDTH**2 :].reshape(WIDTH, -1)
    update, reset = np.split(sigmoid(x[..., : 2 * WIDTH] + h @ gates), 2, axis=-1)
    new = np.tanh(x[..., 2 * WIDTH :] + (reset * h) @ candidate)
    new_h = update * h + (1 - update) * new if origin_mode else (1 - update) * h + update * new
    return new_h, reset * h, np.concatenate([update, reset, new], axis=-1)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("origin_mode", [False, True])
def test_dynamic_gru(reverse, origin_mode):
    x, start, weight, bias = words(3 * WIDTH), values(4, WIDTH), values(WIDTH, 3 * WIDTH), values(1, 3 * WIDTH, salt=1)

    def program():
        h, x = layers.data("h", [WIDTH]), layers.data("x", [3 * WIDTH], lod_level=1)
        return layers.dynamic_gru(x, WIDTH, is_reverse=reverse, h_0=h, origin_mode=origin_mode)

    arrays = {"gru_0.w_0": weight, "gru_0.b_0": bias}
    (found,) = run(program, {"x": spoilt(x), "h": start}, arrays=arrays).outputs
    for row, h, got in zip(x.rows(), start, found.rows(), strict=True):
        for t in order(len(row), reverse):
            h = gru_step(row[t] + bias[0], h, weight.reshape(-1), origin_mode)[0]
            np.testing.assert_allclose(got[t], h, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("origin_mode", [False, True])
def test_gru_unit(origin_mode):
    feed = {"x": values(4, 3 * WIDTH), "h": values(4, WIDTH, salt=1)}
    arrays = {"gru_unit_0.w_0": values(WIDTH, 3 * WIDTH, salt=2), "gru_unit_0.b_0": values(1, 3 * WIDTH, salt=3)}

    def program():
        x, h = layers.data("x", [3 * WIDTH]), layers.data("h", [WIDTH])
        return layers.gru_unit(x, h, 3 * WIDTH, origin_mode=origin_mode)

    wants = gru_step(feed["x"] + arrays["gru_unit_0.b_0"], feed["h"], arrays["gru_unit_0.w_0"].reshape(-1), origin_mode)
    for got, want in zip(run(program, feed, arrays=arrays).outputs, wants, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_units_use_the_activations_they_are_given():
    def program():
        x, h = layers.data("x", [3 * WIDTH]), layers.data("h", [WIDTH])
        return layers.gru_unit(x, h, 3 * WIDTH, activation="identity", gate_activation=lambda x: x * 0 + 0.5)[0]

    feed = {"x": values(4, 3 * WIDTH), "h": values(4, WIDTH, salt=1)}
    (found,) = run(program, feed, arrays={"gru_unit_0.w_0": np.zeros((WIDTH, 3 * WIDTH), "float32")}).outputs
    np.testing.assert_allclose(found, 0.5 * feed["h"] + 0.5 * feed["x"][:, 2 * WIDTH :], rtol=1e-5)


def cudnn_loop(x, h, c, flat, sizes, directions):
    """Compute `layers.lstm` as documented: `flat` holds the matrices of all layers, and then all biases."""
    at, matrices = 0, []

    def take(*shape):
        nonlocal at
        at += int(np.prod(shape))
        return flat[at - int(np.prod(shape)) : at].reshape(shape)

    for size in sizes:
        for _ in range(directions):
            matrices.append([[take(WIDTH, s) for _ in range(4)] for s in (size, WIDTH)])
    biases = [[take(WIDTH) for _ in range(8)] for _ in matrices]
    assert at == len(flat)
    for number in range(len(sizes)):
        outputs = []
        for way in range(directions):
            k = number * directions + way
            hidden, cell, seen = h[k], c[k], {}
            for t in order(len(x), way == 1):
                i, f, g, o = (
                    x[t] @ w.T + hidden @ r.T + biases[k][j] + biases[k][j + 4]
                    for j, (w, r) in enumerate(zip(*matrices[k], strict=True))
                )
                cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
                hidden = seen[t] = sigmoid(o) * np.tanh(cell)
            h[k], c[k] = hidden, cell
            outputs.append(np.stack([seen[t] for t in range(len(x))]))
        x = np.concatenate(outputs, axis=2)
    return x, h, c


def stacked(directions, **settings):
    def program():
        x = layers.data("x", [5, 4, 2], append_batch_size=False)
        h, c = (layers.data(n, [2 * directions, 4, WIDTH], append_batch_size=False) for n in "hc")
        return layers.lstm(x, h, c, 5, WIDTH, 2, is_bidirec=directions == 2, **settings)

    return program


@pytest.mark.parametrize("directions", [1, 2])
def test_lstm_matches_a_numpy_loop(directions):
    x, h, c = values(5, 4, 2), values(2 * directions, 4, WIDTH), values(2 * directions, 4, WIDTH, salt=1)
    sizes = [2, WIDTH * directions]
    count = fluid.Program(stacked(directions)).parameters["cudnn_lstm_0.w_0"].shape
    flat = 0.5 * values(*count, salt=2)
    found = run(stacked(directions), {"x": x, "h": h, "c": c}, arrays={"cudnn_lstm_0.w_0": flat}).outputs
    for got, want in zip(found, cudnn_loop(x, h.copy(), c.copy(), flat, sizes, directions), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_lstm_drops_between_layers_in_training_only():
    feed = {"x": values(5, 4, 2), "h": values(2, 4, WIDTH), "c": values(2, 4, WIDTH)}
    arrays = {"cudnn_lstm_0.w_0": values(*fluid.Program(stacked(1)).parameters["cudnn_lstm_0.w_0"].shape)}

    def found(mode, key=0, **settings):
        out, last, _ = run(stacked(1, **settings), feed, mode=mode, key=key, arrays=arrays).outputs
        return np.asarray(out), np.asarray(last)

    plain, last = found("train")
    dropped, dropped_last = found("train", dropout_prob=0.5)
    np.testing.assert_array_equal(found("test", dropout_prob=0.5)[0], plain)
    np.testing.assert_array_equal(found("train", dropout_prob=0.5, is_test=True)[0], plain)
    assert np.any(dropped != plain) and np.any(found("train", key=1, dropout_prob=0.5)[0] != dropped)
    # Dropout follows the first layer, so the last state of this layer is unchanged.
    np.testing.assert_array_equal(dropped_last[0], last[0])
    seeded = [found("train", key=key, dropout_prob=0.5, seed=3)[0] for key in (0, 1)]
    np.testing.assert_array_equal(*seeded)


@pytest.mark.parametrize("mode", ["train", "test"])
def test_lstm_drops_as_the_dropout_layer_does(mode):
    """Check that a stack of two layers has the same bits as two single layers with a `dropout` layer between them."""

    def one(x, number, h, c):
        at = slice(number, number + 1)
        return layers.lstm(x, h[at], c[at], 5, WIDTH, 1, default_initializer=constant)[0]

    def by_layers():
        x = layers.data("x", [5, 4, 2], append_batch_size=False)
        h, c = (layers.data(n, [2, 4, WIDTH], append_batch_size=False) for n in "hc")
        between = layers.dropout(one(x, 0, h, c), 0.4, seed=4, dropout_implementation="upscale_in_train")
        return one(between, 1, h, c)

    constant = fluid.initializer.Constant(0.3)
    feed = {"x": values(5, 4, 2), "h": values(2, 4, WIDTH), "c": values(2, 4, WIDTH)}
    stack = stacked(1, dropout_prob=0.4, seed=3, default_initializer=constant)
    got, want = (run(program, feed, mode=mode).outputs[0] for program in (stack, by_layers))
    np.testing.assert_array_equal(got, want)


def test_lstm_with_full_dropout_has_a_finite_gradient():
    with pytest.warns(fluid.errors.FluidWarning, match="drops every number"):
        program = fluid.Program(stacked(1, dropout_prob=1.0))
    arrays = program.init(jax.random.key(0))
    feed = {"x": values(5, 4, 2), "h": values(2, 4, WIDTH), "c": values(2, 4, WIDTH)}
    slopes = jax.grad(lambda arrays: program.apply(arrays, feed, key=jax.random.key(0)).outputs[0].sum())(arrays)
    assert np.isfinite(slopes["cudnn_lstm_0.w_0"]).all() and np.any(slopes["cudnn_lstm_0.w_0"])


@pytest.mark.parametrize(("layer", "inputs", "size"), [(layers.dynamic_lstm, 16, 16), (layers.dynamic_gru, 12, 4)])
def test_padding_reaches_no_gradient(layer, inputs, size):
    x = words(inputs)
    program = fluid.Program(lambda: layer(layers.data("x", [inputs], lod_level=1), size))
    arrays = program.init(jax.random.key(0))

    def loss(arrays, data):
        found = program.apply(arrays, {"x": x.with_data(data)}, key=jax.random.key(0)).outputs[0]
        return sum(row.sum() for row in (found.data[i, :n] for i, n in enumerate(LENGTHS)))

    slopes, spoilt_slopes = (jax.grad(loss, (0, 1))(arrays, data) for data in (x.data, spoilt(x).data))
    for got, want in zip(jax.tree.leaves(spoilt_slopes), jax.tree.leaves(slopes), strict=True):
        assert np.isfinite(got).all() and np.any(got)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, h: layers.dynamic_lstm(x, 10), r"lstm_0\(size=10\): expected 4 times the width of .* size=12"),
        (lambda x, h: layers.dynamic_lstm(h, 12), r"takes a sequence batch \[batch, time, 12\], found an array"),
        (lambda x, h: layers.dynamic_lstm(x, 16), r"found a sequence batch .*fc\(x, size=16\)"),
        (lambda x, h: layers.dynamic_lstm(x, 12, bias_attr=False), "bias_attr=False needs use_peepholes=False"),
        (lambda x, h: layers.dynamic_lstm(x, 12, h_0=x), "takes arrays, found a sequence batch"),
        (lambda x, h: layers.dynamic_lstm(x, 12, h_0=h), r"h_0 is float32\[batch, 12\], expected \[batch, 3\]"),
        (lambda x, h: layers.dynamic_lstmp(x, 12, 2, param_attr=["a", "b", "c"]), "two weights and 3 param_attr"),
        (lambda x, h: layers.dynamic_lstm(x, 2.5), r"lstm_0\(size=2.5\): expected a whole number from 4 on"),
        (lambda x, h: layers.dynamic_lstmp(x, 12, 0), r"lstmp_0\(proj_size=0\): expected a whole number from 1 on"),
        (lambda x, h: layers.dynamic_gru(x, 0), r"gru_0\(size=0\): expected a whole number from 1 on, as in size=1"),
        (lambda x, h: layers.gru_unit(h, h, 13), r"gru_unit_0\(size=13\): expected 3 times the width of .* size=15"),
        (lambda x, h: layers.gru_unit(h, h, 12), r"expected \[batch, 4\]"),
        (lambda x, h: layers.lstm_unit(h, h, h[:, :2]), r"float32\[batch, 12\], expected \[batch, 2\]"),
        (lambda x, h: layers.lstm(h, h, h, 3, 4, 1), r"expected \[time, batch, in\]"),
        (lambda x, h: layers.lstm(h, h, h, 3, 0, 1), r"cudnn_lstm_0\(hidden_size=0\): expected a whole number"),
        (lambda x, h: layers.lstm(h, h, h, 3, 4, True), r"cudnn_lstm_0\(num_layers=True\): expected a whole number"),
        (lambda x, h: layers.lstm(h, h, h, 3, 4, 1, dropout_prob=50), "dropout_prob=50; expected 0 to 1"),
        (lambda x, h: layers.dynamic_lstm(x, 12, gate_activation="sigmoids"), "Did you mean 'sigmoid'"),
    ],
)
def test_bad_arguments_raise_named_errors(call, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: call(layers.data("x", [12], lod_level=1), layers.data("h", [12])))
