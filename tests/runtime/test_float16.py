"""Dynamic loss scaling of float16: training follows float32, checkpoints hold the scale, and NaN is still reported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors, layers
from fluid.optimizer import optax_chain

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4)).astype("float32")
Y = np.tanh(X @ [[1.0], [-2.0], [0.5], [3.0]]).astype("float32")
FEED = {"x": X, "y": Y}
# For this feed, the gradients overflow at the initial loss scale, but the loss does not.
BIG = {"x": X * 20, "y": Y}


def linear(optimizer, factor=0.01):
    """Return the program of a linear net with a squared error times `factor`; the factor scales the gradients too."""

    def program():
        x, y = layers.data("x", shape=[4]), layers.data("y", shape=[1])
        error = layers.fc(x, size=1, param_attr="w", bias_attr="b") - y
        loss = layers.mean(layers.square(error)) * factor
        optimizer.minimize(loss)
        return loss

    return program


def session_of(optimizer=None, factor=0.01, precision="float16", **options):
    return fluid.Session(linear(optimizer or fluid.optimizer.SGD(0.1), factor), precision=precision, **options)


def scale_of(session):
    (slots,) = (slots[0] for slots in session.scope.slots.values())
    return float(slots.scale)


def arrays_of(session, without=()):
    return {n: np.array(v) for n, v in session.state().items() if not n.endswith(without)}


def test_float16_has_dynamic_loss_scaling_and_follows_float32():
    """Train with gradients of 1e-9, which are zero in float16 unless the loss is scaled."""
    sessions = [session_of(fluid.optimizer.SGD(1e7), 1e-9, precision) for precision in ("float32", "float16")]
    start = np.asarray(sessions[0].scope["w"])
    for _ in range(20):
        losses = [float(session.run(feed=FEED)[0]) for session in sessions]
        assert losses[1] == pytest.approx(losses[0], rel=0.03)
    exact, half = (np.asarray(session.scope["w"]) for session in sessions)
    assert np.abs(exact - start).max() > 0.1
    np.testing.assert_allclose(half, exact, atol=0.03)
    assert scale_of(sessions[1]) == optax_chain.START


def test_small_gradients_vanish_without_the_scale(monkeypatch):
    monkeypatch.setattr(optax_chain, "START", 1.0)
    session = session_of(fluid.optimizer.SGD(1e7), 1e-9)
    before = np.asarray(session.scope["w"])
    session.run(feed=FEED)
    assert np.array_equal(session.scope["w"], before)


@pytest.mark.full
def test_float16_learns_digits_as_well_as_float32(digits):
    def program():
        image, label = layers.data("image", shape=[1, 8, 8]), layers.data("label", shape=[1], dtype="int64")
        hidden = fluid.nets.simple_img_conv_pool(image, 8, 3, 2, 2, act="relu")
        prediction = layers.fc(layers.batch_norm(hidden), size=10, act="softmax")
        return {"loss": layers.mean(layers.cross_entropy(prediction, label)), "acc": layers.accuracy(prediction, label)}

    train = fluid.reader.arrays({"image": digits.train_images, "label": digits.train_labels}, 64, shuffle=True)
    test = fluid.reader.arrays({"image": digits.test_images, "label": digits.test_labels}, 120)
    found = []
    for precision in ("float32", "float16"):
        trainer = fluid.Trainer(program, fluid.optimizer.Adam(3e-3), precision=precision)
        trainer.train(train, 3)
        found.append(float(trainer.test(test)["acc"]))
        dtypes = {str(v.dtype) for v in jax.tree.leaves((trainer.params, trainer.session.scope.slots))}
        assert dtypes <= {"float32", "int32"}
    assert found[0] > 0.8 and found[1] == pytest.approx(found[0], abs=0.03)


def test_overflows_skip_the_update_and_halve_the_scale():
    def program():
        x, y = layers.data("x", shape=[4]), layers.data("y", shape=[1])
        kept = layers.create_state([], name="kept")
        kept.update(kept.value + 1)
        loss = layers.mean(layers.square(layers.fc(x, size=1) - y)) * 0.01
        fluid.optimizer.Adam(0.1).minimize(loss)
        return loss

    session = fluid.Session(program, precision="float16")
    session.run(feed=FEED)
    before = arrays_of(session, ("scale", "finite", "@step"))
    norm, scale = session.run(feed=BIG, fetch=["grad_norm_0", "loss_scale_0"])
    assert not np.isfinite(norm) and scale == optax_chain.START
    after = arrays_of(session, ("scale", "finite", "@step"))
    assert all(after[n].tobytes() == v.tobytes() for n, v in before.items()), "nothing else has changed"
    assert scale_of(session) == optax_chain.START / 2 and int(session.scope.step) == 2
    session.run(feed=FEED)
    assert session.scope["kept"] == 2 and not np.array_equal(session.scope["fc_0.w_0"], before["fc_0.w_0"])


def scales_by_hand(finite, patience):
    """Return the loss scale before each step; `finite` holds True for each step with finite gradients."""
    scale, count, found = optax_chain.START, 0, []
    for good in finite:
        found.append(scale)
        count = count + 1 if good else 0
        if not good:
            scale = max(scale / 2, 1.0)
        elif count == patience:
            scale, count = min(scale * 2, optax_chain.MOST), 0
    return found


def test_the_scale_follows_finite_and_overflowing_steps(monkeypatch):
    monkeypatch.setattr(optax_chain, "PATIENCE", 3)
    finite = [True] * 7 + [False] * 3 + [True] * 4 + [False] + [True] * 40
    rule = optax_chain.skip_overflows(fluid.optimizer.SGD(0.1).rule())
    params = {"w": jnp.ones(2), "b": jnp.ones(())}
    state = rule.init(params)
    update = jax.jit(rule.update)
    scales = []
    for i, good in enumerate(finite):
        scales.append(float(state.scale))
        bad = (jnp.nan, jnp.inf)[i % 2]
        updates, state = update({"w": jnp.array([1.0, 1.0 if good else bad]), "b": jnp.float32(2.0)}, state, params)
        np.testing.assert_allclose([updates["w"][0], updates["b"]], (-0.1, -0.2) if good else (0.0, 0.0))
    assert scales == scales_by_hand(finite, 3) and max(scales) == optax_chain.MOST


def test_fetched_gradients_are_unscaled():
    sessions = [session_of(precision=precision) for precision in ("float32", "float16")]
    names = ["w@GRAD", "x@GRAD", "fc_0.tmp_0@GRAD", "grad_norm_0"]
    exact, half = (session.run(feed=FEED, fetch=names) for session in sessions)
    for name, value in zip(names, exact, strict=True):
        np.testing.assert_allclose(half[name], value, rtol=0.02, atol=2e-3, err_msg=name)
        assert half[name].dtype == "float32"


@pytest.mark.parametrize(
    "optimizer",
    [
        fluid.optimizer.Adam(0.1, accumulate_steps=2),
        fluid.optimizer.Lookahead(fluid.optimizer.Momentum(0.05), k=2),
        fluid.optimizer.ExponentialMovingAverage(0.5).track(fluid.optimizer.Adam(0.1)),
        fluid.optimizer.AdamW(lambda count: 0.1 * 0.9**count, grad_clip=fluid.clip.GradientClipByGlobalNorm(1.0)),
    ],
    ids=["accumulated", "lookahead", "averaged", "schedule"],
)
def test_a_skipped_update_leaves_no_trace(optimizer):
    with_overflow, without = session_of(optimizer), session_of(optimizer)
    for step in range(5):
        if step == 3:
            with_overflow.run(feed=BIG)
        for session in (with_overflow, without):
            session.run(feed=FEED)
    left_out = ("scale", "finite", "@step")
    found, wanted = arrays_of(with_overflow, left_out), arrays_of(without, left_out)
    assert scale_of(with_overflow) == scale_of(without) / 2
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-7, err_msg=name)


def test_gradients_of_sequences_keep_their_lengths():
    def program():
        words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
        rows = layers.identity(layers.embedding(words, size=[9, 4], param_attr="table"), name="rows")
        return minimized(layers.mean(layers.sequence_pool(rows, "sum")))

    sessions = [fluid.Session(program, precision=precision) for precision in ("float32", "float16")]
    exact, half = (s.run(feed={"words": [[1, 2, 3], [4]]}, fetch=["rows@GRAD"])[0] for s in sessions)
    assert half.lengths.tolist() == [3, 1]
    np.testing.assert_allclose(half.data, exact.data, rtol=1e-2)


def minimized(loss):
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss


def test_the_parameter_average_is_found_inside_the_scaling():
    ema = fluid.optimizer.ExponentialMovingAverage(0.5)
    session = session_of(ema.track(fluid.optimizer.SGD(0.1)))
    for _ in range(2):
        session.run(feed=FEED)
    assert set(ema.values(session)) == {"w", "b"}


def test_every_minimize_has_a_separate_scale():
    def program():
        x, y = layers.data("x", shape=[4]), layers.data("y", shape=[1])
        first = layers.mean(layers.square(layers.fc(x, size=1, param_attr="w", bias_attr=False))) * 0.01
        second = layers.mean(layers.square(layers.fc(y, size=1, param_attr="v", bias_attr=False))) * 0.01
        fluid.optimizer.SGD(0.01).minimize(first, parameter_list=["w"])
        fluid.optimizer.SGD(0.01).minimize(second, parameter_list=["v"])
        return first + second

    session = fluid.Session(program, precision="float16")
    before = session.params()
    session.run(feed=BIG)
    scales = [float(v) for v in session.run(feed=FEED, fetch=["loss_scale_0", "loss_scale_1"])]
    assert scales == [optax_chain.START / 2, optax_chain.START]
    assert not np.array_equal(before["v"], session.scope["v"])


def test_one_overflow_of_two_losses_keeps_all_states():
    def program():
        x, y = layers.data("x", shape=[4]), layers.data("y", shape=[1])
        hidden = layers.fc(x, size=1, param_attr="w", bias_attr=False)
        statistics = layers.create_state([1], name="seen")
        statistics.update(layers.reduce_mean(y, dim=0))
        first = layers.mean(layers.square(hidden)) * 0.01
        second = layers.mean(layers.square(layers.fc(y, size=1, param_attr="v", bias_attr=False))) * 0.01
        fluid.optimizer.SGD(0.01).minimize(first, parameter_list=["w"])
        fluid.optimizer.SGD(0.01).minimize(second, parameter_list=["v"])
        return first + second

    session = fluid.Session(program, precision="float16")
    session.run(feed=BIG)
    np.testing.assert_array_equal(session.scope["seen"], [0])
    session.run(feed=FEED)
    assert session.scope["seen"] != 0


def test_an_overflow_skips_sparse_tables():
    def program():
        ids, factor = layers.data("ids", shape=[1], dtype="int64"), layers.data("factor", shape=[1])
        rows = layers.embedding(ids, size=[10, 4], is_sparse=True, param_attr="table")
        loss = layers.mean(layers.fc(rows, size=3, param_attr="w") * factor) * 0.1
        fluid.optimizer.Adagrad(0.1).minimize(loss)
        return loss

    sessions = [fluid.Session(program, precision=p) for p in ("float32", "float16")]
    assert sessions[1].engine.rules["program"][0].tables == ("table",)
    ids = [[1], [2], [1]]
    before = np.asarray(sessions[1].scope["table"])
    sessions[1].run(feed={"ids": ids, "factor": np.full((3, 1), 1e3)})
    assert np.array_equal(before, sessions[1].scope["table"]) and scale_of(sessions[1]) == optax_chain.START / 2
    for session in sessions:
        session.run(feed={"ids": ids, "factor": np.ones((3, 1))})
    np.testing.assert_allclose(sessions[1].scope["table"], sessions[0].scope["table"], atol=2e-3)
    assert not np.array_equal(before, sessions[1].scope["table"])


# The loss scale in checkpoints.


class Killed(BaseException):
    pass


def test_a_resumed_training_restores_the_scale_exactly(tmp_path):
    x = np.concatenate([X[:8], X[:8] * 20, X[8:], X[:8]])
    data = fluid.reader.arrays((x, np.tile(Y[:8], (4, 1))), batch_size=8)

    def make(folder):
        config = fluid.CheckpointConfig(tmp_path / folder, step_interval=1)
        return fluid.Trainer(linear(fluid.optimizer.Adam(0.1)), precision="float16", checkpoint_config=config)

    def kill(event):
        if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == (1, 2):
            raise Killed

    whole = make("whole")
    whole.train(data, 3)
    with pytest.raises(Killed):
        make("cut").train(data, 3, event_handler=kill)
    resumed = make("cut")
    assert scale_of(resumed.session) == optax_chain.START / 2
    resumed.train(data, 3)
    found, wanted = arrays_of(resumed.session), arrays_of(whole.session)
    assert found.keys() == wanted.keys() and all(found[n].tobytes() == v.tobytes() for n, v in wanted.items())


# Tests of NaN reports: the loss scale does not hide a NaN of the program.


def test_an_overflow_of_the_scale_is_not_reported():
    data = fluid.reader.arrays((np.concatenate([X, X * 20, X]), np.tile(Y, (3, 1))), batch_size=16)
    trainer = fluid.Trainer(linear(fluid.optimizer.SGD(0.01)), precision="float16")
    trainer.train(data, handlers=[fluid.handlers.TerminateOnNaN(report=True)])
    assert scale_of(trainer.session) == optax_chain.START / 2


def rooted():
    x = layers.data("x", shape=[4])
    return layers.mean(layers.sqrt(layers.square(layers.fc(x, size=2, bias_attr=False))))


def test_a_nan_gradient_is_reported_at_scale_1():
    """Train on sqrt(0), which has no finite gradient: the scale falls to 1, then the next NaN is reported."""
    data = [[(np.zeros(4, "float32"),)] for _ in range(40)]
    trainer = fluid.Trainer(rooted, fluid.optimizer.SGD(0.1), precision="float16")
    with pytest.raises(errors.NonFiniteError, match=r"The loss is finite, and the gradient with respect to 'square_0"):
        trainer.train(data, handlers=[fluid.handlers.TerminateOnNaN(report=True)])
    assert int(trainer.session.scope.step) == np.log2(optax_chain.START) and scale_of(trainer.session) == 1


def test_a_nan_loss_is_reported_at_once():
    trainer = fluid.Trainer(linear(fluid.optimizer.SGD(0.1)), precision="float16")
    noticed = pytest.warns(errors.FluidWarning, match="feed 'x', sample 0, batch 0: found NaN")
    with noticed, pytest.raises(errors.NonFiniteError, match="feed 'x'"):
        trainer.train([(X * np.nan, Y)], handlers=[fluid.handlers.TerminateOnNaN(report=True)])


# Tests of the loss scale: custom training steps in float16 use a scale, and programs in other precisions have no scale.


def test_custom_steps_are_scaled():
    def plain(step):
        here = step.losses_and_gradients()
        parameters, slots = step.update(here.gradients)
        return parameters, slots, here

    sessions = [session_of(fluid.optimizer.Adam(0.1), step=step) for step in (None, plain)]
    for feed in (FEED, BIG, FEED):
        for session in sessions:
            session.run(feed=feed)
    found, wanted = arrays_of(sessions[1]), arrays_of(sessions[0])
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-7, err_msg=name)
    assert scale_of(sessions[1]) == optax_chain.START / 2


def test_only_float16_has_a_scale():
    for precision in (None, "float32", "bfloat16"):
        session = session_of(precision=precision)
        assert not [n for n in session.state() if "scale" in n]
        with pytest.raises(errors.UnknownNameError, match="loss_scale_0"):
            session.run(feed=FEED, fetch=["loss_scale_0"])


def test_gradient_monitor_logs_the_scale():
    seen = []
    trainer = fluid.Trainer(linear(fluid.optimizer.SGD(0.01)), precision="float16")
    data = fluid.reader.arrays((np.concatenate([X, X * 20, X]), np.tile(Y, (3, 1))), batch_size=16)
    trainer.train(
        data,
        handlers=[fluid.handlers.GradientMonitor()],
        event_handler=lambda e: isinstance(e, fluid.MeasuredEvent) and seen.append(float(e.metrics["loss_scale_0"])),
    )
    assert seen == [optax_chain.START, optax_chain.START, optax_chain.START / 2]


def test_inference_in_float16():
    params = session_of().params()

    def infer():
        return layers.fc(layers.data("x", shape=[4]), size=1, param_attr="w", bias_attr="b")

    exact, half = (fluid.Inferencer(infer, params=params, precision=p).infer({"x": X})[0] for p in (None, "float16"))
    assert half.dtype == "float16"
    np.testing.assert_allclose(half, exact, rtol=1e-2, atol=1e-2)
