"""Tables as text, and as HTML for notebooks."""

import html
from collections.abc import Collection, Iterable, Sequence

from fluid.formatting.plain import printable


def text_table(rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """Return a table as text with aligned columns; control characters in cells are escaped.

    Args:
      rows: rows of equal length, including the header.
      right: indices of the columns that are aligned to the right.

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

    Args:
      rows: the cells, as plain text.
      header: the cells of the header; empty for no header.
      right: indices of the columns that are aligned to the right.
      titles: for each row, the text of its tooltip; empty for no tooltips.

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
    # By default, notebooks align all cells to the right and may break lines within a shape.
    style = f"text-align: {'right' if right else 'left'}; white-space: pre"
    return f'<{tag} style="{style}">{html.escape(text)}</{tag}>'
