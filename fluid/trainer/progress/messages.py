"""Messages of the log, where the place of a training in a notebook takes them in."""

import logging
from typing import Any


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
