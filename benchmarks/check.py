"""A check of new ratios against FIGURES.md: `make bench-check` or `python benchmarks/check.py mlp`.

The check fails if a row is worse than the committed row. If higher is better, a row is worse if its upper quartile is
below the committed lower quartile by more than the fraction `--tolerance`. If lower is better, a row is worse if its
lower quartile is above the committed upper quartile by more than this fraction. Run the check on the machine on which
FIGURES.md was measured, while no other program runs, because ratios depend slightly on the machine.
"""

import argparse
import importlib
import pathlib
import sys

from timing import Row, quartiles, table

FIGURES = pathlib.Path(__file__).parent / "FIGURES.md"
NAMES = ["mlp", "lenet_bn", "inference", "repeat"]


def committed(text: str) -> dict[str, tuple[float, float]]:
    """Return the lower and the upper quartile that the text of FIGURES.md records for each measurement, by name."""
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if " is better)" in line
    ]
    return {what: tuple(map(float, between.split(" to "))) for what, *_, between in cells}  # type: ignore[misc]


def verdict(row: Row, known: dict[str, tuple[float, float]], tolerance: float) -> str | None:
    """Return a message if a new measurement is worse than the committed row, or None.

    Args:
      row: the new measurement.
      known: the quartiles of the committed rows.
      tolerance: the fraction by which a ratio may be worse.
    """
    if row.what not in known:
        return f"{row.what}: benchmarks/FIGURES.md has no such row"
    before = known[row.what]
    low, middle, high = quartiles(row)
    is_worse = high < before[0] * (1 - tolerance) if row.higher_is_better else low > before[1] * (1 + tolerance)
    if not is_worse:
        return None
    return f"{row.what}: {middle:.3f} ({low:.3f} to {high:.3f}), committed {before[0]:.3f} to {before[1]:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which benchmarks, by default {' '.join(NAMES)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tolerance", type=float, default=0.1)
    arguments = parser.parse_args()
    rows = [row for name in arguments.names or NAMES for row in importlib.import_module(name).run(arguments.rounds)]
    print(table(rows))
    known = committed(FIGURES.read_text(encoding="utf-8"))
    wrong = [said for row in rows if (said := verdict(row, known, arguments.tolerance))]
    sys.exit("worse than committed:\n" + "\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
