"""The graph of a drawing: boxes of layers, the edges between them, and repeated blocks, which become one block."""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluid._util.text import counted
from fluid.core.equations import is_literal
from fluid.inspection.parts import Part, Partition
from fluid.inspection.programs import Inspected
from fluid.inspection.table import Row


class Flow:
    """The data flow of a program: which parts compute the values that each part reads.

    Args:
      found: the parts of the program.
    """

    def __init__(self, found: Partition):
        self._found = found
        self._order = {part: n for n, part in enumerate(part for top in found.parts for part, _ in top.walk())}
        self._parts: dict[int, list[Part]] = {}  # the parts without loops that compute or name a variable, by its id
        for part in self._order:
            for variable in () if part.inside else (part.variable, *(v for e in part.equations for v in e.outvars)):
                self._parts.setdefault(id(variable), []).append(part)

    def inputs(self, part: Part) -> list[Part]:
        """Return the parts whose results `part` reads; `part` contains no loop."""
        read = [variable for equation in part.equations for variable in equation.invars]
        return self._sources(read if part.equations else [part.variable], part)

    def makers(self, variable: Any) -> list[Part]:
        """Return the parts that computed `variable`, an output of the program."""
        return self._sources([variable], None)

    def _sources(self, variables: Sequence[Any], reader: Part | None, lengths: bool = False) -> list[Part]:
        """Return the parts before `reader` that computed variables; the search continues through equations of loops."""
        found = self._found
        end = len(self._order) if reader is None else self._order[reader]
        waiting: list[tuple[Any, Part | None]] = [(variable, None) for variable in variables]
        seen = set()
        reached: dict[tuple[Part, Part | None], None] = {}  # parts, each with the loop through which it was reached
        for variable, loop in waiting:  # the loop below appends to `waiting`
            if variable is None or is_literal(variable):  # None stands for a parameter that nothing reads
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
        # A part that computes initial values of a loop is a source of the results only if no layer in the loop is one.
        inside = {loop: {part for part, _ in loop.walk()} for _, loop in reached if loop is not None}
        left = {loop for loop, parts in inside.items() if reader not in parts and any(p in parts for p, _ in reached)}
        sources = list(dict.fromkeys(part for part, loop in reached if loop not in left or part in inside[loop]))
        # Nearly every layer on sequences reads lengths, so the source of lengths counts only if there is no other one.
        return sources if sources or lengths else self._sources(variables, reader, lengths=True)


@dataclass(eq=False)
class Box:
    """A layer, or a frame around other boxes.

    Attributes:
      kind: "data", "layer" (with parameters), "plain" (without), "operators" or "output". A frame is a "scope" (a name
        scope, or a program) or a "loop" (a loop, or repeated blocks).
      lines: the lines of text; the first is the name. A frame has one line or none. The line ends with "× n" if the
        frame stands for n steps of a loop or n blocks.
      hover: text shown while the pointer rests on the box, or on the title of the frame.
      inside: the boxes in a frame, in the order of the program; empty for a layer.
      inputs: the layers whose results a layer reads; they come earlier in the program.
      live: whether an output of the program depends on the layer.
      structure: kind, shape and sizes of a layer: equal for layers that may be drawn as one. None for a layer that is
        never drawn as one with others.
    """

    kind: str
    lines: list[str]
    hover: str = ""
    inside: "list[Box]" = field(default_factory=list)
    inputs: "list[Box]" = field(default_factory=list)
    live: bool = True
    structure: tuple[str, ...] | None = None

    def walk(self) -> "Iterator[Box]":
        """Iterate over all boxes inside, inner boxes before their frames, and over the box itself last."""
        for box in self.inside:
            yield from box.walk()
        yield self


def layers(boxes: Iterable[Box]) -> list[Box]:
    """Return the boxes that are layers, among the given boxes and inside the given frames."""
    return [box for outer in boxes for box in outer.walk() if not box.inside]


def boxes_of(programs: Sequence[Inspected], rows: Iterable[Row]) -> Box:
    """Return a frame that contains the boxes of some programs.

    Args:
      programs: the programs.
      rows: the table rows of all parts of the programs, in the order of `rows_of`.
    """
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
    """Return a box for each output of a program, with the parts that computed the output."""
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
    """Return boxes for parts, with a frame around each loop, and a frame around neighbours in one name scope.

    Args:
      parts: the parts of the program, or of the body of one loop.
      rows: an iterator over table rows, whose next row is the row of the first part.
      made: a dict to which this function adds the box of each layer.
      scopes: the name scopes that already have frames around the parts.
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
    """Return the box of the layer, feed or operators in a row of the table."""
    numbers = row.trainable + row.frozen
    parameters = counted(numbers, "parameter") if numbers else "shared parameters" if row.shared else ""
    kind = "data" if row.kind == "data" else "operators" if row.operators else "layer" if parameters else "plain"
    lines = [line for line in (name, row.output, parameters + " (frozen)" * bool(row.frozen)) if line]
    hover = "\n".join(filter(None, [row.name, row.output, *row.parameters, *row.shared, row.site]))
    structure = None if kind == "data" else (row.kind, row.output, row.numbers)
    return Box(kind, lines, hover, live=row.live, structure=structure)


# A repetition that saves fewer boxes than this is harder to read than the boxes themselves.
_WORTHWHILE = 4


def collapse(root: Box) -> None:
    """Replace neighbouring blocks of equal structure by one block, in a frame that shows the number of blocks.

    This applies to blocks inside all frames. Each of the blocks must read a result of the block before it.
    """
    for frame in [box for box in root.walk() if box.inside]:
        frame.inside = _collapsed(frame.inside, root)


def _collapsed(boxes: list[Box], root: Box) -> list[Box]:
    """Return neighbouring boxes, with one block in place of repeated ones; `root` is the outermost frame."""
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
    """Return start, length and number of the repeated blocks that save most layers; three zeros if none save enough."""
    keys = [_structure(box) for box in boxes]
    counts = [0, *itertools.accumulate(len(layers([box])) for box in boxes)]
    best = (_WORTHWHILE, -math.inf, 0, 0, 0)
    for period in range(1, len(boxes) // 2 + 1):
        for start in range(len(boxes) - 2 * period + 1):
            second = start + period
            if counts[-1] - counts[second] < best[0] or keys[start:second] != keys[second : second + period]:
                continue
            handed = _handed([boxes[i : i + period] for i in range(start, len(boxes), period)])
            # Several runs of blocks may save equally many boxes. The run whose blocks pass the fewest values to each
            # other has the boundaries of the user's blocks. Boxes before a run often resemble the end of a block, so
            # of equal runs the last one is chosen.
            saved = len(handed) * (counts[second] - counts[start])
            best = max(best, (saved, -sum(handed), start, period, len(handed) + 1))
    return best[2:]


def _handed(blocks: Sequence[list[Box]]) -> list[int]:
    """Return the number of values that each block passes to the next, up to the first block of another structure."""
    pattern, before = _pattern(blocks[0])
    handed: list[int] = []
    following: dict[Box, Box] = {}
    for last, block in itertools.pairwise(blocks):
        again, outside = _pattern(block)
        common = set(outside).intersection(layers(last))
        # The first block has no block before it, so it may read other values from outside than the second block does.
        # Later blocks must read the same values, or values that moved on by one block.
        alike = not handed or all(b in (a, following.get(a)) for a, b in zip(before, outside, strict=False))
        if again != pattern or not common or not alike:
            break
        handed.append(len(common))
        following |= zip(layers(last), layers(block), strict=True)
        before = outside
    return handed


def _pattern(block: list[Box]) -> tuple[object, list[Box]]:
    """Return a value that is equal for blocks of equal structure and edges, and the layers that the block reads."""
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
    """Make the first block represent all blocks, and remove the edges from one block to another."""
    turns = {box: turn for turn, block in enumerate(blocks) for box in block}
    shown = {box: same[0] for same in zip(*blocks, strict=True) for box in same}
    for same in zip(*blocks, strict=True):
        same[0].hover = ", ".join(box.lines[0] for box in same) + f"\n{same[0].hover}"
        same[0].inputs = [s for box in same for s in box.inputs if turns.get(s, turns[box]) == turns[box]]
    for layer in layers([root]):
        layer.inputs = list(dict.fromkeys(shown.get(source, source) for source in layer.inputs))
