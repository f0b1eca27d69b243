"""Where boxes, frames and edges of a drawing lie: each frame is laid out by itself, and is then a box of the next."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fluid.inspection.layering import Point, Vertex, Wire, arrange

MARGIN = 16  # between a frame and what is in it


@dataclass(eq=False)
class Box:
    """A box of a given size, or a frame around others, whose size follows from them.

    Attributes:
      width: in pixels; of a frame the least.
      height: in pixels; of a frame, before it is laid out, what its title needs.
      inside: what a frame holds, in the order of the program; empty for a box.
      x: left side, once laid out.
      y: upper side, once laid out.
    """

    width: float
    height: float
    inside: "list[Box]" = field(default_factory=list)
    x: float = 0
    y: float = 0

    def walk(self) -> "Iterator[Box]":
        """The box and all inside of it."""
        yield self
        for box in self.inside:
            yield from box.walk()

    def move(self, x: float, y: float) -> None:
        """Move it with all that is in it."""
        for box in self.walk():
            box.x += x
            box.y += y


@dataclass
class Line:
    """A line of an edge, from top to bottom.

    Attributes:
      points: through which it goes.
      arrow: whether it ends at a box, rather than on the border of a frame, where another line goes on.
    """

    points: list[Point]
    arrow: bool


Edges = Sequence[tuple[Box, Box]]


@dataclass
class _Placed:
    """A frame that has been laid out.

    Attributes:
      lines: in it.
      entries: where edges come in through its upper border, by the box that they come from.
      exits: where edges go out through its lower border, by the box that they come from.
    """

    lines: list[Line] = field(default_factory=list)
    entries: dict[Box, float] = field(default_factory=dict)
    exits: dict[Box, float] = field(default_factory=dict)


def lay_out(root: Box, edges: Edges) -> list[Line]:
    """Place everything in a frame.

    Args:
      root: the frame of all.
      edges: pairs of boxes, each from an earlier one to a later one. All edges from one box that cross the border of a
        frame do so together.

    Returns:
      The lines of the edges.
    """
    return _lay_out(root, edges).lines


def _lay_out(frame: Box, edges: Edges) -> _Placed:
    home = {box: item for item in frame.inside for box in item.walk()}
    inner = {item: _lay_out(item, _touching(item, edges)) for item in frame.inside if item.inside}
    boxes = {item: Vertex(item.width, item.height) for item in frame.inside}
    entries: dict[Box, Vertex] = {}
    exits: dict[Box, Vertex] = {}
    wires: dict[tuple[Vertex, Vertex, Box], Wire] = {}
    for source, target in edges:
        start = home.get(source)
        end = home.get(target)
        if start is end:
            continue
        upper = entries.setdefault(source, Vertex(border="top")) if start is None else boxes[start]
        lower = exits.setdefault(source, Vertex(border="bottom")) if end is None else boxes[end]
        leaves = inner[start].exits[source] - start.width / 2 if start in inner else 0
        enters = inner[end].entries[source] - end.width / 2 if end in inner else 0
        wires[upper, lower, source] = Wire(upper, lower, leaves, enters)
    vertices = [*entries.values(), *boxes.values(), *exits.values()]
    width, height = arrange(vertices, list(wires.values()), frame.height + MARGIN, MARGIN)
    left = max(MARGIN, (frame.width - width) / 2)
    frame.width = width + 2 * left
    frame.height = height
    placed = _Placed(
        entries={box: vertex.x + left for box, vertex in entries.items()},
        exits={box: vertex.x + left for box, vertex in exits.items()},
    )
    for item, vertex in boxes.items():
        x = left + vertex.x - item.width / 2
        item.move(x, vertex.y)
        if item in inner:
            placed.lines += _moved(inner[item].lines, x, vertex.y)
    arrows = {vertex for item, vertex in boxes.items() if item not in inner}
    for wire in wires.values():
        placed.lines += _moved([Line(wire.points, wire.target in arrows)], left, 0)
    return placed


def _touching(item: Box, edges: Edges) -> list[tuple[Box, Box]]:
    """The edges that begin or end in a frame."""
    inside = set(item.walk())
    return [edge for edge in edges if edge[0] in inside or edge[1] in inside]


def _moved(lines: Iterable[Line], x: float, y: float) -> list[Line]:
    return [Line([(px + x, py + y) for px, py in line.points], line.arrow) for line in lines]
