"""Fed values that are no numbers, wherever they are: numbers under a mask of `numpy.ma`, None, text, dates."""

import datetime
import re
from decimal import Decimal

import ml_dtypes
import numpy as np
import pandas
import pytest
from scipy.sparse import csr_matrix

import fluid
from fluid import errors, layers, reader
from fluid.core import FeedSpec, LoDTensor, NestedSequenceBatch, SequenceBatch
from fluid.reader.columns import check_feed

VECTOR = FeedSpec("x", (None, 2), "float32")
LABEL = FeedSpec("x", (None, 1), "int64")
GRID = FeedSpec("x", (None, 2, 2), "float32")
WORDS = FeedSpec("x", (None, 1), "int64", lod_level=1)
POINTS = FeedSpec("x", (None, 2), "float32", lod_level=1)
TEXT = FeedSpec("x", (None, 1), "int64", lod_level=2)

HIDDEN = np.ma.array([3, 4], mask=[False, True])
CLEAR = np.ma.array([3, 4])


def objects(*items):
    """Return an array of Python objects."""
    found = np.empty(len(items), object)
    found[:] = items
    return found


@pytest.mark.parametrize(
    "spec, value, index",
    [
        (VECTOR, np.ma.array([[1.0, 2], [3, 4]], mask=[[0, 0], [1, 0]]), [1, 0]),
        (VECTOR, [[1, 2], HIDDEN], [1, 1]),
        (VECTOR, (CLEAR, HIDDEN), [1, 1]),
        (VECTOR, [np.ones(2), list(HIDDEN)], [1, 1]),
        (GRID, [[[1, 2], [3, 4]], [[1, 2], HIDDEN]], [1, 1, 1]),
        (GRID, [np.ones((2, 2)), ([1, 2], HIDDEN)], [1, 1, 1]),
        (LABEL, [1, np.ma.masked], [1]),
        (LABEL, [1, np.ma.array(5, mask=True)], [1]),
        (VECTOR, objects(CLEAR, HIDDEN), [1, 1]),
        (VECTOR, [objects(1, 2), objects(1, np.ma.masked)], [1, 1]),
        (WORDS, [[1, 2, 3], HIDDEN], [1, 1]),
        (WORDS, [[1, 2, 3], [1, np.ma.masked]], [1, 1]),
        (WORDS, objects([1, 2, 3], HIDDEN), [1, 1]),
        (POINTS, [[[1, 2]], [[1, 2], HIDDEN]], [1, 1, 1]),
        (TEXT, [[[1], [2, 3]], [[1], HIDDEN]], [1, 1, 1]),
        (WORDS, SequenceBatch(np.ma.array([[1, 2], [3, 4]], mask=[[0, 0], [1, 0]]), np.array([2, 1])), [1, 0]),
        (LABEL, SequenceBatch(np.ma.array([[1], [3]], mask=[[0], [1]]), np.array([1, 1])), [1, 0]),
    ],
)
@pytest.mark.filterwarnings("ignore:Warning. converting a masked element to nan")
def test_a_number_under_a_mask_is_refused(spec, value, index):
    with pytest.raises(errors.FeedTypeError) as caught:
        check_feed(spec, value, "batch 7")
    at = f" at {index}" if len(index) > 1 else ""
    assert str(caught.value).startswith(
        f"feed 'x', sample {index[0]}, batch 7: found a masked number (numpy.ma){at}, expected "
    )
    assert "x.filled(0)" in str(caught.value) and "np.ma.getmaskarray(x)" in str(caught.value)


@pytest.mark.parametrize(
    "spec, value, plain",
    [
        (VECTOR, np.ma.array([[1.0, 2]]), [[1, 2]]),
        (VECTOR, [CLEAR, [1, 2]], [[3, 4], [1, 2]]),
        (LABEL, CLEAR, [[3], [4]]),
        (LABEL, list(CLEAR), [[3], [4]]),
    ],
)
def test_a_masked_array_without_masked_numbers_is_its_data(spec, value, plain):
    fed = check_feed(spec, value)
    assert type(fed) is np.ndarray and fed.tolist() == plain


def test_masks_over_padding_are_accepted():
    data = np.ma.array([[1, 2], [3, 4]], mask=[[0, 0], [0, 1]])
    fed = check_feed(WORDS, SequenceBatch(data, np.array([2, 1])))
    assert type(fed.data) is np.ndarray and [row.ravel().tolist() for row in fed.rows()] == [[1, 2], [3]]
    nested = NestedSequenceBatch(data[None], np.array([2]), np.array([[2, 1]]))
    assert [[s.tolist() for s in row] for row in nested.rows()] == [[[1, 2], [3]]]


def test_numbers_that_are_missing_stay_nan():
    fed = check_feed(VECTOR, [[1, float("nan")], [3, 4]])
    assert np.isnan(fed[0, 1]) and fed[1].tolist() == [3, 4]


@pytest.mark.parametrize(
    "call",
    [
        lambda: SequenceBatch.from_rows([[1], HIDDEN]),
        lambda: NestedSequenceBatch.from_rows([[[1], HIDDEN]]),
        lambda: SequenceBatch(np.ma.array([HIDDEN]), np.array([2])).rows(),
        lambda: LoDTensor(HIDDEN, [[2]]),
        lambda: LoDTensor().set(HIDDEN),
        lambda: fluid.create_lod_tensor([[1, np.ma.array(2, mask=True)]], [[2]], None),
        lambda: reader.arrays({"x": np.ma.array([HIDDEN])}, batch_size=1),
        lambda: reader.arrays({"x": [CLEAR, HIDDEN]}, batch_size=1),
        lambda: reader.arrays({"x": np.ma.array([(1, 2)], mask=[(0, 1)], dtype="i,i")}, batch_size=1),
        lambda: reader.frame({"a": HIDDEN, "y": [0, 1]}, label="y", batch_size=1),
    ],
)
def test_other_ways_in_refuse_masks(call):
    with pytest.raises(errors.ArgumentTypeError, match=r"found a masked number \(numpy.ma\).*x\.filled\(0\)"):
        call()


def net():
    return layers.fc(layers.identity(layers.data("x", shape=[2]), name="h"), size=1)


def test_sessions_and_inferencers_refuse_masks():
    session = fluid.Session(net)
    inferencer = fluid.Inferencer(net, params=session.state())
    rows = [[1, 2], HIDDEN]
    for call in (
        lambda: session.run(net, feed={"x": rows}),
        lambda: session.run(net, feed={"h": rows}),
        lambda: inferencer.infer({"x": rows}),
        lambda: inferencer.infer({"h": np.ma.array([HIDDEN])}),
        lambda: inferencer.infer(rows),
        lambda: list(inferencer.predict(lambda: [[(row,) for row in rows]])),
        lambda: list(inferencer.predict(lambda: [{"x": rows}])),
    ):
        with pytest.raises((errors.FeedTypeError, errors.ArgumentTypeError), match=r"a masked number \(numpy.ma\)"):
            call()


def test_a_sparse_row_is_found_after_others():
    with pytest.raises(errors.FeedTypeError, match=r"sample 1: found a sparse matrix .*x\.toarray\(\)"):
        check_feed(VECTOR, [[1, 2], csr_matrix(np.eye(2))[:1]])


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2.5], [3, 4]],
        [[True, 2], [3, False]],
        [[np.float32(0.1), np.int8(3)]],
        [[ml_dtypes.bfloat16(1.5), 2]],
        [[2**70, -(2**70)], [0, 1]],
    ],
)
def test_objects_that_are_numbers_are_read_as_a_list(values):
    array = np.array(values, object)
    expected = np.array(values, np.float64).astype("float32").tolist()
    rows = [objects(*row) for row in values]
    for fed in (array, rows, objects(*rows), objects(*values), [pandas.Series(row, dtype=object) for row in values]):
        found = check_feed(VECTOR, fed)
        assert found.dtype == np.float32 and found.tolist() == expected


def test_objects_get_the_dtype_of_a_list():
    assert check_feed(LABEL, objects(1, True, np.uint8(3))).tolist() == [[1], [1], [3]]
    assert check_feed(LABEL, pandas.Series([1, 2], dtype="Int64")).tolist() == [[1], [2]]
    assert SequenceBatch.from_rows([objects(1, 2.5), [3]]).data.dtype == np.float64
    assert LoDTensor(np.array([[1], [2]], object), [[2]]).batch().data.dtype == np.int64
    with pytest.raises(errors.FeedTypeError, match="sample 1: found float64 0.5.*whole numbers"):
        check_feed(LABEL, objects(1, 0.5))
    with pytest.raises(errors.FeedError, match=f"sample 1: found the value {2**70}, too large for int32"):
        check_feed(LABEL, objects(1, 2**70))


def test_sequences_of_objects():
    rows = [[1, 2], [3]]
    for fed in (objects(*rows), [np.array(row, object) for row in rows]):
        assert [row.ravel().tolist() for row in check_feed(WORDS, fed).rows()] == rows
    points = check_feed(POINTS, [objects([1.0, 2.0], np.ones(2))])
    assert points.rows()[0].tolist() == [[1, 2], [1, 1]]
    text = check_feed(TEXT, [objects([1], [2, 3]), [[4]]])
    assert [[s.ravel().tolist() for s in row] for row in text.rows()] == [[[1], [2, 3]], [[4]]]
    padded = SequenceBatch(np.array([[1, 2], [3, None]], object), np.array([2, 1]))
    assert [row.ravel().tolist() for row in check_feed(WORDS, padded).rows()] == rows


@pytest.mark.parametrize(
    "spec, value, found",
    [
        (VECTOR, np.array([[1, 2], [3, None]], object), "sample 1: found .*with None (NoneType) at [1, 1], "),
        (VECTOR, [[1, 2], objects(3, "a")], "sample 1: found .*with 'a' (str) at [1, 1], .*turn words into ids"),
        (VECTOR, [[1, 2], [3, "4"]], "sample 1: found [3, '4'] (list) with '4' (str) at [1, 1], "),
        (LABEL, [1, "a"], "sample 1: found 'a' (str), "),
        (LABEL, objects(1, "a"), "sample 1: found 'a' (str), "),
        (LABEL, objects(1, None), "sample 1: found None (NoneType), .*return row"),
        (LABEL, pandas.Series([1, None], dtype="Int64"), "sample 1: found <NA> (NAType), "),
        (VECTOR, [[1, Decimal("0.5")]], "with Decimal('0.5') (Decimal) at [0, 1], .*float(value)"),
        (LABEL, objects(1, datetime.date(2020, 2, 3)), "sample 1: found datetime.date(2020, 2, 3) (date), .*.days"),
        (LABEL, np.array(["2020-02-03"], "M8[D]"), "sample 0: found np.datetime64('2020-02-03') (datetime64), .*.days"),
        (FeedSpec("x", (None, 99), "float32"), np.array([[0] * 98 + ["?"]], object), "with '?' (str) at [0, 98], "),
        (WORDS, [[1, 2], objects(3, None)], "with None (NoneType) at [1, 1], "),
        (WORDS, [np.array([1]), np.array(["a"])], "sample 1: found .*'a'"),
        (TEXT, [[[1], [2, None]]], "sample 0: found [2, None] (list) with None (NoneType) at [0, 1, 1], "),
        (
            WORDS,
            SequenceBatch(np.array([[1, 2], [None, 3]], object), np.array([2, 1])),
            "sample 1: found .*None (NoneType) at [1, 0]",
        ),
    ],
)
def test_the_first_value_that_is_no_number_is_named(spec, value, found):
    pattern = "(?s)" + ".*".join(map(re.escape, found.split(".*")))
    with pytest.raises(errors.FeedTypeError, match=pattern):
        check_feed(spec, value)


def test_other_ways_in_refuse_what_is_no_number():
    session = fluid.Session(net)
    for call in (
        lambda: SequenceBatch.from_rows([[1], [2, "a"]]),
        lambda: LoDTensor(np.array([["a"]]), [[1]]),
        lambda: fluid.create_lod_tensor([[1, "a"]], [[2]], None),
        lambda: session.run(net, feed={"h": [[1, "a"]]}),
    ):
        with pytest.raises(errors.ArgumentTypeError, match=r"found .*'a' \(str\) at .*expected numbers. Give numbers"):
            call()


def test_arrays_keep_numbers_among_text():
    column = next(iter(reader.arrays({"x": [1, "a", None]}, batch_size=3)()))["x"]
    assert column.tolist() == [1, "a", None]
    column = next(iter(reader.arrays({"x": [1, "a"]}, batch_size=2)()))["x"]
    assert column.tolist() == [1, "a"]
