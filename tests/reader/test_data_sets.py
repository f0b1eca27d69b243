"""Whole data sets and rows instead of minibatches: accepted if unambiguous, else the error names the right call."""

import re

import numpy as np
import pandas
import pytest

import fluid
from fluid import errors, reader
from fluid.core import FeedSpec
from fluid.reader.adapters import minibatches
from fluid.reader.feeder import Feeder

X = np.arange(12, dtype="float32").reshape(6, 2)
Y = np.arange(6) % 3
FRAME = pandas.DataFrame({"a": X[:, 0], "b": X[:, 1], "label": Y})
RECORDS = [{"x": x, "label": int(y)} for x, y in zip(X, Y, strict=True)]
SPECS = {"x": FeedSpec("x", (None, 2), "float32"), "label": FeedSpec("label", (None, 1), "int64")}


def program():
    x = fluid.layers.data("x", shape=[2])
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    guess = fluid.layers.fc(x, size=3, act="softmax")
    return fluid.layers.mean(fluid.layers.cross_entropy(guess, label))


@pytest.fixture(scope="module")
def trainer():
    return fluid.Trainer(program, fluid.optimizer.SGD(0.1))


def line_of(error):
    """Return the source code of the call that an error message proposes."""
    return re.search(r"(reader\.\w+\(.*?\))(?:;|, since|\. If|$)", str(error.value)).group(1)


class TestDataFrames:
    def test_arrays_reads_the_columns_of_a_frame(self):
        given = list(reader.arrays(FRAME, batch_size=4))
        assert [list(minibatch) for minibatch in given] == [["a", "b", "label"]] * 2
        assert given[1]["b"].tolist() == [9, 11] and given[0]["label"].dtype == FRAME["label"].dtype

    def test_several_frame_columns_form_a_feed(self):
        (minibatch,) = reader.arrays({"x": FRAME[["a", "b"]], "label": FRAME["label"]}, batch_size=6)
        feed = Feeder(SPECS).feed(minibatch)
        assert feed["x"].tolist() == X.tolist() and feed["label"].ravel().tolist() == Y.tolist()

    def test_frames_are_minibatches_as_read_csv_gives_them(self, tmp_path):
        pandas.DataFrame({"x": X[:, 0], "label": Y}).to_csv(tmp_path / "data.csv", index=False)
        specs = {"x": FeedSpec("x", (None, 1), "float32"), "label": SPECS["label"]}
        chunks = pandas.read_csv(tmp_path / "data.csv", chunksize=4)
        feeds = [Feeder(specs).feed(chunk, i) for i, chunk in enumerate(chunks)]
        assert [feed["x"].ravel().tolist() for feed in feeds] == [X[:4, 0].tolist(), X[4:, 0].tolist()]

    def test_records_of_a_frame_are_rows(self, trainer):
        frame = pandas.DataFrame({"x": list(X), "label": Y})
        trainer.train(reader.batch(frame.to_dict("records"), 4))

    def test_a_frame_as_reader_names_the_call(self, trainer):
        for use in (trainer.train, trainer.test):
            with pytest.raises(errors.ArgumentTypeError, match="found a DataFrame; say how many rows") as error:
                use(FRAME)
            given = list(eval(line_of(error), {"reader": reader, "frame": FRAME}))
            assert len(given) == 1 and sorted(given[0]["a"]) == sorted(FRAME["a"])

    @pytest.mark.parametrize("make", [lambda d: reader.batch(d, 2), lambda d: reader.map(str, d), reader.cache])
    def test_a_frame_as_rows_names_the_call(self, make):
        with pytest.raises(
            errors.ArgumentTypeError, match="needs a reader of rows, found a DataFrame.*records"
        ) as error:
            make(FRAME)
        assert len(list(eval(line_of(error), {"reader": reader, "frame": FRAME}))) == 1


class TestListsOfDicts:
    def test_they_are_rows(self, trainer):
        trainer.train(reader.batch(RECORDS, 4))
        feed = Feeder(SPECS).feed(next(reader.batch(RECORDS, 4)()))
        assert feed["x"].tolist() == X[:4].tolist() and feed["label"].ravel().tolist() == Y[:4].tolist()

    def test_without_batch_they_name_the_call(self, trainer):
        before = int(trainer.session.scope.step)
        with pytest.raises(errors.FeedError, match=r"batch 0: found one row, 'x', 'label' without a batch .*") as error:
            trainer.train(RECORDS)
        assert int(trainer.session.scope.step) == before
        assert len(list(eval(line_of(error), {"reader": Named(RECORDS)}))) == 1

    def test_in_arrays_they_name_the_call(self):
        with pytest.raises(errors.ArgumentTypeError, match="found list; for example reader.batch.*rows") as error:
            reader.arrays(RECORDS, batch_size=4)
        assert len(list(eval(line_of(error), {"reader": reader, "rows": RECORDS}))) == 1


class Named:
    """A reader with the function `batch` of `fluid.reader`, so that a test can evaluate "reader.batch(reader, ...)"."""

    def __init__(self, rows):
        self._rows = rows

    def __iter__(self):
        return iter(self._rows)

    batch = staticmethod(reader.batch)


@pytest.mark.parametrize(
    "rows",
    [
        [(x, int(y)) for x, y in zip(X, Y, strict=True)],
        [[x.tolist(), int(y)] for x, y in zip(X, Y, strict=True)],
        lambda: zip(X, Y, strict=True),
    ],
    ids=["tuples", "lists", "function"],
)
def test_rows_without_batch_name_the_call(trainer, rows):
    with pytest.raises(errors.FeedError, match=r"reader=fluid.reader.batch\(reader, batch_size=32\)"):
        trainer.train(rows)
    trainer.train(reader.batch(rows, 4))


def test_single_rows_without_batch_name_the_call():
    with pytest.raises(errors.FeedError, match=r"found one row, 'x' without.*fluid.reader.batch\("):
        Feeder({"x": SPECS["x"]}).feed(X[0], 0)
    words = {"words": FeedSpec("words", (None, 1), "int64", lod_level=1), "label": SPECS["label"]}
    with pytest.raises(errors.FeedError, match=r"found one row, 'words', 'label' without.*fluid.reader.batch\("):
        Feeder(words).feed(([3, 1, 2], 1), 0)


def test_a_wrong_minibatch_is_not_treated_as_row():
    for minibatch in [(X[:, :1], Y), (X, Y + 0.5), [(X[0], 0.5)], (X, ["a"] * 6)]:
        with pytest.raises(errors.FeedError) as error:
            Feeder(SPECS).feed(minibatch, 0)
        assert "reader.batch" not in str(error.value)


class TestTuplesOfArrays:
    def test_as_reader_they_name_the_call(self, trainer):
        with pytest.raises(errors.ArgumentTypeError, match="found arrays, a tuple of them; say how many") as error:
            trainer.train((X, Y))
        (given,) = eval(line_of(error), {"reader": reader, "x": X, "y": Y})
        assert sorted(given[1].tolist()) == sorted(Y.tolist())

    @pytest.mark.parametrize("y", [Y, Y[:, None], Y.astype("float32")[:, None], FRAME["label"]])
    def test_as_rows_they_name_the_call(self, y):
        with pytest.raises(errors.ArgumentTypeError, match="needs a reader of rows, found arrays, a tuple") as error:
            reader.batch((X, y), 4)
        assert len(list(eval(line_of(error), {"reader": reader, "x": X, "y": y}))) == 1

    def test_rows_that_are_arrays_stay_rows(self):
        assert len(list(reader.batch((X[0], X[1], X[2]), 2))) == 2
        assert len(list(reader.batch((np.arange(3), np.arange(5)), 1))) == 2, "rows of any length"
        assert len(list(reader.batch(X, 2))) == 3


class TestExtraColumns:
    """Tests of dict columns that the program does not declare."""

    extra = {"x": X, "label": Y, "id": np.arange(6)}

    def test_the_error_names_the_request_that_ignores_them(self, trainer):
        with pytest.raises(errors.UnknownNameError, match="found 'id'.*To ignore other columns.*feed_order=") as error:
            trainer.train([self.extra])
        order = eval(str(error.value).rpartition("feed_order=")[2])
        trainer.train([self.extra], feed_order=order)

    @pytest.mark.parametrize("order", [["x", "label"], {"label": 0, "x": 1}])
    def test_feed_order_ignores_them(self, order):
        rows = [{"id": 1, **row} for row in RECORDS]
        frame = pandas.DataFrame(rows)[["id", "label"]].assign(x=list(X))
        for minibatch in (self.extra, rows):
            feed = Feeder(SPECS, order).feed(minibatch)
            assert list(feed) == ["x", "label"] and feed["x"].tolist() == X.tolist()
        assert list(Feeder({"label": SPECS["label"]}, ["label"]).feed(frame)) == ["label"]

    def test_an_absent_feed_is_reported_before_extra_columns(self):
        with pytest.raises(errors.FeedError, match="feed 'label'.*only 'x', 'lable'"):
            Feeder(SPECS, ["x", "label"]).feed({"x": X, "lable": Y})


def test_a_feeder_reads_only_the_requested_feeds():
    feeder = Feeder(SPECS, only={"x"})
    rows = list(zip(X, Y, strict=True))
    for minibatch in ((X, Y), (X,), rows, {"x": X}, {"x": X, "label": Y}, RECORDS, [X, Y], [(x,) for x in X]):
        feed = feeder.feed(minibatch)
        assert list(feed) == ["x"] and feed["x"].tolist() == X.tolist()
    with pytest.raises(errors.UnknownNameError, match="found 'id'"):
        feeder.feed({"x": X, "id": Y})
    last = Feeder(SPECS, only={"label"})
    assert list(last.feed((X, Y))) == ["label"]
    with pytest.raises(errors.FeedError, match="found 1 columns, expected 2"):
        last.feed((Y,))
    assert Feeder(SPECS, {"label": 0, "x": 1}, only={"label"}).feed((Y,))["label"].ravel().tolist() == Y.tolist()


def test_a_dict_of_columns_names_reader_arrays():
    with pytest.raises(errors.ArgumentTypeError, match=r"reader=fluid.reader.arrays\({'x': x, 'label': label}"):
        minibatches({"x": X, "label": Y})


def test_columns_of_pandas_in_different_orders_are_refused():
    table = pandas.DataFrame({"a": [1.0, 2.0, 3.0], "y": [4.0, 5.0, 6.0]})
    mixed = table.loc[[2, 0, 1]]
    with pytest.raises(errors.ArgumentError, match=r"found the indices \[2, 0, 1\] and \[0, 1, 2\]"):
        fluid.reader.arrays((mixed["a"], table["y"]), batch_size=1)
    other = table.set_axis([7, 8, 9])  # the same values with other row labels
    for y in (mixed["y"], table["y"].loc[mixed.index], mixed["y"].to_numpy(), other["y"]):
        assert len(list(fluid.reader.arrays((mixed["a"], y), batch_size=1))) == 3
