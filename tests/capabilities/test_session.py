"""Rows 28 to 36 of the requirements of 2017: Session, used as a user would use it."""

import gc
import os
import sys
import textwrap
import threading

import forked
import jax
import numpy as np
import pytest
from capabilities.processes import python
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


def minimized():
    outputs = train_program()
    SGD.minimize(outputs["loss"])
    return outputs


def test_row_28_sessions_are_independent():
    """Run several Sessions in threads; check that each Session owns all state of its runs."""
    sessions = [fluid.Session(minimized, seed=seed) for seed in (0, 0, 1)]
    before = [dict(session.params()) for session in sessions]
    assert not np.array_equal(before[0]["guess.w_0"], before[2]["guess.w_0"])

    def train(number):
        for batch in minibatches(COLUMNS) * (number + 1):
            sessions[number].step(batch)

    threads = [threading.Thread(target=train, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, session in enumerate(sessions):
        assert int(session.scope.step) == 3 * (number + 1)
        assert_params(session.params(), descend(before[number], minibatches(COLUMNS), 0.1, epochs=number + 1)[0])
    sessions[0].close()
    assert np.isfinite(sessions[1].run(feed=COLUMNS)["loss"])


def test_row_29_the_program_is_inferred_from_the_targets():
    """Check that `run(fetch=, feed=)` finds the program that computes the requested values."""

    def left():
        return layers.identity(layers.data("x", shape=[3]) * 2.0, name="doubled")

    def right():
        return layers.identity(layers.data("x", shape=[3]) + 1.0, name="raised")

    alone = fluid.Session(left)
    (doubled,) = alone.run(fetch="doubled", feed={"x": COLUMNS["x"]})
    np.testing.assert_allclose(doubled, COLUMNS["x"] * 2)
    both = fluid.Session(left, right)
    (raised,) = both.run(fetch=["raised"], feed={"x": COLUMNS["x"]})
    np.testing.assert_allclose(raised, COLUMNS["x"] + 1)
    with pytest.raises(TypeError, match="'left' or 'right'"):
        both.run(fetch=["x"], feed={"x": COLUMNS["x"]})  # each of the two programs has a value x

    training = fluid.Session(left, minimized)
    before = training.params()
    training.step(COLUMNS)  # runs `minimized`, because only this program has an optimizer
    assert_params(training.params(), descend(before, [COLUMNS], 0.1)[0])


def test_row_30_a_feed_overrides_any_edge():
    """Override constants, parameters and results of layers by feeds; an override makes other feeds unnecessary."""

    def product():  # two constants and their product, each with a name
        a = layers.fill_constant([], "float32", 1.0, name="a")
        b = layers.fill_constant([], "float32", 2.0, name="b")
        return layers.identity(a * b, name="c")

    session = fluid.Session(product)
    assert float(session.run(fetch="c")[0]) == 2.0
    assert float(session.run(fetch="c", feed={"a": 3.0})[0]) == 6.0
    assert float(session.run(fetch="c", feed={"a": 3.0, "b": 5.0})[0]) == 15.0
    assert float(session.run(fetch="c", feed={"c": 7.0})[0]) == 7.0
    assert float(session.run(fetch="c")[0]) == 2.0  # a fed value replaces a computed value in one run only

    def net():
        hidden = layers.fc(layers.data("x", shape=[3]), size=4, act="relu", name="hidden")
        return layers.fc(hidden, size=1, name="out")

    session = fluid.Session(net)
    p = session.params()
    given = np.linspace(-1, 1, 20).reshape(5, 4)
    (out,) = session.run(feed={"hidden": given})  # a value for `hidden`, so the feed x is not needed
    np.testing.assert_allclose(out, given @ p["out.w_0"] + p["out.b_0"], rtol=1e-4, atol=1e-6)
    before = COLUMNS["x"] @ p["hidden.w_0"] + p["hidden.b_0"]
    (out,) = session.run(feed={"x": COLUMNS["x"], "out.w_0": np.ones((4, 1))})
    np.testing.assert_allclose(out, np.maximum(before, 0).sum(1, keepdims=True), rtol=1e-4, atol=1e-5)
    (out,) = session.run(feed={"hidden.tmp_1": -given})  # the value before the activation
    np.testing.assert_allclose(out, np.maximum(-given, 0) @ p["out.w_0"], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(session.scope["out.w_0"], p["out.w_0"])
    for shape in ([1, 1], [4, 2], [3, 1]):  # fluid refuses shapes that need a broadcast
        with pytest.raises(ValueError, match=r"'out.w_0' has shape .*expected \[4, 1\];"):
            session.run(feed={"x": COLUMNS["x"], "out.w_0": np.ones(shape)})
    with pytest.raises(ValueError, match=r"'out.b_0' has shape \[24\], expected \[1\];"):
        session.run(feed={"x": COLUMNS["x"], "out.b_0": np.ones(24)})
    with pytest.raises(KeyError, match="hidden"):
        session.run(feed={"x": COLUMNS["x"], "hiden": given})
    with pytest.raises(ValueError, match="'out' and 'out.tmp_1' are one value"):
        session.run(feed={"out": np.zeros((5, 1)), "out.tmp_1": np.ones((5, 1))})


def test_row_30_results_of_operators_and_loops_are_edges():
    """Fetch and override named values of operators, such as `c = a * b`, and of loops."""

    def product():
        a = layers.fill_constant([], "float32", 1.0, name="a")
        b = layers.fill_constant([], "float32", 2.0, name="b")
        return layers.identity(a * b, name="product") + 1.0

    session = fluid.Session(product)
    assert float(session.run(fetch="product")[0]) == 2.0
    assert float(session.run(feed={"product": 5.0})[0]) == 6.0
    assert float(session.run(feed={"a": 3.0}, fetch="product")[0]) == 6.0

    def loop():
        start = layers.data("x", shape=[2])
        last, _ = layers.scan(lambda h, _: (layers.scale(h, 2.0, name="state"), None), start, length=3)
        return {"last": last}

    session, x = fluid.Session(loop), np.array([[1.0, 2.0]], "float32")
    (states,) = session.run(feed={"x": x}, fetch="state")
    np.testing.assert_allclose(states, [x * 2, x * 4, x * 8])
    (last,) = session.run(feed={"x": x, "state": x * 7}, fetch="last")  # the feed replaces `state` in every step
    np.testing.assert_allclose(last, x * 7)


def test_row_31_the_same_calls_here_and_elsewhere(tmp_path, on_four_devices):
    """Check that equal calls run in this process, on several devices and on a server; only one argument differs."""
    on_four_devices("row_31")
    params = fluid.Session(inference_program).params()
    fluid.io.save_inference_model(tmp_path / "line.fluid", inference_program, params, platforms=["cpu"])
    with fluid.serve(tmp_path / "line.fluid", port=0, max_batch=32) as server:
        elsewhere = fluid.Inferencer(url=server.url)
        for inferencer in (fluid.Inferencer(inference_program, params=params), elsewhere):
            (guess,) = inferencer.infer({"x": COLUMNS["x"]})
            np.testing.assert_allclose(guess, guess_of(params, COLUMNS["x"]), rtol=1e-5, atol=1e-6)
            with pytest.raises(ValueError, match="'x'"):
                inferencer.infer({"x": np.ones((2, 4), "float32")})

    online = fluid.OnlineTrainer(train_program, SGD, tmp_path / "online", batch_size=8, test_every=None)
    with online, online.serve(port=0) as server:
        for trainer in (online, fluid.RemoteTrainer(server.url)):
            first = trainer.send(COLUMNS)
            save_after(trainer.save, (first + 24) // 8)
            assert trainer.pause()["state"] == "paused"
            assert trainer.resume()["state"] != "paused"


def test_row_31_a_trainer_that_runs_elsewhere(tmp_path):
    """Train, test, save and receive events of a Trainer in another process, by `fluid.RemoteTrainer(url)`."""
    (tmp_path / "make.py").write_text(
        textwrap.dedent(
            """
            import fluid
            from line_by_numpy import data, minibatches, train_program


            def make_trainer():
                return fluid.Trainer(train_program, fluid.optimizer.SGD(0.1)), minibatches(data()), minibatches(data())
            """
        )
    )
    command = ["-m", "fluid", "remote", "make.py:make_trainer", "--port", "0"]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with forked.Process(*command, cwd=tmp_path, env=paths, stderr=None) as server:
        try:
            remote = fluid.RemoteTrainer(server.stdout.readline().strip())
            remote.train(num_epochs=2)
            losses = [event["metrics"]["loss"] for event in remote.events() if event["event"] == "EndStepEvent"]
            after, expected = descend(fluid.Session(train_program).params(), minibatches(COLUMNS), 0.1, epochs=2)
            np.testing.assert_allclose(losses, expected, rtol=1e-4)
            error = guess_of(after, COLUMNS["x"]) - COLUMNS["y"]
            np.testing.assert_allclose(remote.test()["loss"], (error**2).mean(), rtol=1e-4)
            assert_params(fluid.io.load_arrays(tmp_path / remote.save()["saved"])[0], after)
        finally:
            server.terminate()


def test_row_32_devices_are_strings(on_four_devices):
    """Select one, several or all devices by strings; several Sessions may use one device."""
    on_four_devices("row_32")


def test_row_32_devices_in_every_spelling(tmp_path):
    """Select devices by `place=`: a jax.Device, a string in capitals, a string of several devices, or a list.

    The argument `parallel=` is not necessary.
    """
    python(
        """
        import jax
        import fluid
        from line_by_numpy import data, train_program
        devices = jax.devices()
        for place, expected in (
            (devices[2], {2}), ("CPU:1", {1}), ("cpu:1,cpu:2", {1, 2}), (["cpu:0", "cpu:3"], {0, 3}),
            ([devices[0], "CPU:1"], {0, 1}), ("CPU", {0}),
        ):
            session = fluid.Session(train_program, place=place)
            session.run(feed=data())
            found = session.scope.arrays["guess.w_0"].devices()
            assert found == {devices[number] for number in expected}, (place, found)
        """,
        tmp_path,
        devices=4,
    )


def test_row_33_configuration_belongs_to_a_run(tmp_path):
    """Configure devices and precision by arguments of the Trainer and the Inferencer; the program does not change."""
    precise = fluid.Trainer(train_program, SGD, place="cpu", seed=3)
    coarse = fluid.Trainer(train_program, SGD, parallel=True, precision="bfloat16", seed=3)
    for trainer in (precise, coarse):
        trainer.train(minibatches(COLUMNS), progress=False)
    for name, value in precise.params.items():
        assert 0 < abs(np.asarray(value) - coarse.params[name]).max() < 0.02
    answers = [
        fluid.Inferencer(inference_program, params=precise.params, **config).infer({"x": COLUMNS["x"]})[0]
        for config in ({}, {"place": fluid.CPUPlace()}, {"parallel": True}, {"precision": "bfloat16"})
    ]
    np.testing.assert_allclose(answers[1], answers[0], rtol=1e-6)
    np.testing.assert_allclose(answers[2], answers[0], rtol=1e-6)
    assert 0 < abs(np.asarray(answers[3], "float32") - answers[0]).max() < 0.05


def test_row_34_close_releases_and_jobs_start_and_stop():
    """Check that `close()` frees a Session's arrays, and that a training stopped by another thread can start again."""

    def allocated():
        gc.collect()
        return sum(array.size > 2 for array in jax.live_arrays())  # counters and random keys have at most 2 numbers

    before = allocated()
    session = fluid.Session(minimized)
    session.step(COLUMNS)
    with fluid.Session(minimized):
        assert allocated() > before
    session.close()
    session.close()
    assert allocated() == before
    with pytest.raises(fluid.errors.FluidError, match="closed"):
        session.run(feed=COLUMNS)

    trainer, running = fluid.Trainer(train_program, SGD), threading.Event()

    def stop():
        running.wait()
        trainer.stop()

    def endless():
        while True:
            yield COLUMNS

    stopper = threading.Thread(target=stop)
    stopper.start()
    trainer.train(endless, event_handler=lambda event: running.set(), progress=False)
    stopper.join()
    done, before = int(trainer.session.scope.step), dict(trainer.params)
    assert done > 0
    trainer.train([COLUMNS], 2, progress=False)
    assert int(trainer.session.scope.step) == done + 2
    assert_params(trainer.params, descend(before, [COLUMNS], 0.1, epochs=2)[0])


def test_row_35_save_and_load_all_or_some(tmp_path):
    """Save and load everything, or a selection by names and globs."""

    def program():
        hidden = layers.fc(layers.data("x", shape=[3]), size=4, name="body")
        loss = layers.mean(layers.square(layers.fc(hidden, size=1, name="head")))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
        return loss

    session = fluid.Session(program)
    session.step({"x": COLUMNS["x"]})
    session.save(tmp_path / "all")
    session.save_params(tmp_path / "body", names=["body.*"])
    saved = dict(session.params())
    after = [float(session.step({"x": COLUMNS["x"]})[0]) for _ in range(3)]

    again = fluid.Session(program, seed=9)
    again.load(tmp_path / "all")  # the saved session also has the velocities of Momentum
    assert int(again.scope.step) == 1
    assert [float(again.step({"x": COLUMNS["x"]})[0]) for _ in range(3)] == after

    other = fluid.Session(program, seed=9)
    head = np.asarray(other.scope["head.w_0"])
    with pytest.raises(fluid.errors.ParameterError, match="head.w_0"):
        other.load_params(tmp_path / "body")  # the file has no weight of the layer head
    assert not np.array_equal(other.scope["body.w_0"], saved["body.w_0"])  # the failed load changed nothing
    report = other.load_params(tmp_path / "body", skip=["head.*"])
    assert sorted(report.taken) == ["body.b_0", "body.w_0"]
    np.testing.assert_array_equal(other.scope["body.w_0"], saved["body.w_0"])
    np.testing.assert_array_equal(other.scope["head.w_0"], head)
    with pytest.raises(KeyError, match="body"):
        session.save_params(tmp_path / "none", names=["bdy.*"])


def test_row_35_a_subset_is_loaded_by_names(tmp_path):
    """Check that names and globs select arrays to load from a file, in each class that loads files."""

    def program():
        hidden = layers.fc(layers.data("x", shape=[3]), size=4, name="body")
        loss = layers.mean(layers.square(layers.fc(hidden, size=1, name="head")))
        fluid.optimizer.Momentum(0.1, 0.9).minimize(loss)
        return loss

    first = fluid.Session(program)
    first.step({"x": COLUMNS["x"]})
    first.save(tmp_path / "all")
    first.save_params(tmp_path / "params")
    for load in (
        lambda session: session.load(tmp_path / "all", names=["body.*"]),
        lambda session: session.load_params(tmp_path / "params", names="body.*"),
    ):
        second = fluid.Session(program, seed=5)
        head = np.asarray(second.scope["head.w_0"])
        load(second)
        np.testing.assert_array_equal(second.scope["body.w_0"], first.scope["body.w_0"])
        np.testing.assert_array_equal(second.scope["head.w_0"], head)
        with pytest.raises(KeyError, match="body"):
            second.load(tmp_path / "all", names=["bdy.*"])


def test_row_36_inference_is_another_target():
    """Infer between the steps of a training Session; no label is needed, and no state changes."""
    session = fluid.Session(minimized)
    for batch in minibatches(COLUMNS):
        session.step(batch)
        before = dict(session.params())
        (guess,) = session.run(feed={"x": COLUMNS["x"]}, fetch="guess", mode="test")
        np.testing.assert_allclose(guess, guess_of(before, COLUMNS["x"]), rtol=1e-4, atol=1e-5)
        assert all(np.array_equal(before[name], value) for name, value in session.params().items())
    assert int(session.scope.step) == 3


def test_row_36_inference_needs_no_label_sequence():
    """Check that a net that tags words makes predictions without a feed for the true tags.

    In predictions, true tags are ignored, even with wrong lengths.
    """

    def tagger():
        words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
        tags = layers.data("tags", shape=[1], dtype="int64", lod_level=1)
        scores = layers.fc(layers.embedding(words, size=[9, 4]), size=3, act="softmax", name="scores")
        loss = layers.mean(layers.cross_entropy(scores, tags))
        SGD.minimize(loss)
        return {"loss": loss}

    session, rows = fluid.Session(tagger), [[1, 2, 3], [4]]
    p = {name: np.asarray(value) for name, value in session.params().items()}
    exponents = [np.exp(p["embedding_0.w_0"][row] @ p["scores.w_0"] + p["scores.b_0"]) for row in rows]
    expected = [e / e.sum(axis=1, keepdims=True) for e in exponents]
    for feed in ({"words": rows}, {"words": rows, "tags": [[0], [1, 2]]}):
        (scores,) = session.run(feed=feed, fetch="scores", mode="test")
        found = [np.asarray(scores.data)[row, : len(rows[row])] for row in range(2)]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5)
