"""Inferencer: equal to the forward pass in test mode, with few compilations; fetches, overrides and bad input."""

import contextlib
import threading

import jax.numpy as jnp
import numpy as np
import pytest
from compile_counts import counted

import fluid
from fluid import errors

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(300, 1, 8, 8)).astype("float32")


def inference_program():
    image = fluid.layers.data("image", shape=[1, 8, 8])
    hidden = fluid.nets.simple_img_conv_pool(image, 4, 3, 2, 2, act="relu")
    hidden = fluid.layers.dropout(fluid.layers.batch_norm(hidden), 0.3)
    return fluid.layers.fc(hidden, size=5, act="softmax")


def train_program():
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    prediction = inference_program()
    return fluid.layers.mean(fluid.layers.cross_entropy(prediction, label)), prediction


@pytest.fixture(scope="module")
def trained():
    trainer = fluid.Trainer(train_program, fluid.optimizer.Adam(0.01))
    labels = RNG.integers(0, 5, size=(300, 1))
    trainer.train(fluid.reader.arrays({"image": IMAGES, "label": labels}, batch_size=32), num_epochs=2)
    want = trainer.test(fluid.reader.arrays({"image": IMAGES, "label": labels}, batch_size=64))[1]
    return trainer, want


@pytest.fixture
def inferencer(trained):
    return fluid.Inferencer(inference_program, params=trained[0].params)


def test_inferencer_equals_the_forward_pass_in_test_mode(trained, inferencer):
    np.testing.assert_allclose(inferencer.infer({"image": IMAGES})[0], trained[1], rtol=1e-5, atol=1e-6)


def test_300_batch_sizes_compile_at_most_10_times(trained, inferencer):
    with counted() as compiled:
        for size in range(1, 301):
            (found,) = inferencer.infer({"image": IMAGES[:size]})
            assert found.shape == (size, 5)
            np.testing.assert_allclose(found, trained[1][:size], rtol=1e-4, atol=1e-5)
    assert len(compiled) <= 10
    assert len(inferencer.session.compilations) <= 10


def test_nested_lists_and_flat_rows_are_reshaped(trained, inferencer):
    (nested,) = inferencer.infer({"image": IMAGES[:3].tolist()})
    (flat,) = inferencer.infer({"image": IMAGES[:3].reshape(3, 64)})
    for found in (nested, flat):
        np.testing.assert_allclose(found, trained[1][:3], rtol=1e-4, atol=1e-5)


def test_arrays_in_other_layouts_and_dtypes(trained, inferencer):
    fortran = np.asfortranarray(IMAGES[:3].astype("float64"))
    reversed_twice = IMAGES[:3][::-1][::-1]
    for images in (fortran, reversed_twice, jnp.asarray(IMAGES[:3])):
        np.testing.assert_allclose(inferencer.infer({"image": images})[0], trained[1][:3], rtol=1e-4, atol=1e-5)


def test_fetching_and_overriding_named_values(trained, inferencer):
    (hidden,) = inferencer.infer({"image": IMAGES[:3]}, fetch=["batch_norm_0.tmp_2"])
    assert hidden.shape == (3, 4, 3, 3)
    (again,) = inferencer.infer({"batch_norm_0.tmp_2": hidden})
    np.testing.assert_allclose(again, trained[1][:3], rtol=1e-4, atol=1e-5)
    found = inferencer.infer({"image": IMAGES[:3]}, fetch=["fc_0.w_0", "fc_0.tmp_2", "conv2d_0.tmp_1"])
    assert np.array_equal(found["fc_0.w_0"], trained[0].params["fc_0.w_0"])
    np.testing.assert_allclose(found[1], trained[1][:3], rtol=1e-4, atol=1e-5)


def test_fetching_a_gradient(inferencer):
    (gradient,) = inferencer.infer({"image": IMAGES[:1]}, fetch=["image"])
    assert gradient.shape == (1, 1, 8, 8)

    def program():
        return fluid.layers.mean(fluid.layers.data("x", shape=[2]) * 6)

    (slope,) = fluid.Inferencer(program, params={}).infer({"x": [[1, 2], [3, 4], [5, 6]]}, fetch=["x@GRAD"])
    np.testing.assert_allclose(slope, np.full((3, 2), 1.0))


def test_program_with_a_batch_mean_is_not_padded():
    def program():
        return fluid.layers.mean(fluid.layers.data("x", shape=[1]))

    inferencer = fluid.Inferencer(program, params={})
    assert float(inferencer.infer({"x": [[1], [2], [6]]})[0]) == 3.0


@pytest.mark.parametrize("bucket", [True, False])
def test_program_that_mixes_rows_is_not_padded(bucket):
    def program():
        x = fluid.layers.data("x", shape=[1])
        return x - jnp.mean(x, axis=0)

    inferencer = fluid.Inferencer(program, params={}, bucket=bucket)
    with pytest.warns(errors.FluidWarning, match="depend on the other rows") if bucket else contextlib.nullcontext():
        assert inferencer.infer({"x": [[1], [2], [6]]})[0].tolist() == [[-2], [-1], [3]]
    assert inferencer.infer({"x": [[1], [1], [1], [1], [6]]})[0].tolist() == [[-1]] * 4 + [[4]]


def test_results_on_the_device(inferencer):
    (found,) = inferencer.infer({"image": IMAGES[:3]}, return_numpy=False)
    assert isinstance(found, jnp.ndarray) and found.shape == (3, 5)
    assert np.array(found).shape == (3, 5) and np.argmax(found) >= 0


def test_results_by_name():
    def program():
        x = fluid.layers.data("x", shape=[2])
        return {"double": x * 2, "same": x}

    found = fluid.Inferencer(program, params={}).infer({"x": [[1, 2]]})
    assert found["double"].tolist() == [[2, 4]] and found[1].tolist() == [[1, 2]]


def test_changed_feeds_and_fetches_equal_a_first_call():
    def program():
        x, y = (fluid.layers.data(name, shape=[2]) for name in "xy")
        return {"difference": x - y}

    inferencer = fluid.Inferencer(program, params={}, bucket=False)
    x, y = (np.float32(RNG.normal(size=(12, 2))) for _ in "xy")
    for _ in range(3):
        for size in range(1, 13):
            found = inferencer.infer({"x": x[:size], "y": y[:size]})["difference"]
            np.testing.assert_array_equal(found, x[:size] - y[:size])
        other_order = inferencer.infer({"y": y, "x": x})["difference"]
        np.testing.assert_array_equal(other_order, x - y)
        for feed in ({"x": x.astype("float64"), "y": y}, {"x": x, "y": y.tolist()}, {"x": x, "y": jnp.asarray(y)}):
            np.testing.assert_array_equal(inferencer.infer(feed)["difference"], x - y)
        np.testing.assert_array_equal(inferencer.infer({"x": x, "y": y}, fetch=["y"])[0], y)
        assert not isinstance(inferencer.infer({"x": x, "y": y}, return_numpy=False)[0], np.ndarray)
        with pytest.raises(errors.FluidError, match="'y'"):
            inferencer.infer({"x": x})
        with pytest.raises(errors.FluidError, match="z"):
            inferencer.infer({"x": x, "y": y, "z": y})
        with pytest.raises(errors.FeedError):
            inferencer.infer({"x": x, "y": y[:, :1]})


def test_threads_get_the_right_answers(trained, inferencer):
    wrong = []

    def ask(start):
        for size in range(1, 20):
            rows = slice(start, start + size)
            (found,) = inferencer.infer({"image": IMAGES[rows]})
            if not np.allclose(found, trained[1][rows], rtol=1e-4, atol=1e-5):
                wrong.append((start, size))

    threads = [threading.Thread(target=ask, args=(start,)) for start in range(0, 80, 20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_more_parameters_than_needed_are_fine(trained, tmp_path):
    def first_layer():
        return fluid.nets.simple_img_conv_pool(fluid.layers.data("image", shape=[1, 8, 8]), 4, 3, 2, 2, act="relu")

    trained[0].save_params(tmp_path / "all.params")
    found = fluid.Inferencer(first_layer, param_path=tmp_path / "all.params").infer({"image": IMAGES[:2]})
    assert found[0].shape == (2, 4, 3, 3)


def test_nan_goes_through(inferencer):
    images = IMAGES[:2].copy()
    images[1] = np.nan
    (found,) = inferencer.infer({"image": images})
    assert np.isfinite(found[0]).all() and np.isnan(found[1]).all()


@pytest.mark.parametrize(
    "feed, error, match",
    [
        ({}, errors.FeedError, "needs the feed 'image'"),
        ({"img": IMAGES}, errors.UnknownNameError, "Did you mean 'image'"),
        ({"image": IMAGES[:0]}, errors.FeedError, "empty"),
        ({"image": IMAGES[:, :, :7]}, errors.FeedError, "image"),
        ({"image": "digits.png"}, errors.FeedTypeError, "image"),
        ({"image": [[1.0], [1.0, 2.0]]}, errors.FeedError, "image"),
    ],
)
def test_bad_input(inferencer, feed, error, match):
    with pytest.raises(error, match=match):
        inferencer.infer(feed)


def test_a_bad_fetch(inferencer):
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'fc_0.tmp_"):
        inferencer.infer({"image": IMAGES[:1]}, fetch=["fc_0.tmp"])


def test_repr_of_an_inferencer_has_size_and_device():
    def program():
        return fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, bias_attr=False)

    inferencer = fluid.Inferencer(program, params={"fc_0.w_0": np.ones((2, 1), "float32")}, place="cpu")
    assert repr(inferencer) == "Inferencer(program: 2 parameters, on cpu)"
    assert repr(inferencer) in inferencer._repr_html_() and "float32[batch, 1]" in inferencer._repr_html_()
