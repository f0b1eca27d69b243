"""Lookahead and averages of parameters: compared with NumPy in float64 and optax, in Sessions, Trainers and files."""

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optimizer_by_numpy import GRADS, START, assert_close, numpy_trajectory, run, trajectory

import fluid
from fluid import errors, layers
from fluid.optimizer import SGD, ExponentialMovingAverage, Lookahead, ModelAverage, Momentum

MANY = GRADS * 4


def momentum(n, p, g, m, t):
    m["v"] = 0.8 * m.get("v", 0) + g
    return p - 0.1 * m["v"]


def slow_and_fast(alpha, k):
    def rule(n, p, g, m, t):
        slow, fast = m.get("slow", p), momentum(n, p, g, m, t)
        if t % k == 0:
            slow = fast = slow + alpha * (fast - slow)
        m["slow"] = slow
        return fast

    return rule


@pytest.mark.parametrize(("alpha", "k"), [(0.5, 5), (0.2, 2), (1.0, 3), (0.7, 1)])
def test_lookahead_matches_numpy(alpha, k):
    found = trajectory(Lookahead(Momentum(0.1, 0.8), alpha, k), grads=MANY)
    for got, want in zip(found, numpy_trajectory(slow_and_fast(alpha, k), grads=MANY), strict=True):
        assert_close(got, want)


def test_lookahead_is_optaxs():
    tx = optax.lookahead(optax.sgd(0.1, 0.8), sync_period=4, slow_step_size=0.3)
    params = optax.LookaheadParams.init_synced({n: jnp.asarray(v, "float32") for n, v in START.items()})
    state = tx.init(params)
    for grads in MANY:
        updates, state = tx.update({n: jnp.asarray(g, "float32") for n, g in grads.items()}, state, params)
        params = optax.apply_updates(params, updates)
    found = run(Lookahead(optax.sgd(0.1, 0.8), alpha=0.3, k=4), grads=MANY)
    assert_close(found, {n: np.asarray(v) for n, v in params.fast.items()})


def test_lookahead_starts_from_the_loaded_parameters():
    """Check that the first update of Lookahead starts from the current parameters, for example from loaded parameters.

    The parameters at the creation of the optimizer state must not count.
    """
    optimizer = Lookahead(SGD(0.1), alpha=0.5, k=1)
    tx = optimizer.transformation({})
    updates, _ = tx.update({"w": jnp.ones(2)}, tx.init({"w": jnp.full(2, 9.0)}), {"w": jnp.full(2, 5.0)})
    np.testing.assert_allclose(updates["w"], -0.05, rtol=1e-5)


def test_lookahead_heeds_the_settings_of_parameters():
    settings = {"w": fluid.ParamAttr(learning_rate=0.5)}
    found = run(Lookahead(SGD(0.1), k=2), settings)
    assert_close(found, {"w": run(Lookahead(SGD(0.05), k=2))["w"], "b": run(Lookahead(SGD(0.1), k=2))["b"]})


@pytest.mark.parametrize("options", [{"alpha": -0.1}, {"alpha": 0}, {"alpha": 2}, {"k": 0}, {"k": 2.0}, {"k": True}])
def test_lookahead_refuses(options):
    with pytest.raises(errors.ArgumentError, match="Lookahead"):
        Lookahead(SGD(0.1), **options)


def test_lookahead_needs_an_optimizer():
    with pytest.raises(errors.ArgumentTypeError, match="optimizer"):
        Lookahead(0.1)
    assert fluid.optimizer.LookaheadOptimizer is Lookahead


X = np.random.default_rng(3).normal(size=(40, 4, 3)).astype("float32")


def regression():
    x = layers.data("x", shape=[3])
    y = layers.fc(x, size=2, act="tanh")
    return layers.mean(layers.square(layers.batch_norm(y)) - layers.reduce_sum(y, dim=1, keep_dim=True))


def averaging(average, **options):
    """Return a Session whose program trains a net by SGD, and updates `average`, an average of the parameters."""

    def program():
        loss = regression()
        SGD(0.1, **options).minimize(loss)
        average.update()
        return loss

    return fluid.Session(program)


def train(session, steps, every=1):
    """Run `steps` training steps; return the parameters after every `every` steps, as float64."""
    found = []
    for step in range(steps):
        session.run("program", feed={"x": X[step]})
        if (step + 1) % every == 0:
            names = session.programs["program"].parameters
            found.append({n: np.asarray(session.scope[n], "float64") for n in names})
    return found


def exponential(seen, decays):
    total, weight = 0, 0
    for params, d in zip(seen, decays, strict=True):
        total, weight = d * total + (1 - d) * params, d * weight + 1 - d
    return total / weight


@pytest.mark.parametrize(
    ("thres_steps", "bound"),
    [
        (None, lambda n: 1.0),
        (True, lambda n: (1 + n) / (10 + n)),
        (lambda n: 3 * n, lambda n: (1 + 3 * n) / (10 + 3 * n)),
    ],
)
def test_exponential_moving_average(thres_steps, bound):
    ema = ExponentialMovingAverage(0.7, thres_steps)
    session = averaging(ema)
    seen = train(session, 20)
    values = ema.values(session)
    assert set(values) == {"fc_0.w_0", "fc_0.b_0", "batch_norm_0.w_0", "batch_norm_0.b_0"}
    for name, value in values.items():
        want = exponential([s[name] for s in seen], [min(0.7, bound(n)) for n in range(1, 21)])
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)


def test_its_start_is_corrected():
    ema = ExponentialMovingAverage(0.999)
    session = averaging(ema)
    (seen,) = train(session, 1)
    for name, value in ema.values(session).items():
        np.testing.assert_allclose(value, seen[name], rtol=1e-6)


def window_average(seen, rate, low, high):
    window, before = [], []
    for n, params in enumerate(seen, 1):
        window.append(params)
        if len(window) >= low and len(window) >= min(high, int(n * rate)):
            window, before = [], window
    return np.mean(before + window, axis=0)


@pytest.mark.parametrize(
    ("steps", "options"), [(20, (0.5, 3, 7)), (31, (0.5, 3, 7)), (14, (0.9, 2, 100)), (5, (0.15,)), (8, (0.0, 4, 4))]
)
def test_model_average(steps, options):
    average = ModelAverage(*options)
    session = averaging(average)
    seen = train(session, steps)
    rate, low, high = (*options, *(10000, 10000)[len(options) - 1 :])
    for name, value in average.values(session).items():
        want = window_average([s[name] for s in seen], rate, low, high)
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)


AVERAGES = pytest.mark.parametrize("average", [ExponentialMovingAverage(0.9), ModelAverage(0.5, 2, 4)], ids=repr)


@AVERAGES
def test_averages_do_not_disturb_training(average):
    def plain():
        loss = regression()
        SGD(0.1).minimize(loss)
        return loss

    session, other = averaging(average), fluid.Session(plain)
    train(session, 6)
    for step in range(6):
        other.run("plain", feed={"x": X[step]})
    assert_close(dict(session.scope), {n: np.asarray(v) for n, v in other.scope.items()}, rtol=1e-6, atol=1e-7)


@AVERAGES
def test_average_before_the_first_update_equals_parameters(average):
    session = averaging(average)
    assert_close(average.values(session), {n: np.asarray(session.scope[n]) for n in average.values(session)}, rtol=0)


@AVERAGES
def test_averages_count_updates_not_accumulation_steps(average):
    session = averaging(average, accumulate_steps=2)
    seen = train(session, 12, every=2)
    if isinstance(average, ModelAverage):
        want = {n: window_average([s[n] for s in seen], 0.5, 2, 4) for n in seen[0]}
    else:
        want = {n: exponential([s[n] for s in seen], [0.9] * 6) for n in seen[0]}
    assert_close(average.values(session), want, rtol=1e-5)


@AVERAGES
def test_apply_swaps_and_swaps_back(average):
    session = averaging(average)
    train(session, 5)
    before, values = dict(session.scope), average.values(session)
    with average.apply(session):
        for name, value in session.scope.items():
            np.testing.assert_array_equal(value, values.get(name, before[name]))
    assert all((session.scope[n] == v).all() for n, v in before.items())
    assert any((values[n] != before[n]).any() for n in values)
    with pytest.raises(RuntimeError, match="inside"), average.apply(session):
        raise RuntimeError("inside")
    assert all((session.scope[n] == v).all() for n, v in before.items())
    train(session, 1)


@AVERAGES
def test_parameters_that_are_set_inside_a_block_stay(average, tmp_path):
    session = averaging(average)
    names = list(average.values(session))
    session.save_params(tmp_path / "start")
    start = dict(session.scope)
    train(session, 5)
    before = dict(session.scope)
    with average.apply(session):
        session.load_params(tmp_path / "start", names=names[0])
        with average.apply(session):
            session.scope[names[1]] = np.full(before[names[1]].shape, 7.0)
        np.testing.assert_array_equal(session.scope[names[0]], average.values(session)[names[0]])
    for name, value in session.scope.items():
        want = {names[0]: start[name], names[1]: np.full(value.shape, 7.0)}.get(name, before[name])
        np.testing.assert_array_equal(value, want, err_msg=name)
    train(session, 1)


def test_restore_when_the_user_says():
    ema = ExponentialMovingAverage(0.9)
    session = averaging(ema)
    train(session, 5)
    before, values = dict(session.scope), ema.values(session)
    for _ in range(2):
        with ema.apply(session, need_restore=False):
            pass
        assert all((session.scope[n] == v).all() for n, v in values.items())
    ema.restore(session)
    assert all((session.scope[n] == v).all() for n, v in before.items())
    with pytest.raises(errors.ArgumentError, match="need_restore"):
        ema.restore(session)


def test_an_equal_average_restores_replaced_parameters():
    session, other = averaging(ExponentialMovingAverage(0.9)), averaging(ExponentialMovingAverage(0.9))
    train(session, 5)
    before = dict(session.scope)
    with ExponentialMovingAverage(0.9).apply(session, need_restore=False):
        pass
    assert any((session.scope[n] != v).any() for n, v in before.items())
    for target, average in ((session, ExponentialMovingAverage(0.5)), (other, ExponentialMovingAverage(0.9))):
        with pytest.raises(errors.ArgumentError, match="need_restore"):
            average.restore(target)
    ExponentialMovingAverage(0.9).restore(session)
    assert all((session.scope[n] == v).all() for n, v in before.items())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_window_forgets_non_finite_parameters(bad):
    """Check that a ModelAverage, an average over windows of steps, forgets NaN and infinity when a window ends."""
    average = ModelAverage(0.5, 2, 2)
    seen = [1, bad, 2, 3, 4, 5, 6]
    state, found = average.start({"w": jnp.ones(2)}), []
    for value in seen:
        params = {"w": jnp.full(2, value, "float32")}
        state = average.step(state, params)
        found.append(float(average.value(state, params)["w"][0]))
    want = np.array([window_average(seen[: n + 1], 0.5, 2, 2) for n in range(len(seen))])
    np.testing.assert_array_equal(np.isfinite(found), [True, False, False, True, True, True, True])
    np.testing.assert_allclose(np.array(found)[np.isfinite(want)], want[np.isfinite(want)])


def test_equal_averages_share_state():
    session = averaging(ExponentialMovingAverage(0.9))
    train(session, 3)
    assert set(ExponentialMovingAverage(0.9).values(session)) and hash(ModelAverage()) == hash(ModelAverage())
    with pytest.raises(errors.ArgumentError, match="no program here keeps"):
        ExponentialMovingAverage(0.9, name="other").values(session)


def test_nested_averages_match_numpy():
    first, second, third = ExponentialMovingAverage(0.5), ModelAverage(0.5, 2, 4), ExponentialMovingAverage(0.9)
    optimizer = first.track(second.track(Lookahead(third.track(SGD(0.1)), k=2)))

    def program():
        loss = regression()
        optimizer.minimize(loss)
        return loss

    session = fluid.Session(program)
    seen = train(session, 7)
    name = "fc_0.w_0"
    np.testing.assert_allclose(
        first.values(session)[name], exponential([s[name] for s in seen], [0.5] * 7), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        second.values(session)[name], window_average([s[name] for s in seen], 0.5, 2, 4), rtol=1e-5, atol=1e-6
    )
    assert (third.values(session)[name] != first.values(session)[name]).any()


def test_of_several_minimizes_each_keeps_its_parameters():
    """Check that an average includes the value after the second update if two optimizers update a parameter."""
    ema = ExponentialMovingAverage(0.5)

    def program():
        loss = regression()
        SGD(0.1).minimize(loss, parameter_list=["fc_0.w_0", "fc_0.b_0"])
        SGD(0.2).minimize(loss, parameter_list=["fc_0.b_0", "batch_norm_0.b_0"])
        ema.update()
        return loss

    session = fluid.Session(program)
    seen = train(session, 6)
    values = ema.values(session)
    assert set(values) == {"fc_0.w_0", "fc_0.b_0", "batch_norm_0.b_0"}
    assert_close(values, {n: exponential([s[n] for s in seen], [0.5] * 6) for n in values}, rtol=1e-5)


def trainer(average, reader=None):
    made = fluid.Trainer(regression, average.track(Momentum(0.05)))
    made.train(reader or [[(row,) for row in batch] for batch in X[:10]], num_epochs=1)
    return made


@AVERAGES
def test_trainer_tests_and_saves_the_average(average, tmp_path):
    made = trainer(average)
    reader = [[(row,) for row in X[20]]]
    plain, values = float(made.test(reader)[0]), average.values(made)
    with average.apply(made):
        averaged = float(made.test(reader)[0])
        made.save_params(tmp_path / "averaged")
    assert averaged != plain and float(made.test(reader)[0]) == plain
    loaded = fluid.Trainer(regression, SGD(0.1), param_path=tmp_path / "averaged")
    assert set(loaded.params) == set(made.params), "an average is no parameter"
    assert_close(loaded.params, {n: np.asarray(values.get(n, v)) for n, v in made.params.items()}, rtol=0)
    assert float(loaded.test(reader)[0]) == averaged


def test_a_handler_may_look_at_the_average():
    """Check that a training does not change if a handler tests with averaged parameters between steps."""
    ema, losses = ExponentialMovingAverage(0.9), []
    made = fluid.Trainer(regression, ema.track(Momentum(0.05)))
    reader = [[(row,) for row in batch] for batch in X[:5]]

    def look(event):
        if isinstance(event, fluid.EndStepEvent):
            with ema.apply(made):
                losses.append(float(made.test(reader[:1])[0]))

    made.train(reader * 2, num_epochs=1, event_handler=look)
    other = trainer(ema, reader * 2)
    assert len(losses) == 10 and losses[-1] != float(made.test(reader[:1])[0])
    assert_close(made.params, {n: np.asarray(v) for n, v in other.params.items()}, rtol=0, atol=0)


@AVERAGES
def test_averages_are_saved_with_the_optimizer_state(average, tmp_path):
    made, other = averaging(average), averaging(average)
    train(made, 5)
    made.save(tmp_path / "all")
    other.load(tmp_path / "all")
    assert_close(average.values(other), {n: np.asarray(v) for n, v in average.values(made).items()}, rtol=0, atol=0)


def test_update_comes_after_minimize():
    def program():
        ExponentialMovingAverage().update()
        return regression()

    with pytest.raises(errors.ProgramError, match="track"):
        fluid.Program(program)
    with pytest.raises(errors.OutsideProgramError):
        ExponentialMovingAverage().update()


def test_values_that_are_no_session_are_refused():
    with pytest.raises(errors.ArgumentTypeError, match="Session or a Trainer"):
        ExponentialMovingAverage().values({})


@pytest.mark.parametrize("decay", [1.0, -0.1, 2])
def test_bad_decays_are_refused(decay):
    with pytest.raises(errors.ArgumentError, match="decay"):
        ExponentialMovingAverage(decay)


@pytest.mark.parametrize("options", [{"average_window_rate": -1}, {"min_average_window": 0}, {"max_average_window": 0}])
def test_bad_windows_are_refused(options):
    with pytest.raises(errors.ArgumentError, match="ModelAverage"):
        ModelAverage(**{"average_window_rate": 0.1, **options})


def test_accumulation_equals_the_whole_batch():
    batches = [X[i] for i in range(8)]

    def loss():
        y = layers.fc(layers.data("x", shape=[3]), size=2, act="tanh")
        return layers.mean(layers.square(y) - y)

    def final(optimizer, feeds):
        made = fluid.Trainer(loss, optimizer)
        made.train(lambda: ([(row,) for row in feed] for feed in feeds), num_epochs=3)
        return {n: np.asarray(v) for n, v in made.params.items()}

    clip = fluid.clip.GradientClipByGlobalNorm(0.1)
    decay = fluid.regularizer.L2Decay(0.01)
    options = {"grad_clip": clip, "regularization": decay}
    small = final(fluid.optimizer.Adam(1e-2, accumulate_steps=4, **options), batches)
    whole = [np.concatenate(batches[i : i + 4]) for i in (0, 4)]
    assert_close(small, final(fluid.optimizer.Adam(1e-2, **options), whole), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("average", [ExponentialMovingAverage(0.999), ModelAverage(1.0, 1000, 1000)])
def test_averages_of_bfloat16_parameters_do_not_stall(average):
    start = jnp.asarray([1.0, -3.0], "bfloat16")
    state = average.start({"w": start})
    values = [start + jnp.asarray(step / 64, "bfloat16") for step in range(200)]
    for value in values:
        state = average.step(state, {"w": value})
    seen = np.array([np.asarray(v, "float64") for v in values])
    weights = 0.999 ** np.arange(199, -1, -1) if isinstance(average, ExponentialMovingAverage) else np.ones(200)
    found = average.value(state, {"w": start})["w"]
    assert found.dtype == "bfloat16"
    np.testing.assert_allclose(np.asarray(found, "float64"), weights @ seen / weights.sum(), rtol=0.004)


@pytest.mark.parametrize("wrap", [Lookahead, ExponentialMovingAverage(0.9).track])
def test_rules_of_wrappers_clip_as_their_optimizers(wrap):
    rule = wrap(SGD(0.5, grad_clip=fluid.clip.GradientClipByGlobalNorm(1.0))).rule()
    reference = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.5))
    params, gradients = {"w": jnp.zeros(2)}, {"w": jnp.asarray([30.0, -40.0])}
    found, wanted = (one.update(gradients, one.init(params), params)[0]["w"] for one in (rule, reference))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
