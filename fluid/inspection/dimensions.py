"""Shapes of a program's values, with "batch" and "time" for the dimensions that follow these."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fluid.core import Program
from fluid.inspection.parts import Part, partition
from fluid.inspection.trace import STEPS, Sizes, trace

Dimension = int | str


class Shape(NamedTuple):
    """The dtype and shape of the result of a part, with "batch" and "time" for the dimensions that follow these.

    Attributes:
      dtype: of the result; empty when there is none.
      sizes: its shape.
      steps: of the loop within the part; None when there is no such loop, or when the data decides.
    """

    dtype: str
    sizes: tuple[Dimension, ...]
    steps: Dimension | None


def shapes_of(program: Program, parts: Sequence[Part]) -> list[Shape]:
    """Return the shape of each part of a program, and of the parts inside loops.

    The program is traced for several sizes: what grows with one of them follows it. A program that works for one size
    only is legal; its dimensions are the numbers that they are.
    """
    known = _measured(parts)
    if not program.feeds or program.sample_shapes:
        return known
    base = Sizes(*[STEPS] * len(Sizes._fields))
    try:
        first = _traced(program, base)
        grown = {name: _traced(program, base._replace(**{size: 2 * STEPS})) for size, name in _free(program).items()}
    except Exception:
        return known
    others = list(grown.values())
    if any(len(o) != len(known) for o in (first, *others)):
        return known
    return [_compared(known[i], first[i], {n: grown[n][i] for n in grown}) for i in range(len(known))]


def _free(program: Program) -> dict[str, str]:
    """Return the names that shapes show for the free sizes of a program's data."""
    level = max(spec.lod_level for spec in program.feeds.values())
    steps: tuple[dict[str, str], ...] = ({}, {"inner": "time"}, {"outer": "outer", "inner": "inner"})
    return {"batch": "batch", **steps[level]}


def _traced(program: Program, sizes: Sizes) -> list[Shape]:
    return _measured(partition(program, trace(program, sizes)).parts)


def _measured(parts: Sequence[Part]) -> list[Shape]:
    every = [part for top in parts for part, _ in top.walk()]
    found = []
    for part in every:
        value = None if part.variable is None else part.variable.aval
        dtype, sizes = ("", ()) if value is None else (str(value.dtype), tuple(value.shape))
        found.append(Shape(dtype, sizes, part.steps))
    return found


def _compared(known: Shape, first: Shape, grown: Mapping[str, Shape]) -> Shape:
    if any(len(other.sizes) != len(first.sizes) for other in grown.values()):
        return known
    sizes = tuple(_dimension(d, {n: s.sizes[i] for n, s in grown.items()}) for i, d in enumerate(first.sizes))
    steps = None if first.steps is None else _dimension(first.steps, {n: s.steps for n, s in grown.items()})
    return Shape(first.dtype, sizes, steps)


def _dimension(first: Dimension, grown: Mapping[str, Dimension | None]) -> Dimension:
    """Return a dimension as text, from its value for data of one size, and for data where one size each is doubled."""
    assert isinstance(first, int)
    moved = {name: size - first for name, size in grown.items() if isinstance(size, int) and size != first}
    if not moved:
        return first
    if len(moved) > 1:
        return "*".join(moved) if first == STEPS ** len(moved) else "?"
    ((name, change),) = moved.items()
    if change % STEPS == 0:
        factor = change // STEPS
        text = name if factor == 1 else f"{factor}*{name}"
    elif change > 0 and STEPS % change == 0:
        text = f"{name}/{STEPS // change}"
    else:
        return "?"
    rest = first - change
    return f"{text}{rest:+d}" if rest else text
