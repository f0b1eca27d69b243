"""Training time with default padding, compared with the best of several bucket lists that an expert would try.

    python benchmarks/padding.py [ROUNDS]

Each training has 20 epochs of 1,280 rows in minibatches of 32, in random order, through an embedding, an LSTM and a
maximum over time; its time includes all compilations. The rows are generated, with lengths of five kinds. The lists
have one to four sizes: quantiles of the longest rows of minibatches, rounded up to 8. A figure is the median time with
`buckets=None`, divided by the least median of the lists.
"""

import statistics
import sys
import time

import numpy as np

import fluid

ROWS, BATCH, EPOCHS, WORDS = 1280, 32, 20, 1000


def lengths() -> dict[str, np.ndarray]:
    """Generate the lengths of sequences as they occur in several kinds of data, such as sentences or clicks."""
    random = np.random.default_rng(0)
    return {
        "sentences": np.clip(random.lognormal(2.9, 0.5, ROWS).astype(int), 3, 99),
        "reviews": np.clip(random.lognormal(4.6, 0.6, ROWS).astype(int), 20, 400),
        "clicks": random.geometric(0.15, ROWS),
        "DNA": random.integers(80, 160, ROWS),
        "constant": np.full(ROWS, 100),
    }


def program():
    """Return the loss of a classifier of sequences."""
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    vectors = fluid.layers.fc(fluid.layers.embedding(words, size=[WORDS, 32]), size=4 * 64)
    hidden, _ = fluid.layers.dynamic_lstm(vectors, size=4 * 64, use_peepholes=False)
    scores = fluid.layers.fc(fluid.layers.sequence_pool(hidden, "max"), size=2, act="softmax")
    return fluid.layers.mean(fluid.layers.cross_entropy(scores, label))


def seconds(rows: list[np.ndarray], labels: np.ndarray, buckets: list[int] | None) -> float:
    """Return the seconds of one training, including the construction of the Trainer."""
    start = time.perf_counter()
    reader = fluid.batch(fluid.reader.shuffle(lambda: zip(rows, labels, strict=True), ROWS, seed=0), BATCH)
    fluid.Trainer(program, fluid.optimizer.Adam(1e-3), buckets=buckets).train(reader, EPOCHS, progress=False)
    return time.perf_counter() - start


def lists(found: np.ndarray) -> list[list[int]]:
    """Return the compared lists of buckets (lengths to pad to), shortest first; `found` has the length of each row."""
    longest = np.random.default_rng(1).permutation(found).reshape(-1, BATCH).max(1)
    candidates = []
    for count in (1, 2, 3, 4):
        shares = np.quantile(longest, np.arange(1, count + 1) / count)
        sizes = sorted({int(-(-share // 8) * 8) for share in (*shares[:-1], found.max())})
        if sizes not in candidates:
            candidates.append(sizes)
    return candidates


def main(rounds: int = 3) -> None:
    fluid.set_compilation_cache(None)  # a cache on disk would save the later trainings their compilations
    print("| lengths | default, s | best list, s | list | ratio |\n|---|---|---|---|---|")
    random = np.random.default_rng(2)
    for kind, found in lengths().items():
        rows = [random.integers(0, WORDS, (n, 1)) for n in found]
        labels = random.integers(0, 2, ROWS)
        ways = [None, *lists(found)]
        times = [[seconds(rows, labels, way) for way in ways] for _ in range(rounds)]
        default, *others = [statistics.median(column) for column in zip(*times, strict=True)]
        best = int(np.argmin(others))
        print(
            f"| {kind} | {default:.1f} | {others[best]:.1f} | {ways[1 + best]} | {default / others[best]:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
