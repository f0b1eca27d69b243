"""Finding blocks that a program repeats, so that each is drawn once."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from fluid.inspection.graph import Graph, Group, Node

Item = Node | Group
Sources = set[int | Node]  # items of the same group by their number, and boxes elsewhere
# Fewer boxes than this are not worth the thought that a reader spends on an abbreviation.
_WORTHWHILE = 4


class _Run(NamedTuple):
    """Neighbours of the same structure: `times` blocks of `period` items each, from `start` on."""

    start: int
    period: int
    times: int

    def blocks(self, items: Sequence[Item]) -> list[Sequence[Item]]:
        """The blocks, cut out of the items."""
        starts = range(self.start, self.start + self.times * self.period, self.period)
        return [items[start : start + self.period] for start in starts]

    def saved(self, items: Sequence[Item]) -> int:
        """How many boxes need not be drawn."""
        return sum(len(_nodes(item)) for block in self.blocks(items)[1:] for item in block)


def collapsed(graph: Graph) -> Graph:
    """The graph with one block in the place of several of the same structure, in a row."""
    collapse = _Collapse(graph)
    root = replace(graph.root, items=collapse.items(graph.root.items))
    return Graph(root, collapse.edges())


@dataclass(frozen=True)
class _Place:
    """Where a box is drawn: in the place of which one, perhaps itself, and in which block of each run around it."""

    shown: Node
    blocks: dict[int, int]


class _Collapse:
    """Collapses the groups of a graph, from the outside in; then says which edges are left."""

    def __init__(self, graph: Graph):
        self._graph = graph
        self._sources: dict[Node, list[Node]] = {}
        for source, target in graph.edges:
            self._sources.setdefault(target, []).append(source)
        self._places = {node: _Place(node, {}) for node in graph.root.nodes()}
        self._runs = itertools.count()

    def items(self, items: Sequence[Item]) -> list[Item]:
        """The items with their blocks collapsed, at any depth."""
        run = self._longest(items)
        if run is None:
            return [replace(i, items=self.items(i.items)) if isinstance(i, Group) else i for i in items]
        blocks = run.blocks(items)
        self._merge(blocks)
        end = run.start + run.times * run.period
        return [*self.items(items[: run.start]), self._shown(blocks), *self.items(items[end:])]

    def edges(self) -> list[tuple[Node, Node]]:
        """The edges between boxes that are drawn; those from one block to the next are not."""
        found: dict[tuple[Node, Node], None] = {}
        for source, target in self._graph.edges:
            first = self._place(source)
            second = self._place(target)
            if all(second.blocks.get(run, block) == block for run, block in first.blocks.items()):
                found[first.shown, second.shown] = None
        return list(found)

    def _shown(self, blocks: Sequence[Sequence[Item]]) -> Group:
        """What is drawn for blocks of the same structure."""
        first, last = blocks[0][0], blocks[-1][0]
        if len(blocks[0]) == 1 and isinstance(first, Group) and isinstance(last, Group) and first.kind == "scope":
            return Group("repeated", f"{first.title} to {last.title}: × {len(blocks)}", self.items(first.items))
        return Group("repeated", f"× {len(blocks)}", self.items(blocks[0]))

    def _merge(self, blocks: Sequence[Sequence[Item]]) -> None:
        number = next(self._runs)
        nodes = [[node for item in block for node in _nodes(item)] for block in blocks]
        for same in zip(*nodes, strict=True):
            names = ", ".join(node.lines[0] for node in same)
            same[0].hover = f"{names}\n{same[0].hover}"
            for turn, node in enumerate(same):
                self._places[node] = _Place(same[0], {**self._places[node].blocks, number: turn})

    def _place(self, node: Node) -> _Place:
        """Where a box is drawn in the end: that in whose place it is drawn may be drawn in another one's."""
        place = self._places[node]
        while self._places[place.shown].shown is not place.shown:
            further = self._places[place.shown]
            place = _Place(further.shown, {**further.blocks, **place.blocks})
        return _Place(place.shown, {**self._places[place.shown].blocks, **place.blocks})

    def _longest(self, items: Sequence[Item]) -> _Run | None:
        """The run that saves most boxes."""
        sources = self._inputs(items)
        structures = [self._structure(item) for item in items]
        runs = [
            run
            for period in range(1, len(items) // 2 + 1)
            for run in _runs_of(structures, sources, period)
            if run.saved(items) >= _WORTHWHILE and _handed_over(sources, run)  # else they stand side by side
        ]
        # Of those that save as much, the one whose blocks hand over fewest values, as a block does that ends where one
        # ends. What lies before a run, of another structure, often ends as its blocks do, so then the last one.
        return max(runs, key=lambda r: (r.saved(items), -_handed_over(sources, r), r.start), default=None)

    def _inputs(self, items: Sequence[Item]) -> list[Sources]:
        """What each item reads: numbers of items beside it, and boxes elsewhere."""
        home: dict[Node, int | Node] = {node: node for node in self._places}
        for number, item in enumerate(items):
            home |= dict.fromkeys(_nodes(item), number)
        return [
            {home[source] for node in _nodes(item) for source in self._sources.get(node, ())} - {number}
            for number, item in enumerate(items)
        ]

    def _structure(self, item: Item) -> object:
        """What must be the same of two items for them to be blocks of one kind; None for what is never repeated."""
        if isinstance(item, Node):
            return item.structure
        inner = [self._structure(i) for i in item.items]
        nodes = {node: number for number, node in enumerate(item.nodes())}
        wires = [sorted(nodes[s] for s in self._sources.get(n, ()) if s in nodes) for n in nodes]
        title = item.title if item.kind == "loop" else ""
        return None if None in inner else (item.kind, title.rpartition("×")[2], inner, wires)


def _runs_of(structures: Sequence[object], sources: Sequence[Sources], period: int) -> Iterator[_Run]:
    """The runs of blocks of so many items, each as long as it goes on."""
    alike = [
        first is not None and first == second for first, second in zip(structures, structures[period:], strict=False)
    ]
    length = 0  # of the stretch of items from here on that are like those one period later
    for start in reversed(range(len(alike))):
        length = length + 1 if alike[start] else 0
        if length < period or not _begins(sources, start, period):
            continue
        times = 2
        while length >= times * period and _goes_on(sources, start + (times - 1) * period, period):
            times += 1
        yield _Run(start, period, times)


def _begins(sources: Sequence[Sources], start: int, period: int) -> bool:
    """Whether two blocks are wired in the same way, whatever it is that they are given from outside."""
    outside: dict[int | Node, int | Node] = {}
    for i in range(start, start + period):
        first = {s for s in sources[i] if not _within(s, start, period)}
        second = {s for s in sources[i + period] if not _within(s, start + period, period)}
        inner = {s + period for s in sources[i] - first if isinstance(s, int)}
        if inner != sources[i + period] - second or len(first) != len(second):
            return False
        kept = first & second
        for one, other in zip(_sorted(first - kept), _sorted(second - kept), strict=True):
            if outside.setdefault(one, other) != other:
                return False
    return len(set(outside.values())) == len(outside)


def _goes_on(sources: Sequence[Sources], start: int, period: int) -> bool:
    """Whether each item of a block reads what the one a period later reads, or what lies a period before that."""
    for i in range(start, start + period):
        first = sources[i]
        second = sources[i + period]
        if len(first) != len(second) or not all(
            s in second or (isinstance(s, int) and s + period in second) for s in first
        ):
            return False
    return True


def _handed_over(sources: Sequence[Sources], run: _Run) -> int:
    """How many values a block hands to the next."""
    second = range(run.start + run.period, run.start + 2 * run.period)
    return len({s for i in second for s in sources[i] if _within(s, run.start, run.period)})


def _within(source: int | Node, start: int, period: int) -> bool:
    return isinstance(source, int) and start <= source < start + period


def _sorted(sources: Sources) -> list[int | Node]:
    """In the order in which blocks are compared: boxes elsewhere first, then by place."""
    return sorted(sources, key=lambda s: s if isinstance(s, int) else -1)


def _nodes(item: Item) -> list[Node]:
    return list(item.nodes()) if isinstance(item, Group) else [item]
