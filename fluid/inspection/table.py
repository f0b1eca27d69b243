"""The table of the layers of a program."""

import html
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fluid import errors
from fluid.formatting import html_table, scaled, text_table
from fluid.inspection.cost import Cost, Counter
from fluid.inspection.programs import inspect, step_cost
from fluid.inspection.rows import Row, rows_of, rows_of_calls
from fluid.inspection.trace import Sizes
from fluid.naming import select

_HEADER = ("layer", "output", "parameters", "size", "FLOPs", "moved", "line")
_RIGHT = (2, 3, 4, 5)


@dataclass(frozen=True)
class Totals:
    """The sums over all layers of all programs; a parameter that several use is counted once.

    Attributes:
      trainable: how many numbers there are in parameters that training changes.
      frozen: and in those that it does not change.
      states: and in states, such as moving averages.
      size: bytes of all of these.
      forward: FLOPs and bytes of one forward pass, in test mode.
      step: those of one training step: forward, backward and update; None when nothing is minimised.
      batch_size: number of examples that these are counted for.
      time: number of steps of each sequence that they are counted for.
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
    """A table of the layers of one or several programs, made by `fluid.summary`.

    Attributes:
      rows: a Row for each layer, in the order of the program.
      totals: their Totals.
      forward: FLOPs and bytes of one forward pass, by program.
      step: those of one training step, by program; without those that minimise nothing.
    """

    def __init__(self, rows: Sequence[Row], totals: Totals, forward: Mapping[str, Cost], step: Mapping[str, Cost]):
        self.rows = tuple(rows)
        self.totals = totals
        self.forward = dict(forward)
        self.step = dict(step)

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as JSON can hold it: `rows`, `totals`, and `programs` with their costs."""
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


def summarize(target: Any, batch_size: int, time: int, layers: str | Sequence[str] | None) -> Summary:
    """See `fluid.summary`."""
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
