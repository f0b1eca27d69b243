"""`dense` on the last axis of arrays of any rank: compared with NumPy, and with `fc` of equal parameters."""

import jax
import numpy as np
import pytest
from layers.run_program import check, output, run

import fluid
from fluid import errors, layers

RANDOM = np.random.default_rng(0)
WEIGHT, BIAS = RANDOM.normal(size=(4, 3)).astype("float32"), RANDOM.normal(size=3).astype("float32")
ARRAYS = {"dense_0.w_0": WEIGHT, "dense_0.b_0": BIAS}


@pytest.mark.parametrize("shape", [(2, 4), (2, 5, 4), (2, 3, 5, 4), (2, 1, 3, 5, 4)])
def test_any_rank(shape):
    x = RANDOM.normal(size=shape).astype("float32")

    def program():
        return layers.dense(layers.data("x", shape[1:]), 3, act="tanh")

    assert {n: p.shape for n, p in fluid.Program(program).parameters.items()} == {
        "dense_0.w_0": (4, 3),
        "dense_0.b_0": (3,),
    }
    want = np.zeros((*shape[:-1], 3))
    for place in np.ndindex(*shape[:-1]):
        want[place] = np.tanh(x[place] @ WEIGHT + BIAS)
    np.testing.assert_allclose(output(program, {"x": x}, arrays=ARRAYS), want, rtol=1e-5, atol=1e-6)


def test_steps_of_sequences():
    rows = [RANDOM.normal(size=(n, 4)).astype("float32") for n in (3, 1, 0)]
    x = fluid.SequenceBatch.from_list(rows) if hasattr(fluid.SequenceBatch, "from_list") else None
    x = x or fluid.create_lod_tensor(np.concatenate(rows), [[3, 1, 0]]).batch()

    def program():
        return layers.dense(layers.data("x", [4], lod_level=1), 3)

    found = run(program, {"x": x}, arrays=ARRAYS).outputs[0]
    for got, row in zip(found.rows(), rows, strict=True):
        np.testing.assert_allclose(got, row @ WEIGHT + BIAS, rtol=1e-5, atol=1e-6)


def test_dense_equals_fc_of_the_last_axis():
    x = RANDOM.normal(size=(2, 5, 4)).astype("float32")

    def both():
        value = layers.data("x", [5, 4])
        names = {"param_attr": "w", "bias_attr": "b"}
        return layers.dense(value, 3, act="relu", **names), layers.fc(value, 3, num_flatten_dims=2, act="relu", **names)

    np.testing.assert_array_equal(*run(both, {"x": x}).outputs)


def test_without_a_bias_and_with_names():
    def program():
        x = layers.data("x", [5, 4])
        return layers.dense(layers.dense(x, 3, bias_attr=False), 2, name="scores")

    assert list(fluid.Program(program).parameters) == ["dense_0.w_0", "scores.w_0", "scores.b_0"]


def test_an_embedding_is_multiplied_as_a_table():
    """Check that `dense` after an embedding multiplies the whole table if it has fewer rows than the batch has ids.

    The table is then smaller than the looked-up rows. The layer `fc` does the same.
    """
    ids = RANDOM.integers(0, 5, (4, 6, 1))

    def program(layer):
        return lambda: layers.mean(layer(layers.embedding(layers.data("ids", [6, 1], "int64"), [5, 4])))

    def products(function):
        traced = fluid.Program(function)
        arrays = traced.init(jax.random.key(0))
        jaxpr = jax.make_jaxpr(lambda a: traced.apply(a, {"ids": ids}, key=None, mode="train").outputs[0])(arrays)
        return [eqn.invars[0].aval.shape for eqn in jaxpr.eqns if eqn.primitive.name == "dot_general"]

    by_fc = products(program(lambda x: layers.fc(x, 3, num_flatten_dims=2)))
    assert products(program(lambda x: layers.dense(x, 3))) == by_fc == [(5, 4)]


def test_wrong_arguments_raise_named_errors():
    with pytest.raises(errors.ArgumentTypeError, match="x is the number 4, .*finds the number of inputs by itself"):
        fluid.Program(lambda: layers.dense(4, 3))
    with pytest.raises(errors.ShapeError, match=r"float32\[batch, \d+\] has no features"):
        fluid.Program(lambda: layers.dense(layers.data("x", [], lod_level=1), 3))
    with pytest.raises(errors.ArgumentError, match="size"):
        fluid.Program(lambda: layers.dense(layers.data("x", [4]), 0))


def test_summary_counts_its_products():
    row = next(r for r in fluid.summary(lambda: layers.dense(layers.data("x", [5, 4]), 3), 2).rows if r.kind == "dense")
    assert row.flops >= 2 * 2 * 5 * 4 * 3
    check(lambda x: layers.dense(x, 1, param_attr=fluid.ParamAttr(initializer=fluid.initializer.Constant(1.0))),
          np.full((2, 5, 1), 4.0), x=np.ones((2, 5, 4), "float32"))  # fmt: skip
