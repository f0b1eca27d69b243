"""The layers of programs as rows of numbers."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import jax.numpy as jnp

from fluid.core import ParameterSpec
from fluid.formatting import shape_text
from fluid.inspection.cost import Cost, Counter
from fluid.inspection.dimensions import Dimension, Shape
from fluid.inspection.parts import Part
from fluid.inspection.programs import Inspected


@dataclass(frozen=True)
class Row:
    """A feed, a layer, or operators between layers. Parts of a loop have rows of their own, below the row of the loop.

    Attributes:
      program: the name of its program.
      name: of the feed or layer; for operators the line of the program, as in "net.py:12".
      kind: "data", the kind of layer, such as "fc", or the last operation of a line.
      operators: whether it is a line of operators.
      depth: within how many loops it lies.
      shape: of its last result, with "batch" and "time" for what follows those; () for a scalar.
      dtype: of it.
      steps: how often the loop runs whose body the rows below are; None for other rows, or when the data decides.
      parameters: names of the parameters and states that are counted in this row: those that it is the first to read.
      shared: names of those that it reads, and that an earlier row counts.
      trainable: how many numbers there are in its parameters that training changes.
      frozen: and in those that it does not change.
      states: and in its states, such as moving averages.
      size: bytes of all of these.
      flops: in one forward pass of the program, in which a loop runs several times; without the rows below.
      bytes: that are moved, likewise.
      partial: whether `flops` and `bytes` take a loop for one step because the data decides how many there are.
      live: whether an output of the program depends on it; what is not live costs nothing.
      site: the user's line, as `file:line in function`.
      uses: in how many calls of a shared function the layer runs; its FLOPs and bytes are those of all calls.
    """

    program: str
    name: str
    kind: str
    operators: bool
    depth: int
    shape: tuple[Dimension, ...]
    dtype: str
    steps: Dimension | None
    parameters: tuple[str, ...]
    shared: tuple[str, ...]
    trainable: int
    frozen: int
    states: int
    size: int
    flops: float
    bytes: float
    partial: bool
    live: bool
    site: str
    uses: int = 1

    @property
    def output(self) -> str:
        """The dtype and shape of the last result, as in "float32[batch, 10]"."""
        return shape_text(self.dtype, self.shape) if self.dtype else ""

    @property
    def scope(self) -> str:
        """The name scopes of the layer, as in "generator"; empty for none."""
        return "" if self.operators else self.name.rpartition("/")[0]

    @property
    def title(self) -> str:
        """The name that tables and drawings show, followed by the kind unless the name contains the kind."""
        if self.operators:
            return f"({self.kind})"
        stem = self.name.rpartition("/")[2].rstrip("0123456789").rstrip("_")
        return self.name if self.kind in ("data", "identity", stem) else f"{self.name} ({self.kind})"

    @property
    def numbers(self) -> str:
        """The sizes of the parameters and states, as in "40 + 40 in states"."""
        counts = {"": self.trainable, " frozen": self.frozen, " in states": self.states}
        told = " + ".join(f"{count:,}{kind}" for kind, count in counts.items() if count)
        return told or ("shared" if self.shared else "")


def rows_of(programs: Sequence[Inspected], counter: Counter | None = None) -> list[Row]:
    """Return a row for each part of some programs. Shared parameters count in the first row that reads them.

    Args:
      programs: the programs.
      counter: of FLOPs and bytes; None leaves them 0.
    """
    trained = _trained(programs)
    counted: set[str] = set()
    rows = []
    for inspected in programs:
        walk = (found for top in inspected.partition.parts for found in top.walk())
        for (part, depth), shape in zip(walk, inspected.shapes, strict=True):
            rows.append(_row(inspected, part, depth, shape, counter, trained, counted))
            counted |= set(rows[-1].parameters)
    return rows


def rows_of_calls(rows: Sequence[Row]) -> list[Row]:
    """Return the rows with one row for all calls of a shared function: the first row, with the costs of all calls."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        key = (row.program, str(len(found)) if row.operators else re.sub(r"\(\d+\)/", "/", row.name))
        first = found.get(key)
        if first is not None:
            row = replace(
                first,
                flops=first.flops + row.flops,
                bytes=first.bytes + row.bytes,
                partial=first.partial or row.partial,
                live=first.live or row.live,
                uses=first.uses + 1,
            )
        found[key] = row
    return list(found.values())


def _trained(programs: Sequence[Inspected]) -> set[str]:
    """Return the names of the parameters that training changes: of programs that minimise, if there are any."""
    minimizes = [minimize for inspected in programs for minimize in inspected.program.minimizes]
    if minimizes:
        return {name for minimize in minimizes for name in minimize.parameters}
    return {name for inspected in programs for name, spec in inspected.program.parameters.items() if spec.trainable}


def _row(
    inspected: Inspected,
    part: Part,
    depth: int,
    shape: Shape,
    counter: Counter | None,
    trained: set[str],
    counted: set[str],
) -> Row:
    program = inspected.program
    specs = program.parameters | program.states
    read = [name for name in specs if name in part.arrays]
    mine = [specs[name] for name in read if name not in counted]
    cost = Cost() if counter is None else part.cost(counter)
    return Row(
        program=program.name,
        name=part.name,
        kind=part.kind,
        operators=part.operators,
        depth=depth,
        shape=shape.sizes,
        dtype=shape.dtype,
        steps=shape.steps,
        parameters=tuple(spec.name for spec in mine),
        shared=tuple(name for name in read if name in counted),
        trainable=_numbers(s for s in mine if s.trainable is not None and s.name in trained),
        frozen=_numbers(s for s in mine if s.trainable is not None and s.name not in trained),
        states=_numbers(s for s in mine if s.trainable is None),
        size=sum(math.prod(s.shape) * jnp.dtype(s.dtype).itemsize for s in mine),
        flops=cost.flops,
        bytes=cost.bytes,
        partial=cost.partial,
        live=part.live,
        site=part.site,
    )


def _numbers(specs: Iterable[ParameterSpec]) -> int:
    return sum(math.prod(spec.shape) for spec in specs)
