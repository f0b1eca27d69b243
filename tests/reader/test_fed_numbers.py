"""Fed values that are no numbers: numbers under a mask of `numpy.ma`, wherever they are."""

import numpy as np
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
