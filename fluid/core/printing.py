"""Printing: an explanation of the text that a program function prints during discovery."""

import contextlib
import io
import re
import sys
import threading
from collections.abc import Iterator
from typing import Any, TextIO


class _Watching(io.TextIOBase):
    """A stream that passes text on to another stream, and notes whether a number occurs in the text."""

    def __init__(self, stream: TextIO, number: int):
        self.seen = False
        self._stream = stream
        self._number = re.compile(rf"(?<![\d.]){number}(?![\d.])")

    def write(self, text: str) -> int:
        self.seen = self.seen or self._number.search(text) is not None
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def explained_prints(batch: int, again: bool) -> Iterator[None]:
    """Explain the stand-in for the batch size if a program function prints it.

    Only the main thread redirects standard output, which belongs to the whole process; other threads do nothing.

    Args:
      batch: the stand-in for the batch size.
      again: whether the function has printed before; then the block prints nothing.
    """
    if threading.current_thread() is not threading.main_thread() or sys.stdout is None:
        yield
    elif again:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    else:
        watching = _Watching(sys.stdout, batch)
        with contextlib.redirect_stdout(watching):
            yield
        if watching.seen:
            print(f"(fluid runs a program function on stand-in data first; {batch} stands for the batch size there)")
