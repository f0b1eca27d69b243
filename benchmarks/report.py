"""Save rows of benchmarks in FIGURES.md, and write the ten rows of README.md and `ratios.svg` from FIGURES.md.

    python benchmarks/run.py mlp | python benchmarks/report.py "By hand"
    python benchmarks/report.py

The first command reads rows from stdin, replaces the rows of the section that have the same names, and adds the other
rows. The second command only writes README.md and `ratios.svg`.
"""

import pathlib
import re
import sys
from typing import NamedTuple

HERE = pathlib.Path(__file__).parent
FIGURES, README, PICTURE = HERE / "FIGURES.md", HERE / "README.md", HERE / "ratios.svg"
HEADER = "| what | unit | fluid | peer | fluid / peer | quartiles |\n|---|---|---|---|---|---|\n"
TEN = [
    "training, MLP 64-200-200-10",
    "training, LeNet with batch norm, NCHW",
    "training, ResNet-32, NCHW",
    "training, LSTM of 128, 100 steps",
    "lstm_ragged, 1 to 400 words, most short",
    "bigemb, sparse / hand-written dense",
    "population of 16 MLPs 64-32-32-10, batch 32 / 16 trainings in turn",
    "inference, LeNet, NCHW, batch 1, p50",
    "inference, LeNet, NCHW, batch 256",
    "to the first step, the README's net, empty cache, wall",
]
PEERS = {"JAX by hand": "#1f77b4", "Keras 3 on JAX": "#d62728", "Flax NNX": "#2ca02c", "PyTorch": "#ff7f0e"}
PLOTTED = {
    "train a perceptron": ("training, MLP 64-200-200-10", "training, mlp"),
    "train LeNet": ("training, LeNet with batch norm, NCHW", "training, lenet"),
    "train ResNet-32": ("training, ResNet-32, NCHW", "training, resnet32"),
    "train an LSTM": ("training, LSTM of 128, 100 steps", "training, lstm"),
    "LeNet, one image": ("inference, LeNet, NCHW, batch 1, p50", "inference, LeNet, batch 1, p50"),
    "LeNet, 256 images": ("inference, LeNet, NCHW, batch 256", "inference, LeNet, batch 256"),
}


class Figure(NamedTuple):
    """A row of a table: its line, and the relative speed of fluid (lower quartile, median, upper quartile)."""

    line: str
    speed: tuple[float, float, float]


def read(text: str) -> dict[str, Figure]:
    """Return all rows of a Markdown text that have a ratio, by the name of the measurement."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[1].endswith(" is better)"):
            ratios = [float(number) for number in (*cells[5].split(" to "), cells[4])]
            if "(lower" in cells[1]:
                ratios = [1 / ratio for ratio in ratios]
            low, middle, high = sorted(ratios)
            found[cells[0]] = Figure(line, (low, middle, high))
    return found


def merged(text: str, section: str, new: dict[str, Figure]) -> str:
    """Return the text of FIGURES.md with new rows in the first table of a section."""
    parts = re.split(r"(?m)^(?=## )", text)
    at = [i for i, part in enumerate(parts) if part.startswith(f"## {section}\n")]
    if not at:
        titles = ", ".join(repr(part.splitlines()[0][3:]) for part in parts if part.startswith("## "))
        sys.exit(f"FIGURES.md has no section {section!r}; there are {titles}")
    part = parts[at[0]]
    rows = {what: figure.line for what, figure in (read(part) | new).items()}
    before, _, rest = part.partition(HEADER)
    after = rest[re.match(r"(?:\|.*\n)*", rest).end() :]  # type: ignore[union-attr]
    parts[at[0]] = before + HEADER + "".join(f"{line}\n" for line in rows.values()) + after
    return "".join(parts)


def draw(figures: dict[str, Figure]) -> None:
    """Draw the speed of fluid relative to each peer, with quartiles, on a logarithmic axis."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fluid"  # a fixed salt, so equal figures have equal SVG files
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
    for row, (by_hand, others) in enumerate(PLOTTED.values()):
        names = [by_hand, *(f"{others}, fluid / {peer}" for peer in list(PEERS)[1:])]
        for place, (name, (peer, color)) in enumerate(zip(names, PEERS.items(), strict=True)):
            low, middle, high = figures[name].speed
            y = row + (place - 1.5) * 0.18
            axes.plot([low, high], [y, y], color=color, linewidth=2, label=peer if row == 0 else None)
            axes.plot(middle, y, "o", color=color, markersize=5)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    ticks = [0.5, 0.75, 1, 1.5, 2]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
    axes.set_yticks(range(len(PLOTTED)), list(PLOTTED))
    axes.invert_yaxis()
    axes.set_xlabel("fluid is this many times as fast as the peer (median and quartiles)")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(loc="lower left", fontsize=8)
    figure.savefig(PICTURE, metadata={"Date": None})


def main(arguments: list[str]) -> None:
    """Update the README's table and picture from FIGURES.md; first save the rows of stdin, if a section is named."""
    if arguments:
        new = read(sys.stdin.read())
        if not new:
            sys.exit("no rows on stdin; run a benchmark in front: python benchmarks/run.py mlp | ...")
        FIGURES.write_text(merged(FIGURES.read_text(encoding="utf-8"), arguments[0], new), encoding="utf-8")
    figures = read(FIGURES.read_text(encoding="utf-8"))
    text = README.read_text(encoding="utf-8")
    start = text.index(HEADER) + len(HEADER)
    end = start + re.match(r"(?:\|.*\n)*", text[start:]).end()  # type: ignore[union-attr]
    rows = "".join(f"{figures[what].line}\n" for what in TEN)
    README.write_text(text[:start] + rows + text[end:], encoding="utf-8")
    draw(figures)


if __name__ == "__main__":
    main(sys.argv[1:])
