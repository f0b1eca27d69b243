"""Layers that scatter, select, pad or describe values: compared with NumPy."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from layers.layer_table import flags, real, whole
from layers.run_program import check, feeds, output

import fluid
from fluid import errors, layers
from fluid.export.signature import FeedSignature

X, ROWS = real(5, 3), real(4, 3, salt=1)


def test_scatter_overwrites():
    want = X.copy()
    want[[3, 0, 4]] = ROWS[[0, 1, 3]]
    ids = np.array([3, 0, 7, 4])  # the third index is out of range, so its row is ignored
    check(lambda x, i, u: layers.scatter(x, i, u), want, x=X, i=ids, u=ROWS)


def test_scatter_without_overwrite_sums_repeated_rows():
    want = X.copy()
    want[[1, 2]] = [ROWS[0] + ROWS[2], ROWS[1]]
    check(
        lambda x, i, u: layers.scatter(x, i, u, overwrite=False), want, x=X, i=np.array([[1], [2], [1], [-1]]), u=ROWS
    )


@pytest.mark.parametrize("depth", [1, 2])
def test_scatter_nd(depth):
    ids = np.stack([whole(5, 4), whole(3, 4, salt=1)][:depth], axis=1)
    updates = ROWS if depth == 1 else ROWS[:, 0]
    want = X.copy()
    np.add.at(want, tuple(ids.T), updates)
    check(layers.scatter_nd_add, want, x=X, i=ids, u=updates)
    check(lambda x, i, u: layers.scatter_nd(i, u, [5, 3]), want - X, x=X, i=ids, u=updates)


def test_scatter_ignores_indices_out_of_range():
    check(layers.scatter_nd_add, X, x=X, i=np.array([[-1], [5]]), u=ROWS[:2])


def test_multiplex_matches_numpy():
    a, b, c = real(4, 2, salt=2), real(4, 2, salt=3), real(4, 2, salt=4)
    ids = np.array([[2], [0], [1], [2]])
    want = np.stack([a, b, c])[ids[:, 0], np.arange(4)]
    check(lambda a, b, c, i: layers.multiplex([a, b, c], i), want, a=a, b=b, c=c, i=ids)


def test_where_matches_numpy():
    x, y, condition = real(4, 3), real(4, 3, salt=1), flags(4, 3)
    check(layers.where, np.where(condition, x, y), c=condition, x=x, y=y)
    check(lambda c, x: layers.where(c, x, 0.0), np.where(condition, x, 0), c=condition, x=x)


def test_where_without_values_is_refused():
    with pytest.raises(errors.ArgumentError, match=r"where\(condition, x, y\)"):
        fluid.Program(lambda: layers.where(*feeds(c=flags(4, 3))))


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_pad2d_matches_numpy(mode):
    x = real(2, 3, 4, 5)
    options = {"constant_values": 0.5} if mode == "constant" else {}
    want = np.pad(x, [(0, 0), (0, 0), (1, 2), (3, 0)], mode, **options)
    check(lambda x: layers.pad2d(x, [1, 2, 3, 0], mode, 0.5), want, x=x)


def test_pad_and_crop():
    check(lambda x: layers.pad(x, [0, 0, 2, 1], -1.0), np.pad(X, [(0, 0), (2, 1)], constant_values=-1), x=X)
    y = real(5, 2)
    check(lambda x, y: layers.pad_constant_like(x, y, 9.0), np.pad(y, [(0, 0), (0, 1)], constant_values=9), x=X, y=y)
    check(lambda x: layers.crop(x, [-1, 2], [0, 1]), X[:, 1:], x=X)
    check(lambda x, y: layers.crop(x, y), X[:, :2], x=X, y=y)
    check(lambda x: layers.crop_tensor(x, [3, 1], [1, 2]), X[1:4, 2:], x=X)


def test_reverse_and_strided_slice():
    x = real(3, 4, 2)
    check(lambda x: layers.reverse(x, [0, 1]), x[::-1, ::-1], x=x)
    check(lambda x: layers.reverse(x, -1), x[..., ::-1], x=x)
    check(lambda x: layers.strided_slice(x, [1, 2], [3, 0], [0, 2], [-2, 1]), x[:, 3:0:-2], x=x)


def test_cosine_and_bilinear_product():
    x, y = real(4, 3), real(4, 2)
    z = np.array([[0, 0, 0]] + [[1, -2, 3]] * 3, "float32")
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(z, axis=1)
    want = (x * z).sum(1) / np.where(norms, norms, 1)
    check(layers.cos_sim, want[:, None], x=x, z=z)
    weight = real(5, 3, 2)
    init = fluid.initializer.NumpyArray(weight)
    check(
        lambda x, y: layers.bilinear_tensor_product(x, y, 5, param_attr=init, bias_attr=False),
        np.einsum("bm,imn,bn->bi", x, weight, y), x=x, y=y,
    )  # fmt: skip


def test_shape_rank_size_and_nan_are_reported():
    def program():
        x = layers.data("x", shape=[3], append_batch_size=True, allow_nan=True)
        return [layers.shape(x), layers.rank(x), layers.size(x), layers.has_nan(x), layers.has_inf(x)]

    session = fluid.Session(program)
    bad = np.array([[1, np.nan, 2], [3, 4, 5]], "float32")
    shape, rank, size, nan, inf = session.run(program, {"x": bad}, mode="train")
    assert shape.tolist() == [2, 3] and int(rank) == 2 and int(size) == 6 and bool(nan) and not bool(inf)


def test_made_values():
    def made(function):
        return output(function, {})

    np.testing.assert_array_equal(made(lambda: layers.eye(2, 3, [2])), np.broadcast_to(np.eye(2, 3), (2, 2, 3)))
    np.testing.assert_array_equal(made(lambda: layers.diag([1.0, 2.0])), np.diag([1, 2]))
    lengths = np.array([0, 2, 7])
    check(lambda n: layers.sequence_mask(n, 4), [[0] * 4, [1, 1, 0, 0], [1] * 4], n=lengths)
    check(lambda x: layers.increment(x, 2.5), X + 2.5, x=X)
    check(lambda x: layers.fill_zeros_like(x), X * 0, x=X)
    with pytest.raises(errors.ArgumentError, match="maxlen="):
        fluid.Program(lambda: layers.sequence_mask(*feeds(n=lengths)))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: layers.pad(x, [1, 1]), "a before and an after"),
        (lambda x: layers.pad(x, [0, 0, -1, 0]), "a before and an after"),
        (lambda x: layers.crop(x), "shape of the part"),
        (lambda x: layers.crop(x, [-1, 2], [0, 2]), "reaches beyond"),
        (lambda x: layers.crop(x, [2]), "one of each"),
        (lambda x: layers.strided_slice(x, [1], [0], [2], []), "one of each"),
        (lambda x: layers.multiplex([], jnp.zeros([5], int)), "values of one shape"),
        (lambda x: layers.pad2d(layers.unsqueeze(x, [2, 3]), [0, 0, 0]), "top, bottom"),
        (lambda x: layers.pad2d(layers.unsqueeze(x, [2, 3]), mode="wrap"), "'edge'"),
        (lambda x: layers.pad2d(layers.unsqueeze(x, [2, 3]), [1, 0, 0, 0], "reflect"), "mirrored"),
    ],
)
def test_bad_arguments(build, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(*feeds(x=X)))


def of_rows(take, *settings):
    def program():
        x = layers.data("x", [2])
        return take(x * 2.0, layers.data("i", *settings, dtype="int64"))

    return program


@pytest.mark.parametrize(
    ("take", "settings"),
    [(layers.gather, [[1]]), (layers.gather_nd, [[1]]), (lambda x, i: layers.index_select(x, i), [[]])],
)
def test_fed_indices_of_rows_exist(take, settings):
    x, last = np.arange(6.0).reshape(3, 2), np.array([2, 0, 2])
    with fluid.Session(of_rows(take, *settings)) as session:
        assert session.run(feed={"x": x, "i": last})[0].tolist() == (2 * x[last]).tolist()
        with pytest.raises(errors.FeedError, match="found the value 3, expected .* < 3 .*indices of rows, .* 3 rows"):
            session.run(feed={"x": x, "i": last + 1})
        with pytest.raises(errors.FeedError, match="found the value 2"):
            session.run(feed={"x": x[:2], "i": last[1:]})


def test_indices_of_rows_are_checked_by_minibatch():
    def program():
        x = layers.data("x", [2])
        return layers.mean(layers.fc(layers.gather(x, layers.data("i", [1], dtype="int64")), 1))

    data = {"x": np.ones((8, 2), "float32"), "i": np.array([0, 1, 3, 2, 0, 1, 2, 4])}
    for on_device in (False, True):
        reader = fluid.reader.arrays(data, batch_size=4, on_device=on_device)
        with pytest.raises(errors.FeedError, match="batch 1.* found the value 4"):
            fluid.Trainer(program, fluid.optimizer.SGD(0.1)).train(reader)


def test_an_array_of_the_dummy_size_is_no_minibatch():
    size = fluid.Program(of_rows(layers.gather, [1])).dummy_batches[0]
    program = fluid.Program(of_rows(lambda x, i: layers.gather(layers.range(0, size, 1, "float32"), i), [1]))
    assert program.feeds["i"].limits == (0, size, None)
    nothing = of_rows(lambda x, i: layers.gather(layers.reshape(x, [-1]), i), [1])
    assert fluid.Program(nothing).feeds["i"].limits is None, "two indices a row are not followed"


def test_computed_indices_out_of_range_are_nan():
    program = of_rows(lambda x, i: layers.gather_nd(x, i + 1), [2])
    with fluid.Session(program) as session:
        found = session.run(feed={"x": np.ones((2, 2)), "i": [[0, 0], [1, 0]]})[0]
    np.testing.assert_array_equal(found, [2.0, np.nan])


def test_an_exported_model_knows_indices_of_rows():
    found = FeedSignature.of(fluid.Program(of_rows(layers.gather, [1])).feeds["i"], ("batch", 1))
    read = FeedSignature.from_json(json.loads(json.dumps(found.to_json())))
    assert read.limits == (0, None, None)
    assert (read.limits_for(4), found.limits_for(2)) == ((0, 4, None), (0, 2, None))
