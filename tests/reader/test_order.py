"""Order of fields and rows: matching by order warns, rows keep their order, readers do not change the data."""

import collections
import copy
import warnings

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import fluid
from fluid import errors, layers, reader

X = np.arange(32, dtype="float32").reshape(8, 4)
SGD = fluid.optimizer.SGD(0.01)


def like(**options):
    def program():
        y = layers.data("y", shape=[4])
        x = layers.data("x", shape=[4], **options)
        return {"loss": layers.mean(layers.square_error_cost(layers.fc(x, size=4, name="h"), y))}

    return program


def regression():
    y = layers.data("y", shape=[1])
    x = layers.data("x", shape=[4])
    return layers.mean(layers.square_error_cost(layers.fc(x, size=1, name="h"), y))


def warned(function):
    """Return the texts of all warnings of a call."""
    with warnings.catch_warnings(record=True, action="always") as caught:
        function()
    return [str(one.message) for one in caught]


ROWS = [(row, -row) for row in X]
BY_ORDER = {
    "tuples of columns": lambda: [(X, -X)],
    "lists of columns": lambda: [[X, -X]],
    "arrays": lambda: reader.arrays((X, -X), batch_size=2),
    "arrays on the device": lambda: reader.arrays((X, -X), batch_size=2, on_device=True),
    "rows": lambda: reader.batch(ROWS, 4),
    "grouped rows": lambda: reader.bucket_by_length(ROWS, 4),
}
BY_NAME = {
    "columns": lambda: [{"x": X, "y": -X}],
    "arrays": lambda: reader.arrays({"x": X, "y": -X}, batch_size=2),
    "rows": lambda: reader.batch([{"x": x, "y": y} for x, y in ROWS], 4),
}


@pytest.mark.parametrize("made", BY_ORDER)
def test_alike_feeds_matched_by_order_warn_once(made):
    trainer = fluid.Trainer(like(), SGD)
    (text,) = warned(lambda: trainer.train(BY_ORDER[made](), num_epochs=2))
    assert "'y' and 'x' are alike (declared at" in text and text.count("test_order.py:") == 2
    assert "field 0 is read as 'y'" in text and "feed_order=['y', 'x']" in text
    assert not warned(lambda: trainer.train(BY_ORDER[made]()))
    assert not warned(lambda: trainer.test([(X, -X)]))
    assert warned(lambda: fluid.Trainer(like(), SGD).test([(X, -X)]))


@pytest.mark.parametrize("made", BY_ORDER)
def test_an_explicit_order_does_not_warn(made):
    fluid.Trainer(like(), SGD).train(BY_ORDER[made](), feed_order=["y", "x"])
    fluid.Trainer(like(), SGD).train(BY_ORDER[made](), feed_order={"y": 1, "x": 0})
    fluid.Trainer(like(column=1), SGD).train(BY_ORDER[made]())


@pytest.mark.parametrize("made", BY_NAME)
def test_named_columns_do_not_warn(made):
    fluid.Trainer(like(), SGD).train(BY_NAME[made]())


def test_different_feeds_and_single_feeds_do_not_warn():
    fluid.Trainer(regression, SGD).train([(X[:, :1], X)])
    fluid.Trainer(like(dtype="int64"), SGD).train([(X, X.astype(int))])
    single = fluid.Trainer(lambda: layers.mean(layers.fc(layers.data("x", shape=[4]), size=1)), SGD)
    single.train([(X,)])


def test_tuples_in_other_calls_warn():
    params = fluid.Trainer(like(), SGD).params
    session = fluid.Session(like())
    assert warned(lambda: list(fluid.Inferencer(like(), params=params).predict([(X, -X)])))
    assert warned(lambda: list(reader.prefetch([(X, -X)], session)))
    assert warned(lambda: list(fluid.Trainer(like(), SGD).predict([(X, -X)], fetch="h.tmp_0")))
    assert warned(lambda: fluid.find_learning_rate(like(), [(X, -X)], SGD, steps=2))


def test_rows_of_a_single_field_do_not_warn():
    def program():
        x = layers.data("x", shape=[4])
        y = layers.data("y", shape=[4])
        return layers.mean(layers.square_error_cost(layers.fc(x, size=4, name="h"), y))

    assert len(list(fluid.Trainer(program, SGD).predict([(X,)], fetch="h.tmp_0"))) == 1


@pytest.mark.parametrize("minibatch", [(X, X[:, :1]), [(row, row[:1]) for row in X]])
def test_a_tuple_error_names_a_fitting_order(minibatch):
    trainer = fluid.Trainer(regression, SGD)
    with pytest.raises(errors.FeedError, match=r"Field 0 of the tuple is read as 'y', because the program declares it"):
        trainer.train([minibatch])
    with pytest.raises(errors.FeedError, match=r"fields fit so: feed_order=\['x', 'y'\]$"):
        trainer.train([minibatch])
    with pytest.raises(errors.FeedError, match=r"feed_order= says to read field 0 as 'y'.*feed_order=\['x', 'y'\]$"):
        trainer.train([minibatch], feed_order=["y", "x"])
    trainer.train([minibatch], feed_order=["x", "y"])


def test_an_error_about_the_dtype_names_the_order():
    def program():
        label = layers.data("label", shape=[1], dtype="int64")
        x = layers.data("x", shape=[4])
        return layers.mean(layers.cross_entropy(layers.fc(x, size=3, act="softmax"), label))

    with pytest.raises(errors.FeedTypeError, match=r"read as 'label', .* fit so: feed_order=\['x', 'label'\]"):
        fluid.Trainer(program, SGD).train([(X, np.arange(8) % 3)])


def test_a_tuple_error_without_fitting_order_names_feed_order():
    with pytest.raises(errors.FeedError, match=r"declares it first; another order is said by name: feed_order="):
        fluid.Trainer(regression, SGD).train([(X[:, :1], X[:, :3])])
    with pytest.raises(errors.FeedError, match=r"different numbers of samples.*Field 0 of the tuple"):
        fluid.Trainer(regression, SGD).train([(X[:3, :1], X)])


def test_a_named_column_error_omits_feed_order():
    with pytest.raises(errors.FeedError) as caught:
        fluid.Trainer(regression, SGD).train([{"x": X[:, :3], "y": X[:, :1]}])
    assert "feed_order" not in str(caught.value)


RandomSampler = type("RandomSampler", (), {})


class Loader:
    """A stand-in for a torch DataLoader that shuffles."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        yield {"x": X, "y": X[:, :1]}


def shuffling():
    columns = {"x": X, "y": X[:, :1]}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return {
        "reader.arrays(shuffle=True)": reader.arrays(columns, 4, shuffle=True),
        "reader.shuffle(...)": reader.buffered(reader.batch(reader.shard(reader.shuffle(rows, 8), 1, 0), 4), 2),
        "Loader(shuffle=True)": Loader(RandomSampler()),
    }


@pytest.mark.parametrize("how", shuffling())
def test_shuffled_readers_of_predict_and_test_warn_once(how):
    trainer = fluid.Trainer(regression, SGD)
    infer = fluid.Inferencer(lambda: layers.fc(layers.data("x", shape=[4]), size=1, name="h"), params=trainer.params)
    source = shuffling()[how]
    (text,) = warned(lambda: [list(trainer.predict(source, fetch="h.tmp_0")) for _ in range(2)])
    assert f"predict shuffles, {how}" in text and "fetch=['prediction', 'label']" in text
    (text,) = warned(lambda: [trainer.test(source, fetch=["h.tmp_0"]) for _ in range(2)])
    assert f"test shuffles, {how}" in text
    # Training and tests return averages, which do not depend on the order, so nothing warns.
    trainer.train(source, num_epochs=2, handlers=[fluid.handlers.TestEvery(source)])
    trainer.test(source)
    again = shuffling()[how]
    assert len(warned(lambda: list(infer.predict(again, feed_order=["x"])))) == 1


def test_shuffled_files_warn(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=X[:, :1])
    trainer = fluid.Trainer(regression, SGD)
    rows = reader.batch(reader.files(str(tmp_path / "a.npz"), shuffle=True), 4)
    (text,) = warned(lambda: trainer.test(rows, fetch=["h.tmp_0"]))
    assert "reader.files(shuffle=True)" in text
    trainer.test(reader.batch(reader.files(str(tmp_path / "a.npz")), 4), fetch=["h.tmp_0"])


@pytest.mark.parametrize(
    "made",
    [
        lambda columns: reader.arrays(columns, 3, shuffle=True, drop_last=True),
        lambda columns: reader.firstn(reader.arrays(columns, 3, shuffle=True), 2),
    ],
)
def test_tests_on_varying_rows_warn_once(made):
    trainer = fluid.Trainer(regression, SGD)
    source = made({"x": X, "y": X[:, :1]})
    (text,) = warned(lambda: trainer.train(source, num_epochs=2, handlers=[fluid.handlers.TestEvery(source)]))
    assert "test shuffles, reader.arrays(shuffle=True)" in text and "each test is one of other data" in text
    with pytest.warns(errors.FluidWarning, match="shuffle of minibatches"):
        mixed = reader.shuffle(reader.arrays({"x": X, "y": X[:, :1]}, 3, drop_last=True), 3)
    trainer.test(mixed)


def test_identifiable_or_ordered_rows_do_not_warn():
    trainer = fluid.Trainer(regression, SGD)
    list(trainer.predict(shuffling()["reader.arrays(shuffle=True)"], fetch=["h.tmp_0", "y"]))
    list(trainer.predict(reader.arrays({"x": X}, 4), fetch="h.tmp_0"))
    list(trainer.predict(Loader(object()), fetch="h.tmp_0"))
    trainer.test(reader.bucket_by_length([{"x": x, "y": x[:1]} for x in X], 4))
    fluid.find_learning_rate(trainer, shuffling()["reader.arrays(shuffle=True)"], steps=2)


def test_bucketed_minibatches_warn_in_a_prediction():
    rows = reader.bucket_by_length([{"x": x} for x in X], 4)
    (text,) = warned(lambda: list(fluid.Trainer(regression, SGD).predict(rows, fetch="h.tmp_0")))
    assert "reader.bucket_by_length" in text


def test_only_the_error_of_training_mentions_shuffle():
    trainer = fluid.Trainer(regression, SGD)
    for method, said in ((trainer.predict, False), (trainer.test, False), (trainer.train, True)):
        with pytest.raises(errors.ArgumentTypeError, match=r"fluid.reader.arrays\(x, batch_size=32") as caught:
            method(X)
        assert ("shuffle" in str(caught.value)) == said


Pair = collections.namedtuple("Pair", "first second")
numbers = st.integers(-5, 5)
values = st.recursive(
    st.one_of(numbers, st.text(max_size=2), st.builds(np.full, st.integers(1, 3), numbers)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.dictionaries(st.sampled_from("ab"), inner),
    ),
    max_leaves=6,
)


def spoil(value):
    """Change every mutable part of a value in place, and return the value."""
    if isinstance(value, np.ndarray):
        value += 100
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            spoil(part)
    if isinstance(value, dict):
        value["new"] = 1
    if isinstance(value, list):
        value.append(1)
    return value


def same(one, other):
    np.testing.assert_equal(one, other)
    assert type(one) is type(other)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(values, min_size=1, max_size=4), cached=st.booleans(), threads=st.booleans(), size=st.integers(1, 3)
)
def test_a_map_in_place_keeps_the_readers_data(rows, cached, threads, size):
    before = copy.deepcopy(rows)
    source = reader.batch(reader.cache(rows) if cached else rows, size)
    mapped = reader.xmap(spoil, source, 2) if threads else reader.map(spoil, source)
    first = list(mapped())
    same(rows, before)
    same(list(mapped()), first)
    same([row for minibatch in first for row in minibatch[:-1]], [spoil(row) for row in before])


@pytest.mark.parametrize("data", [X, (X, -X), {"x": X}], ids=["array", "columns", "names"])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"on_device": True}], ids=str)
def test_a_map_in_place_keeps_arrays_and_passes(data, options):
    before = copy.deepcopy(data)

    def plus_one(minibatch):
        columns = list(minibatch.values()) if isinstance(minibatch, dict) else list(minibatch)
        if not options.get("on_device"):
            for column in columns:
                column += 1
        return columns

    mapped = reader.map(plus_one, reader.arrays(data, 4, **options))
    totals = [sum(float(np.sum(column)) for minibatch in mapped() for column in minibatch) for _ in range(2)]
    assert totals[0] == totals[1]
    same(data, before)
    assert X.flags.writeable


def doubled(row):
    row *= 2
    return row


def test_a_map_in_other_processes_changes_nothing():
    before = X.copy()
    assert np.array_equal(list(reader.xmap(doubled, list(X), processes=1)), 2 * before)
    assert np.array_equal(X, before)


def test_maps_keep_grouped_minibatches_and_copy_tensors():
    class Tensor:
        def __init__(self):
            self.value = 1

        def detach(self):
            return self

        def clone(self):
            return Tensor()

    kept = Tensor()
    ((grouped,),) = [list(reader.map(lambda rows: rows, reader.bucket_by_length([[1, 2], [3]], 2)))]
    assert type(grouped).__name__ == "Grouped" and grouped.longest == [1, 2]
    (copied,) = reader.map(lambda tensor: tensor, [kept])
    assert copied is not kept and type(copied) is Tensor


def noisy(row, rng):
    return row + rng.normal()


@pytest.mark.parametrize(
    "rows",
    [
        lambda: reader.map(noisy, X, seed=0),
        lambda: reader.batch(reader.shuffle(reader.map(noisy, X, seed=0), 4), 2),
        lambda: reader.xmap(noisy, X, 2, seed=0),
    ],
)
def test_a_cache_of_random_numbers_warns(rows):
    with pytest.warns(errors.FluidWarning, match=r"same ones.*reader\.map\(augment, reader\.cache\(rows\), seed=0\)"):
        reader.cache(rows())


def test_a_cache_of_deterministic_rows_does_not_warn():
    reader.map(noisy, reader.cache(reader.map(doubled, list(X))), seed=0)
    reader.shuffle(reader.cache(list(X)), 4)
    reader.cache(reader.firstn(reader.shuffle(list(X), 4), 2))  # a cached random sample is useful, so no warning


def test_a_cache_of_an_order_warns():
    for rows in (reader.shuffle(list(X), 4), reader.arrays(X, 2, shuffle=True)):
        with pytest.warns(errors.FluidWarning, match=r"every pass has the same one\. .*shuffle\(reader\.cache\(rows\)"):
            reader.cache(rows)


def test_a_seed_without_shuffle_warns(tmp_path):
    np.savez(tmp_path / "a.npz", x=X)
    path = str(tmp_path / "a.npz")
    (text,) = warned(lambda: reader.arrays(X, 2, seed=0))
    assert text.startswith("reader.arrays(seed=0) has no effect") and "shuffle=True, seed=0" in text
    (text,) = warned(lambda: reader.files(path, seed=3))
    assert text.startswith("reader.files(seed=3) has no effect")
    # An explicit `shuffle` causes no warning about the seed. One function of a user may read training data with
    # `shuffle=True` and test data with `shuffle=False`, and always set a seed.
    for shuffle in (False, True):
        reader.arrays(X, 2, shuffle, seed=3)
        reader.arrays(X, 2, shuffle=shuffle, seed=3)
        reader.files(path, shuffle=shuffle, seed=3)
    reader.arrays(X, 2, False, 3)


def test_a_shuffle_buffer_of_size_1_warns():
    (text,) = warned(lambda: reader.shuffle(list(X), 1))
    assert "leaves every row where it is" in text


def test_predict_with_drop_last_warns_once():
    trainer = fluid.Trainer(regression, SGD)
    rows = [{"x": x} for x in X]
    for source in (reader.arrays({"x": X}, len(X) - 1, drop_last=True), reader.batch(rows, 3, drop_last=True)):
        (text,) = warned(lambda source=source: [list(trainer.predict(source, fetch="h.tmp_0")) for _ in range(2)])
        assert text.startswith("the reader of predict has drop_last=True")
    list(trainer.predict(reader.arrays({"x": X}, len(X) // 2, drop_last=True), fetch="h.tmp_0"))  # no row is dropped
    list(trainer.predict(reader.arrays({"x": X}, len(X) - 1, drop_last=True), fetch=["h.tmp_0", "x"]))


@pytest.mark.parametrize("rows", [fluid.reader.arrays, lambda data, batch_size: by_rows(data, batch_size)])
def test_rows_sorted_by_class_warn_once_in_training(rows):
    def program():
        x = layers.data("x", shape=[2])
        label = layers.data("label", shape=[1], dtype="int64")
        return layers.mean(layers.cross_entropy(layers.fc(x, size=3, act="softmax"), label))

    def data(labels):
        return {"x": np.ones((48, 2), "float32"), "label": labels.reshape(48, 1)}

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    in_turn = np.arange(48) % 3
    for fine in (in_turn, np.zeros(48, int), np.r_[np.zeros(40, int), in_turn[:8]]):
        trainer.train(rows(data(fine), batch_size=8), num_epochs=2)
    with pytest.warns(errors.FluidWarning, match="one value of 'label' alone, first 0, then 1") as found:
        trainer.train(rows(data(np.sort(in_turn)), batch_size=8), num_epochs=2)
    assert len(found) == 1
    trainer.test(rows(data(np.sort(in_turn)), batch_size=8))


def by_rows(data, batch_size):
    return fluid.batch([dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)], batch_size)
