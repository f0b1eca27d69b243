"""Padding and compilations of `fluid.reader.buckets` for lengths of several kinds, with other constants.

    python benchmarks/buckets.py

A figure is the cost of 2,000 minibatches of 32 rows, in padded steps, divided by the steps of their longest rows; a
compilation costs as much as 2 or, after the slash, 40 minibatches of the longest row. 1.00 has no padding and no cost
of compilations.
"""

import numpy as np

from fluid.core import FeedSpec
from fluid.reader import buckets
from fluid.reader.columns import read_feed

SPEC = FeedSpec("x", (None, 1), "int64", lod_level=1)
MINIBATCHES, ROWS = 2000, 32
CONSTANTS = {"_PRICE": (1.0, 2.0, 8.0), "_SPARE": (1.25, 1.5, 2.0)}


def lengths() -> dict[str, np.ndarray]:
    """Return the longest row of each minibatch, by the kind of data."""
    random = np.random.default_rng(0)
    texts = np.minimum(random.lognormal(3, 0.7, (MINIBATCHES, ROWS)).astype(int) + 1, 400)
    grouped = np.sort(texts.ravel()).reshape(MINIBATCHES, ROWS)
    return {
        "texts": texts.max(1),
        "texts, grouped by length": random.permutation(grouped).max(1),
        "texts, sorted": grouped.max(1),
        "equal lengths": np.full(MINIBATCHES, 100),
        "short and long": random.choice([12, 100], MINIBATCHES),
    }


def cost(longest: np.ndarray, compilation: int) -> float:
    """Return the cost of padding and compilations, relative to the steps of the longest rows."""
    price = compilation * ROWS * longest.max()
    chosen = buckets.Buckets({"x": SPEC}, price=price)
    sizes = [chosen.pad({"x": read_feed(SPEC, [[1] * n] + [[1]] * (ROWS - 1))})["x"].shape[1] for n in longest]
    compilations = len(set(sizes)) * compilation * longest.max()
    return (sum(sizes) + compilations) / longest.sum()


def main() -> None:
    data = lengths()
    print(f"| constant | {' | '.join(data)} |\n|{'---|' * (len(data) + 1)}")
    for name, values in CONSTANTS.items():
        usual = getattr(buckets, name)
        for value in values:
            setattr(buckets, name, value)
            row = " | ".join(f"{cost(longest, 2):.2f} / {cost(longest, 40):.2f}" for longest in data.values())
            print(f"| {name} = {value:g}{' (used)' if value == usual else ''} | {row} |", flush=True)
        setattr(buckets, name, usual)


if __name__ == "__main__":
    main()
