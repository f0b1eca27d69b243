"""Embeddings with fewer table rows than ids: the next layers are applied to the table rows, before the look-up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.run_program import run

import fluid
from fluid import layers

WIDTH = 4
LENGTHS = np.array([6, 2, 4, 1])
IDS = np.random.default_rng(0).integers(0, 5, (4, 6))
MANY = 100  # an embedding table with this number of rows has more rows than a batch has ids


def values(*shape, salt=0):
    return np.random.default_rng(salt).normal(size=shape).astype("float32")


def batch(padding=0):
    real = np.arange(6) < LENGTHS[:, None]
    return fluid.SequenceBatch(jnp.asarray(np.where(real, IDS, padding))[..., None], jnp.asarray(LENGTHS))


def program(rows, layer, **settings):
    """Return a program function for a test of a layer after an embedding whose table has `rows` rows.

    The program applies `fc` to the looked-up rows, then the layer, and returns a weighted sum of the layer's results.
    """

    def build():
        ids = layers.data("ids", [1], "int64", lod_level=1)
        x = layers.fc(layers.embedding(ids, [rows, WIDTH], **settings), LAYERS[layer][1] * WIDTH)
        result = LAYERS[layer][0](x)
        return layers.reduce_sum(layers.sequence_pool(result, "sum") * jnp.arange(1.0, 1 + result.shape[-1]))

    return build


LAYERS = {
    "lstm": (lambda x: layers.dynamic_lstm(x, 4 * WIDTH)[0], 4),
    "reversed gru": (lambda x: layers.dynamic_gru(x, WIDTH, is_reverse=True), 3),
}


def with_gradient(build, ids):
    """Return the first output of a program, and its gradient with respect to each parameter."""
    traced = fluid.Program(build)
    shapes = {name: parameter.shape for name, parameter in traced.parameters.items()}
    table = values(MANY, WIDTH)[: shapes["embedding_0.w_0"][0]]
    arrays = {name: values(*shape, salt=1) for name, shape in shapes.items()} | {"embedding_0.w_0": table}

    def loss(arrays):
        return traced.apply(arrays, {"ids": ids}, key=None, mode="train").outputs[0]

    return jax.jit(jax.value_and_grad(loss))({name: jnp.asarray(array) for name, array in arrays.items()})


def products(build, mode="train", **settings):
    """Return the number of rows of the first operand of each matrix product of a program, outside of loops."""
    traced = fluid.Program(build, **settings)
    arrays = traced.init(jax.random.key(0))
    jaxpr = jax.make_jaxpr(lambda a: traced.apply(a, {"ids": batch()}, key=None, mode=mode).outputs)(arrays)
    return [e.invars[0].aval.shape[0] for e in jaxpr.jaxpr.eqns if e.primitive.name == "dot_general"]


@pytest.mark.parametrize("layer, padding_row", [("lstm", None), ("reversed gru", 2)])
def test_few_and_many_rows_have_equal_gradients(layer, padding_row):
    # The id 77 of the padding is outside of the small table, so its row is NaN. This NaN must not reach valid steps.
    few, small = with_gradient(program(5, layer, padding_idx=padding_row), batch(padding=77))
    many, large = with_gradient(program(MANY, layer, padding_idx=padding_row), batch(padding=4))
    np.testing.assert_allclose(few, many, rtol=1e-5)
    assert not large["embedding_0.w_0"][5:].any()
    large["embedding_0.w_0"] = large["embedding_0.w_0"][:5]
    for name, want in large.items():
        np.testing.assert_allclose(small[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
    trained = np.all(small["embedding_0.w_0"], axis=1)
    np.testing.assert_array_equal(trained, np.arange(5) != padding_row)


def test_smaller_tables_are_multiplied_instead_of_rows():
    def build(rows, **settings):
        return lambda: layers.fc(layers.embedding(layers.data("ids", [1], "int64", 1), [rows, WIDTH], **settings), 2)

    assert products(build(12)) == [12]
    assert products(build(13)) == [24]
    # Test mode has no gradient, so `fc` multiplies the rows that `embedding` has looked up, and not the whole table.
    assert products(build(5), mode="test") == [24]
    # In bfloat16, a product with the whole table would make the gradient of a table row a sum of rounded numbers. So
    # the program multiplies the looked-up rows instead.
    assert products(build(5), precision="bfloat16") == [24]
    assert products(build(5, is_sparse=True)) == [24]


def test_ids_of_an_array():
    """Compare layers on an array of ids with rows that NumPy looks up; ids outside of the table produce NaN."""

    def build():
        words = layers.embedding(layers.data("ids", [6, 1], "int64"), [5, WIDTH])
        return layers.fc(words, 2, num_flatten_dims=2), layers.fc(words, 2, num_flatten_dims=1)

    table, weight, flat = values(5, WIDTH), values(WIDTH, 2), values(6 * WIDTH, 2)
    arrays = {"embedding_0.w_0": table, "fc_0.w_0": weight, "fc_1.w_0": flat}
    ids = IDS.copy()
    ids[1, 2] = 5
    ids[3, 0] = -1
    looked_up = np.where(((ids < 0) | (ids > 4))[..., None], np.nan, table[IDS])
    kept, flattened = run(build, {"ids": ids[..., None]}, arrays=arrays).outputs
    np.testing.assert_allclose(kept, looked_up @ weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(flattened, looked_up.reshape(4, -1) @ flat, rtol=1e-5, atol=1e-6)


def test_an_overridden_embedding_is_used():
    def build():
        return layers.fc(layers.embedding(layers.data("ids", [6, 1], "int64"), [5, WIDTH]), 2, num_flatten_dims=2)

    weight = values(WIDTH, 2)
    given = values(4, 6, WIDTH, salt=2)
    feed = {"ids": IDS[..., None], "embedding_0.tmp_0": given}
    found = fluid.Session(build)
    found.scope["fc_0.w_0"] = weight
    np.testing.assert_allclose(found.run(build, feed, mode="train")[0], given @ weight, rtol=1e-5, atol=1e-6)
