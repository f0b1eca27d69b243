"""What OnlineTrainer inherits: taking rows from a program or a reader."""

import abc
import json
import time
from collections.abc import Mapping
from typing import Any

from fluid import errors, protocol
from fluid.online.journal import Accepted, Journal
from fluid.reader.adapters import minibatches
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.remote.rows import Packed, RowFormat

Note = tuple[str, str] | None
_LONGEST_KEY = 128
_PATIENCE = 1.0  # seconds


class AcceptsRows(abc.ABC):
    """Checks rows and writes them into a journal.

    Args:
      journal: where they go.
      rows: checks them, and makes messages of them.
      feed_order: which field of a row is which feed, for clients.

    Attributes:
      rows: the same.
    """

    def __init__(self, journal: Journal, rows: RowFormat, feed_order: FeedOrder):
        self.rows = rows
        self._journal = journal
        self._feed_order = None if feed_order is None else _plain(feed_order)

    @abc.abstractmethod
    def _check_started(self) -> None:
        """Raise an OnlineError when nothing is trained, so that a full journal stays full."""

    def send(self, rows: Any, key: str | None = None, wait: float = 0.0) -> int:
        """Accept rows; when this returns, they are on disk.

        Args:
          rows: a list of rows, a tuple of columns, or a dict of columns, as minibatches of `Trainer.train` are. They
            are accepted or refused together.
          key: tells these rows from all others; who does not know whether they were accepted sends them again with the
            same key, and they are not added twice.
          wait: seconds to wait for room when the journal is full.

        Returns:
          The position of the first one in the stream.

        Raises:
          FeedError, UnknownNameError: they do not fit; none was accepted.
          JournalFullError: there is no room.
          OnlineError: other rows had this key.
          JournalError: they cannot be written; none was accepted.
        """
        return self.accept(self.rows.pack(rows), key, wait).first

    def accept(self, packed: Packed, key: str | None = None, wait: float = 0.0, note: Note = None) -> Accepted:
        """Accept rows that were checked already; see `send`.

        Args:
          packed: what `rows.pack` returned.
          key: see `send`.
          wait: see `send`.
          note: a name and a value to write down together with them, see `Journal.append`.
        """
        if key is not None and not (0 < len(key) <= _LONGEST_KEY and key.isascii() and key.isprintable()):
            raise errors.ArgumentError(f"a key has 1 to {_LONGEST_KEY} ASCII characters, found {key[:60]!r}")
        deadline = time.monotonic() + wait
        while True:
            try:
                return self._journal.append(packed.body, packed.head, packed.rows, key, note)
            except errors.JournalFullError:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise
                with self._journal.changed:
                    self._journal.changed.wait(left)

    def send_all(self, reader: ReaderLike, name: str = "reader") -> int:
        """Accept the minibatches of one pass over a reader, waiting for room where there is none.

        With the rows the position of the reader is written down. A program that is run again, and calls this again with
        the same reader, continues after the last minibatch that was accepted; what has ended gives nothing more.

        Args:
          reader: as for `Trainer.train`.
          name: of the stream; another name begins at the beginning.

        Returns:
          How many rows were accepted now.

        Raises:
          FeedError: data does not fit; what came before is accepted.
          OnlineError: nothing is trained, so there will be no room.
        """
        source = minibatches(reader)
        noted = self._journal.note(f"reader {name}")
        if noted is not None:
            source.restore(json.loads(noted))
        count = 0
        for minibatch in source():
            packed = self.rows.pack(minibatch)
            note = (f"reader {name}", json.dumps(source.state()))
            while not self._accepted(packed, note):
                self._check_started()
            count += packed.rows
        return count

    def signature(self) -> dict[str, Any]:
        """What a client has to know in order to send rows: the feeds, and which field of a row is which."""
        specs = self.rows.specs
        found = protocol.Signature(specs, []).to_json()
        columns = {name: spec.column for name, spec in specs.items() if spec.column is not None}
        return {**found, "columns": columns, "feed_order": self._feed_order}

    def _accepted(self, packed: Packed, note: Note) -> bool:
        """Whether there was room for rows within a moment."""
        try:
            self.accept(packed, wait=_PATIENCE, note=note)
        except errors.JournalFullError:
            return False
        return True


def _plain(order: Any) -> Any:
    """A feed order as JSON can hold it."""
    return dict(order) if isinstance(order, Mapping) else list(order)
