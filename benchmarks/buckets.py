"""Cost of padding and compilations in `fluid.reader.buckets`: five kinds of data, several values of each constant.

    python benchmarks/buckets.py

Each cell has two figures for 2,000 minibatches of 32 rows. A figure is the sum of the padded lengths of the
minibatches, plus the cost of the compilations, divided by the sum of the lengths of the longest rows. A compilation
costs as much as 2 minibatches of the longest row in the first figure, and 40 in the second figure. A figure of 1.00
means that there is no padding, and that compilations cost nothing.
"""

import numpy as np

from fluid.core import FeedSpec
from fluid.reader import buckets
from fluid.reader.columns import read_feed

SPEC = FeedSpec("x", (None, 1), "int64", lod_level=1)
MINIBATCHES, ROWS = 2000, 32
CONSTANTS = {"_PRICE": (1.0, 2.0, 8.0), "_SPARE": (1.25, 1.5, 2.0)}


def lengths() -> dict[str, np.ndarray]:
    """Return the length of the longest row in each minibatch, by the kind of data."""
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
    """Return the cost of padded minibatches and compilations, divided by the sum of `longest`.

    Args:
      longest: the length of the longest row in each minibatch.
      compilation: the cost of one compilation, in minibatches of the longest row of all.
    """
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
