"""Rows of a minibatch, followed through the equations: which results depend on other rows, and which do not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors, layers


def mixing(build, names=None, overrides=(), width=4):
    """Return the line at which the first result of `build` begins to depend on other rows; None if none does."""

    def program():
        return build(layers.data("x", shape=[width]), layers.data("s", shape=[2], lod_level=1))

    return fluid.Program(program).mixing(names, overrides)


def own_loop(x, s):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jnp.sin(c[1])), (0, x))[1]


def vmapped_loop(x, s):
    return jax.vmap(lambda row: jax.lax.while_loop(lambda y: jnp.sum(y) > 1, lambda y: y / 2, row))(x)


def images(x):
    return layers.reshape(x, [-1, 1, 2, 2])


# For each program, the reason why a row depends on itself alone is the name of the case.
ALONE = {
    "elementwise": lambda x, s: jnp.tanh(x) * 2 + x**2,
    "along the features": lambda x, s: x - x.mean(axis=1, keepdims=True),
    "a matrix product": lambda x, s: layers.fc(x, 3),
    "a product of each row": lambda x, s: jnp.einsum("bi,bj->bij", x, x),
    "sorted features": lambda x, s: jnp.sort(x, axis=1),
    "rows of a table that all begin with one id": lambda x, s: layers.fc(
        [jnp.repeat(x, 3, axis=0), layers.embedding(jnp.zeros((3 * x.shape[0], 1), "int32"), size=[5, 4])], size=2
    ).reshape(-1, 6),
    "sums over features so far": lambda x, s: layers.cumsum(x, axis=1),
    "rows and steps folded and unfolded": lambda x, s: layers.fc(s, 3),
    "split features": lambda x, s: x.reshape(-1, 2, 2).sum(axis=2),
    "transposed and back": lambda x, s: (x.T * 2).T,
    "the own index of each row": lambda x, s: x[jnp.arange(x.shape[0]), jnp.argmax(x, axis=1)],
    "take along an axis": lambda x, s: jnp.take_along_axis(x, jnp.argmax(x, axis=1)[:, None], axis=1),
    "a table of ids": lambda x, s: layers.embedding(layers.cast(x[:, :1] > 0, "int64"), [3, 2]),
    "written at the own index": lambda x, s: x.at[jnp.arange(x.shape[0]), jnp.argmax(x, axis=1)].set(0.0),
    "a convolution": lambda x, s: layers.conv2d(images(x), 2, 2),
    "pooling": lambda x, s: layers.pool2d(images(x), 2),
    "batch_norm in test mode": lambda x, s: layers.batch_norm(x),
    "dropout in test mode": lambda x, s: layers.dropout(x, 0.5),
    "a scan over steps": lambda x, s: jax.lax.scan(lambda h, now: (h + now, h), x[:, 0], x.T)[1].T,
    "a map over rows": lambda x, s: jax.lax.map(lambda row: row / jnp.sum(row), x),
    "a loop of constant length": own_loop,
    "a loop of each row": vmapped_loop,
    "a branch on a constant": lambda x, s: jax.lax.cond(jnp.bool_(True), jnp.sin, jnp.cos, x),
    "remat": lambda x, s: jax.checkpoint(lambda v: jnp.sin(v) * v)(x),
    "a custom derivative": lambda x, s: jax.nn.relu(x),
    "an inner jit": lambda x, s: jax.jit(lambda v: v * 2)(x),
    "zeros like the rows": lambda x, s: jnp.concatenate([x, jnp.zeros((x.shape[0], 1))], axis=1),
    "the last step of a sequence": lambda x, s: layers.sequence_pool(s, "last"),
    "a recurrent net": lambda x, s: layers.rnn(layers.GRUCell(3), s)[0],
    "a sequence": lambda x, s: s * 2,
    "a random number of each row": lambda x, s: x + jax.random.normal(layers.random_key(), x.shape),
    "a decomposition of each row": lambda x, s: jnp.linalg.cholesky(x.reshape(-1, 2, 2) + 9 * jnp.eye(2)),
    "37 units": lambda x, s: layers.fc(x, 37) * layers.create_parameter([37]),
}


@pytest.mark.parametrize("case", ALONE)
def test_rows_alone(case):
    assert mixing(ALONE[case]) is None


MIXED = {
    "a mean of the batch": lambda x, s: x - x.mean(axis=0),
    "a sum beside each row": lambda x, s: x * 0 + layers.reduce_sum(x, dim=0, keep_dim=True),
    "sums over rows so far": lambda x, s: jnp.cumsum(x, axis=0),
    "differences of rows": lambda x, s: x[1:] - x[:-1],
    "the first row": lambda x, s: x - x[:1],
    "reversed rows": lambda x, s: x[::-1],
    "rolled rows": lambda x, s: jnp.roll(x, 1, axis=0),
    "sorted rows": lambda x, s: jnp.sort(x, axis=0),
    "rows in another order": lambda x, s: x[jnp.argsort(x[:, 0])],
    "the index of another row": lambda x, s: x[(jnp.arange(x.shape[0]) + 1) % x.shape[0]],
    "the number of the row": lambda x, s: x + jnp.arange(x.shape[0])[:, None],
    "the number of rows": lambda x, s: x * layers.cast(layers.shape(x)[0], "float32"),
    "the number of rows in Python": lambda x, s: x * x.shape[0],
    "a power of the number of rows": lambda x, s: x ** x.shape[0],
    "the number of elements": lambda x, s: x / layers.cast(layers.size(x), "float32"),
    "a loop up to the number of rows": lambda x, s: jax.lax.fori_loop(0, x.shape[0], lambda i, y: y + 1, x),
    "rows folded into features": lambda x, s: jnp.sum(layers.reshape(x, [2, -1]), axis=0, keepdims=True) + x[:, :1],
    "a group_norm over rows": lambda x, s: layers.reshape(
        layers.group_norm(layers.reshape(x, [1, 4, -1, 1]), 1), [-1, 4]
    ),
    "products of rows": lambda x, s: layers.matmul(x, x, transpose_y=True),
    "a scan over rows": lambda x, s: jax.lax.scan(lambda h, row: (h + row, h), jnp.zeros(4), x)[1],
    "a branch on a row": lambda x, s: jax.lax.cond(jnp.any(x > 0), jnp.sin, jnp.cos, x),
    "a loop until all rows end": lambda x, s: jax.lax.while_loop(lambda y: jnp.any(y > 1), lambda y: y / 2, x),
    "a convolution over rows": lambda x, s: layers.reshape(
        layers.conv2d(layers.reshape(x, [1, 1, -1, 4]), 1, 3, padding=1), [-1, 4]
    ),
    "one more row": lambda x, s: jnp.concatenate([x, x[:1]]),
    "time and rows swapped": lambda x, s: jnp.swapaxes(s.data, 0, 1),
    "a callback": lambda x, s: jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x),
    "the longest sequence": lambda x, s: x / layers.cast(jnp.max(s.lengths), "float32"),
    "the number of padded steps": lambda x, s: x / s.data.shape[1],
    "as many columns as rows": lambda x, s: jnp.broadcast_to(x[:, :1], (x.shape[0], x.shape[0])),
    "a sum of as many copies as rows": lambda x, s: jnp.repeat(x[:, :1], x.shape[0], axis=1).sum(axis=1),
    "a number of rows in a layer": lambda x, s: layers.scale(x, x.shape[0] - 1),
    "half of the rows in a layer": lambda x, s: layers.scale(x, x.shape[0] // 2),
    "a number of steps in a layer": lambda x, s: layers.scale(x, 1 / s.data.shape[1]),
    "all elements of sequences": lambda x, s: x / layers.cast(layers.size(s.data), "float32"),
    "another row hidden by a zero": lambda x, s: x + 0 * jnp.sum(x),
}


SCALED = ("time and rows swapped", "the number of rows in Python", "the number of elements")


@pytest.mark.parametrize("case", MIXED)
def test_rows_mixed_with_line(case):
    line = mixing(MIXED[case])
    # no single equation makes a product with the number of rows, and a batch in another dimension
    assert f"{__file__}:" in line or (line == "its program" and case in SCALED)


def test_results_are_followed_one_by_one():
    def build(x, s):
        h = layers.identity(x - x.mean(axis=0), name="h")
        return {"double": 2 * x, "centred": h + 1}

    assert mixing(build, ["double"]) is None
    assert mixing(build, ["centred"]) is not None
    assert mixing(build, ["h"]) is not None
    assert mixing(build, ["centred"], ["h"]) is None, "the caller gives each row of h"
    assert mixing(build, ["h", "x"], ["h"]) is None
    assert mixing(build, ["nothing"]) == "its program"


def test_rowwise_declares_what_equations_do_not_show():
    def halved(x):
        return jax.lax.while_loop(lambda y: jnp.any(y > 1), lambda y: jnp.where(y > 1, y / 2, y), x)

    assert mixing(lambda x, s: halved(x)) is not None
    assert mixing(lambda x, s: layers.rowwise(halved)(x)) is None
    assert mixing(lambda x, s: layers.rowwise(lambda v: layers.fc(halved(v), 2))(x) * 2) is None
    assert mixing(lambda x, s: layers.rowwise(halved)(x - x.mean(axis=0))) is not None, "only the function is declared"
    assert mixing(lambda x, s: layers.rowwise(lambda v, m: v - m)(x, x.mean(axis=0))) is not None
    with pytest.raises(errors.ArgumentTypeError, match="takes a function and returns a function"):
        layers.rowwise(jnp.ones(3))


@pytest.mark.parametrize("units", [37, 41, 43])
def test_dummy_sizes_differ_from_the_program(units, recwarn):
    def program():
        x = layers.data("x", shape=[units])
        gate = layers.fc(x, 1)
        return layers.mean(gate * layers.create_parameter([units]))

    found = fluid.Program(program)
    assert units not in found.dummy_batches
    assert not recwarn.list
    assert found.reductions[0].kind == "mean"


def test_inferencer_pads_no_mixed_rows():
    def summed():
        x = layers.data("x", shape=[1], dtype="int64")
        return x * 0 + layers.reduce_sum(x, dim=0, keep_dim=True)

    inferencer = fluid.Inferencer(summed, params={})
    with pytest.warns(errors.FluidWarning, match="depend on the other rows of its batch, at .*test_rows.py"):
        assert inferencer.infer({"x": [[1], [2], [0]]})[0].tolist() == [[3]] * 3
    assert inferencer.infer({"x": [[1], [2], [5]]})[0].tolist() == [[8]] * 3


def test_test_warns_of_mixed_rows_with_fetch():
    def program():
        x = layers.data("x", shape=[2])
        spread = layers.reduce_mean(layers.square(x - layers.reduce_mean(x)))
        return {"loss": layers.mean(layers.fc(x, 1) ** 2), "spread": spread}

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    data = fluid.reader.arrays({"x": np.arange(20.0).reshape(10, 2)}, batch_size=5)
    with pytest.warns(errors.FluidWarning, match="'spread' for several minibatches"):
        trainer.test(data, fetch=["loss", "spread"])
