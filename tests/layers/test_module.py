"""Flax and Haiku modules inside program functions: named, trained, tested and saved like all layers."""

import functools

import haiku
import jax
import numpy as np
import pytest
from flax import linen, nnx
from layers.run_program import feeds, run

import fluid
from fluid import errors, layers

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Linen(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        x = linen.BatchNorm(use_running_average=not train)(linen.Dense(8)(x))
        return linen.Dense(1)(linen.Dropout(0.2, deterministic=not train)(x))


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.hidden, self.norm = nnx.Linear(4, 8, rngs=rngs), nnx.BatchNorm(8, rngs=rngs)
        self.dropout, self.out = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(self.norm(self.hidden(x))))


def haiku_net(x, is_training):
    x = haiku.BatchNorm(True, True, 0.9)(haiku.Linear(8)(x), is_training)
    x = haiku.dropout(haiku.next_rng_key(), 0.2, x) if is_training else x
    return haiku.Linear(1)(x)


NETS = {
    "linen": Linen(),
    "nnx": Nnx,
    "nnx-made": Nnx(nnx.Rngs(0)),
    "haiku": haiku_net,
}
NAMES = {
    "linen": ["module_0/Dense_0/kernel", "module_0/Dense_1/bias", "module_0/batch_stats/BatchNorm_0/mean"],
    "nnx": ["module_0/hidden/kernel", "module_0/out/bias", "module_0/norm/mean"],
    "nnx-made": ["module_0/hidden/kernel", "module_0/out/bias", "module_0/norm/mean"],
    "haiku": ["module_0/linear/w", "module_0/linear_1/b", "module_0/batch_norm/~/mean_ema/average"],
}


@pytest.fixture(params=NETS)
def kind(request):
    return request.param


def program(net, **arguments):
    def build():
        x, y = feeds(x=X, y=Y)
        return layers.mse_loss(layers.module(net, x, **arguments), y)

    return build


def test_names_and_shapes(kind):
    found = fluid.Program(program(NETS[kind]))
    first, second, state = NAMES[kind]
    assert found.parameters[first].shape == (4, 8) and found.parameters[second].shape == (1,)
    assert found.states[state].shape in ((8,), (1, 8)) and len(found.parameters) == 6
    assert list(fluid.Program(program(NETS[kind], name="net")).parameters)[0].startswith("net/")


def test_modules_train_save_and_load(kind, in_tmp):
    data = {"x": X, "y": Y}
    trainer = fluid.Trainer(program(NETS[kind]), fluid.optimizer.Adam(0.02))
    before = {name: np.asarray(v) for name, v in trainer.session.scope.items()}
    start = float(trainer.test(fluid.reader.arrays(data, batch_size=32))[0])
    trainer.train(fluid.reader.arrays(data, batch_size=32), num_epochs=60)
    after = {name: np.asarray(v) for name, v in trainer.session.scope.items()}
    assert all(np.abs(after[name] - before[name]).max() > 1e-4 for name in NAMES[kind])
    end = float(trainer.test(fluid.reader.arrays(data, batch_size=32))[0])
    assert end < 0.3 * start
    trainer.save_params("net.params")
    again = fluid.Trainer(program(NETS[kind]), fluid.optimizer.Adam(0.02), seed=7)
    again.session.load_params("net.params")
    assert float(again.test(fluid.reader.arrays(data, batch_size=32))[0]) == end


def test_dropout_and_moving_averages_follow_the_mode(kind):
    found = program(NETS[kind])
    train = [run(found, {"x": X, "y": Y}, key=key) for key in (0, 1)]
    test = [run(found, {"x": X, "y": Y}, key=key, mode="test") for key in (0, 1)]
    assert float(train[0].outputs[0]) != float(train[1].outputs[0])
    assert float(test[0].outputs[0]) == float(test[1].outputs[0])
    state = NAMES[kind][2]
    assert np.abs(train[0].states[state] - test[0].states[state]).max() > 1e-4


def test_initial_values_match_the_module_initialisation():
    found = fluid.Program(program(Linen()))
    key = jax.random.key(5)
    arrays = found.init(key)
    own = fluid.core.fold_name(key, "module_0")
    keys = {name: fluid.core.fold_name(own, name) for name in ("params", "dropout")}
    want = Linen().init(keys, X, True)["params"]
    for layer, values in want.items():
        for name, value in values.items():
            np.testing.assert_array_equal(arrays[f"module_0/{layer}/{name}"], value)
    traced = jax.jit(found.init)(key)
    np.testing.assert_allclose(traced["module_0/Dense_0/kernel"], want["Dense_0"]["kernel"], rtol=1e-6)


def test_a_module_that_is_made_gives_its_arrays():
    net = Nnx(nnx.Rngs(3))
    arrays = fluid.Program(program(net)).init(jax.random.key(0))
    np.testing.assert_array_equal(arrays["module_0/hidden/kernel"], net.hidden.kernel[...])
    np.testing.assert_array_equal(arrays["module_0/norm/var"], np.ones(8))


def test_outputs_match_the_module_formula():
    net = linen.Dense(3)
    applied = run(lambda: layers.module(net, *feeds(x=X)), {"x": X}, arrays={"module_0/bias": np.ones(3, "float32")})
    kernel = applied.values["module_0/kernel"]
    np.testing.assert_allclose(applied.outputs[0], X @ kernel + 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("net", "call"),
    [
        (linen.Dropout(0.5), lambda net, x, train: net(x, deterministic=not train)),
        (functools.partial(nnx.Dropout, 0.5), lambda net, x, train: net(x, deterministic=not train)),
        (haiku.dropout, lambda f, x, train: f(haiku.next_rng_key(), 0.5 if train else 0.0, x)),
    ],
    ids=["linen", "nnx", "haiku"],
)
def test_custom_calls_receive_the_training_mode(net, call):
    def build():
        return layers.module(net, *feeds(x=X), call=call)

    np.testing.assert_array_equal(run(build, {"x": X}, mode="test").outputs[0], X)
    assert 0.2 < np.mean(np.asarray(run(build, {"x": X}).outputs[0]) == 0) < 0.8


def test_a_module_created_inside_the_program_is_refused():
    with pytest.raises(errors.ProgramError, match="created the Nnx.*outside the function"):
        fluid.Program(lambda: layers.module(Nnx(nnx.Rngs(0)), *feeds(x=X)))


@pytest.mark.parametrize("make", [haiku.transform, haiku.transform_with_state])
def test_transformed_haiku_functions_have_named_parameters(make):
    found = fluid.Program(lambda: layers.module(make(lambda x: haiku.Linear(2)(x)), *feeds(x=X)))
    assert list(found.parameters) == ["module_0/linear/b", "module_0/linear/w"] and not found.states


def test_equal_names_share_parameters_and_settings():
    net = linen.Dense(4)

    def build():
        x, _ = feeds(x=X, y=Y)
        for _ in range(2):
            x = layers.module(net, x, name="shared", param_attr=fluid.ParamAttr(trainable=False))
        loss = layers.mean(layers.fc(x, size=1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    found = fluid.Program(build)
    assert list(found.parameters) == ["shared/bias", "shared/kernel", "fc_0.w_0", "fc_0.b_0"]
    assert found.minimizes[0].parameters == ("fc_0.w_0", "fc_0.b_0")


def test_several_results_have_names():
    net = linen.OptimizedLSTMCell(3)

    def build():
        x, _ = feeds(x=X, y=Y)
        carry = (layers.zeros([32, 3], "float32"),) * 2
        return layers.module(net, x[:32], call=lambda cell, x, train: cell(carry, x))[1]

    # The initial state `carry` has 32 rows, so the sample feed, which fluid uses to find shapes, must have 32 rows too.
    found = fluid.Program(build, sample_feed={"x": X, "y": Y})
    assert [name for name in found.values if name.startswith("module_0.tmp")] == [f"module_0.tmp_{k}" for k in range(3)]


def test_mixed_precision():
    found = fluid.Program(program(Linen()), precision="bfloat16")
    assert {s.dtype for s in (found.parameters | found.states).values()} == {"float32"}
    assert found.values["module_0.tmp_0"].dtype == "bfloat16"


def test_other_things_are_refused():
    with pytest.raises(errors.ArgumentTypeError, match="a module of Flax"):
        fluid.Program(program(object()))


def test_sequences_are_refused():
    def build():
        return layers.module(linen.Dense(2), layers.data("x", shape=[4], lod_level=1))

    with pytest.raises(errors.ShapeError, match="sequence"):
        fluid.Program(build)


def predicted_by_library(kind, updated):
    """Return the result of a module in test mode, computed by Flax or Haiku alone; `updated` has the trained arrays."""
    if kind == "linen":
        return Linen().apply(updated, X, train=False)
    if kind == "haiku":
        transformed = haiku.transform_with_state(haiku_net)
        return transformed.apply(*updated, None, X, is_training=False)[0]
    updated.eval()
    return updated(X)


def test_trained_values_return_to_the_module(kind):
    net = Nnx(nnx.Rngs(0)) if kind == "nnx-made" else NETS[kind]

    def scoped():
        x, y = feeds(x=X, y=Y)
        with fluid.name_scope("body"):
            guess = layers.module(net, x, name="net")
        return {"loss": layers.mse_loss(guess, y), "guess": guess}

    trainer = fluid.Trainer(scoped, fluid.optimizer.Adam(0.05))
    trainer.train(fluid.reader.arrays({"x": X, "y": Y}, batch_size=8), num_epochs=3)
    updated = fluid.io.update_module(net, trainer, name="body/net")
    expected = trainer.run({"x": X, "y": Y}, fetch=["guess"], mode="test")[0]
    np.testing.assert_allclose(predicted_by_library(kind, updated), expected, rtol=1e-4, atol=1e-5)
    assert (updated is net) == (kind == "nnx-made")


def test_update_of_transformed_function_is_its_parameters():
    transformed = haiku.transform(lambda x: haiku.Linear(3, name="a")(x))
    with fluid.Session(lambda: layers.module(transformed, feeds(x=X)[0])) as session:
        params = fluid.io.update_module(transformed, session)
        np.testing.assert_allclose(transformed.apply(params, None, X), session.run(feed={"x": X})[0], rtol=1e-5)


def test_update_of_unknown_name_or_module():
    net = nnx.Linear(4, 3, rngs=nnx.Rngs(0))
    with fluid.Session(lambda: layers.module(net, feeds(x=X)[0])) as session:
        with pytest.raises(errors.UnknownNameError, match=r"begins with 'modul_0/'.*Did you mean 'module_0'\?"):
            fluid.io.update_module(net, session, name="modul_0")
        with pytest.raises(errors.UnknownNameError, match="array 'hidden/bias' that the program lacks"):
            fluid.io.update_module(Nnx, session)
        with pytest.raises(errors.ArgumentTypeError, match="layers.module takes a module of Flax"):
            fluid.io.update_module(3, session)


@pytest.mark.parametrize("net", [nnx.Linear(4, 2, rngs=nnx.Rngs(1)), linen.Dense(2), lambda x: haiku.Linear(2)(x)])
def test_one_object_is_one_set_of_weights(net):
    def build():
        (x,) = feeds(x=X)
        first = layers.module(net, x)
        return first + layers.module(net, x * 2.0)

    session = fluid.Session(build)
    assert len(session.scope) == 2 and all(name.startswith("module_0/") for name in session.scope)
    weight = next(np.asarray(array) for array in session.scope.values() if array.ndim == 2)
    session.scope.update({name: np.ones(2) for name, array in session.scope.items() if array.ndim == 1})
    for mode in ("train", "test"):
        found = session.run(feed={"x": X}, mode=mode)[0]
        np.testing.assert_allclose(found, 3 * X @ weight + 2, rtol=1e-4, atol=1e-5)


def test_classes_and_names_make_further_sets():
    make, net = functools.partial(nnx.Linear, 4, 2), nnx.Linear(4, 2, rngs=nnx.Rngs(1))

    def build():
        (x,) = feeds(x=X)
        values = [layers.module(make, x), layers.module(make, x)]
        return sum(values) + layers.module(net, x, name="a") + layers.module(net, x, name="b")

    owners = {name.partition("/")[0] for name in fluid.Program(build).parameters}
    assert owners == {"module_0", "module_1", "a", "b"}
