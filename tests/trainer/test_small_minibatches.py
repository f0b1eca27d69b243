"""Small minibatches of arrays: reading and checking many at once has the same results as one after another."""

import numpy as np
import pytest

import fluid
from fluid import errors, layers

ROWS, BATCH, CLASSES = 50, 4, 5
RANDOM = np.random.default_rng(0)
# fluid must convert X from float64 to float32, and LABELS from the shape [rows] to [rows, 1].
X = RANDOM.normal(size=(ROWS, 3))
LABELS = RANDOM.integers(0, CLASSES, ROWS)


def program():
    x, label = layers.data("x", shape=[3]), layers.data("label", shape=[1], dtype="int64")
    return layers.mean(layers.cross_entropy(layers.fc(layers.dropout(x, 0.2), size=CLASSES, act="softmax"), label))


def trainer():
    return fluid.Trainer(program, fluid.optimizer.Adam(0.01), seed=1)


def arrays(x=X, labels=LABELS, **options):
    return fluid.reader.arrays({"x": x, "label": labels}, batch_size=BATCH, **options)


def rows_of(made):
    """Return a plain function with the minibatches of `made`, which fluid must read one after another."""
    return lambda: iter(made())


def trained(reader, handler=lambda event: None, epochs=3):
    """Train; return the parameters, the list of all feeds, and the list of all losses."""
    mine, feeds, losses = trainer(), [], []

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent):
            feeds.append({n: np.array(a) for n, a in event.feed.items()})
        if isinstance(event, fluid.EndStepEvent):
            losses.append(float(event.metrics[0]))
        handler(event)

    mine.train(reader, num_epochs=epochs, event_handler=on_event)
    return {n: np.asarray(a) for n, a in mine.params.items()}, feeds, losses


@pytest.mark.parametrize("options", [{}, {"shuffle": True, "seed": 3}, {"drop_last": True}])
def test_batched_reading_equals_reading_minibatch_by_minibatch(options):
    (params, feeds, losses), (others, fed, lost) = trained(arrays(**options)), trained(rows_of(arrays(**options)))
    assert losses == lost and len(feeds) == len(fed) == 3 * (ROWS // BATCH + (not options.get("drop_last")))
    for one, other in zip(feeds, fed, strict=True):
        assert {n: (a.dtype, a.shape) for n, a in one.items()} == {n: (a.dtype, a.shape) for n, a in other.items()}
        assert all(np.array_equal(one[n], other[n]) for n in one)
    assert all(np.array_equal(params[n], others[n]) for n in params)
    assert list(trainer().test(arrays(**options))) == list(trainer().test(rows_of(arrays(**options))))


@pytest.mark.parametrize("row, batch, sample", [(0, 0, 0), (26, 6, 2), (ROWS - 1, ROWS // BATCH, 1)])
def test_bad_label_raises_in_its_step(row, batch, sample):
    labels = LABELS.copy()
    labels[row] = CLASSES
    ended = []
    with pytest.raises(
        errors.FeedError, match=rf"feed 'label', sample {sample}, batch {batch}: found the value {CLASSES}"
    ):
        trained(arrays(labels=labels), lambda event: ended.append(event) if type(event) is fluid.EndStepEvent else None)
    assert len(ended) == batch


def test_array_changes_do_not_reach_rows_already_read():
    x = X.astype("float32")
    _, expected, _ = trained(arrays(x.copy()), epochs=1)

    def spoil(event):
        if isinstance(event, fluid.EndStepEvent) and event.step == 0:
            x[: 2 * BATCH] = np.nan

    _, feeds, _ = trained(arrays(x), spoil, epochs=1)
    assert all(np.array_equal(feeds[i]["x"], expected[i]["x"]) for i in range(2))


def test_feed_changed_in_place_leaves_the_data_unchanged():
    def double(event):
        if isinstance(event, fluid.BeginStepEvent):
            event.feed["x"][:] *= 2

    x = X.astype("float32")
    _, _, losses = trained(arrays(x), double)
    _, _, expected = trained(arrays(2 * x))
    assert losses == expected and np.array_equal(x, X.astype("float32"))


def test_a_feed_without_a_batch_dimension_stays_whole():
    def program():
        x, shared = layers.data("x", shape=[3]), layers.data("shared", shape=[BATCH, 3], append_batch_size=False)
        return layers.mean(layers.fc(x, size=1)) * layers.mean(shared)

    shared = np.repeat(np.array([[0.0], [1.0]]), BATCH, axis=0) * np.ones(3)
    seen = []

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent):
            seen.append(np.array(event.feed["shared"]))

    reader = fluid.reader.arrays({"x": X[: 2 * BATCH], "shared": shared}, batch_size=BATCH)
    fluid.Trainer(program, fluid.optimizer.SGD(0.1)).train(reader, event_handler=on_event)
    assert [s.tolist() for s in seen] == [np.zeros((BATCH, 3)).tolist(), np.ones((BATCH, 3)).tolist()]
