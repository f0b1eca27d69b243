"""A loop of one's own to be killed: `python tests/killed_own_loop.py FOLDER` says each step, and ends with its state.

It trains two programs by turns over one Session, from a reader that is read ahead and from random numbers of its own.
"""

import sys

import killed
import numpy as np
from checkpointed import program

import fluid
from fluid import layers

EPOCHS = 2


def first():
    loss = program()["loss"]
    fluid.optimizer.Adam(0.01).minimize(loss)
    return loss


def second():
    """Another loss of the same first layer, from noise."""
    hidden = layers.fc(layers.data("noise", shape=[4]), size=3, act="tanh")
    loss = layers.mean(layers.square(layers.fc(layers.dropout(hidden, 0.2), size=1, name="head")))
    fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    return loss


class Noise:
    """Random numbers that go on where they were."""

    def __init__(self):
        self._rng = np.random.Generator(np.random.PCG64(5))

    def draw(self):
        return self._rng.normal(size=(8, 4)).astype("float32")

    def state(self):
        return self._rng.bit_generator.state

    def restore(self, state):
        self._rng.bit_generator.state = state


def train(folder, say=print):
    """Train, saying a line for each step; returns the Session."""
    session = fluid.Session(first, second, seed=3)
    feeds = fluid.reader.prefetch(killed.reader(), session, first)
    noise = Noise()
    with fluid.Checkpoint(session, folder, [feeds, noise], step_interval=2, max_num_checkpoints=2) as checkpoint:
        while feeds.epoch < EPOCHS:
            for feed in feeds:
                drawn = noise.draw()
                session.step(feed, first)
                session.step({"noise": drawn}, second)
                done = int(session.scope.step)
                say(f"{done} {feeds.epoch} {float(np.sum(feed['x'])):.6f} {float(drawn.sum()):.6f}")
                checkpoint.after_step()
    return session


if __name__ == "__main__":
    ended = train(sys.argv[1], lambda line: print(line, flush=True))
    print("ended", killed.digest(ended), flush=True)
