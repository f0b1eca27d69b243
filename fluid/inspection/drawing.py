"""The drawing of a program, as SVG and as DOT."""

import itertools
import json
from collections.abc import Iterator
from html import escape
from typing import Any

from fluid.inspection.graph import Box, boxes_of, layers
from fluid.inspection.layout import LINE, Point, Rectangle, lay_out, size
from fluid.inspection.programs import inspect
from fluid.inspection.repeats import collapse
from fluid.inspection.rows import rows_of
from fluid.inspection.trace import STEPS, Sizes
from fluid.paths import local_path

# Text stands on fills only, so that a drawing can be read on white and on black pages.
_STYLES = {
    "data": 'rx="18" fill="#d3efdf" stroke="#3f9268"',
    "layer": 'rx="5" fill="#d6e4fb" stroke="#5580c4"',
    "plain": 'rx="5" fill="#e9ecf1" stroke="#8a94a6"',
    "operators": 'rx="5" fill="#fbeecb" stroke="#bf9a3a"',
    "output": 'rx="18" fill="#f7dbe3" stroke="#bc5c78"',
    "loop": 'rx="7" fill="#e2daf3" stroke="#8b6fc0"',
    "scope": 'rx="7" fill="#dde1e8" stroke="#8a94a6"',
}


class Drawing:
    """A drawing of the layers of one or several programs, made by `fluid.draw`; a notebook shows it.

    Attributes:
      svg: the text of the drawing, a whole SVG file.
      dot: the same boxes, frames and edges in the language of Graphviz, without positions.
    """

    def __init__(self, svg: str, dot: str):
        self.svg = svg
        self.dot = dot

    def save(self, path: Any) -> None:
        """Write the drawing to a file: DOT if the name ends with .dot or .gv, else SVG."""
        path = local_path(path)
        path.write_text(self.dot if path.suffix in (".dot", ".gv") else self.svg, encoding="utf-8")

    def __repr__(self) -> str:
        return f"Drawing({len(self.svg)} characters of SVG; drawing.save('program.svg') writes them to a file)"

    def _repr_svg_(self) -> str:
        return self.svg


def drawn(target: Any, batch_size: int) -> Drawing:
    """See `fluid.draw`."""
    programs = inspect(target, Sizes(batch_size, STEPS, STEPS))
    root = boxes_of(programs, rows_of(programs))
    collapse(root)
    names = ", ".join(inspected.program.name for inspected in programs)
    return Drawing("\n".join(_svg(names, root)) + "\n", "\n".join(_dot(root)) + "\n")


def _svg(names: str, root: Box) -> Iterator[str]:
    """Return the lines of the SVG.

    Style sheets and ids are not used: in a notebook, the names of all drawings would meet on one page.
    """
    places, lines = lay_out(root)
    left, top, right, bottom = places[root]
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right - left:.0f}" height="{bottom - top:.0f}" '
        f'viewBox="{left:.0f} {top:.0f} {right - left:.0f} {bottom - top:.0f}" style="max-width: 100%; height: auto" '
        'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, Liberation Mono, monospace" font-size="12" '
        f'fill="#1b2430" text-anchor="middle" role="img" aria-label="layers of {escape(names)}">'
    )
    frames = [box for box in reversed(places) if box.inside and box.lines]  # outer ones first
    yield from (_rectangle(places[frame], f'{_STYLES[frame.kind]} fill-opacity="0.1"') for frame in frames)
    yield from map(_line, lines)
    yield from (_text(box, *places[box][:2]) for box in (*frames, *layers([root])))
    yield "</svg>"


def _text(box: Box, left: float, top: float) -> str:
    """Return the rectangle and the text of a layer, or of the title of a frame."""
    width, height = size(box)
    style = _STYLES[box.kind] if box.live else f'{_STYLES[box.kind]} stroke-dasharray="5 4"'
    parts = [_rectangle(Rectangle(left, top, left + width, top + height), style)]
    for number, line in enumerate(box.lines):
        weight = "normal" if number else "bold"
        at = f'x="{left + width / 2:.1f}" y="{top + LINE * (number + 1):.1f}"'
        parts.append(f'<text {at} font-weight="{weight}">{escape(line)}</text>')
    return f"<g><title>{escape(box.hover)}</title>{''.join(parts)}</g>"


def _rectangle(place: Rectangle, style: str) -> str:
    x, y, right, bottom = place
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{right - x:.1f}" height="{bottom - y:.1f}" {style}/>'


def _line(points: list[Point]) -> str:
    """Return an edge with an arrow head: upright between points below each other, else a curve."""
    path = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x, y), (to_x, to_y) in itertools.pairwise(points):
        middle = (y + to_y) / 2
        path += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
    return f'<path d="{path}m-4 -7l4 7l4 -7" fill="none" stroke="#8a94a6" stroke-width="1.4"/>'


def _dot(root: Box) -> Iterator[str]:
    """Return the lines of the DOT text."""
    numbers = {box: number for number, box in enumerate(root.walk())}
    yield "digraph {\nnode [shape=box]"
    yield from _nodes(root.inside, numbers)
    for target in layers([root]):
        yield from (f"{numbers[source]} -> {numbers[target]}" for source in target.inputs)
    yield "}"


def _nodes(boxes: list[Box], numbers: dict[Box, int]) -> Iterator[str]:
    """Return the lines of nodes and clusters in DOT text, each called by its number."""
    for box in boxes:
        label = json.dumps("\n".join(box.lines), ensure_ascii=False)
        if box.inside:
            yield f"subgraph cluster{numbers[box]} {{\nlabel={label}"
            yield from _nodes(box.inside, numbers)
            yield "}"
        else:
            yield f"{numbers[box]} [label={label}, style={'solid' if box.live else 'dashed'}]"
