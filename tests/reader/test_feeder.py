"""Minibatches of every form: all become the same feed, and each error names the right form."""

import numpy as np
import pytest

import fluid
from fluid import errors
from fluid.core import FeedSpec, SequenceBatch
from fluid.reader import DataFeeder
from fluid.reader.buckets import Buckets
from fluid.reader.decorators import Grouped
from fluid.reader.feeder import Feeder

SPECS = {"x": FeedSpec("x", (None, 2), "float32"), "y": FeedSpec("y", (None, 1), "int64", limits=(0, 10, None))}
ONE = {"x": SPECS["x"]}
WORDS = {"w": FeedSpec("w", (None, 1), "int64", 1)}
X, Y = np.array([[1, 2], [3, 4], [5, 6]], "float32"), np.array([7, 8, 9])


def test_grouped_rows_are_padded_to_their_longest_row():
    """Check that all minibatches are padded to the length of the longest row, if compilations are expensive.

    A longest row with values that the feed does not accept is ignored.
    """
    grouped = [[[1] * n for n in lengths] for lengths in [(3, 4), (30, 33), (5, 6)]]
    for longest, want in [([1] * 33, [40, 40, 40]), ([1.5] * 33, [4, 56, 56])]:
        feeder = Feeder(WORDS, buckets=Buckets(WORDS, price=1e6))
        fed = [feeder.feed(Grouped(rows, longest, 3))["w"] for rows in grouped]
        assert [batch.data.shape[1] for batch in fed] == want


def check(feed):
    assert list(feed) == ["x", "y"]
    assert feed["x"].dtype == np.float32 and feed["x"].tolist() == X.tolist()
    assert feed["y"].dtype == np.int32 and feed["y"].tolist() == [[7], [8], [9]]


@pytest.mark.parametrize(
    "minibatch",
    [
        list(zip(X, Y, strict=True)),
        [list(row) for row in zip(X.tolist(), Y.tolist(), strict=True)],
        [{"y": y, "x": x} for x, y in zip(X, Y, strict=True)],
        (X, Y),
        (X.tolist(), Y.tolist()),
        {"y": Y, "x": X},
        [X, Y],
        iter(list(zip(X, Y, strict=True))),
    ],
    ids=["tuples", "lists", "dicts", "columns", "column lists", "dict of columns", "list of columns", "iterator"],
)
def test_every_form_gives_the_same_feed(minibatch):
    check(Feeder(SPECS).feed(minibatch, 0))


@pytest.mark.parametrize("minibatch", [list(X), X.tolist(), [(x,) for x in X], X, (X,), [X], {"x": X}])
def test_a_single_field_accepts_every_form(minibatch):
    assert Feeder(ONE).feed(minibatch)["x"].tolist() == X.tolist()


def test_a_single_field_accepts_scalars():
    assert Feeder({"y": SPECS["y"]}).feed([7, 8])["y"].tolist() == [[7], [8]]
    assert Feeder({"y": SPECS["y"]}).feed([(7,), (8,)])["y"].tolist() == [[7], [8]]


def test_a_single_matrix_row_is_not_a_column():
    square = {"x": FeedSpec("x", (None, 9), "float32")}
    assert Feeder(square).feed([np.ones((3, 3))])["x"].shape == (1, 9)


@pytest.mark.parametrize("minibatch", [[[3, 1], [4]], [([3, 1],), ([4],)], [np.array([3, 1]), np.array([4])]])
def test_a_single_field_accepts_sequences(minibatch):
    fed = Feeder(WORDS).feed(minibatch)["w"]
    assert isinstance(fed, SequenceBatch) and [row.ravel().tolist() for row in fed.rows()] == [[3, 1], [4]]


@pytest.mark.parametrize("feed_order", [["y", "x"], ("y", "x"), {"x": 1, "y": 0}])
def test_feed_order(feed_order):
    check(Feeder(SPECS, feed_order).feed(list(zip(Y, X, strict=True))))
    check(Feeder(SPECS, feed_order).feed((Y, X)))
    check(Feeder(SPECS, feed_order).feed({"x": X, "y": Y}))


def test_written_positions_pick_fields_of_longer_rows():
    rows = [(0, y, "note", x) for x, y in zip(X, Y, strict=True)]
    check(Feeder(SPECS, {"x": 3, "y": 1}).feed(rows))
    assert Feeder(ONE, {"x": 3}).feed([list(row) for row in rows])["x"].tolist() == X.tolist()


def test_columns_of_declarations():
    declared = {"x": FeedSpec("x", (None, 2), "float32", column=1), "y": SPECS["y"]}
    check(Feeder(declared).feed(list(zip(Y, X, strict=True))))


def test_no_field_at_all():
    assert Feeder({}).feed([(1, 2)]) == {}


def test_columns_of_different_length():
    feeder = Feeder(SPECS)
    with pytest.raises(errors.FeedError, match="batch 3: .*'x': 3, 'y': 2, expected the same number"):
        feeder.feed((X, Y[:2]), 3)
    assert len(Feeder(SPECS, aligned=False).feed((X, Y[:2]))["y"]) == 2


def test_torch_like_tensors():
    class Tensor:
        """A stand-in for a torch tensor, with the attributes that the feeder reads."""

        def __init__(self, array):
            self.array, self.dtype, self.ndim, self.shape = array, "torch.float32", array.ndim, array.shape

        def __array__(self, dtype=None, copy=None):
            return np.asarray(self.array, dtype)

    check(Feeder(SPECS).feed([Tensor(X), Tensor(Y)]))
    assert Feeder(ONE).feed([Tensor(X)])["x"].tolist() == X.tolist()


@pytest.mark.parametrize(
    "order, kind, words",
    [
        ([], errors.ArgumentError, r"names nothing, expected the order of \['x', 'y'\]"),
        ({}, errors.ArgumentError, "names nothing"),
        (["x", "label"], errors.UnknownNameError, "'label'.*Known names: 'x', 'y'"),
        ({"x": 0, "yy": 1}, errors.UnknownNameError, "'yy'.*Did you mean 'y'"),
        (["x"], errors.ArgumentError, r"misses 'y', found \['x'\].*feed_order=\['x', 'y'\]"),
        ({"y": 0}, errors.ArgumentError, "misses 'x'"),
        (["x", "y", "x"], errors.ArgumentError, "names a feed twice"),
        ({"x": 0, "y": 0}, errors.ArgumentError, "share a position"),
        ({"x": 0, "y": -1}, errors.ArgumentError, "'y' the position -1"),
        ({"x": 0, "y": "b"}, errors.ArgumentError, "'y' the position 'b'"),
        ("xy", errors.ArgumentTypeError, "list of strings, found 'xy'"),
        ([0, 1], errors.ArgumentTypeError, r"list of strings, found \[0, 1\]"),
    ],
)
def test_wrong_feed_order(order, kind, words):
    with pytest.raises(kind, match=words):
        Feeder(SPECS, order)


def test_declarations_that_share_a_column():
    specs = {name: FeedSpec(name, (None, 1), "float32", column=0) for name in "ab"}
    with pytest.raises(errors.ArgumentError, match="share a position"):
        Feeder(specs)


@pytest.mark.parametrize(
    "minibatch, kind, words",
    [
        ([], errors.FeedError, "batch 4: found an empty minibatch"),
        ((X[:0], Y[:0]), errors.FeedError, "'x', batch 4: found an empty minibatch"),
        ([(X[0], 7), (X[1],)], errors.FeedError, "sample 1, batch 4: found 1 fields, expected 2: 'x', 'y'"),
        ([(X[0], 7, 8)], errors.FeedError, "found 3 fields, expected 2.*feed_order={'x': 0, 'y': 1}"),
        ((X,), errors.FeedError, "found 1 columns, expected 2: 'x', 'y'"),
        (list(X), errors.FeedError, "sample 0, batch 4: found ndarray.*row tuples"),
        ([1, 2], errors.FeedError, "sample 0, batch 4: found int, expected the fields x, y"),
        (X, errors.FeedError, "found ndarray.*list of row tuples"),
        (5, errors.FeedError, "found int"),
        ({"x": X, "Y": Y}, errors.UnknownNameError, "batch 4: found 'Y'"),
        ({"x": X, "y": Y, "xs": Y}, errors.UnknownNameError, "'xs', which.*Did you mean 'x'"),
        ({"x": X}, errors.FeedError, "feed 'y', batch 4: found only 'x'"),
        ([{"x": X[0], "y": 1}, {"x": X[0]}], errors.FeedError, "feed 'y', sample 1, batch 4"),
        ([{"x": X[0], "y": 1}, {"x": X[0], "y": 1, "z": 2}], errors.UnknownNameError, "sample 1, batch 4: found 'z'"),
        ([{"x": X[0], "y": 1}, (X[0], 1)], errors.FeedError, "sample 1, batch 4: found tuple"),
        ([(X[0], 7), (X[1], 10)], errors.FeedError, "feed 'y', sample 1, batch 4: found the value 10"),
        ([(X[0], 7), (X[1][:1], 8)], errors.FeedError, "feed 'x', sample 1, batch 4: found a row of shape"),
        ([(X[0], 7), (X[1], 8.5)], errors.FeedTypeError, "feed 'y', sample 1, batch 4: found float"),
        ([(X[0], 7), ("ab", 8)], errors.FeedTypeError, "feed 'x', sample 1, batch 4: found 'ab'"),
    ],
)
def test_mistakes_in_a_minibatch(minibatch, kind, words):
    with pytest.raises(kind, match="(?s)" + words):
        Feeder(SPECS).feed(minibatch, 4)


def test_a_tuple_of_too_many_fields_is_refused():
    with pytest.raises(errors.FeedError, match="sample 0: found 2 fields, expected 1: 'x'"):
        Feeder(ONE).feed([(1.0, 2.0)])


def program():
    x = fluid.layers.data("x", shape=[2])
    y = fluid.layers.data("y", shape=[1], dtype="int64")
    return x + y


def test_data_feeder():
    rows = list(zip(Y, X, strict=True))
    check(dict(sorted(DataFeeder(feed_list=["y", "x"], program=program).feed(rows).items())))
    assert list(DataFeeder(["x"], "cpu", fluid.Program(program)).feed(list(X))) == ["x"]


@pytest.mark.parametrize(
    "arguments, kind, words",
    [
        ({"feed_list": ["x"]}, errors.ArgumentTypeError, "program=None.*program=train_program"),
        ({"feed_list": ["xx"], "program": program}, errors.UnknownNameError, "'xx'.*Did you mean 'x'"),
        ({"feed_list": "x", "program": program}, errors.ArgumentTypeError, "list of strings"),
        ({"feed_list": [], "program": program}, errors.ArgumentError, "names nothing"),
    ],
)
def test_wrong_data_feeder(arguments, kind, words):
    with pytest.raises(kind, match=words):
        DataFeeder(**arguments)
