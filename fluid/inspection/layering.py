"""A layered layout of a flat graph: ranks from top to bottom, an order within each, and coordinates.

The steps are those of Sugiyama, Tagawa and Toda, "Methods for Visual Understanding of Hierarchical System Structures"
(1981).
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

Point = tuple[float, float]

BESIDE = 26  # between two boxes
BETWEEN = 30  # between two ranks
_LANE = 14  # around an edge that passes by
_SWEEPS = 24


@dataclass(eq=False)
class Vertex:
    """What is placed: a box, a point of an edge that passes by, or one on the upper or lower border.

    Attributes:
      width: in pixels.
      height: in pixels.
      border: "top" or "bottom" for a point of the border.
      x: of its centre, once placed.
      y: of its upper side, once placed.
      rank: 0 for the uppermost, once placed.
    """

    width: float = 0
    height: float = 0
    border: str = ""
    x: float = 0
    y: float = 0
    rank: int = 0


@dataclass(eq=False)
class Wire:
    """An edge between two vertices.

    Attributes:
      source: above.
      target: below.
      leaves: how far right of the centre of its source it begins.
      enters: how far right of the centre of its target it ends.
      points: through which it goes, once placed.
    """

    source: Vertex
    target: Vertex
    leaves: float = 0
    enters: float = 0
    points: list[Point] = field(default_factory=list)


class _Piece(NamedTuple):
    """The part of a wire between two neighbouring ranks."""

    upper: Vertex
    lower: Vertex
    leaves: float
    enters: float

    @property
    def weight(self) -> float:
        """How much it matters that it is straight: most where wires pass by others."""
        return (1, 3, 8)[(not self.upper.width) + (not self.lower.width)]


_Pieces = dict[Vertex, list[_Piece]]


def arrange(vertices: Sequence[Vertex], wires: Sequence[Wire], above: float, below: float) -> tuple[float, float]:
    """Place vertices and wires.

    Args:
      vertices: so that wires go from earlier to later ones; points of the upper border first, of the lower one last.
      wires: between them.
      above: space between the upper border and the first box.
      below: space between the last box and the lower border.

    Returns:
      Width and height of everything.
    """
    _rank(vertices, wires)
    chains = {wire: _chain(wire) for wire in wires}
    pieces = [piece for chain in chains.values() for piece in chain]
    passing = [piece.lower for chain in chains.values() for piece in chain[:-1]]
    ranks: list[list[Vertex]] = [[] for _ in range(1 + max((v.rank for v in vertices), default=0))]
    for vertex in (*vertices, *passing):
        ranks[vertex.rank].append(vertex)
    _order(ranks, pieces)
    width = _spread(ranks, pieces)
    tops, height = _stack(ranks, above, below)
    for wire, chain in chains.items():
        wire.points = _points(wire, chain, tops)
    return width, height


def _rank(vertices: Sequence[Vertex], wires: Sequence[Wire]) -> None:
    """Give each vertex the rank below the lowest that it reads, and those that read nothing one above their reader."""
    readers: dict[Vertex, list[Vertex]] = {}
    read: set[Vertex] = set()
    for wire in wires:
        readers.setdefault(wire.source, []).append(wire.target)
        read.add(wire.target)
    first = 1 if any(v.border == "top" for v in vertices) else 0
    for vertex in vertices:
        vertex.rank = 0 if vertex.border == "top" else max(first, vertex.rank)
        for reader in readers.get(vertex, ()):
            reader.rank = max(reader.rank, vertex.rank + 1)
    for vertex in reversed(vertices):
        if vertex not in read and not vertex.border and vertex in readers:
            vertex.rank = min(reader.rank for reader in readers[vertex]) - 1
    last = 1 + max((v.rank for v in vertices if v.border != "bottom"), default=0)
    for vertex in vertices:
        if vertex.border == "bottom":
            vertex.rank = last


def _chain(wire: Wire) -> list[_Piece]:
    """A wire as pieces from rank to rank, with vertices of no size between them."""
    between = [Vertex(rank=rank) for rank in range(wire.source.rank + 1, wire.target.rank)]
    stops = [wire.source, *between, wire.target]
    leaves = [wire.leaves, *[0.0] * len(between)]
    enters = [*[0.0] * len(between), wire.enters]
    return [_Piece(*piece) for piece in zip(stops, stops[1:], leaves, enters, strict=False)]


def _order(ranks: list[list[Vertex]], pieces: Sequence[_Piece]) -> None:
    """Order each rank by the barycentres of its neighbours, as long as that leaves fewer crossings."""
    above, below = _neighbours(pieces)
    best = [list(rank) for rank in ranks]
    fewest = _crossings(ranks, pieces)
    for sweep in range(_SWEEPS):
        if not fewest:
            break
        down = sweep % 2 == 0
        for rank in ranks if down else reversed(ranks):
            place = {v: i for row in ranks for i, v in enumerate(row)}
            _sort_by_neighbours(rank, above if down else below, place)
        found = _crossings(ranks, pieces)
        if found < fewest:
            best = [list(rank) for rank in ranks]
            fewest = found
    ranks[:] = best


def _neighbours(pieces: Iterable[_Piece]) -> tuple[_Pieces, _Pieces]:
    above: _Pieces = {}
    below: _Pieces = {}
    for piece in pieces:
        above.setdefault(piece.lower, []).append(piece)
        below.setdefault(piece.upper, []).append(piece)
    return above, below


def _sort_by_neighbours(rank: list[Vertex], pieces: _Pieces, place: dict[Vertex, int]) -> None:
    """Sort a rank by where its neighbours in the rank above or below stand."""

    def centre(vertex: Vertex) -> float:
        found = [_at(p.lower if p.upper is vertex else p.upper, p, place) for p in pieces.get(vertex, ())]
        return sum(found) / len(found) if found else place[vertex]

    centres = {vertex: centre(vertex) for vertex in rank}
    rank.sort(key=lambda vertex: centres[vertex])


def _at(vertex: Vertex, piece: _Piece, place: dict[Vertex, int]) -> float:
    """Where a piece meets a vertex, in places of its rank."""
    offset = piece.leaves if piece.upper is vertex else piece.enters
    return place[vertex] + (offset / vertex.width if vertex.width else 0)


def _crossings(ranks: Sequence[Sequence[Vertex]], pieces: Sequence[_Piece]) -> int:
    place = {v: i for rank in ranks for i, v in enumerate(rank)}
    ends: dict[int, list[tuple[float, float]]] = {}
    for piece in pieces:
        ends.setdefault(piece.upper.rank, []).append((_at(piece.upper, piece, place), _at(piece.lower, piece, place)))
    pairs = (pair for found in ends.values() for pair in itertools.combinations(found, 2))
    return sum((a[0] - b[0]) * (a[1] - b[1]) < 0 for a, b in pairs)


def _spread(ranks: Sequence[Sequence[Vertex]], pieces: Sequence[_Piece]) -> float:
    """Choose horizontal places that make wires as straight as the order allows; returns the width of all."""
    above, below = _neighbours(pieces)
    for rank in ranks:
        _settle(rank, {})
    for sweep in range(_SWEEPS):
        # At first ranks follow the one before; in the end each follows both of its neighbours.
        sides = ((above,), (below,), (above, below), (above, below))[sweep % 2 if sweep < _SWEEPS // 2 else 2]
        for rank in ranks if sweep % 2 == 0 else reversed(ranks):
            _settle(rank, {v: [p for side in sides for p in side.get(v, ())] for v in rank})
    _straighten(ranks, _columns(ranks, above, below), above, below)
    left = min((v.x - v.width / 2 for rank in ranks for v in rank), default=0)
    for vertex in (v for rank in ranks for v in rank):
        vertex.x -= left
    return max((v.x + v.width / 2 for rank in ranks for v in rank), default=0)


def _settle(rank: Sequence[Vertex], pieces: _Pieces) -> None:
    """Move the vertices of a rank to where their pieces are straight, as near as their order and widths allow.

    These are least squares under the constraint that neighbours keep their distance, solved by pooling adjacent
    violators, which is exact.
    """
    pools: list[list[float]] = []  # each: mean place, weight, number of vertices
    shift = 0.0
    shifts = []
    for before, vertex in zip([None, *rank], rank, strict=False):
        shift += 0 if before is None else _distance(before, vertex)
        shifts.append(shift)
        wanted, weight = _wanted(vertex, pieces.get(vertex, ()))
        pools.append([wanted - shift, weight, 1])
        while len(pools) > 1 and pools[-2][0] >= pools[-1][0]:
            place, weight, count = pools.pop()
            total = pools[-1][1] + weight
            pools[-1] = [(pools[-1][0] * pools[-1][1] + place * weight) / total, total, pools[-1][2] + count]
    places = [place for place, _, count in pools for _ in range(int(count))]
    for vertex, place, moved in zip(rank, places, shifts, strict=True):
        vertex.x = place + moved


def _columns(ranks: Sequence[Sequence[Vertex]], above: _Pieces, below: _Pieces) -> list[dict[Vertex, float]]:
    """Vertices that belong in one column: wires that pass by, and boxes that nothing but each other connects.

    Returns:
      For each column its vertices, with how far right of the column's place each of them stands.
    """
    columns: dict[Vertex, dict[Vertex, float]] = {}
    for vertex in (v for rank in ranks for v in rank):
        piece = next(iter(above.get(vertex, ())), None)
        if piece is not None and len(above[vertex]) == 1 and len(below[piece.upper]) == 1:
            columns[vertex] = columns[piece.upper]
            columns[vertex][vertex] = columns[vertex][piece.upper] + piece.leaves - piece.enters
        else:
            columns[vertex] = {vertex: 0.0}
    return [column for vertex, column in columns.items() if next(iter(column)) is vertex]


def _straighten(
    ranks: Sequence[Sequence[Vertex]], columns: Sequence[dict[Vertex, float]], above: _Pieces, below: _Pieces
) -> None:
    """Give all of a column one place, as near to what is connected to it as its neighbours allow."""
    beside: dict[Vertex, tuple[Vertex | None, Vertex | None]] = {}
    for rank in ranks:
        beside |= {v: (left, right) for left, v, right in zip([None, *rank], rank, [*rank[1:], None], strict=False)}
    for _ in range(_SWEEPS):
        for column in columns:
            for part, low, high in _free_parts(column, beside):
                wanted = 0.0
                weights = 0.0
                for vertex, offset in part.items():
                    outward = [p for p in above.get(vertex, ()) if p.upper not in part]
                    outward += [p for p in below.get(vertex, ()) if p.lower not in part]
                    place, weight = _wanted(vertex, outward)
                    wanted += (place - offset) * weight
                    weights += weight
                for vertex, offset in part.items():
                    vertex.x = min(max(wanted / weights, low), high) + offset


def _free_parts(
    column: dict[Vertex, float], beside: dict[Vertex, tuple[Vertex | None, Vertex | None]]
) -> list[tuple[dict[Vertex, float], float, float]]:
    """A column in as few parts as need be for each to have a place between its neighbours: from where to where."""
    parts: list[tuple[dict[Vertex, float], float, float]] = []
    for vertex, offset in column.items():
        left, right = beside[vertex]
        low = -math.inf if left is None else left.x + _distance(left, vertex) - offset
        high = math.inf if right is None else right.x - _distance(vertex, right) - offset
        if parts and max(low, parts[-1][1]) <= min(high, parts[-1][2]):
            part, lowest, highest = parts[-1]
            parts[-1] = ({**part, vertex: offset}, max(low, lowest), min(high, highest))
        else:
            parts.append(({vertex: offset}, min(low, high), high))
    return parts


def _distance(left: Vertex, right: Vertex) -> float:
    gap = BESIDE if left.width and right.width else _LANE
    return (left.width + right.width) / 2 + gap


def _wanted(vertex: Vertex, pieces: Iterable[_Piece]) -> tuple[float, float]:
    """Where a vertex would like to be, and how much."""
    weights = 0.01  # for where it stands; else what nothing is connected to would have no place
    total = vertex.x * weights
    for piece in pieces:
        straight = piece.upper.x + piece.leaves - piece.enters
        if piece.upper is vertex:
            straight = piece.lower.x + piece.enters - piece.leaves
        total += straight * piece.weight
        weights += piece.weight
    return total / weights, weights


def _stack(ranks: Sequence[Sequence[Vertex]], above: float, below: float) -> tuple[list[Point], float]:
    """Choose the vertical places; returns upper and lower end of each rank, and the height of all."""
    y = above
    ends: list[Point] = []
    for rank in ranks:
        borders = {vertex.border for vertex in rank}
        if "top" in borders:
            ends.append((0, 0))
            continue
        if "bottom" in borders:
            y += below - BETWEEN
            ends.append((y, y))
            break
        height = max((v.height for v in rank), default=0)
        ends.append((y, y + height))
        y += height + BETWEEN
    else:
        y += below - BETWEEN
    for (top, _), rank in zip(ends, ranks, strict=True):
        for vertex in rank:
            vertex.y = top
    return ends, y


def _points(wire: Wire, chain: Sequence[_Piece], ends: Sequence[Point]) -> list[Point]:
    """Through which points a wire goes: straight down within ranks, from side to side between them."""
    source = wire.source
    target = wire.target
    start = source.x + wire.leaves
    end = target.x + wire.enters
    points = [(start, source.y + source.height), (start, ends[source.rank][1])]
    for piece in chain[:-1]:
        points += [(piece.lower.x, y) for y in ends[piece.lower.rank]]
    return [*points, (end, ends[target.rank][0]), (end, target.y)]
