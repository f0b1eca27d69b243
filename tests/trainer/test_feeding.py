"""Sequences as feeds of a training: few compilations for any lengths, and reports of compilations and padding."""

import logging

import numpy as np
import pytest
from compile_counts import counted

import fluid
from fluid import errors, reader

RNG = np.random.default_rng(0)
SENTENCES = [(RNG.integers(0, 9, n), RNG.integers(0, 9, m), n % 2) for n, m in RNG.integers(1, 401, (5000, 2))]
ALIKE = [(words, words[: 1 + len(words) // 2], label) for words, _, label in SENTENCES]


def program(*feeds):
    def train_program():
        parts = []
        for column, name in enumerate(feeds):
            words = fluid.layers.data(name, shape=[1], dtype="int64", lod_level=1, column=column)
            parts.append(fluid.layers.sequence_pool(fluid.layers.embedding(words, [9, 2]), "average"))
        label = fluid.layers.data("label", shape=[1], dtype="int64")
        prediction = fluid.layers.fc(parts, size=2, act="softmax")
        return fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))

    return train_program


def epochs_of(trainer, rows, num_epochs=1, **options):
    ends = []
    end = lambda e: ends.append(e) if isinstance(e, fluid.EndEpochEvent) else None  # noqa: E731
    trainer.train(rows, num_epochs=num_epochs, event_handler=end, **options)
    return ends


@pytest.mark.sample(3)
@pytest.mark.parametrize("group", [False, True], ids=["shuffled", "grouped"])
@pytest.mark.parametrize(
    "feeds, rows", [(["one"], [row[::2] for row in SENTENCES]), (["one", "two"], SENTENCES), (["one", "two"], ALIKE)]
)
def test_5000_sentences_compile_at_most_8_programs(feeds, rows, group):
    rows = reader.shuffle(rows, 5000, seed=1)
    made = reader.bucket_by_length(rows, 64) if group else reader.batch(rows, 64)  # the last minibatch has 8 rows
    trainer = fluid.Trainer(program(*feeds), fluid.optimizer.SGD(0.1))
    with counted() as compiled:
        ends = epochs_of(trainer, made, num_epochs=2)
    assert len(compiled) == len(trainer.session.compilations) == sum(end.compiled for end in ends) <= 8
    assert [end.steps for end in ends] == [79, 79]
    # If all rows were padded to the longest row, about half of the data would be padding.
    assert ends[1].padding < (0.56 if not group else 0.53 if len(feeds) == 2 else 0.4)


def test_epoch_end_reports_compilations_and_padding(caplog):
    rows = [[([1, 2, 3], 0), ([4], 1)], [([1], 0), ([1, 2], 1)], [([5, 6], 1)]]
    trainer = fluid.Trainer(program("one"), fluid.optimizer.SGD(0.1), buckets=[4])
    with caplog.at_level(logging.INFO, "fluid"):
        first, second = epochs_of(trainer, rows, num_epochs=2)
    assert (first.compiled, second.compiled) == (2, 0)
    assert first.padding == second.padding == 1 - 9 / 20
    said = [record.getMessage() for record in caplog.records]
    assert [m for m in said if "epoch 0" in m and "2 programs compiled, 55% padding" in m]
    assert [m for m in said if "epoch 1" in m and m.endswith("55% padding") and "compiled" not in m]


def test_training_without_sequences_reports_no_padding():
    def train_program():
        return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))

    first, second = epochs_of(
        fluid.Trainer(train_program, fluid.optimizer.SGD(0.1)), reader.arrays((np.ones((4, 2), "float32"),), 2), 2
    )
    assert (first.compiled, first.padding, first.feeding) == (1, None, "1 program compiled")
    assert (second.compiled, second.padding, second.feeding) == (0, None, "")


def test_padding_does_not_change_trained_parameters():
    rows = reader.batch([row[::2] for row in SENTENCES[:64]], 16)
    learnt = []
    for options in ({}, {"buckets": [512]}, {"buckets": {"one": [100, 401]}}, {"max_compilations": 1}):
        trainer = fluid.Trainer(program("one"), fluid.optimizer.SGD(0.5), **options)
        trainer.train(rows, num_epochs=3)
        learnt.append(trainer.params)
    for params in learnt[1:]:
        for name, value in params.items():
            np.testing.assert_allclose(value, learnt[0][name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("known", "kinds"), [(True, 2), (False, 3)], ids=["known to come", "as they come"])
def test_stopped_training_continues_to_the_same_bits(known, kinds, tmp_path):
    """Check that a resumed training pads as an uninterrupted one, because other padding rounds sums differently."""

    def train(folder, stop=None):
        trainer = fluid.Trainer(
            program("one"), fluid.optimizer.Adam(0.1), checkpoint_config=fluid.CheckpointConfig(str(folder))
        )
        padded = []

        def on_event(event):
            if isinstance(event, fluid.BeginStepEvent):
                padded.append(event.feed["one"].shape)
                if len(padded) == stop:
                    trainer.stop()

        rows = reader.shuffle([row[::2] for row in SENTENCES[:300]], 300, seed=2)
        grouped = reader.bucket_by_length(rows, 8)
        # A function that yields plain lists does not announce the sequence lengths of its next minibatches.
        given = grouped if known else lambda: map(list, grouped())
        trainer.train(given, num_epochs=2, event_handler=on_event)
        return padded, trainer.params

    whole, want = train(tmp_path / "whole")
    first, _ = train(tmp_path / "parts", stop=17)
    second, got = train(tmp_path / "parts")
    assert len(first) == 17 and first + second == whole and len(set(whole)) >= kinds
    assert all(np.array_equal(got[name], value) for name, value in want.items())


def test_row_longer_than_largest_bucket_is_named():
    trainer = fluid.Trainer(program("one"), fluid.optimizer.SGD(0.1), buckets=[4, 8])
    with pytest.raises(errors.FeedError, match="'one', sample 1, batch 1: found a row of 9 steps.*the largest bucket"):
        trainer.train([[([1], 0)], [([1], 0), ([1] * 9, 1)]])


@pytest.mark.parametrize(
    "options, kind, words",
    [
        ({"buckets": [8, 4]}, errors.ArgumentError, "increasing sizes"),
        ({"buckets": {"label": [4]}}, errors.UnknownNameError, "'label'.*Known names: 'one'"),
        ({"max_compilations": 0}, errors.ArgumentError, "max_compilations=0"),
    ],
)
def test_wrong_settings_fail_at_construction(options, kind, words):
    for make in (
        lambda: fluid.Trainer(program("one"), fluid.optimizer.SGD(0.1), **options),
        lambda: fluid.Session(program("one"), **options),
    ):
        with pytest.raises(kind, match=words):
            make()


def test_session_keeps_to_its_compilation_budget():
    def pool():
        return fluid.layers.sequence_pool(fluid.layers.data("x", shape=[1], lod_level=1), "sum")

    session = fluid.Session(pool, max_compilations=3)
    for n in np.random.default_rng(0).integers(1, 200, 60):
        (got,) = session.run(feed={"x": [[1.0] * int(n), [2.0]]})
        assert got.ravel().tolist() == [n, 2]
    assert len(session.compilations) <= 3

    def other():
        return fluid.layers.sequence_pool(fluid.layers.data("y", shape=[1], lod_level=1), "sum")

    both = fluid.Session(pool, other, buckets={"x": [7], "y": [3, 9]})
    (wider,) = both.run("other", {"y": [[1.0] * 4]}, fetch=["y"])
    assert wider.shape == (1, 9, 1)


def test_inferencer_pads_to_powers_of_two_or_buckets():
    def double():
        return fluid.layers.data("x", shape=[1], lod_level=1) * 2

    inferencer = fluid.Inferencer(double, params={})
    for n in (300, 3, 9, 300):
        (got,) = inferencer.infer({"x": [[1.0] * n]})
        assert got.shape[1] == max(4, 2 ** int(np.ceil(np.log2(n)))) and got.rows()[0].ravel().tolist() == [2] * n
    told = fluid.Inferencer(double, params={}, buckets=[5, 50])
    assert told.infer({"x": [[1.0] * 6]})[0].shape == (1, 50, 1)
    with pytest.raises(errors.FeedError, match="'x', sample 0: found a row of 51 steps"):
        told.infer({"x": [[1.0] * 51]})
