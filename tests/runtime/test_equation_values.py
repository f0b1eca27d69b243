"""Named values inside loops and branches, and results of operators under the name of `layers.identity`."""

import numpy as np
import pytest

import fluid
from fluid import errors, layers

A = np.arange(6, dtype="float32").reshape(2, 3)
B = A + 1
FEED = {"a": A, "b": B}
ROWS = [[[1], [2], [3]], [[4], [5]]]


def program():
    a = layers.data("a", shape=[3])
    b = layers.data("b", shape=[3])
    shifted = layers.identity(a * b, name="product") + 1.0
    label = layers.data("label", shape=[1])
    out = layers.fc(shifted, size=2, name="out")
    branch = layers.cond(
        layers.reduce_sum(a) > 0,
        lambda: layers.fc(shifted, size=2, name="yes") * 3.0,
        lambda: layers.fc(shifted, size=2, name="no"),
    )

    def step(carry, _):
        state = layers.fc(carry, size=3, name="state", act="tanh")
        return layers.identity(state * 2.0, name="doubled"), state

    last, every = layers.scan(step, shifted, length=4)
    stack = layers.repeat(lambda h: layers.fc(h, size=3, name="block", act="relu") + h, 3, shifted, remat=True)
    loss = layers.mean(layers.square_error_cost(layers.fc([out, last], size=1), label))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return {"loss": loss, "out": out, "branch": branch, "last": last, "every": every, "stack": stack}


def small():
    product = layers.identity(layers.data("a", shape=[3]) * layers.data("b", shape=[3]), name="product")
    last, _ = layers.scan(lambda c, _: (layers.scale(c, 0.5, name="state"), None), product, length=2)
    loss = layers.mean(layers.fc(last, size=1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss


def recurrent():
    words = layers.embedding(layers.data("words", shape=[1], dtype="int64", lod_level=1), size=[9, 4])
    rnn = layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(words)
        memory = rnn.memory(shape=[4], value=0.0)
        hidden = layers.fc(layers.identity(word + memory, name="total"), size=4, act="tanh", name="hidden")
        rnn.update_memory(memory, hidden)
        rnn.output(hidden)
    return {"y": rnn()}


def static_rnn():
    steps = layers.transpose(layers.data("x", shape=[5, 3]), [1, 0, 2])
    rnn = layers.StaticRNN()
    with rnn.step():
        step = rnn.step_input(steps)
        memory = rnn.memory(shape=[-1, 3], batch_ref=steps)
        hidden = layers.fc([step, memory], size=3, name="hidden")
        rnn.update_memory(memory, hidden)
        rnn.step_output(hidden)
    return {"y": rnn()}


@pytest.fixture(scope="module")
def session():
    return fluid.Session(program)


def run(session, fetch, over=(), feed=FEED):
    return session.run(feed={**feed, **dict(over)}, fetch=fetch, mode="test")


def test_an_operator_is_overridden(session):
    name = "product"
    wanted = run(session, ["out", "stack"], {"a": np.ones_like(A), "b": B})
    # The override replaces the product of the feeds `a` and `b`, so both feeds are not needed.
    found = session.run(feed={name: B}, fetch=["out", "stack"], mode="test")
    for value, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5)
    (filled,) = run(session, "out", {name: 2.0})
    np.testing.assert_allclose(filled, run(session, "out", {name: np.full_like(A, 2)})[0], rtol=1e-6)


def test_a_scalar_override_needs_the_feeds_for_sizes():
    session = fluid.Session(program)
    session.run(feed={"product": B}, fetch="out", mode="test")
    for name in ("product", "out.tmp_0"):
        with pytest.raises(errors.FeedError, match="needs the feeds 'a', 'b'"):
            session.run(feed={name: 5.0}, fetch="out", mode="test")


def test_values_in_loops_are_stacked_over_steps(session):
    state, doubled, every, last, block, stack = run(
        session, ["state", "doubled", "every", "last", "repeat_0/block", "stack"]
    )
    np.testing.assert_array_equal(state, every)
    np.testing.assert_array_equal(doubled, 2 * np.asarray(every))
    np.testing.assert_array_equal(doubled[-1], last)
    np.testing.assert_allclose(A * B + 1 + np.sum(block, axis=0), stack, rtol=1e-5)


@pytest.mark.parametrize(("sign", "taken", "other"), [(1, "yes", "no"), (-1, "no", "yes")])
def test_a_branch_not_taken_is_nan(session, sign, taken, other):
    found = run(session, [taken, other, "branch"], {"a": sign * A})
    np.testing.assert_allclose(found[2], np.asarray(found[0]) * (3 if taken == "yes" else 1), rtol=1e-6)
    assert np.isnan(found[1]).all()


@pytest.mark.parametrize("value", [7.0, np.full((2, 3), 7, "float32")], ids=["scalar", "array"])
def test_a_loop_value_is_overridden_in_every_step(session, value):
    every, last, state = run(session, ["every", "last", "state"], {"state": value})
    assert (np.asarray(every) == 7).all() and (np.asarray(last) == 14).all() and (np.asarray(state) == 7).all()
    (last,) = run(session, ["last"], {"doubled": value})
    assert (np.asarray(last) == 7).all()
    (stack,) = run(session, ["stack"], {"repeat_0/block": value})
    np.testing.assert_allclose(stack, A * B + 1 + 21, rtol=1e-6)
    (branch,) = run(session, ["branch"], {"yes": 2.0})
    assert (np.asarray(branch) == 6).all()


def test_dynamic_rnn_values_are_stacked_over_steps():
    session = fluid.Session(recurrent)
    feed = {"words": ROWS}
    hidden, y, total = run(session, ["hidden", "y", "total"], feed=feed)
    assert hidden.shape == total.shape == (y.data.shape[1], 2, 4)
    for row, steps in enumerate((3, 2)):
        np.testing.assert_array_equal(hidden[:steps, row], y.data[row, :steps])
    weights = session.scope["hidden.w_0"]
    np.testing.assert_allclose(np.tanh(np.asarray(total) @ weights), hidden, atol=1e-6)
    (y,) = run(session, "y", {"hidden": 0.25}, feed)
    assert all((np.asarray(row) == 0.25).all() for row in y.rows())


def test_static_rnn_values_are_fetched_and_overridden():
    session = fluid.Session(static_rnn)
    feed = {"x": np.ones((2, 5, 3), "float32")}
    np.testing.assert_array_equal(*run(session, ["hidden", "y"], feed=feed))
    assert (np.asarray(run(session, "y", {"hidden": 2.0}, feed)[0]) == 2).all()


def test_fetching_operator_values_does_not_change_training():
    plain, fetching = fluid.Session(small), fluid.Session(small)
    for _ in range(2):
        loss, product, state = fetching.step(FEED, fetch=["mean_0", "product", "state"])
        np.testing.assert_array_equal(state, [A * B / 2, A * B / 4])
        np.testing.assert_array_equal(product, A * B)
        np.testing.assert_allclose(loss, plain.step(FEED)[0], rtol=1e-6)
    for name, array in plain.scope.items():
        np.testing.assert_allclose(fetching.scope[name], array, rtol=1e-5, atol=1e-6)


def test_every_call_with_fetch_returns_operator_values(tmp_path):
    trainer = fluid.Trainer(small)
    wanted = [[A * B / 2, A * B / 4], A * B]
    names = ["state", "product"]
    seen = []

    def handler(event):
        if isinstance(event, fluid.BeginStepEvent):
            event.fetch(names)
        if isinstance(event, fluid.EndStepEvent):
            seen.append(event.fetched)

    trainer.save_inference_model(tmp_path / "net.fluid", fetch=names)
    exported = fluid.Inferencer(param_path=tmp_path / "net.fluid")
    inferencer = fluid.Inferencer(small, params=trainer.params)
    trainer.session.feed(FEED)
    founds = [exported.infer(FEED), inferencer.infer(FEED, fetch=names), trainer.session.value(names)]
    trainer.train([list(zip(A, B, strict=True))], 1, handler, ["a", "b"])
    for found in (*founds, seen[0]):
        for name, value in zip(names, wanted, strict=True):
            np.testing.assert_allclose(found[name], value, rtol=1e-5)


@pytest.mark.parametrize(
    ("fetch", "over", "words"),
    [
        ("elementwise_mul_0", {}, "layers.identity"),
        ("sta.te", {}, "Did you mean 'state'"),
        ("state@GRAD", {}, "gradients exist of"),
        ("out", {"product": np.ones((2, 4), "float32")}, r"has shape \[2, 4\], expected \[2, 3\]"),
        ("last", {"state": np.ones((2, 4), "float32")}, r"has shape \[2, 4\], expected \[2, 3\]"),
    ],
)
def test_wrong_fetches_and_overrides_are_refused(session, fetch, over, words):
    with pytest.raises(errors.FluidError, match=words):
        run(session, fetch, over)


def test_tests_and_exported_feeds_refuse_operator_values(tmp_path):
    trainer = fluid.Trainer(small)
    with pytest.raises(errors.UnknownNameError, match="found a value of a loop or branch"):
        trainer.test([[(A[0], B[0])]], fetch="state")
    with pytest.raises(errors.ArgumentError, match="found a value inside a loop"):
        fluid.io.save_inference_model(tmp_path / "net", small, trainer.params, ["state"], "fc_0")


def test_train_mode_values_are_refused_in_test_mode():
    def net():
        x = layers.data("a", shape=[3])
        loop = lambda: layers.scan(lambda c, _: (layers.scale(c, 2.0, name="twice"), None), x, length=1)[0]  # noqa: E731
        return layers.fc(loop() if layers.is_training() else x, size=1)

    with pytest.raises(errors.UnknownNameError, match="in train mode, and a run in test mode"):
        run(fluid.Session(net), "twice", feed={"a": A})
