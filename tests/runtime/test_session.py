"""Session: run, fetch, override, gradients, several programs over one Scope, save and load."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from compile_counts import counted

import fluid
from fluid import errors

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 4)).astype("float32")
Y = X.sum(1, keepdims=True)
FEED = {"x": X, "y": Y}


def model():
    hidden = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=8, act="tanh")
    return fluid.layers.fc(hidden, size=1)


def evaluation():
    y = fluid.layers.data("y", shape=[1])
    prediction = model()
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(prediction, y)), "prediction": prediction}


def training():
    outputs = evaluation()
    fluid.optimizer.SGD(0.1).minimize(outputs["loss"])
    return outputs


def numpy_forward(params, x, y):
    hidden = np.tanh(x @ params["fc_0.w_0"] + params["fc_0.b_0"])
    prediction = hidden @ params["fc_1.w_0"] + params["fc_1.b_0"]
    return hidden, prediction, np.mean((prediction - y) ** 2)


def numpy_params(session):
    return {n: np.asarray(v, "float64") for n, v in session.scope.items()}


def test_running_gives_the_programs_outputs():
    session = fluid.Session(evaluation)
    _, prediction, loss = numpy_forward(numpy_params(session), X, Y)
    results = session.run(evaluation, FEED)
    assert float(results["loss"]) == pytest.approx(loss, rel=1e-5)
    np.testing.assert_allclose(results[1], prediction, rtol=1e-5, atol=1e-6)
    assert "%.3f" % results[0] and format(results[0], ".3") and np.array(results[0]).shape == ()


def test_a_program_is_found_by_name_or_function():
    session = fluid.Session(evaluation)
    found = [session.run(p, FEED)["loss"] for p in ("evaluation", evaluation, session.programs["evaluation"], None)]
    assert len({float(v) for v in found}) == 1


def test_an_unknown_program_is_refused():
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'evaluation'"):
        fluid.Session(evaluation).run("evaluatoin", FEED)
    with pytest.raises(KeyError, match="model"):
        fluid.Session(evaluation).run(model, FEED)


def test_training_follows_gradient_descent():
    session = fluid.Session(training)
    before = numpy_params(session)
    hidden, prediction, _ = numpy_forward(before, X, Y)
    session.run(training, FEED)
    after = numpy_params(session)
    slope = 2 * (prediction - Y) / len(X)
    np.testing.assert_allclose(after["fc_1.w_0"], before["fc_1.w_0"] - 0.1 * hidden.T @ slope, rtol=1e-5, atol=1e-6)
    inner = slope @ before["fc_1.w_0"].T * (1 - hidden**2)
    np.testing.assert_allclose(after["fc_0.w_0"], before["fc_0.w_0"] - 0.1 * X.T @ inner, rtol=1e-5, atol=1e-6)
    assert int(session.scope.step) == 1


def test_testing_changes_nothing():
    session = fluid.Session(training)
    before = numpy_params(session)
    session.run(training, FEED, mode="test")
    for name, value in numpy_params(session).items():
        assert np.array_equal(value, before[name])
    assert int(session.scope.step) == 0


def test_fetching_any_named_value():
    session = fluid.Session(evaluation)
    params = numpy_params(session)
    hidden, prediction, loss = numpy_forward(params, X, Y)
    names = ["fc_0.tmp_2", "loss", "fc_1.tmp_1", "x", "fc_0.w_0"]
    found = session.run(evaluation, FEED, fetch=names)
    for name, want in zip(names, [hidden, loss, prediction, X, params["fc_0.w_0"]], strict=True):
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-6)


def test_fetching_gradients_of_parameters_feeds_and_values():
    session = fluid.Session(evaluation)
    params = numpy_params(session)
    hidden, prediction, _ = numpy_forward(params, X, Y)
    found = session.run(evaluation, FEED, fetch=["fc_1.w_0@GRAD", "fc_0.tmp_2@GRAD", "x@GRAD", "y@GRAD"])
    slope = 2 * (prediction - Y) / len(X)
    inner = slope @ params["fc_1.w_0"].T
    wants = [hidden.T @ slope, inner, inner * (1 - hidden**2) @ params["fc_0.w_0"].T, -slope]
    for value, want in zip(found, wants, strict=True):
        np.testing.assert_allclose(value, want, rtol=1e-4, atol=1e-6)


def test_gradients_while_training_match_the_applied_update():
    session = fluid.Session(training)
    before = numpy_params(session)
    (gradient,) = session.run(training, FEED, fetch=["fc_1.b_0@GRAD"])
    moved = numpy_params(session)["fc_1.b_0"] - before["fc_1.b_0"]
    np.testing.assert_allclose(moved, -0.1 * np.asarray(gradient), rtol=1e-5, atol=1e-7)


def test_a_fetched_parameter_is_the_updated_value():
    session = fluid.Session(training)
    (weight,) = session.run(training, FEED, fetch=["fc_0.w_0"])
    assert np.array_equal(weight, session.scope["fc_0.w_0"])


def test_overrides_replace_values_and_unneeded_feeds():
    session = fluid.Session(evaluation)
    params = numpy_params(session)
    hidden = RNG.normal(size=(3, 8)).astype("float32")
    (prediction,) = session.run(evaluation, {"fc_0.tmp_2": hidden}, fetch=["prediction"])
    np.testing.assert_allclose(prediction, hidden @ params["fc_1.w_0"] + params["fc_1.b_0"], rtol=1e-5, atol=1e-6)
    (doubled,) = session.run(evaluation, {"x": X, "fc_0.w_0": params["fc_0.w_0"] * 2}, fetch=["fc_0.tmp_0"])
    np.testing.assert_allclose(doubled, 2 * X @ params["fc_0.w_0"], rtol=1e-5, atol=1e-6)


def test_fetching_the_prediction_needs_no_label():
    assert fluid.Session(evaluation).run(evaluation, {"x": X}, fetch=["prediction"])[0].shape == (16, 1)


def test_absent_feeds_are_named():
    session = fluid.Session(evaluation)
    with pytest.raises(errors.FeedError, match=r"needs the feed 'y'.*feed=\{'y'"):
        session.run(evaluation, {"x": X})
    with pytest.raises(errors.FeedError, match="'x', 'y'"):
        session.run(evaluation)


@pytest.mark.parametrize(
    "feed, fetch, match",
    [
        ({"x": X, "Y": Y}, None, "no feed 'Y'"),
        ({"x": X, "fc_0.tmp_9": Y}, None, "Did you mean 'fc_0.tmp_"),
        (FEED, ["los"], "Did you mean 'loss'"),
        (FEED, ["fc_9.w_0@GRAD"], "no value 'fc_9.w_0'"),
    ],
)
def test_unknown_names_are_refused_with_the_nearest(feed, fetch, match):
    with pytest.raises(errors.UnknownNameError, match=match):
        fluid.Session(evaluation).run(evaluation, feed, fetch)


def test_gradients_of_integers_are_refused():
    def program():
        label = fluid.layers.data("label", shape=[1], dtype="int64")
        return fluid.layers.mean(fluid.layers.embedding(label, size=[3, 2]))

    with pytest.raises(errors.UnknownNameError, match="gradients exist"):
        fluid.Session(program).run(program, {"label": [[1]]}, fetch=["label@GRAD"])


def test_an_override_of_another_shape_is_refused():
    with pytest.raises(errors.FeedError, match="fc_0.tmp_2"):
        fluid.Session(evaluation).run(evaluation, {"fc_0.tmp_2": np.ones((3, 5), "float32")}, fetch=["prediction"])


def test_fractions_instead_of_whole_numbers_are_refused():
    def program():
        return fluid.layers.identity(fluid.layers.argmax(fluid.layers.data("x", shape=[4]), axis=1), name="guess")

    session = fluid.Session(program)
    with pytest.raises(
        errors.FeedTypeError, match=r"'guess' holds floating-point numbers, expected int32.*value\.astype\('int32'\)"
    ):
        session.run(feed={"x": np.ones((2, 4)), "guess": np.full(2, 0.5)})
    assert session.run(feed={"x": np.ones((2, 4)), "guess": [3, 2]})[0].tolist() == [3, 2]


def test_a_wrong_mode_or_fetch_is_refused():
    session = fluid.Session(evaluation)
    with pytest.raises(errors.ArgumentError, match='"train" or "test"'):
        session.run(evaluation, FEED, mode="eval")
    with pytest.raises(errors.ArgumentTypeError, match="list of names"):
        session.run(evaluation, FEED, fetch=[X])


def test_a_second_run_compiles_nothing():
    session = fluid.Session(training)
    session.run(training, FEED)
    with counted() as compiled:
        for _ in range(3):
            session.run(training, FEED)
    assert compiled == []
    assert [c.reason for c in session.compilations] == ["first train run"]


def test_compilations_are_counted_with_their_reasons():
    session = fluid.Session(training)
    session.run(training, FEED)
    session.run(training, {"x": X[:3], "y": Y[:3]})
    session.run(training, FEED, fetch=["loss"])
    session.run(training, FEED, mode="test")
    session.run(training, FEED)
    reasons = [c.reason for c in session.compilations]
    assert len(reasons) == 4
    assert "new feed shapes" in reasons[1] and "[3, 4]" in reasons[1]
    assert "fetch" in reasons[2]
    assert reasons[3] == "first test run"


def test_equal_seeds_give_bitwise_equal_runs():
    def program():
        outputs = evaluation()
        dropped = fluid.layers.dropout(outputs["prediction"], 0.5)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(dropped, fluid.layers.data("y", shape=[1])))
        fluid.optimizer.Adam(0.01).minimize(loss)
        return loss

    runs = []
    for seed in (1, 1, 2):
        session = fluid.Session(program, seed=seed)
        losses = [float(session.run(program, FEED)[0]) for _ in range(5)]
        runs.append((losses, numpy_params(session)))
    assert runs[0][0] == runs[1][0] != runs[2][0]
    for name in runs[0][1]:
        assert np.array_equal(runs[0][1][name], runs[1][1][name])


def test_dropout_masks_change_from_step_to_step():
    def program():
        x = fluid.layers.data("x", shape=[4])
        return fluid.layers.dropout(x, 0.5)

    session = fluid.Session(program)
    ones = {"x": np.ones((8, 4), "float32")}
    first, second = (np.asarray(session.run(program, ones, mode="train")[0]) for _ in range(2))
    assert not np.array_equal(first, second)


def test_programs_share_the_scope_by_name():
    session = fluid.Session(training, model)
    session.run(training, FEED)
    (prediction,) = session.run(model, {"x": X})
    _, want, _ = numpy_forward(numpy_params(session), X, Y)
    np.testing.assert_allclose(prediction, want, rtol=1e-5, atol=1e-6)


def test_programs_that_disagree_on_a_shape_are_refused():
    def other():
        return fluid.layers.fc(fluid.layers.data("x", shape=[5]), size=8)

    with pytest.raises(errors.ParameterError, match=r"fc_0.w_0") as caught:
        fluid.Session(training, other)
    assert str(caught.value).count("test_session.py:") == 2


def test_programs_of_equal_name_are_numbered():
    session = fluid.Session(lambda: model(), lambda: evaluation())
    assert list(session.programs) == ["program", "program_1"]


def discriminator(x):
    hidden = fluid.layers.fc(x, size=16, act="relu", param_attr="d.w1", bias_attr="d.b1")
    return fluid.layers.fc(hidden, size=1, param_attr="d.w2", bias_attr="d.b2")


def generator(noise):
    return fluid.layers.fc(noise, size=1, param_attr="g.w", bias_attr="g.b")


def against(logits, truth):
    target = fluid.layers.scale(logits, scale=0.0, bias=truth)
    return fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(logits, target))


def train_discriminator():
    real, noise = fluid.layers.data("real", shape=[1]), fluid.layers.data("noise", shape=[4])
    loss = against(discriminator(real), 1.0) + against(discriminator(generator(noise)), 0.0)
    fluid.optimizer.Adam(0.02).minimize(loss, parameter_list=["d.w1", "d.b1", "d.w2", "d.b2"])
    return loss


def train_generator():
    loss = against(discriminator(generator(fluid.layers.data("noise", shape=[4]))), 1.0)
    fluid.optimizer.Adam(0.02).minimize(loss, parameter_list=["g.w", "g.b"])
    return loss


def test_gan_programs_update_only_their_parameters():
    rng = np.random.default_rng(3)
    session = fluid.Session(train_discriminator, train_generator)

    def moved(program, feed):
        before = numpy_params(session)
        session.run(program, feed)
        return {n for n, v in numpy_params(session).items() if not np.array_equal(v, before[n])}

    for _ in range(400):
        noise = rng.normal(size=(64, 4)).astype("float32")
        real = rng.normal(3.0, 0.5, size=(64, 1)).astype("float32")
        assert moved(train_discriminator, {"real": real, "noise": noise}) <= {"d.w1", "d.b1", "d.w2", "d.b2"}
        assert moved(train_generator, {"noise": noise}) <= {"g.w", "g.b"}
    assert len(session.compilations) == 2
    made = np.asarray(generator_samples(session, rng))
    assert abs(made.mean() - 3.0) < 1.0  # an untrained generator makes numbers with a mean near 0


def generator_samples(session, rng):
    def sample():
        return generator(fluid.layers.data("noise", shape=[4]))

    session.add(sample)
    return session.run(sample, {"noise": rng.normal(size=(512, 4))})[0]


def test_several_losses_in_a_program_are_minimized():
    def program():
        x = fluid.layers.data("x", shape=[4])
        a = fluid.layers.mean(fluid.layers.fc(x, size=1, param_attr="a", bias_attr=False))
        b = fluid.layers.mean(fluid.layers.fc(x, size=1, param_attr="b", bias_attr=False))
        fluid.optimizer.SGD(1.0).minimize(a, parameter_list=["a"])
        fluid.optimizer.SGD(2.0).minimize(b, parameter_list=["b"])
        return a, b

    session = fluid.Session(program)
    before = numpy_params(session)
    session.run(program, {"x": X})
    after = numpy_params(session)
    slope = X.mean(0)[:, None]
    np.testing.assert_allclose(after["a"], before["a"] - slope, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(after["b"], before["b"] - 2 * slope, rtol=1e-5, atol=1e-6)


def test_parameters_given_as_values_and_no_grad_set():
    def program():
        x = fluid.layers.data("x", shape=[4])
        w = fluid.layers.create_parameter([4, 1], "float32", name="w")
        b = fluid.layers.create_parameter([1], "float32", name="b", is_bias=True)
        loss = fluid.layers.mean(x @ w + b)
        fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=[w, "b"], no_grad_set=[b])
        return loss

    assert fluid.Program(program).minimizes[0].parameters == ("w",)


def test_an_unknown_parameter_in_the_list_is_refused():
    def program():
        loss = evaluation()["loss"]
        fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["fc_0.w0"])
        return loss

    with pytest.raises(errors.UnknownNameError, match="Did you mean 'fc_0.w_0'"):
        fluid.Session(program)


def test_a_loss_that_is_no_scalar_is_refused():
    def program():
        prediction = model()
        fluid.optimizer.SGD(0.1).minimize(prediction)
        return prediction

    with pytest.raises(errors.ProgramError, match=r"float32\[batch, 1\].*layers\.mean"):
        fluid.Session(program)


def test_parameters_that_are_not_trainable_stay():
    def program():
        x = fluid.layers.data("x", shape=[4])
        h = fluid.layers.fc(x, size=1, param_attr=fluid.ParamAttr(name="still", trainable=False))
        loss = fluid.layers.mean(h)
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    session = fluid.Session(program)
    before = numpy_params(session)
    session.run(program, {"x": X})
    assert np.array_equal(numpy_params(session)["still"], before["still"])
    assert not np.array_equal(numpy_params(session)["fc_0.b_0"], before["fc_0.b_0"])


def test_reading_the_scope_gives_copies_that_outlive_training():
    session = fluid.Session(training)
    weight = session.scope["fc_0.w_0"]
    params = session.params()
    session.run(training, FEED)
    assert np.isfinite(np.asarray(weight)).all() and np.isfinite(np.asarray(params["fc_0.w_0"])).all()


def test_assigning_to_the_scope_is_used_and_checked():
    session = fluid.Session(model)
    session.scope["fc_1.b_0"] = np.array([7.0])
    session.scope["fc_1.w_0"] = np.zeros((8, 1), "float32")
    assert session.run(model, {"x": X})[0].tolist() == [[7.0]] * 16
    for name, value, error in [
        ("fc_1.b_0", np.zeros(2), errors.ParameterError),
        ("fc_1.b_0", np.array(["a"]), errors.ParameterError),
        ("fc_1.b0", np.zeros(1), errors.UnknownNameError),
    ]:
        with pytest.raises(error, match=name.replace(".", r"\.")):
            session.scope[name] = value
    with pytest.raises(errors.ArgumentError):
        del session.scope["fc_1.b_0"]
    assert "fc_0.w_0" in session.scope and len(session.scope) == 4 and "fc_0.w_0" in repr(session.scope)


def test_the_scope_is_unchanged_after_an_error():
    session = fluid.Session(training)
    session.run(training, FEED)
    before = numpy_params(session)
    for bad in ({"x": X[:, :3], "y": Y}, {"x": X, "y": Y[:5]}, {"x": X}, {"z": X}):
        with pytest.raises((ValueError, TypeError, KeyError)):
            session.run(training, bad)
    for name, value in numpy_params(session).items():
        assert np.array_equal(value, before[name])
    assert int(session.scope.step) == 1
    session.run(training, FEED)


def test_a_loaded_session_continues_exactly(tmp_path):
    def program():
        outputs = evaluation()
        fluid.optimizer.Adam(0.05).minimize(outputs["loss"])
        return outputs

    session = fluid.Session(program, seed=5)
    for _ in range(3):
        session.run(program, FEED)
    session.save(tmp_path / "state")
    want = [float(session.run(program, FEED)[0]) for _ in range(3)]
    other = fluid.Session(program, seed=6)
    other.load(tmp_path / "state")
    assert [float(other.run(program, FEED)[0]) for _ in range(3)] == want
    assert int(other.scope.step) == 6


def test_saving_some_parameters(tmp_path):
    session = fluid.Session(evaluation)
    session.save_params(tmp_path / "some", names=["fc_0.w_0"])
    assert list(fluid.io.load_arrays(tmp_path / "some")[0]) == ["fc_0.w_0"]
    with pytest.raises(errors.UnknownNameError):
        session.save_params(tmp_path / "some", names=["fc_0.w"])


def test_loading_wrong_shapes_changes_nothing(tmp_path):
    def wider():
        return fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=9)

    fluid.Session(wider).save_params(tmp_path / "other")
    session = fluid.Session(evaluation)
    before = numpy_params(session)
    with pytest.raises(errors.ParameterError, match="fc_1.w_0") as caught:
        session.load(tmp_path / "other")
    assert "expected float32[4, 8]" in str(caught.value)
    for name, value in numpy_params(session).items():
        assert np.array_equal(value, before[name])


def test_a_closed_session_refuses_calls():
    with fluid.Session(evaluation) as session:
        session.run(evaluation, FEED)
    with pytest.raises(errors.ArgumentError, match="closed"):
        session.run(evaluation, FEED)


@pytest.mark.parametrize("place", [None, "cpu", "cpu:0", fluid.CPUPlace()])
def test_place_selects_the_device(place):
    session = fluid.Session(model, place=place)
    (value,) = session.run(model, {"x": X})
    assert value.devices() == {jax.devices("cpu")[0]}


def test_an_absent_or_wrong_place_is_refused():
    if jax.default_backend() == "cpu":
        with pytest.raises(errors.DeviceError, match="cpu:0"):
            fluid.Session(model, place=fluid.CUDAPlace(0))
        with pytest.raises(RuntimeError):
            fluid.Session(model, place="gpu:0")
    with pytest.raises(errors.ArgumentError, match="place"):
        fluid.Session(model, place="cpo")


def test_optax_transformations_inside_programs():
    def program():
        outputs = evaluation()
        fluid.optimizer.Optax(optax.adam(0.01)).minimize(outputs["loss"])
        return outputs

    session = fluid.Session(program)
    params = {n: jnp.asarray(v) for n, v in session.scope.items()}

    def loss(p):
        hidden = jnp.tanh(X @ p["fc_0.w_0"] + p["fc_0.b_0"])
        return jnp.mean((hidden @ p["fc_1.w_0"] + p["fc_1.b_0"] - Y) ** 2)

    tx = optax.adam(0.01)
    state = tx.init(params)
    for _ in range(5):
        updates, state = tx.update(jax.grad(loss)(params), state, params)
        params = optax.apply_updates(params, updates)
        session.run(program, FEED)
    for name, value in params.items():
        np.testing.assert_allclose(session.scope[name], value, rtol=1e-4, atol=1e-6)


def test_partial_functions_are_programs():
    def sized(size):
        return fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=size)

    small = functools.partial(sized, size=2)
    assert fluid.Session(small).run(small, {"x": X})[0].shape == (16, 2)


def test_reusing_a_buffer_keeps_steps_in_flight_unchanged():
    def program():
        x = fluid.layers.data("x", shape=[512])
        slow = x
        for _ in range(4):
            slow = jnp.tanh(slow @ (x.T @ x)) * 1e-3
        return jnp.sum(x) + 0 * jnp.sum(slow)

    session = fluid.Session(program)
    buffer = np.ones((512, 512), "float32")
    found = []
    for step in range(6):
        buffer[:] = step
        found.append(session.run(program, {"x": buffer})[0])
    assert [float(v) for v in found] == [step * 512.0 * 512 for step in range(6)]


def test_the_gradient_of_a_sequence_has_its_lengths():
    def program():
        words = fluid.layers.data("words", shape=[1], lod_level=1)
        return fluid.layers.mean(fluid.layers.square(words))

    words = fluid.SequenceBatch.from_rows([[[1.0], [2.0], [3.0]], [[4.0]]])
    (gradient,) = fluid.Session(program).run(feed={"words": words}, fetch=["words@GRAD"])
    found = [row[:, 0].tolist() for row in gradient.rows()]
    assert found == [[0.5, 1.0, 1.5], [2.0]]  # the mean is over 4 steps, so the gradient is 2 * value / 4


def test_sessions_have_readable_representations():
    def other():
        return fluid.layers.fc(fluid.layers.data("y", shape=[1000]), size=1, param_attr="w", bias_attr=False)

    def third():
        return fluid.layers.mean(fluid.layers.data("z", shape=[2]))

    session = fluid.Session(other, third, place="cpu")
    assert repr(session) == "Session(2 programs, 1 array, 4 kB, on cpu)"
    shown = session._repr_html_()
    assert "third" in shown and "1,000" in shown and "float32[batch, 1]" in shown
    session.close()
    assert repr(session) == "Session(closed)"


def other_evaluation():
    return {"loss": fluid.layers.mean(model())}


@pytest.mark.parametrize("number", [1, 2])
def test_a_session_renames_no_program_of_another(number):
    mine = fluid.Program(training, name="net")
    others = [fluid.Program(other_evaluation, name="net") for _ in range(number)]
    with fluid.Session(mine) as a, fluid.Session(*others) as b:
        assert list(b.programs) == ["net", "net_1"][:number]
        added = b.add(mine)
        assert (mine.name, added.name) == ("net", f"net_{number}")
        losses = [s.run(mine, FEED, fetch=["loss"])[0].item() for s in (a, b, a, b)]
        assert losses[0] == losses[1] and losses[2] == losses[3] < losses[0]
        assert a.run("net", FEED, fetch=["loss"])[0] < losses[2]
        assert list(a.programs) == ["net"] and a.programs["net"] is mine


def test_a_program_added_twice_has_two_names():
    program = fluid.Program(training)
    with fluid.Session(program, program) as session:
        assert [p.name for p in session.programs.values()] == ["training", "training_1"]
        first = session.run("training", FEED)["loss"]
        assert session.run("training_1", FEED)["loss"] < first


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_copies_read_every_array_before_they_write(rate):
    def nets():
        x = fluid.layers.data("x", shape=[4])
        return [fluid.layers.fc(x, 3, name=name) for name in ("one", "two", "three")]

    names = [f"{name}.w_0" for name in ("one", "two", "three")]
    with fluid.Session(nets) as session:
        before = {name: np.array(session.scope[name]) for name in names}
        session.copy_params(dict(zip(names, [*names[1:], names[0]], strict=True)), rate=rate)
        for source, target in zip(names, [*names[1:], names[0]], strict=True):
            expected = before[target] + rate * (before[source] - before[target])
            np.testing.assert_allclose(session.scope[target], expected, rtol=1e-6)


def test_rename_swaps_arrays_and_their_optimizer_states(tmp_path):
    def program():
        x = fluid.layers.data("x", shape=[4])
        a, b = (fluid.layers.fc(x, 1, name=name, bias_attr=False) for name in ("one", "two"))
        loss = fluid.layers.mean(fluid.layers.square(a - 1.0) + fluid.layers.square(b + 2.0))
        fluid.optimizer.Momentum(0.1, momentum=0.9).minimize(loss)
        return loss

    with fluid.Session(program) as session:
        session.run(feed={"x": X})
        session.save(tmp_path / "swap.fluid")
        before = session.state()
        session.load(tmp_path / "swap.fluid", rename={"one.w_0": "two.w_0", "two.w_0": "one.w_0"})
        after = session.state()
    assert any(name.startswith("@") and name.endswith("one.w_0") for name in before)
    for name, array in before.items():
        other = name.replace("one.", "#").replace("two.", "one.").replace("#", "two.")
        np.testing.assert_array_equal(after[other], array)


def test_slow_copies_in_half_precision_do_not_stall():
    def program():
        source = fluid.layers.create_parameter(
            [3], "bfloat16", name="source", default_initializer=fluid.initializer.Constant(2.0)
        )
        return source + fluid.layers.create_parameter(
            [3], "bfloat16", name="target", default_initializer=fluid.initializer.Constant(1.0)
        )

    with fluid.Session(program) as session:
        for _ in range(300):
            session.copy_params({"source": "target"}, rate=0.001)
        target = np.asarray(session.scope["target"], "float32")
        np.testing.assert_allclose(target, 2 - 0.999**300, rtol=2**-8)
        session.scope["target"] = np.full(3, 1.5)
        session.copy_params({"source": "target"}, rate=0.001)
        assert np.asarray(session.scope["target"], "float32").tolist() == [1.5] * 3, "what is set replaces the sums"
