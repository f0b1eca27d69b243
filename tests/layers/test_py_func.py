"""Python functions inside programs: results, gradients, and errors for undeclared results."""

import jax
import numpy as np
import pytest
from layers.layer_table import real
from layers.run_program import feeds, run

import fluid
from fluid import errors, layers

X, Y = real(4, 3), real(4, 3, salt=1)


def looks(x, width):
    return jax.ShapeDtypeStruct((x.shape[0], width), "float32")


def slopes(program, **feed):
    """Run a program; return its outputs, and the gradients of the sum of its first output for all feeds."""
    found = fluid.Program(program)

    def total(feed):
        outputs = found.apply({}, feed, key=None).outputs
        return outputs[0].sum(), outputs

    gradients, outputs = jax.jit(jax.grad(total, has_aux=True, allow_int=True))(feed)
    return outputs, gradients


def test_several_arrays_go_in_and_come_out():
    def both(x, y):
        assert isinstance(x, np.ndarray)
        return x @ np.ones((3, 2), "float32"), x.astype("float64") * y

    def back(x, y, first, second, slope, other):
        assert first.shape == (4, 2) and second.shape == x.shape and not other.any()
        return np.tile(slope.sum(1, keepdims=True), 3) + 0 * x, None

    def program():
        x, y = feeds(x=X, y=Y)
        return layers.py_func(both, [x, y], [looks(x, 2), x], back)

    (first, second), found = slopes(program, x=X, y=Y)
    np.testing.assert_allclose(first, np.tile(X.sum(1, keepdims=True), 2), rtol=1e-5)
    np.testing.assert_allclose(second, X * Y, rtol=1e-6)
    assert second.dtype == "float32"
    np.testing.assert_allclose(found["x"], np.full((4, 3), 2.0))
    np.testing.assert_allclose(found["y"], np.zeros((4, 3)))


def test_skipped_inputs_are_not_passed_to_backward():
    seen = []

    def back(*values):
        seen.append(len(values))
        return values[-1] * np.cosh(X)

    def program():
        (x,) = feeds(x=X)
        return layers.py_func(np.sinh, x, x, back, skip_vars_in_backward_input=[x])

    def one():
        (x,) = feeds(x=X)
        out = looks(x, 3)
        return layers.py_func(np.sinh, x, out, back, skip_vars_in_backward_input=out)

    np.testing.assert_allclose(slopes(program, x=X)[1]["x"], np.cosh(X), rtol=1e-5)
    np.testing.assert_allclose(slopes(one, x=X)[1]["x"], np.cosh(X), rtol=1e-5)
    assert seen == [1, 2], "x stands for the input and for the result; out for the result alone"


def test_no_backward_function_means_zero_gradients():
    ids = np.array([[1], [0], [2], [1]])
    (taken,), found = slopes(lambda: layers.py_func(np.add, feeds(x=X, i=ids), feeds(x=X)[0]), x=X, i=ids)
    np.testing.assert_allclose(taken, X + ids, rtol=1e-6)
    np.testing.assert_array_equal(found["x"], np.zeros_like(X))


def test_functions_without_results_run_for_side_effects():
    seen = []

    def program():
        (x,) = feeds(x=X)
        assert layers.py_func(lambda v: seen.append(v.sum()), x) is None
        return layers.mean(x)

    jax.block_until_ready(run(program, {"x": X}).outputs)
    jax.effects_barrier()
    assert seen == [pytest.approx(X.sum(), rel=1e-5)]


def test_results_of_undeclared_shape_are_refused():
    with pytest.raises(Exception, match=r"returned \(4, 1\); expected \(4, 2\), as out= says"):
        run(lambda: layers.py_func(lambda v: v[:, :1], feeds(x=X)[0], looks(feeds(x=X)[0], 2)), {"x": X})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: layers.py_func("sinh", x, x), "is no function"),
        (lambda x: layers.py_func(np.sinh, x, x, backward_func=3), "is no function"),
        (lambda x: layers.py_func(np.sinh, x, out=(4, 3)), "has no shape and dtype"),
    ],
)
def test_wrong_arguments_raise_type_errors(build, message):
    with pytest.raises(errors.ArgumentTypeError, match=message):
        fluid.Program(lambda: build(*feeds(x=X)))
