"""Compare fluid with hand-written JAX and PyTorch on a GPU, in less than ten minutes: `python benchmarks/gpu/run.py`.

The benchmarks are a GPT and ResNet-50 in bfloat16, a small perceptron whose step is shorter than its dispatch, and a
table of a million rows of which a step uses about a thousand. Without a GPU, only small versions of the GPT and of
ResNet-50 run, to check that the code works; their numbers mean nothing. PyTorch is measured if it is installed.
"""

import argparse
import importlib.util
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import bigemb
import gpt
import jax
import mlp
import products
import resnet50
from timing import Row, table


def rows(rounds: int, small: bool) -> list[Row]:
    """Run all benchmarks, or only the small versions, and return their rows."""
    peers = {"torch"} if importlib.util.find_spec("torch") else set()
    rate = products.operations_per_second(small)
    found = [*gpt.run(rounds, small, peers, rate), *resnet50.run(rounds, small, peers)]
    return found if small else [*found, *mlp.run(rounds), *bigemb.by_size(rounds)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", action="store_true", help="run it in small, as on a machine without a GPU")
    arguments = parser.parse_args()
    small = arguments.small or jax.default_backend() == "cpu"
    print(table(rows(arguments.rounds, small)))
    print(f"\n{arguments.rounds} rounds; {jax.devices()[0].device_kind}; jax {jax.__version__}", end="")
    print("; in small, so that the numbers mean nothing" if small else "")


if __name__ == "__main__":
    main()
