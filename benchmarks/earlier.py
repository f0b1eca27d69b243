"""Comparison of fluid with an earlier commit: the time to the first training step, and training on ragged text.

    python benchmarks/earlier.py COMMIT --rounds 5

Both commits run the same scripts, in processes with an empty compilation cache. The figures are the CPU seconds until
the first training step of the README's net, and the time of 8 epochs of the ragged encoder. The CPU seconds are
measured twice: from the start of the process, and from the call of `Trainer()`.
"""

import argparse
import functools
import os
import pathlib
import subprocess
import tempfile

from startup import encoder, reached
from timing import Row, interleave, table

ROOT = pathlib.Path(__file__).resolve().parent.parent


def first_step(source: str) -> dict[str, float]:
    """Return the seconds until the first training step of a new process, by the name of the clock.

    The process imports fluid from the folder `source`. The function `reached` explains the clocks.
    """
    with tempfile.TemporaryDirectory() as place:
        arguments = ("fluid", "digits", "step", f"{place}/parameters.npz")
        return reached(*arguments, folder=f"{place}/fluid", source=source)


def measure(earlier: str, rounds: int) -> list[Row]:
    sources = {"fluid": str(ROOT), "hand": earlier}
    steps = interleave({peer: functools.partial(first_step, source) for peer, source in sources.items()}, rounds)
    encoders = {peer: functools.partial(encoder, "default", source) for peer, source in sources.items()}
    figures = {
        "README's net, start to first step, CPU": {
            peer: [each["CPU"] for each in all_] for peer, all_ in steps.items()
        },
        "README's net, Trainer() to first step, CPU": {
            peer: [each["CPU, imported"] for each in all_] for peer, all_ in steps.items()
        },
        "ragged encoder, 8 epochs, wall": interleave(encoders, rounds),
    }
    return [Row(f"{what} / at the commit", "s", each, higher_is_better=False) for what, each in figures.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commit")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        tree = os.path.join(place, "earlier")
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", tree, asked.commit], cwd=ROOT, check=True)
        try:
            print(table(measure(tree, asked.rounds)))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)


if __name__ == "__main__":
    main()
