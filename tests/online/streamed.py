"""A stream of generated rows, and an OnlineTrainer of it that can be killed.

`python tests/online/streamed.py FOLDER` serves one until it is told to end. It says its URL, and which rows each step had.
"""

import hashlib
import sys

import numpy as np

import fluid

# Small numbers, so that a short stream has many minibatches, checkpoints and dropped rows.
DIVIDED = {"batch_size": 4, "test_every": 5, "checkpoint_every": 2}
WORDS = 20


def program():
    x = fluid.layers.data("x", shape=[3])
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    y = fluid.layers.data("y", shape=[1])
    pooled = fluid.layers.sequence_pool(fluid.layers.embedding(words, size=[WORDS, 3]), "sum")
    hidden = fluid.layers.dropout(fluid.layers.batch_norm(fluid.layers.fc([x, pooled], size=4, act="tanh")), 0.3)
    guess = fluid.layers.fc(hidden, size=1, name="guess")
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(guess, y))}


def line():
    """A program that is quick to compile."""
    x, y = fluid.layers.data("x", shape=[1]), fluid.layers.data("y", shape=[1])
    guess = fluid.layers.fc(x, size=1, name="guess")
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(guess, y))}


def points(count, seed=0):
    """Rows of `line`, as columns."""
    x = np.random.default_rng(seed).normal(size=(count, 1)).astype("float32")
    return {"x": x, "y": 2 * x + 1}


def requests(seed, count):
    """What clients send: `(key, rows)`, from one row to more than two minibatches at once."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        rows = [
            (
                rng.normal(size=3).astype("float32"),
                rng.integers(0, WORDS, rng.integers(1, 9)),
                rng.normal(size=1).astype("float32"),
            )
            for _ in range(rng.integers(1, 12))
        ]
        yield f"request {number}", rows


def make(folder, handlers=(), function=program, **options):
    optimizer = fluid.optimizer.Adam(0.01) if function is program else fluid.optimizer.SGD(0.1)
    return fluid.OnlineTrainer(function, optimizer, folder, seed=3, handlers=handlers, **{**DIVIDED, **options})


class Digests(fluid.Handler):
    """Says which rows each step had, and what the parameters were before it."""

    def __init__(self, say):
        self._say = say

    def begin_step(self, event):
        digest = hashlib.sha256()
        for name in sorted(event.feed):
            value = event.feed[name]
            for part in value.rows() if isinstance(value, fluid.SequenceBatch) else [value]:
                digest.update(np.asarray(part).tobytes())
        self._say(f"step {event.step} {digest.hexdigest()[:16]}")


def bits(folder):
    """A checksum of everything in the newest checkpoint of a folder, and its position in the stream."""
    trainer = fluid.Trainer(
        program, fluid.optimizer.Adam(0.01), seed=3, checkpoint_config=fluid.CheckpointConfig(f"{folder}/checkpoints")
    )
    found = hashlib.sha256()
    for name, value in sorted(trainer.session.state().items()):
        found.update(name.encode() + np.asarray(value).tobytes())
    return int(trainer.session.scope.step), found.hexdigest()


if __name__ == "__main__":
    online = make(sys.argv[1], [Digests(lambda said: print(said, flush=True))])
    with online:
        server = online.host("127.0.0.1", 0, None, False, fluid.serving.Settings())
        print(f"url {server.url}", flush=True)
        server.run()
    print("ended", flush=True)
