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
@pytest.mark.parametrize(
    ("name", "setup"),
    [
        ("MLP", "training"),
        ("LENET", "training"),
        ("RESNET", "resnet32"),
        ("RESNET_NHWC", "resnet32"),
        ("TABLE", "bigemb"),
    ],
)
def test_peers_learn_the_same(name, setup):
    """From the same values, on the same batch, the losses of some steps agree."""
    models, training = importlib.import_module("models"), importlib.import_module("training")
    rules = training.ADAM if setup == "training" else importlib.import_module(setup).SETUP
    model = models.lookups(1000) if name == "TABLE" else getattr(models, name)
    x, labels = model.data(16 if setup == "resnet32" else 64)
    trainer = fluid.Trainer(model.train_program, optimizer=rules.by_fluid)
    optimizer, step = training.make_step(model, rules.by_hand)
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
    # Fluid's Adam and Adagrad add their epsilons elsewhere in the formula; steps differ in the fifth digit.
    np.testing.assert_allclose(by_fluid, by_hand, rtol=2e-3)
    assert by_fluid[-1] < 0.9 * by_fluid[0]


def test_memory_is_that_of_this_process():
    bigemb = importlib.import_module("bigemb")
    if not bigemb.STATUS.exists():
        pytest.skip("only Linux says")
    assert 0 < bigemb.memory("VmRSS") <= bigemb.memory("VmHWM")


def test_the_table():
    timing = importlib.import_module("timing")
    turns = []
    numbers = timing.interleave(
        {"fluid": lambda: turns.append("f") or 2.0, "hand": lambda: turns.append("h") or 4.0}, 3
    )
    assert "".join(turns) == "fh" + "fh" + "hf" + "fh"
    text = timing.table([timing.Row("x", "steps/s", numbers, higher_is_better=True)])
    assert "| 2 | 4 | 0.500 |" in text
