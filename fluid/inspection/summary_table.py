"""The table of `fluid.summary`: a row of numbers for each layer of a program, and the table as text or HTML."""

import html
import math
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax.numpy as jnp

from fluid import errors
from fluid._util.globs import select
from fluid._util.text import html_table, scaled, shape_text, text_table
from fluid.core import ParameterSpec
from fluid.inspection.inspected import Dimension, Inspected, Shape, inspect, step_cost
from fluid.inspection.partition import Cost, Counter, Part, Sizes


@dataclass(frozen=True)
class Row:
    """The row of the summary table for a feed, a layer, or the operators in one line of the user's code.

    Layers inside a loop have separate rows, below the row of the loop.

    Attributes:
      program: the name of the program that contains the layer.
      name: the name of the feed or layer; for operators the source line, as in "net.py:12".
      kind: "data" for a feed; for a layer its kind, such as "fc"; for a line of operators its last operation.
      operators: True if the row is for a line of operators.
      depth: the number of loops around the layer.
      shape: the shape of the final result of the layer; () for a scalar. A dimension that depends on the number of
        examples has the text "batch", and a dimension that depends on the number of steps the text "time".
      dtype: the dtype of the final result of the layer.
      steps: for a loop, the number of steps; the rows below are the body of the loop. None for other rows, or if the
        data decides the number.
      parameters: the names of the parameters and states that are counted in this row, because no earlier row reads
        them.
      shared: the names of the parameters and states that this row reads, and that an earlier row counts.
      trainable: the count of numbers in the row's parameters that training changes.
      frozen: the count of numbers in the row's parameters that training does not change.
      states: the count of numbers in the row's states, such as moving averages.
      size: the bytes of the row's parameters and states.
      flops: the FLOPs of the layer in one forward pass of the program, over all steps of loops. The row of a loop does
        not include the FLOPs of the rows below.
      bytes: the bytes that the operations of the layer read and write in one forward pass, counted like `flops`.
      partial: True if `flops` and `bytes` count only one step of a loop, because the data decides the number of steps.
      live: True if an output of the program depends on the layer; if False, `flops` and `bytes` are 0.
      site: the user's source line that created the layer, as `file:line in function`.
      uses: the number of calls of a shared function that run the layer; `flops` and `bytes` count all calls.
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
        """The dtype and shape of the final result of the layer, as in "float32[batch, 10]"."""
        return shape_text(self.dtype, self.shape) if self.dtype else ""

    @property
    def scope(self) -> str:
        """The name scopes of the layer, for example "generator"; empty for a layer without a scope."""
        return "" if self.operators else self.name.rpartition("/")[0]

    @property
    def title(self) -> str:
        """The title of a layer in tables and drawings: the name of the layer, then its kind in parentheses.

        The kind is left out if the name contains the kind.
        """
        if self.operators:
            return f"({self.kind})"
        stem = self.name.rpartition("/")[2].rstrip("0123456789").rstrip("_")
        return self.name if self.kind in ("data", "identity", stem) else f"{self.name} ({self.kind})"

    @property
    def numbers(self) -> str:
        """The numbers of elements of the parameters and states as text, for example "40 + 40 in states"."""
        counts = {"": self.trainable, " frozen": self.frozen, " in states": self.states}
        parts = " + ".join(f"{count:,}{kind}" for kind, count in counts.items() if count)
        return parts or ("shared" if self.shared else "")


def rows_of(programs: Sequence[Inspected], counter: Counter | None = None) -> list[Row]:
    """Return a table row for each part (such as a layer) of some programs.

    Shared parameters count in the first row that reads them.

    Args:
      counter: the counter of FLOPs and bytes; with None, both are 0.
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
    """Merge the rows of a layer that several calls of a shared function run; the first row gets the summed costs."""
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
    """Return the names of the parameters that optimizers update; all trainable parameters if there is no optimizer."""
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


_HEADER = ("layer", "output", "parameters", "size", "FLOPs", "moved", "line")
_RIGHT = (2, 3, 4, 5)


@dataclass(frozen=True)
class Totals:
    """The sums over all layers of all programs; a parameter that several layers or programs read is counted once.

    Attributes:
      trainable: the count of numbers in parameters that training changes.
      frozen: the count of numbers in parameters that training does not change.
      states: the count of numbers in states, such as moving averages.
      size: the bytes of all parameters and states.
      forward: the FLOPs and bytes of one forward pass, in test mode.
      step: the FLOPs and bytes of one training step: forward pass, backward pass and update. None if no program
        minimises a loss.
      batch_size: the number of examples for which FLOPs and bytes are counted.
      time: the number of steps of each sequence for which FLOPs and bytes are counted.
    """

    trainable: int
    frozen: int
    states: int
    size: int
    forward: Cost
    step: Cost | None
    batch_size: int
    time: int


class Summary:
    """A table of the layers of one or several programs, returned by `fluid.summary`.

    Attributes:
      rows: a Row for each layer, in the order of the program.
      totals: the Totals of all rows.
      forward: the FLOPs and bytes of one forward pass, by the name of the program.
      step: the FLOPs and bytes of one training step, by the name of the program; programs that minimise no loss are
        left out.
    """

    def __init__(self, rows: Sequence[Row], totals: Totals, forward: Mapping[str, Cost], step: Mapping[str, Cost]):
        self.rows = tuple(rows)
        self.totals = totals
        self.forward = dict(forward)
        self.step = dict(step)

    def to_dict(self) -> dict[str, Any]:
        """Return the table as a dict for JSON, with the keys `rows`, `totals` and `programs` (costs by program)."""
        costs = {name: {"forward": cost._asdict(), "step": None} for name, cost in self.forward.items()}
        for name, cost in self.step.items():
            costs[name]["step"] = cost._asdict()
        totals = asdict(self.totals)
        totals["forward"] = self.totals.forward._asdict()
        totals["step"] = None if self.totals.step is None else self.totals.step._asdict()
        rows = [{key: list(v) if isinstance(v, tuple) else v for key, v in asdict(row).items()} for row in self.rows]
        return {"rows": rows, "totals": totals, "programs": costs}

    def __str__(self) -> str:
        lines: list[str] = []
        table = text_table([_HEADER, *(_cells(row) for row in self.rows)], _RIGHT).splitlines()
        rule = "-" * max(map(len, table))
        programs = [row.program for row in self.rows]
        for number, (row, line) in enumerate(zip(self.rows, table[1:], strict=True)):
            if number == 0 or row.program != programs[number - 1]:
                lines += ["", row.program, table[0], rule] if lines else [row.program, table[0], rule]
            lines.append(line)
        return "\n".join([*lines, rule, text_table(self._sums())])

    def __repr__(self) -> str:
        return f"Summary({', '.join(self.forward)}: {len(self.rows)} rows)"

    def _repr_html_(self) -> str:
        tables = []
        for program in self.forward:
            rows = [row for row in self.rows if row.program == program]
            titles = [f"{row.site}\n{', '.join(row.parameters)}".strip() for row in rows]
            tables.append(
                f"<b>{html.escape(program)}</b>" + html_table([_cells(r) for r in rows], _HEADER, _RIGHT, titles)
            )
        return "".join([*tables, html_table(self._sums())])

    def _sums(self) -> list[tuple[str, str]]:
        totals = self.totals
        kinds = {"trainable": totals.trainable, "frozen": totals.frozen, "in states": totals.states}
        counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds.items() if count) or "none"
        sums = [("parameters", f"{counts}: {scaled(totals.size, 'B')}")]
        for program, cost in self.forward.items():
            of = f" of {program}" if len(self.forward) > 1 else ""
            sums.append((f"forward pass{of}", _priced(cost)))
            if program in self.step:
                sums.append((f"training step{of}", _priced(self.step[program])))
        many = "s" if totals.batch_size > 1 else ""
        timed = any(size in row.shape for row in self.rows for size in ("time", "inner"))
        steps = f" of {totals.time} steps" if timed else ""
        return [*sums, ("counted for", f"{totals.batch_size} example{many}{steps}; bytes before XLA fuses operations")]


def summary(target: Any, batch_size: int = 1, time: int = 16, layers: str | Sequence[str] | None = None) -> Summary:
    """Return a table of the layers of a program, with their shapes, parameters and cost.

    XLA counts the FLOPs: a multiplication and an addition are two, functions such as `exp` are not counted. The bytes
    are the sum over all operations of the bytes read and written, before XLA fuses operations. They are an upper bound
    of the bytes that the device moves. The cost of a loop is the cost of all its steps. If the data decides the number
    of steps, one step counts, and `>=` marks the row. Operators between layers have separate rows, which are named by
    their source line.

    Args:
      target: a program function, Program, Trainer, Inferencer, or a Session, of which all programs are shown.
      batch_size: the number of examples for which FLOPs and bytes are counted.
      time: the number of steps of each sequence for which FLOPs and bytes are counted.
      layers: names or globs such as "generator/*" of the rows to show. The totals always include all rows.

    Returns:
      Summary: `print` shows it as text, a notebook as a table; `rows`, `totals` and `to_dict()` have the numbers.

    Raises:
      ArgumentTypeError: `target` has another type. ArgumentError: a size is not positive.
      UnknownNameError: no layer matches `layers`. FluidError: the trace of the program finds a mistake, such as shapes
        that do not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.fc(fluid.layers.fc(x, size=8, act="relu"), size=2)
      >>> found = fluid.summary(program, batch_size=10)
      >>> [(row.name, row.output, row.trainable, row.flops) for row in found.rows[1:]]
      [('fc_0', 'float32[batch, 8]', 40, 800.0), ('fc_1', 'float32[batch, 2]', 18, 340.0)]
      >>> found.totals.trainable, found.totals.forward.flops
      (58, 1140.0)
    """
    for argument, value in (("batch_size", batch_size), ("time", time)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise errors.ArgumentError(
                f"summary({argument}={value!r}): expected a positive whole number, as in {argument}=16"
            )
    sizes = Sizes(batch_size, time, time)
    programs = inspect(target, sizes)
    counter = Counter()
    rows = rows_of_calls(rows_of(programs, counter))
    forward = {p.program.name: _sum(r for r in rows if r.program == p.program.name) for p in programs}
    costs = {p.program.name: step_cost(p, sizes, counter) for p in programs}
    step = {name: cost for name, cost in costs.items() if cost is not None}
    totals = Totals(
        trainable=sum(row.trainable for row in rows),
        frozen=sum(row.frozen for row in rows),
        states=sum(row.states for row in rows),
        size=sum(row.size for row in rows),
        forward=sum(forward.values(), Cost()),
        step=sum(step.values(), Cost()) if step else None,
        batch_size=batch_size,
        time=time,
    )
    return Summary(rows if layers is None else _matching(rows, layers), totals, forward, step)


def _matching(rows: Sequence[Row], layers: str | Sequence[str]) -> list[Row]:
    names = select(layers, [row.name for row in rows], "summary(layers=)")
    return [row for row in rows if row.name in names]


def _sum(rows: Iterable[Row]) -> Cost:
    return sum((Cost(row.flops, row.bytes, row.partial) for row in rows), Cost())


def _cells(row: Row) -> tuple[str, ...]:
    name = "  " * row.depth + row.title + (f" x {row.steps}" if row.steps is not None else "")
    name += f", used {row.uses} times" if row.uses > 1 else ""
    size = scaled(row.size, "B") if row.size else ""
    line = pathlib.Path(row.site.rpartition(" in ")[0]).name
    least = ">= " if row.partial else ""
    flops = least + scaled(row.flops) if row.flops else ""
    moved = least + scaled(row.bytes, "B") if row.bytes else ""
    return name, row.output, row.numbers, size, flops if row.live else "not used", moved, line


def _priced(cost: Cost) -> str:
    return f"{'>= ' if cost.partial else ''}{scaled(cost.flops, 'FLOPs')}, {scaled(cost.bytes, 'B')} moved"
