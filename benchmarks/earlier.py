"""Starting and training on ragged text, beside an earlier commit of fluid.

    python benchmarks/earlier.py COMMIT --rounds 5

Both run the same scripts, in processes that find nothing compiled: the CPU seconds to the first training step of the
README's net, and how long the ragged encoder of 8 epochs takes.
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


def first_step(source: str) -> float:
    """CPU seconds of a process with the fluid of a folder, up to its first training step."""
    with tempfile.TemporaryDirectory() as place:
        arguments = ("fluid", "digits", "step", f"{place}/parameters.npz")
        return reached(*arguments, folder=f"{place}/fluid", source=source)["CPU"]


def measure(earlier: str, rounds: int) -> list[Row]:
    rows = []
    for what, work in (
        ("README's net to the first step, CPU", first_step),
        ("ragged encoder, 8 epochs, wall", functools.partial(encoder, "default")),
    ):
        peers = {"fluid": functools.partial(work, str(ROOT)), "hand": functools.partial(work, earlier)}
        rows.append(Row(f"{what} / at the commit", "s", interleave(peers, rounds), higher_is_better=False))
    return rows


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
