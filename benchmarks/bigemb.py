"""Training a net that reads four rows of a large table for each example: steps per second, and peak memory.

The batch is 256, and the optimizer is Adagrad.
"""

import json
import pathlib
import subprocess
import sys
from collections.abc import Callable

import jax
import optax
from models import lookups
from timing import Row, interleave
from training import Setup, fluid_peer, turns_of

import fluid

ROWS, STEPS = 1_000_000, 20
STATUS = pathlib.Path("/proc/self/status")  # only Linux has this file
ADAGRAD = optax.adagrad(0.01, initial_accumulator_value=0.0, eps=1e-12)
SETUP = Setup(fluid.optimizer.Adagrad(0.01), ADAGRAD, batch=256, read_every=STEPS)


def memory(kind: str) -> int:
    """Return the memory of this process in bytes: its current size for "VmRSS", its peak for "VmHWM"."""
    # getrusage does not help: its maximum includes the memory of the parent process before the fork.
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(kind))


def measure_memory() -> tuple[int, int]:
    """Return the bytes that a training adds to the peak memory, and the bytes of its parameters and optimizer state.

    Run this function in a new process, because the peak memory of a process never decreases. A training with a table
    of 1000 rows runs first, so that the memory of the compiler and of JAX's threads does not count.
    """
    for rows in (1000, ROWS):
        model = lookups(rows)
        data = model.data(STEPS * SETUP.batch)
        before = memory("VmRSS")
        trainer, train = fluid_peer(model, *data, SETUP)
        train(2)
    scope = trainer.session.scope
    return memory("VmHWM") - before, sum(v.nbytes for v in jax.tree.leaves([scope.arrays, scope.slots]))


def peak_memory(repeats: int) -> list[Row]:
    """Measure the peak memory of a training, compared with the size of its parameters and optimizer state.

    Return no row on a system other than Linux.
    """
    if not STATUS.exists():
        return []
    found = []
    for _ in range(repeats):
        done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, check=True)
        found.append([number / 2**20 for number in json.loads(done.stdout)])
    peak, arrays = zip(*found, strict=True)
    what = "bigemb, peak memory / table and slots"
    return [Row(what, "MiB", {"fluid": list(peak), "hand": list(arrays)}, higher_is_better=False)]


def turn_of(rows: int, epochs: int) -> Callable[[], float]:
    """Return a function that trains in fluid with an embedding table of `rows` rows and returns steps per second."""
    return turns_of(lookups(rows), STEPS, epochs, SETUP)["fluid"]


def by_size(rounds: int) -> list[Row]:
    """Measure the training steps per second with embedding tables of 10^4, 10^5 and 10^6 rows."""
    found = interleave({rows: turn_of(rows, 25) for rows in (10_000, 100_000, ROWS)}, rounds)
    return [
        Row(
            f"bigemb, table of {rows:,} rows / of 10,000",
            "steps/s",
            {"fluid": found[rows], "hand": found[10_000]},
            higher_is_better=True,
        )
        for rows in (100_000, ROWS)
    ]


def run(rounds: int) -> list[Row]:
    turns = turns_of(lookups(ROWS), STEPS, 1, SETUP) | {"fluid": turn_of(ROWS, 25)}
    found = interleave(turns, -(-rounds // 3))
    beside_dense = Row("bigemb, sparse / hand-written dense", "steps/s", found, higher_is_better=True)
    return [beside_dense, *by_size(rounds), *peak_memory(3)]


if __name__ == "__main__":
    print(json.dumps(measure_memory()))
