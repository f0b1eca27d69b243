"""Weights of zeros in consecutive layers, which cannot learn: fluid warns unless something else lets them learn."""

import jax
import pytest

import fluid
from fluid import errors, layers
from fluid.initializer import Constant, Normal, NumpyArray

ZEROS = Constant(0.0)


def trainer(first=ZEROS, second=ZEROS, act="relu", size=8, bias=None, between=lambda hidden, x: hidden):
    def program():
        x = layers.data("x", shape=[4])
        hidden = between(layers.fc(x, size=size, act=act, param_attr=first, bias_attr=bias), x)
        return layers.mean(layers.square(layers.fc(hidden, size=1, param_attr=second)))

    return fluid.Trainer(program, fluid.optimizer.SGD(0.1))


STUCK = {
    "relu": {},
    "sigmoid": {"act": "sigmoid"},
    "linear": {"act": None, "bias": False},
    "batch_norm": {"between": lambda hidden, x: layers.batch_norm(hidden)},
    "zeros of JAX": {"first": jax.nn.initializers.zeros},
    "an array": {"second": NumpyArray([[0.0]] * 8)},
}


@pytest.mark.parametrize("setting", STUCK.values(), ids=STUCK)
def test_consecutive_zero_weights_warn(setting):
    message = r"test_zero_weights.py:\d+ in program: 'fc_0.w_0' and 'fc_1.w_0' both start"
    with pytest.warns(errors.FluidWarning, match=message):
        trainer(**setting)


LEARNING = {
    "the last layer alone": {"first": None},
    "the first layer alone": {"second": None},
    "a residual path": {"between": lambda hidden, x: hidden + layers.fc(x, size=8)},
    "data beside it": {"between": lambda hidden, x: layers.concat([hidden, x], axis=1)},
    "a gate": {"between": lambda hidden, x: hidden * layers.reduce_sum(x, dim=1, keep_dim=True)},
    "biases that differ": {"bias": Normal(0.0, 1.0)},
    "dropout": {"between": lambda hidden, x: layers.dropout(hidden, 0.5)},
    "one unit": {"act": "sigmoid", "size": 1},
    "frozen": {"first": fluid.ParamAttr(initializer=ZEROS, trainable=False)},
    "equal numbers": {"first": Constant(0.1), "second": Constant(0.1)},
}


@pytest.mark.parametrize("setting", LEARNING.values(), ids=LEARNING)
def test_other_zero_weights_do_not_warn(setting):
    trainer(**setting)  # pytest fails if fluid warns


def test_parallel_zero_weights_do_not_warn():
    def program():
        a, b = (layers.data(name, shape=[4]) for name in "ab")
        return layers.mean(layers.square(layers.fc([a, b], size=3, param_attr=ZEROS)))

    fluid.Trainer(program, fluid.optimizer.SGD(0.1))  # pytest fails if fluid warns


def test_repeated_jitted_calls_are_distinguished():
    product = jax.jit(lambda x, w: x @ w)

    def program():
        x = layers.data("x", shape=[4])
        dead = product(x, layers.create_parameter([4, 4], default_initializer=ZEROS))
        hidden = product(x, layers.create_parameter([4, 4]))
        return layers.mean(product(hidden, layers.create_parameter([4, 4], default_initializer=ZEROS)) + dead)

    fluid.Trainer(program, fluid.optimizer.SGD(0.1))  # pytest fails if fluid warns
