"""A custom training loop that a test kills: `python custom_loop_to_kill.py FOLDER` prints a line for each step.

The loop trains the two programs of a Session in turns. A prefetched reader feeds the first program, random numbers feed
the second program. The last line of the output has a checksum of the final arrays.
"""

import sys

import numpy as np
import trainer_to_kill
from resumed_programs import program

import fluid
from fluid import layers

EPOCHS = 2


def first():
    loss = program()["loss"]
    fluid.optimizer.Adam(0.01).minimize(loss)
    return loss


def second():
    """Return the loss of the second trained program, which reads noise, and shares a layer with the first program."""
    hidden = layers.fc(layers.data("noise", shape=[4]), size=3, act="tanh")
    loss = layers.mean(layers.square(layers.fc(layers.dropout(hidden, 0.2), size=1, name="head")))
    fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
    return loss


class Noise:
    """A generator of random numbers; a checkpoint can save and restore the state of the generator."""

    def __init__(self):
        self._rng = np.random.Generator(np.random.PCG64(5))

    def draw(self):
        return self._rng.normal(size=(8, 4)).astype("float32")

    def state(self):
        return self._rng.bit_generator.state

    def restore(self, state):
        self._rng.bit_generator.state = state


def train(folder, say=print):
    """Train with checkpoints in `folder`, print a line for each step, and return the Session."""
    session = fluid.Session(first, second, seed=3)
    feeds = fluid.reader.prefetch(trainer_to_kill.reader(), session, first)
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
    print("ended", trainer_to_kill.digest(ended), flush=True)
