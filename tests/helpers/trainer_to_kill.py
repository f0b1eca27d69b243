"""A training that a test kills: `python trainer_to_kill.py FOLDER MODE` prints a line for each step.

The line of a step has a checksum of its minibatch. The last line has a checksum of the final arrays.

Modes: "plain"; "stuck" hangs in a handler after three steps; "full" simulates a full disk for some steps; "together"
runs up to four steps per call of the device.
"""

import hashlib
import os
import select
import sys

import numpy as np

import fluid

# `test_kill.py` kills one training KILLS times, so EPOCHS makes the training long enough.
KILLS = int(os.environ.get("FLUID_KILLS", "4"))
EPOCHS, ROWS, BATCH = 2 * KILLS, 60, 8


def program():
    x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[1])
    hidden = fluid.layers.dropout(fluid.layers.batch_norm(fluid.layers.fc(x, size=40, act="tanh")), 0.3)
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, size=1), y))


def rows():
    rng = np.random.default_rng(0)
    for i in range(ROWS):
        yield np.full(4, i, "float32") / ROWS, rng.normal(size=1).astype("float32")


def jitter(row, rng):
    """Add random noise to a row; a resumed training must add the same noise."""
    return row[0] * 2 + rng.normal(0, 1e-3, 4).astype("float32"), row[1]


def reader():
    shuffled = fluid.reader.shuffle(rows, 25, seed=5)
    return fluid.reader.buffered(fluid.batch(fluid.reader.map(jitter, shuffled, seed=6), BATCH), 3)


def full_disk(trainer, done):
    """Simulate a full disk: limit files to 4 kB while `done`, the number of finished steps, is from 7 to 20."""
    import resource

    limit = 4096 if 7 <= done <= 20 else resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def train(folder=None, mode="plain", say=print):
    """Train in a mode, with checkpoints in `folder`; print a line for each step, and return the Trainer."""
    together = 4 if mode == "together" else 1
    interval = 2 if mode != "together" else 5
    config = None if folder is None else fluid.CheckpointConfig(folder, step_interval=interval, max_num_checkpoints=2)
    optimizer = fluid.optimizer.Adam(0.01, accumulate_steps=3)
    trainer = fluid.Trainer(program, optimizer, seed=3, checkpoint_config=config, steps_per_dispatch=together)

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent):
            done = event.epoch * -(-ROWS // BATCH) + event.step
            batch = hashlib.sha256(np.asarray(event.feed["x"]).tobytes()).hexdigest()[:12]
            say(f"{done} {event.epoch} {event.step} {batch}")
            if mode == "full":
                full_disk(trainer, done)
        if isinstance(event, fluid.EndStepEvent) and mode == "stuck" and event.step == 2:
            say("stuck")
            while True:  # `signal.pause()` would miss a signal that comes before the call
                select.select([], [], [], 0.1)

    trainer.train(reader(), num_epochs=EPOCHS, event_handler=on_event)
    return trainer


def digest(session):
    """Return a checksum of the names and values of all arrays in a session."""
    found = hashlib.sha256()
    for name, value in sorted(session.state().items()):
        found.update(name.encode() + np.asarray(value).tobytes())
    return found.hexdigest()


if __name__ == "__main__":
    ended = train(sys.argv[1], sys.argv[2], say=lambda line: print(line, flush=True))
    print("ended", digest(ended.session), flush=True)
