"""Steps without compilation: the program function sees numbers, and the results equal the results of compiled steps."""

import numpy as np
import pytest

import fluid
from fluid import layers

FEED = {"x": np.arange(12, dtype="float32").reshape(4, 3) / 10, "words": [[1, 2], [3], [4], [5, 6, 7]]}
SEEN = []


def net():
    x = layers.data("x", shape=[3])
    words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
    embedded = layers.embedding(words, size=[9, 2])
    hidden = layers.fc(x, size=2) + layers.sequence_pool(layers.dynamic_gru(layers.fc(embedded, 6), 2), "sum")
    SEEN.append(hidden)
    return layers.batch_norm(hidden)


def train_program():
    return layers.mean(layers.square(net() - 1))


@pytest.fixture
def trainer():
    return fluid.Trainer(train_program, fluid.optimizer.Adam(1e-2), seed=0)


def test_values_of_an_eager_run_are_numbers(trainer):
    compiled = float(trainer.run(FEED)[0])
    with fluid.debug.eager():
        (found,) = trainer.run(FEED)
    assert np.asarray(SEEN[-1]).shape == (4, 2)
    assert float(found) == pytest.approx(compiled, rel=1e-5)


def test_eager_training_values_print_as_numbers(trainer):
    with fluid.debug.eager():
        trainer.train([FEED])
    assert "primal=[[" in str(SEEN[-1])


def test_eager_training_step_equals_a_compiled_step(trainer):
    other = fluid.Trainer(train_program, fluid.optimizer.Adam(1e-2), seed=0)
    with fluid.debug.eager():
        trainer.train([FEED])
    other.train([FEED])
    for name, value in other.params.items():
        np.testing.assert_allclose(trainer.params[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


def dense():
    SEEN.append(layers.fc(layers.data("x", shape=[3]), size=2))
    return layers.batch_norm(SEEN[-1])


@pytest.mark.parametrize("program", [net, dense])
@pytest.mark.parametrize("calls", [0, 3])
def test_an_inferencer_is_eager_in_the_block_only(program, calls):
    feed = FEED if program is net else {"x": FEED["x"]}
    inferencer, other = (fluid.Inferencer(program, params=fluid.Session(program, seed=0).params()) for _ in range(2))
    expected = other.infer(feed)[0]
    for _ in range(calls):
        inferencer.infer(feed)
    before = len(SEEN)
    with fluid.debug.eager():
        np.testing.assert_allclose(inferencer.infer(feed)[0], expected, rtol=1e-4, atol=1e-5)
    assert len(SEEN) > before and np.asarray(SEEN[-1]).shape == (4, 2)
    for _ in range(3):
        assert (inferencer.infer(feed)[0] == expected).all()
    during = len(SEEN)
    inferencer.infer(feed)
    assert len(SEEN) == during, "compiled again"
