"""Arguments that change a value in place in PaddlePaddle: fluid refuses them, and any later use of the value."""

import inspect
import re

import jax.numpy as jnp
import numpy as np
import pytest
from layers.layer_table import X
from layers.test_no_effect import BUILDS, FUNCTIONS, discover, documented

import fluid
from fluid import errors, layers

DECLARED = [(name, argument) for name, f in FUNCTIONS.items() for argument in getattr(f, "assigns", {})]
TARGETS = {"out", "output", "cond", "correct", "total"}


def test_every_variable_that_fluid_would_write_is_declared():
    given = {(n, a) for n, f in FUNCTIONS.items() for a in inspect.signature(f).parameters if a in TARGETS}
    # Fluid writes to neither argument in the next line: this `cond` is a function, and this `out` declares results.
    assert given - set(DECLARED) == {("py_func", "out"), ("while_loop", "cond")}


@pytest.mark.parametrize(("name", "argument"), DECLARED)
def test_assigning_arguments_raise_errors_with_the_correction(name, argument):
    discover(name, {argument: None})
    with pytest.raises(errors.ArgumentError) as caught:
        discover(name, {argument: jnp.zeros([4, 3])})
    said = str(caught.value)
    assert said.startswith(f"{name}({argument}=...) would change a value") and "fluid.static" in said
    assert re.search(r"use what is returned: \w+ = layers\.(\w+)\(", said)[1] == name
    assert re.search(r"called at .*/tests/layers/\w+.py:\d+", caught.value.__notes__[0])
    assert documented(FUNCTIONS[name])[argument] == (
        "not possible in a program function, whose values never change: use what is returned."
    )


def test_a_variable_given_by_place_counts_too():
    with pytest.raises(errors.ArgumentError, match=r"assign\(output=...\)"):
        fluid.Program(lambda: layers.assign(np.zeros(3), layers.data("x", [3])))


CHANGES = {
    "increment": lambda x: layers.increment(x),
    "increment by 2": lambda x: layers.increment(x, 2, in_place=True),
    "reshape": lambda x: layers.reshape(x, [-1, 3, 1], inplace=True),
}
LATER = {
    "a layer": lambda x, new: layers.relu(x),
    "an operator inside a layer": lambda x, new: layers.concat([new, x]),
    "the result": lambda x, new: (new, x),
    "once more": lambda x, new: layers.increment(x),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("later", LATER)
def test_using_a_value_fluid_would_change_is_refused(change, later):
    def program():
        x = layers.data("x", [3])
        return LATER[later](x, CHANGES[change](x))

    with pytest.raises(errors.ProgramError) as caught:
        fluid.Program(program)
    assert re.search(r"changed in place at .*test_assigning.py:\d+", str(caught.value))
    assert "use what that call returned, or keep both: " in str(caught.value) and "fluid.static" in str(caught.value)


def test_using_the_returned_value_is_accepted():
    def program():
        x = layers.data("x", [3])
        kept = layers.assign(x)
        x = layers.increment(x)
        x = layers.increment(x)
        return x, kept, layers.increment(x, in_place=False), x + 1, layers.reshape(x, [-1, 3], inplace=True)

    def block(x):
        rnn = layers.StaticRNN()
        with rnn.step():
            now = rnn.step_input(x)
            before = rnn.memory(init=np.zeros(3, "float32"))
            rnn.update_memory(before, layers.increment(before))
            rnn.output(now + before)
        return rnn()

    session = fluid.Session(program)
    found = session.run(feed=X, mode="test")
    for got, more in zip(found, (2, 0, 3, 3, 2), strict=True):
        np.testing.assert_allclose(got, X["x"] + more, rtol=1e-6)
    (got,) = fluid.Session(lambda: block(layers.data("x", [3]))).run(feed=X, mode="test")
    np.testing.assert_allclose(got, X["x"] + np.arange(4)[:, None], rtol=1e-6)


def test_the_counter_of_a_loop():
    def program():
        start = [layers.zeros([], "int32"), layers.data("x", [3])]
        return layers.while_loop(lambda i, x: i < 5, lambda i, x: [layers.increment(i), x * 2], start)[1]

    (got,) = fluid.Session(program).run(feed=X, mode="test")
    np.testing.assert_allclose(got, 32 * X["x"])


def test_all_have_a_row():
    assert {name for name, _ in DECLARED} <= set(BUILDS)
