"""Custom layers: dropout, batch normalisation and others from public functions, compared with the layers of fluid."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors, layers

X = np.random.default_rng(0).normal(2.0, 3.0, size=(6, 4)).astype("float32")


def own_dropout(x, probability, name=None):
    if not layers.is_training():
        return x
    keep = jax.random.bernoulli(layers.random_key(name), 1 - probability, x.shape)
    return jnp.where(keep, x / (1 - probability), 0)


def own_batch_norm(x, momentum=0.9, epsilon=1e-5):
    size = [x.shape[-1]]
    scale = layers.create_parameter(size, default_initializer=fluid.initializer.Constant(1.0))
    bias = layers.create_parameter(size, is_bias=True)
    moving_mean = layers.create_state(size)
    moving_variance = layers.create_state(size, initializer=1.0)
    mean = moving_mean.value
    variance = moving_variance.value
    if layers.is_training():
        mean = x.mean(axis=0)
        variance = x.var(axis=0)
        moving_mean.update(momentum * moving_mean.value + (1 - momentum) * mean)
        moving_variance.update(momentum * moving_variance.value + (1 - momentum) * variance)
    return (x - mean) * jax.lax.rsqrt(variance + epsilon) * scale + bias


def minimized(output):
    loss = layers.mean(layers.square(output - 1.0))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return {"loss": loss, "output": output}


def test_custom_dropout_matches_fluid_dropout_of_equal_name():
    def theirs():
        return layers.dropout(layers.data("x", shape=[4]), 0.4, dropout_implementation="upscale_in_train", name="mask")

    def mine():
        return own_dropout(layers.data("x", shape=[4]), 0.4, name="mask")

    sessions = [fluid.Session(f, seed=5) for f in (theirs, mine)]
    for mode in ("train", "test", "train"):
        a, b = (np.asarray(s.run(feed={"x": X}, mode=mode)[0]) for s in sessions)
        np.testing.assert_allclose(a, b, rtol=1e-6)
        assert (a == 0).any() == (mode == "train")


def test_custom_batch_norm_matches_fluid_batch_norm():
    def theirs():
        x = layers.fc(layers.data("x", shape=[4]), size=3, param_attr="w", bias_attr=False)
        return minimized(layers.batch_norm(x))

    def mine():
        x = layers.fc(layers.data("x", shape=[4]), size=3, param_attr="w", bias_attr=False)
        return minimized(own_batch_norm(x))

    sessions = [fluid.Session(f, seed=5) for f in (theirs, mine)]
    for step in range(4):
        feed = {"x": X + step}
        for mode in ("train", "test"):
            a, b = (s.run(feed=feed, mode=mode) for s in sessions)
            np.testing.assert_allclose(a["output"], b["output"], rtol=1e-4, atol=1e-5)
    names = {"create_state_0.w_0": "batch_norm_0.w_1", "create_state_1.w_0": "batch_norm_0.w_2"}
    for own, known in names.items():
        np.testing.assert_allclose(sessions[1].scope[own], sessions[0].scope[known], rtol=1e-5)
    assert set(names) <= set(sessions[1].params())


def counting():
    seen = layers.create_state([], "int32", name="seen")
    seen.update(seen.value + layers.data("x", shape=[4]).shape[0])
    weight = layers.create_parameter([4], name="weight")
    return minimized(layers.data("y", shape=[4]) * weight + 0.0 * seen.value)


def test_a_counting_state_is_saved_and_restored(tmp_path):
    session = fluid.Session(counting)
    feed = {"x": X, "y": X}
    for mode in ("train", "test", "train"):
        session.run(feed=feed, mode=mode)
    assert session.scope["seen"].dtype == "int32" and int(session.scope["seen"]) == 12
    session.save_params(tmp_path / "params")
    again = fluid.Session(counting)
    again.load_params(tmp_path / "params")
    assert int(again.scope["seen"]) == 12
    assert again.run(feed=feed, fetch=["seen"], mode="train")[0] == 18


def test_an_integer_state_stays_integer_in_bfloat16():
    trainer = fluid.Session(counting, precision="bfloat16")
    trainer.run(feed={"x": X, "y": X})
    assert trainer.scope["seen"].dtype == "int32"


def test_no_gradient_passes_through_a_state():
    def program():
        x = layers.data("x", shape=[4])
        weight = layers.create_parameter([4], name="weight")
        layers.create_state([4], name="kept").update(jnp.mean(x * weight, axis=0))
        # The second `create_state` returns the state of the same name, which already has the updated value.
        return minimized(weight * x + layers.create_state([4], name="kept").value)

    session = fluid.Session(program)
    weight = np.asarray(session.scope["weight"])
    output, gradient = session.run(feed={"x": X}, fetch=["output", "weight@GRAD"])
    np.testing.assert_allclose(output, weight * X + (weight * X).mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(gradient, (2 * (output - 1) * X).sum(axis=0) / X.size, rtol=1e-5)


def test_a_state_inside_scan_is_carried():
    def program():
        x = layers.data("x", shape=[4])

        def body(carry, i):
            total = layers.create_state([], name="rounds")
            total.update(total.value + 1)
            return carry + total.value, i

        return layers.scan(body, jnp.zeros_like(x), jnp.arange(3))[0]

    session = fluid.Session(program)
    result = session.run(feed={"x": X}, mode="train")[0]
    assert np.array_equal(result, np.full_like(X, 0 + 1 + 2)) and session.scope["rounds"] == 3


def test_random_keys_differ_by_call_unless_named():
    def program():
        x = layers.data("x", shape=[4])
        keys = [layers.random_key(), layers.random_key(), layers.random_key("mine"), layers.random_key("mine")]
        return [jax.random.uniform(key, (3,)) + 0.0 * jnp.sum(x) for key in keys]

    session = fluid.Session(program)
    for mode in ("train", "test"):
        first, second, third, fourth = session.run(feed={"x": X}, mode=mode)
        assert not np.array_equal(first, second) and not np.array_equal(first, third)
        assert np.array_equal(third, fourth)


def test_random_keys_change_by_step_not_by_run():
    def program():
        return minimized(own_dropout(layers.fc(layers.data("x", shape=[4]), 3), 0.5))

    runs = []
    for _ in range(2):
        session = fluid.Session(program, seed=2)
        runs.append([np.asarray(session.run(feed={"x": X})["output"]) for _ in range(3)])
    assert all(np.array_equal(a, b) for a, b in zip(*runs, strict=True))
    masks = [output == 0 for output in runs[0]]
    assert not np.array_equal(masks[0], masks[1])


def test_names_are_scoped():
    def program():
        with fluid.name_scope("left"):
            layers.create_state([2], name="kept")
            layers.create_state([2])
        return layers.fc(layers.data("x", shape=[4]), 3)

    assert list(fluid.Program(program).states) == ["left/kept", "left/create_state_0.w_0"]


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda: layers.create_state([2], initializer="zeros"), errors.ArgumentTypeError, "Normal"),
        (lambda: layers.create_state([2]).update(np.zeros(3)), errors.ShapeError, r"reshape it to \[2\]"),
        (
            lambda: (layers.create_state([2], name="a"), layers.create_state([3], name="a")),
            errors.ParameterError,
            "two shapes",
        ),
        (lambda: layers.random_key(3), errors.ArgumentTypeError, "name= is a string"),
    ],
)
def test_invalid_states_and_keys_are_refused(build, error, match):
    def program():
        build()
        return layers.data("x", shape=[4])

    with pytest.raises(error, match=match):
        fluid.Program(program)


@pytest.mark.parametrize("create", [layers.create_state, layers.create_parameter])
def test_creating_only_in_test_mode_is_refused(create):
    def program():
        x = layers.data("x", shape=[4])
        return x if layers.is_training() else x + getattr(create([4], name="late"), "value", 0.0)

    session = fluid.Session(program)
    with pytest.raises(errors.ProgramError, match="'late' is created at .*create parameters and states in both modes"):
        session.run(feed={"x": X}, mode="test")


def test_updating_a_state_outside_a_program_is_refused():
    found = []

    def program():
        found.append(layers.create_state([2]))
        return layers.data("x", shape=[4])

    fluid.Program(program)
    with pytest.raises(errors.OutsideProgramError, match="create_state"):
        found[0].update(np.zeros(2))


def test_assigning_to_a_state_names_update():
    def program():
        state = layers.create_state([1], name="seen")
        state.value = state.value + 1
        return layers.data("x", shape=[1])

    with pytest.raises(errors.MissingNameError, match=r"'seen'.*assignment to 'value'.*state.update\(value\)"):
        fluid.Program(program)
