"""Rows 8 to 17 of the requirements of 2017: a Python package, used as a user would use it."""

import jax
import numpy as np
import pytest
from capabilities.processes import python
from line_by_numpy import SIZE, data, train_program

import fluid
from fluid import layers

COLUMNS = data()


def counted(value, calls):
    """Return a copy of `value`; whenever a run computes this copy, an item is appended to `calls`."""

    def note(array):
        calls.append(1)
        return np.asarray(array)

    return layers.py_func(note, value, jax.ShapeDtypeStruct(value.shape, value.dtype))


def test_row_08_a_model_is_topology_scope_and_device():
    """Check that a model consists of a topology (Program), of named arrays (Scope), and of a device (Session)."""
    program = fluid.Program(train_program)
    assert {name: spec.shape for name, spec in program.parameters.items()} == {"guess.w_0": (3, 1), "guess.b_0": (1,)}
    assert list(program.feeds) == ["x", "y"]

    session = fluid.Session(program, place="cpu:0")
    assert sorted(session.scope) == ["guess.b_0", "guess.w_0"]  # no startup program is needed
    assert session.scope["guess.w_0"].devices() == {jax.devices("cpu")[0]}
    session.scope["guess.w_0"] = np.ones((3, 1))
    session.scope["guess.b_0"] = np.array([0.5])
    (guess,) = session.run(program, COLUMNS, fetch=["guess"])
    np.testing.assert_allclose(guess, COLUMNS["x"].sum(1, keepdims=True) + 0.5, rtol=1e-5)
    with pytest.raises(ValueError, match="guess.w_0"):
        session.scope["guess.w_0"] = np.ones((4, 1))
    other = fluid.Session(program)  # a Program owns no arrays, so this Session has other parameters
    assert not np.array_equal(other.scope["guess.w_0"], session.scope["guess.w_0"])


def test_row_09_run_computes_and_caches_the_needed_part():
    """Check that a run computes only the values that its targets need, and that repeated runs compile once."""
    left, right = [], []

    def program():
        x, z = layers.data("x", shape=[3]), layers.data("z", shape=[5])
        a = layers.identity(counted(x * 2.0, left), name="a")
        b = layers.identity(counted(z * 3.0, right), name="b")
        return layers.mean(a), layers.mean(b)

    session = fluid.Session(program)
    for _ in range(3):
        (a,) = session.run(feed={"x": COLUMNS["x"]}, fetch=["a"])  # the value `a` does not depend on the feed `z`
    np.testing.assert_allclose(a, COLUMNS["x"] * 2, rtol=1e-6)
    assert (len(left), len(right)) == (3, 0)
    assert len(session.compilations) == 1
    session.run(feed={"z": np.ones((2, 5))}, fetch=["b"])
    assert (len(left), len(right)) == (3, 1)
    session.run(feed={"x": COLUMNS["x"]}, fetch=["a"])
    assert len(session.compilations) == 2


def test_row_10_value_is_lazy_and_cached():
    """Check that `value("name")` computes a value at its first request, and caches the value until the next feed."""
    calls = []

    def program():
        hidden = layers.identity(counted(layers.data("x", shape=[3]) * 2.0, calls), name="hidden")
        return layers.identity(hidden + 1.0, name="out")

    session = fluid.Session(program)
    session.feed({"x": COLUMNS["x"]})
    assert not calls  # nothing is computed before the first request
    for _ in range(3):
        np.testing.assert_allclose(session.value("hidden"), COLUMNS["x"] * 2, rtol=1e-6)
    assert len(calls) == 1
    np.testing.assert_allclose(session.value("out"), COLUMNS["x"] * 2 + 1, rtol=1e-6)
    before = len(calls)
    session.feed({"x": -COLUMNS["x"]})
    np.testing.assert_allclose(session.value("hidden"), COLUMNS["x"] * -2, rtol=1e-6)
    assert len(calls) == before + 1


def test_row_11_a_parameter_by_name_shape_and_attributes():
    """Create parameters with names, shapes, initial values, and attributes that change their training."""

    def program():
        start = fluid.initializer.Constant(2.0)
        slow = fluid.ParamAttr(name="slow", initializer=start, learning_rate=0.1)
        still = fluid.ParamAttr(name="still", initializer=start, trainable=False)
        decayed = fluid.ParamAttr(name="decayed", initializer=start, regularizer=fluid.regularizer.L2Decay(0.5))
        parts = [layers.create_parameter([3], attr=attr) for attr in (slow, still, decayed)]
        loss = layers.reduce_sum(layers.reduce_mean(layers.data("x", shape=[3]), dim=0) * sum(parts))
        fluid.optimizer.SGD(1.0).minimize(loss)
        return loss

    session = fluid.Session(program)
    assert all((np.asarray(session.scope[name]) == 2.0).all() for name in ("slow", "still", "decayed"))
    session.step({"x": COLUMNS["x"]})
    slope = COLUMNS["x"].mean(axis=0)
    np.testing.assert_allclose(session.scope["slow"], 2 - 0.1 * slope, rtol=1e-5)
    np.testing.assert_allclose(session.scope["still"], np.full(3, 2.0))
    np.testing.assert_allclose(session.scope["decayed"], 2 - (slope + 0.5 * 2), rtol=1e-5)


def test_row_12_layers_are_free_functions():
    """Call layers of fluid and custom layers as functions of values; no net is passed."""

    def scaled(x):  # a custom layer with a parameter and a state
        scale = layers.create_parameter([x.shape[-1]], default_initializer=fluid.initializer.Constant(3.0))
        largest = layers.create_state([1])
        if layers.is_training():
            largest.update(jax.numpy.maximum(largest.value, abs(x).max()))
        return x * scale

    def program():
        loss = layers.mean(scaled(scaled(layers.data("x", shape=[3]))))
        fluid.optimizer.SGD(0.0).minimize(loss)
        return loss

    session = fluid.Session(program)
    (loss,) = session.step({"x": COLUMNS["x"]})
    np.testing.assert_allclose(loss, 9 * COLUMNS["x"].mean(), rtol=1e-5)
    assert session.scope.keys() >= {"create_parameter_0.w_0", "create_parameter_1.w_0"}
    np.testing.assert_allclose(session.scope["create_state_1.w_0"], [3 * abs(COLUMNS["x"]).max()], rtol=1e-6)
    with pytest.raises(fluid.errors.OutsideProgramError, match="fc"):
        layers.fc(COLUMNS["x"], size=1)


def test_row_13_no_device_is_the_default():
    """Check that a Session without `place` uses the default device of JAX."""
    session = fluid.Session(train_program)
    assert session.device == jax.devices()[0]
    session.run(feed=COLUMNS)
    assert session.scope["guess.w_0"].devices() == {jax.devices()[0]}
    with pytest.raises(fluid.errors.DeviceError, match="cpu:0"):
        fluid.Session(train_program, place="tpu:7")


def test_row_13_device_is_bound_late_then_frozen(tmp_path):
    """Check that `place` can change until the first run, and that a later change is an error."""
    python(
        """
        import jax
        import fluid
        from line_by_numpy import data, train_program

        def minimized():
            outputs = train_program()
            fluid.optimizer.SGD(0.1).minimize(outputs["loss"])
            return outputs

        session = fluid.Session(minimized)
        trainer = fluid.Trainer(train_program, fluid.optimizer.SGD(0.1))
        for owner, run, arrays in (
            (session, lambda: session.step(data()), session.scope),
            (trainer, lambda: trainer.train([data()], progress=False), trainer.session.scope),
        ):
            owner.place = "cpu:1"
            owner.place = "cpu:2"
            run()
            assert arrays.arrays["guess.w_0"].devices() == {jax.devices()[2]}
            try:
                owner.place = "cpu:3"
            except fluid.errors.FluidError as error:
                assert "place" in str(error), error
            else:
                raise AssertionError(owner)
            run()
        """,
        tmp_path,
        devices=4,
    )


def test_row_14_parts_of_a_graph_on_several_devices(on_four_devices):
    """Check that devices hold parts of a net: single blocks of `layers.repeat`, or parts of the arrays of one layer."""
    on_four_devices("row_14")


def test_row_14_unlike_layers_run_on_different_devices(tmp_path):
    """Compute layers of a net on different devices; check that the losses equal the losses on one device."""
    python(
        """
        import contextlib
        import jax
        import numpy as np
        import fluid
        from fluid import layers

        nothing = contextlib.nullcontext

        def program(guarded):
            def program():
                x = layers.data("x", shape=[3])
                with fluid.device_guard("cpu:1") if guarded else nothing():
                    hidden = layers.fc(x, size=8, act="tanh", name="body")
                loss = layers.mean(layers.square(layers.fc(hidden, size=1, name="head")))
                fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
                return loss
            return program

        x = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")
        alone, apart = fluid.Session(program(False)), fluid.Session(program(True))
        losses = [[float(s.step({"x": x})[0]) for _ in range(3)] for s in (alone, apart)]
        np.testing.assert_allclose(*losses, rtol=1e-5)
        devices = jax.devices()
        assert apart.scope.arrays["body.w_0"].devices() == {devices[1]}, apart.scope.arrays["body.w_0"].devices()
        assert apart.scope.arrays["head.w_0"].devices() == {devices[0]}
        by_name = fluid.Session(program(False), shardings={"head.*": "cpu:2"})
        np.testing.assert_allclose([float(by_name.step({"x": x})[0]) for _ in range(3)], losses[0], rtol=1e-5)
        assert by_name.scope.arrays["head.w_0"].devices() == {devices[2]}
        """,
        tmp_path,
        devices=4,
    )


def test_row_15_data_parallel_and_model_parallel(on_four_devices):
    """Divide the batch, the model, or both by one argument; compare the trained parameters with NumPy."""
    on_four_devices("row_15")


def test_row_16_blocks_for_recurrence_and_branches():
    """Check that DynamicRNN, StaticRNN, a branch and a loop in a program return the results of plain Python."""

    def program():
        words = layers.data("words", shape=[2], lod_level=1)
        steps = layers.data("steps", shape=[4, 2])
        by_step = layers.transpose(steps, [1, 0, 2])
        rnn = layers.DynamicRNN()
        with rnn.block():
            word = rnn.step_input(words)
            memory = rnn.memory(shape=[2], value=1.0)
            rnn.update_memory(memory, memory * 0.5 + word)
            rnn.output(memory * 0.5 + word)
        last = layers.sequence_last_step(rnn())

        static = layers.StaticRNN()
        with static.step():
            step = static.step_input(by_step)
            before = static.memory(shape=[-1, 2], batch_ref=step)
            after = before * 2.0 + step
            static.update_memory(before, after)
            static.step_output(after)
        branch = layers.cond(layers.reduce_sum(steps) > 0, lambda: last * 10.0, lambda: last * -1.0)
        _, power = layers.while_loop(lambda i, p: i < 5, lambda i, p: (i + 1, p * 2.0), [0, jax.numpy.ones(())])
        return {"last": last, "static": static(), "branch": branch, "power": power}

    random = np.random.default_rng(3)
    rows = [random.normal(size=(length, 2)).astype("float32") for length in (3, 1, 5)]
    steps = random.normal(size=(3, 4, 2)).astype("float32")
    expected = []
    for row in rows:
        memory = np.ones(2)
        for word in row:
            memory = memory * 0.5 + word
        expected.append(memory)

    session = fluid.Session(program)
    for sign in (1, -1):
        steps = abs(steps) * sign
        found = session.run(feed={"words": rows, "steps": steps})
        np.testing.assert_allclose(found["last"], expected, rtol=1e-5)
        np.testing.assert_allclose(found["branch"], np.multiply(expected, 10.0 if sign > 0 else -1.0), rtol=1e-5)
        assert float(found["power"]) == 32
    unrolled = [steps[:, 0]]
    for number in range(1, 4):
        unrolled.append(unrolled[-1] * 2 + steps[:, number])
    np.testing.assert_allclose(found["static"], unrolled, rtol=1e-5)


TRAINER_OF_2018 = """
import paddle
import paddle.fluid as fluid

start = fluid.ParamAttr(name='w', initializer=fluid.initializer.Constant(value=0.0))


def inference_program():
    x = fluid.layers.data(name='x', shape=[3], dtype='float32')
    return fluid.layers.fc(input=x, size=1, act=None, param_attr=start, bias_attr=False)


def train_program():
    y = fluid.layers.data(name='y', shape=[1], dtype='float32')
    y_predict = inference_program()
    loss = fluid.layers.square_error_cost(input=y_predict, label=y)
    return [fluid.layers.mean(loss)]


def optimizer_program():
    return fluid.optimizer.SGD(learning_rate=0.1)


trainer = fluid.Trainer(train_func=train_program, place=fluid.CPUPlace(), optimizer_func=optimizer_program)
losses = []


def event_handler(event):
    if isinstance(event, fluid.EndStepEvent):
        losses.append("%0.5f" % event.metrics[0])
    if isinstance(event, fluid.EndEpochEvent):
        trainer.save_params('params')


trainer.train(reader=paddle.batch(paddle.reader.shuffle(rows, buf_size=500), batch_size=24), num_epochs=3,
              event_handler=event_handler, feed_order=['x', 'y'])
inferencer = fluid.Inferencer(infer_func=inference_program, param_path='params', place=fluid.CPUPlace())
guess = inferencer.infer({'x': xs})[0]
"""

EXECUTOR_OF_2018 = """
import paddle
import paddle.fluid as fluid

start = fluid.ParamAttr(name='w', initializer=fluid.initializer.Constant(value=0.0))
x = fluid.layers.data(name='x', shape=[3], dtype='float32')
y = fluid.layers.data(name='y', shape=[1], dtype='float32')
y_predict = fluid.layers.fc(input=x, size=1, act=None, param_attr=start, bias_attr=False)
avg_cost = fluid.layers.mean(fluid.layers.square_error_cost(input=y_predict, label=y))
fluid.optimizer.SGD(learning_rate=0.1).minimize(avg_cost)
place = fluid.CPUPlace()
exe = fluid.Executor(place)
exe.run(fluid.default_startup_program())
feeder = fluid.DataFeeder(place=place, feed_list=[x, y])
losses = []
for epoch in range(3):
    for batch in paddle.batch(rows, batch_size=24)():
        loss, = exe.run(fluid.default_main_program(), feed=feeder.feed(batch), fetch_list=[avg_cost])
        losses.append("%0.5f" % loss[0])
guess, = exe.run(fluid.default_main_program().clone(for_test=True), feed={'x': xs, 'y': ys}, fetch_list=[y_predict])
"""


@pytest.mark.parametrize("name", ["TRAINER_OF_2018", "EXECUTOR_OF_2018"])
def test_row_17_programs_of_2018_with_the_import_changed(name, in_tmp):
    """Run programs of 2018 for PaddlePaddle Fluid after a change of their imports and of the names in `paddle`."""
    source = globals()[name].replace("import paddle\n", "").replace("paddle.batch", "fluid.batch")
    source = source.replace("paddle.reader", "fluid.reader")
    face = "import fluid" if name.startswith("TRAINER") else "import fluid.static as fluid"
    x, y = COLUMNS["x"], COLUMNS["y"]
    here = {"xs": x, "ys": y, "rows": lambda: zip(x, y, strict=True)}
    exec(source.replace("import paddle.fluid as fluid", face), here)  # noqa: S102

    w, expected = np.zeros((SIZE, 1)), []
    for _ in range(3):
        error = x @ w - y
        expected.append((error**2).mean())
        w = w - 0.1 * 2 * x.T @ error / len(x)
    np.testing.assert_allclose([float(loss) for loss in here["losses"]], expected, atol=2e-5)
    np.testing.assert_allclose(here["guess"], x @ w, rtol=1e-4, atol=1e-5)
