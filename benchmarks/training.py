"""Training loops in fluid and in hand-written JAX: equal models, arrays, batches and optimizers."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from by_hand import make_step as make_hand_step
from models import Arrays, Model
from timing import Row, interleave, rate

import fluid


class Setup(NamedTuple):
    """The training settings of fluid and of the hand-written loop.

    Attributes:
      by_fluid: the optimizer of fluid.
      by_hand: the optimizer of optax.
      batch: the number of examples of a step.
      read_every: the number of steps between two reads of a loss.
    """

    by_fluid: Any = fluid.optimizer.Adam(1e-3)
    by_hand: optax.GradientTransformation = optax.adam(1e-3)
    batch: int = 64
    read_every: int = 50


ADAM = Setup()

Train = Callable[[int], list[float]]


def fluid_peer(model: Model, x: np.ndarray, labels: np.ndarray, setup: Setup = ADAM) -> tuple[fluid.Trainer, Train]:
    """Return a Trainer, and a function that trains for n epochs; it returns the losses of every `read_every`th step."""
    trainer = fluid.Trainer(model.train_program, optimizer=setup.by_fluid)
    reader = fluid.reader.arrays({"x": x, "label": labels}, batch_size=setup.batch, shuffle=True, seed=0)

    def train(epochs: int) -> list[float]:
        losses = []

        def on_event(event: Any) -> None:
            if isinstance(event, fluid.EndStepEvent) and event.step % setup.read_every == setup.read_every - 1:
                losses.append(float(event.metrics[0]))

        trainer.train(reader, num_epochs=epochs, event_handler=on_event)
        return losses

    return trainer, train


def make_step(
    model: Model, optimizer: optax.GradientTransformation = ADAM.by_hand
) -> tuple[optax.GradientTransformation, Callable[..., tuple[Any, Any]]]:
    """Return the optimizer, and the jitted hand-written step, which donates its state."""

    return optimizer, make_hand_step(model.forward, optimizer)


def split(params: Arrays, trainable: set[str]) -> tuple[Arrays, Arrays]:
    """Split arrays into parameters and states, both on the device."""
    parameters = {n: jax.device_put(np.array(v)) for n, v in params.items() if n in trainable}
    return parameters, {n: jax.device_put(np.array(v)) for n, v in params.items() if n not in trainable}


def hand_peer(model: Model, x: np.ndarray, labels: np.ndarray, params: Arrays, setup: Setup = ADAM) -> Train:
    """Return a function that trains by hand for n epochs from `params`, and returns the losses that it reads."""
    optimizer, step = make_step(model, setup.by_hand)
    trainable = set(fluid.Program(model.train_program).parameters)
    parameters, states = split(model.arrays_by_hand(params), trainable)
    x = model.images_by_hand(x)
    state = (parameters, states, optimizer.init(parameters))
    random = np.random.default_rng(0)

    def train(epochs: int) -> list[float]:
        nonlocal state
        losses = []
        for _ in range(epochs):
            order = random.permutation(len(labels))
            for number in range(len(labels) // setup.batch):
                chosen = order[number * setup.batch : (number + 1) * setup.batch]
                state, loss = step(state, x[chosen], labels[chosen])
                if number % setup.read_every == setup.read_every - 1:
                    losses.append(float(loss))
        jax.block_until_ready(state)
        return losses

    return train


def fused_peer(model: Model, x: np.ndarray, labels: np.ndarray, setup: Setup = ADAM) -> tuple[fluid.Trainer, Train]:
    """Return a Trainer with many steps per call of the device and with data on the device, and a training function.

    The function trains for n epochs, and returns the losses that it reads, like the function of `fluid_peer`.
    """
    trainer = fluid.Trainer(model.train_program, optimizer=setup.by_fluid, steps_per_dispatch=50)
    columns = {"x": x, "label": labels}
    reader = fluid.reader.arrays(columns, batch_size=setup.batch, shuffle=True, seed=0, on_device=True)

    def train(epochs: int) -> list[float]:
        losses: list[float] = []

        @fluid.handlers.every(setup.read_every)
        def read(event: Any) -> None:
            losses.append(float(event.metrics[0]))

        trainer.train(reader, num_epochs=epochs, handlers=[read])
        return losses

    return trainer, train


def scan_peer(model: Model, x: np.ndarray, labels: np.ndarray, params: Arrays, setup: Setup = ADAM) -> Train:
    """Return a function that trains in plain JAX, with data on the device; a scan runs the steps between two losses."""
    optimizer, step = make_step(model, setup.by_hand)
    trainable = set(fluid.Program(model.train_program).parameters)
    parameters, states = split(params, trainable)
    state = (parameters, states, optimizer.init(parameters))
    columns = jax.device_put((x, labels))
    random = np.random.default_rng(0)

    @functools.partial(jax.jit, donate_argnums=0)
    def steps(state: Any, columns: Any, rows: Any) -> tuple[Any, Any]:
        return jax.lax.scan(lambda state, chosen: step(state, columns[0][chosen], columns[1][chosen]), state, rows)

    def train(epochs: int) -> list[float]:
        nonlocal state
        losses = []
        for _ in range(epochs):
            order = random.permutation(len(labels)).astype("int32").reshape(-1, setup.read_every, setup.batch)
            for rows in order:
                state, found = steps(state, columns, rows)
                losses.append(float(found[-1]))
        jax.block_until_ready(state)
        return losses

    return train


def products_peer(model: Model, x: np.ndarray, params: Arrays, setup: Setup = ADAM) -> Train:
    """Return a function that computes only the matrix products in the training steps of a perceptron.

    The time of these products is a lower limit for the time of any training of the perceptron.
    """
    weights = [jax.device_put(np.array(v)) for v in params.values() if np.ndim(v) == 2]
    grown = [jax.device_put(x[: setup.batch])]
    for weight in weights:
        grown.append(grown[-1] @ weight)

    def step(found: list[Any], _: Any) -> tuple[list[Any], None]:
        """Compute the matrix products of a step: forward pass, gradients of weights, gradients of hidden layers."""
        there = [before @ weight for before, weight in zip(grown, found, strict=False)]
        back = [after @ weight.T for after, weight in zip(there[1:], found[1:], strict=True)]
        changes = [before.T @ after for before, after in zip([grown[0], *back], there, strict=True)]
        return changes, None

    steps = jax.jit(lambda found: jax.lax.scan(step, found, length=setup.read_every)[0])

    def train(epochs: int) -> list[float]:
        found = weights
        for _ in range(epochs * (len(x) // setup.batch // setup.read_every)):
            found = jax.block_until_ready(steps(weights))
        return [float(found[0][0, 0])]

    return train


def turns_of(model: Model, steps_per_epoch: int, epochs: int, setup: Setup = ADAM) -> dict[str, Callable[[], float]]:
    """Return functions "fluid" and "hand", which train for `epochs` epochs, and return the steps per second."""
    x, labels = model.data(steps_per_epoch * setup.batch)
    trainer, by_fluid = fluid_peer(model, x, labels, setup)
    by_hand = hand_peer(model, x, labels, dict(trainer.params), setup)
    peers = {"fluid": by_fluid, "hand": by_hand}
    steps = steps_per_epoch * epochs
    return {name: functools.partial(rate, steps, functools.partial(peer, epochs)) for name, peer in peers.items()}


def compare(what: str, model: Model, steps_per_epoch: int, epochs: int, rounds: int, setup: Setup = ADAM) -> list[Row]:
    """Measure the steps per second of fluid and of the hand-written loop, alternately."""
    turns = turns_of(model, steps_per_epoch, epochs, setup)
    return [Row(what, "steps/s", interleave(turns, rounds), higher_is_better=True)]
