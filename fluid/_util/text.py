"""Formatting: functions that convert numbers, shapes, objects and tables to text."""

import dataclasses
import html
import types
from collections.abc import Collection, Iterable, Sequence
from typing import Any

_PREFIXES = ("", "k", "M", "G", "T", "P")


def scaled(count: float, unit: str = "") -> str:
    """Return a number as text, with three digits and an SI prefix.

    Example:
      >>> scaled(96, "B"), scaled(41_300, "FLOPs"), scaled(1_250_000)
      ('96 B', '41.3 kFLOPs', '1.25 M')
    """
    steps = 0
    while count >= 999.5 and steps < len(_PREFIXES) - 1:
        count /= 1000
        steps += 1
    shown = f"{count:.3g}" if count < 999.5 else f"{count:.0f}"
    return f"{shown} {_PREFIXES[steps]}{unit}".rstrip()


def counted(count: int, noun: str) -> str:
    """Return a number and a noun as text; the noun gets an "s" unless the number is 1.

    Example:
      >>> counted(1, "program"), counted(12_345, "parameter")
      ('1 program', '12,345 parameters')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shape_text(dtype: str, shape: Sequence[int | str | None]) -> str:
    """Return a dtype and a shape as text; a size of None is shown as "batch".

    Example:
      >>> shape_text("float32", (None, "time", 8))
      'float32[batch, time, 8]'
    """
    return f"{dtype}[{', '.join('batch' if d is None else str(d) for d in shape)}]"


def short(value: Any) -> str:
    """Return the `repr` of a value on one line, cut to 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def described(value: Any, depth: int = 3) -> str:
    """Return a text that describes an object and its settings; the text is equal in every process.

    Args:
      value: a dataclass is described by its fields that differ from their defaults, and a function by its name and the
        variables of its closure. Numbers and strings are described by `repr`, other objects by the name of their type.

    Example:
      >>> import fluid
      >>> described(fluid.optimizer.Momentum(0.1, momentum=0.8))
      'Momentum(learning_rate=0.1, momentum=0.8)'
      >>> described(fluid.optimizer.SGD(fluid.layers.cosine_decay(0.1, 100, 20)), depth=0)
      'SGD(learning_rate=cosine_decay(...))'
    """
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, types.FunctionType):
        if depth <= 0:
            return f"{value.__qualname__.partition('.<locals>')[0]}(...)"
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        shown = [f"{name}={described(cell.cell_contents, depth - 1)}" for name, cell in cells]
        return f"{value.__qualname__}({', '.join(shown)})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        values = {f.name: (getattr(value, f.name), f.default) for f in dataclasses.fields(value) if f.repr}
        shown = [f"{name}={described(v, depth)}" for name, (v, default) in values.items() if v != default]
        return f"{type(value).__name__}({', '.join(shown)})"
    if isinstance(value, list | tuple):
        return "[...]" if depth <= 0 else f"[{', '.join(described(item, depth - 1) for item in value)}]"
    return getattr(value, "__qualname__", type(value).__name__)


def printable(text: str, keep: str = "") -> str:
    """Return text in which escapes replace control characters, which could control the user's terminal.

    Example:
      >>> print(printable("fc_0\\x1b[2J\\n", keep="\\n").rstrip())
      fc_0\\x1b[2J
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def text_table(rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return a table as text with aligned columns; control characters in cells are escaped.

    Example:
      >>> print(text_table([("name", "size"), ("fc_0.w_0", "8"), ("fc_0.b_0", "12")], right=[1]))
      name      size
      fc_0.w_0     8
      fc_0.b_0    12
    """
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def html_table(
    rows: Iterable[Sequence[str]],
    header: Sequence[str] = (),
    right: Collection[int] = (),
    titles: Sequence[str] = (),
) -> str:
    """Return a table as HTML for a notebook.

    Example:
      >>> html_table([("a < b", "8")], right=[1]).count("a &lt; b")
      1
    """
    titles = list(titles)
    head = f"<thead><tr>{''.join(_cell('th', i in right, c) for i, c in enumerate(header))}</tr></thead>"
    body = []
    for number, row in enumerate(rows):
        title = f' title="{html.escape(titles[number])}"' if titles else ""
        body.append(f"<tr{title}>{''.join(_cell('td', i in right, c) for i, c in enumerate(row))}</tr>")
    return f"<table>{head if header else ''}<tbody>{''.join(body)}</tbody></table>"


def _cell(tag: str, right: bool, text: str) -> str:
    # Set the style of each cell: by default, notebooks align cells to the right and may break lines within a shape.
    style = f"text-align: {'right' if right else 'left'}; white-space: pre"
    return f'<{tag} style="{style}">{html.escape(text)}</{tag}>'
