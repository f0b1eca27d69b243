"""Values of a program: tests of shapes, arithmetic, indices, names and created parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.run_program import check, output, run

import fluid
from fluid import errors, layers

X = np.arange(24, dtype="float32").reshape(2, 3, 4)


@pytest.mark.parametrize(
    "y, axis, shape",
    [
        (np.arange(4.0), -1, [1, 1, 4]),
        (np.arange(3.0), 1, [1, 3, 1]),
        (np.arange(2.0), 0, [2, 1, 1]),
        (np.arange(12.0).reshape(3, 4), -1, [1, 3, 4]),
        (np.arange(12.0).reshape(3, 4), 1, [1, 3, 4]),
        (np.arange(6.0).reshape(2, 3), 0, [2, 3, 1]),
        (np.arange(3.0).reshape(3, 1), 1, [1, 3, 1]),
        (np.arange(4.0).reshape(4, 1), 2, [1, 1, 4]),
        (np.arange(2.0).reshape(2, 1, 1), 0, [2, 1, 1]),
        (np.array([5.0]), -1, [1, 1, 1]),
        (np.array(5.0), -1, []),
    ],
)
def test_y_is_laid_along_x(y, axis, shape):
    y = y.astype("float32")

    def program():
        x = layers.data("x", X.shape, append_batch_size=False)
        return layers.elementwise_sub(x, layers.data("y", y.shape, append_batch_size=False), axis=axis)

    np.testing.assert_array_equal(output(program, {"x": X, "y": y}), X - y.reshape(shape))


@pytest.mark.parametrize(
    "y, axis", [([3], -1), ([3], 2), ([4], 1), ([2, 4], 0), ([2, 3, 4, 1], -1), ([4], 3), ([4], -2)]
)
def test_y_that_does_not_fit_is_refused(y, axis):
    def program():
        x = layers.data("x", X.shape, append_batch_size=False)
        return layers.elementwise_add(x, layers.data("y", y, append_batch_size=False), axis=axis)

    with pytest.raises(errors.ShapeError, match=f"from axis={axis}"):
        fluid.Program(program)


def test_column_minus_row_is_refused():
    def program():
        return layers.elementwise_sub(layers.data("x", [1]), layers.data("y", []))

    with pytest.raises(errors.ShapeError):
        fluid.Program(program)


def test_numbers_and_activations_in_arithmetic():
    check(lambda x: layers.elementwise_mul(x, 2.0, act="relu"), np.maximum(2 * (X - 5), 0), x=X - 5)
    check(lambda x: layers.scale(x, 2, 1), 2 * np.arange(3)[:, None] + 1, x=np.arange(3)[:, None])


def test_reshape_copies_and_infers():
    for shape, want in (([0, -1], (2, 12)), ([-1, 6], (4, 6)), ([0, 0, 2, 2], (2, 3, 2, 2)), ([-1], (24,))):
        check(lambda x, shape=shape: layers.reshape(x, shape), X.reshape(want), x=X)
    p = fluid.Program(lambda: layers.reshape(layers.data("x", [4]), [-1, 2, 2], act="relu"))
    assert list(p.values) == ["reshape2_0.tmp_0", "reshape2_0.tmp_2"]


@pytest.mark.parametrize("shape", [[-1, 5], [-1, -1], [0, 0, 0, 0], [-2, 12], [0, 13]])
def test_reshape_refuses_other_numbers_of_elements(shape):
    with pytest.raises(errors.ShapeError, match="number of elements"):
        fluid.Program(lambda: layers.reshape(layers.data("x", X.shape, append_batch_size=False), shape))


def test_reshape_to_a_value_is_refused():
    with pytest.raises(errors.ArgumentTypeError, match="list of integers"):
        fluid.Program(lambda: layers.reshape(layers.data("x", [4]), layers.data("s", [2], "int64")))


def test_identity_records_exactly_its_name():
    def program():
        with fluid.name_scope("g"):
            inner = layers.identity(layers.data("x", [2]), name="h")
        return layers.identity(inner * 2), layers.identity(inner, name="h")

    p = fluid.Program(program)
    assert list(p.values) == ["g/h", "identity_0.tmp_0", "h"]
    applied = run(program, {"x": np.ones([3, 2], "float32")}, overrides={"g/h": np.full([3, 2], 5.0)})
    np.testing.assert_array_equal(applied.outputs[0], np.full([3, 2], 10.0))


def test_identity_with_a_repeated_name_is_refused():
    def program():
        x = layers.identity(layers.data("x", [2]), name="h")
        return layers.identity(x, name="h")

    with pytest.raises(errors.ProgramError, match="used twice"):
        fluid.Program(program)


def test_create_parameter_names_the_parameters():
    def program():
        made = [
            layers.create_parameter([2, 3]),
            layers.create_parameter([3], is_bias=True),
            layers.create_parameter([2], name="own"),
            layers.create_parameter([2], attr="given", name="other"),
            layers.create_parameter([2], attr=fluid.ParamAttr(trainable=False), name="kept"),
            layers.create_parameter([2], default_initializer=fluid.initializer.Constant(3.0)),
        ]
        with fluid.name_scope("s"):
            made.append(layers.create_parameter([2], name="own"))
        return made

    p = fluid.Program(program)
    assert list(p.parameters) == [
        "create_parameter_0.w_0",
        "create_parameter_1.b_0",
        "own",
        "given",
        "kept.w_0",
        "create_parameter_2.w_0",
        "s/own",
    ]
    assert not p.parameters["kept.w_0"].trainable
    values = p.init(jax.random.key(0))
    np.testing.assert_array_equal(values["create_parameter_1.b_0"], np.zeros(3))
    np.testing.assert_array_equal(values["create_parameter_2.w_0"], np.full(2, 3.0))


def test_split_takes_the_rest():
    check(lambda x: layers.split(x, [1, -1], dim=2)[1], X[:, :, 1:], x=X)
    for sections in (5, 0, [1, 1], [5, -1], [-1, -1]):
        with pytest.raises(errors.ShapeError, match="num_or_sections"):
            fluid.Program(lambda sections=sections: layers.split(layers.data("x", [4]), sections))


def test_indices_against_numpy():
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    check(lambda v: layers.argmax(v, axis=1), x.argmax(1), x=x)
    check(lambda v: layers.topk(v, 2)[1], np.argsort(-x, axis=1)[:, :2], x=x)
    check(lambda v: layers.argsort(v)[0], np.sort(x), x=x)
    check(lambda v: layers.cumsum(v, axis=0), x.cumsum(0), x=x)
    check(lambda v: layers.slice(v, [1], [-3], [-1]), x[:, -3:-1], x=x)
    check(
        lambda v: layers.one_hot(layers.cast(v, "int64"), 3), np.eye(3)[[0, 2]], x=np.array([[0.0], [2.0]], "float32")
    )


def test_reductions_against_numpy():
    for dim in (None, 0, -1, [0, 2], [1]):
        axis = tuple(dim) if isinstance(dim, list) else dim
        for keep in (False, True):
            check(lambda v, d=dim, k=keep: layers.reduce_sum(v, d, k), X.sum(axis, keepdims=keep), x=X)
            check(lambda v, d=dim, k=keep: layers.reduce_mean(v, d, k), X.mean(axis, keepdims=keep), x=X)
            check(lambda v, d=dim, k=keep: layers.reduce_max(v, d, k), X.max(axis, keepdims=keep), x=X)
    with pytest.raises(errors.ArgumentError, match="twice"):
        fluid.Program(lambda: layers.reduce_sum(layers.data("x", [3]), dim=[1, -1]))
    with pytest.raises(errors.ArgumentError, match="dim=2 does not exist"):
        fluid.Program(lambda: layers.reduce_sum(layers.data("x", [3]), dim=2))


def test_reductions_over_the_steps_of_sequences():
    rows = [[[1.0, -2.0], [3.0, -4.0]], [[5.0, -6.0]]]
    batch = fluid.SequenceBatch.from_rows(rows, "float32", time=4)
    flat = np.concatenate([np.array(r) for r in rows])
    given = {"s": fluid.SequenceBatch(jnp.asarray(batch.data), jnp.asarray(batch.lengths))}

    def reduced(layer, dim):
        return output(lambda: layer(layers.data("s", [2], lod_level=1), dim), given)

    for dim, axis in ((None, None), (0, 0), ([0, 1], (0, 1))):
        np.testing.assert_allclose(reduced(layers.reduce_sum, dim), flat.sum(axis))
        np.testing.assert_allclose(reduced(layers.reduce_max, dim), flat.max(axis))
        np.testing.assert_allclose(reduced(layers.reduce_min, dim), flat.min(axis))
        np.testing.assert_allclose(reduced(layers.reduce_prod, dim), flat.prod(axis))
        np.testing.assert_allclose(reduced(layers.reduce_mean, dim), flat.mean(axis))


@pytest.mark.parametrize(
    "pool, dim, where",
    [("max", 1, "array"), ("min", [0, 1], "array"), ("max", 1, "maxout"), ("max", 1, "sequence")],
)
def test_gradient_of_the_largest_elements(pool, dim, where):
    # XLA computes x w + b twice in this gradient, in two kernels whose results differ in the last bit.
    x = np.random.default_rng(0).normal(size=(4, 5, 3))
    counts = np.array([5, 1, 5, 2], "int32") if where == "sequence" else np.full(4, 5, "int32")
    w, b = np.array([1.3, 0.7, -1.1]), np.array([0.2, 0.3, -0.4])
    sign = 1 if pool == "max" else -1

    def program():
        h = layers.data("x", [3] if where == "sequence" else [5, 3], "float64", lod_level=int(where == "sequence"))
        h = h * layers.create_parameter([3], "float64", name="w") + layers.create_parameter([3], "float64", name="b")
        if where == "sequence":
            result = layers.sequence_pool(h, pool)
        elif where == "maxout":
            result = layers.maxout(layers.transpose(h, [0, 2, 1]), groups=5, axis=2)
        else:
            result = (layers.reduce_max if pool == "max" else layers.reduce_min)(h, dim)
        return layers.reduce_sum(layers.square(result))

    with jax.enable_x64(True):
        traced = fluid.Program(program)
        feed = {"x": fluid.SequenceBatch(x, counts) if where == "sequence" else x}
        loss = lambda arrays: traced.apply(arrays, feed, key=jax.random.key(0), mode="train").outputs[0]  # noqa: E731
        slopes = jax.jit(jax.grad(loss))({"w": w, "b": b})
    h = np.where(np.arange(5)[None, :, None] < counts[:, None, None], sign * (x * w + b), -np.inf)
    h = h if dim == 1 else h.reshape(1, 20, 3)
    place = h.argmax(1)[:, None]
    found = np.take_along_axis(x.reshape(h.shape), place, 1)[:, 0]
    np.testing.assert_allclose(slopes["w"], (2 * (found * w + b) * found).sum(0), rtol=1e-10)
    np.testing.assert_allclose(slopes["b"], (2 * (found * w + b)).sum(0), rtol=1e-10)


def test_errors_name_the_scope_of_the_layer():
    def program():
        with fluid.name_scope("encoder"):
            return layers.conv2d(layers.data("x", [3]), 4, 3)

    with pytest.raises(errors.ShapeError) as caught:
        fluid.Program(program)
    assert "in the layer encoder/conv2d, called at" in caught.value.__notes__[0]
