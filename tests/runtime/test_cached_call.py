"""Runs over arrays that seldom change: filters in the order of the CPU, and feeds that have passed every check."""

import sys
import threading

import jax
import numpy as np
import pytest
from compiles import counted

import fluid
from fluid import errors
from fluid.runtime import Request
from fluid.runtime.cached_call import Settled
from fluid.runtime.compiled_step import bind

IMAGES = np.random.default_rng(0).normal(size=(4, 3, 6, 6)).astype("float32")
FILTERS = "conv2d_0.w_0"
BIAS = "conv2d_0.b_0"


def program():
    image = fluid.layers.data("image", shape=[3, 6, 6])
    hidden = fluid.layers.conv2d(image, num_filters=5, filter_size=3, act="relu")
    hidden = fluid.layers.conv2d(hidden, num_filters=6, filter_size=3, groups=1)
    return fluid.layers.fc(hidden, size=2)


def lookup():
    ids = fluid.layers.data("ids", shape=[1], dtype="int64")
    return fluid.layers.embedding(ids, size=[5, 2])


@pytest.fixture(scope="module")
def inferencer():
    return fluid.Inferencer(program, params=dict(fluid.Session(program).scope))


def test_results_are_those_of_a_session_to_the_bit(inferencer):
    for rows in (1, 3, 4, 4):
        (found,) = inferencer.infer({"image": IMAGES[:rows]})
        padded = IMAGES[[0, 1, 2, 2]] if rows == 3 else IMAGES[:rows]
        np.testing.assert_array_equal(found, np.asarray(inferencer.session.run(feed={"image": padded})[0])[:rows])


def test_a_cpu_is_given_filters_in_its_own_order(inferencer):
    step = bind(inferencer.session.engine, inferencer.program, Request("test", None, ("image",), settled=True))
    text = step.lowered({"image": IMAGES}).as_text()
    (main,) = (line for line in text.splitlines() if "func.func public @main" in line)
    assert "tensor<3x3x3x5xf32>" in main  # height, width, channels, filters
    assert "tensor<3x3x5x6xf32>" in main
    assert "tensor<5x3x3x3xf32>" not in main
    assert "tensor<2x2x6x2xf32>" in main  # of the layer behind them: height, width, channels, outputs
    assert "tensor<24x2xf32>" not in main


@pytest.mark.parametrize("mode", ["train", "test"])
def test_a_layer_behind_images_reads_its_weight_as_the_program_has_it(mode):
    """Whether or not the weight is turned: row `[channel, height, width]` of it belongs to that number of an image."""
    session = fluid.Session(program)
    scope = {name: np.asarray(array) for name, array in session.scope.items()}
    images = np.asarray(session.run(feed={"image": IMAGES}, fetch=["conv2d_1.tmp_1"], mode=mode)[0], "float64")
    assert images.shape == (4, 6, 2, 2)
    wanted = images.reshape(4, 24) @ scope["fc_0.w_0"] + scope["fc_0.b_0"]
    for given in (scope, {**scope, "fc_0.w_0": scope["fc_0.w_0"] * 2}):
        session.scope.update(given)
        (found,) = session.run(feed={"image": IMAGES}, mode=mode)
        np.testing.assert_allclose(found, wanted if given is scope else 2 * wanted, rtol=1e-5, atol=1e-6)


def test_a_large_weight_behind_images_is_left_as_it_is():
    """A run that is not settled would have to turn it each time."""

    def large():
        image = fluid.layers.conv2d(fluid.layers.data("image", shape=[3, 32, 32]), num_filters=33, filter_size=1)
        return fluid.layers.fc(image, size=32)

    assert 33 * 32 * 32 * 32 > 1 << 20
    assert "fc_0.w_0" not in fluid.Program(large).orders and "fc_0.w_0" in fluid.Program(program).orders


def test_an_exported_program_is_given_the_same_orders(tmp_path):
    params = dict(fluid.Session(program).scope)
    fluid.io.save_inference_model(tmp_path / "model.fluid", program, params)
    exported = fluid.artifact.load(tmp_path / "model.fluid").program()
    assert exported.orders == fluid.Program(program).orders
    step = bind(fluid.Session(exported).engine, exported, Request("test", None, ("image",), settled=True))
    shapes = sorted(aval.shape for aval in jax.tree.leaves(step.lowered({"image": IMAGES}).in_avals))
    assert shapes == sorted([(3, 3, 3, 5), (3, 3, 5, 6), (2, 2, 6, 2), (5 + 6 + 2,), IMAGES.shape])


def test_small_vectors_are_one_argument(inferencer):
    step = bind(inferencer.session.engine, inferencer.program, Request("test", None, ("image",), settled=True))
    shapes = sorted(aval.shape for aval in jax.tree.leaves(step.lowered({"image": IMAGES}).in_avals))
    assert shapes == sorted([(3, 3, 3, 5), (3, 3, 5, 6), (2, 2, 6, 2), (5 + 6 + 2,), IMAGES.shape])


def test_vectors_are_taken_apart_again():
    """Of several dtypes, with scalars, one that is too large and one that is alone in its dtype."""
    shapes = {"a": (4,), "large": (5000,), "b": (), "i": (3,), "matrix": (2, 2), "c": (7,), "k": (1,), "lone": (2,)}
    dtypes = {"i": "int32", "k": "int32", "lone": "float16"}
    random = np.random.default_rng(0)
    drawn = {n: random.integers(-9, 9, shape).astype(dtypes.get(n, "float32")) for n, shape in shapes.items()}
    arrays = {name: jax.device_put(array) for name, array in drawn.items()}
    settled = Settled(lambda arrays, feeds: dict(arrays), arrays, [], {}, arrays)
    for found in (settled(arrays, {}), settled.over(arrays)({})):
        assert {name: (array.shape, array.dtype) for name, array in found.items()} == {
            name: (array.shape, array.dtype) for name, array in drawn.items()
        }
        for name, array in found.items():
            np.testing.assert_array_equal(array, drawn[name], err_msg=name)
    assert len(jax.tree.leaves(settled.lower(arrays, {}).in_avals)) == 5


def test_a_call_like_one_before_runs_few_functions_of_python(inferencer):
    feed = {"image": IMAGES}
    for _ in range(2):
        inferencer.infer(feed)
    called = []

    def note(frame, event, argument):
        if event == "call":
            called.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        inferencer.infer(feed)
    finally:
        sys.setprofile(None)
    assert len(called) <= 8, called


@pytest.mark.parametrize("name", [FILTERS, BIAS])
def test_a_parameter_that_is_replaced_counts_from_the_next_call_on(name):
    params = dict(fluid.Session(program).scope)
    inferencer = fluid.Inferencer(program, params=params)
    before = inferencer.infer({"image": IMAGES})[0]
    inferencer.session.scope[name] = 1 - np.asarray(params[name])
    with counted() as compiled:
        after = inferencer.infer({"image": IMAGES})[0]
    assert not compiled
    other = fluid.Inferencer(program, params={**params, name: 1 - np.asarray(params[name])})
    np.testing.assert_array_equal(after, other.infer({"image": IMAGES})[0])
    assert not np.array_equal(before, after)


def test_a_training_step_in_the_same_session_counts():
    def loss():
        found = fluid.layers.mean(program())
        fluid.optimizer.SGD(0.1).minimize(found)
        return found

    inferencer = fluid.Inferencer(loss, params=dict(fluid.Session(loss).scope))
    for _ in range(3):
        (found,) = inferencer.infer({"image": IMAGES})
        np.testing.assert_array_equal(found, inferencer.session.run(feed={"image": IMAGES}, mode="test")[0])
        inferencer.session.step({"image": IMAGES})


def test_threads_that_ask_while_a_parameter_is_replaced_see_the_one_or_the_other(inferencer):
    old = np.asarray(inferencer.session.scope[FILTERS])
    feed = {"image": IMAGES}
    known = [inferencer.infer(feed)[0]]
    inferencer.session.scope[FILTERS] = 2 * old
    known.append(inferencer.infer(feed)[0])
    found = []

    def ask():
        found.extend(inferencer.infer(feed)[0] for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(20):
        inferencer.session.scope[FILTERS] = old if number % 2 else 2 * old
    for thread in threads:
        thread.join()
    inferencer.session.scope[FILTERS] = old
    assert len(found) == 60
    assert all(any(np.array_equal(each, one) for one in known) for each in found)
    np.testing.assert_array_equal(inferencer.infer(feed)[0], known[0])


def test_the_same_array_with_other_numbers_is_read_anew(inferencer):
    images = IMAGES.copy()
    first = inferencer.infer({"image": images})[0]
    images[:] = IMAGES[::-1]
    np.testing.assert_allclose(inferencer.infer({"image": images})[0], first[::-1], rtol=1e-5, atol=1e-6)


def test_other_shapes_and_dtypes_are_checked_after_any_number_of_good_calls(inferencer):
    for _ in range(3):
        (good,) = inferencer.infer({"image": IMAGES})
    with pytest.raises(errors.FeedError, match="a row of shape"):
        inferencer.infer({"image": IMAGES[:, :2]})
    with pytest.raises(errors.FeedTypeError):
        inferencer.infer({"image": IMAGES.astype("complex64")})
    with pytest.raises(errors.UnknownNameError):
        inferencer.infer({"picture": IMAGES})
    for same in (IMAGES.tolist(), IMAGES.astype("float64"), IMAGES.reshape(4, 108), np.asfortranarray(IMAGES)):
        np.testing.assert_array_equal(inferencer.infer({"image": same})[0], good)


def test_ids_are_checked_in_each_call():
    inferencer = fluid.Inferencer(lookup, params=dict(fluid.Session(lookup).scope))
    ids = np.array([[0], [4]], "int32")
    for _ in range(3):
        inferencer.infer({"ids": ids})
    ids[1] = 5
    with pytest.raises(errors.FeedError, match="5"):
        inferencer.infer({"ids": ids})
