"""Misuse of readers and results: each error names the call that works."""

import warnings

import numpy as np
import pytest
from scipy.sparse import csr_array, csr_matrix

import fluid
from fluid import errors, layers, reader

X = np.ones((8, 4), "float32")
SGD = fluid.optimizer.SGD(0.01)


def program():
    return layers.mean(layers.fc(layers.data("x", shape=[4]), size=1, name="h"))


def outputs():
    return {"p": layers.fc(layers.data("x", shape=[4]), size=1, name="h")}


@pytest.fixture
def trainer():
    return fluid.Trainer(program, SGD)


@pytest.fixture
def inferencer(trainer):
    return fluid.Inferencer(outputs, params=trainer.params)


def arrays():
    return reader.arrays(X, batch_size=4)


def test_a_reader_has_no_length_and_is_true():
    with pytest.raises(errors.ArgumentTypeError, match=r"sum\(1 for _ in reader\(\)\)"):
        len(arrays())
    assert arrays() and len(list(arrays())) == 2


def test_separate_columns_are_refused_by_arrays():
    for made in (lambda: reader.arrays(X, X, batch_size=4), lambda: reader.arrays(X, X)):
        with pytest.raises(errors.ArgumentTypeError, match=r"reader\.arrays\(\(x, y\), batch_size=32\)"):
            made()
    with pytest.raises(errors.ArgumentTypeError, match=r"\(\(x0, x1, x2\), batch_size"):
        reader.arrays(X, X, X, batch_size=4)


@pytest.mark.parametrize("kind", [csr_matrix, csr_array])
def test_sparse_matrices_name_toarray(kind, trainer, inferencer):
    sparse = kind(X)
    for made in (
        lambda: reader.arrays(sparse, batch_size=4),
        lambda: reader.arrays({"x": sparse}, batch_size=4),
        lambda: inferencer.infer(sparse),
        lambda: inferencer.infer({"x": sparse}),
        lambda: inferencer.infer({"x": [sparse[:1], sparse[1:2]]}),
        lambda: trainer.run({"x": sparse}),
        lambda: trainer.train([{"x": sparse}]),
    ):
        with pytest.raises(TypeError, match=r"a sparse matrix \(csr_.*x\.toarray\(\)") as caught:
            made()
        assert isinstance(caught.value, errors.FluidError)


class Tensor:
    """A stand-in for a torch tensor that requires grad, which NumPy cannot read."""

    requires_grad = True
    dtype = "torch.float32"
    shape = (8, 4)

    def detach(self):
        raise AssertionError("this is the user's to decide")

    def __array__(self, *arguments, **options):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad")


def test_tensors_that_require_grad_name_detach(trainer):
    for made in (
        lambda: reader.arrays(Tensor(), batch_size=4),
        lambda: trainer.run({"x": Tensor()}),
        lambda: trainer.train([(Tensor(),)]),
        lambda: trainer.train([[(Tensor(),)]]),
    ):
        with pytest.raises(errors.FluidError, match=r"requires grad.*x\.detach\(\)\.cpu\(\)\.numpy\(\)"):
            made()


def test_calling_an_inferencer_names_infer(inferencer):
    with pytest.raises(errors.ArgumentTypeError, match=r"inferencer\.infer\(data\)"):
        inferencer(X)
    with pytest.raises(errors.ArgumentTypeError, match=r"inferencer\.infer\(data\)"):
        inferencer(x=X)


@pytest.mark.parametrize("made", [arrays, lambda: arrays, lambda: iter([X]), lambda: iter(arrays())])
def test_a_reader_is_for_predict(made, inferencer):
    with pytest.raises(errors.ArgumentTypeError, match=r"found a reader.*inferencer\.predict\(reader\)"):
        inferencer.infer(made())


def test_predictions_are_iterated(trainer):
    for use, match in (
        (lambda p: p["h.tmp_0"], r"results\['h.tmp_0'\] for results in .*fetch='h.tmp_0'\)"),
        (lambda p: p[0], r"results\[0\] for results in trainer\.predict\(reader\)"),
        (np.asarray, "read as an array"),
        (len, r"list\(trainer.predict"),
    ):
        with pytest.raises(errors.ArgumentTypeError, match=match):
            use(trainer.predict(arrays(), fetch="h.tmp_0"))
    predictions = trainer.predict(arrays(), fetch="h.tmp_0")
    assert predictions and next(predictions)["h.tmp_0"].shape == (4, 1)
    predictions.close()
    assert list(predictions) == []


def test_a_single_result_compares_as_number_several_raise(trainer):
    result = trainer.test(arrays())
    number = float(result)
    assert result < number + 1 and result > number - 1 and result <= number and result >= number
    assert f"{result:.3f}" == f"{number:.3f}" and round(result, 2) == round(number, 2) and f"{result}" == str(result)
    several = fluid.Session(lambda: {"a": layers.mean(layers.data("x", shape=[4])), "b": 1.0})
    results = several.run(feed={"x": X})
    for use in (lambda r: r < 1, lambda r: r >= 1, lambda r: f"{r:.3f}", round, float):
        with pytest.raises(errors.ArgumentTypeError, match=r"2 results.*float\(results\['a'\]\)"):
            use(results)


def random(row, rng):
    return row


class Method:
    def random(self, row, rng):
        return row


@pytest.mark.parametrize("function", [random, Method().random, lambda row, rng: row])
def test_a_function_with_random_numbers_needs_a_seed(function):
    for made in (lambda: reader.map(function, X), lambda: reader.xmap(function, X, 2)):
        with pytest.raises(errors.ArgumentTypeError, match=r"with 1 row, found .*\(row, rng\)\. .*seed=0"):
            made()
    list(reader.map(function, X, seed=0))
    list(reader.map(function, X, X))


def test_a_function_without_random_numbers_takes_no_seed():
    with pytest.raises(errors.ArgumentTypeError, match=r"a Generator, found.*leave out seed"):
        reader.map(lambda row: row, X, seed=0)


def test_functions_without_visible_arguments_need_no_seed():
    import functools

    @functools.wraps(random)
    def given(row):
        return random(row, None)

    for function in (given, functools.partial(random, rng=0), str, dict.fromkeys, lambda *rows: rows, min):
        reader.map(function, X)


def failing():
    yield (X,)
    yield (X,)
    raise OSError("the disk is gone")


def broken(row):
    raise OSError("no such picture")


@pytest.mark.parametrize(
    "made, batch",
    [
        (lambda: failing, 2),
        (lambda: reader.buffered(failing, 2), 2),
        (lambda: reader.map(broken, arrays()), 0),
        (lambda: reader.xmap(broken, arrays(), 2), 0),
        (lambda: reader.xmap(broken, arrays(), processes=1), 0),
        (lambda: [(X,), (X,), (X, X)], None),
    ],
)
def test_a_readers_error_notes_the_batch_index(made, batch, trainer):
    for use in (trainer.train, trainer.test, lambda r: list(trainer.predict(r, fetch="h.tmp_0"))):
        with pytest.raises((OSError, errors.FeedError)) as caught:
            use(made())
        notes = [note for note in getattr(caught.value, "__notes__", ()) if note.startswith("Your reader")]
        assert len(notes) == (batch is not None)
        assert batch is None or f"it was to give batch {batch} of pass 0" in notes[0]


def test_the_note_names_the_reader_function(trainer):
    with pytest.raises(OSError, match="disk") as caught:
        trainer.train(failing)
    assert caught.value.__notes__ == [
        "Your reader failing raised this, not fluid: it was to give batch 2 of pass 0 (both are counted from 0)."
    ]


@pytest.mark.parametrize("shape", [[8], (8,), 8])
def test_the_name_of_a_feed_comes_first(shape):
    with pytest.raises(errors.ArgumentTypeError, match=r"layers\.data\('x', shape=\[8\]\)"):
        fluid.Program(lambda: layers.data(shape, "x"))


def words(lod_level=1, dtype="int64"):
    def program():
        return layers.reduce_sum(layers.data("words", shape=[1], dtype=dtype, lod_level=lod_level))

    return fluid.Session(program)


PADDED = np.array([[4, 8, 2, 0, 0], [7, 0, 0, 0, 0], [1, 2, 3, 4, 5]])


@pytest.mark.parametrize("ids", [PADDED, PADDED[..., None], list(PADDED), PADDED.tolist(), PADDED.astype("int32")])
def test_padded_ids_warn_once(ids):
    session = words()
    with pytest.warns(errors.FluidWarning, match=r"'words': found 2 of 3 rows .*SequenceBatch\(ids, lengths\)"):
        session.run(feed={"words": ids})
    session.run(feed={"words": ids})


@pytest.mark.parametrize(
    "ids",
    [
        np.array([[1, 2, 0], [3, 4, 0], [5, 6, 0]]),  # in these texts, the id 0 may mark the end of each sentence
        np.array([[0, 1, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]]),  # the id 0 may be a word
        np.array([[1, 2, 0, 0]]),
        np.array([[1, 2, 3], [4, 5, 6]]),
        [[4, 8, 2], [7], [1, 0, 0]],
        fluid.SequenceBatch(PADDED, np.array([3, 1, 5], "int32")),
    ],
)
def test_plausible_ids_do_not_warn(ids):
    words().run(feed={"words": ids})


def test_padded_float_values_do_not_warn():
    words(dtype="float32").run(feed={"words": PADDED.astype("float32")})


PIXELS = np.arange(128, 160, dtype="uint8").reshape(8, 4)


def test_raw_pixels_warn_once_per_feed(trainer, inferencer):
    with pytest.warns(errors.FluidWarning, match=r"'x': found values 0\.\.255 of dtype uint8.*dtype='uint8'"):
        trainer.train(reader.arrays(PIXELS, batch_size=4))
    trainer.train(reader.arrays(PIXELS, batch_size=4))
    with pytest.warns(errors.FluidWarning, match=r"/ np\.float32\(255\)"):
        inferencer.infer(PIXELS)
    inferencer.infer(PIXELS)


@pytest.mark.parametrize("value", [PIXELS / np.float32(255), PIXELS % 2, PIXELS % 100, PIXELS.astype("int64")])
def test_scaled_pixels_masks_and_counts_do_not_warn(value, inferencer):
    inferencer.infer(value)


def test_pixels_scaled_by_the_program_do_not_warn():
    def scaled():
        return layers.cast(layers.data("x", shape=[4], dtype="uint8"), "float32") / 255

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (result,) = fluid.Inferencer(scaled, params={}).infer(PIXELS)
    np.testing.assert_allclose(result, PIXELS / 255, rtol=1e-6)
