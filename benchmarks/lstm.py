"""Training an LSTM of width 128 on generated sentences of 50 to 100 words, all padded to 100: batch 64, Adam."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from by_hand import plain_step
from timing import Row, interleave, rate

import fluid

LONGEST, BATCH, WORDS, WIDTH, BATCHES = 100, 64, 1000, 128, 10


def data() -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Generate minibatches: words `[batch, time]`, lengths `[batch]`, and labels `[batch]`."""
    random = np.random.default_rng(0)
    made = []
    for _ in range(BATCHES):
        words = random.integers(0, WORDS, (BATCH, LONGEST), dtype="int32")
        lengths = random.integers(LONGEST // 2, LONGEST + 1, BATCH, dtype="int32")
        lengths[0] = LONGEST
        made.append((words, lengths, random.integers(0, 2, BATCH, dtype="int32")))
    return made


def program() -> Any:
    words = fluid.layers.data("words", [1], "int64", lod_level=1)
    label = fluid.layers.data("label", [1], "int64")
    x = fluid.layers.fc(fluid.layers.embedding(words, [WORDS, WIDTH]), 4 * WIDTH, bias_attr=False)
    hidden, _ = fluid.layers.dynamic_lstm(x, 4 * WIDTH, use_peepholes=False)
    pooled = fluid.layers.sequence_pool(hidden, "max")
    return fluid.layers.mean(fluid.layers.cross_entropy(fluid.layers.fc(pooled, 2, act="softmax"), label))


def loss_of(p: dict[str, Any], words: Any, lengths: Any, labels: Any) -> Any:
    """Compute the loss of the LSTM net in plain JAX, with one matrix product for all gates of a step.

    The scan runs over padded arrays `[time, batch, ...]` without a mask. The vocabulary is smaller than the number of
    words in a batch, so it is faster to multiply the whole table by `fc_0.w_0` before the look-up.
    """
    x = (p["embedding_0.w_0"] @ p["fc_0.w_0"] + p["lstm_0.b_0"])[words.T]

    def step(state: Any, x: Any) -> Any:
        h, c = state
        candidate, into, forget, out = jnp.split(x + h @ p["lstm_0.w_0"], 4, axis=1)
        c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(into) * jnp.tanh(candidate)
        h = jax.nn.sigmoid(out) * jnp.tanh(c)
        return (h, c), h

    zeros = jnp.zeros((words.shape[0], WIDTH))
    _, hidden = jax.lax.scan(step, (zeros, zeros), x)
    mask = (jnp.arange(words.shape[1])[:, None] < lengths)[..., None]
    pooled = jnp.max(jnp.where(mask, hidden, -jnp.inf), axis=0)
    logits = pooled @ p["fc_1.w_0"] + p["fc_1.b_0"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def fluid_peer() -> tuple[fluid.Trainer, Callable[[], list[float]]]:
    """Return a trainer, and a function that trains for one epoch, and returns the loss of the last step."""
    trainer = fluid.Trainer(program, fluid.optimizer.Adam(1e-3), buckets=[LONGEST])
    batches = [
        {"words": fluid.SequenceBatch(words[..., None], lengths), "label": labels[:, None]}
        for words, lengths, labels in data()
    ]

    def train() -> list[float]:
        losses: list[float] = []

        def on_event(event: Any) -> None:
            if isinstance(event, fluid.EndStepEvent) and event.step == BATCHES - 1:
                losses.append(float(event.metrics[0]))

        trainer.train(lambda: iter(batches), num_epochs=1, event_handler=on_event)
        return losses

    return trainer, train


def hand_peer(params: dict[str, Any]) -> Callable[[], list[float]]:
    """Return a function that trains by hand for one epoch, and returns the loss of the last step."""
    optimizer = optax.adam(1e-3)
    batches = data()
    step = plain_step(loss_of, optimizer)
    parameters = {name: jax.device_put(np.array(value)) for name, value in params.items()}
    state = (parameters, optimizer.init(parameters))

    def train() -> list[float]:
        nonlocal state
        for batch in batches:
            state, loss = step(state, *batch)
        return [float(loss)]

    return train


def run(rounds: int) -> list[Row]:
    trainer, by_fluid = fluid_peer()
    peers = {"fluid": by_fluid, "hand": hand_peer(dict(trainer.params))}
    turns = {name: functools.partial(rate, BATCHES, peer) for name, peer in peers.items()}
    return [Row("training, LSTM of 128, 100 steps", "steps/s", interleave(turns, rounds), higher_is_better=True)]
