"""Cost of a checkpoint of 200 MB: the time that the training thread loses, compared with a blocking save.

    python benchmarks/checkpoint.py --rounds 9

The first figure is the time for which a save blocks the training thread. The second figure is the slowdown of steps
during a concurrent save: XLA copies the arrays that it would otherwise overwrite, and the cores share the work.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import jax
import numpy as np

import fluid
from fluid.checkpoint.folder import Folder
from fluid.trainer.checkpoint import Checkpoints

MEGABYTES, LAYERS, STEPS = 200, 10, 40


def program() -> object:
    # Adam keeps two arrays of optimizer state for each parameter, so a third of the bytes are parameters.
    width = MEGABYTES * 1_000_000 // 4 // 3 // LAYERS // 64
    hidden = fluid.layers.data("x", shape=[64])
    total = [fluid.layers.reduce_mean(fluid.layers.fc(hidden, size=width, bias_attr=False)) for _ in range(LAYERS)]
    loss = fluid.layers.sums(total)
    return fluid.layers.mean(fluid.layers.square(loss))


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as place:
        config = fluid.CheckpointConfig(f"{place}/async", max_num_checkpoints=1, step_interval=1)
        trainer = fluid.Trainer(program, fluid.optimizer.Adam(1e-3))
        checkpoints = Checkpoints(config, trainer.session, [trainer.program])
        alone = Folder(f"{place}/sync")
        feed, number = {"x": np.ones((4, 64), "float32")}, iter(range(10**9))

        def steps() -> None:
            for _ in range(STEPS):
                loss = trainer.session.run(feed=feed)[0]
            jax.block_until_ready(loss)

        def synchronous() -> None:
            step = next(number)
            alone.write(step, {n: np.asarray(v) for n, v in trainer.session.state().items()}, {})
            if step:
                alone.delete(step - 1)

        columns: dict[str, list[float]] = {"blocked": [], "sync": [], "steps": [], "steps beside a save": []}
        with checkpoints:
            steps()
            for _ in range(rounds):
                columns["steps"].append(milliseconds(steps))
                columns["blocked"].append(milliseconds(checkpoints.save))
                columns["steps beside a save"].append(milliseconds(steps))
                checkpoints.wait()
                columns["sync"].append(milliseconds(synchronous))
                steps()
        size = sum(v.nbytes for v in trainer.session.state().values()) / 1e6
        print(f"{size:.0f} MB, {rounds} rounds, {STEPS} steps beside each save, {jax.default_backend()}\n")
        print("| what | median ms | least | most |\n|---|---|---|---|")
        for name, found in columns.items():
            print(f"| {name} | {statistics.median(found):.1f} | {min(found):.1f} | {max(found):.1f} |")
        share = statistics.median(b / s for b, s in zip(columns["blocked"], columns["sync"], strict=True))
        print(f"\nthe training thread is blocked for {share:.1%} of a synchronous save")


if __name__ == "__main__":
    main()
