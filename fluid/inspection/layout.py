"""Positions of boxes, frames and edges in a drawing.

A layer stands in the row below everything that it reads, and in the column of the leftmost layer that it reads, or in
the next free one. A frame has rows of its own. An edge passes the rows between its ends in the column of its source if
no layer is in the way, else in a lane to the right of all layers in these rows.
"""

from typing import NamedTuple

from fluid.inspection.graph import Box, layers

MARGIN = 16  # between a frame and its contents
_BESIDE = 26  # between two columns
_BELOW = 30  # between two rows
_LANE = 14  # between an edge in a lane and what it passes

LETTER = 7.4  # width of a letter in a monospace font of size 12: 0.6 of the size, and a little more is safe
LINE = 16  # height of a line of text

Point = tuple[float, float]


class Rectangle(NamedTuple):
    """A box or a frame, in pixels; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float


def size(box: Box) -> Point:
    """Return width and height of a layer, or of the title of a frame."""
    return 20 + LETTER * max(map(len, box.lines), default=0), 8 + LINE * len(box.lines)


def lay_out(root: Box) -> tuple[dict[Box, Rectangle], list[list[Point]]]:
    """Return the rectangles of all boxes in a box and of the box, and the points that each edge goes through.

    Inner boxes come before their frames. An edge goes from the lower side of a layer to the upper side of another.
    """
    frames = [box for box in root.walk() if box.inside]
    home = {box: frame for frame in frames for box in frame.inside}
    edges = [(source, target) for target in layers([root]) for source in target.inputs]
    spans: dict[Box, range] = {}
    rows = _rows(root, 0, spans)
    # A feed stands just above the first layer that reads it, in a row of its own frame.
    owners = {row: frame for frame in reversed(frames) for row in spans[frame]}
    for layer in [layer for layer in rows if not layer.inputs]:
        end = min((rows[target] for source, target in edges if source is layer), default=rows[layer] + 1)
        rows[layer] = max(row for row in range(rows[layer], end) if owners[row] is home[layer])

    # Columns are called by the x of their centres. Feeds stand beside the layers of their row, and leave free the first
    # column, where edges pass.
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
    rights = [0.0] * len(bands)  # the right end of everything in a row
    for layer, row in rows.items():
        x, top = centers[layer] - size(layer)[0] / 2, bands[row][0]
        places[layer] = Rectangle(x, top, x + size(layer)[0], top + size(layer)[1])
        rights[row] = max(rights[row], places[layer].right)

    # Short edges run nearest to the boxes, then those of inner frames. A frame is as wide as what runs in it.
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
    """Return the rows of the layers in a frame, from `first` on; add the rows of the frames to `spans`."""
    rows: dict[Box, int] = {}
    free = below = first  # the row below the last inner frame, and the row below everything
    for box in frame.inside:
        if box.inside:
            rows |= _rows(box, below, spans)
            free = below = spans[box].stop
        else:
            rows[box] = max([free, *(rows[source] + 1 for source in box.inputs if source in rows)])
            below = max(below, rows[box] + 1)
    spans[frame] = range(first, below)
    return rows
