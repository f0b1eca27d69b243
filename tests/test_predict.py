"""`predict` of Trainer and Inferencer: the results of a data set in the order of the reader, in bounded memory."""

import jax
import numpy as np
import pytest

import fluid
from fluid import errors, layers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 3)).astype("float32")
Y = RNG.integers(0, 4, (23, 1))
WORDS = [RNG.integers(0, 9, int(n)) for n in RNG.integers(1, 12, 23)]


def inference_program():
    return layers.fc(layers.data("x", shape=[3]), size=4, act="softmax", name="guess")


def train_program():
    label = layers.data("label", shape=[1], dtype="int64")
    return layers.mean(layers.cross_entropy(inference_program(), label))


def word_program():
    words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
    return {"doubled": layers.embedding(words, [9, 2], name="table") * 2}


def word_train_program():
    return layers.reduce_mean(layers.sequence_pool(word_program()["doubled"], "sum"))


@pytest.fixture(scope="module")
def trainer():
    return fluid.Trainer(train_program, fluid.optimizer.SGD(0.1))


@pytest.fixture(scope="module")
def inferencer(trainer):
    return fluid.Inferencer(inference_program, params=trainer.params)


def expected(trainer):
    """Compute the predictions of the trained softmax classifier with NumPy."""
    params = {name: np.asarray(value) for name, value in trainer.params.items()}
    logits = X @ params["guess.w_0"] + params["guess.b_0"]
    exp = np.exp(logits - logits.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True)


def both(trainer, inferencer):
    """Return `Trainer.predict` and `Inferencer.predict`, as functions from reader and feed_order to predictions."""
    return [
        lambda reader, order=None: [r["guess"] for r in trainer.predict(reader, fetch="guess", feed_order=order)],
        lambda reader, order=None: [r[0] for r in inferencer.predict(reader, feed_order=order)],
    ]


def test_predict_returns_results_by_minibatch_in_order(trainer, inferencer):
    reader = fluid.reader.arrays({"x": X}, batch_size=8)
    for predict in both(trainer, inferencer):
        found = predict(reader)
        assert [type(part) for part in found] == [np.ndarray] * 3 and [len(part) for part in found] == [8, 8, 7]
        np.testing.assert_allclose(np.concatenate(found), expected(trainer), rtol=1e-5, atol=1e-6)


def test_predict_accepts_training_minibatches_with_labels(trainer):
    rows = [{"x": x, "label": y} for x, y in zip(X, Y, strict=True)]
    by_name = fluid.reader.arrays({"label": Y, "x": X}, batch_size=8)
    in_order = fluid.reader.arrays((Y, X), batch_size=8)
    for reader in (by_name, in_order, fluid.reader.batch(rows, 8)):
        found = np.concatenate([r["guess"] for r in trainer.predict(reader, fetch=["guess"])])
        np.testing.assert_allclose(found, expected(trainer), rtol=1e-5, atol=1e-6)


def test_an_inferencer_ignores_the_label_on_request(trainer, inferencer):
    by_name = fluid.reader.arrays({"label": Y, "x": X}, batch_size=8)
    in_order = fluid.reader.arrays((Y, X), batch_size=8)
    with pytest.raises(errors.UnknownNameError, match=r"found 'label'.*feed_order=\['x'\]"):
        next(inferencer.predict(by_name))
    for reader, order in ((by_name, ["x"]), (in_order, {"x": 1})):
        found = np.concatenate([r[0] for r in inferencer.predict(reader, feed_order=order)])
        np.testing.assert_allclose(found, expected(trainer), rtol=1e-5, atol=1e-6)


def test_without_fetch_the_outputs_are_given(trainer):
    reader = fluid.reader.arrays({"x": X, "label": Y}, batch_size=23)
    ((loss,),) = trainer.predict(reader)
    picked = expected(trainer)[np.arange(23), Y[:, 0]]
    np.testing.assert_allclose(loss, -np.log(picked).mean(), rtol=1e-5)


def test_predict_reads_a_minibatch_ahead_and_frees_results(trainer, inferencer):
    """Check that `predict` reads one minibatch beyond the returned results, and keeps no results on the device."""
    read = []

    def endless():
        while True:
            read.append(len(read))
            yield {"x": X[:4] + len(read)}

    for results in (trainer.predict(endless, fetch="guess"), inferencer.predict(endless)):
        read.clear()
        for given in range(1, 30):
            next(results)
            assert len(read) == given + 1
        results.close()
    live = len(jax.live_arrays())
    results = trainer.predict(endless, fetch="guess")
    counts = [len(jax.live_arrays()) for _, _ in zip(range(20), results, strict=False)]
    results.close()
    assert max(counts) - live < 8, "nothing is kept on the device either"


def test_reading_starts_at_the_first_result_and_closes(trainer):
    events = []

    def reader():
        events.append("opened")
        try:
            yield {"x": X[:4]}
            yield {"x": X[4:8]}
        finally:
            events.append("closed")

    results = trainer.predict(reader, fetch="guess")
    assert not events
    next(results)
    results.close()
    assert events == ["opened", "closed"]


def test_wrong_predict_arguments_fail_before_iteration(trainer, inferencer):
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'guess'"):
        trainer.predict(fluid.reader.arrays({"x": X}, 8), fetch="gues")
    with pytest.raises(errors.ArgumentTypeError, match=r"predict needs a reader: trainer.predict\(reader="):
        trainer.predict(None)
    with pytest.raises(errors.ArgumentTypeError, match=r"found arrays.*reader=fluid.reader.arrays\(x, batch_size=32"):
        trainer.predict(X, fetch="guess")
    for data in (X, {"x": X}):
        with pytest.raises(errors.ArgumentTypeError, match=r"inferencer.infer\(data\).*predict\(fluid.reader.arrays"):
            inferencer.predict(data)


def test_reader_error_is_raised_at_its_minibatch(trainer):
    def broken():
        yield {"x": X[:4]}
        raise OSError("no disk")

    results = trainer.predict(broken, fetch="guess")
    assert next(results)["guess"].shape == (4, 4)
    with pytest.raises(OSError, match="no disk"):
        next(results)


def test_sequences_are_predicted_too():
    session = fluid.Session(word_program, seed=3)
    table = np.asarray(session.params()["table.w_0"])
    trainer = fluid.Trainer(word_train_program, fluid.optimizer.SGD(0.1))
    trainer.session.load_params(session.params())
    reader = fluid.reader.batch([(words,) for words in WORDS], 5)
    kinds = (
        (fluid.Inferencer(word_program, params=session.params()).predict(reader), "doubled", 2),
        (trainer.predict(reader, fetch="table"), "table", 1),
    )
    for results, fetched, factor in kinds:
        rows = [row for part in results for row in part[fetched].rows()]
        assert len(rows) == 23
        for row, words in zip(rows, WORDS, strict=True):
            np.testing.assert_allclose(row, factor * table[words], rtol=1e-6)


def test_an_exported_model_predicts(trainer, in_tmp):
    trainer.save_inference_model("model.fluid", fetch=["guess"])
    exported = fluid.Inferencer(param_path="model.fluid")
    found = [r["guess"] for r in exported.predict(fluid.reader.arrays((Y, X), 8), feed_order={"x": 1})]
    np.testing.assert_allclose(np.concatenate(found), expected(trainer), rtol=1e-5, atol=1e-6)


def test_handler_can_predict_during_training(trainer):
    found = []

    def at_the_end(event):
        if isinstance(event, fluid.EndEpochEvent):
            found.append(sum(len(r["guess"]) for r in mine.predict(fluid.reader.arrays({"x": X}, 8), fetch="guess")))

    mine = fluid.Trainer(train_program, fluid.optimizer.SGD(0.1))
    mine.train(fluid.reader.arrays({"x": X, "label": Y}, 8), num_epochs=2, handlers=at_the_end)
    assert found == [23, 23] and int(mine.session.scope.step) == 6


def test_results_that_are_read_twice_are_warned_of(trainer):
    results = trainer.predict(fluid.reader.arrays({"x": X}, batch_size=20), fetch="guess", feed_order=["x"])
    assert iter(results) is results and len(list(results)) == 2
    with pytest.warns(
        errors.FluidWarning, match=r"second time, and there are none.*list\(trainer\.predict\(reader\)\)"
    ):
        assert not list(results)
