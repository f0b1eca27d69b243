"""Checks of a program before training: losses that depend on no parameter, wrong broadcasts, repeated softmax."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors, layers

SGD = fluid.optimizer.SGD(0.1)


def net(size=3, act="softmax", **settings):
    return layers.fc(layers.data("x", [4]), size, act=act, **settings)


def label():
    return layers.data("y", [1], "int64")


def minimized(loss):
    """Return a program function that minimises the result of `loss`."""

    def program():
        value = loss()
        SGD.minimize(value)
        return value

    return program


@pytest.mark.parametrize(
    "loss",
    [
        lambda: layers.accuracy(net(), label()),
        lambda: jnp.mean(jax.lax.stop_gradient(net())),
        lambda: layers.mean(layers.floor(net())),
        lambda: layers.mean(layers.cast(layers.argmax(net(), axis=1), "float32")),
        lambda: layers.mean(layers.data("x", [4])) + 0 * layers.accuracy(net(), label()),
        lambda: jax.jit(lambda p: jnp.mean((p > 0.5).astype("float32")))(net()),
    ],
    ids=["accuracy", "stop_gradient", "floor", "argmax", "data alone", "inside jit"],
)
def test_a_loss_that_no_parameter_influences_is_refused(loss):
    with pytest.raises(
        errors.ProgramError, match=r"no gradient with respect to any .*fc_0\.w_0.*return the loss first"
    ):
        fluid.Program(minimized(loss))


@pytest.mark.parametrize(
    "loss",
    [
        lambda: layers.mean(net()),
        lambda: layers.reduce_max(jax.jit(lambda p: jnp.where(p > 0.5, p, 0))(net())),
        lambda: jnp.mean(jax.nn.relu(net())),
        lambda: layers.mean(layers.scan(lambda h, x: (h + x, h), jnp.zeros([3]), net())[0]),
        lambda: layers.mean(
            layers.cond(layers.reduce_sum(layers.data("x", [4])) > 0, lambda: net(1, None), lambda: net(1, None))
        ),
        lambda: layers.mean(layers.repeat(lambda h: layers.fc(h, 4), 3, layers.data("x", [4]))),
        lambda: layers.mean(layers.embedding(label(), [5, 2], is_sparse=True)),
    ],
    ids=["mean", "jit", "custom derivative", "scan", "parameters in branches", "parameters in blocks", "rows"],
)
def test_a_loss_that_parameters_influence_is_taken(loss):
    assert fluid.Program(minimized(loss)).minimizes[0].parameters


def test_each_loss_needs_at_least_a_single_influence():
    def two(first, second):
        def program():
            loss = layers.mean(net(param_attr="w", bias_attr="b"))
            SGD.minimize(loss, parameter_list=["w", "b"])
            layers.fc(layers.data("z", [2]), 1, param_attr="other", bias_attr=False)
            SGD.minimize(loss, parameter_list=["other", *(["w"] if second else [])])
            return loss

        return program

    assert len(fluid.Program(two(True, True)).minimizes) == 2
    with pytest.raises(errors.ProgramError, match=r"\(other\)"):
        fluid.Program(two(True, False))


@pytest.mark.parametrize("attr", [False, fluid.ParamAttr(trainable=False)])
def test_a_program_without_trainable_parameters_is_refused(attr):
    def loss():
        x = layers.data("x", [4])
        return layers.mean(x if attr is False else layers.fc(x, 1, param_attr=attr, bias_attr=False))

    with pytest.raises(errors.ProgramError, match="no trainable parameter: it has"):
        fluid.Program(minimized(loss))


def squared(combine, shape=(), size=1):
    return lambda: layers.mean(layers.square(combine(net(size, None), layers.data("y", shape))))


@pytest.mark.parametrize(
    "combine",
    [
        lambda p, y: p - y,
        lambda p, y: y - p,
        lambda p, y: jnp.subtract(p, y),
        lambda p, y: jnp.maximum(p, y) * 2,
        lambda p, y: jnp.where(y > 0, p, 0.0),
        lambda p, y: jnp.clip(p, None, y),
        lambda p, y: jnp.hypot(y, p),
        lambda p, y: p ** jnp.abs(y),
        lambda p, y: jnp.logaddexp(y, p),
        lambda p, y: jnp.remainder(p, y),
        lambda p, y: jax.jit(lambda a, b: a * jnp.tanh(b))(p, y),
        lambda p, y: layers.remat(lambda a, b: jnp.where(a > 0, a, b), p, y),
        lambda p, y: layers.where(layers.less_than(p, layers.reshape(y, [-1, 1])), y, p),
        lambda p, y: layers.cond(True, lambda: p - y, lambda: p + y),
    ],
)
def test_column_and_row_that_broadcast_warn(combine):
    with pytest.warns(errors.FluidWarning, match=r"test_discovery.py:\d+ in .*\[batch, 1\].*layers.reshape"):
        fluid.Program(minimized(squared(combine)))


@pytest.mark.parametrize(
    "loss",
    [
        squared(lambda p, y: p - y, shape=[1]),
        squared(lambda p, y: p[:, 0] - y),
        squared(lambda p, y: p - y[None, :]),  # `None` shows that the user wants all pairs of rows
        squared(lambda p, y: jnp.where(p > 0, jnp.exp(y)[None], p)),
        squared(lambda p, y: jnp.hypot(*jnp.broadcast_arrays(p, y))),
        squared(lambda p, y: jnp.outer(p, y)),
        squared(lambda p, y: jax.vmap(lambda one: jax.vmap(lambda other: jnp.where(other > 0, one, 0))(y))(p[:, 0])),
        squared(lambda p, y: layers.expand(p, [1, 37]) - layers.create_parameter([37]), shape=[1]),
        squared(lambda p, y: jnp.tile(p, [1, 37]) * jnp.arange(37.0), shape=[1]),
        squared(lambda p, y: p - layers.reduce_mean(y)),
        squared(lambda p, y: p - jnp.arange(3.0), size=3),
        lambda: layers.mean(jnp.matmul(net(), net().T)),
    ],
)
def test_other_arithmetic_does_not_warn(loss, recwarn):
    fluid.Program(minimized(loss))
    assert not recwarn.list


def test_broadcast_outside_the_loss_does_not_warn(recwarn):
    def loss():
        prediction = net(1, None)
        layers.identity(prediction - layers.data("y", []), name="for the eye")
        return layers.mean(prediction)

    fluid.Program(minimized(loss))
    assert not recwarn.list


def words():
    return layers.data("x", [4], lod_level=1), layers.data("y", [1], "int64", lod_level=1)


@pytest.mark.parametrize(
    "build",
    [
        lambda: layers.cross_entropy(net(act=None), label()),
        lambda: layers.cross_entropy(net(act=None, bias_attr=False), label()),
        lambda: layers.cross_entropy(
            layers.reshape(net(6, None), [-1, 3]), layers.reshape(layers.data("z", [2], "int64"), [-1, 1])
        ),
        lambda: layers.cross_entropy(layers.fc(words()[0], 3), words()[1]),
        lambda: layers.cross_entropy(jnp.matmul(layers.data("x", [4]), jnp.ones([4, 3])) - 1, label()),
        lambda: layers.cross_entropy(jax.jit(lambda x: x @ jnp.ones([4, 3]))(layers.data("x", [4])), label()),
        lambda: layers.cross_entropy(layers.sigmoid(net(act=None)), label()),
    ],
    ids=["bias", "no bias", "reshaped", "sequence", "operators", "inside jit", "sigmoid"],
)
def test_logits_given_for_probabilities_warn(build):
    with pytest.warns(errors.FluidWarning, match=r"test_discovery.py:\d+ in .* takes probabilities.*softmax"):
        fluid.Program(build)


@pytest.mark.parametrize(
    "build",
    [
        lambda: layers.cross_entropy(net(), label()),
        lambda: layers.cross_entropy(jax.nn.softmax(net(act=None)), label()),
        lambda: layers.cross_entropy(layers.data("p", [3]), label()),
        lambda: layers.softmax_with_cross_entropy(net(act=None), label()),
        lambda: layers.cross_entropy(0.9 * net() + 0.1 / 3, label()),
    ],
)
def test_probabilities_do_not_warn(build, recwarn):
    fluid.Program(build)
    assert not recwarn.list


@pytest.mark.parametrize("text", ["the shape is {shape}", "x{shape[0]} or 0.37 or 370"])
def test_a_printed_stand_in_is_explained(capsys, text):
    def program():
        x = layers.data("x", [4])
        print(text.format(shape=x.shape))
        return x

    fluid.Program(program)
    said, *rest = capsys.readouterr().out.splitlines()
    assert said == text.format(shape=(37, 4)), "what is printed stays, and is printed once"
    assert ["37 stands for the batch size" in line for line in rest] == [True]


def test_other_prints_are_left_alone(capsys):
    def program():
        print("137 0.37 37.5")
        return layers.data("x", [4])

    fluid.Program(program)
    assert capsys.readouterr().out == "137 0.37 37.5\n"


def test_warnings_point_to_the_trainer_call():
    with pytest.warns(errors.FluidWarning) as caught:
        fluid.Trainer(squared(lambda p, y: p - y), SGD)
    assert caught[0].filename == __file__


def test_numpy_random_arrays_warn_with_the_line():
    def noisy():
        x = layers.data("x", shape=[4])
        return layers.mean(x * np.random.default_rng().normal(size=4).astype("float32"))

    with pytest.warns(errors.FluidWarning, match=r"test_discovery.py:\d+ in .*noisy: .*layers.random_key") as caught:
        fluid.Program(noisy)
    assert len(caught) == 1


@pytest.mark.parametrize(
    "array",
    [
        lambda x: np.random.default_rng(0).normal(size=4).astype("float32"),
        lambda x: np.arange(4, dtype="float32"),
        lambda x: np.full(4, 1 / x.shape[0], "float32"),  # equal values in each trace with the same batch size
        lambda x: np.ones(x.shape, "float32"),
        lambda x: layers.dropout(x, 0.5),
    ],
)
def test_equal_arrays_in_each_trace_do_not_warn(array):
    def steady():
        x = layers.data("x", shape=[4])
        return layers.mean(x * array(x))

    fluid.Program(steady)  # a warning would fail this test


def test_two_softmaxes_in_a_row_are_warned_of():
    def twice():
        label = layers.data("label", shape=[1], dtype="int64")
        prediction = layers.fc(layers.data("x", shape=[4]), size=3, act="softmax")
        return layers.mean(layers.softmax_with_cross_entropy(prediction, label))

    with pytest.warns(errors.FluidWarning, match=r"test_discovery.py:\d+ in .*twice: .*layers.cross_entropy") as caught:
        fluid.Program(twice)
    assert len(caught) == 1


@pytest.mark.parametrize(
    "loop",
    [
        lambda f, x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0],
        lambda f, x: jax.lax.fori_loop(0, 3, lambda i, c: f(c), x),
        lambda f, x: jax.lax.cond(x.sum() > 0, f, lambda c: c, x),
        lambda f, x: jax.jit(f)(x),
        lambda f, x: jax.checkpoint(f)(x),
    ],
    ids=["scan", "fori_loop", "cond", "jit", "checkpoint"],
)
def test_layer_inside_a_jax_loop_is_explained(loop):
    def program():
        return loop(lambda c: fluid.layers.fc(c, size=4), fluid.layers.data("x", shape=[4]))

    with pytest.raises(errors.ProgramError, match=r"test_discovery.py:\d+ in .*'fc_0.*layers.scan.*layers.repeat"):
        fluid.Program(program)


def test_names_that_shift_in_test_mode_are_refused():
    def program(name=None, size=4):
        hidden = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=4)
        loss = 0.0
        if fluid.layers.is_training():
            loss = fluid.layers.mean(fluid.layers.fc(hidden, size=size, name=name))
        return fluid.layers.mean(fluid.layers.fc(hidden, size=4)) + loss

    for size in (4, 3):
        with fluid.Session(functools.partial(program, size=size)) as session:
            with pytest.raises(errors.ParameterError, match=r"'fc_1.w_0' of test mode.*'fc_2.w_0'.*name=\"auxiliary\""):
                session.run(feed={"x": np.ones((2, 4), "float32")}, mode="test")
    with fluid.Session(functools.partial(program, name="auxiliary")) as session:
        session.run(feed={"x": np.ones((2, 4), "float32")}, mode="test")


def test_alternative_layers_of_both_modes_share_by_name():
    def program():
        x = fluid.layers.data("x", shape=[4])
        if fluid.layers.is_training():
            x = fluid.layers.fc(fluid.layers.dropout(x, 0.5), size=4, name="first")
        else:
            x = fluid.layers.fc(x, size=4, name="first")
        for _ in range(2):
            x = fluid.layers.fc(x, size=4)
        return x

    with fluid.Session(program) as session:
        session.run(feed={"x": np.ones((2, 4), "float32")}, mode="test")
