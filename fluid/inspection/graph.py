"""The boxes that a drawing shows: layers, what they read, and frames around them."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fluid.formatting import counted
from fluid.inspection.flow import Flow
from fluid.inspection.parts import Part
from fluid.inspection.programs import Inspected
from fluid.inspection.rows import Row


@dataclass(eq=False)
class Box:
    """A layer, or a frame around other boxes.

    Attributes:
      kind: "data", "layer" (with parameters), "plain" (without), "operators" or "output". A frame is a "scope" (a name
        scope, or a program) or a "loop" (a loop, or repeated blocks).
      lines: of text; the first is the name. A frame has one, which ends with "× n" for n steps or n blocks, or none.
      hover: text shown while the pointer rests on the box, or on the title of the frame.
      inside: the boxes in a frame, in the order of the program; empty for a layer.
      inputs: the layers whose results a layer reads; they come earlier in the program.
      live: whether an output of the program depends on the layer.
      structure: equal for layers that may be drawn as one; None for a layer that is never repeated.
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
    """Return the layers among boxes, and in their frames."""
    return [box for outer in boxes for box in outer.walk() if not box.inside]


def boxes_of(programs: Sequence[Inspected], rows: Iterable[Row]) -> Box:
    """Return a box around the boxes of some programs.

    Args:
      programs: the programs.
      rows: the rows of all their parts.
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
    """Return boxes for parts, with a frame around each loop and around neighbours in one name scope.

    Args:
      parts: of one level.
      rows: an iterator that stands before the rows of the parts.
      made: receives the layers.
      scopes: name scopes that have frames around the parts already.
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
    """Return the box of a row."""
    numbers = row.trainable + row.frozen
    parameters = counted(numbers, "parameter") if numbers else "shared parameters" if row.shared else ""
    kind = "data" if row.kind == "data" else "operators" if row.operators else "layer" if parameters else "plain"
    lines = [line for line in (name, row.output, parameters + " (frozen)" * bool(row.frozen)) if line]
    hover = "\n".join(filter(None, [row.name, row.output, *row.parameters, *row.shared, row.site]))
    structure = None if kind == "data" else (row.kind, row.output, row.numbers)
    return Box(kind, lines, hover, live=row.live, structure=structure)
