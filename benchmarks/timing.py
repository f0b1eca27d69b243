"""Helpers for all benchmarks: rounds that run the peers alternately, and the table of their medians."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Row(NamedTuple):
    """A line of the report: the name of the measurement, and a number for each peer and round."""

    what: str
    unit: str
    numbers: dict[str, list[float]]
    higher_is_better: bool


def interleave(peers: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """Run the measuring functions `peers` alternately, A B, B A, A B, ..., after one uncounted warm-up round."""
    for measure in peers.values():
        measure()
    numbers: dict[str, list[T]] = {name: [] for name in peers}
    for number in range(rounds):
        order = list(peers) if number % 2 == 0 else list(reversed(peers))
        for name in order:
            numbers[name].append(peers[name]())
        if sys.stderr.isatty():
            print(f"\r  round {number + 1}/{rounds}\r", end="", file=sys.stderr, flush=True)
    return numbers


def rate(steps: int, work: Callable[[], object]) -> float:
    """Run `work`, which makes `steps` steps, and return the steps per second."""
    start = time.perf_counter()
    work()
    return steps / (time.perf_counter() - start)


def table(rows: list[Row]) -> str:
    """Format rows as a Markdown table: medians of fluid and the peer; median and quartiles of the ratio per round."""
    lines = ["| what | unit | fluid | peer | fluid / peer | quartiles |", "|---|---|---|---|---|---|"]
    for row in rows:
        fluid, hand = row.numbers["fluid"], row.numbers["hand"]
        low, middle, high = quartiles(row)
        want = "higher" if row.higher_is_better else "lower"
        lines.append(
            f"| {row.what} | {row.unit} ({want} is better) | {statistics.median(fluid):.4g} "
            f"| {statistics.median(hand):.4g} | {middle:.3f} | {low:.3f} to {high:.3f} |"
        )
    return "\n".join(lines)


def quartiles(row: Row) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile of fluid's ratio to the peer in each round."""
    ratios = [f / h for f, h in zip(row.numbers["fluid"], row.numbers["hand"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return low, middle, high
