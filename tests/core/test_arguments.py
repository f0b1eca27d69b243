"""Calls with wrong arguments: errors list the arguments of the function, and translate names of other libraries."""

import numpy as np
import pytest

import fluid
from fluid import core, errors, layers


def regression(x=None):
    x = layers.data("x", shape=[4])
    return layers.mean(layers.fc(x, size=1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda x: layers.fc(x, units=3),
            ["'units'", "Did you mean 'size'", "layers.fc(input, size, num"],
        ),
        (lambda x: layers.fc(x, 3, activation="relu"), ["'activation'", "Did you mean 'act'"]),
        (lambda x: layers.fc(x, 3, sise=4), ["'sise'", "Did you mean 'size'"]),
        (lambda x: layers.fc(x, 3, nonsense=4), ["'nonsense'", "It takes layers.fc("]),
        (lambda x: layers.fc(x), ["missing a required argument: 'size'"]),
        (lambda x: layers.dropout(x, p=0.5), ["Did you mean 'dropout_prob'"]),
        (lambda x: layers.relu(x, 1, 2, 3), ["too many positional arguments"]),
    ],
)
def test_calls_of_layers(call, words):
    with pytest.raises(errors.ArgumentTypeError) as caught:
        fluid.Program(lambda: call(layers.data("x", shape=[4])))
    message = str(caught.value)
    assert not [word for word in words if word not in message], message
    assert any(note.startswith("in the layer") and __file__ in note for note in caught.value.__notes__)


def test_error_raised_inside_a_layer_is_unchanged():
    def refuses(x):
        raise TypeError("mine")

    with pytest.raises(TypeError, match="mine") as caught:
        fluid.Program(lambda: layers.fc(layers.data("x", shape=[4]), size=3, act=refuses))
    assert not isinstance(caught.value, errors.FluidError)


def test_calls_of_optimizers_and_trainers():
    with pytest.raises(errors.ArgumentTypeError, match=r"Adam\(\) got an unexpected.*'lr'.*'learning_rate'"):
        fluid.optimizer.Adam(lr=0.1)
    with pytest.raises(errors.ArgumentTypeError, match="too many positional arguments"):
        fluid.optimizer.SGD({}, 0.1)
    with pytest.raises(errors.ArgumentTypeError, match=r"fluid.Trainer\(\).*'model'.*'program_func'"):
        fluid.Trainer(model=regression)
    trainer = fluid.Trainer(regression, fluid.optimizer.SGD(0.1))
    reader = fluid.reader.arrays({"x": np.ones((4, 4), "float32")}, batch_size=4)
    with pytest.raises(errors.ArgumentTypeError, match=r"trainer.train\(\).*'epochs'.*'num_epochs'"):
        trainer.train(reader, epochs=3)
    assert int(trainer.session.scope.step) == 0


def test_fitting_arguments_are_no_misfit():
    assert core.misfit_of(layers.fc, "fc", (1, 2), {"act": "relu"}) is None


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: fluid.optimizer.SGD(0.1, grad_clip=1.0), errors.ArgumentTypeError, ["grad_clip=1.0", "fluid.clip."]),
        (lambda: fluid.optimizer.SGD(0.1, regularization=1e-4), errors.ArgumentTypeError, ["0.0001", "L2Decay"]),
        (lambda: fluid.optimizer.Adam(0.1, beta1=1.5), errors.ArgumentError, ["beta1=1.5", "beta1=0.9"]),
        (lambda: fluid.optimizer.Lion(0.1, beta2=-1), errors.ArgumentError, ["beta2=-1"]),
        (lambda: fluid.ParamAttr(initializer="zeros"), errors.ArgumentTypeError, ["'zeros'", "initializer.Xavier()"]),
        (lambda: fluid.ParamAttr(initializer=0.5), errors.ArgumentTypeError, ["initializer.Constant(0.5)"]),
        (lambda: fluid.Session(regression, seed="today"), errors.ArgumentError, ["seed='today'"]),
        (lambda: fluid.Session(regression, regression).run(feed={}), errors.ArgumentTypeError, ["'regression_1'"]),
        (lambda: fluid.Session(regression).run(feed=np.ones((2, 4))), errors.ArgumentTypeError, ["feed={'x': array}"]),
        (lambda: fluid.Program(lambda x, y: x), errors.ProgramError, ["takes x, y", "fluid.layers.data('x'"]),
    ],
)
def test_arguments_of_the_wrong_kind(build, error, words):
    with pytest.raises(error) as caught:
        build()
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)


def test_a_program_may_have_arguments_with_defaults():
    assert list(fluid.Program(regression).feeds) == ["x"]


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda x: layers.fc(4, 1), ["the number 4", "layers.fc(x, size=1)"]),
        (lambda x: layers.concat(x, x), ["concat([x, y]"]),
        (lambda x: layers.cond(layers.reduce_sum(x) > 0, x, x), ["true_fn", "lambda: x", "layers.where"]),
        (lambda x: layers.accuracy(layers.cast(x, "int32"), x), ["layers.accuracy(prediction, label)"]),
    ],
)
def test_swapped_values_raise_named_errors(build, words):
    with pytest.raises(errors.ArgumentTypeError) as caught:
        fluid.Program(lambda: build(layers.data("x", shape=[4])))
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)
