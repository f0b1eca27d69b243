"""Plots of curves with matplotlib, written to a file or shown in a notebook."""

import io
import math
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid.paths import PathLike, local_path

Curves = Mapping[str, tuple[Sequence[float], Sequence[Any]]]
"""The positions and the values of the points of each curve, by name; in a population a value is `[members]`."""

# The axis is logarithmic if the ratio of the largest to the smallest value is above this number.
_WIDE = 20


def check_matplotlib(who: str) -> Any:
    """Return the class of matplotlib's figures.

    Args:
      who: the caller, for the message.

    Raises:
      ArgumentError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure  # without pyplot there is no global state, and no window
    except ImportError as error:
        raise errors.ArgumentError(
            f"{who} needs the package matplotlib, which is not installed: pip install matplotlib"
        ) from error
    return Figure


def draw_curves(curves: Curves, outputs: Sequence[str], along: str) -> bytes:
    """Draw curves to a PNG, with one set of axes for each output and the curves whose names end in its name.

    Args:
      curves: the curves by name.
      outputs: names of curves that have separate axes.
      along: the label of the horizontal axis, such as "step".
    """
    groups = _groups(list(curves), list(outputs))
    columns = max(min(len(groups), 3), 1)
    rows = math.ceil(len(groups) / columns)
    figure = check_matplotlib("a plot")(figsize=(4.5 * columns, 3 * max(rows, 1)), dpi=100, layout="constrained")
    for i, (title, names) in enumerate(groups.items()):
        axes = figure.add_subplot(rows, columns, i + 1)
        for name in names:
            places, numbers = curves[name]
            # Short curves have markers, so that a curve of one point is visible.
            marker = "o" if len(places) <= 40 else ""
            lines = axes.plot(places, numbers, label=name, linewidth=1.5, marker=marker, markersize=3)
            for line in lines[1:]:  # one line for each member of a population, in the colour of the first
                line.set(label="_", color=lines[0].get_color())
        axes.set(xlabel=along, title=title, yscale=_scale([float(v) for n in names for v in np.ravel(curves[n][1])]))
        axes.grid(alpha=0.3)
        if len(names) > 1:
            axes.legend(frameon=False)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def in_notebook() -> bool:
    """Return whether this code runs in a notebook, such as JupyterLab, VS Code or Colab."""
    if "IPython" not in sys.modules:
        return False
    shell = sys.modules["IPython"].get_ipython()
    return getattr(shell, "kernel", None) is not None


def write_picture(picture: bytes, path: PathLike) -> None:
    """Write a PNG; the file is complete or absent at any time."""
    target = local_path(path)
    partial = f"{target}.partial"
    with open(partial, "wb") as file:
        file.write(picture)
    os.replace(partial, target)


def display_picture(picture: bytes, handle: Any = None) -> Any:
    """Show a PNG in a notebook, or replace the earlier one of `handle`; return the handle."""
    from IPython.display import Image, display

    image = Image(data=picture, format="png")
    if handle is None:
        return display(image, display_id=True)
    handle.update(image)
    return handle


def _groups(names: list[str], outputs: list[str]) -> dict[str, list[str]]:
    """Return the names of curves by axes title: a curve whose name ends in an output joins the axes of the output."""
    groups: dict[str, list[str]] = {output: [output] for output in outputs if output in names}
    for name in (n for n in names if n not in groups):
        fitting = [output for output in outputs if name == output or name.endswith(f"_{output}")]
        groups.setdefault(max(fitting, key=len) if fitting else name, []).append(name)
    return groups


def _scale(values: list[float]) -> str:
    """Return the scale of the axis: "log" for positive values with a large ratio, else "linear"."""
    positive = all(v > 0 for v in values if math.isfinite(v))
    finite = [v for v in values if math.isfinite(v)]
    return "log" if finite and positive and max(finite) > _WIDE * min(finite) else "linear"
