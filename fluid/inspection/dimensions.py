"""Shapes of values of a program, with "batch" and "time" for dimensions that depend on the size of the data."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fluid.core import Program
from fluid.inspection.parts import Part, partition
from fluid.inspection.trace import STEPS, Sizes, trace

Dimension = int | str


class Shape(NamedTuple):
    """The dtype and shape of the last result of a part of a program.

    Attributes:
      dtype: the dtype of the result; empty if there is no result.
      sizes: the shape of the result. A dimension that depends on the size of the data is text, such as "batch" or
        "2*time".
      steps: the number of steps of the loop in the part; None if there is no loop, or if the data decides the number.
    """

    dtype: str
    sizes: tuple[Dimension, ...]
    steps: Dimension | None


def shapes_of(program: Program, parts: Sequence[Part]) -> list[Shape]:
    """Return the shape of each part of a program, and of the parts inside loops.

    The program is traced with data of several sizes. A dimension that grows with the number of examples is shown as
    "batch", a dimension that grows with the number of steps as "time". Some programs work only for data of one size;
    their dimensions are numbers.
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
    """Return a dict from each field of `Sizes` that a program's data has to its name in shapes."""
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
    """Return a dimension as text, such as "2*time", or as a number if it does not depend on the size of the data.

    Args:
      first: the dimension for data whose sizes are all `STEPS`.
      grown: the dimension for data in which one size is doubled, by the name of this size.

    Returns:
      "?" if no formula is found.
    """
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
