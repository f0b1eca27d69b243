"""Tests of 17 capabilities that other frameworks lack: each test uses fluid as a sceptical user would."""

import pathlib
import signal
import textwrap
import weakref

import forked
import line_by_numpy
import numpy as np
import optax
import pytest
from capabilities.processes import finished
from line_by_numpy import (
    assert_params,
    data,
    descend,
    guess_of,
    inference_program,
    minibatches,
    save_after,
    train_program,
)

import fluid
from fluid import layers

COLUMNS = data()
SGD = fluid.optimizer.SGD(0.1)
TESTS = pathlib.Path(line_by_numpy.__file__).parent


def same(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], value) for name, value in other.items())


class PowerCut(Exception):
    """An exception that simulates a power cut: an event handler raises it to end a training."""


KILLED = """
    import os
    import signal

    import numpy as np

    import fluid


    def program():
        hidden = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=8, act="tanh")
        guess = fluid.layers.fc(fluid.layers.dropout(hidden, 0.3), size=1)
        return fluid.layers.mean(fluid.layers.square(guess - fluid.layers.data("y", shape=[1])))


    def rows():
        for number in range(40):
            yield np.full(2, number / 40, "float32"), np.array([number % 3], "float32")


    def jitter(row, rng):
        return row[0] + rng.normal(0, 0.1, size=2).astype("float32"), row[1]


    def reader():
        mixed = fluid.reader.shuffle(fluid.reader.chain(rows, rows), 30, seed=1)
        moved = fluid.reader.xmap(jitter, mixed, process_num=2, seed=2)
        return fluid.reader.buffered(fluid.batch(moved, 7), 3)


    def train(folder, kill_at=None):
        config = folder and fluid.CheckpointConfig(folder, step_interval=2)
        trainer = fluid.Trainer(program, fluid.optimizer.Adam(0.01), seed=3, checkpoint_config=config)

        def on_event(event):
            if isinstance(event, fluid.EndStepEvent) and event.epoch * 12 + event.step == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)

        trainer.train(reader(), 3, on_event, progress=False)
        return trainer
"""


@pytest.mark.full
def test_beyond_01_bit_exact_resume_after_kill(tmp_path):
    """Kill and resume a training twice; check that its parameters are bit-identical to an uninterrupted training."""
    for kill_at in (7, 22):
        killed = textwrap.dedent(KILLED) + f"\ntrain('saved', kill_at={kill_at})\n"
        assert finished(killed, tmp_path)[1] == -signal.SIGKILL
    here = {}
    exec(textwrap.dedent(KILLED), here)
    whole = here["train"](None)
    resumed = here["train"](tmp_path / "saved")
    assert int(whole.session.scope.step) == int(resumed.session.scope.step) == 36
    assert same(resumed.params, whole.params)


def two_layers():
    hidden = layers.fc(layers.data("x", shape=[3]), size=4, act="tanh", name="hidden")
    guess = layers.fc(hidden, size=1, name="guess")
    return {"loss": layers.mean(layers.square_error_cost(guess, layers.data("y", shape=[1]))), "guess": guess}


def test_beyond_02_override_and_fetch_in_every_door():
    """Fetch and override any named value, per call, in a training step, a test, an Inferencer and a Session."""
    trainer = fluid.Trainer(two_layers, SGD)
    p = {name: np.asarray(value) for name, value in trainer.params.items()}
    given = np.linspace(-1, 1, 8 * 4).reshape(8, 4).astype("float32")
    first = minibatches(COLUMNS)[0]
    guess = given @ p["guess.w_0"] + p["guess.b_0"]
    slope = 2 * given.T @ (guess - first["y"]) / 8  # the gradient of the loss with respect to guess.w_0
    seen = []

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent) and event.step == 0:
            event.override({"hidden": given})
            event.fetch(["guess", "guess.w_0@GRAD", "hidden.w_0@GRAD"])
        if isinstance(event, fluid.EndStepEvent) and event.step == 0:
            seen.append(event.fetched)

    trainer.train([first], event_handler=on_event, progress=False)
    np.testing.assert_allclose(seen[0]["guess"], guess, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(seen[0]["guess.w_0@GRAD"], slope, rtol=1e-4, atol=1e-5)
    # The output of the layer `hidden` is overridden, so the weight hidden.w_0 of this layer does not change the loss.
    assert not np.asarray(seen[0]["hidden.w_0@GRAD"]).any()
    np.testing.assert_allclose(trainer.params["guess.w_0"], p["guess.w_0"] - 0.1 * slope, rtol=1e-4, atol=1e-5)

    p = {name: np.asarray(value) for name, value in trainer.params.items()}
    found = trainer.test(minibatches(COLUMNS, 5), feed={"hidden": 1.0}, fetch=["loss", "hidden"])
    constant = p["guess.w_0"].sum() + p["guess.b_0"][0]
    np.testing.assert_allclose(found["loss"], ((constant - COLUMNS["y"]) ** 2).mean(), rtol=1e-4)
    assert (np.asarray(found["hidden"]) == 1).all()

    expected = given @ p["guess.w_0"] + p["guess.b_0"]
    before = COLUMNS["x"] @ p["hidden.w_0"] + p["hidden.b_0"]
    inferencer, session = fluid.Inferencer(two_layers, params=p), fluid.Session(two_layers)
    session.load_params(p)
    for run in (inferencer.infer, lambda feed, fetch: session.run(two_layers, feed, fetch)):
        np.testing.assert_allclose(run({"hidden": given}, fetch=["guess"])[0], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(run({"x": COLUMNS["x"]}, fetch=["hidden.tmp_1"])[0], before, rtol=1e-4, atol=1e-5)
        loss = run({"guess": COLUMNS["y"] + 2, "y": COLUMNS["y"]}, fetch=["loss"])[0]
        np.testing.assert_allclose(loss, 4.0, rtol=1e-5)


@fluid.shared
def generator(noise):
    return layers.fc(noise, size=2, name="g")


@fluid.shared
def discriminator(sample):
    return layers.fc(sample, size=1, name="d")


def detect():
    real, noise = layers.data("real", shape=[2]), layers.data("noise", shape=[3])
    loss = layers.mean(layers.square(discriminator(real) - 1.0) + layers.square(discriminator(generator(noise))))
    fluid.optimizer.Adam(0.01).minimize(loss, parameter_list="discriminator/*")
    return {"loss": loss}


def deceive():
    loss = layers.mean(layers.square(discriminator(generator(layers.data("noise", shape=[3]))) - 1.0))
    fluid.optimizer.Adam(0.02).minimize(loss, parameter_list="generator/*")
    return {"loss": loss}


def test_beyond_03_a_gan_inside_the_trainer(tmp_path):
    """Train the two programs of a GAN in turn in one Trainer; both continue exactly from one checkpoint."""
    random = np.random.default_rng(0)
    samples = {"real": random.normal(size=(40, 2)), "noise": random.normal(size=(40, 3))}

    def trained(folder=None, cut_at=None):
        config = None if folder is None else fluid.CheckpointConfig(folder, step_interval=3)
        trainer, events = fluid.Trainer([detect, deceive], schedule="2:1", checkpoint_config=config), []

        def on_event(event):
            if isinstance(event, fluid.EndStepEvent):
                events.append((event.program, float(event.metrics["loss"])))
                if len(events) == cut_at:
                    raise PowerCut

        reader = fluid.reader.arrays(samples, batch_size=4, shuffle=True, seed=1)
        try:
            trainer.train(reader, 2, on_event, progress=False)
        except PowerCut:
            return None, events
        return trainer, events

    whole, events = trained()
    assert [name for name, _ in events[:6]] == ["detect", "detect", "deceive"] * 2
    _, torn = trained(tmp_path, cut_at=15)
    resumed, rest = trained(tmp_path)
    assert torn == events[:15]
    assert 5 <= len(rest) < 20
    assert rest == events[-len(rest) :]
    assert same(resumed.params, whole.params)


def test_beyond_04_row_sparse_embeddings_on_optax():
    """Train a sparse embedding with an optimizer of optax; compare values and cost with a dense embedding."""

    def program(rows, is_sparse):
        def program():
            ids, y = layers.data("ids", shape=[2, 1], dtype="int64"), layers.data("y", shape=[1])
            start = fluid.ParamAttr(name="table", initializer=fluid.initializer.Constant(0.5))
            words = layers.embedding(ids, size=[rows, 4], is_sparse=is_sparse, param_attr=start)
            return layers.mean(layers.square(layers.reduce_sum(words, dim=[1, 2]) - y[:, 0]))

        return program

    ids, y = np.array([[1, 2], [2, 2], [7, 1]]), np.array([[1.0], [2.0], [-1.0]], "float32")
    batch = {"ids": ids[..., None], "y": y}
    tables = []
    for is_sparse in (True, False):
        trainer = fluid.Trainer(program(50, is_sparse), optax.adagrad(0.1))
        trainer.train([batch] * 3, progress=False)
        tables.append(np.asarray(trainer.params["table"]))

    table, total = np.full((50, 4), 0.5), np.full((50, 4), 0.1)  # initial values, as in optax's Adagrad
    for _ in range(3):
        slope = np.zeros_like(table)
        np.add.at(slope, ids, (2 * (table[ids].sum(axis=(1, 2)) - y[:, 0]) / 3)[:, None, None])
        total += slope**2
        table -= 0.1 * slope / np.sqrt(total + 1e-7) * (slope != 0)
    for found in tables:
        np.testing.assert_allclose(found, table, rtol=1e-4, atol=1e-5)
    assert (tables[0][[0, 3, 49]] == 0.5).all()

    def cost(rows, is_sparse):
        trainer = fluid.Trainer(program(rows, is_sparse), optax.adagrad(0.1))
        return fluid.summary(trainer, batch_size=8).totals.step.flops

    assert cost(20_000, True) == cost(1_000, True)
    assert cost(20_000, False) > 10 * cost(1_000, True)


def test_beyond_05_fused_steps_unfused_events():
    """Run several steps per call of the device; check that each step still has separate events, feeds and metrics."""

    def trained(per_call):
        told, trainer = [], fluid.Trainer(train_program, SGD, steps_per_dispatch=per_call)

        def on_event(event):
            kind = type(event).__name__
            if isinstance(event, fluid.BeginStepEvent):
                told.append((kind, event.epoch, event.step, float(event.feed["x"][0, 0])))
            if isinstance(event, fluid.EndStepEvent):
                told.append((kind, event.epoch, event.step, round(float(event.metrics["loss"]), 4)))

        trainer.train(minibatches(COLUMNS, 3), 2, on_event, progress=False)
        return trainer, sorted(told)

    (single, events), (fused, same_events) = trained(1), trained(4)
    assert events == same_events
    assert len(events) == 2 * 2 * 8
    assert "several steps in one call" in fused.session.compilations[0].reason
    for name, value in single.params.items():
        np.testing.assert_allclose(fused.params[name], value, rtol=1e-5)


def test_beyond_06_bounded_recompilation():
    """Train on rows of 60 lengths with at most `max_compilations` compilations; padding does not change results."""

    def program():
        words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
        embedded = layers.embedding(words, size=[20, 3], param_attr=fluid.ParamAttr(name="table"))
        pooled = layers.sequence_pool(layers.fc(embedded, size=2, act="tanh", name="fc"), "average")
        return {"loss": layers.mean(layers.square(pooled)), "pooled": pooled}

    random = np.random.default_rng(0)
    rows = [random.integers(0, 20, size=length) for length in random.permutation(np.arange(1, 61))]
    batches = [rows[i : i + 2] for i in range(0, 60, 2)]
    trainer, found = fluid.Trainer(program, SGD, max_compilations=4), []

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent):
            batch, p = batches[event.step], {name: np.asarray(value) for name, value in trainer.params.items()}
            words = [np.tanh(p["table"][row] @ p["fc.w_0"] + p["fc.b_0"]).mean(axis=0) for row in batch]
            found.append([np.square(words).mean()])
        if isinstance(event, fluid.EndStepEvent):
            found[-1].append(float(event.metrics["loss"]))

    trainer.train([[(row,) for row in batch] for batch in batches], event_handler=on_event, progress=False)
    assert len(trainer.session.compilations) <= 4
    np.testing.assert_allclose(*zip(*found, strict=True), rtol=1e-4, atol=1e-7)


def test_beyond_07_a_report_of_the_first_nan():
    """End a training at the last finite state before a NaN; check that the report locates the NaN."""

    def program():
        x, y = layers.data("x", shape=[3]), layers.data("y", shape=[1])
        with fluid.name_scope("body"):
            roots = layers.sqrt(x, name="roots")  # here
        return layers.mean(layers.square(layers.fc(roots, size=1) - y))

    positive = {"x": abs(COLUMNS["x"]) + 0.1, "y": COLUMNS["y"]}
    positive["x"][13, 1] = -1.0
    trainer = fluid.Trainer(program, SGD)
    with pytest.raises(fluid.errors.NonFiniteError) as raised:
        report = fluid.handlers.TerminateOnNaN(report=True)
        trainer.train(minibatches(positive), 3, handlers=[report], progress=False)
    report = raised.value.report
    assert (report.name, report.step, report.rows) == ("body/roots.tmp_0", 1, (5,))
    here = next(n for n, line in enumerate(pathlib.Path(__file__).read_text().splitlines(), 1) if "  # here" in line)
    assert f"test_beyond.py:{here}" in str(raised.value)
    assert "body/roots" in str(raised.value)
    assert int(trainer.session.scope.step) == 1
    assert all(np.isfinite(value).all() for value in trainer.params.values())


ONLY_JAX_AND_NUMPY = """
    import importlib.abc
    import importlib.metadata
    import sys

    ALLOWED = {"jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum", "standalone"}  # of JAX


    class Refuse(importlib.abc.MetaPathFinder):
        installed = {n for n in importlib.metadata.packages_distributions()} | {"fluid"}

        def find_spec(self, name, path=None, target=None):
            root = name.partition(".")[0]
            if root in self.installed - ALLOWED and not root.startswith("_"):
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)


    sys.meta_path.insert(0, Refuse())
    sys.path.insert(0, ".")
    import numpy as np
    import standalone

    predict = standalone.load("line.fluid")
    for rows in (1, 5, 24):
        (guess,) = predict({"x": np.load("x.npy")[:rows]})
        print(guess.shape[0])
    np.save("guess.npy", guess)
"""


def test_beyond_08_exported_model_needs_jax_and_numpy(tmp_path):
    """Export a model to one file, and run it by the script in this file, in a process that has only JAX and NumPy."""
    import zipfile

    params = fluid.Session(inference_program).params()
    fluid.io.save_inference_model(tmp_path / "line.fluid", inference_program, params, platforms=["cpu"])
    with zipfile.ZipFile(tmp_path / "line.fluid") as archive:
        archive.extract("standalone.py", tmp_path)
    np.save(tmp_path / "x.npy", COLUMNS["x"])
    assert finished(ONLY_JAX_AND_NUMPY, tmp_path, fresh=True)[0] == ["1", "5", "24"]
    expected = guess_of(params, COLUMNS["x"])
    np.testing.assert_allclose(np.load(tmp_path / "guess.npy"), expected, rtol=1e-5, atol=1e-6)


def test_beyond_09_interrupts_break_nothing():
    """Interrupt a training at many moments, and call `train` again; its parameters equal an uninterrupted training."""
    rows = [dict(zip("xy", row, strict=True)) for row in zip(COLUMNS["x"], COLUMNS["y"], strict=True)]
    left = {("read", 20), ("read", 70), ("BeginStepEvent", 1), ("EndStepEvent", 11), ("BeginStepEvent", 17)}
    left |= {("EndStepEvent", 30), ("EndEpochEvent", 2), ("BeginEpochEvent", 3)}

    def press(moment):
        if moment in left:
            left.remove(moment)
            signal.raise_signal(signal.SIGINT)

    def reader(moments):
        def read(row):
            reads.append(1)
            press((moments, len(reads)))
            return row

        reads = []
        return fluid.batch(fluid.reader.shuffle(fluid.reader.map(read, rows), 24, seed=1), 3)

    def on_event(event):
        position = event.epoch if "Epoch" in type(event).__name__ else getattr(event, "epoch", 0) * 8
        press((type(event).__name__, position + getattr(event, "step", 0)))

    whole = fluid.Trainer(two_layers, fluid.optimizer.Adam(0.01))
    whole.train(reader("never"), 4, progress=False)
    trainer, pressed, reader = fluid.Trainer(two_layers, fluid.optimizer.Adam(0.01)), len(left), reader("read")
    interrupts = 0
    while int(trainer.session.scope.step) < 32:
        try:
            trainer.train(reader, 4, on_event, progress=False)
        except KeyboardInterrupt:
            interrupts += 1
        assert all(np.isfinite(value).all() for value in trainer.params.values())
    assert (len(left), interrupts) == (0, pressed)
    assert same(trainer.params, whole.params)


def test_beyond_10_exact_evaluation_in_bounded_memory():
    """Test with several batch sizes; check that the loss is exact, and that only a few minibatches are in memory."""
    trainer, columns = fluid.Trainer(train_program, SGD), data(rows=600)
    p = trainer.params
    expected = ((guess_of(p, columns["x"]) - columns["y"]) ** 2).mean()
    alive, most = set(), 0

    def reader(batch_size):
        def fresh():
            nonlocal most
            for i in range(0, 600, batch_size):
                x = np.array(columns["x"][i : i + batch_size])
                alive.add(i)
                weakref.finalize(x, alive.discard, i)
                most = max(most, len(alive))
                yield {"x": x, "y": columns["y"][i : i + batch_size]}

        return fresh

    found = [trainer.test(reader(size), fetch=["loss"])["loss"] for size in (1, 7, 64, 600)]
    np.testing.assert_allclose(found, [expected] * 4, rtol=1e-5)
    assert most <= 40  # at most 40 of 600 minibatches are in memory at once


def test_beyond_11_online_learning_under_remote_control(tmp_path):
    """Send rows to an online training, and pause, resume, save and publish it through a RemoteTrainer."""
    export = {"platforms": ["cpu"]}
    options = {"publish_to": tmp_path / "models", "fetch": ["guess"], "export": export, "test_every": None}
    with fluid.OnlineTrainer(train_program, SGD, tmp_path / "online", batch_size=8, **options) as online:
        with online.serve(port=0, token="a-secret-of-this-test") as server:
            with pytest.raises(fluid.errors.FluidError, match="token|401"):
                fluid.RemoteTrainer(server.url).status()
            remote = fluid.RemoteTrainer(server.url, token="a-secret-of-this-test")
            remote.pause()
            remote.send(COLUMNS, key="once")
            remote.send(COLUMNS, key="once")  # the trainer ignores rows with an idempotency key that it knows
            with pytest.raises(ValueError, match="'x'"):
                remote.send({"x": np.ones((2, 4)), "y": np.ones((2, 1))})
            status = remote.status()
            assert (status["accepted"], status["steps"], status["state"]) == (24, 0, "paused")
            remote.resume()
            save_after(remote.save, 3)
            version = remote.publish()["published"]
    after = descend(fluid.Session(train_program).params(), minibatches(COLUMNS), 0.1)[0]
    model = fluid.Inferencer(param_path=tmp_path / "models" / str(version) / "model.fluid")
    expected = guess_of(after, COLUMNS["x"])
    np.testing.assert_allclose(model.infer({"x": COLUMNS["x"]})[0], expected, rtol=1e-4, atol=1e-5)


def test_beyond_12_a_readable_contract_of_parameters(in_tmp):
    """Check that parameters have readable names before any data, and that errors explain each mismatch of names."""

    def net(size, name):
        def program():
            x = layers.data("x", shape=[3])
            with fluid.name_scope("body"):
                hidden = layers.batch_norm(layers.fc(x, size=size))
            return layers.fc(hidden, size=1, name=name)

        return program

    first, second = net(4, "head"), net(5, "haed")
    session = fluid.Session(first)
    assert {name: value.shape for name, value in session.params().items()} == {
        "body/fc_0.w_0": (3, 4),
        "body/fc_0.b_0": (4,),
        "body/batch_norm_0.w_0": (4,),
        "body/batch_norm_0.b_0": (4,),
        "body/batch_norm_0.w_1": (4,),
        "body/batch_norm_0.w_2": (4,),
        "head.w_0": (4, 1),
        "head.b_0": (1,),
    }
    session.save_params("first.params")
    assert not any(b"pickle" in path.read_bytes() for path in pathlib.Path().glob("first.params"))
    with pytest.raises(fluid.errors.ParameterError) as raised:
        fluid.Session(second).load_params("first.params")
    message = str(raised.value)
    for part in ("body/fc_0.w_0", "[3, 4]", "[3, 5]", "haed.w_0", "head.w_0", "test_beyond.py:", " there", " here"):
        assert part in message, message


def test_beyond_12_a_difference_of_files_names_lines(tmp_path):
    """Check that a comparison of two parameter files names the lines of code that created the parameters."""

    def net(size):
        return lambda: layers.fc(layers.data("x", shape=[3]), size=size, name="guess")

    for size in (1, 2):
        fluid.Session(net(size)).save_params(tmp_path / f"{size}.params")
    done = forked.run("-m", "fluid", "inspect", "1.params", "2.params", cwd=tmp_path)
    assert done.returncode == 1
    line = next(line for line in done.stderr.splitlines() if "guess.w_0" in line)
    assert "[3, 1]" in line and "[3, 2]" in line
    assert line.count(f"{__file__.rpartition('/')[2]}:") == 2


OF_2018 = """
import numpy as np
import paddle.fluid as fluid

dict_dim, emb_dim = 30, 4
main, startup = fluid.Program(), fluid.Program()
main.random_seed = startup.random_seed = 1
with fluid.program_guard(main, startup):
    data = fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    emb = fluid.layers.embedding(input=data, size=[dict_dim, emb_dim], is_sparse=True)
    pooled = fluid.layers.sequence_pool(input=emb, pool_type="sum")
    prediction = fluid.layers.fc(input=pooled, size=2, act="softmax")
    cost = fluid.layers.mean(fluid.layers.cross_entropy(input=prediction, label=label))
    test_program = main.clone(for_test=True)
    fluid.optimizer.Adagrad(learning_rate=0.1).minimize(cost)
exe = fluid.Executor(fluid.CPUPlace())
scope = fluid.core.Scope()
with fluid.scope_guard(scope):
    exe.run(startup)
    before = {name: np.array(scope.find_var(name).get_tensor()) for name in
              ("embedding_0.w_0", "fc_0.w_0", "fc_0.b_0")}
    words = fluid.create_lod_tensor(np.concatenate(rows).reshape(-1, 1), [[len(row) for row in rows]], fluid.CPUPlace())
    feed = {"words": words, "label": labels}
    costs = [exe.run(main, feed=feed, fetch_list=[cost])[0] for _ in range(30)]
    tested, = exe.run(program=test_program, feed=feed, fetch_list=[cost])
    fluid.io.save_inference_model("sentiment", ["words"], [prediction], exe, main)
with fluid.scope_guard(fluid.core.Scope()):
    program, feed_names, targets = fluid.io.load_inference_model("sentiment", exe)
    answer, = exe.run(program, feed={feed_names[0]: words}, fetch_list=targets)
"""


def test_beyond_13_a_program_of_2018_with_sequences(in_tmp):
    """Run an Executor program of 2018 with LoD tensors, a scope and a saved model; only its import is changed."""
    rows = [[1, 2, 3], [4], [5, 6], [1, 7, 8, 9]]
    labels = np.array([[0], [1], [1], [0]])
    here = {"rows": [np.array(row) for row in rows], "labels": labels}
    exec(OF_2018.replace("paddle.fluid", "fluid.static"), here)
    p = here["before"]
    pooled = np.stack([p["embedding_0.w_0"][row].sum(axis=0) for row in rows])
    logits = pooled @ p["fc_0.w_0"] + p["fc_0.b_0"]
    loss = (np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(4), labels[:, 0]]).mean()
    np.testing.assert_allclose(here["costs"][0], [loss], rtol=1e-5)
    assert here["costs"][0].shape == (1,)
    assert here["tested"][0] < 0.5 * loss
    assert (here["answer"].argmax(axis=1) == labels[:, 0]).all()


def test_beyond_14_population_compiles_a_single_program():
    """Compile trainings with different seeds and rates to one program; each member equals a separate training."""
    seeds, rates = [0, 1, 1], [0.1, 0.1, 0.03]
    population = fluid.Population(train_program, fluid.optimizer.SGD(0.1), seeds=seeds, vary={"learning_rate": rates})
    before = population.params
    population.train(minibatches(COLUMNS), 2, progress=False)
    assert len(population.session.compilations) == 1
    for member, (seed, rate) in enumerate(zip(seeds, rates, strict=True)):
        start = fluid.Session(train_program, seed=seed).params()
        assert same(start, {name: value[member] for name, value in before.items()})
        assert_params(population[member], descend(start, minibatches(COLUMNS), rate, epochs=2)[0])


ONLINE = """
    import os
    import signal
    import fluid
    from line_by_numpy import data, train_program


    class Kill(fluid.Handler):
        def end_step(self, event):
            if self.done == 4:
                os.kill(os.getpid(), signal.SIGKILL)


    sgd, columns = fluid.optimizer.SGD(0.1), data(rows=90)
    options = {"batch_size": 8, "test_every": None, "checkpoint_every": 3}
    with fluid.OnlineTrainer(train_program, sgd, "online", handlers=[Kill()], **options) as online:
        for i in range(0, 90, 9):
            online.send({name: column[i : i + 9] for name, column in columns.items()})
            print(i + 9, flush=True)
        while True:
            online.save()
"""


@pytest.mark.full
def test_beyond_15_kill_keeps_accepted_rows_exactly_once(tmp_path):
    """Kill an online training while rows arrive; it trains on each accepted row exactly once."""
    acknowledged, status = finished(ONLINE, tmp_path)
    assert status == -signal.SIGKILL
    columns, options = data(rows=90), {"batch_size": 8, "test_every": None, "checkpoint_every": 3}
    with fluid.OnlineTrainer(train_program, SGD, tmp_path / "online", **options) as online:
        accepted = online.status()["accepted"]
        assert accepted >= int([0, *acknowledged][-1])
        if accepted < 90:
            online.send({name: column[accepted:] for name, column in columns.items()})
        save_after(online.save, 11)
    (guess,) = fluid.Inferencer(train_program, checkpoint=tmp_path / "online/checkpoints").infer(columns, ["guess"])
    start = fluid.Session(train_program).params()
    after = descend(start, minibatches(columns)[:11], 0.1)[0]
    np.testing.assert_allclose(guess, guess_of(after, columns["x"]), rtol=1e-4, atol=1e-5)


def test_beyond_16_a_plan_agrees_with_the_allocator(on_four_devices):
    """Check that the planned memory of parameters and optimizer state agrees with the memory used on the devices."""
    on_four_devices("beyond_16")


def test_beyond_17_equal_models_export_equal_bytes(tmp_path):
    """Check that a program and parameters have equal exported bytes, also from another file, line and process."""
    code = """
        import sys
        import numpy as np
        import fluid

        def elsewhere():
            return fluid.layers.fc(fluid.layers.data("x", shape=[3]), size=1, name="guess")

        params = {"guess.w_0": np.ones((3, 1), "float32"), "guess.b_0": np.zeros(1, "float32")}
        fluid.io.save_inference_model("there.fluid", {"predict": elsewhere}, params, platforms=["cpu"])
    """
    finished(code, tmp_path, fresh=True, PYTHONHASHSEED="77")
    params = {"guess.b_0": np.zeros(1, "float32"), "guess.w_0": np.ones((3, 1), "float32")}
    for path in ("one.fluid", "two.fluid"):
        fluid.io.save_inference_model(tmp_path / path, {"predict": inference_program}, params, platforms=["cpu"])
    one, two, there = ((tmp_path / path).read_bytes() for path in ("one.fluid", "two.fluid", "there.fluid"))
    assert one == two == there
    params["guess.b_0"] = params["guess.b_0"] + 1
    fluid.io.save_inference_model(tmp_path / "other.fluid", {"predict": inference_program}, params, platforms=["cpu"])
    assert (tmp_path / "other.fluid").read_bytes() != one
