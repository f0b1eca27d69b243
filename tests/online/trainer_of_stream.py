"""A stream of generated rows, and an OnlineTrainer that trains on the stream and that a test may kill.

`python tests/online/trainer_of_stream.py FOLDER` serves the trainer until a signal ends it. It prints the URL of the
server, and a checksum of the rows of each step. With a second argument `ACCEPTED`, the process dies after it has
accepted rows `ACCEPTED` times, before it can send the response.
"""

import hashlib
import itertools
import os
import signal
import sys

import numpy as np

import fluid
from fluid.serving import Settings

# The batch size and intervals are small, so that a short stream has many minibatches, checkpoints and dropped rows.
BATCH, TEST_EVERY = 4, 5
DIVIDED = {"batch_size": BATCH, "test_every": TEST_EVERY, "checkpoint_every": 2}
WORDS, LONGEST = 20, 8
TRAINING = {"seed": 3, "buckets": [LONGEST]}


def program():
    x = fluid.layers.data("x", shape=[3])
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    y = fluid.layers.data("y", shape=[1])
    pooled = fluid.layers.sequence_pool(fluid.layers.embedding(words, size=[WORDS, 3]), "sum")
    hidden = fluid.layers.dropout(fluid.layers.fc([x, pooled], size=4, act="tanh"), 0.3)
    guess = fluid.layers.fc(hidden, size=1, name="guess")
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(guess, y))}


def line():
    """Build a linear model of one number, which compiles quickly."""
    x, y = fluid.layers.data("x", shape=[1], column=0), fluid.layers.data("y", shape=[1], column=1)
    guess = fluid.layers.fc(x, size=1, name="guess")
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(guess, y))}


def points(count, seed=0):
    """Return `count` points of the line y = 2 x + 1, as columns `x` and `y`."""
    x = np.random.default_rng(seed).normal(size=(count, 1)).astype("float32")
    return {"x": x, "y": 2 * x + 1}


def requests(seed):
    """Yield requests of a client, `(key, rows)`, without end; a request has 1 to 11 rows."""
    rng = np.random.default_rng(seed)
    for number in itertools.count():
        rows = [
            (
                rng.normal(size=3).astype("float32"),
                rng.integers(0, WORDS, rng.integers(1, LONGEST + 1)),
                rng.normal(size=1).astype("float32"),
            )
            for _ in range(rng.integers(1, 12))
        ]
        yield f"request {number}", rows


def divided(rows):
    """Divide rows into minibatches by the documented rule: the last of every five rows is a test row and left out."""
    trained = [row for position, row in enumerate(rows) if position % TEST_EVERY != TEST_EVERY - 1]
    return [trained[low : low + BATCH] for low in range(0, len(trained) - BATCH + 1, BATCH)]


def make(folder, handlers=(), function=line, **options):
    """Return an OnlineTrainer of a program function, with small minibatches and frequent checkpoints."""
    optimizer = fluid.optimizer.Adam(0.01) if function is program else fluid.optimizer.SGD(0.1)
    options = {**DIVIDED, **(TRAINING if function is program else {}), **options}
    return fluid.OnlineTrainer(function, optimizer, folder, handlers=handlers, **options)


def trainer(**options):
    """Return a Trainer of `program`, with the settings of the OnlineTrainer."""
    return fluid.Trainer(program, fluid.optimizer.Adam(0.01), **TRAINING, **options)


class Digests(fluid.Handler):
    """A handler that reports a checksum of the rows of each step."""

    def __init__(self, say):
        self._say = say

    def begin_step(self, event):
        digest = hashlib.sha256()
        for name in sorted(event.feed):
            value = event.feed[name]
            for part in value.rows() if isinstance(value, fluid.SequenceBatch) else [value]:
                digest.update(np.asarray(part).tobytes())
        self._say(f"step {event.step} {digest.hexdigest()[:16]}")


def say(line):
    """Write a line to standard output in one system call, because two threads write lines."""
    os.write(1, f"{line}\n".encode())


def state(of):
    """Return the checksum of each array of a Trainer, by name."""
    return {name: hashlib.sha256(np.asarray(value).tobytes()).hexdigest() for name, value in of.session.state().items()}


def die_when_accepted(journal, times):
    """Patch a journal: kill this process after call number `times` of `append`, before the client gets a response."""
    append = journal.append

    def dying(*arguments):
        nonlocal times
        append(*arguments)
        times -= 1
        if not times:
            os.kill(os.getpid(), signal.SIGKILL)
        return append(*arguments)  # `append` already knows the idempotency key, so this call adds no rows

    journal.append = dying


if __name__ == "__main__":
    online = make(sys.argv[1], [Digests(say)], program)
    if len(sys.argv) > 2:
        die_when_accepted(online._journal, int(sys.argv[2]))
    with online:
        server = online.host("127.0.0.1", 0, None, False, Settings())
        say(f"url {server.url}")
        server.run()
    say("ended")
