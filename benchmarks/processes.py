"""Weak scaling: several processes on this machine compared with one, each with one core and equally many rows per step.

    python benchmarks/processes.py --processes 2 --rounds 5

The ratio compares the rows per second of each process. A ratio of 1 means that communication costs no time. The
benchmark needs as many cores as processes. A convolutional net for digits trains on generated images.
"""

import argparse
import os
import subprocess
import sys
import time

import numpy as np
from timing import Row, interleave, table

import fluid

ROWS, STEPS, EPOCHS = 128, 20, 4  # rows of a step in each process, steps of an epoch, epochs
ONE_CORE = {"NPROC": "1"}  # NPROC sets the number of threads in XLA's pool on a CPU


def program() -> object:
    image = fluid.layers.data("image", shape=[1, 28, 28])
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    hidden = fluid.nets.simple_img_conv_pool(image, 20, 5, 2, 2, act="relu")
    hidden = fluid.layers.batch_norm(fluid.nets.simple_img_conv_pool(hidden, 50, 5, 2, 2, act="relu"))
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(hidden, 10), label))


def train() -> None:
    """Train in this process; process 0 prints its rows per second after the first epoch."""
    group = fluid.distributed.group()
    count = ROWS * group.size * STEPS
    rng = np.random.default_rng(0)
    images, labels = rng.normal(size=(count, 1, 28, 28)).astype("float32"), rng.integers(0, 10, size=count)
    reader = fluid.reader.arrays({"image": images, "label": labels}, batch_size=ROWS * group.size)
    trainer = fluid.Trainer(program, fluid.optimizer.Momentum(0.01, momentum=0.9), parallel=True)
    ends = []

    def on_event(event: object) -> None:
        if isinstance(event, fluid.EndEpochEvent):
            trainer.session.scope.step.block_until_ready()
            ends.append(time.perf_counter())

    trainer.train(reader, num_epochs=EPOCHS, event_handler=on_event, progress=False)
    if group.is_first:
        print("rows per second:", ROWS * STEPS * (EPOCHS - 1) / (ends[-1] - ends[0]), flush=True)


def measured(processes: int) -> float:
    """Train in `processes` processes, and return the rows per second of one process."""
    command = [sys.executable, "-m", "fluid", "launch", "--processes", str(processes), __file__, "--train"]
    said = subprocess.run(command, env={**os.environ, **ONE_CORE}, capture_output=True, text=True, check=True).stdout
    return float(said.partition("rows per second:")[2].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train()
        return
    what = f"digits' convolutional net, each of {given.processes} processes / one process"
    found = interleave({"fluid": lambda: measured(given.processes), "hand": lambda: measured(1)}, given.rounds)
    print(table([Row(what, "rows/s", found, higher_is_better=True)]))


if __name__ == "__main__":
    main()
