"""Modules of Equinox inside program functions: parameters, states, random keys and custom calls."""

import re

import equinox
import jax
import numpy as np
import pytest
from test_pages import DOCS

import fluid
from fluid import errors, layers

pytestmark = pytest.mark.peers

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Net(equinox.Module):
    hidden: equinox.nn.Linear
    norm: equinox.nn.BatchNorm
    drop: equinox.nn.Dropout
    out: equinox.nn.Linear

    def __init__(self, key):
        first, second = jax.random.split(key)
        self.hidden, self.out = equinox.nn.Linear(4, 8, key=first), equinox.nn.Linear(8, 1, key=second)
        self.norm, self.drop = equinox.nn.BatchNorm(8, "batch", mode="ema"), equinox.nn.Dropout(0.2)

    def __call__(self, x, state, key):
        x, state = self.norm(self.hidden(x), state)
        return self.out(self.drop(x, key=key)), state


def plain():
    return equinox.nn.MLP(4, 1, 16, 2, key=jax.random.key(1))


def trainer_of(net, **arguments):
    def program():
        x, y = layers.data("x", shape=[4]), layers.data("y", shape=[1])
        guess = layers.module(net, x, name="net", **arguments)
        return {"loss": layers.mse_loss(guess, y), "guess": guess}

    return fluid.Trainer(program, fluid.optimizer.Adam(0.02))


def predicted(trainer):
    return trainer.run({"x": X, "y": Y}, fetch=["guess"], mode="test")[0]


def train(trainer):
    reader = fluid.reader.arrays({"x": X, "y": Y}, batch_size=8)
    before = float(trainer.test(reader)["loss"])
    trainer.train(reader, num_epochs=20)
    assert float(trainer.test(reader)["loss"]) < 0.5 * before


def test_initial_arrays_match_the_module():
    net = plain()
    trainer = trainer_of(net)
    assert list(trainer.program.parameters)[:2] == ["net/layers/0/weight", "net/layers/0/bias"]
    np.testing.assert_allclose(predicted(trainer), jax.vmap(net)(X), rtol=1e-5, atol=1e-6)


def test_trained_values_return_to_a_new_module():
    net = plain()
    trainer = trainer_of(net)
    train(trainer)
    updated = fluid.io.update_module(net, trainer, name="net")
    np.testing.assert_allclose(predicted(trainer), jax.vmap(updated)(X), rtol=1e-5, atol=1e-6)
    assert (updated.layers[0].weight != net.layers[0].weight).any()


def test_block_of_the_page_runs():
    path = DOCS / "modules.md"
    text = path.read_text(encoding="utf-8")
    # The first `python` block of docs/modules.md defines data and a program. Later `python` blocks need Flax or Haiku.
    first = re.search(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    block = re.search(r"^## Equinox\n.*?^```py\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    namespace = {"__name__": "__page__"}
    for found in (first, block):
        exec(compile("\n" * text.count("\n", 0, found.start(1)) + found[1], str(path), "exec"), namespace)
    x, y = namespace["x"], namespace["y"]
    assert np.mean((jax.vmap(namespace["net"])(x) - y) ** 2) < 0.1 * np.mean(y**2)


def test_states_and_dropout_follow_the_mode():
    given = equinox.nn.make_with_state(Net)(jax.random.key(0))
    trainer = trainer_of(given)
    assert all(name.startswith("net/state/") for name in trainer.program.states)
    train(trainer)
    model, state = fluid.io.update_module(given, trainer, name="net")
    model = equinox.nn.inference_mode(model)
    expected, _ = jax.vmap(model, axis_name="batch", in_axes=(0, None, None), out_axes=(0, None))(X, state, None)
    np.testing.assert_allclose(predicted(trainer), expected, rtol=1e-4, atol=1e-5)
    losses = [float(trainer.run({"x": X, "y": Y}, fetch=["loss"], mode="train")[0]) for _ in range(2)]
    assert losses[0] != losses[1]


def test_custom_calls_receive_the_training_mode():
    net = plain()
    trainer = trainer_of(net, call=lambda module, x, train: jax.vmap(module)(2 * x) * (1 if train else 3))
    np.testing.assert_allclose(predicted(trainer), 3 * jax.vmap(net)(2 * X), rtol=1e-5, atol=1e-6)


def test_module_of_other_shape_gets_no_values():
    trainer = trainer_of(plain())
    with pytest.raises(errors.UnknownNameError, match="an array 'weight' that the program lacks"):
        fluid.io.update_module(equinox.nn.Linear(4, 1, key=jax.random.key(0)), trainer, name="net")
