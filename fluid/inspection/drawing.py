"""Drawings: positions of boxes, frames and edges, as SVG and DOT.

A layer stands in a row below all layers that it reads. Its column is the column of the leftmost layer that it reads, or
the next free column. A frame has rows of its own. An edge runs from its source to its target. In the rows between them,
the edge runs in the column of its source if no layer is in the way, else to the right of all layers in these rows.
"""

import itertools
import json
from collections.abc import Iterator
from html import escape
from typing import Any, NamedTuple

from fluid._util.paths import local_path
from fluid.inspection.graph import Box, boxes_of, collapse, layers
from fluid.inspection.programs import inspect
from fluid.inspection.table import rows_of
from fluid.inspection.trace import STEPS, Sizes

MARGIN = 16  # pixels between a frame and its contents
_BESIDE = 26  # pixels between two columns
_BELOW = 30  # pixels between two rows
_LANE = 14  # pixels between an edge beside boxes and these boxes

LETTER = 7.4  # pixels: the width of a letter in a monospace font of size 12, 0.6 * 12, and a margin
LINE = 16  # pixels: height of a line of text

Point = tuple[float, float]


class Rectangle(NamedTuple):
    """The edges of a box or frame in the drawing, in pixels; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float


def size(box: Box) -> Point:
    """Return the width and height in pixels of the box of a layer, or of the title of a frame."""
    return 20 + LETTER * max(map(len, box.lines), default=0), 8 + LINE * len(box.lines)


def lay_out(root: Box) -> tuple[dict[Box, Rectangle], list[list[Point]]]:
    """Return the rectangles of `root` and of all boxes inside it, and the points that each edge goes through.

    In the result, inner boxes come before their frames. An edge goes from the lower side of one layer to the upper side
    of another.
    """
    frames = [box for box in root.walk() if box.inside]
    home = {box: frame for frame in frames for box in frame.inside}
    edges = [(source, target) for target in layers([root]) for source in target.inputs]
    spans: dict[Box, range] = {}
    rows = _rows(root, 0, spans)
    # A feed stands directly above the first layer that reads it, in a row of the frame that contains the feed.
    owners = {row: frame for frame in reversed(frames) for row in spans[frame]}
    for layer in [layer for layer in rows if not layer.inputs]:
        end = min((rows[target] for source, target in edges if source is layer), default=rows[layer] + 1)
        rows[layer] = max(row for row in range(rows[layer], end) if owners[row] is home[layer])

    # The x of its centre stands for a column. Feeds stand beside the layers of their row. There, the first column stays
    # free, because edges pass there.
    column = max(size(layer)[0] for layer in rows) + _BESIDE
    centers: dict[Box, float] = {}
    cells = set()
    for layer in sorted(rows, key=lambda layer: (rows[layer], not layer.inputs)):
        beside = column if rows[layer] > spans[home[layer]].start else 0.0
        x = min((centers[source] for source in layer.inputs), default=beside)
        while (rows[layer], x) in cells:
            x += column
        cells.add((rows[layer], x))
        centers[layer] = x

    bands: list[tuple[float, float]] = []  # top and bottom of each row
    y = 0.0
    for row in spans[root]:
        top = y + sum(size(frame)[1] + MARGIN for frame in frames if spans[frame].start == row)
        y = top + max((size(layer)[1] for layer in rows if rows[layer] == row), default=0)
        bands.append((top, y))
        y += _BELOW + sum(MARGIN for frame in frames if spans[frame].stop == row + 1)
    places: dict[Box, Rectangle] = {}
    rights = [0.0] * len(bands)  # the right end of all boxes in a row
    for layer, row in rows.items():
        x, top = centers[layer] - size(layer)[0] / 2, bands[row][0]
        places[layer] = Rectangle(x, top, x + size(layer)[0], top + size(layer)[1])
        rights[row] = max(rights[row], places[layer].right)

    # Edges of inner frames are placed before edges of outer frames, and short edges before long ones, so these run
    # nearest to the boxes. A frame is wide enough for its boxes and edges.
    passed = {(source, target): range(rows[source] + 1, rows[target]) for source, target in edges}
    lanes = {edge: centers[edge[0]] for edge in edges}
    for frame in frames:
        for edge in sorted((e for e in edges if home[e[1]] is frame), key=lambda e: len(passed[e])):
            if any((row, lanes[edge]) in cells for row in passed[edge]):
                lanes[edge] = max(rights[row] for row in passed[edge]) + _LANE
                rights = [lanes[edge] if row in passed[edge] else right for row, right in enumerate(rights)]
        inside = [places[box] for box in frame.inside]
        left = min(place.left for place in inside) - MARGIN
        top = min(place.top for place in inside) - MARGIN - size(frame)[1]
        right = max(left + size(frame)[0], *(rights[row] for row in spans[frame])) + MARGIN
        places[frame] = Rectangle(left, top, right, max(place.bottom for place in inside) + MARGIN)
        rights = [right if row in spans[frame] else r for row, r in enumerate(rights)]

    lines = []
    for source, target in edges:
        first, last = rows[source], rows[target]
        line = [(centers[source], places[source].bottom), (centers[source], bands[first][1])]
        if last > first + 1:
            line += [(lanes[source, target], bands[first + 1][0]), (lanes[source, target], bands[last - 1][1])]
        lines.append([*line, (centers[target], bands[last][0])])
    return places, lines


def _rows(frame: Box, first: int, spans: dict[Box, range]) -> dict[Box, int]:
    """Return the row of each layer in a frame, counted from `first`; add the range of rows of each frame to `spans`."""
    rows: dict[Box, int] = {}
    free = below = first  # rows below the last inner frame, and below all boxes until now
    for box in frame.inside:
        if box.inside:
            rows |= _rows(box, below, spans)
            free = below = spans[box].stop
        else:
            rows[box] = max([free, *(rows[source] + 1 for source in box.inputs if source in rows)])
            below = max(below, rows[box] + 1)
    spans[frame] = range(first, below)
    return rows


# Text stands only on filled boxes, so that it is readable on white and on black pages.
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
    """A drawing of the layers of one or several programs, returned by `fluid.draw`; a notebook shows the drawing.

    Attributes:
      svg: the drawing as the text of an SVG file.
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
    """Return the drawing of the programs of a target; `fluid.draw` explains the arguments."""
    programs = inspect(target, Sizes(batch_size, STEPS, STEPS))
    root = boxes_of(programs, rows_of(programs))
    collapse(root)
    names = ", ".join(inspected.program.name for inspected in programs)
    return Drawing("\n".join(_svg(names, root)) + "\n", "\n".join(_dot(root)) + "\n")


def _svg(names: str, root: Box) -> Iterator[str]:
    """Return the lines of the SVG file.

    Style sheets and ids are not used: a notebook shows several drawings on one page, and equal names would collide.
    """
    places, lines = lay_out(root)
    left, top, right, bottom = places[root]
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right - left:.0f}" height="{bottom - top:.0f}" '
        f'viewBox="{left:.0f} {top:.0f} {right - left:.0f} {bottom - top:.0f}" style="max-width: 100%; height: auto" '
        'font-family="ui-monospace, Menlo, Consolas, DejaVu Sans Mono, Liberation Mono, monospace" font-size="12" '
        f'fill="#1b2430" text-anchor="middle" role="img" aria-label="layers of {escape(names)}">'
    )
    frames = [box for box in reversed(places) if box.inside and box.lines]  # outer frames first
    yield from (_rectangle(places[frame], f'{_STYLES[frame.kind]} fill-opacity="0.1"') for frame in frames)
    yield from map(_line, lines)
    yield from (_text(box, *places[box][:2]) for box in (*frames, *layers([root])))
    yield "</svg>"


def _text(box: Box, left: float, top: float) -> str:
    """Return the SVG of the rectangle and the text of a layer, or of the title of a frame."""
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
    """Return the SVG of an edge with an arrow head: vertical between points of equal x, else a curve."""
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
    """Return the lines of nodes and clusters in DOT text; the names of nodes and clusters are `numbers`."""
    for box in boxes:
        label = json.dumps("\n".join(box.lines), ensure_ascii=False)
        if box.inside:
            yield f"subgraph cluster{numbers[box]} {{\nlabel={label}"
            yield from _nodes(box.inside, numbers)
            yield "}"
        else:
            yield f"{numbers[box]} [label={label}, style={'solid' if box.live else 'dashed'}]"
