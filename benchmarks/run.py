"""Compare fluid with hand-written JAX and optax: `make bench` or `python benchmarks/run.py mlp --rounds 9`."""

import argparse
import importlib
import os
import platform

BENCHMARKS = [
    "mlp",
    "lenet_bn",
    "resnet32",
    "grouped",
    "bigemb",
    "lstm",
    "lstm_ragged",
    "libraries",
    "inference",
    "population",
    "repeat",
    "written",
    "startup",
    "parallel",
    "memory",
    "import_time",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which ones, all by default: {' '.join(BENCHMARKS)}")
    parser.add_argument("--rounds", type=int, default=21)
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")

    from timing import table

    rows = []
    for name in arguments.names or BENCHMARKS:
        rows += importlib.import_module(name).run(arguments.rounds)

    import jax
    import optax

    devices = f"{jax.default_backend()}, {len(os.sched_getaffinity(0))} cores"
    print(f"{arguments.rounds} rounds; {devices}; Python {platform.python_version()}, jax {jax.__version__}, ", end="")
    print(f"optax {optax.__version__}\n")
    print(table(rows))


if __name__ == "__main__":
    main()
