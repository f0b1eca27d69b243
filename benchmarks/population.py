"""A Population of 16 perceptrons with Adam, compared with 16 trainings of one perceptron, one after the other.

Both variants use fluid. The rows in steps per second do not include compilation, and a step of the Population counts as
16 steps. In the row in sweeps per second, a sweep trains the 16 perceptrons with different learning rates. The time of
a sweep includes the creation of the Population or of the 16 Trainers, and all compilations.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from models import MLP
from timing import Row, interleave, rate
from training import ADAM

import fluid

SIZE = 16
RATES = np.geomspace(1e-4, 1e-2, SIZE).tolist()


def small_program() -> Any:
    """Return the probabilities of a perceptron 64-32-32-10, whose step spends more time in calls than in arithmetic."""
    hidden = fluid.layers.data(name="x", shape=[64])
    for _ in range(2):
        hidden = fluid.layers.fc(hidden, size=32, act="relu")
    return fluid.layers.fc(hidden, size=10, act="softmax")


SMALL = MLP._replace(inference_program=small_program)


def reader_of(model: Any, batch: int, steps: int) -> Any:
    """Return a reader of `steps` minibatches."""
    x, labels = model.data(steps * batch)
    return fluid.reader.arrays({"x": x, "label": labels}, batch_size=batch, shuffle=True, seed=0)


def trained(trainer: fluid.Trainer, reader: Any) -> Callable[[], Any]:
    """Return a function that trains for one epoch, and reads every 50th loss, for all members of a population."""

    def on_event(event: Any) -> None:
        if isinstance(event, fluid.EndStepEvent) and event.step % ADAM.read_every == ADAM.read_every - 1:
            event.metrics[0].tolist()

    return functools.partial(trainer.train, reader, 1, on_event)


def in_turn(work: Callable[[], Any]) -> None:
    """Call `work` as often as the population has members, one call after the other."""
    for _ in range(SIZE):
        work()


def steps_of(model: Any, batch: int, steps: int = 100) -> dict[str, Callable[[], float]]:
    """Return functions that measure training steps per second: "fluid" of a population, "hand" of single trainings."""
    reader = reader_of(model, batch, steps)
    together = trained(fluid.Population(model.train_program, ADAM.by_fluid, size=SIZE), reader)
    # A single Trainer for all trainings compiles only once; the values of its parameters do not change the time.
    alone = trained(fluid.Trainer(model.train_program, ADAM.by_fluid), reader)
    count = SIZE * steps
    return {"fluid": lambda: rate(count, together), "hand": lambda: rate(count, lambda: in_turn(alone))}


def sweep(together: bool, steps: int = 500) -> float:
    """Measure sweeps per second: a sweep trains `steps` steps with each of 16 learning rates, including compilation."""
    jax.clear_caches()
    reader = reader_of(SMALL, 32, steps)

    def work() -> None:
        if together:
            vary = {"learning_rate": RATES}
            fluid.Population(SMALL.train_program, fluid.optimizer.Adam(), vary=vary).train(reader)
            return
        for seed, learning_rate in enumerate(RATES):
            fluid.Trainer(SMALL.train_program, fluid.optimizer.Adam(learning_rate), seed=seed).train(reader)

    return rate(1, work)


def run(rounds: int) -> list[Row]:
    small = interleave(steps_of(SMALL, 32), rounds)
    large = interleave(steps_of(MLP, ADAM.batch), rounds)
    sweeps = interleave({"fluid": lambda: sweep(True), "hand": lambda: sweep(False)}, max(1, rounds // 7))
    return [
        Row(f"population of {SIZE} MLPs 64-32-32-10, batch 32 / {SIZE} trainings in turn", "steps/s", small, True),
        Row(f"population of {SIZE} MLPs 64-200-200-10, batch 64 / {SIZE} trainings in turn", "steps/s", large, True),
        Row(f"{SIZE} learning rates, MLP 64-32-32-10, 500 steps each, compiling / in turn", "sweeps/s", sweeps, True),
    ]
