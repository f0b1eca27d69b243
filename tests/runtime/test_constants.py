"""Inference on a CPU: small nets are compiled with their parameters as constants, and every feed is checked."""

import threading

import numpy as np
import pytest
from compile_counts import counted

import fluid
from fluid import errors
from fluid.runtime import prediction

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


def test_each_batch_size_compiles_once(inferencer):
    session = fluid.Session(program)
    session.scope.update(inferencer.session.scope)
    whole = np.asarray(session.run(feed={"image": IMAGES})[0])
    for rows in (1, 3, 4, 4):
        np.testing.assert_allclose(inferencer.infer({"image": IMAGES[:rows]})[0], whole[:rows], rtol=1e-5, atol=1e-6)
    for _ in range(2):
        (found,) = [results[0] for results in inferencer.predict(fluid.reader.arrays({"image": IMAGES}, 4))]
        np.testing.assert_array_equal(found, inferencer.infer({"image": IMAGES})[0])
    assert [compilation.reason for compilation in inferencer.session.compilations] == [
        "first test run",
        "new feed shapes: image [4, 3, 6, 6]; before: image [1, 3, 6, 6]",
    ]


@pytest.mark.parametrize("large", [0, 1 << 30])
def test_arrays_are_arguments_from_a_size_on(large, monkeypatch):
    monkeypatch.setattr(prediction, "_LARGE", large)
    inferencer = fluid.Inferencer(lookup, params={"embedding_0.w_0": np.arange(10, dtype="float32").reshape(5, 2)})
    assert inferencer.session.engine.constants == (large > 0)
    assert inferencer.infer({"ids": [[3]]})[0].tolist() == [[6, 7]]


@pytest.mark.parametrize("mode", ["train", "test"])
def test_a_layer_after_images_keeps_its_weight_order(mode):
    """Check that the rows of the weight of `fc` keep the order (channel, height, width) of the elements of an image."""
    session = fluid.Session(program)
    scope = {name: np.asarray(array) for name, array in session.scope.items()}
    images = np.asarray(session.run(feed={"image": IMAGES}, fetch=["conv2d_1.tmp_1"], mode=mode)[0], "float64")
    assert images.shape == (4, 6, 2, 2)
    wanted = images.reshape(4, 24) @ scope["fc_0.w_0"] + scope["fc_0.b_0"]
    for given in (scope, {**scope, "fc_0.w_0": scope["fc_0.w_0"] * 2}):
        session.scope.update(given)
        (found,) = session.run(feed={"image": IMAGES}, mode=mode)
        np.testing.assert_allclose(found, wanted if given is scope else 2 * wanted, rtol=1e-5, atol=1e-6)


def test_another_program_in_the_session_changes_nothing():
    inferencer = fluid.Inferencer(lookup, params=dict(fluid.Session(lookup).scope))
    table = np.asarray(inferencer.session.scope["embedding_0.w_0"])
    for ids in ([[1]], [[2], [3]], [[4], [0], [1], [2]]):
        (found,) = inferencer.infer({"ids": np.int64(ids)})
        np.testing.assert_array_equal(found, table[np.ravel(ids)])
        inferencer.session.add(program)
    session = fluid.Session(lookup)
    for _ in range(2):
        session.run(lookup, {"ids": np.int64([[1]])}, mode="test")
        session.add(program)
    assert len(session.compilations) == 1


def test_an_inferencer_of_a_closed_session_is_refused():
    inferencer = fluid.Inferencer(lookup, params=dict(fluid.Session(lookup).scope))
    inferencer.infer({"ids": np.int64([[1]])})
    inferencer.session.close()
    for rows in (1, 2):
        with pytest.raises(errors.ArgumentError, match="this session is closed"):
            inferencer.infer({"ids": np.int64([[1]] * rows)})


@pytest.mark.parametrize("name", [FILTERS, BIAS])
def test_the_next_call_uses_a_replaced_parameter(name):
    params = dict(fluid.Session(program).scope)
    inferencer = fluid.Inferencer(program, params=params)
    before = inferencer.infer({"image": IMAGES})[0]
    inferencer.session.scope[name] = 1 - np.asarray(params[name])
    after = inferencer.infer({"image": IMAGES})[0]
    assert inferencer.session.compilations[-1].reason == "a parameter was replaced"
    with counted() as compiled:
        inferencer.session.scope[name] = 1 - np.asarray(params[name])
        np.testing.assert_array_equal(inferencer.infer({"image": IMAGES})[0], after)
    assert not compiled
    other = fluid.Inferencer(program, params={**params, name: 1 - np.asarray(params[name])})
    np.testing.assert_allclose(after, other.infer({"image": IMAGES})[0], rtol=1e-5, atol=1e-6)
    assert not np.allclose(before, after)


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


def test_concurrent_inference_sees_old_or_new_parameters():
    inferencer = fluid.Inferencer(program, params=dict(fluid.Session(program).scope))
    old = np.asarray(inferencer.session.scope[FILTERS])
    feed = {"image": IMAGES}
    inferencer.infer(feed)
    inferencer.session.scope[FILTERS] = 2 * old  # from now on, parameters are arguments, which may round differently
    known = [inferencer.infer(feed)[0]]
    inferencer.session.scope[FILTERS] = old
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
    np.testing.assert_array_equal(inferencer.infer(feed)[0], known[1])


def test_an_array_changed_in_place_is_read_again(inferencer):
    images = IMAGES.copy()
    first = inferencer.infer({"image": images})[0]
    images[:] = IMAGES[::-1]
    np.testing.assert_allclose(inferencer.infer({"image": images})[0], first[::-1], rtol=1e-5, atol=1e-6)


def test_feeds_are_checked_after_many_good_calls(inferencer):
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


def shared_filters():
    """Build a net whose convolutions have filters shared by two layers, grouped filters, and filters of volumes."""
    image = fluid.layers.data("image", shape=[3, 6, 6])
    shared = fluid.ParamAttr(name="filters")
    first = fluid.layers.conv2d(image, num_filters=3, filter_size=3, padding=1, param_attr=shared)
    second = fluid.layers.conv2d(first, num_filters=3, filter_size=3, padding=1, param_attr=shared)
    grouped = fluid.layers.conv2d(second, num_filters=6, filter_size=3, groups=3, bias_attr=False)
    volume = fluid.layers.conv3d(fluid.layers.unsqueeze(grouped, axes=[1]), num_filters=2, filter_size=2)
    return fluid.layers.fc(volume, size=2)


@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("function", [program, shared_filters])
def test_every_kind_of_filter_matches_a_session(function, precision):
    inferencer = fluid.Inferencer(function, params=dict(fluid.Session(function).scope), precision=precision)
    session = fluid.Session(function, precision=precision)
    session.scope.update(inferencer.session.scope)
    wanted = np.asarray(session.run(feed={"image": IMAGES})[0], "float32")
    (found,) = inferencer.infer({"image": IMAGES})
    tolerance = 1e-5 if precision is None else 1e-2
    np.testing.assert_allclose(np.asarray(found, "float32"), wanted, rtol=tolerance, atol=tolerance)
