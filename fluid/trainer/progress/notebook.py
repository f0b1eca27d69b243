"""The progress of a training in a notebook: one table that is updated, however long training goes on."""

import html
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from fluid.trainer.progress.status import Status, duration

# More epochs than these are not shown.
_ROWS = 20
# Inline, since notebooks are shown by many programs, and some of them drop style sheets. All colours are seen on white
# and on black; text has the colour that is around it.
_CELL = "padding: 0.15em 0.9em 0.15em 0; text-align: right; white-space: nowrap; border: none; background: none"
_HEAD = f"{_CELL}; font-weight: 600; border-bottom: 1px solid rgba(128, 128, 128, 0.5)"
_BAR = "height: 4px; border-radius: 2px"
_TRACK = f"{_BAR}; max-width: 40em; margin: 0.3em 0 0.5em; background: rgba(128, 128, 128, 0.25)"
_MESSAGE = "margin: 0.3em 0; opacity: 0.85"
_RUNNING = "#3b82c4"
_GOOD = "#3a9d5d"
_BAD = "#d0493c"


class Messages(logging.Handler):
    """Takes the warnings of the log "fluid" inside `with messages:`, which would go to standard error otherwise.

    Handlers that the user has given to that log, or to the root, get them as before.

    Attributes:
      lines: what was logged, each line once.

    Example:
      >>> with Messages() as messages:
      ...     logging.getLogger("fluid").warning("training continues")
      >>> messages.lines
      ['training continues']
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def __enter__(self) -> "Messages":
        logging.getLogger("fluid").addHandler(self)
        return self

    def __exit__(self, *error: Any) -> None:
        logging.getLogger("fluid").removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message. It may come from a signal handler in the middle of a drawing, so nothing is drawn here."""
        message = record.getMessage()
        if message not in self.lines:
            self.lines.append(message)


class _Row(NamedTuple):
    """What the table shows of one epoch, which counts from 1."""

    epoch: int
    steps: int
    values: dict[str, float]


class Notebook:
    """Shows a line that says how far training is, a bar, a table with a row for each epoch, and what was logged.

    Args:
      messages: what was logged, which may grow; each one is shown with the next drawing.
    """

    def __init__(self, messages: Sequence[str]) -> None:
        self._handle: Any = None
        self._messages = messages
        self._told = 0  # how many messages the last drawing shows
        self._drawing: tuple[str, str] = ("", "")  # its line, and its HTML without them
        self._rows: list[_Row] = []
        self._left_out = 0

    def begin_epoch(self, status: Status) -> None:
        """Show the epoch as the last row."""
        self.update(status)

    def update(self, status: Status) -> None:
        """Redraw."""
        self._show(_line(status), [*self._rows, _row(status)], status.fraction, _RUNNING)

    def end_epoch(self, status: Status) -> None:
        """Keep the row of an epoch that has ended."""
        self._rows.append(_row(status))
        if len(self._rows) > _ROWS:
            del self._rows[0]
            self._left_out += 1
        self._show(_line(status), self._rows, status.fraction, _RUNNING)

    def end(self, status: Status, how: str, good: bool) -> None:
        """Say how training has ended."""
        if self._handle is None:  # no epoch has begun
            return
        ended = any(row.epoch == status.epoch + 1 for row in self._rows)
        rows = self._rows if ended or not status.step else [*self._rows, _row(status)]
        self._show(how, rows, status.fraction, _GOOD if good else _BAD)

    def close(self) -> None:
        """Show the messages that came after the last drawing."""
        if len(self._messages) > self._told:
            self._draw()

    def _show(self, line: str, rows: Sequence[_Row], share: float, colour: str) -> None:
        self._drawing = (line, _page(line, _table(rows, self._left_out), share, colour))
        self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        line, page = self._drawing
        messages = list(self._messages)
        self._told = len(messages)
        data = {
            "text/html": page
            + "".join(f'<div style="{_MESSAGE}">{html.escape(message)}</div>' for message in messages),
            "text/plain": "\n".join([*([line] if line else []), *messages]),
        }
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)


def _row(status: Status) -> _Row:
    return _Row(status.epoch + 1, status.step, dict(status.values))


def _line(status: Status) -> str:
    """How far training is."""
    steps = f"step {status.step}" + (f" of {status.total}" if status.total else "")
    parts = [f"epoch {status.epoch + 1} of {status.num_epochs}", steps]
    if status.compiling is not None:
        return ", ".join([*parts, f"compiling {duration(status.compiling)}"])
    if status.counted:
        parts.append(f"{status.speed:.3g} steps/s")
    if status.left is not None:
        parts.append(f"{duration(status.left)} left")
    return ", ".join([*parts, *([status.note] if status.note else [])])


def _page(line: str, table: str, share: float, colour: str) -> str:
    bar = f'<div style="{_BAR}; width: {100 * share:.1f}%; background: {colour}"></div>'
    return f'<div>{html.escape(line)}</div><div style="{_TRACK}">{bar}</div>{table}'


def _table(rows: Sequence[_Row], left_out: int) -> str:
    """The rows as HTML; what no row has is no column."""
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    lines = [[str(row.epoch), str(row.steps), *(_shown(row.values.get(name)) for name in names)] for row in rows]
    head = _cells("th", _HEAD, ["epoch", "steps", *names])
    body = "".join(_cells("td", _CELL, line) for line in lines)
    note = f'<div style="opacity: 0.7">{left_out} earlier epochs are in trainer.history</div>' if left_out else ""
    return (
        f'<div style="overflow-x: auto"><table style="border-collapse: collapse; border: none; margin: 0">'
        f"<thead>{head}</thead><tbody>{body}</tbody></table></div>{note}"
    )


def _cells(tag: str, style: str, texts: Sequence[str]) -> str:
    """A row of a table."""
    cells = (f'<{tag} style="{style}">{html.escape(text)}</{tag}>' for text in texts)
    return f"<tr>{''.join(cells)}</tr>"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
