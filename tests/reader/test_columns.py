"""Checks of the columns of a minibatch against the declared feeds: accepted forms, conversions, and errors."""

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings

from fluid import errors
from fluid.core import FeedSpec, LoDTensor, NestedSequenceBatch, SequenceBatch
from fluid.reader.buckets import padded_time
from fluid.reader.columns import check_feed, read_feed

IMAGE = FeedSpec("image", (None, 1, 4, 4), "float32")
LABEL = FeedSpec("label", (None, 1), "int64", limits=(0, 10, -100), site="model.py:7 in train")
VECTOR = FeedSpec("vector", (None, 3), "float32")
WORDS = FeedSpec("words", (None, 1), "int64", lod_level=1, limits=(0, 100, None))
POINTS = FeedSpec("points", (None, 2), "float32", lod_level=1)
TEXT = FeedSpec("text", (None, 1), "int64", lod_level=2, limits=(0, 100, None))


def test_fitting_arrays_are_not_copied():
    image, label = np.zeros((2, 1, 4, 4), "float32"), np.zeros((2, 1), "int32")
    assert check_feed(IMAGE, image) is image
    assert check_feed(LABEL, label) is label


@pytest.mark.parametrize("shape", [(2, 16), (2, 4, 4), (2, 1, 4, 4), (2, 4, 4, 1), (2, 1, 1, 4, 4)])
def test_flat_rows_and_unit_dimensions_are_reshaped(shape):
    values = np.arange(32, dtype="float32")
    fed = check_feed(IMAGE, values.reshape(shape))
    assert fed.shape == (2, 1, 4, 4) and fed.ravel().tolist() == values.tolist()


def test_rows_are_flattened_to_a_declared_vector():
    assert check_feed(FeedSpec("x", (None, 16), "float32"), np.ones((2, 4, 4))).shape == (2, 16)


@pytest.mark.parametrize("value", [[3, 1], [[3], [1]], np.array([3, 1]), np.array([[3], [1]], "uint8"), (3, 1)])
def test_scalar_columns_accept_plain_scalars(value):
    fed = check_feed(LABEL, value)
    assert fed.dtype == np.int32 and fed.tolist() == [[3], [1]]


@pytest.mark.parametrize("dtype", ["float64", "float16", "uint8", "int64", "bool", ml_dtypes.bfloat16])
def test_data_of_these_dtypes_becomes_float(dtype):
    fed = check_feed(VECTOR, np.ones((2, 3), dtype))
    assert fed.dtype == np.float32 and (fed == 1).all()


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "uint64"])
def test_data_of_these_dtypes_becomes_int(dtype):
    assert check_feed(LABEL, np.ones((2, 1), dtype)).dtype == np.int32


def test_int64_is_kept_when_jax_has_64_bits():
    with jax.enable_x64(True):
        fed = check_feed(FeedSpec("id", (None, 1), "int64"), [2**40])
    assert fed.dtype == np.int64 and fed.tolist() == [[2**40]]


def test_the_value_beside_the_limits_is_allowed():
    assert check_feed(LABEL, [9, -100, 0]).tolist() == [[9], [-100], [0]]


def test_bool_feeds_accept_zeros_and_ones():
    flag = FeedSpec("flag", (None, 1), "bool")
    assert check_feed(flag, [0, 1]).tolist() == [[False], [True]]
    with pytest.raises(errors.FeedError, match="sample 1: found the value 2"):
        check_feed(flag, [0, 2])


def test_whole_shapes():
    spec = FeedSpec("table", (3, None), "float32")
    assert check_feed(spec, np.ones((3, 7))).shape == (3, 7)
    assert check_feed(FeedSpec("rate", (1,), "float32"), 0.5).tolist() == [0.5]
    assert check_feed(FeedSpec("grid", (None, None, 2), "float32"), np.ones((4, 5, 2))).shape == (4, 5, 2)
    with pytest.raises(errors.FeedError, match=r"'table': found shape \[2, 7\], expected float32\[3, batch\]"):
        check_feed(spec, np.ones((2, 7)))


def test_device_arrays_stay_on_their_device():
    image = jnp.zeros((2, 1, 4, 4))
    with jax.transfer_guard("disallow"):
        assert check_feed(IMAGE, image) is image
    assert isinstance(check_feed(IMAGE, jnp.zeros((2, 16))), jax.Array)
    assert check_feed(VECTOR, jnp.ones((2, 3), jnp.int32)).dtype == jnp.float32
    shaped = jax.eval_shape(lambda x: check_feed(IMAGE, x), jax.ShapeDtypeStruct((2, 16), "float32"))
    assert shaped.shape == (2, 1, 4, 4)


def test_sequence_batches_feed_dense_data_step_by_step():
    first_word = SequenceBatch.from_rows([[[3]], [[5]]])
    assert check_feed(LABEL, first_word).tolist() == [[3], [5]]


@settings(max_examples=60, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from(["int8", "int32", "int64", "uint64", "float64"]), st.tuples(st.integers(1, 5), st.just(3))
    )
)
def test_numbers_keep_their_values_or_are_refused(array):
    spec = FeedSpec("x", (None, 3), "int64")
    if array.dtype.kind == "f":
        with pytest.raises(errors.FeedTypeError):
            check_feed(spec, array)
    elif all(-(2**31) <= int(v) < 2**31 for v in array.ravel()):
        assert check_feed(spec, array).tolist() == array.tolist()
    else:
        culprit = next(i for i, row in enumerate(array) if any(not -(2**31) <= int(v) < 2**31 for v in row))
        with pytest.raises(errors.FeedError, match=f"sample {culprit}: .*int32"):
            check_feed(spec, array)


def ragged(length):
    return [[1.0] * 3, [1.0] * length, [1.0] * 3]


@pytest.mark.parametrize(
    "spec, value, kind, words",
    [
        (VECTOR, np.ones((2, 4)), errors.FeedError, r"row of shape \[4\], expected rows of shape \[3\].*shape=\[4\]"),
        (VECTOR, np.ones(3), errors.FeedError, r"found shape \[3\].*one sample without a batch.*value\[None\]"),
        (VECTOR, 1.0, errors.FeedError, "found a single number.*one row for each sample"),
        (VECTOR, np.ones((2, 2, 3)), errors.FeedError, r"row of shape \[2, 3\]"),
        (IMAGE, np.ones((2, 4, 1, 5)), errors.FeedError, r"'image', sample 0.*shape=\[4, 1, 5\]"),
        (
            FeedSpec("i", (None, 3, 8, 8), "float32"),
            np.ones((2, 8, 8, 3)),
            errors.FeedError,
            "another order.*transpose",
        ),
        (VECTOR, np.ones((0, 3)), errors.FeedError, "empty minibatch, expected at least one sample"),
        (LABEL, [], errors.FeedError, "empty minibatch"),
        (WORDS, [], errors.FeedError, "empty minibatch"),
        (LABEL, [1, 0.5], errors.FeedTypeError, r"sample 1, batch 7: found float64 0.5.*astype\('int64'\)"),
        (LABEL, np.array([1.0, 2.0]), errors.FeedTypeError, "sample 0, batch 7: found float64.*whole numbers"),
        (VECTOR, np.ones((2, 3), complex), errors.FeedTypeError, "found complex128"),
        (
            VECTOR,
            [["1", "2", "3"]],
            errors.FeedTypeError,
            r"sample 0, batch 7: found \['1', '2', '3'\] \(list\).*turn words",
        ),
        (VECTOR, np.array(["a"]), errors.FeedTypeError, "'vector', sample 0"),
        (VECTOR, "text", errors.FeedTypeError, "turn words into ids"),
        (VECTOR, [[1, 2, 3], None], errors.FeedTypeError, r"sample 1, batch 7: found None \(NoneType\)"),
        (VECTOR, np.array([[1, 2, None]]), errors.FeedTypeError, "sample 0, batch 7: found array.*None"),
        (VECTOR, {"x": 1}, errors.FeedTypeError, "found object data"),
        (
            VECTOR,
            ragged(2),
            errors.FeedError,
            r"sample 1, batch 7: found a row of shape \[2\].*differ in shape.*lod_level=1",
        ),
        (VECTOR, [[1, 2, 3], [1, [2], 3]], errors.FeedError, "sample 1, batch 7: found lists of different lengths"),
        (LABEL, [1, [2, 3]], errors.FeedError, r"sample 1.*dtype='int64', lod_level=1"),
        (
            LABEL,
            [1, 12],
            errors.FeedError,
            r"sample 1, batch 7: found the value 12, expected 0 <= value < 10 \(or -100\)",
        ),
        (LABEL, [-1], errors.FeedError, r"declared at model.py:7 in train.*'label' a larger size"),
        (
            LABEL,
            [1, 2**31],
            errors.FeedError,
            r"sample 1, batch 7: found the value 2147483648, expected what fits into int32",
        ),
        (LABEL, [1, 2**70], errors.FeedError, "too large for int32"),
        (LABEL, [2**63, -1], errors.FeedError, "too large for int32"),
        (
            VECTOR,
            np.full((2, 3), 1e300),
            errors.FeedError,
            r"sample 0, batch 7: found the value 1e\+300, too large for float32",
        ),
        (VECTOR, jnp.ones((2, 4)), errors.FeedError, r"row of shape \[4\]"),
        (LABEL, jnp.ones((2, 1)), errors.FeedTypeError, "jax.Array of dtype float32"),
        (WORDS, [[1, 2], 3], errors.FeedError, r"sample 1, batch 7: found the single value 3.*\[value\]"),
        (WORDS, [[1], [2, 100]], errors.FeedError, "sample 1, batch 7: found the value 100, expected 0 <= value < 100"),
        (WORDS, [[], [1], [2, 0.5]], errors.FeedTypeError, "sample 2, batch 7: found float64"),
        (WORDS, [[1], ["two"]], errors.FeedTypeError, r"sample 1, batch 7: found \['two'\]"),
        (WORDS, ["two"], errors.FeedTypeError, "sample 0, batch 7: found 'two'"),
        (WORDS, [[1], [[1, 2], [3]]], errors.FeedError, "sample 1, batch 7: found lists of different lengths"),
        (WORDS, [[[1, 2]]], errors.FeedError, r"steps of shape \[2\], expected steps of shape \[1\]"),
        (WORDS, 5, errors.FeedError, "the single value 5"),
        (
            POINTS,
            [[[1, 2]], [[1, 2, 3]]],
            errors.FeedError,
            r"sample 1, batch 7: found steps of shape \[3\].*shape=\[3\]",
        ),
        (POINTS, [[1, 2]], errors.FeedError, r"sample 0, batch 7: found steps of shape \[\]"),
        (POINTS, np.ones((2, 5, 3)), errors.FeedError, r"sequences of shape \[2, 5, 3\]"),
        (WORDS, SequenceBatch.from_rows([[1, 100]]), errors.FeedError, "sample 0, batch 7: found the value 100"),
        (WORDS, SequenceBatch.from_rows([[1.5]]), errors.FeedTypeError, "sample 0, batch 7: found float64"),
        (WORDS, SequenceBatch(np.ones((2, 3), int), np.ones(3, int)), errors.FeedError, r"lengths of shape \[3\]"),
        (
            WORDS,
            SequenceBatch(np.ones((2, 3), int), np.array([1, 4])),
            errors.FeedError,
            "sample 1.*the length 4 in data",
        ),
        (WORDS, SequenceBatch(np.ones((2, 3), int), np.array([-1, 3])), errors.FeedError, "lengths from 0 to 3"),
        (WORDS, NestedSequenceBatch.from_rows([[[1]]]), errors.FeedError, "found NestedSequenceBatch of shape"),
        (WORDS, LoDTensor([[1], [2]], [[1], [2]]), errors.FeedError, r"LoDTensor\(int64\[2, 1\].*of 1 levels"),
        (WORDS, LoDTensor([[1], [2]], [[1]]), errors.FeedError, r"create_lod_tensor\(data, \[\[2, 3\]\], place\)"),
        (TEXT, [], errors.FeedError, "empty minibatch"),
        (TEXT, [[1, 2]], errors.FeedError, r"sample 0, batch 7: found \[1, 2\] as a row.*\[\[value, ...\]\]"),
        (TEXT, [[[1]], 5], errors.FeedError, "sample 1, batch 7: found 5 as a row.*rows of sequences"),
        (TEXT, ["ab"], errors.FeedError, "sample 0, batch 7: found 'ab' as a row"),
        (TEXT, [[[1], [2]], [[3], [4, 100]]], errors.FeedError, "sample 1, batch 7: found the value 100"),
        (TEXT, [[[1], [2]], [[3], [4.5]]], errors.FeedTypeError, "sample 1, batch 7: found float64"),
        (TEXT, [[], [[1]], [["two"]]], errors.FeedTypeError, r"sample 2, batch 7: found \['two'\]"),
        (TEXT, [[[1]], [[2], [[1, 2], [3]]]], errors.FeedError, "sample 1, batch 7: found lists of different lengths"),
        (TEXT, [[[1]], [[[1, 2]]]], errors.FeedError, r"sample 1, batch 7: found steps of shape \[2\].*lod_level=2"),
        (TEXT, [[[2**70]]], errors.FeedError, "too large for int32"),
        (TEXT, SequenceBatch.from_rows([[1]]), errors.FeedError, r"NestedSequenceBatch.from_rows\(rows\)"),
        (TEXT, LoDTensor([[1], [2]], [[2]]), errors.FeedError, r"\[\[2, 1\], \[3, 1, 2\]\]"),
        (
            TEXT,
            NestedSequenceBatch(np.ones((1, 2, 3), int), np.array([2]), np.array([[3, 4]])),
            errors.FeedError,
            "sample 0.*the length 4 in data.*lengths from 0 to 3",
        ),
        (
            TEXT,
            NestedSequenceBatch(np.ones((1, 2, 3), int), np.array([2]), np.array([3])),
            errors.FeedError,
            r"lengths of shape \[1\] and \[1\]",
        ),
    ],
)
def test_wrong_values_raise_errors_with_their_position(spec, value, kind, words):
    with pytest.raises(kind, match="(?s)" + words) as caught:
        check_feed(spec, value, "batch 7")
    assert str(caught.value).startswith(f"feed {spec.name!r}")
    assert "batch 7: found " in str(caught.value) and ", expected " in str(caught.value)


rows_of_words = st.lists(st.lists(st.integers(0, 99), max_size=9), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(rows=rows_of_words, form=st.sampled_from(["lists", "arrays", "columns", "mixed"]))
def test_sequences_are_padded_rows(rows, form):
    value = {
        "lists": rows,
        "arrays": [np.array(row, "int64") for row in rows],
        "columns": [[[word] for word in row] for row in rows],
        "mixed": [np.array(row) if i % 2 else row for i, row in enumerate(rows)],
    }[form]
    fed = check_feed(WORDS, value)
    time = padded_time(max(map(len, rows)))
    expected = SequenceBatch.from_rows([np.array(row, "int32").reshape(-1, 1) for row in rows], time=time)
    assert fed.data.dtype == np.int32 and fed.lengths.dtype == np.int32
    assert fed.lengths.tolist() == expected.lengths.tolist()
    assert fed.data.shape == (len(rows), time, 1) and fed.data.tolist() == expected.data.tolist()


def test_few_lengths_occur():
    assert {padded_time(n) for n in range(200)} == {4, 8, 16, 32, 64, 128, 256}
    assert all(padded_time(n) >= n for n in range(200))


def test_padding_is_not_checked_against_the_limits():
    spec = FeedSpec("words", (None, 1), "int64", 1, limits=(5, 10, None))
    assert check_feed(spec, [[5], [6, 7]]).lengths.tolist() == [1, 2]
    batch = check_feed(spec, [[5], [6, 7]])
    assert check_feed(spec, batch) is batch


def test_sequences_of_vectors_and_equal_rows():
    fed = check_feed(POINTS, [[[1, 2], [3, 4]], np.ones((1, 2))])
    assert fed.data.shape == (2, 4, 2) and fed.data.dtype == np.float32
    padded = check_feed(POINTS, np.ones((2, 5, 2)))
    assert padded.data.shape == (2, 5, 2) and padded.lengths.tolist() == [5, 5]
    assert check_feed(WORDS, np.ones((2, 5), int)).data.shape == (2, 5, 1)


def test_sequences_on_the_device_pass_through():
    batch = SequenceBatch(jnp.ones((2, 5, 2)), jnp.array([5, 2]))
    assert check_feed(POINTS, batch) is batch
    assert isinstance(check_feed(POINTS, jnp.ones((2, 5, 2))).data, jax.Array)


def test_sequences_of_sequences():
    rows = [[[1, 2], []], [], [[3]]]
    lod = LoDTensor([[1], [2], [3]], [[2, 0, 1], [2, 0, 1]])
    batch = NestedSequenceBatch.from_rows(rows, "int32", outer=4, inner=4)
    for value in (rows, [[np.array(s) for s in row] for row in rows], batch, lod):
        fed = check_feed(TEXT, value)
        assert fed.shape[0] == 3 and fed.shape[3] == 1 and fed.data.dtype == np.int32
        assert [[s.ravel().tolist() for s in row] for row in fed.rows()] == rows
    assert check_feed(TEXT, rows).shape == (3, 4, 4, 1)
    ready = check_feed(TEXT, rows)
    assert check_feed(TEXT, ready) is ready
    equal = check_feed(TEXT, np.arange(12).reshape(2, 2, 3))
    assert equal.lengths.tolist() == [2, 2] and equal.inner_lengths.tolist() == [[3, 3], [3, 3]]
    device = jax.tree.map(jnp.asarray, ready)
    assert check_feed(TEXT, device) is device


def test_lod_tensors():
    words = LoDTensor([[3], [4], [5]], [[2, 1]])
    assert [row.ravel().tolist() for row in check_feed(WORDS, words).rows()] == [[3, 4], [5]]
    assert check_feed(LABEL, words).tolist() == [[3], [4], [5]]


ANYTHING = st.recursive(
    st.sampled_from([0, 1, -1, 2.5, 2**40, 2**70, True, None, "", "a", b"", {}, 1e300, float("nan"), 1 + 2j]),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300)
@given(spec=st.sampled_from([LABEL, VECTOR, WORDS, POINTS, TEXT]), value=ANYTHING)
def test_any_value_becomes_a_batch_or_raises_fluiderror(spec, value):
    try:
        fed = check_feed(spec, value)
    except errors.FluidError:
        return
    assert len(fed.shape) == len(spec.shape) + spec.lod_level


@pytest.mark.parametrize(
    ("rows", "found"),
    [([[[]], [[1.0, 2.0]][:0]], "steps without numbers"), ([{}], "{} as a row"), ([""], "'' as a row")],
)
def test_empty_values_of_wrong_form_are_refused(rows, found):
    with pytest.raises(errors.FeedError, match=found):
        check_feed(POINTS, rows)


@pytest.mark.parametrize("values", [1.7e9 + np.arange(40.0), 2**40 + np.arange(40), -(2**30) - np.arange(40)])
def test_large_numbers_that_become_equal_warn_once(values):
    spec = FeedSpec("t", (None, 1), "float32", site="net.py:3")
    with pytest.warns(
        errors.FluidWarning, match=r"'t': found 40 different numbers.*keeps \d\b.*declared at net.py:3"
    ) as seen:
        read_feed(spec, values)
        read_feed(spec, values)
    assert len(seen) == 1


@pytest.mark.parametrize(
    "values",
    [
        2**24 - np.arange(40),
        # Unix times that are about a day apart.
        1.7e9 + 1e5 * np.arange(40),
        1e9 * np.random.default_rng(0).normal(size=4000),
        np.full(40, 2**24 + 1),
        np.linspace(0, 1, 40),
        np.array([np.inf, -np.inf, np.nan, 2.0**60]),
    ],
)
def test_large_numbers_that_stay_distinct_do_not_warn(values):
    read_feed(FeedSpec("t", (None, 1), "float32"), values)
