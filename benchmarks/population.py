"""A population of 16 perceptrons 64-200-200-10, batch 64, Adam, beside 16 trainings of one, one after the other.

Both are fluid's, and compile before the clock runs: what counts are the steps of trainings, 16 in each step of the
population.
"""

import functools
from collections.abc import Callable
from typing import Any

from models import MLP
from timing import Row, interleave, rate
from training import ADAM

import fluid

SIZE = 16


def trained(trainer: fluid.Trainer, reader: Any, epochs: int) -> Callable[[], None]:
    """A function that trains for some epochs, and reads one loss of 50, or those of all members."""

    def on_event(event: Any) -> None:
        if isinstance(event, fluid.EndStepEvent) and event.step % ADAM.read_every == ADAM.read_every - 1:
            event.metrics[0].tolist()

    return functools.partial(trainer.train, reader, epochs, on_event)


def turns(steps_per_epoch: int, epochs: int) -> dict[str, Callable[[], float]]:
    """Both peers, as functions that return steps of trainings per second."""
    x, labels = MLP.data(steps_per_epoch * ADAM.batch)
    data = {"x": x, "label": labels}
    reader = functools.partial(fluid.reader.arrays, data, batch_size=ADAM.batch, shuffle=True, seed=0)
    together = trained(fluid.Population(MLP.train_program, ADAM.by_fluid, size=SIZE), reader(), epochs)
    # Its parameters go on where they are: one Trainer again and again has nothing to compile but once.
    alone = trained(fluid.Trainer(MLP.train_program, ADAM.by_fluid), reader(), epochs)

    def one_after_the_other() -> None:
        for _ in range(SIZE):
            alone()

    steps = SIZE * steps_per_epoch * epochs
    return {"fluid": lambda: rate(steps, together), "hand": lambda: rate(steps, one_after_the_other)}


def run(rounds: int) -> list[Row]:
    found = interleave(turns(steps_per_epoch=100, epochs=1), rounds)
    return [Row(f"population of {SIZE} MLPs 64-200-200-10; peer: {SIZE} trainings in turn", "steps/s", found, True)]
