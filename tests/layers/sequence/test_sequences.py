"""Layers on sequences: compared with loops over rows in NumPy; and refused arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.run_program import feeds, run

import fluid
from fluid import errors, layers

LENGTHS = [(4, 1, 2), (0, 4, 3), (0, 0, 0), (4, 4, 4)]


def batch(lengths=(4, 1, 2), *step, high=None, salt=0, time=4):
    """Return a SequenceBatch of random steps, with 99 as padding."""
    rng = np.random.default_rng((salt, *lengths))
    shape = (len(lengths), time, *(step or (2,)))
    data = rng.normal(size=shape).astype("float32") if high is None else rng.integers(0, high, shape)
    data[np.arange(time)[None] >= np.array(lengths)[:, None]] = 99
    return fluid.SequenceBatch(data, np.array(lengths, "int32"))


def nested():
    """Return three texts, of 2, 0 and 3 sentences; one of the sentences is empty."""
    rng = np.random.default_rng(5)
    rows = [[rng.normal(size=(n, 2)) for n in sizes] for sizes in ([2, 3], [], [1, 0, 3])]
    return fluid.NestedSequenceBatch.from_rows([[s.astype("float32") for s in row] for row in rows])


def first(build, *values, **named):
    """Return the first output of a layer called with these values."""
    named |= {f"v{i}": v for i, v in enumerate(values)}
    return run(lambda: build(*feeds(**named)), named).outputs[0]


def constant(build, *values):
    """Call a layer with constants, to test values that cannot be fed; return the first output."""
    values = [jax.tree.map(jnp.asarray, v) for v in values]
    return run(lambda: build(*values), {}).outputs[0]


def check_rows(got, want):
    assert len(got.lengths) == len(want)
    for row, expected in zip(got.rows(), want, strict=True):
        np.testing.assert_allclose(row, np.reshape(expected, (-1, *got.shape[2:])), rtol=1e-5, atol=1e-6)


POOLS = {
    "sum": lambda row: row.sum(0),
    "average": lambda row: row.mean(0),
    "sqrt": lambda row: row.sum(0) / np.sqrt(len(row)),
    "max": lambda row: row.max(0),
    "min": lambda row: row.min(0),
    "first": lambda row: row[0],
    "last": lambda row: row[-1],
}


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("kind", POOLS)
def test_sequence_pool_matches_numpy_by_row(kind, lengths):
    x = batch(lengths)
    got = first(lambda v: layers.sequence_pool(v, kind.upper(), pad_value=-1.5), x)
    want = [POOLS[kind](row) if len(row) else [-1.5, -1.5] for row in x.rows()]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_pooling_of_integers_and_of_single_numbers():
    x = batch((3, 0, 1), 1, high=9)
    assert first(lambda v: layers.sequence_pool(v, "max"), x).tolist() == [
        [x.data[0, :3].max()],
        [0],
        [x.data[2, 0, 0]],
    ]
    one = batch()
    flat = one.with_data(one.data[:, :, 0])
    np.testing.assert_allclose(first(layers.sequence_last_step, flat), [row[-1] for row in flat.rows()])


def test_first_and_last_steps():
    x = batch((4, 0, 2))
    np.testing.assert_array_equal(first(layers.sequence_first_step, x), [x.data[0, 0], [0, 0], x.data[2, 0]])
    np.testing.assert_array_equal(first(layers.sequence_last_step, x), [x.data[0, 3], [0, 0], x.data[2, 1]])


@pytest.mark.parametrize("kind", POOLS)
def test_pooling_of_inner_sequences_gives_a_sequence(kind):
    x = nested()
    got = constant(lambda v: layers.sequence_pool(v, kind), x)
    assert isinstance(got, fluid.SequenceBatch)
    check_rows(got, [[POOLS[kind](s) if len(s) else [0, 0] for s in row] for row in x.rows()])


def test_half_precision_is_summed_in_float32():
    x = fluid.SequenceBatch(jnp.full([1, 1000, 1], 1.0, "bfloat16"), jnp.array([1000]))
    assert float(constant(lambda v: layers.sequence_pool(v, "average"), x)[0, 0]) == 1


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_softmax_over_steps(lengths):
    x = batch(lengths, 1)
    check_rows(first(layers.sequence_softmax, x), [np.exp(r) / np.exp(r).sum() for r in x.rows()])


def test_softmax_does_not_overflow():
    x = fluid.SequenceBatch(np.array([[[1e4], [0], [-3e38]]], "float32"), np.array([3]))
    np.testing.assert_array_equal(first(layers.sequence_softmax, x).data[0, :, 0], [1, 0, 0])


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize(("size", "start"), [(3, None), (4, None), (2, 0), (3, 2), (2, -5), (1, 9), (7, -3)])
def test_sequence_conv_matches_numpy_by_row(size, start, lengths):
    x = batch(lengths)
    begin = -(size // 2) if start is None else start
    weight = np.random.default_rng(0).normal(size=(size * 2, 3)).astype("float32")

    def steps(row):
        around = np.concatenate([np.zeros((20, 2)), row, np.zeros((20, 2))])
        seen = [around[20 + t + begin : 20 + t + begin + size].ravel() for t in range(len(row))]
        return np.reshape(seen, (len(row), size * 2)) @ weight + 0.5

    def program():
        (value,) = feeds(x=x)
        return layers.sequence_conv(value, 3, size, padding_start=start)

    arrays = {"sequence_conv_0.w_0": weight, "sequence_conv_0.b_0": np.full(3, 0.5, "float32")}
    check_rows(run(program, {"x": x}, arrays=arrays).outputs[0], [steps(row) for row in x.rows()])


def test_lookahead_convolution():
    x = batch()
    weight = np.arange(6, dtype="float32").reshape(3, 2)
    arrays = {"row_conv_0.w_0": weight}
    got = run(lambda: layers.row_conv(*feeds(x=x), 2), {"x": x}, arrays=arrays).outputs[0]
    check_rows(got, [[sum(weight[i] * row[t + i] for i in range(3) if t + i < len(row)) for t in range(len(row))]
                     for row in x.rows()])  # fmt: skip
    array = np.asarray(batch((4, 4)).data)
    dense = run(lambda: layers.row_conv(*feeds(x=array), 2), {"x": array}, arrays=arrays).outputs[0]
    ahead = np.concatenate([array, np.zeros((2, 2, 2))], axis=1)
    np.testing.assert_allclose(dense, sum(weight[i] * ahead[:, i : i + 4] for i in range(3)), rtol=1e-5, atol=1e-6)


@given(lengths=st.lists(st.integers(0, 4), min_size=3, max_size=3))
@settings(max_examples=5)
def test_reverse_twice_is_nothing(lengths):
    x = batch(lengths)
    check_rows(first(layers.sequence_reverse, x), [row[::-1] for row in x.rows()])
    check_rows(first(lambda v: layers.sequence_reverse(layers.sequence_reverse(v)), x), x.rows())


def test_position_encoding_matches_numpy():
    x = batch((4, 1), 6)
    frequencies = 10000.0 ** -(np.arange(3) / 2)
    angles = np.arange(4)[:, None] * frequencies
    table = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    got = first(lambda v: layers.add_position_encoding(v, 0.5, 2.0), x)
    check_rows(got, [0.5 * row + 2 * table[: len(row)] for row in x.rows()])
    array = np.asarray(batch((4, 4), 6).data)
    got = first(lambda v: layers.add_position_encoding(v, 0.5, 2.0), array)
    np.testing.assert_allclose(got, 0.5 * array + 2 * table, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", [layers.sequence_expand, layers.sequence_expand_as])
def test_rows_are_repeated(layer):
    rows, y = np.arange(6, dtype="float32").reshape(3, 2), batch((2, 0, 3), 1)
    got = first(layer, rows, y)
    assert got.shape == (3, 4, 2)
    check_rows(got, [[rows[0]] * 2, [], [rows[2]] * 3])


@pytest.mark.parametrize("layer", [layers.sequence_expand, layers.sequence_expand_as])
def test_steps_are_repeated_over_inner_sequences(layer):
    y = nested()
    whole = constant(lambda v: layers.sequence_pool(v, "sum"), y)
    got = constant(layer, whole, y)
    want = [[[s.sum(0)] * len(s) for s in row] for row in y.rows()]
    for row, expected in zip(got.rows(), want, strict=True):
        for steps, each in zip(row, expected, strict=True):
            np.testing.assert_allclose(steps, np.reshape(each, (-1, 2)), rtol=1e-5)


@pytest.mark.parametrize("level", [0, -1])
def test_sequences_are_repeated(level):
    x, y = batch((1, 4, 2)), batch((2, 0, 3), 1)
    got = first(lambda a, b: layers.sequence_expand(a, b, ref_level=level), x, y)
    for copies, row, count in zip(got.rows(), x.rows(), (2, 0, 3), strict=True):
        assert len(copies) == count
        for copy in copies:
            np.testing.assert_array_equal(copy, row)


def test_rows_are_repeated_by_the_outer_level():
    x, y = np.arange(6, dtype="float32").reshape(3, 2), nested()
    got = constant(lambda a, b: layers.sequence_expand(a, b, ref_level=0), x, y)
    check_rows(got, [[x[0]] * 2, [], [x[2]] * 3])


@given(lengths=st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), min_size=3, max_size=3))
@settings(max_examples=5)
def test_joined_end_to_end(lengths):
    parts = [batch(n, salt=i) for i, n in enumerate(lengths)]
    got = first(lambda *values: layers.sequence_concat(list(values)), *parts)
    check_rows(got, [np.concatenate(rows) for rows in zip(*(p.rows() for p in parts), strict=True)])


def test_parts_of_sequences():
    x = batch((4, 1, 2))
    cut = first(layers.sequence_slice, x, np.array([[1], [0], [0]]), np.array([[2], [1], [0]]))
    check_rows(cut, [x.data[0, 1:3], x.data[1, :1], []])
    check_rows(first(lambda v: layers.sequence_slice(v, 1, 9), x), [row[1:] for row in x.rows()])
    check_rows(first(lambda v: layers.sequence_slice(v, 7, 2), x), [[], [], []])


def test_padding_there_and_back():
    x = batch((4, 0, 2))

    def there(value):
        padded, length = layers.sequence_pad(value, np.array([7, 8], "float32"), maxlen=5)
        return padded, length, layers.sequence_unpad(padded, length)

    padded, length, back = run(lambda: there(*feeds(x=x)), {"x": x}).outputs
    assert padded.shape == (3, 5, 2) and length.tolist() == [4, 0, 2]
    np.testing.assert_array_equal(padded[1], [[7, 8]] * 5)
    np.testing.assert_array_equal(padded[2, 2:], [[7, 8]] * 3)
    check_rows(back, x.rows())


def test_longer_sequences_are_cut_by_padding():
    x = batch((4, 1, 2))
    padded, length = run(lambda: layers.sequence_pad(*feeds(x=x), 0.0, maxlen=2), {"x": x}).outputs
    np.testing.assert_array_equal(padded, [x.data[0, :2], [x.data[1, 0], [0, 0]], x.data[2, :2]])
    assert length.tolist() == [2, 1, 2]


@pytest.mark.parametrize("size", [1, 2, 4, 3, 16])
def test_steps_of_another_size(size):
    x = batch((4, 0, 2))
    want = [np.pad(row.ravel(), (0, -row.size % size)).reshape(-1, size) for row in x.rows()]
    check_rows(first(lambda v: layers.sequence_reshape(v, size), x), want)


def test_windows_of_ids():
    ids = batch((4, 0, 2), 1, high=9)
    got = first(lambda v: layers.sequence_enumerate(v, 3, pad_value=-1), ids)
    want = [
        [[row[t + i, 0] if t + i < len(row) else -1 for i in range(3)] for t in range(len(row))] for row in ids.rows()
    ]
    check_rows(got, want)


@given(lengths=st.lists(st.integers(0, 4), min_size=3, max_size=3))
@settings(max_examples=5)
def test_ids_left_out(lengths):
    ids = batch(lengths, 1, high=4)
    got = first(lambda v: layers.sequence_erase(v, [0, 3]), ids)
    check_rows(got, [row[(row[:, 0] != 0) & (row[:, 0] != 3)] for row in ids.rows()])


def test_numbers_added_at_places():
    x = np.random.default_rng(0).normal(size=(3, 5)).astype("float32")
    places, numbers = batch((4, 0, 2), 1, high=5), batch((4, 0, 2), 1)
    want = x.copy()
    for row, at, add in zip(want, places.rows(), numbers.rows(), strict=True):
        np.add.at(row, at[:, 0], add[:, 0])
    places = places.with_data(np.where(places.data == 99, 0, places.data))
    np.testing.assert_allclose(first(layers.sequence_scatter, x, places, numbers), want, rtol=1e-5)


def test_rows_dealt_out_to_sequences():
    x = np.arange(12, dtype="float32").reshape(6, 2)
    got = constant(lambda v: layers.lod_reset(v, target_lod=[0, 2, 2, 6]), x)
    check_rows(got, [x[:2], [], x[2:]])
    got = first(layers.lod_reset, x, np.array([0, 1, 6]))
    check_rows(got, [x[:1], x[1:]])


def test_steps_dealt_out_anew():
    x, y = batch((4, 1, 2)), batch((3, 0, 4), 1)
    steps = np.concatenate(x.rows())
    check_rows(first(layers.lod_reset, x, y), [steps[:3], [], steps[3:]])
    short = first(lambda v: layers.lod_reset(v, target_lod=[0, 8]), x)
    assert np.isnan(short.rows()[0][7]).all(), "a step that is not there shows"
    texts = nested()
    counts = np.arange(9, dtype="float32")[:, None]
    got = constant(layers.lod_reset, counts, texts)
    assert [[s.ravel().tolist() for s in row] for row in got.rows()] == [[[0, 1], [2, 3, 4]], [], [[5], [], [6, 7, 8]]]


def test_a_level_put_below():
    x = batch((2, 0, 3))
    steps = np.concatenate(x.rows())
    got = first(lambda v: layers.lod_append(v, [0, 2, 2, 3, 3, 5]), x)
    want = [[steps[:2], steps[:0]], [], [steps[2:3], steps[:0], steps[3:]]]
    for row, expected in zip(got.rows(), want, strict=True):
        assert [s.tolist() for s in row] == [s.tolist() for s in expected]
    check_rows(constant(lambda v: layers.lod_append(v, [0, 2, 5]), steps), [steps[:2], steps[2:]])


def test_windows_of_images():
    x = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype("float32")
    sizes = np.array([[10, 8], [4, 5]])
    got = first(lambda v, s: layers.im2sequence(v, [2, 3], [2, 1], [1, 0, 0, 2], s, out_stride=2), x, sizes)

    def places(image, height, width):
        image = np.pad(image, [(0, 0), (1, 0), (0, 2)])
        down, across = (height + 1 - 2) // 2 + 1, (width + 2 - 3) // 1 + 1
        return [image[:, 2 * i : 2 * i + 2, j : j + 3].ravel() for i in range(down) for j in range(across)]

    check_rows(got, [places(x[0], 5, 4), places(x[1], 2, 3)])
    whole = first(lambda v: layers.im2sequence(v, [2, 3], [2, 1], [1, 0, 0, 2]), x)
    check_rows(whole, [places(image, 5, 4) for image in x])


def test_layers_of_steps_take_nested_sequences():
    """Check `fc` and `sequence_pool` on nested sequences: words become sentences, and sentences become texts."""
    texts = nested()

    def program(value):
        hidden = layers.fc(value, 4, act="relu", param_attr="w", bias_attr="b")
        sentences = layers.sequence_pool(hidden, "sum")
        return layers.sequence_pool(layers.fc(sentences, 3, param_attr="v", bias_attr=False), "max")

    rng = np.random.default_rng(0)
    arrays = {"w": rng.normal(size=(2, 4)), "b": rng.normal(size=4), "v": rng.normal(size=(4, 3))}
    value = jax.tree.map(jnp.asarray, texts)
    got = run(lambda: program(value), {}, arrays={n: v.astype("float32") for n, v in arrays.items()}).outputs[0]
    sums = [[np.maximum(s @ arrays["w"] + arrays["b"], 0).sum(0) for s in row] for row in texts.rows()]
    want = [np.max([s @ arrays["v"] for s in row], axis=0) if row else np.zeros(3) for row in sums]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_batches_without_steps():
    empty = fluid.SequenceBatch(np.zeros((2, 0, 3), "float32"), np.array([0, 0]))
    for layer in (layers.sequence_first_step, layers.sequence_last_step, lambda v: layers.sequence_pool(v, "max")):
        assert constant(layer, empty).tolist() == [[0, 0, 0]] * 2
    assert constant(layers.sequence_reverse, empty).shape == (2, 0, 3)
    assert constant(lambda v: layers.sequence_conv(v, 2), empty).shape == (2, 0, 2)


def refused(error, match, build, *values):
    with pytest.raises(error, match=match):
        constant(build, *values)


SEQ, ARRAY = batch(), np.zeros((3, 2), "float32")


@pytest.mark.parametrize(
    ("error", "match", "build", "values"),
    [
        (errors.ShapeError, "no sequence batch.*lod_level=1", lambda x: layers.sequence_pool(x, "sum"), [ARRAY]),
        (errors.ArgumentError, "pool_type='mean'", lambda x: layers.sequence_pool(x, "mean"), [SEQ]),
        (errors.ShapeError, "no sequence batch", layers.sequence_softmax, [ARRAY]),
        (errors.ArgumentError, "only 1 is possible", lambda x: layers.sequence_conv(x, 2, 3, 2), [SEQ]),
        (errors.ArgumentError, "num_filters=0", lambda x: layers.sequence_conv(x, 0), [SEQ]),
        (errors.ShapeError, "batch, time, channels", lambda x: layers.sequence_conv(x, 2), [batch((1,), 2, 2)]),
        (errors.ArgumentError, "future_context_size=-1", lambda x: layers.row_conv(x, -1), [SEQ]),
        (errors.ShapeError, "even number", lambda x: layers.add_position_encoding(x, 1, 1), [batch((1,), 3)]),
        (errors.ArgumentError, "ref_level=1", lambda x, y: layers.sequence_expand(x, y, 1), [ARRAY, SEQ]),
        (errors.ShapeError, "has not one item", layers.sequence_expand, [ARRAY[:2], SEQ]),
        (errors.ShapeError, "sequence_expand", layers.sequence_expand_as, [SEQ, SEQ]),
        (errors.ShapeError, "cannot be joined", lambda x, y: layers.sequence_concat([x, y]), [SEQ, ARRAY]),
        (errors.ShapeError, "whose steps", lambda x, y: layers.sequence_concat([x, y]), [SEQ, batch((1, 1, 1), 3)]),
        (errors.ArgumentError, "nothing to join", lambda: layers.sequence_concat([]), []),
        (errors.ShapeError, "one number for each", lambda x: layers.sequence_slice(x, np.array([1, 2]), 1), [SEQ]),
        (errors.ArgumentTypeError, "no integers", lambda x: layers.sequence_slice(x, 1.5, 1), [SEQ]),
        (errors.ArgumentError, "maxlen=0", lambda x: layers.sequence_pad(x, 0.0, 0), [SEQ]),
        (errors.ShapeError, "pad_value", lambda x: layers.sequence_pad(x, np.zeros(3), 4), [SEQ]),
        (errors.ShapeError, "one length for each", layers.sequence_unpad, [ARRAY, np.array([1, 2])]),
        (errors.ArgumentError, "new_dim=0", lambda x: layers.sequence_reshape(x, 0), [SEQ]),
        (errors.ArgumentTypeError, "no integers", lambda x: layers.sequence_enumerate(x, 2), [SEQ]),
        (errors.ArgumentError, "win_size=0", lambda x: layers.sequence_enumerate(x, 0), [batch(high=3)]),
        (errors.ShapeError, "more than one number", lambda x: layers.sequence_erase(x, [1]), [batch(high=3)]),
        (errors.ArgumentError, "begin with 0", lambda x: layers.lod_reset(x, target_lod=[2, 1]), [ARRAY]),
        (errors.ArgumentError, "begin with 0", lambda x: layers.lod_append(x, [0, 2, 1]), [ARRAY]),
        (errors.ArgumentError, "give y=", layers.lod_reset, [ARRAY]),
        (errors.ShapeError, "ends at 2", lambda x: layers.lod_reset(x, target_lod=[0, 2]), [ARRAY]),
        (errors.ShapeError, "two levels", lambda x: layers.lod_append(x, [0, 1]), [nested()]),
        (errors.ShapeError, "smaller than a window", lambda x: layers.im2sequence(x, 9), [np.zeros((1, 1, 4, 4))]),
        (errors.ShapeError, "input_image_size", lambda x: layers.im2sequence(x, 1, input_image_size=np.array([4])),
         [np.zeros((1, 1, 4, 4))]),
    ],
)  # fmt: skip
def test_bad_calls(error, match, build, values):
    refused(error, match, build, *values)
