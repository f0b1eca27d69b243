"""Rows 18 to 27 of the requirements of 2017: a Python API, used as a user would use it."""

import contextlib
import dataclasses
import json
import urllib.request

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from line_by_numpy import assert_params, data, descend, guess_of, minibatches, save_after, train_program

import fluid
from fluid import layers

COLUMNS = data()
HELD_OUT = data(rows=10, seed=1)
SGD = fluid.optimizer.SGD(0.1)


def test_row_18_an_offline_job(tmp_path):
    """Train offline with test data and periodic checkpoints; compare losses, parameters and a checkpoint with NumPy."""
    config = fluid.CheckpointConfig(tmp_path / "saved", step_interval=2, epoch_interval=None, max_num_checkpoints=None)
    trainer = fluid.Trainer(train_program, SGD, checkpoint_config=config)
    before = dict(trainer.params)
    history = trainer.train(minibatches(COLUMNS), 3, test_reader=minibatches(HELD_OUT, 4), progress=False)
    for epoch in range(3):
        after, losses = descend(before, minibatches(COLUMNS), 0.1, epochs=epoch + 1)
        error = guess_of(after, HELD_OUT["x"]) - HELD_OUT["y"]
        np.testing.assert_allclose(history["test_loss"][epoch], (error**2).mean(), rtol=1e-4)
        np.testing.assert_allclose(history["loss"][epoch], np.mean(losses[-3:]), rtol=1e-4)
    assert_params(trainer.params, after)
    assert {"2", "4", "6", "8"} <= {path.name for path in (tmp_path / "saved").iterdir()}
    trainer.restore(4)  # restore the parameters after step 4 from a checkpoint
    assert_params(trainer.params, descend(before, (minibatches(COLUMNS) * 2)[:4], 0.1)[0])


def classify():
    image, label = layers.data("x", shape=[3]), layers.data("label", shape=[1], dtype="int64")
    scores = layers.fc(image, size=2, act="softmax", name="scores")
    cost = layers.mean(layers.cross_entropy(scores, label))
    return {"cost": cost, "error_rate": 1.0 - layers.accuracy(scores, label)}


def test_row_19_costs_and_positions_have_types():
    """Check that cost, error rate, pass and batch are attributes with types and names, and not text."""
    x, label = COLUMNS["x"], (COLUMNS["x"].sum(axis=1) > 0).astype("int64")
    trainer = fluid.Trainer(classify, SGD)
    w, b = (np.asarray(trainer.params[name]) for name in ("scores.w_0", "scores.b_0"))
    seen = []

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent):
            seen.append(event)

    trainer.train([{"x": x, "label": label}] * 2, 2, on_event, progress=False)
    assert [(event.epoch, event.step) for event in seen] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert all(type(event.epoch) is int and type(event.step) is int for event in seen)
    assert seen[0].metrics.names == ("cost", "error_rate")
    logits = x @ w + b
    chosen = np.exp(logits[np.arange(24), label]) / np.exp(logits).sum(axis=1)
    np.testing.assert_allclose(float(seen[0].metrics["cost"]), -np.log(chosen).mean(), rtol=1e-5)
    np.testing.assert_allclose(float(seen[0].metrics["error_rate"]), (logits.argmax(1) != label).mean(), atol=1e-6)
    assert seen[0].metrics["cost"] == seen[0].metrics[0]
    assert isinstance(seen[0].metrics["cost"] < 10, bool | np.bool_ | jax.Array)
    with pytest.raises(KeyError, match="cost"):
        seen[0].metrics["costs"]
    assert {field.name for field in dataclasses.fields(fluid.EndStepEvent)} >= {"epoch", "step", "metrics"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen[0].epoch = 3


def generator(noise):
    return layers.fc(noise, size=2, param_attr=fluid.ParamAttr(name="g.w"), bias_attr=False)


def judge(sample):
    return layers.fc(sample, size=1, param_attr=fluid.ParamAttr(name="d.w"), bias_attr=False)


def deceive():
    loss = layers.mean(layers.square(judge(generator(layers.data("noise", shape=[3]))) - 1.0))
    fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["g.w"])
    return {"loss": loss}


def detect():
    real, noise = layers.data("real", shape=[2]), layers.data("noise", shape=[3])
    loss = layers.mean(layers.square(judge(real) - 1.0)) + layers.mean(layers.square(judge(generator(noise))))
    fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["d.w"])
    return {"loss": loss}


def test_row_20_other_data_trains_other_parameters():
    """Train two programs over shared arrays; each updates other parameters, with the gradients of plain JAX."""

    def fooled(g, d, noise):
        return jnp.mean((noise @ g @ d - 1) ** 2)

    def caught(d, g, real, noise):
        return jnp.mean((real @ d - 1) ** 2) + jnp.mean((noise @ g @ d) ** 2)

    random = np.random.default_rng(0)
    session = fluid.Session(deceive, detect)
    g, d = (jnp.array(session.scope[name]) for name in ("g.w", "d.w"))
    for _ in range(3):
        noise, real = random.normal(size=(8, 3)).astype("f"), random.normal(size=(6, 2)).astype("f")
        session.run(detect, {"real": real, "noise": noise})
        d = d - 0.1 * jax.grad(caught)(d, g, real, noise)
        np.testing.assert_allclose(session.scope["d.w"], d, rtol=1e-4, atol=1e-6)
        session.run(deceive, {"noise": noise})
        g = g - 0.1 * jax.grad(fooled)(g, d, noise)
        np.testing.assert_allclose(session.scope["g.w"], g, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(session.scope["d.w"], d, rtol=1e-4, atol=1e-6)


def test_row_21_nets_share_parameters_apart_or_chained():
    """Share parameters by name between nets that train separately, or of which one feeds the other."""

    def encode(x):
        return layers.fc(x, size=2, param_attr=fluid.ParamAttr(name="code.w"), bias_attr=False)

    def task(name, target):
        def program():
            code = layers.identity(encode(layers.data("x", shape=[3])), name="code")
            guess = layers.fc(code, size=1, name=name)
            return {"loss": layers.mean(layers.square(guess - layers.data(target, shape=[1])))}

        return program

    def critic():
        return {"loss": layers.mean(layers.square(layers.fc(layers.data("made", shape=[2]), size=1, name="critic")))}

    feed = {"x": COLUMNS["x"], "y": COLUMNS["y"], "z": -COLUMNS["y"]}
    tasks = {name: task(name, target) for name, target in (("left", "y"), ("right", "z"))}
    apart = fluid.Trainer([fluid.TrainingProgram(program, SGD, name=name) for name, program in tasks.items()])
    assert sorted(apart.params) == ["code.w", "left.b_0", "left.w_0", "right.b_0", "right.w_0"]
    before = apart.params
    with pytest.warns(fluid.errors.FluidWarning, match="'right' was not trained"):
        apart.train([feed], progress=False)  # one minibatch is one step, which trains only the program `left`
    moved = {name for name, value in apart.params.items() if not np.array_equal(value, before[name])}
    assert moved == {"code.w", "left.b_0", "left.w_0"}

    chained = fluid.Trainer(
        [
            fluid.TrainingProgram(tasks["left"], SGD, name="task"),
            fluid.TrainingProgram(critic, SGD, feed_from={"made": "task/code"}, name="critic"),
        ]
    )
    losses = []

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent) and event.program == "critic":
            weights = {name: np.asarray(value) for name, value in chained.params.items()}
            made = feed["x"] @ weights["code.w"]
            losses.append(((made @ weights["critic.w_0"] + weights["critic.b_0"]) ** 2).mean())
        if isinstance(event, fluid.EndStepEvent) and event.program == "critic":
            np.testing.assert_allclose(float(event.metrics["loss"]), losses[-1], rtol=1e-4)

    del feed["z"]
    chained.train([feed] * 4, event_handler=on_event, progress=False)
    assert len(losses) == 2


def test_row_22_online_learning_over_the_network(tmp_path):
    """Send rows, and the commands to start, stop and save the training, over HTTP."""
    online = fluid.OnlineTrainer(train_program, SGD, tmp_path / "online", batch_size=8, test_every=None)

    def ask(path, body=None):
        request = urllib.request.Request(f"{server.url}/{path}", body, {"Content-Type": "application/x-ndjson"})
        request.method = "GET" if path == "status" else "POST"
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    rows = [{name: column[i].tolist() for name, column in COLUMNS.items()} for i in range(24)]
    with contextlib.closing(online), online.serve(port=0) as server:
        assert ask("status")["state"] == "stopped"
        ask("start")
        assert ask("rows", "\n".join(map(json.dumps, rows[:16])).encode())["first"] == 0
        save_after(lambda: ask("save"), 2)
        assert ask("stop")["state"] == "stopped"
        ask("rows", "\n".join(map(json.dumps, rows[16:])).encode())
        assert ask("status")["steps"] == 2  # a stopped trainer accepts rows without training
        ask("start")
        save_after(lambda: ask("save"), 3)
    saved = fluid.Inferencer(train_program, checkpoint=tmp_path / "online" / "checkpoints")
    after = descend(fluid.Session(train_program).params(), minibatches(COLUMNS), 0.1)[0]
    (guess,) = saved.infer(COLUMNS, fetch=["guess"])
    np.testing.assert_allclose(guess, guess_of(after, COLUMNS["x"]), rtol=1e-4, atol=1e-5)


class Noting(fluid.Handler):
    """A handler that appends the phase of each event, with the name of the handler, to `notes`."""

    def __init__(self, name, notes):
        self.name, self.notes = name, notes

    def note(self, event):
        phase = type(event).__name__.removesuffix("Event")
        self.notes.append(f"{phase} {self.name}")

    begin_train = begin_epoch = begin_step = end_step = end_epoch = end_train = note


def test_row_23_phase_hooks_come_in_pairs():
    """Check that begin and end events nest like brackets, also if the training is stopped."""
    notes = []
    trainer = fluid.Trainer(train_program, SGD)

    def stop(event):
        if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == (1, 1):
            trainer.stop()

    trainer.train(minibatches(COLUMNS), 5, stop, handlers=[Noting("a", notes)], progress=False)
    assert notes.count("BeginStep a") == 5
    opened = []
    for note in notes:
        kind, phase = ("Begin", note[5:]) if note.startswith("Begin") else ("End", note[3:])
        if kind == "Begin":
            opened.append(phase)
        else:
            assert opened.pop() == phase
    assert not opened


def test_row_24_handlers_are_an_onion():
    """Check that begin events reach handlers in order, and end events in reverse order."""
    notes = []
    trainer = fluid.Trainer(train_program, SGD)
    trainer.train(minibatches(COLUMNS)[:1], handlers=[Noting(name, notes) for name in "abc"], progress=False)
    begin = [f"Begin{phase} {name}" for phase in ("Train", "Epoch", "Step") for name in "abc"]
    end = [f"End{phase} {name}" for phase in ("Step", "Epoch", "Train") for name in "cba"]
    assert notes == begin + end


def test_row_25_onions_within_onions():
    """Run tests from handlers during a training, after every N batches or passes."""
    measured = []

    class TestEveryTwoSteps(fluid.Handler):
        def end_step(self, event):
            if self.done % 2 == 0:
                measured.append((self.done, float(self.trainer.test(minibatches(HELD_OUT, 4))["loss"])))

    class Listen(fluid.Handler):
        def measured(self, event):
            if "test_loss" in event.metrics.names:
                announced.append(float(event.metrics["test_loss"]))

    announced = []
    trainer = fluid.Trainer(train_program, SGD)
    before = dict(trainer.params)
    two_passes = fluid.handlers.TestEvery(minibatches(HELD_OUT, 4), every="2 epochs")
    handlers = [TestEveryTwoSteps(), Listen(), two_passes]
    trainer.train(minibatches(COLUMNS), 4, handlers=handlers, progress=False)

    def tested(steps):
        after = descend(before, (minibatches(COLUMNS) * 4)[:steps], 0.1)[0]
        return ((guess_of(after, HELD_OUT["x"]) - HELD_OUT["y"]) ** 2).mean()

    assert [done for done, _ in measured] == [2, 4, 6, 8, 10, 12]
    np.testing.assert_allclose([loss for _, loss in measured], [tested(done) for done, _ in measured], rtol=1e-3)
    np.testing.assert_allclose(announced, [tested(6), tested(12)], rtol=1e-3)


def test_row_26_inference_is_training_with_rings_removed():
    """Infer with the trained function in test mode: no dropout, no update, no handler."""

    def program():
        hidden = layers.dropout(layers.data("x", shape=[3]), 0.5, dropout_implementation="upscale_in_train")
        guess = layers.fc(layers.batch_norm(hidden), size=1, name="guess")
        return {"loss": layers.mean(layers.square(guess - layers.data("y", shape=[1])))}

    trainer = fluid.Trainer(program, SGD)
    trainer.train(minibatches(COLUMNS), 3, progress=False)
    before, p = dict(trainer.params), {name: np.asarray(value) for name, value in trainer.params.items()}
    normal = (COLUMNS["x"] - p["batch_norm_0.w_1"]) / np.sqrt(p["batch_norm_0.w_2"] + 1e-5)
    expected = (normal * p["batch_norm_0.w_0"] + p["batch_norm_0.b_0"]) @ p["guess.w_0"] + p["guess.b_0"]
    inferencer = fluid.Inferencer(program, params=trainer.params)
    for found in (
        inferencer.infer({"x": COLUMNS["x"]}, fetch=["guess"])[0],
        trainer.run({"x": COLUMNS["x"]}, fetch=["guess"])[0],
        np.concatenate([r["guess"] for r in trainer.predict(minibatches(COLUMNS), fetch=["guess"])]),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert all(np.array_equal(before[name], value) for name, value in trainer.params.items())


def test_row_27_batch_is_divided_over_all_cores(on_four_devices):
    """Divide a batch over the cores of a CPU by one argument."""
    on_four_devices("row_27")
