"""The class Journal, a database that stores accepted rows in order, on disk before the sender gets a response."""

import bisect
import collections
import contextlib
import hashlib
import itertools
import json
import logging
import os
import pathlib
import re
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from fluid import errors
from fluid.checkpoint.atomic import sync
from fluid.runtime.interrupts import InterruptGuard

LOG = logging.getLogger("fluid.online")
# Format 2 has rows that are skipped; a fluid that does not know this format would divide the rows in another way.
_FORMATS = "1", "2"
_TABLES = """
    CREATE TABLE entries (
        first INTEGER PRIMARY KEY, rows INTEGER NOT NULL, head INTEGER NOT NULL, body BLOB NOT NULL,
        digest BLOB NOT NULL
    );
    CREATE TABLE keys (
        number INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, first INTEGER NOT NULL, digest BLOB NOT NULL
    );
    CREATE TABLE notes (name TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE INDEX second_copy ON notes (name, value) WHERE name <> 'next';
"""
_BRING_BACK = "Bring back a copy of the whole folder"
_STATEMENTS = [statement.strip() for statement in _TABLES.split(";")[:-1]]
# The pattern of the file with the suffix `.last` beside the database. The file holds the number of acknowledged rows
# twice, so that damage to the file is detected. A row is acknowledged when its sender knows that it is on disk.
_LAST = re.compile(rb"([0-9]{20}) \1\n")


class Accepted(NamedTuple):
    """The result of `Journal.append`: the position of the rows that the journal, a database of rows, has accepted.

    Attributes:
      first: the position of the first row in the stream, from 0.
      repeated: True if rows with this key were accepted before, so that nothing was added.
    """

    first: int
    repeated: bool


class JournalEntry(NamedTuple):
    """An entry of the journal, a database of rows: the rows that one call of `Journal.append` has added.

    Attributes:
      first: the position of the first row in the stream.
      rows: the number of rows.
      head: the number of bytes of JSON at the start of the body.
      body: the message with the rows; `RowFormat.unpack` reads it.
    """

    first: int
    rows: int
    head: int
    body: bytes


class _Append:
    """A call of `Journal.append` that has not returned yet: the rows to add, and a Future of the result."""

    def __init__(self, body: bytes, head: int, rows: int, key: str | None, note: tuple[str, str] | None):
        self.body, self.head, self.rows = body, head, rows
        self.key, self.note = key, note
        self.digest = _digest(body, head)
        self.outcome: Future[Accepted] = Future()


class Journal:
    """A SQLite database of rows by position; rows for which `append` has returned survive the end of the process.

    The database is in WAL mode (a write-ahead log), each commit is synced, and only one process at a time can open the
    database. Several threads may use one Journal. Rows that they append at the same time are committed in one
    transaction, because the wait for the disk takes most of the time.

    SQLite interprets all bytes after a damaged byte of its WAL as an incomplete commit, and drops them silently. So the
    number of acknowledged rows is also written to a small file beside the database, after each commit and without a
    sync. The number in the file is never larger than the number of rows on disk. The two numbers are equal, unless the
    machine loses power.

    A row waits until a call of `passed` says that it was trained on.

    Args:
      max_bytes: the maximum size of the waiting rows, in bytes. A journal with fewer than `least_rows` waiting rows
        accepts more bytes, because so few rows do not fill a minibatch.

    Attributes:
      changed: a condition, notified when rows were added, and after other events that threads wait for.
      next: the position of the next added row, which is the number of all rows ever accepted.
      skipped: the positions of the rows that training leaves out, in ascending order.

    Raises:
      JournalError: another process has opened the journal; or the database is damaged, of another kind, or cannot be
        created; or acknowledged rows are missing.

    Example:
      >>> journal = Journal("journal.db", {"batch_size": 2}, max_rows=3)
      >>> journal.append(b"ab", 0, 2, key="one"), journal.append(b"ab", 0, 2, key="one")
      (Accepted(first=0, repeated=False), Accepted(first=0, repeated=True))
      >>> journal.append(b"cd", 0, 2)
      Traceback (most recent call last):
      fluid.errors.JournalFullError: the journal is full: 2 rows wait to be trained on, of 3 that may; ...
      >>> journal.close()
    """

    def __init__(
        self,
        path: Any,
        settings: Mapping[str, Any],
        max_rows: int = 100_000,
        max_bytes: int = 1 << 30,
        least_rows: int = 1,
        max_keys: int = 100_000,
    ):
        self._path = pathlib.Path(path)
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self._least_rows = least_rows
        self._max_keys = max_keys
        self._in_flight: collections.deque[_Append] = collections.deque()
        self._lock = threading.RLock()
        self.changed = threading.Condition(self._lock)
        self._db = self._opened()
        try:
            self._check_settings(settings)
            self._passed = 0
            with self._converted_errors("read"):
                self.next = int(self.note("next") or 0)
                self.skipped: Sequence[int] = json.loads(self.note("skipped") or "[]")
                found = self._db.execute("SELECT first, first + rows, length(body) FROM entries ORDER BY first")
                entries = found.fetchall()
            # `_waiting` has a pair for each entry (the rows of one call of `append`) that waits for training: the
            # position after the entry's last row, and the entry's number of bytes.
            self._waiting = collections.deque((end, size) for _, end, size in entries)
            self._waiting_bytes = sum(size for _, size in self._waiting)
            self._check_complete([(first, end) for first, end, _ in entries])
        except BaseException:
            self._db.close()
            raise

    @property
    def waiting(self) -> int:
        """The number of rows that wait to be trained on: the rows from the position of the last `passed` call on."""
        return self._waiting_before(self.next)

    @property
    def held(self) -> int:
        """The position of the oldest row that is still in the journal; without rows, the position of the next row."""
        with self._lock, self._converted_errors("read"):
            found = self._db.execute("SELECT min(first) FROM entries").fetchone()[0]
        return self.next if found is None else int(found)

    def append(
        self,
        body: bytes,
        head: int,
        rows: int,
        key: str | None = None,
        note: tuple[str, str] | None = None,
    ) -> Accepted:
        """Add rows; when this call returns, the rows are on disk.

        Args:
          head: the number of bytes of JSON at the start of the body.

        Raises:
          JournalFullError: too many rows wait to be trained on.
          OnlineError: other rows were added with this key before.
          JournalError: the database cannot be written; nothing is added.
        """
        append = _Append(body, head, rows, key, note)
        self._in_flight.append(append)
        try:
            with self.changed:
                # Another thread may have written the rows of this call already, in one transaction with its own rows.
                # The outcome is then set, and nothing is left to do.
                if not append.outcome.done():
                    # Ctrl-C must not interrupt the transaction, so it takes effect only after the results of all
                    # running calls of `append` are set.
                    with InterruptGuard():
                        self._write_all()
        finally:
            # If Ctrl-C ends this call before its rows are written, no other thread may write the rows later.
            self._forget(append)
        return append.outcome.result()

    def read(self, start: int, stop: int) -> list[JournalEntry]:
        """Return the entries (the rows of one `append` each) that hold the rows at positions `start` to `stop - 1`.

        Raises:
          JournalError: any of these rows is missing or damaged.
        """
        with self._lock, self._converted_errors("read"):
            found = self._db.execute(
                "SELECT first, rows, head, CAST(body AS BLOB), digest FROM entries WHERE first < ? AND "
                "first >= coalesce((SELECT max(first) FROM entries WHERE first <= ?), 0) ORDER BY first",
                (stop, start),
            ).fetchall()
        entries = []
        reached = start
        for first, rows, head, body, digest in found:
            if digest not in (_digest(body, head), _digest(body)):
                raise errors.JournalError(
                    f"the rows from {first} on in {str(self._path)!r} are not what was written: the disk has changed "
                    f"them. {_BRING_BACK}"
                )
            entries.append(JournalEntry(first, rows, head, body))
            if first <= reached:
                reached = first + rows
        if reached < stop:
            raise errors.JournalError(
                f"the rows {start} to {stop - 1} are not all in {str(self._path)!r}; expected the journal that belongs "
                f"to the checkpoints beside it"
            )
        return entries

    def note(self, name: str) -> str | None:
        """Return the note `name`: a text that a call of `append` has stored beside its rows.

        Return None if there is no note of this name.
        """
        with self._lock, self._converted_errors("read"):
            found = self._db.execute("SELECT value FROM notes WHERE name = ?", (name,)).fetchone()
            return None if found is None else str(found[0])

    def passed(self, position: int) -> None:
        """Record that training has used all rows before row number `position`; they no longer count as waiting rows."""
        with self.changed:
            self._passed = position
            while self._waiting and self._waiting[0][0] <= position:
                self._waiting_bytes -= self._waiting.popleft()[1]
            self.changed.notify_all()

    def skip(self, positions: Iterable[int]) -> None:
        """Record on disk that training leaves out some rows, which no longer count as waiting rows.

        Raises:
          JournalError: the database cannot be written; nothing is recorded.
        """
        with self.changed:
            skipped = sorted({*self.skipped, *positions})
            with self._converted_errors("written"), self._transaction():
                self._write("skipped", json.dumps(skipped))
                self._write("format", _FORMATS[-1])
                self._check_there()
            self.skipped = skipped
            self.changed.notify_all()

    def drop(self, position: int) -> None:
        """Delete all entries of the journal (the rows of one `append`) before `position`, but keep the newest entry."""
        with self._lock, self._converted_errors("written"), self._transaction():
            self._db.execute("DELETE FROM entries WHERE first + rows <= ?", (min(position, self.next - 1),))

    def close(self) -> None:
        """Close the database, so that another process can open it."""
        with self._lock:
            self._db.close()
            self._last.close()

    def _opened(self) -> sqlite3.Connection:
        with self._converted_errors("opened"):
            self._keep_private()
            database = sqlite3.connect(self._path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                # In the mode EXCLUSIVE, SQLite holds its file lock until the process ends, also if the process crashes.
                database.execute("PRAGMA locking_mode = EXCLUSIVE")
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("PRAGMA synchronous = FULL")
                database.execute("BEGIN IMMEDIATE")
                self._check_whole(database)
                known = [sql for (sql,) in database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]
                if not set(known) <= set(_STATEMENTS):
                    raise errors.JournalError(f"{str(self._path)!r} is no journal, or damaged: found {known}")
                for statement in _STATEMENTS:
                    if statement not in known:  # older journals lack the database index `second_copy`
                        database.execute(statement)
                if not known:
                    database.execute("INSERT INTO notes VALUES ('format', ?)", _FORMATS[:1])
                database.execute("COMMIT")
                wal = self._path.with_name(f"{self._path.name}-wal")
                self._files = {path: path.stat() for path in (self._path, wal)}
            except BaseException:
                database.close()
                raise
        sync(self._path.parent)
        return database

    def _keep_private(self) -> None:
        """Make the files of the journal unreadable for other users; SQLite copies the mode of the database file."""
        # Never open an existing file here: closing it would release the lock that SQLite holds on the file.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        wal = self._path.with_name(f"{self._path.name}-wal")
        for path in (self._path, wal, self._path.with_suffix(".last")):
            if path.is_file() and path.stat().st_mode & 0o077:
                path.chmod(0o600)

    def _check_whole(self, database: sqlite3.Connection) -> None:
        """Check the database by SQLite's integrity check, which does not check the bytes of the rows; `read` does."""
        problem = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if problem != "ok":
            raise errors.JournalError(
                f"the journal {str(self._path)!r} is not what was written: {problem}. {_BRING_BACK}"
            )

    def _check_complete(self, spans: Sequence[tuple[int, int]]) -> None:
        """Check that no row is missing, from the oldest row in the database to the last acknowledged row.

        A row is acknowledged when `append` has returned. A file with the suffix `.last` beside the database holds the
        number of acknowledged rows.

        Args:
          spans: for each call of `append` in the database, the position of its first row, and the position after its
            last row.
        """
        for (_, end), (first, _) in itertools.pairwise([*spans, (self.next, self.next)]):
            if end != first:
                raise errors.JournalError(
                    f"the rows from {min(end, first)} on in {str(self._path)!r} are not what was written: an entry "
                    f"ends before the row {end}, and the next one begins with {first}. {_BRING_BACK}"
                )
        path = self._path.with_suffix(".last")
        with self._converted_errors("opened"):
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)
            self._last = os.fdopen(os.open(path, flags, 0o600), "r+b", buffering=0)
        text = self._last.read()
        match = _LAST.fullmatch(text)
        acknowledged = int(match[1]) if match else 0
        if self.next < acknowledged:
            self._last.close()
            raise errors.JournalError(
                f"the rows {self.next} to {acknowledged - 1} were acknowledged and are not in {str(self._path)!r}: the "
                f"disk has changed or lost a part of the journal. {_BRING_BACK}, or remove {str(path)!r} to go on "
                f"without these rows"
            )
        if text and not match:
            LOG.warning("%s is damaged, and written anew; the journal beside it has no flaw", path)
        self._acknowledge()

    def _acknowledge(self) -> None:
        # Ignore errors: the file with the suffix `.last` is only an additional check, and the rows are already on disk.
        with contextlib.suppress(OSError):
            self._last.seek(0)
            self._last.write(b"%020d %020d\n" % (self.next, self.next))

    def _check_settings(self, settings: Mapping[str, Any]) -> None:
        with self._converted_errors("read"):
            found = self.note("format")
            known = self.note("settings")
            if found not in _FORMATS:
                raise errors.JournalError(
                    f"{str(self._path)!r} has the format {found}, expected {' or '.join(_FORMATS)}; a newer fluid "
                    f"reads newer ones"
                )
            if known is None:
                with self._transaction():
                    self._write("settings", json.dumps(settings, sort_keys=True))
            elif known != json.dumps(settings, sort_keys=True):
                raise errors.JournalError(
                    f"{str(self._path)!r} holds the rows of a stream with {known}, found "
                    f"{json.dumps(settings, sort_keys=True)}; give the same as before, or another folder to start anew"
                )

    def _write_all(self) -> None:
        """Write the rows of all running calls of `append` in one transaction, which waits for the disk once."""
        group = list(self._in_flight)
        try:
            self._write_together(group)
        # if the disk is full, the rows of a single call of `append` may still fit: write the rows of each call alone
        except errors.JournalError:
            for append in group:
                try:
                    self._write_together([append])
                except errors.JournalError as error:
                    append.outcome.set_exception(error)
        self.changed.notify_all()
        for append in group:
            self._forget(append)

    def _forget(self, append: "_Append") -> None:
        # `_write_all` in another thread may have removed this call of `append` from the list already.
        with contextlib.suppress(ValueError):
            self._in_flight.remove(append)

    def _write_together(self, group: Sequence["_Append"]) -> None:
        """Write the rows of several calls of `append` in one transaction; then set the results of these calls."""
        outcomes: list[Accepted | errors.FluidError] = []
        added: list[tuple[int, int]] = []
        end = self.next
        with self._converted_errors("written"), self._transaction():
            for append in group:
                try:
                    accepted = self._accepted_before(append)
                    if accepted is None:
                        self._check_capacity(append.rows, len(append.body), end, sum(size for _, size in added))
                        self._insert(append, end)
                        accepted = Accepted(end, False)
                        end += append.rows
                        added.append((end, len(append.body)))
                    outcomes.append(accepted)
                except (errors.OnlineError, errors.FeedError) as error:
                    outcomes.append(error)
            self._check_there()
        self.next = end
        self._acknowledge()
        self._waiting += added
        self._waiting_bytes += sum(size for _, size in added)
        for append, outcome in zip(group, outcomes, strict=True):
            if isinstance(outcome, Accepted):
                append.outcome.set_result(outcome)
            else:
                append.outcome.set_exception(outcome)

    def _check_there(self) -> None:
        """Check that the database and its WAL are the opened files: SQLite writes on to files that were deleted."""
        for path, opened in self._files.items():
            if not path.exists() or not os.path.samestat(path.stat(), opened):
                raise errors.JournalError(
                    f"{str(path)!r} was removed or replaced while rows were written to it. {_BRING_BACK}, and start a "
                    f"new OnlineTrainer"
                )

    def _insert(self, append: "_Append", first: int) -> None:
        entry = (first, append.rows, append.head, append.body, append.digest)
        self._db.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", entry)
        self._write("next", str(first + append.rows))
        if append.note is not None:
            self._write(*append.note)
        if append.key is not None:
            made = self._db.execute(
                "INSERT INTO keys (key, first, digest) VALUES (?, ?, ?)",
                (append.key, first, _digest(append.digest, first)),
            )
            self._db.execute("DELETE FROM keys WHERE number <= ?", ((made.lastrowid or 0) - self._max_keys,))

    def _accepted_before(self, append: "_Append") -> Accepted | None:
        """Find rows that were already added to the journal (a database of rows) with their key.

        Return the position of these rows; None if the key is new or there is no key.
        """
        if append.key is None:
            return None
        found = self._db.execute("SELECT first, digest FROM keys WHERE key = ?", (append.key,)).fetchone()
        if found is None:
            return None
        if found[1] not in (_digest(append.digest, found[0]), _digest(append.body)):
            raise errors.OnlineError(
                f"other rows were sent with the key {append.key!r} before; expected the same rows again, or a new key"
            )
        return Accepted(found[0], True)

    def _check_capacity(self, rows: int, size: int, end: int, added: int) -> None:
        """Check that the journal has capacity for `rows` more rows, which have `size` bytes in total.

        `end` is the position of the first of these rows. `added` is the number of bytes that the current transaction
        has added before them.
        """
        if rows > self._max_rows:
            raise errors.FeedError(f"found {rows} rows at once, expected at most {self._max_rows}; send them in parts")
        waiting = self._waiting_before(end)
        waiting_bytes = self._waiting_bytes + added
        if waiting + rows > self._max_rows and waiting >= self._least_rows:
            raise errors.JournalFullError(
                f"the journal is full: {waiting} rows wait to be trained on, of {self._max_rows} that may; send these "
                f"{rows} later"
            )
        if waiting_bytes + size > self._max_bytes and waiting >= self._least_rows:
            raise errors.JournalFullError(
                f"the journal is full: the rows that wait to be trained on have {waiting_bytes} bytes, of "
                f"{self._max_bytes} that they may; send these {rows} later"
            )

    def _waiting_before(self, end: int) -> int:
        return end - self._passed - len(self.skipped) + bisect.bisect_left(self.skipped, self._passed)

    def _write(self, name: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", (name, value))

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run a `with` block as one transaction: commit all its writes, or none if it raises an exception."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextlib.contextmanager
    def _converted_errors(self, what: str) -> Iterator[None]:
        """Convert errors of SQLite and of file access in a `with` block to JournalError.

        `what` completes the message "the journal cannot be ...", for example "opened" or "read".
        """
        try:
            yield
        except errors.FluidError:
            raise
        # sqlite3 raises a ValueError if a string or a number in the database file is damaged.
        except (sqlite3.Error, OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            if "locked" in reason:
                reason = "another OnlineTrainer is at work there; end it, or give this one a folder of its own"
            raise errors.JournalError(f"the journal {str(self._path)!r} cannot be {what}: {reason}") from error


def _digest(body: bytes, number: int | str = "") -> bytes:
    return hashlib.blake2b(body, digest_size=16, salt=str(number).encode()[:16]).digest()
