"""Operators of SequenceBatch: they work step by step, keep the lengths, and refuse operands that fit no step."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors

ARITHMETIC = [operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod]
COMPARISONS = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]


def batch(*shape, seed=0, lengths=(3, 1)):
    data = np.random.default_rng(seed).uniform(0.5, 2, shape or (2, 3, 2)).astype("float32")
    data[np.arange(data.shape[1])[None] >= np.array(lengths)[:, None]] = 0
    return fluid.SequenceBatch(jnp.asarray(data), jnp.asarray(lengths, jnp.int32))


def check(got, want, lengths):
    """Check that `got` is a SequenceBatch with the given lengths, and that its rows equal the rows in `want`."""
    assert isinstance(got, fluid.SequenceBatch) and [int(n) for n in got.lengths] == [int(n) for n in lengths]
    for row, expected in zip(got.rows(), want, strict=True):
        np.testing.assert_allclose(row, expected, rtol=1e-5)


@pytest.mark.parametrize("op", [*ARITHMETIC, operator.pow, *COMPARISONS], ids=lambda op: op.__name__)
@pytest.mark.parametrize(
    "other", [2, 0.5, np.float32(1.5), np.array([0.5, 2], "float32"), jnp.array([[0.5, 2]])], ids=str
)
def test_operators_broadcast_values_that_fit_a_step(op, other):
    x = batch()
    check(op(x, other), [op(row, np.asarray(other)) for row in x.rows()], x.lengths)
    check(op(other, x), [op(np.asarray(other), row) for row in x.rows()], x.lengths)


@pytest.mark.parametrize("op", [*ARITHMETIC, operator.pow, *COMPARISONS], ids=lambda op: op.__name__)
def test_operators_of_two_sequences(op):
    x, y, column = batch(), batch(seed=1), batch(2, 3, 1, seed=2)
    check(op(x, y), [op(a, b) for a, b in zip(x.rows(), y.rows(), strict=True)], x.lengths)
    check(op(x, column), [op(a, b) for a, b in zip(x.rows(), column.rows(), strict=True)], x.lengths)


def test_single_value_per_step_broadcasts_over_the_steps():
    x, y = batch(), batch(2, 3, seed=1)
    check(x * y, [a * b[:, None] for a, b in zip(x.rows(), y.rows(), strict=True)], x.lengths)


def test_unary_and_logical_operators():
    x = batch()
    check(-x, [-row for row in x.rows()], x.lengths)
    check(+x, x.rows(), x.lengths)
    check(abs(x - 1), [abs(row - 1) for row in x.rows()], x.lengths)
    above, below = x > 1, x < 1.5
    check(above & below, [(row > 1) & (row < 1.5) for row in x.rows()], x.lengths)
    check((above | below) ^ ~above, [row > 1 for row in x.rows()], x.lengths)


def test_product_with_a_matrix():
    x, weight = batch(), np.arange(6, dtype="float32").reshape(2, 3)
    check(x @ weight, [row @ weight for row in x.rows()], x.lengths)
    check(x @ weight[:, 0], [row @ weight[:, 0] for row in x.rows()], x.lengths)
    for wrong in (np.ones((3, 2)), np.ones((2, 2, 2))):
        with pytest.raises(errors.ShapeError, match="multiplied by a matrix"):
            x @ wrong


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (2, 3, 2), (3,)])
def test_arrays_that_are_no_steps_are_refused(shape):
    """Check that a SequenceBatch refuses to add an array that fits no step, but would broadcast along the time."""
    with pytest.raises(errors.ShapeError, match="must fit each step"):
        batch() + np.ones(shape, "float32")


def test_other_lengths_are_refused():
    for other in (batch(2, 3, 2, lengths=(2, 2)), batch(2, 4, 2), batch(3, 3, 2, lengths=(3, 1, 1))):
        with pytest.raises(errors.ShapeError, match="lengths must be the same"):
            batch() + other
    with pytest.raises(errors.ShapeError):
        batch(2, 3) + batch()


@pytest.mark.parametrize("other", ["a", None, [1, 2]])
def test_other_things_are_left_to_python(other):
    with pytest.raises(TypeError, match="unsupported operand"):
        batch() + other


def test_equality_leaves_identity_alone():
    x, y = batch(), batch()
    assert len({x, y, x}) == 2 and x in [x, y]
    with pytest.raises(errors.ArgumentTypeError, match="neither true nor false"):
        assert x in [y]  # y == x has a truth value for each step


def test_operators_in_jit_have_finite_gradients():
    x, y = batch(), batch(seed=1)

    @jax.jit
    def total(x, y):
        both = x / y + x**0.5
        return jnp.sum(both.data, where=both.mask[..., None])

    for gradient in jax.grad(total, argnums=(0, 1), allow_int=True)(x, y):
        assert np.isfinite(gradient.data).all()


def test_operators_in_a_program():
    def program():
        x = fluid.layers.data("x", shape=[2], lod_level=1)
        return fluid.layers.mean(1 - x * 2), (x + x) @ fluid.layers.create_parameter([2, 3], name="w")

    session = fluid.Session(program)
    mean, product = session.run(program, {"x": [[[1, 2], [3, 4]], [[5, 6]]]})
    assert float(mean) == -6
    assert [int(n) for n in product.lengths][:2] == [2, 1] and product.data.shape[2] == 3


@pytest.mark.parametrize(
    ("rows", "dtype", "data"),
    [
        ([[7], [0.25, 3]], "float64", [[7, 0], [0.25, 3]]),
        ([[0.25, 3], [7]], "float64", [[0.25, 3], [7, 0]]),
        ([[], [5], [6, 7]], "int64", [[0, 0], [5, 0], [6, 7]]),
        ([[5], []], "int64", [[5], [0]]),
        ([np.array([1], "int8"), np.array([300], "int16")], "int16", [[1], [300]]),
        ([np.array([], "float32"), np.array([2**40])], "int64", [[0], [2**40]]),
        ([np.array([], "int32")], "int32", [[]]),
        ([[True], [2]], "int64", [[1], [2]]),
    ],
)
def test_rows_of_several_dtypes_are_promoted(rows, dtype, data):
    batch = fluid.SequenceBatch.from_rows(rows)
    assert batch.data.dtype == dtype and batch.data.tolist() == data
