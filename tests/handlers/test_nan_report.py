"""Non-finite values in training: training ends before the bad step, keeps finite state, and reports the cause."""

import inspect
import re

import numpy as np
import optax
import pytest
from compile_counts import counted

import fluid
from fluid import errors
from fluid import handlers as H

RNG = np.random.default_rng(0)
X = RNG.uniform(0.5, 2.0, size=(32, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def line_of(function, text):
    """Return the site `FILE:LINE in FUNCTION` of the line in `function` that contains `text`."""
    lines, first = inspect.getsourcelines(function)
    (number,) = [first + i for i, line in enumerate(lines) if text in line]
    return f"{__file__}:{number} in {function.__name__}"


def linear():
    x, y = fluid.layers.data("x", shape=[3]), fluid.layers.data("y", shape=[1])
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))


def with_log():
    x, y = fluid.layers.data("x", shape=[3]), fluid.layers.data("y", shape=[1])
    hidden = fluid.layers.fc(x, size=4)
    logs = fluid.layers.log(x)
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc([hidden, logs], size=1), y))


def run(program, columns, handler, optimizer=None, batch_size=8, num_epochs=2, **options):
    """Train until a NonFiniteError; return the trainer and the error."""
    trainer = fluid.Trainer(program, optimizer or fluid.optimizer.Adam(0.01), **options)
    with pytest.raises(errors.NonFiniteError) as caught:
        trainer.train(fluid.reader.arrays(columns, batch_size=batch_size), num_epochs, handlers=[handler])
    return trainer, caught.value


def trained(program, columns, steps, optimizer=None, batch_size=8):
    """Return the session after `steps` training steps without handlers."""
    trainer = fluid.Trainer(program, optimizer or fluid.optimizer.Adam(0.01))

    def stop(event):
        if isinstance(event, fluid.EndStepEvent) and int(trainer.session.scope.step) == steps:
            trainer.stop()

    if steps:
        trainer.train(fluid.reader.arrays(columns, batch_size=batch_size), num_epochs=9, event_handler=stop)
    return trainer.session


def same(session, other):
    """Return whether two sessions have equal parameters, optimizer state and counters, bit for bit."""
    found, want = session.state(), other.state()
    assert found.keys() == want.keys()
    return all(np.array_equal(found[name], want[name]) for name in want)


@pytest.mark.parametrize("every", [1, 3, "epoch"])
@pytest.mark.parametrize("report", [True, False])
def test_infinite_feed_rows_are_reported(every, report):
    x = X.copy()
    x[[18, 21]] = np.inf
    trainer, error = run(linear, (x, Y), H.TerminateOnNaN(report=report, every=every))
    assert same(trainer.session, trained(linear, (x, Y), 2))
    assert "step 2 of epoch 0" in str(error)
    if not report:
        assert error.report is None and "TerminateOnNaN(report=True)" in str(error)
        return
    found = error.report
    assert (found.epoch, found.step, found.kind, found.name) == (0, 2, "feed", "x")
    assert found.rows == (2, 5) and found.batch == 8 and found.site == line_of(linear, '"x"')
    assert "rows 2, 5 of the 8" in str(error) and "6 inf among 24 numbers float32[8, 3], first at [2, 0]" in str(error)


@pytest.mark.parametrize("every", [1, 5])
def test_log_of_zero_reports_layer_and_rows(every):
    x = X.copy()
    x[[9, 14], [0, 2]] = 0
    trainer, error = run(with_log, (x, Y), H.TerminateOnNaN(report=True, every=every))
    found = error.report
    assert (found.kind, found.name, found.layer) == ("value", "log_0.tmp_0", "log_0")
    assert (found.epoch, found.step, found.rows, found.batch) == (0, 1, (1, 6), 8)
    assert found.site == line_of(with_log, "layers.log")
    assert str(error).splitlines() == [
        "step 1 of epoch 0 is not finite. The first such value is 'log_0.tmp_0' of the layer log_0:",
        f"  made at {found.site}",
        "  holds 2 -inf among 24 numbers float32[8, 3], first at [1, 0]",
        "  because of rows 1, 6 of the 8 of the minibatch",
        "  All named values before it are finite. The parameters are those before this step.",
    ]
    assert same(trainer.session, trained(with_log, (x, Y), 1))


def test_huge_learning_rate_reports_the_update():
    trainer, error = run(linear, (X, Y), H.TerminateOnNaN(report=True), fluid.optimizer.SGD(3e38))
    found = error.report
    assert (found.kind, found.name, found.step) == ("update", "fc_0.w_0", 0)
    assert found.rows == () and found.site == line_of(linear, "layers.fc")
    assert "learning_rate_0 3e+38" in str(error)
    (gradient,) = fluid.Session(linear).run(feed={"x": X[:8], "y": Y[:8]}, fetch=["fc_0.w_0@GRAD"])
    told = float(re.search(r"gradient is at most ([\d.e+]+),", str(error))[1])
    assert told == pytest.approx(float(np.abs(gradient).max()), rel=5e-3)
    assert same(trainer.session, fluid.Trainer(linear, fluid.optimizer.SGD(3e38)).session)
    assert "but fc_0.b_0 and fc_0.w_0 are not finite." in str(
        run(linear, (X, Y), H.TerminateOnNaN(), optax.sgd(3e38))[1]
    )


def test_slowly_overflowing_parameters_report_the_exact_step():
    watching = H.TerminateOnNaN(report=True, every=7)
    trainer, error = run(linear, (X, Y), watching, fluid.optimizer.SGD(50.0), num_epochs=99)
    step = int(trainer.session.scope.step)
    assert step > 5 and (error.report.epoch, error.report.step) == (step // 4, step % 4)
    assert same(trainer.session, trained(linear, (X, Y), step, fluid.optimizer.SGD(50.0)))
    assert error.report.kind in ("value", "gradient", "update")
    assert all(np.isfinite(value).all() for value in trainer.params.values())


def without_slope():
    x, y = fluid.layers.data("x", shape=[3]), fluid.layers.data("y", shape=[1])
    hidden = fluid.layers.fc(x, size=4, bias_attr=False)
    squares = fluid.layers.reduce_sum(fluid.layers.square(hidden), dim=1, keep_dim=True)
    norm = fluid.layers.sqrt(squares)
    return fluid.layers.mean(fluid.layers.square_error_cost(norm, y))


def test_nonfinite_gradient_of_finite_values_is_reported():
    x = X.copy()
    x[12] = 0
    _, error = run(without_slope, (x, Y), H.TerminateOnNaN(report=True))
    found = error.report
    assert found.kind == "gradient" and found.step == 1 and found.rows == (4,)
    assert found.name == "reduce_sum_0.tmp_0" and found.site == line_of(without_slope, "reduce_sum")
    assert "as sqrt(x) at 0" in str(error)


def mixed():
    x, y = fluid.layers.data("x", shape=[3]), fluid.layers.data("y", shape=[1])
    total = fluid.layers.reduce_sum(fluid.layers.square(fluid.layers.square(x)))
    hidden = fluid.layers.fc(x, size=1)
    return fluid.layers.mean(fluid.layers.square_error_cost(hidden, y)) + total * 0.0


def test_bad_row_within_a_batch_sum_is_found():
    """Check that the NaN report finds the bad row in a sum over all rows: it computes parts of the minibatch again."""
    x = X.copy()
    x[19] = 3.5e9  # the fourth power of one column is finite, but the sum over three columns overflows
    _, error = run(mixed, (x, Y), H.TerminateOnNaN(report=True))
    assert error.report.kind == "value" and error.report.name == "reduce_sum_0.tmp_0"
    assert error.report.rows == (3,)


def normalised():
    x, y = fluid.layers.data("x", shape=[3]), fluid.layers.data("y", shape=[1])
    hidden = fluid.layers.batch_norm(fluid.layers.scale(x, 1.0))
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, size=1), y))


def test_overflowing_batch_norm_keeps_finite_statistics():
    x = X.copy()
    x[17, 1] = 3e38  # batch norm computes infinite statistics from this value, so all rows overflow
    trainer, error = run(normalised, (x, Y), H.TerminateOnNaN(report=True))
    assert error.report.kind in ("value", "update") and error.report.step == 2
    assert all(np.isfinite(trainer.params[name]).all() for name in trainer.program.states)


def sequences():
    words = fluid.layers.data("x", shape=[2], lod_level=1)
    y = fluid.layers.data("y", shape=[1])
    pooled = fluid.layers.sequence_pool(fluid.layers.log(words), "sum")
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(pooled, size=1), y))


def test_padding_is_not_blamed():
    rows = [RNG.uniform(0.5, 2, size=(n, 2)).astype("float32") for n in (1, 4, 2, 3, 5, 1, 2, 2)]
    data = [(row, [1.0]) for row in rows]
    trainer = fluid.Trainer(sequences, fluid.optimizer.SGD(0.01))
    trainer.train(fluid.batch(lambda: data, 4), handlers=[H.TerminateOnNaN(report=True)])
    data[6] = (np.zeros((2, 2), "float32"), [1.0])
    with pytest.raises(errors.NonFiniteError) as caught:
        trainer.train(fluid.batch(lambda: data, 4), handlers=[H.TerminateOnNaN(report=True)])
    assert (caught.value.report.name, caught.value.report.rows, caught.value.report.step) == ("log_0.tmp_0", (2,), 1)


def test_the_replay_draws_the_same_random_numbers():
    """Check that a NaN report draws the same dropout mask again, if only the mask decides which rows are non-finite."""
    positive = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0), trainable=True)

    def program():
        x, y = fluid.layers.data("x", shape=[3]), fluid.layers.data("y", shape=[1])
        kept = fluid.layers.dropout(x, 0.4)
        logs = fluid.layers.log(fluid.layers.fc(kept, size=1, param_attr=positive, bias_attr=False))
        return fluid.layers.mean(fluid.layers.square_error_cost(logs, y))

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.0))
    want = []

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent):
            feed = {name: np.asarray(value) for name, value in event.feed.items()}
            copy = fluid.Session(trainer.program.function)
            copy.restore(trainer.session.state())
            (logs,) = copy.run(feed=feed, fetch=["log_0.tmp_0"], mode="train")
            want.append(tuple(np.flatnonzero(~np.isfinite(np.asarray(logs)[:, 0])).tolist()))

    with pytest.raises(errors.NonFiniteError) as caught:
        data = fluid.reader.arrays((X, Y), batch_size=8)
        trainer.train(data, 50, handlers=[H.TerminateOnNaN(report=True)], event_handler=on_event)
    assert caught.value.report.name == "log_0.tmp_0"
    assert caught.value.report.rows == want[-1] != ()


def test_all_bad_rows_are_reported_as_all_rows():
    x = np.zeros((256, 3), "float32")
    _, error = run(with_log, (x, Y.repeat(8, axis=0)), H.TerminateOnNaN(report=True), batch_size=256)
    assert error.report.rows == tuple(range(256))
    assert "all rows: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... of the 256" in str(error)


def test_nan_before_the_first_step_raises():
    trainer = fluid.Trainer(linear, fluid.optimizer.SGD(0.1))
    trainer.session.scope["fc_0.b_0"] = [np.nan]
    with pytest.raises(errors.NonFiniteError, match=r"fc_0.b_0 is not finite before the first step"):
        trainer.train(fluid.reader.arrays((X, Y), batch_size=8), handlers=[H.TerminateOnNaN()])


@pytest.mark.parametrize("shape", [[1], []])
def test_nan_loss_of_either_shape_is_found(shape):
    def program():
        return fluid.layers.reshape(linear(), shape) if shape else linear()

    x = X.copy()
    x[9] = np.nan
    with pytest.warns(errors.FluidWarning, match="feed 'x', sample 1, batch 1: found NaN"):
        trainer, error = run(program, (x, Y), H.TerminateOnNaN())
        expected = trained(program, (x, Y), 1)
    assert "step 1 of epoch 0: the loss is nan." in str(error)
    assert same(trainer.session, expected)


def test_nonfinite_optimizer_state_has_its_checkpoint_name():
    held = optax.GradientTransformation(
        lambda params: {"worst": np.float32(0)},
        lambda updates, state, params=None: (updates, {"worst": state["worst"] - np.inf}),
    )
    trainer, error = run(linear, (X, Y), H.TerminateOnNaN(), optax.chain(held, optax.sgd(0.01)))
    (name,) = [name for name in trainer.session.state() if name.endswith("worst")]
    assert f"the loss is finite, but {name} is not finite." in str(error)


def test_initially_infinite_optimizer_state_raises_nothing():
    best = optax.contrib.reduce_on_plateau(patience=5)
    assert any(np.isinf(leaf).any() for leaf in map(np.asarray, __import__("jax").tree.leaves(best.init({}))))
    held = optax.GradientTransformation(
        lambda params: best.init(params), lambda updates, state, params=None: (updates, state)
    )
    trainer = fluid.Trainer(linear, optax.chain(held, optax.sgd(0.01)))
    trainer.train(fluid.reader.arrays((X, Y), batch_size=8), handlers=[H.TerminateOnNaN()])
    assert int(trainer.session.scope.step) == 4


def test_watching_finite_training_changes_no_bit():
    found = []
    for handlers in ([], [H.TerminateOnNaN(report=True)], [H.TerminateOnNaN(every=3)]):
        trainer = fluid.Trainer(linear, fluid.optimizer.Adam(0.01))
        trainer.train(fluid.reader.arrays((X, Y), batch_size=8), num_epochs=2, handlers=handlers)
        found.append(trainer.session)
    assert same(found[0], found[1]) and same(found[0], found[2])


def test_nothing_is_compiled_after_the_first_epoch():
    handler, trainer = H.TerminateOnNaN(report=True, every=3), fluid.Trainer(linear, fluid.optimizer.Adam(0.01))
    data = fluid.reader.arrays((X, Y), batch_size=8)
    trainer.train(data, num_epochs=2, handlers=[handler])
    with counted() as compiled:
        trainer.train(data, num_epochs=2, handlers=[handler])
    assert compiled == []


def test_training_continues_after_a_nonfinite_step(tmp_path):
    """Check that training can continue from the last finite checkpoint after TerminateOnNaN has stopped a training."""
    x = X.copy()
    x[18] = np.inf
    config = fluid.CheckpointConfig(tmp_path / "saved", step_interval=1)
    trainer, _ = run(linear, (x, Y), H.TerminateOnNaN(), checkpoint_config=config)
    assert sorted(int(p.name) for p in (tmp_path / "saved").iterdir() if p.name.isdigit())[-1] == 2
    trainer.restore()
    trainer.train(fluid.reader.arrays((X, Y), batch_size=8), num_epochs=2, handlers=[H.TerminateOnNaN()])
    assert all(np.isfinite(value).all() for value in trainer.params.values())


@pytest.mark.parametrize("kind, word", [("unknown", "was not found"), ("feed", "No layer"), ("update", "rate")])
def test_every_kind_of_report_has_a_message(kind, word):
    assert word in str(H.NonFiniteReport(1, 2, kind, "name", None, "", ""))


def test_nonfinite_error_is_a_floating_point_error():
    assert issubclass(errors.NonFiniteError, FloatingPointError)


def summed_sequences():
    words, y = fluid.layers.data("x", shape=[2], lod_level=1), fluid.layers.data("y", shape=[1])
    squares = fluid.layers.square(words)
    roots = fluid.layers.sqrt(fluid.layers.fc(squares, size=1, param_attr=ONE, bias_attr=False))
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.sequence_pool(roots, "sum"), y))


ONE = fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))


def test_nonfinite_sequence_gradient_names_its_row():
    rows = [RNG.uniform(0.5, 2, size=(n, 2)).astype("float32") for n in (3, 1, 2, 4)]
    rows[2][1] = 0
    trainer = fluid.Trainer(summed_sequences, fluid.optimizer.SGD(0.01))
    with pytest.raises(errors.NonFiniteError) as caught:
        data = fluid.batch([(row, [1.0]) for row in rows], 4)
        trainer.train(data, handlers=[H.TerminateOnNaN(report=True)])
    found = caught.value.report
    assert (found.kind, found.name, found.rows) == ("gradient", "fc_0.tmp_0", (2,))


# Data for programs with loops: in row 1, the third step contains 0, whose reciprocal is infinite. Row 3 has only two
# steps, so the NaN report must not name the padding of row 3 as the cause.
STEPS = [RNG.uniform(0.5, 2.0, size=(n, 2)).astype("float32") for n in (5, 4, 5, 2)]
DIVIDED = [step.copy() for step in STEPS]
DIVIDED[1][2, 0] = 0


def dynamic_block():
    x, y = fluid.layers.data("x", shape=[2], lod_level=1), fluid.layers.data("y", shape=[1])
    rnn = fluid.layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(x)
        memory = rnn.memory(shape=[4])
        inverse = fluid.layers.reciprocal(word)
        hidden = fluid.layers.fc([inverse, memory], size=4, act="tanh")
        hidden = hidden + fluid.layers.reduce_sum(inverse, dim=1, keep_dim=True)
        rnn.update_memory(memory, hidden)
        rnn.output(hidden)
    last = fluid.layers.fc(fluid.layers.sequence_last_step(rnn()), size=1)
    return fluid.layers.mean(fluid.layers.square_error_cost(last, y))


def function_of_steps():
    x, y = fluid.layers.data("x", shape=[2], lod_level=1), fluid.layers.data("y", shape=[1])
    start = fluid.layers.fill_constant_batch_size_like(y, [-1, 4], "float32", 0.0)

    def cell(word, state):
        inverse = fluid.layers.reciprocal(word)
        state = fluid.layers.fc([inverse, state], size=4, name="mixed")
        return state, state

    _, last = fluid.layers.rnn(cell, x, start)
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(last, size=1), y))


def backwards():
    x, y = fluid.layers.data("x", shape=[2], lod_level=1), fluid.layers.data("y", shape=[1])
    start = fluid.layers.fill_constant_batch_size_like(y, [-1, 2], "float32", 1.0)

    def cell(word, state):
        state = fluid.layers.elementwise_mul(state, fluid.layers.reciprocal(word))
        return state, state

    _, last = fluid.layers.rnn(cell, x, start, is_reverse=True)
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(last, size=1), y))


def of_sequences(program, rows):
    """Train on two minibatches, the second with the given rows; return the report of the NonFiniteError."""
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.001))
    data = [(row, [1.0]) for row in [*STEPS, *rows]]
    with pytest.raises(errors.NonFiniteError) as caught:
        trainer.train(fluid.batch(data, 4), handlers=[H.TerminateOnNaN(report=True)])
    return caught.value.report


def file_and_line(site):
    """Return file and line of a text `file:line in function`; the function may be inside the program function."""
    return site.rpartition(" in ")[0]


@pytest.mark.parametrize("program", [dynamic_block, function_of_steps, backwards])
def test_values_inside_recurrent_blocks_are_named(program):
    found = of_sequences(program, DIVIDED)
    assert (found.kind, found.name, found.layer, found.step) == ("value", "reciprocal_0.tmp_0", "reciprocal_0", 1)
    assert file_and_line(found.site) == file_and_line(line_of(program, "layers.reciprocal"))
    assert found.times == (2,) and found.rows == (1,)
    assert found.outer in ("dynamic_rnn_0.tmp_0", "rnn_0.tmp_0")
    assert "1 inf among 8 numbers float32[4, 2], first at [1, 0]" in str(found)
    assert f"in step 2, counted from 0, of the loop that gives {found.outer!r}" in str(found)


def static_block():
    x, y = fluid.layers.data("x", shape=[5, 3]), fluid.layers.data("y", shape=[1])
    steps = fluid.layers.transpose(x, [1, 0, 2])
    rnn = fluid.layers.StaticRNN()
    with rnn.step():
        word = rnn.step_input(steps)
        memory = rnn.memory(shape=[-1, 3], batch_ref=word)
        hidden = fluid.layers.elementwise_add(memory, fluid.layers.log(word))
        rnn.update_memory(memory, hidden)
        rnn.step_output(hidden)
    last = fluid.layers.reduce_sum(rnn(), dim=0)
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(last, size=1), y))


def while_body():
    x, y = fluid.layers.data("x", shape=[5, 3]), fluid.layers.data("y", shape=[1])

    def body(i, total):
        now = fluid.layers.reduce_sum(fluid.layers.log(x[:, 2]), dim=1, keep_dim=True)
        return i + 1, fluid.layers.cond(fluid.layers.reduce_all(i == 2), lambda: total + now, lambda: total)

    start = fluid.layers.fill_constant([1], "int32", 0)
    zero = fluid.layers.fill_constant_batch_size_like(y, [-1, 1], "float32", 0.0)
    _, total = fluid.layers.while_loop(lambda i, total: fluid.layers.reduce_all(i < 4), body, [start, zero])
    guess = fluid.layers.fc(fluid.layers.reshape(x, [-1, 15]), size=1)
    return fluid.layers.mean(fluid.layers.square_error_cost(guess + fluid.layers.identity(total), y))


def branch():
    x, y = fluid.layers.data("x", shape=[5, 3]), fluid.layers.data("y", shape=[1])
    guess = fluid.layers.fc(fluid.layers.reshape(x, [-1, 15]), size=1)
    positive = fluid.layers.reduce_all(x >= 0)
    chosen = fluid.layers.cond(positive, lambda: guess * fluid.layers.reduce_sum(fluid.layers.log(x)), lambda: guess)
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.identity(chosen), y))


@pytest.mark.parametrize("program, times", [(static_block, (2,)), (while_body, (2,)), (branch, ())])
def test_values_inside_loops_and_branches_are_named(program, times):
    x = RNG.uniform(0.5, 2.0, size=(8, 5, 3)).astype("float32")
    x[6, 2, 1] = 0
    y = np.ones((8, 1), "float32")
    _, error = run(program, (x, y), H.TerminateOnNaN(report=True), fluid.optimizer.SGD(0.001), batch_size=4)
    found = error.report
    assert (found.name, found.step, found.times) == ("log_0.tmp_0", 1, times)
    assert file_and_line(found.site) == file_and_line(line_of(program, "layers.log"))
    assert ("in the branch that gives" in str(found)) == (program is branch)
    if program is static_block:
        assert found.rows == (2,)
