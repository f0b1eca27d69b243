"""Readers whose data set stays on the device: minibatches, order and saved positions equal a reader on the host."""

import gc

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings

import fluid
from fluid import errors, reader
from fluid.reader.adapters import minibatches
from fluid.reader.converter import Converter
from fluid.reader.on_device import Resident, RowNumbers


def forms(count):
    x, y = np.arange(2.0 * count, dtype="float32").reshape(count, 2), np.arange(count)
    return [x, (x, y), {"x": x, "y": y}]


def listed(minibatch):
    columns = minibatch.items() if isinstance(minibatch, dict) else enumerate(minibatch)
    return [(name, np.asarray(column).tolist()) for name, column in columns]


@settings(max_examples=15, deadline=None)
@given(
    form=st.integers(0, 2), size=st.integers(1, 5), shuffle=st.booleans(), drop=st.booleans(), read=st.integers(0, 3)
)
def test_same_minibatches_in_the_same_order(form, size, shuffle, drop, read):
    """Check that a reader with `on_device=True` has the minibatches of a reader on the host.

    Also check that the reader on the host can continue from the position of the reader on the device.
    """
    data = forms(7)[form]
    there = reader.arrays(data, size, shuffle, seed=2, drop_last=drop, on_device=True)
    here = reader.arrays(data, size, shuffle, seed=2, drop_last=drop)
    assert there.plan == here.plan
    for _ in range(2):
        found = list(there())
        assert [listed(m) for m in found] == [listed(m) for m in here()]
        assert all(type(m) is (dict if form == 2 else tuple) for m in found)
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))
    rows = there()
    for _ in range(min(read, len(found))):
        next(rows)
    here.restore(there.state())
    assert [listed(m) for m in here()] == [listed(m) for m in rows]


def test_minibatches_can_be_the_numbers_of_rows():
    passes = minibatches(reader.arrays((np.arange(5),), 2, shuffle=True, seed=1, on_device=True))
    passes.compact()
    expected = [m[0].tolist() for m in reader.arrays((np.arange(5),), 2, shuffle=True, seed=1)]
    assert [m.rows.tolist() for m in passes()] == expected
    assert all(m.rows.dtype == np.int32 for m in passes())


def test_text_and_large_integers_are_refused():
    with pytest.raises(errors.ArgumentTypeError, match=r"on_device=True.*column 'word' holds <U1, expected numbers"):
        reader.arrays({"word": np.array(["a", "b"])}, 1, on_device=True)
    with pytest.raises(errors.ArgumentError, match=r"column 1 holds 0 to 1099511627776, expected what fits into int32"):
        reader.arrays((np.ones(2), np.array([0, 2**40])), 1, on_device=True)


X = np.random.default_rng(0).normal(size=(20, 3)).astype("float32")
LABELS = np.arange(20) % 4


def program():
    x, label = fluid.layers.data("x", shape=[3]), fluid.layers.data("label", shape=[1], dtype="int64")
    guess = fluid.layers.fc(x, size=4, act="softmax")
    return {"loss": fluid.layers.mean(fluid.layers.cross_entropy(guess, label))}


@pytest.fixture(scope="module")
def trainer():
    return fluid.Trainer(program, fluid.optimizer.SGD(0.0))


def test_data_is_transferred_once_and_checked_whole(trainer, monkeypatch):
    """Check that training and testing share one copy of the data; each minibatch transfers only its row numbers."""
    given = {"x": X, "label": LABELS}
    data = reader.arrays(given, 8, shuffle=True, on_device=True)
    put, device_put = [], jax.device_put

    def noting(value, *rest, **options):
        put.append(sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(value) if isinstance(leaf, np.ndarray)))
        return device_put(value, *rest, **options)

    trainer.train(data)  # the first call compiles and copies the data
    monkeypatch.setattr(jax, "device_put", noting)
    trainer.train(data, 2)
    expected = trainer.test(reader.arrays(given, 8))
    # The rows of `data` are shuffled, so their losses are added up in another order, and the mean may differ in the
    # last bits.
    assert float(trainer.test(data)["loss"]) == pytest.approx(float(expected["loss"]), rel=1e-6)
    assert put and max(put) <= 4 * 8
    monkeypatch.undo()
    wrong = np.where(np.arange(20) == 13, 4, LABELS)
    with pytest.raises(errors.FeedError, match=r"feed 'label', sample 13: found the value 4"):
        trainer.train(reader.arrays({"x": X, "label": wrong}, 8, on_device=True))
    mutable = X.copy()
    kept = reader.arrays({"x": mutable, "label": LABELS}, 20, on_device=True)
    before = float(trainer.test(kept)["loss"])
    mutable[:] = 0  # the reader has a copy on the device, so this change has no effect
    assert float(trainer.test(kept)["loss"]) == before


def test_no_data_set_is_taken_for_another(trainer):
    convert = Converter(trainer.session.engine, trainer.program.feeds)
    for number in range(20):  # each is freed before the next one, which may get its address
        data = Resident(["x", "label"], [X + number, LABELS], by_name=True)
        feed = convert(RowNumbers(data, np.array([3, 1], "int32")), 0)
        np.testing.assert_array_equal(np.asarray(feed["x"]), (X + number)[[3, 1]])
        del data, feed
        gc.collect()
        assert not convert._columns, "a data set that nobody uses any more is not kept"


def test_decorated_readers_and_sequences_feed_whole_rows(trainer):
    """Check that decorated readers and sequences feed whole rows, because they cannot feed row numbers."""
    data = reader.arrays((X, LABELS), 8, on_device=True)
    expected = float(trainer.test(reader.arrays((X[:16], LABELS[:16]), 8))["loss"])
    assert float(trainer.test(reader.firstn(data, 2))["loss"]) == pytest.approx(expected, rel=1e-6)

    def sequences():
        words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
        return fluid.layers.mean(fluid.layers.sequence_pool(fluid.layers.embedding(words, size=[9, 2]), "sum"))

    ids = np.arange(12).reshape(4, 3) % 9
    made = fluid.Trainer(sequences, fluid.optimizer.SGD(0.1))
    feeds = [reader.arrays({"words": ids}, 2, on_device=there) for there in (False, True)]
    assert float(made.test(feeds[0])[0]) == float(made.test(feeds[1])[0])
