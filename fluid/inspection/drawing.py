"""Drawings: the graph of a program as SVG and DOT, and the positions of its boxes, frames and edges in SVG.

A drawing has a box (small rectangle) for each layer, and an edge (arrow) from each layer to every layer that reads its
result. A frame (large rectangle) surrounds the layers of a program, a name scope or a loop. Repeated blocks are drawn
as one block in a frame. A layer stands in a row below all layers that it reads. Its column is the column of the
leftmost layer that it reads, or the next free column. Only boxes inside a frame stand in the rows of this frame. If
there are rows between the two layers of an edge, the edge crosses these rows in the column of its first layer if no box
is there, else to the right of all boxes in these rows.
"""

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, NamedTuple

from fluid._util.paths import local_path
from fluid._util.text import counted
from fluid.core.equations import is_literal
from fluid.inspection.inspected import Inspected, inspect
from fluid.inspection.partition import STEPS, Part, Partition, Sizes
from fluid.inspection.summary_table import Row, rows_of


class Flow:
    """A map of the data flow of a program: finds the layers that compute the values that another layer reads."""

    def __init__(self, found: Partition):
        self._found = found
        self._order = {part: n for n, part in enumerate(part for top in found.parts for part, _ in top.walk())}
        # `_parts` has, for the `id` of each JAX variable, the parts (such as layers) that compute or name the variable.
        # Parts that contain loops are left out.
        self._parts: dict[int, list[Part]] = {}
        for part in self._order:
            for variable in () if part.inside else (part.variable, *(v for e in part.equations for v in e.outvars)):
                self._parts.setdefault(id(variable), []).append(part)

    def inputs(self, part: Part) -> list[Part]:
        """Return the parts (such as layers) whose results the part `part` reads; `part` must not contain a loop."""
        read = [variable for equation in part.equations for variable in equation.invars]
        return self._sources(read if part.equations else [part.variable], part)

    def makers(self, variable: Any) -> list[Part]:
        """Return the parts (such as layers) that compute `variable`, an output of the program."""
        return self._sources([variable], None)

    def _sources(self, variables: Sequence[Any], reader: Part | None, lengths: bool = False) -> list[Part]:
        """Return the parts (such as layers) that compute `variables`; also search inside loops.

        With `reader`, the part that reads the variables, only parts before `reader` are returned.
        """
        found = self._found
        end = len(self._order) if reader is None else self._order[reader]
        waiting: list[tuple[Any, Part | None]] = [(variable, None) for variable in variables]
        seen = set()
        # `reached` holds the parts (such as layers) found so far, each with the loop that contains it, or None.
        reached: dict[tuple[Part, Part | None], None] = {}
        for variable, loop in waiting:  # the body of this loop appends more variables to `waiting`
            if variable is None or is_literal(variable):  # a parameter that no layer reads has the variable None
                continue
            if (variable, loop) in seen or (variable in found.lengths and not lengths):
                continue
            seen.add((variable, loop))
            parts = [part for part in self._parts.get(id(variable), ()) if self._order[part] < end]
            equation = found.makers.get(variable)
            if parts:
                reached[parts[-1], loop] = None
            elif variable in found.outer:
                waiting.append((found.outer[variable], loop))
            elif equation is not None:
                read = [found.inner[variable]] if variable in found.inner else equation.invars
                waiting += [(v, found.owners.get(id(equation), loop)) for v in read]
        # The sources of a layer are the layers that compute its inputs; the drawing connects them with the layer. A
        # layer inside a loop may compute the results of the loop. Then layers that only compute initial values of the
        # loop are no sources of these results.
        inside = {loop: {part for part, _ in loop.walk()} for _, loop in reached if loop is not None}
        left = {loop for loop, parts in inside.items() if reader not in parts and any(p in parts for p, _ in reached)}
        sources = list(dict.fromkeys(part for part, loop in reached if loop not in left or part in inside[loop]))
        # The sources of a layer compute the values that the layer reads. Nearly every sequence layer reads the lengths
        # of sequences. So the layer that computes the lengths counts as a source only if there is no other source.
        return sources if sources or lengths else self._sources(variables, reader, lengths=True)


@dataclass(eq=False)
class Box:
    """A rectangle in the drawing of a program: a layer, or a frame around other boxes.

    Attributes:
      kind: "data", "layer" (with parameters), "plain" (without), "operators" or "output". A frame is a "scope" (a name
        scope, or a program) or a "loop" (a loop, or repeated blocks).
      lines: the lines of text in the box; the first line is the name of the layer. A frame has one line, its title, or
        no line. The title ends with "× n" if the frame stands for n steps of a loop or n repeated blocks.
      hover: text shown while the pointer rests on the box, or on the title of the frame.
      inside: the boxes in a frame, in the order of the program; empty for a layer.
      inputs: the boxes of the layers whose results this layer reads; they come earlier in the program.
      live: True if an output of the program depends on the layer.
      structure: the kind of a layer, the shape of its result and the sizes of its parameters. Layers of repeated blocks
        are drawn as one layer only if their structures are equal. None for a layer that is never merged with another
        layer.
    """

    kind: str
    lines: list[str]
    hover: str = ""
    inside: "list[Box]" = field(default_factory=list)
    inputs: "list[Box]" = field(default_factory=list)
    live: bool = True
    structure: tuple[str, ...] | None = None

    def walk(self) -> "Iterator[Box]":
        """Iterate over all boxes inside this box, inner boxes before their frames, and over this box last."""
        for box in self.inside:
            yield from box.walk()
        yield self


def layers(boxes: Iterable[Box]) -> list[Box]:
    """Return the boxes of a drawing that stand for layers, also the boxes inside frames, but not the frames."""
    return [box for outer in boxes for box in outer.walk() if not box.inside]


def boxes_of(programs: Sequence[Inspected], rows: Iterable[Row]) -> Box:
    """Return the outer frame of a drawing, which contains the boxes of all drawn programs."""
    left = iter(rows)
    root = Box("scope", [])
    for inspected in programs:
        made: dict[Part, Box] = {}
        inside = _boxes(inspected.partition.parts, left, made, ())
        flow = Flow(inspected.partition)
        outputs = _outputs(inspected, flow)
        inputs = {box: flow.inputs(part) for part, box in made.items()} | outputs
        for box, sources in inputs.items():
            box.inputs = [made[source] for source in sources]
        for part in set(made).difference(inspected.partition.parts, *inputs.values()):
            if part.live:
                made[part].lines.append("for the next step")
        inside += outputs
        root.inside += inside if len(programs) == 1 else [Box("scope", [inspected.program.name], inside=inside)]
    return root


def _outputs(inspected: Inspected, flow: Flow) -> dict[Box, list[Part]]:
    """Return a box of the drawing for each output of a program, and the parts (such as layers) that compute it."""
    count = len(inspected.outputs)
    names = inspected.program.output_names or (["output"] if count == 1 else [f"output {i}" for i in range(count)])
    minimised = [
        (flow.makers(loss), f"minimised by {type(minimize.optimizer).__name__}")
        for minimize, loss in zip(inspected.program.minimizes, inspected.losses, strict=True)
    ]
    found = {}
    for name, variable in zip(names, inspected.outputs, strict=True):
        sources = flow.makers(variable)
        found[Box("output", [name, *(by for makers, by in minimised if makers == sources)])] = sources
    return found


def _boxes(parts: Sequence[Part], rows: Iterator[Row], made: dict[Part, Box], scopes: tuple[str, ...]) -> list[Box]:
    """Create the boxes for the drawing of a program: one for each part (such as a layer).

    Each loop and each name scope gets a frame around its boxes.
    """
    found: list[Box] = []
    path: tuple[str, ...] = ()
    for part in parts:
        row = next(rows)
        path = path if row.operators else tuple(filter(None, row.scope.split("/")))
        name = row.kind if row.operators else row.title.removeprefix("/".join((*path, "")))
        if part.inside:
            inside = _boxes(part.inside, rows, made, (*path, row.name.rpartition("/")[2]))
            box = Box("loop", [name if row.steps is None else f"{name} × {row.steps}"], row.site, inside)
        else:
            box = made[part] = _layer(row, name)
        around = found
        for scope in path[len(scopes) :] if path[: len(scopes)] == scopes else ():
            if not around or (around[-1].kind, around[-1].lines) != ("scope", [scope]):
                around.append(Box("scope", [scope]))
            around = around[-1].inside
        around.append(box)
    return found


def _layer(row: Row, name: str) -> Box:
    """Return the box that stands for a layer, a feed or operators in a drawing; `row` describes it in the summary."""
    numbers = row.trainable + row.frozen
    parameters = counted(numbers, "parameter") if numbers else "shared parameters" if row.shared else ""
    kind = "data" if row.kind == "data" else "operators" if row.operators else "layer" if parameters else "plain"
    lines = [line for line in (name, row.output, parameters + " (frozen)" * bool(row.frozen)) if line]
    hover = "\n".join(filter(None, [row.name, row.output, *row.parameters, *row.shared, row.site]))
    structure = None if kind == "data" else (row.kind, row.output, row.numbers)
    return Box(kind, lines, hover, live=row.live, structure=structure)


# Repeated blocks are drawn as one block only if this saves at least `_WORTHWHILE` boxes; otherwise the boxes themselves
# are easier to read.
_WORTHWHILE = 4


def collapse(root: Box) -> None:
    """Shorten the drawing of a program: draw consecutive blocks (lists of boxes) of equal structure as one block.

    A frame around this block shows the number of blocks. The blocks may be in any frame inside `root`, the outer frame
    of the drawing. Each block must read a result of the block before it.
    """
    for frame in [box for box in root.walk() if box.inside]:
        frame.inside = _collapsed(frame.inside, root)


def _collapsed(boxes: list[Box], root: Box) -> list[Box]:
    """Shorten a drawing: replace consecutive equal blocks in a list of boxes by one block with a title like "× 12"."""
    start, period, times = _longest_run(boxes)
    if not times:
        return boxes
    end = start + times * period
    _merge([layers(boxes[i : i + period]) for i in range(start, end, period)], root)
    shown, title, first = boxes[start : start + period], f"× {times}", boxes[start]
    if period == 1 and first.kind == "scope":
        shown, title = first.inside, f"{first.lines[0]} to {boxes[end - 1].lines[0]}: {title}"
    repeated = Box("loop", [title], inside=_collapsed(shown, root))
    return [*_collapsed(boxes[:start], root), repeated, *_collapsed(boxes[end:], root)]


def _longest_run(boxes: list[Box]) -> tuple[int, int, int]:
    """Find the repeated blocks (lists of boxes) that save the most boxes if they are drawn as one block."""
    keys = [_structure(box) for box in boxes]
    counts = [0, *itertools.accumulate(len(layers([box])) for box in boxes)]
    best = (_WORTHWHILE, -math.inf, 0, 0, 0)
    for period in range(1, len(boxes) // 2 + 1):
        for start in range(len(boxes) - 2 * period + 1):
            second = start + period
            if counts[-1] - counts[second] < best[0] or keys[start:second] != keys[second : second + period]:
                continue
            handed = _handed([boxes[i : i + period] for i in range(start, len(boxes), period)])
            # In a drawing, a series of equal blocks (lists of boxes) is drawn as one block. Several series may save
            # equally many boxes. Choose the series whose blocks pass the fewest values to each other: such blocks most
            # likely begin and end like the blocks in the user's code. The boxes before a series often resemble the end
            # of a block. So if several series are equally good, choose the last one.
            saved = len(handed) * (counts[second] - counts[start])
            best = max(best, (saved, -sum(handed), start, period, len(handed) + 1))
    return best[2:]


def _handed(blocks: Sequence[list[Box]]) -> list[int]:
    """Count for each block (list of drawn boxes) the layers of the block that the next block reads.

    The blocks are a series of equal blocks. Stop at the first block that differs from the blocks before it.
    """
    pattern, before = _pattern(blocks[0])
    handed: list[int] = []
    following: dict[Box, Box] = {}
    for last, block in itertools.pairwise(blocks):
        again, outside = _pattern(block)
        common = set(outside).intersection(layers(last))
        # Blocks are consecutive lists of boxes with equal structure. Each block reads some layers outside itself. The
        # first block may read other outside layers than the second block, because no equal block comes before it. From
        # the third block on, compare each outside layer with the outside layer that the previous block reads there. It
        # must be the same layer, or the corresponding layer one block later.
        alike = not handed or all(b in (a, following.get(a)) for a, b in zip(before, outside, strict=False))
        if again != pattern or not common or not alike:
            break
        handed.append(len(common))
        following |= zip(layers(last), layers(block), strict=True)
        before = outside
    return handed


def _pattern(block: list[Box]) -> tuple[object, list[Box]]:
    """Describe a block (a list of boxes in the drawing of a program) by its structure."""
    inner = layers(block)
    numbers = {layer: number for number, layer in enumerate(inner)}
    wiring = [[numbers.setdefault(source, -len(numbers)) for source in layer.inputs] for layer in inner]
    return ([_structure(box) for box in block], wiring), list(numbers)[len(inner) :]


def _structure(box: Box) -> object:
    """Return a value that is equal for boxes of equal structure; the names of the boxes do not matter."""
    if box.inside:
        times = box.lines[0].rpartition("×")[2] if box.kind == "loop" else ""
        return times, [_structure(inner) for inner in box.inside]
    return box.structure or object()


def _merge(blocks: Sequence[Sequence[Box]], root: Box) -> None:
    """In a drawing, let the first of several equal blocks (lists of layers) represent all blocks.

    The edges (arrows) between the blocks are removed.
    """
    turns = {box: turn for turn, block in enumerate(blocks) for box in block}
    shown = {box: same[0] for same in zip(*blocks, strict=True) for box in same}
    for same in zip(*blocks, strict=True):
        same[0].hover = ", ".join(box.lines[0] for box in same) + f"\n{same[0].hover}"
        same[0].inputs = [s for box in same for s in box.inputs if turns.get(s, turns[box]) == turns[box]]
    for layer in layers([root]):
        layer.inputs = list(dict.fromkeys(shown.get(source, source) for source in layer.inputs))


MARGIN = 16  # in a drawing, the pixels between a frame and the boxes inside
_BESIDE = 26  # pixels between two columns of boxes in a drawing of a program
_BELOW = 30  # pixels between two rows of boxes
_LANE = 14  # pixels between boxes and an arrow that runs beside the boxes

LETTER = 7.4  # width of a letter in a monospace font of size 12 (0.6 * 12), plus a margin, in pixels
LINE = 16  # height of a line of text in a drawing, in pixels

Point = tuple[float, float]


class Rectangle(NamedTuple):
    """The sides of a box or frame in the drawing, in pixels; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float


def size(box: Box) -> Point:
    """Return width and height in pixels, in a drawing of a program: of a layer's box, or of a frame's title."""
    return 20 + LETTER * max(map(len, box.lines), default=0), 8 + LINE * len(box.lines)


def lay_out(root: Box) -> tuple[dict[Box, Rectangle], list[list[Point]]]:
    """Compute a drawing: the rectangles of the frame `root` and of all boxes inside it, and the points of each edge.

    In the result, inner boxes come before their frames. An edge (arrow) goes from the lower side of one layer to the
    upper side of another layer.
    """
    frames = [box for box in root.walk() if box.inside]
    home = {box: frame for frame in frames for box in frame.inside}
    edges = [(source, target) for target in layers([root]) for source in target.inputs]
    spans: dict[Box, range] = {}
    rows = _rows(root, 0, spans)
    # Move each feed of the drawing to the row directly above the first layer that reads the feed. The feed stays within
    # its frame (the border around a group of boxes).
    owners = {row: frame for frame in reversed(frames) for row in spans[frame]}
    for layer in [layer for layer in rows if not layer.inputs]:
        end = min((rows[target] for source, target in edges if source is layer), default=rows[layer] + 1)
        rows[layer] = max(row for row in range(rows[layer], end) if owners[row] is home[layer])

    # A column of boxes is identified by the x coordinate of its centre. A layer without inputs, such as a feed, is
    # drawn beside the first column, which stays free for edges (arrows). In the first row of its frame, however, this
    # layer is drawn in the first column.
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

    bands: list[tuple[float, float]] = []  # for each row of boxes, the y coordinates of its top and bottom
    y = 0.0
    for row in spans[root]:
        top = y + sum(size(frame)[1] + MARGIN for frame in frames if spans[frame].start == row)
        y = top + max((size(layer)[1] for layer in rows if rows[layer] == row), default=0)
        bands.append((top, y))
        y += _BELOW + sum(MARGIN for frame in frames if spans[frame].stop == row + 1)
    places: dict[Box, Rectangle] = {}
    rights = [0.0] * len(bands)  # x coordinate of the right end of each row of boxes
    for layer, row in rows.items():
        x, top = centers[layer] - size(layer)[0] / 2, bands[row][0]
        places[layer] = Rectangle(x, top, x + size(layer)[0], top + size(layer)[1])
        rights[row] = max(rights[row], places[layer].right)

    # In the drawing, place the edges (arrows) of inner frames first, and short edges before long edges. Inner and short
    # edges then run nearest to the boxes. Make each frame wide enough for its boxes and edges.
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
    """Choose the row of the drawing in which each layer of a frame (a box that contains boxes) is drawn."""
    rows: dict[Box, int] = {}
    free = below = first  # `free`: the first row below the last inner frame; `below`: below all boxes so far
    for box in frame.inside:
        if box.inside:
            rows |= _rows(box, below, spans)
            free = below = spans[box].stop
        else:
            rows[box] = max([free, *(rows[source] + 1 for source in box.inputs if source in rows)])
            below = max(below, rows[box] + 1)
    spans[frame] = range(first, below)
    return rows


# All text is on filled boxes, so that it is readable on white and on black pages.
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


def draw(target: Any, batch_size: int = 16) -> Drawing:
    """Return a drawing of the layers of a program, from its feeds at the top to its outputs at the bottom.

    Frames around layers are name scopes, loops and repeated blocks. Repeated blocks are drawn once.

    Args:
      target: a program function, Program, Trainer, Inferencer, or a Session, of which all programs are drawn.
      batch_size: the number of examples with which the program is traced. It matters only for a program that does not
        work for every number of examples.

    Returns:
      Drawing: a notebook shows it; `svg` is its text, `dot` the same graph for Graphviz, `save(path)` writes either.

    Raises:
      ArgumentTypeError: `target` has another type. FluidError: the trace of the program finds a mistake, such as
        shapes that do not fit.

    Example:
      >>> import fluid
      >>> drawing = fluid.draw(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=2))
      >>> drawing.svg[:4], "fc_0" in drawing.svg
      ('<svg', True)
      >>> print(drawing.dot)
      digraph {
      node [shape=box]
      0 [label="x\\nfloat32[batch, 4]", style=solid]
      1 [label="fc_0\\nfloat32[batch, 2]\\n10 parameters", style=solid]
      2 [label="output", style=solid]
      0 -> 1
      1 -> 2
      }
    """
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
    frames = [box for box in reversed(places) if box.inside and box.lines]  # outer frames are drawn before inner frames
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
    """Return the lines of a drawing in DOT, the language of Graphviz."""
    numbers = {box: number for number, box in enumerate(root.walk())}
    yield "digraph {\nnode [shape=box]"
    yield from _nodes(root.inside, numbers)
    for target in layers([root]):
        yield from (f"{numbers[source]} -> {numbers[target]}" for source in target.inputs)
    yield "}"


def _nodes(boxes: list[Box], numbers: dict[Box, int]) -> Iterator[str]:
    """Return the DOT lines of boxes (nodes) and frames (clusters); the name of each is its number in `numbers`."""
    for box in boxes:
        label = json.dumps("\n".join(box.lines), ensure_ascii=False)
        if box.inside:
            yield f"subgraph cluster{numbers[box]} {{\nlabel={label}"
            yield from _nodes(box.inside, numbers)
            yield "}"
        else:
            yield f"{numbers[box]} [label={label}, style={'solid' if box.live else 'dashed'}]"
