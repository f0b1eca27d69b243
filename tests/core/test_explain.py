"""Errors for operations that JAX refuses on traced values: each names the program function and the user's line."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors, layers


def x():
    return layers.data("x", [4])


def words():
    return layers.data("words", [4], lod_level=1)


def total():
    return layers.reduce_sum(x())


def count():
    return layers.cast(total(), "int32")


@pytest.mark.parametrize(
    ("build", "advice"),
    [
        (lambda: 1.0 if total() > 0 else 2.0, "layers.cond"),
        (lambda: total() > 0 and total() < 1, "layers.where"),
        (lambda: float(total()), "layers.Print"),
        (lambda: total().item(), "layers.Print"),
        (lambda: x().tolist(), "fetch"),
        (lambda: "%f" % total(), "layers.Print"),
        (lambda: f"{total():.3f}", "layers.Print"),
        (lambda: np.cos(x()), "jax.numpy"),
        (lambda: jnp.zeros(int(total())), "known in advance"),
        (lambda: jnp.zeros(count()), "known in advance"),
        (lambda: jnp.arange(count()), "known in advance"),
        (lambda: [1.0, 2.0][count()], "layers.gather"),
        (lambda: [i for i in range(count())], "layers.while_loop"),
        (lambda: x()[x() > 0], "depends on data"),
    ],
)
def test_operations_that_need_numbers_get_advice(build, advice):
    with pytest.raises(errors.ProgramError) as caught:
        fluid.Program(build)
    message = str(caught.value)
    assert message.startswith(f"{__file__}:") and "the numbers of a value" in message and advice in message
    assert "(lambda: " in message, "the line itself is quoted"
    assert caught.value.__suppress_context__ and "operation a:" not in message


@pytest.mark.parametrize(
    "build",
    [
        lambda: jnp.mean(words()),
        lambda: jnp.where(words() > 0, 1, 0),
        lambda: jax.nn.relu(words()),
        lambda: np.mean(words()),
        lambda: words()[0],
        lambda: words().sum(),
        lambda: len(words()),
        lambda: [row for row in words()],
    ],
)
def test_array_functions_on_a_sequence_get_advice(build):
    with pytest.raises(errors.ArgumentTypeError, match=r"test_explain.py:\d+ in .*layers.sequence_pool.*x\.mask"):
        fluid.Program(build)


@pytest.mark.parametrize("build", [lambda: 1.0 if words() > 0 else 2.0, lambda: max(words(), 0.0)])
def test_a_sequence_is_neither_true_nor_false(build):
    with pytest.raises(errors.ArgumentTypeError, match="layers.where"):
        fluid.Program(build)


@pytest.mark.parametrize("error", [KeyError("mine"), ValueError("mine"), TypeError("mine")])
def test_errors_of_the_user_are_unchanged(error):
    def program():
        raise error

    with pytest.raises(type(error), match="mine") as caught:
        fluid.Program(program)
    assert caught.value is error


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (
            lambda: layers.where(x() > 0 and x() < 1, x(), 0.0),
            errors.ProgramError,
            ["numbers of a value", "logical_and"],
        ),
        (lambda: x().detach(), errors.ProgramError, ["shape [batch, 4]", "'detach'", "stop_gradient"]),
        (lambda: x().nonsense, errors.ProgramError, ["'nonsense'"]),
        (lambda: x().view(-1, 2, 2), errors.ProgramError, ["layers.reshape"]),
        (lambda: x().__setitem__(0, 1.0), errors.ProgramError, [".at[", "layers.where"]),
        (lambda: x() + jnp.zeros(3), errors.ShapeError, ["(batch, 4)", "(3,)", "layers.reshape"]),
        (lambda: x() @ jnp.zeros((3, 2)), errors.ShapeError, ["(4,)", "(3,)"]),
        (lambda: jnp.concatenate([x(), jnp.zeros((2, 3))]), errors.ShapeError, ["(batch, 4)", "(2, 3)"]),
        (lambda: x().reshape(5, 3), errors.ShapeError, ["(batch, 4)", "(5, 3)"]),
        (lambda: jnp.sum(x(), axis=3), errors.ShapeError, ["axis 3"]),
    ],
)
def test_methods_of_other_libraries_get_advice(build, error, words):
    with pytest.raises(error) as caught:
        fluid.Program(build)
    message = str(caught.value)
    assert message.startswith(f"{__file__}:")
    assert not [word for word in words if word not in message], message


def test_condition_on_a_numpy_array_is_unchanged():
    def program():
        return x() if np.zeros(3) > 0 else x() * 2

    with pytest.raises(ValueError, match="truth value") as caught:
        fluid.Program(program)
    assert not isinstance(caught.value, errors.FluidError)


def test_a_value_of_another_program_is_named():
    shared = []

    def first():
        shared.append(layers.fc(x(), size=1))
        return shared[0]

    fluid.Program(first)
    with pytest.raises(errors.ProgramError, match=r"float32\[batch, 1\] outside.*program.*never values"):
        fluid.Program(lambda: shared[0] * 2)
