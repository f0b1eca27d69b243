"""The benchmarks compare equals: both peers of each model compute the same."""

import importlib
import pathlib

import numpy as np
import pytest

import fluid

BENCHMARKS = pathlib.Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MLP", "LENET"])
def test_peers_learn_the_same(name):
    """From the same values, on the same batch, the losses of some steps agree."""
    model = getattr(importlib.import_module("models"), name)
    training = importlib.import_module("training")
    x, labels = model.data(64)
    trainer = fluid.Trainer(model.train_program, optimizer=fluid.optimizer.Adam(1e-3))
    optimizer, step = training.make_step(model)
    parameters, states = training.split(dict(trainer.params), set(fluid.Program(model.train_program).parameters))
    state = (parameters, states, optimizer.init(parameters))
    by_hand, by_fluid = [], []
    for _ in range(5):
        state, loss = step(state, x, labels)
        by_hand.append(float(loss))

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent):
            by_fluid.append(float(event.metrics[0]))

    trainer.train(lambda: [{"x": x, "label": labels}] * 5, num_epochs=1, event_handler=on_event)
    # Fluid's Adam adds its epsilon elsewhere in the formula; steps differ in the fifth digit.
    np.testing.assert_allclose(by_fluid, by_hand, rtol=2e-3)
    assert by_fluid[-1] < 0.9 * by_fluid[0]


def test_the_table():
    timing = importlib.import_module("timing")
    turns = []
    numbers = timing.interleave(
        {"fluid": lambda: turns.append("f") or 2.0, "hand": lambda: turns.append("h") or 4.0}, 3
    )
    assert "".join(turns) == "fh" + "fh" + "hf" + "fh"
    text = timing.table([timing.Row("x", "steps/s", numbers, higher_is_better=True)])
    assert "| 2 | 4 | 0.500 |" in text


@pytest.mark.slow
@pytest.mark.parametrize(("name", "setup"), [("RESNET", "resnet32"), ("RESNET_NHWC", "resnet32"), ("TABLE", "bigemb")])
def test_peers_take_the_same_steps(name, setup):
    """These rules agree digit by digit; a smaller batch and a smaller table do."""
    models, training = importlib.import_module("models"), importlib.import_module("training")
    setup = importlib.import_module(setup).SETUP._replace(batch=8, read_every=1)
    model = models.lookups(1000) if name == "TABLE" else getattr(models, name)
    x, labels = model.data(3 * 8)
    trainer, by_fluid = training.fluid_peer(model, x, labels, setup)
    by_hand = training.hand_peer(model, x, labels, dict(trainer.params), setup)
    in_order = np.random.Generator(np.random.PCG64([0, 0])).permutation(24)
    del in_order
    assert len(by_fluid(1)) == len(by_hand(1)) == 3
