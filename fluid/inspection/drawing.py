"""The drawing of a program, as SVG."""

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from fluid.inspection.graph import Group, Node, graph_of
from fluid.inspection.layout import Box, Line, lay_out
from fluid.inspection.programs import look
from fluid.inspection.repeats import collapsed
from fluid.inspection.rows import rows_of
from fluid.inspection.trace import STEPS, Sizes
from fluid.paths import local_path

# Widths are known without a font because all letters of these have one, 0.6 of their size; a little more is safe.
_FONT = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', 'Liberation Mono', monospace"
_NAME = 13  # size of the first line of a box
_SMALL = 11  # and of the others
_LETTER = 0.62
_TITLE = 12
# Fill and stroke by kind. Text stands on fills only, so that it can be read on white and on black pages.
_COLORS = {
    "data": ("#d3efdf", "#3f9268"),
    "layer": ("#d6e4fb", "#5580c4"),
    "plain": ("#e9ecf1", "#8a94a6"),
    "operators": ("#fbeecb", "#bf9a3a"),
    "output": ("#f7dbe3", "#bc5c78"),
}
_FRAMES = {"program": "#8a94a6", "scope": "#8a94a6", "loop": "#8b6fc0", "repeated": "#8b6fc0"}
_TEXT = "#1b2430"
_FAINT = "#4d5868"
_EDGE = "#8a94a6"
_DASHES = ' stroke-dasharray="5 4"'


class Drawing:
    """A drawing of the layers of one or several programs, made by `fluid.draw`; a notebook shows it.

    Attributes:
      svg: the text of the drawing, a whole SVG file.
    """

    def __init__(self, svg: str):
        self.svg = svg

    def save(self, path: Any) -> None:
        """Write the drawing to a file, which browsers and vector graphics programs open."""
        local_path(path).write_text(self.svg, encoding="utf-8")

    def __repr__(self) -> str:
        return f"Drawing({len(self.svg)} characters of SVG; drawing.save('program.svg') writes them to a file)"

    def _repr_svg_(self) -> str:
        return self.svg


def drawn(target: Any, batch_size: int) -> Drawing:
    """See `fluid.draw`."""
    programs = look(target, Sizes(batch_size, STEPS, STEPS))
    graph = collapsed(graph_of(programs, rows_of(programs)))
    boxes: dict[Node | Group, Box] = {}
    root = _box(graph.root, boxes)
    lines = lay_out(root, [(boxes[source], boxes[target]) for source, target in graph.edges])
    names = ", ".join(looked.program.name for looked in programs)
    return Drawing("\n".join(_svg(names, root, boxes, lines)) + "\n")


def _box(item: Node | Group, boxes: dict[Node | Group, Box]) -> Box:
    """The box of an item, and of those in it."""
    if isinstance(item, Node):
        sizes = _font_sizes(item)
        width = max(size * _LETTER * len(line) for size, line in zip(sizes, item.lines, strict=True))
        boxes[item] = Box(width + 20, 10 + sum(size + 4 for size in sizes))
    else:
        inside = [_box(i, boxes) for i in item.items]
        width = _TITLE * _LETTER * len(item.title) + 40 if item.title else 0
        boxes[item] = Box(width, 20 if item.title else 0, inside)
    return boxes[item]


def _font_sizes(node: Node) -> list[int]:
    return [_NAME, *[_SMALL] * (len(node.lines) - 1)]


def _svg(names: str, root: Box, boxes: dict[Node | Group, Box], lines: Sequence[Line]) -> Iterator[str]:
    # No style sheet and no ids: in a notebook, those of all drawings would meet on one page.
    width = math.ceil(root.width)
    height = math.ceil(root.height)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'style="max-width: 100%; height: auto" font-family="{_FONT}" '
        f'role="img" aria-label="layers of {escape(names)}">'
    )
    groups = [(item, box) for item, box in boxes.items() if isinstance(item, Group) and item.title]
    for group, box in reversed(groups):  # those inside others come first
        yield _frame(group, box)
    for line in lines:
        yield from _line(line)
    for item, box in boxes.items():
        if isinstance(item, Node):
            yield from _node(item, box)
    for group, box in groups:
        yield _tab(group, box)
    yield "</svg>"


def _frame(group: Group, box: Box) -> str:
    color = _FRAMES[group.kind]
    return (
        f'<rect {_area(box)} rx="8" fill="{color}" fill-opacity="0.08" stroke="{color}" stroke-opacity="0.7"'
        f"{_DASHES if group.kind == 'scope' else ''}/>"
    )


def _tab(group: Group, box: Box) -> str:
    """The title of a frame, on ground of its own, since edges may pass below it."""
    width = _TITLE * _LETTER * len(group.title) + 14
    color = _FRAMES[group.kind]
    tab = Box(width, 20, x=box.x, y=box.y)
    return (
        f"<g>{_hover(group.hover)}"
        f'<rect {_area(tab)} rx="6" fill="{color}"/>'
        f'<text x="{box.x + 7:.1f}" y="{box.y + 14:.1f}" font-size="{_TITLE}" fill="white">{escape(group.title)}</text>'
        f"</g>"
    )


def _node(node: Node, box: Box) -> Iterator[str]:
    fill, stroke = _COLORS[node.kind]
    round_ends = node.kind in ("data", "output")
    look = f'rx="{box.height / 2 if round_ends else 5:.0f}" fill="{fill}" stroke="{stroke}"'
    yield f"<g>{_hover(node.hover)}<rect {_area(box)} {look}{'' if node.live else _DASHES}/>"
    y = box.y + 3
    for i, (size, line) in enumerate(zip(_font_sizes(node), node.lines, strict=True)):
        y += size + 4
        weight = ' font-weight="600"' if i == 0 else ""
        yield (
            f'<text x="{box.x + box.width / 2:.1f}" y="{y - 1:.1f}" font-size="{size}"{weight} '
            f'fill="{_FAINT if i else _TEXT}" text-anchor="middle">{escape(line)}</text>'
        )
    yield "</g>"


def _line(line: Line) -> Iterator[str]:
    (x, y), *rest = line.points
    path = [f"M{x:.1f},{y:.1f}"]
    for next_x, next_y in rest:
        middle = (y + next_y) / 2
        curve = f"C{x:.1f},{middle:.1f} {next_x:.1f},{middle:.1f} {next_x:.1f},{next_y:.1f}"
        path.append(f"L{next_x:.1f},{next_y:.1f}" if abs(next_x - x) < 0.5 else curve)
        x, y = next_x, next_y
    yield f'<path d="{" ".join(path)}" fill="none" stroke="{_EDGE}" stroke-width="1.4"/>'
    if line.arrow:
        yield f'<path d="M{x - 4:.1f},{y - 7:.1f} L{x + 4:.1f},{y - 7:.1f} L{x:.1f},{y:.1f} Z" fill="{_EDGE}"/>'


def _area(box: Box) -> str:
    return f'x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}"'


def _hover(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""
