"""Rows 37 to 52 of the requirements of 2017: a simple API, used as a user would use it."""

import ast
import inspect
import os
import pathlib
import subprocess
import sys

import line_by_numpy
import numpy as np
import optax
import pytest
from line_by_numpy import assert_params, data, descend, guess_of, inference_program, minibatches, train_program

import fluid
from fluid import layers

COLUMNS = data()
HELD_OUT = data(rows=10, seed=1)
SGD = fluid.optimizer.SGD(0.1)
# fluid warns about a number of processes only once, so each test uses another number.
NUMBERS = iter(range(2, 100))


def test_row_37_no_executor_no_startup_no_backward():
    """Train with only a function, an optimizer and data; names such as Executor do not exist in fluid."""
    source = ast.walk(ast.parse(inspect.getsource(line_by_numpy)))
    used = {node.attr for node in source if isinstance(node, ast.Attribute)}
    assert not used & {"Executor", "Program", "Session", "minimize", "default_startup_program", "append_backward"}
    for hidden in ("Executor", "default_startup_program", "default_main_program", "append_backward"):
        assert hidden not in dir(fluid)
        with pytest.raises(AttributeError, match="Session|Trainer|static"):
            getattr(fluid, hidden)
    trainer = fluid.Trainer(train_program, SGD)
    before = dict(trainer.params)
    trainer.train(minibatches(COLUMNS), 2, progress=False)
    assert_params(trainer.params, descend(before, minibatches(COLUMNS), 0.1, epochs=2)[0])


def test_row_38_train_is_a_single_function():
    """Train a plain function by a single call, `fluid.train(F, reader, ...)`."""
    trainer = fluid.train(train_program, minibatches(COLUMNS), 3, optimizer=SGD)
    before = fluid.Session(train_program).params()
    assert_params(trainer.params, descend(before, minibatches(COLUMNS), 0.1, epochs=3)[0])
    steps = []

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent):
            steps.append(event.step)

    scale = 2.0
    fluid.train(
        lambda: layers.mean(layers.square(layers.fc(layers.data("x", shape=[3]), size=1) * scale)),
        [[(row,) for row in COLUMNS["x"]]],
        optimizer=SGD,
        event_handler=on_event,
        feed_order=["x"],
    )
    assert steps == [0]


def test_row_39_test_programs_are_derived():
    """Check that one function is the program for training, testing and inference, without `Program.clone`."""

    def program():
        dropped = layers.dropout(layers.data("x", shape=[3]), 0.5, dropout_implementation="upscale_in_train")
        normal = layers.batch_norm(layers.identity(dropped, name="dropped"), name="bn")
        guess = layers.fc(normal, size=1, name="guess")
        return {"loss": layers.mean(layers.square_error_cost(guess, layers.data("y", shape=[1]))), "guess": guess}

    trainer = fluid.Trainer(program, SGD)
    (in_training,) = trainer.run(COLUMNS, fetch=["dropped"], mode="train")
    (in_test,) = trainer.run(COLUMNS, fetch=["dropped"])
    np.testing.assert_array_equal(in_test, COLUMNS["x"])
    ratio = np.asarray(in_training) / COLUMNS["x"]
    assert set(np.unique(ratio.round(3))) == {0.0, 2.0}
    trainer.train(minibatches(COLUMNS), 2, progress=False)
    p = {name: np.asarray(value) for name, value in trainer.params.items()}
    first, second = (trainer.test(minibatches(COLUMNS, 5))["loss"] for _ in range(2))
    assert first == second
    normal = (COLUMNS["x"] - p["bn.w_1"]) / np.sqrt(p["bn.w_2"] + 1e-5) * p["bn.w_0"] + p["bn.b_0"]
    expected = ((normal @ p["guess.w_0"] + p["guess.b_0"] - COLUMNS["y"]) ** 2).mean()
    np.testing.assert_allclose(first, expected, rtol=1e-4)
    assert all(np.array_equal(p[name], value) for name, value in trainer.params.items())


def test_row_40_events_are_typed_and_bring_metrics():
    """Check that each event has a class, the position in the training and the metrics of the program."""
    told = []

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent):
            told.append(float("%f" % event.metrics[0]))
            assert np.array(event.metrics["guess"]).shape == (8, 1)
        elif isinstance(event, fluid.EndEpochEvent):
            told.append(float(event.metrics["loss"]))

    trainer = fluid.Trainer(train_program, SGD)
    before = dict(trainer.params)
    trainer.train(minibatches(COLUMNS), 2, on_event, progress=False)
    losses = descend(before, minibatches(COLUMNS), 0.1, epochs=2)[1]
    expected = [*losses[:3], np.mean(losses[:3]), *losses[3:], np.mean(losses[3:])]
    np.testing.assert_allclose(told, expected, rtol=1e-4, atol=1e-6)


def test_row_41_test_inside_a_handler():
    """Test inside a handler by `trainer.test(reader)`, exactly and without an effect on the training."""

    def trained(test):
        losses, trainer = [], fluid.Trainer(dropped, fluid.optimizer.Adam(0.05))

        def on_event(event):
            if test and isinstance(event, fluid.EndStepEvent):
                loss = trainer.test(minibatches(HELD_OUT, 3))["loss"]  # minibatches of 3, 3, 3 and 1
                p = trainer.params
                guess = guess_of(p, HELD_OUT["x"])
                losses.append((float(loss), ((guess - HELD_OUT["y"]) ** 2).mean()))

        trainer.train(minibatches(COLUMNS), 2, on_event, progress=False)
        return trainer.params, losses

    def dropped():
        x = layers.dropout(layers.data("x", shape=[3]), 0.3, dropout_implementation="upscale_in_train")
        guess = layers.fc(x, size=1, name="guess")
        return {"loss": layers.mean(layers.square_error_cost(guess, layers.data("y", shape=[1])))}

    (alone, _), (tested, losses) = trained(False), trained(True)
    assert all(np.array_equal(alone[name], value) for name, value in tested.items())
    assert len(losses) == 6
    np.testing.assert_allclose([found for found, _ in losses], [loss for _, loss in losses], rtol=1e-4)


def test_row_42_an_inferencer_takes_function_and_parameters(in_tmp):
    """Check that `Inferencer(infer_func, param_path).infer({...})` returns NumPy arrays for any number of rows."""
    trainer = fluid.Trainer(train_program, SGD)
    trainer.train(minibatches(COLUMNS), progress=False)
    trainer.save_params("line.params")
    inferencer = fluid.Inferencer(inference_program, "line.params")
    for rows in (1, 7, 24):
        (guess,) = inferencer.infer({"x": COLUMNS["x"][:rows]})
        assert type(guess) is np.ndarray
        expected = guess_of(trainer.params, COLUMNS["x"][:rows])
        np.testing.assert_allclose(guess, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(fluid.errors.ParameterError, match="other.w_0"):
        fluid.Inferencer(lambda: layers.fc(layers.data("x", shape=[3]), size=1, name="other"), "line.params")


def test_row_43_the_train_program_calls_the_inference_program(in_tmp):
    """Check that trained parameters fit the inference function, which the training function calls."""

    def net():
        return layers.fc(layers.fc(layers.data("x", shape=[3]), size=4, act="tanh"), size=1)

    def training():
        label = layers.data("y", shape=[1])
        return layers.mean(layers.square_error_cost(net(), label))

    for cell in range(2):  # a notebook cell may run twice
        trainer = fluid.Trainer(training, SGD)
        trainer.train(minibatches(COLUMNS), feed_order=["x", "y"], progress=False)
        trainer.save_params(f"{cell}.params")
        p = {name: np.asarray(value) for name, value in trainer.params.items()}
        (guess,) = fluid.Inferencer(net, f"{cell}.params").infer({"x": COLUMNS["x"]})
        hidden = np.tanh(COLUMNS["x"] @ p["fc_0.w_0"] + p["fc_0.b_0"])
        np.testing.assert_allclose(guess, hidden @ p["fc_1.w_0"] + p["fc_1.b_0"], rtol=1e-4, atol=1e-5)


def test_row_44_warm_start_and_shared_parameters(in_tmp):
    """Start a training with saved parameters, and pass its parameters to an Inferencer without a file."""
    first = fluid.Trainer(train_program, SGD)
    first.train(minibatches(COLUMNS), progress=False)
    first.save_params("line.params")
    second = fluid.Trainer(train_program, optimizer=SGD, param_path="line.params", seed=8)
    handed = dict(first.params)
    assert all(np.array_equal(second.params[name], value) for name, value in handed.items())
    inferencer = fluid.Inferencer(inference_program, params=second.params)
    second.train(minibatches(COLUMNS), progress=False)
    assert_params(second.params, descend(handed, minibatches(COLUMNS), 0.1)[0])
    expected = guess_of(handed, COLUMNS["x"])
    np.testing.assert_allclose(inferencer.infer({"x": COLUMNS["x"]})[0], expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(fluid.errors.FluidError, match="nowhere"):
        fluid.Trainer(train_program, SGD, param_path="nowhere.params")


def test_row_45_saved_model_loads_without_the_function(in_tmp):
    """Write a model by `save_inference_model` that an Inferencer runs without the function and the label."""
    trainer = fluid.Trainer(train_program, SGD, infer_func=inference_program)
    trainer.train(minibatches(COLUMNS), progress=False)
    trainer.save_inference_model("line.fluid", platforms=["cpu"])
    plain = fluid.Trainer(train_program, SGD, params=trainer.params)
    plain.save_inference_model("plain.fluid", platforms=["cpu"])  # a model file of the outputs that need no label
    expected = guess_of(trainer.params, COLUMNS["x"])
    for path in ("line.fluid", "plain.fluid"):
        inferencer = fluid.Inferencer(param_path=path)
        assert list(inferencer.program.feeds) == ["x"]
        (guess,) = inferencer.infer({"x": COLUMNS["x"]})
        np.testing.assert_allclose(guess, expected, rtol=1e-5, atol=1e-6)
        with pytest.raises(ValueError, match="'x'"):
            inferencer.infer({"x": np.ones((2, 5), "float32")})


def test_row_45_function_loads_parameters_of_an_exported_model(tmp_path):
    """Read a file of `save_inference_model` by `Inferencer(infer_func, param_path=)`, as the design of 2017 does."""
    trainer = fluid.Trainer(program_func=train_program, infer_func=inference_program, optimizer=SGD)
    trainer.save_inference_model(tmp_path / "image.model", platforms=["cpu"])
    inferencer = fluid.Inferencer(infer_func=inference_program, param_path=tmp_path / "image.model")
    (guess,) = inferencer.infer({"x": COLUMNS["x"]})
    np.testing.assert_allclose(guess, guess_of(trainer.params, COLUMNS["x"]), rtol=1e-5, atol=1e-6)


def test_row_46_place_feed_order_num_epochs():
    """Check that the arguments of PaddlePaddle keep their meaning, by keyword and by position."""
    swapped = [[(y, x) for x, y in zip(batch["x"], batch["y"], strict=True)] for batch in minibatches(COLUMNS)]
    trainer = fluid.Trainer(train_program, SGD, place=fluid.CPUPlace())
    before, epochs = dict(trainer.params), []

    def on_event(event):
        if isinstance(event, fluid.BeginEpochEvent):
            epochs.append(event.epoch)

    trainer.train(reader=swapped, num_epochs=3, event_handler=on_event, feed_order=["y", "x"])
    assert epochs == [0, 1, 2]
    assert_params(trainer.params, descend(before, minibatches(COLUMNS), 0.1, epochs=3)[0])
    again = fluid.Trainer(train_func=train_program, optimizer_func=lambda: SGD, place="cpu")
    again.train(swapped, 3, None, ["y", "x"])
    assert all(np.array_equal(again.params[name], value) for name, value in trainer.params.items())
    with pytest.raises(ValueError, match="feed_order"):
        again.train(swapped, feed_order=["x"])
    with pytest.raises(fluid.errors.FluidError, match="num_epochs"):
        again.train(swapped, num_epochs=-1)


def test_spellings_of_a_call_are_equivalent(in_tmp):
    """Check that all spellings of the arguments of a Trainer and its `train`, old and new, give equal parameters."""

    def of_2018():
        guess = layers.fc(input=layers.data(name="x", shape=[3]), size=1, act=None, param_attr="w", bias_attr=False)
        return [layers.mean(layers.square_error_cost(input=guess, label=layers.data(name="y", shape=[1])))]

    trainers = [
        fluid.Trainer(of_2018, SGD),
        fluid.Trainer(program_func=of_2018, optimizer=SGD),
        fluid.Trainer(train_func=of_2018, optimizer_func=SGD),
        fluid.Trainer(train_func=of_2018, optimizer_func=lambda: fluid.optimizer.SGDOptimizer(learning_rate=0.1)),
        fluid.Trainer(of_2018, optax.sgd(0.1)),
        fluid.Trainer(of_2018, lambda: optax.sgd(0.1)),
    ]
    for number, trainer in enumerate(trainers):
        if number % 2:
            trainer.train(minibatches(COLUMNS), 2, lambda event: None, ["x", "y"])
        else:
            trainer.train(num_epochs=2, event_handler=None, reader=minibatches(COLUMNS), feed_order=["x", "y"])
        np.testing.assert_allclose(trainer.params["w"], trainers[0].params["w"], rtol=1e-6)
    w = np.asarray(fluid.Session(of_2018).params()["w"], "float64")
    for batch in minibatches(COLUMNS) * 2:
        w = w - 0.1 * 2 * batch["x"].T @ (batch["x"] @ w - batch["y"]) / 8
    np.testing.assert_allclose(trainers[0].params["w"], w, rtol=1e-4, atol=1e-5)
    with pytest.raises(TypeError, match="train_func"):
        fluid.Trainer(of_2018, SGD, train_func=of_2018)


def test_row_47_custom_loops_run_below_the_trainer():
    """Check custom loops over a Session: REINFORCE equals NumPy, and plain training equals a Trainer."""

    def act():
        return {
            "policy": layers.softmax(layers.create_parameter([1, 3], name="logits") * layers.data("one", shape=[1]))
        }

    def learn():
        policy = act()["policy"]
        chosen, reward = layers.data("chosen", shape=[1], dtype="int64"), layers.data("reward", shape=[1])
        loss = layers.mean(layers.cross_entropy(policy, chosen) * reward)
        fluid.optimizer.SGD(0.5).minimize(loss)
        return {"loss": loss}

    random, session = np.random.default_rng(0), fluid.Session(act, learn)
    logits = np.array(session.scope["logits"], "float64")
    for _ in range(40):  # REINFORCE for a bandit: only the last of three arms pays
        (policy,) = session.run(act, {"one": [[1.0]]})
        expected = np.exp(logits) / np.exp(logits).sum()
        np.testing.assert_allclose(policy, expected, rtol=1e-3, atol=1e-5)
        chosen = random.choice(3, size=(16, 1), p=expected[0])
        reward = (chosen == 2).astype("float32")
        session.run(learn, {"one": np.ones((16, 1)), "chosen": chosen, "reward": reward})
        logits -= 0.5 * (reward * (expected - np.eye(3)[chosen[:, 0]])).mean(axis=0, keepdims=True)
    assert policy[0, 2] > 0.9

    trainer, loop = fluid.Trainer(train_program, SGD), fluid.Session(minimized)
    trainer.train(minibatches(COLUMNS), 2, progress=False)
    for batch in minibatches(COLUMNS) * 2:
        loop.step(batch)
    assert all(np.array_equal(loop.params()[name], value) for name, value in trainer.params.items())


def minimized():
    outputs = train_program()
    SGD.minimize(outputs["loss"])
    return outputs


def test_row_48_several_functions_share_a_scope():
    """Check that functions in one Session share parameters, and that `run("f", feed)` runs the function f."""
    session = fluid.Session(train_program, minimized)
    before = session.params()
    assert sorted(before) == ["guess.b_0", "guess.w_0"]
    for number, batch in enumerate(minibatches(COLUMNS)):
        trained = session.run("minimized", batch)
        tested = session.run("train_program", COLUMNS)
        after, losses = descend(before, minibatches(COLUMNS)[: number + 1], 0.1)
        np.testing.assert_allclose(trained["loss"], losses[-1], rtol=1e-4)
        error = guess_of(after, COLUMNS["x"]) - COLUMNS["y"]
        np.testing.assert_allclose(tested["loss"], (error**2).mean(), rtol=1e-4)
    assert len(session.compilations) == 2
    with pytest.raises(KeyError, match="minimized"):
        session.run("minimised", COLUMNS)


def test_row_49_a_list_of_nets_in_turn():
    """Check that one Trainer trains several nets in turn, each with its optimizer."""

    def up():
        return layers.reduce_sum(layers.create_parameter([2], name="w") * -1.0)

    def down():
        return layers.reduce_mean(layers.create_parameter([2], name="w") * layers.data("x", shape=[2]))

    turns = []

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent):
            turns.append((event.program, np.asarray(trainer.params["w"])))

    trainer = fluid.Trainer([(up, fluid.optimizer.SGD(1.0)), (down, fluid.optimizer.SGD(2.0))])
    w = np.asarray(trainer.params["w"])
    trainer.train([{"x": np.full((2, 2), 4.0)}] * 2, event_handler=on_event, progress=False)
    assert [name for name, _ in turns][:4] == ["up", "down", "up", "down"]
    for name, found in turns:
        w = w + 1.0 if name == "up" else w - 2.0 * 4.0 / 2
        np.testing.assert_allclose(found, w, rtol=1e-4, atol=1e-5)


SCRIPT = """
import sys

import fluid
from line_by_numpy import data, minibatches, train_program

trainer = fluid.Trainer(train_program, fluid.optimizer.SGD(0.1), parallel=True)
trainer.train(minibatches(data()), 2, progress=False)
trainer.save_params(sys.argv[1])
"""


@pytest.mark.full
def test_row_50_distributed_by_environment(tmp_path):
    """Launch a script without multi-process code in two processes; its parameters equal a single-process run."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    params = {}
    tests = str(pathlib.Path(line_by_numpy.__file__).parent)
    for launcher in ([], ["-m", "fluid", "launch", "--processes", "2"]):
        path = tmp_path / f"{len(launcher)}.params"
        command = [sys.executable, *launcher, str(script), str(path)]
        environment = {**os.environ, "PYTHONPATH": f"{pathlib.Path(tests).parents[1]}:{tests}"}
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        params[len(launcher)] = fluid.io.load_arrays(path)[0]
    assert_params(params[5], params[0])
    before = fluid.Session(train_program).params()
    assert_params(params[5], descend(before, minibatches(COLUMNS), 0.1, epochs=2)[0])


@pytest.mark.parametrize("make", [lambda: fluid.Trainer(train_program, SGD), lambda: fluid.Session(minimized)])
def test_row_50_a_forgotten_initialize_is_said(make, monkeypatch):
    """Warn if the environment describes several processes and the program has not called `initialize()`."""
    monkeypatch.setenv("FLUID_PROCESSES", str(2 + next(NUMBERS)))
    with pytest.warns(fluid.errors.FluidWarning, match="initialize"):
        make()


def test_row_51_names_by_scope():
    """Check that `name_scope` prefixes the names of layers, and gives access to the layers inside the scope."""

    def program():
        with fluid.name_scope("generator") as generator:
            x = layers.data("x", shape=[3])
            with fluid.name_scope("sub_scope"):
                layers.fc(x, size=4, act="tanh")
        with fluid.name_scope("discriminator") as discriminator:
            fc2 = layers.fc(generator.sub_scope.fc_0, size=1)
        loss = layers.mean(layers.square(fc2))
        fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=discriminator.parameters)
        return {"loss": loss}

    session = fluid.Session(program)
    before = session.params()
    assert sorted(before) == [
        "discriminator/fc_0.b_0",
        "discriminator/fc_0.w_0",
        "generator/sub_scope/fc_0.b_0",
        "generator/sub_scope/fc_0.w_0",
    ]
    (hidden,) = session.run(feed={"x": COLUMNS["x"]}, fetch=["generator/sub_scope/fc_0"], mode="test")
    weights = before["generator/sub_scope/fc_0.w_0"]
    np.testing.assert_allclose(hidden, np.tanh(COLUMNS["x"] @ weights), rtol=1e-4, atol=1e-5)
    session.step({"x": COLUMNS["x"]})
    moved = {name for name, value in session.params().items() if not np.array_equal(value, before[name])}
    assert moved == {"discriminator/fc_0.w_0", "discriminator/fc_0.b_0"}
    found = session.run(feed={"x": COLUMNS["x"]}, fetch="discriminator/*.w_0", mode="test")
    assert found.keys() == ["discriminator/fc_0.w_0"]


def test_row_52_files_read_in_parallel_become_a_deployed_model(in_tmp):
    """Read many files in parallel, in an order independent of the parallelism, and deploy the model."""
    for number, batch in enumerate(minibatches(COLUMNS, 3)):
        np.savez(f"part-{number}.npz", **batch)
    orders = [
        [tuple(row["x"]) for row in fluid.reader.files("part-*.npz", shuffle=True, seed=2, parallel=parallel)]
        for parallel in (1, 4)
    ]
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == sorted(map(tuple, COLUMNS["x"]))
    assert orders[0] != list(map(tuple, COLUMNS["x"]))
    trainer = fluid.Trainer(train_program, SGD)
    before = dict(trainer.params)
    trainer.train(fluid.batch(fluid.reader.files("part-*.npz", parallel=4), 8), progress=False)
    assert_params(trainer.params, descend(before, minibatches(COLUMNS), 0.1)[0])
    fluid.io.save_inference_model("line.fluid", inference_program, trainer.params, platforms=["cpu"])
    with fluid.serve("line.fluid", port=0, max_batch=4) as server:
        (guess,) = fluid.Inferencer(url=server.url).infer({"x": COLUMNS["x"][:2]})
    expected = guess_of(trainer.params, COLUMNS["x"][:2])
    np.testing.assert_allclose(guess, expected, rtol=1e-5, atol=1e-6)
