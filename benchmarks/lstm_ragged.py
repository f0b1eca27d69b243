"""Training an LSTM on 5,000 generated sentences of 1 to 400 words: most are short, or all lengths are equally common.

fluid groups sentences by length and pads each batch to one of six lengths. The hand-written loop pads every batch to
the longest sentence, because it has one jitted step. Model, optimizer and initial values are equal.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from by_hand import plain_step
from timing import Row, interleave

import fluid

SENTENCES, LONGEST, BATCH, WORDS, WIDTH = 5000, 400, 50, 1000, 64
BUCKETS, EVEN_BUCKETS = [16, 32, 64, 128, 256, LONGEST], [64, 128, 192, 256, 320, LONGEST]
NAMES = ("embedding_0.w_0", "fc_0.w_0", "fc_0.b_0", "lstm_0.w_0", "lstm_0.b_0", "fc_1.w_0", "fc_1.b_0")


def data(count: int = SENTENCES, seed: int = 0, even: bool = False) -> list[tuple[np.ndarray, int]]:
    """Generate rows `(words [length], label)`: most rows are short, but with `even`, all lengths are equally common."""
    random = np.random.default_rng(seed)
    lengths = np.clip(np.round(np.exp(random.normal(3.6, 0.9, count))), 1, LONGEST).astype(int)
    if even:
        lengths = random.integers(1, LONGEST + 1, count)
    lengths[:2] = 1, LONGEST
    return [(random.integers(0, WORDS, n), int(random.integers(0, 2))) for n in lengths]


def program() -> Any:
    words = fluid.layers.data("words", [1], "int64", lod_level=1)
    label = fluid.layers.data("label", [1], "int64")
    x = fluid.layers.fc(fluid.layers.embedding(words, [WORDS, WIDTH]), 4 * WIDTH)
    hidden, _ = fluid.layers.dynamic_lstm(x, 4 * WIDTH, use_peepholes=False)
    pooled = fluid.layers.sequence_pool(hidden, "max")
    return fluid.layers.mean(fluid.layers.cross_entropy(fluid.layers.fc(pooled, 2, act="softmax"), label))


def forward(p: dict[str, Any], words: Any, lengths: Any) -> Any:
    """Compute the logits `[batch, 2]` by hand, for `words` `[batch, time]` and `lengths` `[batch]`."""
    mask = (jnp.arange(words.shape[1])[:, None] < lengths)[..., None]
    x = p[NAMES[0]][words.T] @ p["fc_0.w_0"] + p["fc_0.b_0"] + p["lstm_0.b_0"]

    def step(state: Any, at: Any) -> Any:
        (h, c), (x, real) = state, at
        candidate, into, forget, out = jnp.split(x + h @ p["lstm_0.w_0"], 4, axis=1)
        new_c = jax.nn.sigmoid(forget) * c + jax.nn.sigmoid(into) * jnp.tanh(candidate)
        new_h = jax.nn.sigmoid(out) * jnp.tanh(new_c)
        return (jnp.where(real, new_h, h), jnp.where(real, new_c, c)), new_h

    zeros = jnp.zeros((words.shape[0], WIDTH))
    _, hidden = jax.lax.scan(step, (zeros, zeros), (x, mask))
    pooled = jnp.max(jnp.where(mask, hidden, -jnp.inf), axis=0)
    return pooled @ p["fc_1.w_0"] + p["fc_1.b_0"]


def loss_of(p: dict[str, Any], words: Any, lengths: Any, labels: Any) -> Any:
    logits = forward(p, words, lengths)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def padded(rows: list[tuple[np.ndarray, int]], time: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return words `[batch, time]` padded with zeros, lengths `[batch]`, and labels `[batch]`."""
    words = np.zeros((len(rows), time), np.int32)
    for line, (sentence, _) in zip(words, rows, strict=True):
        line[: len(sentence)] = sentence
    return words, np.array([len(s) for s, _ in rows], np.int32), np.array([label for _, label in rows], np.int32)


def fluid_peer(rows: list[Any], buckets: list[int]) -> tuple[fluid.Trainer, Callable[[], list[float]]]:
    """Return a trainer, and a function that trains for one epoch, and returns every 20th loss."""
    trainer = fluid.Trainer(program, fluid.optimizer.Adam(1e-3), buckets=buckets)
    reader = fluid.reader.bucket_by_length(fluid.reader.shuffle(rows, len(rows), seed=0), BATCH)

    def train() -> list[float]:
        losses: list[float] = []

        def on_event(event: Any) -> None:
            if isinstance(event, fluid.EndStepEvent) and event.step % 20 == 19:
                losses.append(float(event.metrics[0]))

        trainer.train(reader, num_epochs=1, event_handler=on_event)
        return losses

    return trainer, train


def hand_peer(rows: list[Any], params: dict[str, Any]) -> Callable[[], list[float]]:
    """Return a function that trains an epoch in plain JAX, padding rows to `LONGEST`, and returns every 20th loss."""
    optimizer = optax.adam(1e-3)
    step = plain_step(loss_of, optimizer)
    parameters = {name: jax.device_put(np.array(params[name])) for name in NAMES}
    state, random = (parameters, optimizer.init(parameters)), np.random.default_rng(0)

    def train() -> list[float]:
        nonlocal state
        losses, order = [], random.permutation(len(rows))
        for number in range(len(rows) // BATCH):
            batch = [rows[i] for i in order[number * BATCH : (number + 1) * BATCH]]
            state, loss = step(state, *padded(batch, LONGEST))
            if number % 20 == 19:
                losses.append(float(loss))
        jax.block_until_ready(state)
        return losses

    return train


def padding(rows: list[Any], buckets: list[int]) -> tuple[float, float]:
    """Return the fraction of padding in all batches: with `buckets`, and with every batch padded to `LONGEST`."""
    used, real = 0, sum(len(sentence) for sentence, _ in rows)
    for batch in fluid.reader.bucket_by_length(fluid.reader.shuffle(rows, len(rows), seed=0), BATCH)():
        longest = max(len(sentence) for sentence, _ in batch)
        used += len(batch) * next(size for size in buckets if size >= longest)
    return 1 - real / used, 1 - real / (len(rows) * LONGEST)


def rate(train: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    train()
    return count / (time.perf_counter() - start)


def run(rounds: int) -> list[Row]:
    turns = max(1, rounds // 7)
    return [
        *compare("lstm_ragged, 1 to 400 words, most short", data(), BUCKETS, turns),
        *compare("lstm_ragged, 1 to 400 words, any alike", data(even=True), EVEN_BUCKETS, turns),
    ]


def compare(what: str, rows: list[Any], buckets: list[int], rounds: int) -> list[Row]:
    """Compare fluid with a training loop in plain JAX: sentences per second, fraction of padding, compilations."""
    trainer, by_fluid = fluid_peer(rows, buckets)
    by_hand = hand_peer(rows, dict(trainer.params))
    peers = {"fluid": by_fluid, "hand": by_hand}
    turns = {name: functools.partial(rate, peer, len(rows)) for name, peer in peers.items()}
    numbers = interleave(turns, rounds)
    shares = padding(rows, buckets)
    compiled = len(trainer.session.compilations)
    return [
        Row(what, "sentences/s", numbers, higher_is_better=True),
        Row(f"{what}: padding", "%", _same(100 * shares[0], 100 * shares[1]), higher_is_better=False),
        Row(f"{what}: compilations", "times", _same(compiled, 1), higher_is_better=False),
    ]


def _same(by_fluid: float, by_hand: float) -> dict[str, list[float]]:
    return {"fluid": [by_fluid], "hand": [by_hand]}
