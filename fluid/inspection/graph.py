"""The graph that is drawn: boxes for layers, groups around them, and edges."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from fluid.formatting import counted
from fluid.inspection.flow import Flow
from fluid.inspection.parts import Part
from fluid.inspection.programs import Looked
from fluid.inspection.rows import Row


@dataclass(eq=False)
class Node:
    """One box.

    Attributes:
      kind: "data", "layer" (with parameters), "plain" (without), "operators" or "output".
      lines: of text in it; the first is what it is called.
      hover: what is shown while the pointer rests on it.
      live: whether an output depends on it.
      structure: what must be the same of two boxes to be drawn as one; None for what is never repeated.
    """

    kind: str
    lines: list[str]
    hover: str = ""
    live: bool = True
    structure: tuple[str, ...] | None = None


@dataclass(eq=False)
class Group:
    """Boxes with a frame around them.

    Attributes:
      kind: "program", "scope", "loop" or "repeated".
      title: shown on the frame.
      items: what is in it, in the order of the program.
      hover: what is shown while the pointer rests on the title.
    """

    kind: str
    title: str
    items: "list[Node | Group]" = field(default_factory=list)
    hover: str = ""

    def nodes(self) -> Iterator[Node]:
        """All boxes in it, at any depth."""
        for item in self.items:
            if isinstance(item, Group):
                yield from item.nodes()
            else:
                yield item


@dataclass
class Graph:
    """What is drawn.

    Attributes:
      root: the group of everything.
      edges: pairs of boxes, each from the one whose result the other reads.
    """

    root: Group
    edges: list[tuple[Node, Node]]


def graph_of(programs: Sequence[Looked], rows: Iterable[Row]) -> Graph:
    """The graph of some programs.

    Args:
      programs: the programs.
      rows: those of all their parts.
    """
    left = iter(rows)
    graph = Graph(Group("program", ""), [])
    for looked in programs:
        items = _program(looked, left, graph.edges)
        if len(programs) > 1:
            items = [Group("program", looked.program.name, items)]
        graph.root.items += items
    return graph


def _program(looked: Looked, rows: Iterator[Row], edges: list[tuple[Node, Node]]) -> "list[Node | Group]":
    """The boxes of one program, whose rows come next; adds its edges."""
    nodes: dict[Part, Node] = {}
    items = _items(looked.partition.parts, rows, nodes, ())
    flow = Flow(looked.partition)
    made = [(nodes[source], node) for part, node in nodes.items() for source in flow.inputs(part)]
    outputs = _outputs(looked, flow)
    made += [(nodes[source], node) for node, sources in outputs.items() for source in sources]
    read = {source for source, _ in made}
    for top in looked.partition.parts:
        for part, depth in top.walk():
            if depth and part.live and part in nodes and nodes[part] not in read:
                nodes[part].lines.append("for the next step")
    edges += made
    return [*items, *outputs]


def _outputs(looked: Looked, flow: Flow) -> dict[Node, list[Part]]:
    """Boxes for the outputs of a program, with the parts that each comes from."""
    program = looked.program
    count = len(looked.outputs)
    names = program.output_names or (["output"] if count == 1 else [f"output {i}" for i in range(count)])
    found = {}
    for name, variable in zip(names, looked.outputs, strict=True):
        sources = flow.makers(variable)
        minimised = [
            f"minimised by {type(minimize.optimizer).__name__}"
            for minimize, loss in zip(program.minimizes, looked.losses, strict=True)
            if flow.makers(loss) == sources
        ]
        found[Node("output", [name, *minimised])] = sources
    return found


def _items(
    parts: Sequence[Part], rows: Iterator[Row], nodes: dict[Part, Node], scopes: tuple[str, ...]
) -> "list[Node | Group]":
    """Boxes for parts, with a group for each loop and for each run of neighbours in one name scope.

    Args:
      parts: of one level.
      rows: whose next ones are those of the parts.
      nodes: where the box of each part is noted.
      scopes: name scopes that are around already.
    """
    made: list[tuple[tuple[str, ...], Node | Group]] = []
    for part in parts:
        row = next(rows)
        path = tuple(row.scope.split("/")) if row.scope else ()
        if part.inside:
            title = _short(row, path) if row.steps is None else f"{_short(row, path)} × {row.steps}"
            around = (*path, row.name.rpartition("/")[2])
            made.append((path, Group("loop", title, _items(part.inside, rows, nodes, around), row.site)))
        else:
            nodes[part] = _node(row, scopes if row.operators else path)
            made.append((made[-1][0] if row.operators and made else path, nodes[part]))
    return _scoped(made, scopes)


def _scoped(made: Sequence[tuple[tuple[str, ...], "Node | Group"]], scopes: tuple[str, ...]) -> "list[Node | Group]":
    """Put neighbours that share the next name scope into a group."""
    depth = len(scopes)

    def next_scope(entry: tuple[tuple[str, ...], Node | Group]) -> str | None:
        path = entry[0]
        return path[depth] if path[:depth] == scopes and len(path) > depth else None

    items: list[Node | Group] = []
    for scope, run in itertools.groupby(made, next_scope):
        if scope is None:
            items += [item for _, item in run]
        else:
            items.append(Group("scope", scope, _scoped(list(run), (*scopes, scope))))
    return items


def _short(row: Row, scopes: tuple[str, ...]) -> str:
    """The title of a row in a group of these name scopes, which shows them already."""
    return row.title.removeprefix("".join(f"{scope}/" for scope in scopes))


def _node(row: Row, scopes: tuple[str, ...]) -> Node:
    hover = "\n".join(filter(None, [row.name, row.output, *row.parameters, *row.shared, row.site]))
    if row.operators:
        return Node("operators", [row.kind], hover, row.live, (row.kind, row.output))
    if row.kind == "data":
        return Node("data", [row.name, row.output], hover, row.live)
    numbers = row.trainable + row.frozen
    told = [counted(numbers, "parameter") + (" (frozen)" if row.frozen else "")] if numbers else []
    if not told and row.shared:
        told = ["shared parameters"]
    kind = "layer" if told else "plain"
    return Node(kind, [_short(row, scopes), row.output, *told], hover, row.live, (row.kind, row.output, row.numbers))
