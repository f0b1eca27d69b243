"""Temporary memory of a training step, without parameters, optimizer state and data: as XLA's compiler reports it."""

from typing import Any

import jax
import lstm
import numpy as np
import optax
import resnet32
from by_hand import plain_step
from models import LENET, LENET_NHWC, MLP, RESNET, Model
from timing import Row
from training import ADAM, Setup, make_step, split

import fluid
from fluid.runtime import Request
from fluid.runtime.compiled_step import bind


def needed(lowered: Any) -> float:
    """Compile a lowered step, and return the MiB of its temporary memory."""
    return float(lowered.compile().memory_analysis().temp_size_in_bytes) / 2**20


def by_fluid(trainer: fluid.Trainer, feed: dict[str, Any]) -> float:
    """Return the MiB of temporary memory of a trainer's step."""
    engine = trainer.session.engine
    step = bind(engine, trainer.program, Request("train", None, tuple(feed)))
    return needed(step.lowered(engine.layout.take(feed)))


def of_images(what: str, model: Model, setup: Setup = ADAM) -> Row:
    """Return a row of the memory table: a training step of an image net by fluid and by hand-written JAX."""
    trainer = fluid.Trainer(model.train_program, setup.by_fluid)
    x, labels = model.data(setup.batch)
    optimizer, step = make_step(model, setup.by_hand)
    trainable = set(fluid.Program(model.train_program).parameters)
    parameters, states = split(model.arrays_by_hand(dict(trainer.params)), trainable)
    state = (parameters, states, optimizer.init(parameters))
    return row(
        what,
        by_fluid(trainer, {"x": x, "label": labels[:, None]}),
        needed(step.lower(state, model.images_by_hand(x), labels)),
    )


def of_sentences() -> Row:
    """Return a row of results: the memory of a training step of the LSTM in `lstm.py`, in fluid and by hand."""
    trainer, _ = lstm.fluid_peer()
    words, lengths, labels = lstm.data()[0]
    feed = {"words": fluid.SequenceBatch(words[..., None], lengths), "label": labels[:, None]}
    optimizer = optax.adam(1e-3)
    parameters = {name: jax.device_put(np.array(value)) for name, value in trainer.params.items()}
    step = plain_step(lstm.loss_of, optimizer)
    lowered = step.lower((parameters, optimizer.init(parameters)), words, lengths, labels)
    return row("LSTM of 128, 100 steps", by_fluid(trainer, feed), needed(lowered))


def row(what: str, fluid_peer: float, hand: float) -> Row:
    numbers = {"fluid": [fluid_peer], "hand": [hand]}
    return Row(f"memory of a training step, {what}", "MiB", numbers, higher_is_better=False)


def run(rounds: int) -> list[Row]:
    """Measure the memory of each net once; ignore `rounds`, because each round would give the same numbers."""
    return [
        of_images("MLP 64-200-200-10", MLP),
        of_images("LeNet, NCHW", LENET),
        of_images("LeNet, NHWC", LENET_NHWC),
        of_images("ResNet-32, NCHW", RESNET, resnet32.SETUP),
        of_sentences(),
    ]
