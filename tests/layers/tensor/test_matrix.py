"""Products of vectors and matrices, distances, and matrix triangles: compared with NumPy."""

import itertools

import jax
import numpy as np
import pytest
from layers.layer_table import real
from layers.run_program import check, feeds, output

import fluid
from fluid import errors, layers

M, N = real(3, 2, 4), real(3, 4, 5)


def test_bmm_and_addmm_match_numpy():
    check(layers.bmm, np.einsum("bij,bjk->bik", M, N), x=M, y=N)
    added, x, y = real(2, 5, salt=1), M[0], N[0]
    check(lambda c, x: layers.addmm(c, x, y, 0.5, -2.0), 0.5 * x @ y - 2 * added, c=added, x=x)
    got = output(lambda: layers.addmm(added[:1], feeds(x=x)[0], y), {"x": x})
    np.testing.assert_allclose(got, x @ y + added[:1], rtol=1e-5, atol=1e-6)


def test_dot_and_cross_match_numpy():
    x, y = real(4, 3), real(4, 3, salt=1)
    check(layers.dot, np.sum(x * y, 1, keepdims=True), x=x, y=y)
    assert output(lambda: layers.dot(x[0], y[0]), {}) == pytest.approx(x[0] @ y[0], rel=1e-5)
    check(layers.cross, np.cross(x, y), x=x, y=y)
    x, y = real(3, 4, 3), real(3, 4, 3, salt=1)
    got = output(lambda: layers.cross(x, y), {})
    np.testing.assert_allclose(got, np.cross(x, y, axis=0), rtol=1e-5, atol=1e-6)
    check(lambda x, y: layers.cross(x, y, dim=2), np.cross(x, y), x=x, y=y)


def test_kron_matches_a_loop():
    x, y = real(2, 3), real(4, 2)
    want = np.zeros((8, 6))
    for i, j, k, m in itertools.product(range(2), range(3), range(4), range(2)):
        want[4 * i + k, 2 * j + m] = x[i, j] * y[k, m]
    check(lambda x: layers.kron(x, y), want, x=x)


@pytest.mark.parametrize("p", [0, 0.5, 1, 2, 3, np.inf, -np.inf])
def test_dist_matches_numpy_norms(p):
    x, y = real(4, 3), real(4, 1, salt=1)
    x[0] = y[0]
    got = output(lambda: layers.dist(*feeds(x=x, y=y), p), {"x": x, "y": y})
    assert got.shape == () and got == pytest.approx(np.linalg.norm((x - y).ravel(), ord=p), rel=1e-5)


def test_the_slope_of_no_distance_is_zero():
    program = fluid.Program(lambda: layers.dist(*feeds(x=M, y=M)))
    slope = jax.grad(lambda x: program.apply({}, {"x": x, "y": M}, key=None).outputs[0])(M)
    np.testing.assert_array_equal(slope, np.zeros_like(M))


@pytest.mark.parametrize("diagonal", [-2, 0, 1, 5])
def test_tril_and_triu_match_numpy(diagonal):
    above = np.arange(4) - np.arange(2)[:, None]
    check(lambda x: layers.tril(x, diagonal), M * (above <= diagonal), x=M)
    check(lambda x: layers.triu(x, diagonal), M * (above >= diagonal), x=M)


def test_fsp_matrix():
    x, y = real(2, 3, 4, 5), real(2, 2, 4, 5)
    want = [[[np.mean(a * b) for b in second] for a in first] for first, second in zip(x, y, strict=True)]
    check(layers.fsp_matrix, want, x=x, y=y)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: layers.bmm(x, x), r"expected \[batch, n, m\] and \[batch, m, k\]"),
        (lambda x: layers.addmm(x, x, x), r"expected \[n, k\]"),
        (lambda x: layers.dot(x, x), "two vectors or two matrices"),
        (lambda x: layers.cross(x, x), "3 numbers along a dimension"),
        (lambda x: layers.dist(x, x, p=-1), "p=-1; expected 0 or more"),
        (lambda x: layers.dist(x, np.ones(7)), "cannot be broadcast"),
        (lambda x: layers.tril(np.ones(7)), "is no matrix"),
        (lambda x: layers.fsp_matrix(x, x), r"\[batch, m, height, width\]"),
    ],
)
def test_wrong_arguments_raise_value_errors(build, message):
    with pytest.raises(ValueError, match=message) as caught:
        fluid.Program(lambda: build(*feeds(x=M)))
    assert isinstance(caught.value, errors.FluidError)
