"""Limits that a user declares, `layers.data(minimum=, maximum=)`: data outside is refused, and the sample is named."""

import json
import urllib.error
import urllib.request

import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors
from fluid.core import FeedSpec
from fluid.reader.columns import check_feed


def spec(dtype="float32", low=-1.5, high=0.1, **options):
    return FeedSpec("x", (None, 2), dtype, bounds=(low, high), **options)


@pytest.mark.parametrize(
    ("declared", "good", "bad", "found"),
    [
        (spec(), np.array([[-1.5, 0.1], [0, 0]], "float32"), np.array([[0, 0], [0, 0.11]], "float32"), "0.1"),
        (spec(), [[-1.5, 0.1]], [[0.0, 0.0], [-1.6, 0.0]], "-1.6"),
        (spec(), jnp.array([[-1.5, 0.1]]), jnp.array([[0.0, 0.0], [0.0, 3e38]]), "3"),
        (spec(high=None), [[0.5, 9.0]], [[0.0, 0.0], [-2.0, 0.0]], "-2"),
        (spec("float16", high=1e6), np.zeros((1, 2), "float16"), np.array([[0, 0], [-2, 0]], "float16"), "-2"),
        (spec("int64", 2, 9), np.array([[2, 9]]), np.array([[2, 9], [9, 10]]), "10"),
        (spec("float32", 0, 200), np.array([[0, 9]], "uint8"), np.array([[0, 1], [9, 201]], "uint8"), "201"),
        (spec(allow_nan=True), np.array([[np.nan, 0]]), np.array([[np.nan, 0], [np.nan, 2]]), "2"),
    ],
)
def test_data_outside_of_its_limits_names_the_sample(declared, good, bad, found):
    checked = check_feed(declared, good)
    assert np.array_equal(checked, np.asarray(good, checked.dtype), equal_nan=True)
    with pytest.raises(errors.FeedError, match=f"feed 'x', sample 1, batch 7: found the value {found}.*expected value"):
        check_feed(declared, bad, "batch 7")


def test_padding_of_sequences_is_outside_of_the_limits():
    declared = FeedSpec("x", (None, 1), "float32", lod_level=1, bounds=(1, 2))
    good = fluid.SequenceBatch.from_rows([np.ones((1, 1), "float32"), np.full((3, 1), 2, "float32")])
    for value in (good, good.with_data(jnp.asarray(good.data)), [[1.0], [2.0, 1.0]]):
        check_feed(declared, value)
    for value in ([[1.0], [2.0, 3.0]], good.with_data(jnp.asarray(good.data) * 1.5)):
        with pytest.raises(errors.FeedError, match="sample 1: found the value 3.0, expected value >= 1 and value <= 2"):
            check_feed(declared, value)


@pytest.mark.parametrize("options", [{"minimum": 2, "maximum": 1}, {"minimum": "0"}, {"maximum": float("nan")}])
def test_limits_that_make_no_sense(options):
    with pytest.raises(errors.ArgumentError, match="expected two numbers in ascending order"):
        fluid.Program(lambda: fluid.layers.data("x", [1], **options))
    with pytest.raises(errors.ArgumentError, match="for a feed of numbers"):
        fluid.Program(lambda: fluid.layers.data("x", [1], dtype="bool", minimum=0))


def test_one_feed_has_one_pair_of_limits():
    def program(**second):
        return fluid.layers.data("x", [1], minimum=0) + fluid.layers.data("x", [1], **second)

    assert fluid.Program(program).feeds["x"].bounds == (0, None)
    with pytest.raises(errors.ProgramError, match="declared twice, with the limits"):
        fluid.Program(lambda: program(maximum=2))


def guess():
    x = fluid.layers.data("x", shape=[2], minimum=-10, maximum=10.5)
    return fluid.layers.fc(x, size=1, name="guess")


def train_program():
    return fluid.layers.mean(fluid.layers.square_error_cost(guess(), fluid.layers.data("y", shape=[1], maximum=5)))


def posted(url, body, kind="application/json"):
    request = urllib.request.Request(url, body.encode(), {"Content-Type": kind})
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    return caught.value.code, json.load(caught.value)["error"]


def test_exported_models_and_servers_keep_the_limits(tmp_path):
    trainer = fluid.Trainer(train_program, fluid.optimizer.SGD(0.1))
    rows = [([0.5, 10.5], [1.0]), ([11.0, 0.0], [1.0])]
    with pytest.raises(errors.FeedError, match="sample 1, batch 0: found the value 11.0"):
        trainer.train(lambda: iter([rows]), progress=False)
    path = tmp_path / "guess.fluid"
    trainer.save_inference_model(path, fetch=["guess.tmp_1"], platforms=["cpu"])
    bad = {"x": np.array([[0, 0], [0, -11]], "float32")}
    inferencer = fluid.Inferencer(param_path=path)
    inferencer.infer({"x": np.zeros((2, 2), "float32")})
    with pytest.raises(errors.FeedError, match="sample 1: found the value -11.0"):
        inferencer.infer(bad)
    with fluid.serve({"guess": path}, port=0, max_batch=2) as server:
        with pytest.raises(errors.FeedError, match="value >= -10 and value <= 10.5"):
            fluid.Inferencer(url=server.url).infer(bad)
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [0, 3e38]}
        code, error = posted(f"{server.url}/v2/models/guess/infer", json.dumps({"inputs": [tensor]}))
        assert code == 400 and "found the value 3" in error


def test_an_online_training_refuses_rows_outside_of_limits(tmp_path):
    with fluid.OnlineTrainer(train_program, fluid.optimizer.SGD(0.1), tmp_path / "online", batch_size=8) as online:
        with online.serve(port=0) as server:
            code, error = posted(f"{server.url}/rows", '{"x": [3e38, 3e38], "y": -3e38}', "application/x-ndjson")
            assert code == 400 and "feed 'x', sample 0: found the value 3" in error
            with pytest.raises(errors.FeedError, match="feed 'y', sample 1: found the value 6.0, expected value <= 5"):
                fluid.RemoteTrainer(server.url).send([([0.0, 1.0], 5.0), ([0.0, 1.0], 6.0)])
        assert online.status()["accepted"] == 0
