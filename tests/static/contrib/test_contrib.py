"""Functions of Fluid's `contrib`: results equal NumPy and program functions."""

import numpy as np
import pytest
from static.both_styles import fresh, scope_value

import fluid as functions
import fluid.static as fluid
from fluid import errors
from fluid.static import layers
from fluid.static.contrib.layers import BasicGRUUnit, BasicLSTMUnit, basic_gru, basic_lstm

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(3, 5, 2)).astype("float32")
LENGTHS = np.array([5, 2, 4])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm_step(x, states, params):
    weight, bias = params
    i, g, f, o = np.split(np.concatenate([x, states[0]], 1) @ weight + bias, 4, axis=1)
    cell = sigmoid(f + 1.0) * states[1] + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(cell), cell]


def gru_step(x, states, params):
    weight, candidate, bias, candidate_bias = params
    r, u = np.split(sigmoid(np.concatenate([x, states[0]], 1) @ weight + bias), 2, axis=1)
    c = np.tanh(np.concatenate([x, r * states[0]], 1) @ candidate + candidate_bias)
    return [u * states[0] + (1 - u) * c]


def by_hand(step, params, init, lengths):
    """Run bidirectional recurrent layers over X in NumPy; index `params` and `init` by layer, then by direction."""
    outputs, last = [], {}
    for way in (0, 1):
        x = X
        for layer in range(len(params)):
            states = init[layer][way]
            out = np.zeros((*X.shape[:2], states[0].shape[1]), "float32")
            for t in range(X.shape[1]) if way == 0 else range(X.shape[1] - 1, -1, -1):
                new = step(x[:, t], states, params[layer][way])
                states = [np.where(t < lengths[:, None], a, b) for a, b in zip(new, states, strict=True)]
                out[:, t] = states[0]
            x, last[layer, way] = out, states
        outputs.append(x)
    return np.concatenate(outputs, 2), [last[layer, way] for layer in range(len(params)) for way in (0, 1)]


@pytest.mark.parametrize(("kind", "batch_first"), [("lstm", True), ("gru", False)])
def test_stacked_layers_equal_steps_by_hand(kind, batch_first):
    states = 2 if kind == "lstm" else 1
    init = RANDOM.normal(size=(states, 4, 3, 4)).astype("float32")
    with fresh() as (main, startup):
        x = layers.data("x", shape=[3, 5, 2] if batch_first else [5, 3, 2], append_batch_size=False)
        given = [layers.data(f"init_{i}", shape=[4, 3, 4], append_batch_size=False) for i in range(states)]
        length = layers.data("length", shape=[3], dtype="int64", append_batch_size=False)
        layer = {"lstm": basic_lstm, "gru": basic_gru}[kind]
        found = layer(x, *given, 4, 2, sequence_length=length, bidirectional=True, batch_first=batch_first)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        params = []
        for i in range(2):
            unit = f"Basic{kind.upper()}Unit_0"
            ends = ["w_0", "b_0"] if kind == "lstm" else ["w_0", "w_1", "b_0", "b_1"]
            names = [[f"basic_{kind}{way}_layers_{i}/{unit}.{end}" for end in ends] for way in ("", "_reverse")]
            params.append([list(map(scope_value, of_way)) for of_way in names])
        feed = {"x": X if batch_first else X.swapaxes(0, 1), "length": LENGTHS}
        results = exe.run(main, feed | {f"init_{i}": init[i] for i in range(states)}, list(found))
    starts = [[list(init[:, 2 * i + way]) for way in (0, 1)] for i in range(2)]
    out, last = by_hand({"lstm": lstm_step, "gru": gru_step}[kind], params, starts, LENGTHS)
    np.testing.assert_allclose(results[0], out if batch_first else out.swapaxes(0, 1), rtol=1e-4, atol=1e-5)
    for i in range(states):
        np.testing.assert_allclose(results[1 + i], [row[i] for row in last], rtol=1e-4, atol=1e-5)


def test_layers_without_states_begin_with_zeros_and_train():
    with fresh() as (main, startup):
        x = layers.data("x", shape=[5, 2])
        attr = fluid.ParamAttr(name="net")
        out, hidden, _ = basic_lstm(x, None, None, 4, num_layers=2, param_attr=attr, dropout_prob=0.5)
        tested = main.clone(for_test=True)
        loss = layers.mean(layers.square(out))
        fluid.optimizer.Adam(0.05).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        names = [v.name for v in main.all_parameters()]
        assert names[::2] == ["net_fw_w_0", "net_fw_w_1"]
        zero = [np.zeros((3, 4), "float32")] * 2
        params = [[[scope_value(n) for n in names[i : i + 2]]] * 2 for i in (0, 2)]
        wanted, last = by_hand(lstm_step, params, [[zero, zero]] * 2, np.full(3, 5))
        found = exe.run(tested, {"x": X}, [out, hidden])
        np.testing.assert_allclose(found[0], wanted[..., :4], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found[1], [last[0][0], last[2][0]], rtol=1e-4, atol=1e-5)
        losses = [float(exe.run(main, {"x": X}, [loss])[0]) for _ in range(10)]
    assert losses[-1] < losses[0]


def test_units_share_parameters_over_calls():
    with fresh() as (main, startup):
        x, h, c = (layers.data(name, shape=[2]) for name in "xhc")
        lstm, gru = BasicLSTMUnit("net", 2), BasicGRUUnit("net", 2)
        first = lstm(x, h, c)
        results = [*lstm(x, *first), gru(x, gru(x, h))]
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        names = [v.name for v in main.all_parameters()]
        params = list(map(scope_value, names))
        feed = {name: RANDOM.normal(size=(3, 2)).astype("float32") for name in "xhc"}
        found = exe.run(main, feed, results)
    assert len(names) == 6 and names[0] == "net/BasicLSTMUnit_0.w_0"
    twice = lstm_step(feed["x"], lstm_step(feed["x"], [feed["h"], feed["c"]], params[:2]), params[:2])
    wanted = [*twice, *gru_step(feed["x"], gru_step(feed["x"], [feed["h"]], params[2:]), params[2:])]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def regression():
    x, y = layers.data("x", shape=[4]), layers.data("y", shape=[1])
    hidden = layers.fc(x, size=8, act="tanh")
    return hidden, layers.mean(layers.square_error_cost(layers.fc(hidden, size=1), y))


def test_decorated_optimizers_train_in_half_precision():
    feed = {"x": RANDOM.normal(size=(8, 4)).astype("float32"), "y": np.ones((8, 1), "float32")}
    trained = []
    for decorate in (lambda optimizer: optimizer, fluid.contrib.mixed_precision.decorate):
        with fresh() as (main, startup):
            hidden, loss = regression()
            optimizer = decorate(fluid.optimizer.SGD(0.1))
            pairs = optimizer.minimize(loss)[1]
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            fetch = [loss, hidden, *([optimizer.get_loss_scaling()] if main.precision else [])]
            found = [exe.run(main, feed, fetch) for _ in range(5)]
            assert len(pairs) == 4 and scope_value("fc_0.w_0").dtype == "float32"
            trained.append(found)
    losses = [[float(results[0]) for results in found] for found in trained]
    # In half precision, the first step overflows at the initial loss scale and changes nothing. So each later loss
    # equals the loss of float32 one step earlier.
    np.testing.assert_allclose(losses[1], [losses[0][0], *losses[0][:-1]], rtol=0.01)
    assert losses[1][0] != losses[0][0]
    assert [results[1].dtype for results in (trained[0][0], trained[1][0])] == ["float32", "float16"]
    assert float(trained[1][0][2]) > 1.0


def test_halves_of_a_decorated_minimize():
    with fresh() as (main, startup):
        _, loss = regression()
        optimizer = fluid.contrib.mixed_precision.decorate(fluid.optimizer.SGD(0.1))
        with pytest.raises(errors.ProgramError, match=r"first optimizer\.minimize"):
            optimizer.get_loss_scaling()
        optimizer.apply_gradients(optimizer.backward(loss)[:1])
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        before = [scope_value("fc_0.w_0"), scope_value("fc_0.b_0")]
        for _ in range(8):  # the first steps may overflow until the loss scale is small enough
            exe.run(main, {"x": np.ones((2, 4), "float32"), "y": np.ones((2, 1), "float32")})
        assert (before[0] != scope_value("fc_0.w_0")).any() and (before[1] == scope_value("fc_0.b_0")).all()

    def program():
        loss = functions.layers.mean(functions.layers.fc(functions.layers.data("x", shape=[1]), size=1))
        fluid.contrib.mixed_precision.decorate(fluid.optimizer.SGD(0.1)).minimize(loss)
        return loss

    with pytest.raises(errors.ProgramError, match='precision="float16"'):
        functions.Program(program)


def test_memory_usage_is_between_arrays_and_peak():
    with fresh() as (main, _):
        _, loss = regression()
        with pytest.raises(errors.ArgumentTypeError, match="optimizer"):
            fluid.contrib.memory_usage(main, batch_size=64)
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
        lower, upper, unit = fluid.contrib.memory_usage(main, batch_size=64)
    parameters = 4 * 8 + 8 + 8 + 1
    assert lower * 1024 == pytest.approx(4 * (2 * parameters + 64 * 5), abs=8)
    assert unit == "KB" and lower < upper < 20 * lower
