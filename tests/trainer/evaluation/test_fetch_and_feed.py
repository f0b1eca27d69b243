"""The arguments `fetch` and `feed` of `test` and `predict`: `fetch` returns named values, and `feed` replaces them."""

import numpy as np
import pytest

import fluid
from fluid import errors, layers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(23, 3)).astype("float32")
Y = RNG.normal(size=(23, 1)).astype("float32")
WORDS = [RNG.integers(0, 9, int(n)) for n in RNG.integers(1, 12, 23)]


def inference_program():
    hidden = layers.fc(layers.data("x", shape=[3]), size=4, act="tanh", name="hidden")
    return layers.fc(hidden, size=1, name="guess")


def program():
    difference = layers.square(inference_program() - layers.data("y", shape=[1]), name="squares")
    return {"loss": layers.mean(difference), "largest": layers.reduce_max(difference, name="max")}


@pytest.fixture(scope="module")
def trainer():
    return fluid.Trainer(program, fluid.optimizer.SGD(0.1))


@pytest.fixture(scope="module")
def inferencer(trainer):
    return fluid.Inferencer(inference_program, params=trainer.params)


def data(batch_size=8):
    return fluid.reader.arrays({"x": X, "y": Y}, batch_size=batch_size)


def by_hand(params, hidden=None):
    """Compute the net with NumPy, and return all values by name; if `hidden` is given, it replaces the hidden layer."""
    params = {name: np.asarray(value) for name, value in params.items()}
    hidden = np.tanh(X @ params["hidden.w_0"] + params["hidden.b_0"]) if hidden is None else hidden
    guess = hidden @ params["guess.w_0"] + params["guess.b_0"]
    squares = (guess - Y) ** 2
    return {"hidden": hidden, "guess": guess, "squares": squares, "loss": squares.mean(), "max": squares.max()}


def test_fetched_values_cover_the_whole_data_set(trainer):
    expected = by_hand(trainer.params)
    found = trainer.test(data(), fetch=["loss", "hidden", "squares", "max", "largest", "guess.w_0", "y"])
    assert found.keys() == ["loss", "hidden", "squares", "max", "largest", "guess.w_0", "y"]
    for name in ("loss", "hidden", "squares", "max"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5, atol=1e-6)
    assert found["largest"] == found["max"] and np.array_equal(found["y"], Y)
    np.testing.assert_array_equal(found["guess.w_0"], trainer.params["guess.w_0"])


def test_the_size_of_minibatches_makes_no_difference(trainer):
    first, second = (trainer.test(data(size), fetch=["loss", "max", "guess"]) for size in (5, 23))
    for name in first.keys():
        np.testing.assert_allclose(first[name], second[name], rtol=1e-6, atol=1e-7)


def test_fetch_by_glob_combines_with_metrics(trainer):
    class Count(fluid.metrics.MetricBase):
        def reset(self):
            self.rows = 0

        def update(self, values):
            self.rows += len(values)

        def eval(self):
            return self.rows

    found = trainer.test(data(), fetch="hidden.tmp_*", metrics={"rows": Count().of(values="guess")})
    assert found.keys() == ["hidden.tmp_0", "hidden.tmp_1", "hidden.tmp_2", "rows"]
    assert all(value.shape == (23, 4) for value in found[:3]) and found["rows"] == 23


def test_means_over_sequences_stay_weighted_by_their_steps():
    def of_words():
        words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
        vectors = layers.embedding(words, [9, 2], name="table")
        return layers.mean(layers.identity(layers.mean(vectors), name="average") * 3.0)

    mine = fluid.Trainer(of_words, fluid.optimizer.SGD(0.1))
    reader = fluid.reader.batch([(words,) for words in WORDS], 4)
    table = np.asarray(mine.params["table.w_0"], "float64")
    found = mine.test(reader, fetch=["average", "table"])
    assert found["average"] == pytest.approx(table[np.concatenate(WORDS)].mean(), rel=1e-4)
    np.testing.assert_allclose(found["table"].rows()[7], table[WORDS[7]], rtol=1e-6)


def test_fed_values_replace_any_value(trainer, inferencer):
    weight = np.full((3, 4), 0.5, "float32")
    for feed, hidden in (({"hidden": 0.25}, 0.25), ({"hidden.w_0": weight, "hidden.b_0": 0.0}, np.tanh(X @ weight))):
        expected = by_hand(trainer.params, np.broadcast_to(hidden, (23, 4)))
        found = trainer.test(data(), feed=feed)
        assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
        assert found["largest"] == pytest.approx(expected["max"], rel=1e-5)
        for mine, order in ((trainer, None), (inferencer, ["x"])):
            got = [results["guess"] for results in mine.predict(data(), "guess", order, feed=feed)]
            np.testing.assert_allclose(np.concatenate(got), expected["guess"], rtol=1e-5, atol=1e-6)
    untouched = trainer.test(data())
    assert untouched["loss"] == pytest.approx(by_hand(trainer.params)["loss"], rel=1e-5)


def test_fed_columns_need_not_be_read(trainer):
    without = fluid.reader.arrays({"y": Y[:16]}, batch_size=8)
    same = np.tile(X[:1], (8, 1))
    found = trainer.test(without, fetch=["x", "hidden"], feed={"x": same})
    np.testing.assert_array_equal(found["x"], np.tile(X[:1], (16, 1)))
    guesses = list(trainer.predict(without, fetch="guess", feed={"hidden": np.zeros((8, 4))}))
    assert len(guesses) == 2
    np.testing.assert_allclose(guesses[0]["guess"], np.tile(trainer.params["guess.b_0"], (8, 1)))


def test_infer_broadcasts_a_scalar_feed_to_rows(inferencer):
    np.testing.assert_allclose(
        inferencer.infer({"x": X[:3], "hidden": 0.0}, fetch=["guess"])[0],
        np.tile(inferencer.session.scope["guess.b_0"], (3, 1)),
    )


def test_scalar_without_batch_feeds_raises_feed_error(inferencer):
    with pytest.raises(errors.FeedError, match="needs the feed 'x'"):
        inferencer.session.run(feed={"hidden": 0.0}, fetch=["guess"])
    inferencer.session.run(feed={"hidden": np.zeros((2, 4)), "guess.w_0": 0.0}, fetch=["guess"])


def test_repeated_fetch_and_feed_compile_nothing(trainer):
    trainer.test(data(23))
    trainer.test(data(23), fetch=["squares"], feed={"hidden": 1.0})
    before = len(trainer.session.compilations)
    trainer.test(data(23))
    trainer.test(data(23), fetch=["squares"], feed={"hidden": 2.0})
    assert len(trainer.session.compilations) == before


@pytest.mark.parametrize(
    "options, error, match",
    [
        ({"fetch": "hiden*"}, errors.UnknownNameError, r"matches 'hiden\*'. Did you mean 'hidden"),
        ({"fetch": ["los"]}, errors.UnknownNameError, "Did you mean 'loss'"),
        ({"feed": {"hiden": 0.0}}, errors.UnknownNameError, "Did you mean 'hidden'"),
        ({"feed": {"hidden": np.zeros((8, 5))}}, errors.FeedError, r"\[8, 5\]"),
        ({"feed": [0.0]}, errors.ArgumentTypeError, "dict of arrays"),
    ],
)
def test_wrong_fetch_or_feed_raises_named_error(trainer, inferencer, options, error, match):
    for mine in (trainer, inferencer):
        if isinstance(options.get("fetch"), list) and mine is inferencer:
            continue  # the program of the Inferencer has no loss
        with pytest.raises(error, match=match):
            list(mine.predict(data(), feed_order=["x", "y"] if mine is trainer else ["x"], **options))
    with pytest.raises(error, match=match):
        trainer.test(data(), **options)


def test_gradients_come_per_minibatch_from_predict(trainer):
    with pytest.raises(errors.UnknownNameError, match=r"trainer.predict\(reader, fetch=\['guess.w_0@GRAD'\]\)"):
        trainer.test(data(), fetch="guess.w_0@GRAD")
    gradients = [r[0] for r in trainer.predict(data(), fetch="guess.w_0@GRAD")]
    values = by_hand(trainer.params)
    slope = 2 * (values["guess"] - Y)[:8] / 8
    np.testing.assert_allclose(gradients[0], values["hidden"][:8].T @ slope, rtol=1e-4, atol=1e-5)
