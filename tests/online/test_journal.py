"""The journal of an OnlineTrainer: accepted rows are kept in order and exactly once, and failures are reported."""

import contextlib
import hashlib
import os
import pathlib
import shutil
import sqlite3
import subprocess
import sys
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluid import errors
from fluid.online.journal import Accepted, Journal

SETTINGS = {"batch_size": 2}
# A test flips a bit in every STRIDE-th byte of each file; `make soak` sets 1, so that it tests every byte.
STRIDE = int(os.environ.get("FLUID_STRIDE", "997"))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.db"


@pytest.fixture
def open_journal(path):
    """Return a function that opens the journal, as in `open_journal(max_rows=3)`; close all journals at the end."""
    opened = []

    def open_one(**options):
        opened.append(Journal(path, SETTINGS, **options))
        return opened[-1]

    yield open_one
    for journal in opened:
        journal.close()


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 5), st.booleans()), min_size=1, max_size=12), st.data())
def test_accepted_rows_are_read_in_order_after_reopening(tmp_path_factory, sent, data):
    path = tmp_path_factory.mktemp("journal") / "journal.db"
    expected = []
    # Hypothesis may end an example at any draw, so a plain call of close() might not be reached.
    with contextlib.closing(Journal(path, SETTINGS)) as journal:
        for number, (rows, again) in enumerate(sent):
            body = bytes([number]) * 3
            for times in range(1 + again):
                accepted = journal.append(body, 1, rows, key=str(number))
                assert accepted == (len(expected), bool(times))
            expected += [(number, place) for place in range(rows)]
        dropped = data.draw(st.integers(0, len(expected)))
        journal.drop(dropped)
    with contextlib.closing(Journal(path, SETTINGS)) as journal:
        assert journal.next == len(expected) and journal.held <= dropped
        start = data.draw(st.integers(journal.held, len(expected)))
        stop = data.draw(st.integers(start, len(expected)))
        found = {
            entry.first + place: (entry.body[0], place)
            for entry in (journal.read(start, stop) if start < stop else [])
            for place in range(entry.rows)
        }
    assert [found[position] for position in range(start, stop)] == expected[start:stop]


def test_a_commit_waits_for_the_disk(open_journal):
    database = open_journal()._db
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert database.execute("PRAGMA synchronous").fetchone() == (2,)  # in SQLite, 2 is FULL: commits wait for the disk


def test_row_51_a_second_process_is_refused(open_journal, path):
    open_journal()
    with pytest.raises(errors.JournalError, match="another OnlineTrainer is at work there"):
        open_journal()
    code = f"import sqlite3; sqlite3.connect({str(path)!r}, timeout=0).execute('SELECT * FROM notes')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "database is locked" in done.stderr


def test_row_49_a_full_journal(open_journal):
    journal = open_journal(max_rows=4, max_bytes=10, least_rows=2)
    with pytest.raises(errors.FeedError, match="found 5 rows at once, expected at most 4; send them in parts"):
        journal.append(b"a", 0, 5)
    journal.append(b"0123456789", 0, 1)
    journal.append(b"more than fits, since one row would wait for ever", 0, 1)
    with pytest.raises(errors.JournalFullError, match="59 bytes, of 10 that they may"):
        journal.append(b"a", 0, 1)
    journal.passed(2)
    journal.append(b"a", 0, 4)
    with pytest.raises(
        errors.JournalFullError, match="4 rows wait to be trained on, of 4 that may; send these 1 later"
    ):
        journal.append(b"b", 0, 1, key="b")
    journal.passed(3)
    assert journal.waiting == 3
    with pytest.raises(errors.JournalFullError):
        journal.append(b"bb", 0, 2, key="b")
    journal.passed(6)
    assert journal.append(b"b", 0, 1, key="b") == Accepted(6, False)


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("replaced", [False, True])
def test_row_51_deleted_files_accept_nothing(open_journal, path, suffix, replaced):
    journal = open_journal()
    journal.append(b"a", 0, 1)
    file, kept = path.with_name(path.name + suffix), path.with_name("kept")
    file.rename(kept)
    if replaced:
        file.write_bytes(kept.read_bytes())
    for _ in range(2):
        with pytest.raises(errors.JournalError, match="was removed or replaced"):
            journal.append(b"b", 0, 1, key="b")
    assert journal.next == 1
    kept.rename(file)
    assert journal.append(b"b", 0, 1, key="b") == (1, False)


def test_row_50_a_repeated_key_needs_equal_rows(open_journal):
    journal = open_journal(max_keys=2)
    journal.append(b"a", 0, 1, key="one")
    with pytest.raises(errors.OnlineError, match="other rows were sent with the key 'one' before"):
        journal.append(b"b", 0, 1, key="one")
    journal.append(b"b", 0, 1, key="two")
    journal.drop(2)  # deletes both rows, but the journal still remembers their keys
    assert journal.append(b"a", 0, 1, key="one") == (0, True)
    journal.append(b"c", 0, 1, key="three")
    assert journal.append(b"a", 0, 1, key="one") == (3, False), "only the newest keys are remembered"


def test_notes_are_written_with_their_rows(open_journal):
    journal = open_journal(max_rows=2)
    journal.append(b"a", 0, 2, note=("reader", "[1]"))
    with pytest.raises(errors.JournalFullError):
        journal.append(b"a", 0, 2, note=("reader", "[2]"))
    assert journal.note("reader") == "[1]" and journal.note("other") is None


def test_rows_that_are_not_there(open_journal):
    journal = open_journal()
    for _ in range(3):
        journal.append(b"a", 0, 2)
    journal.drop(3)
    assert journal.held == 2
    for start, stop in ((1, 3), (5, 7)):
        with pytest.raises(errors.JournalError, match=f"the rows {start} to {stop - 1} are not all in"):
            journal.read(start, stop)


def test_row_49_a_full_disk_accepts_nothing(open_journal):
    journal = open_journal()
    journal.append(b"a", 0, 1)
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(errors.JournalError, match="cannot be written: database or disk is full"):
        journal.append(b"b" * 100_000, 0, 1, key="b")
    journal._db.execute("PRAGMA max_page_count = 100000")
    assert journal.next == 1
    assert journal.append(b"b" * 100_000, 0, 1, key="b") == (1, False)
    assert [entry.first for entry in journal.read(0, 2)] == [0, 1]


def test_row_51_changed_on_the_disk(open_journal, path):
    journal = open_journal()
    journal.append(b"abc", 0, 1)
    journal.close()
    with sqlite3.connect(path) as database:
        database.execute("UPDATE entries SET body = x'616264'")
    database.close()
    with pytest.raises(errors.JournalError, match="the rows from 0 on in .* are not what was written"):
        open_journal().read(0, 1)


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Return a folder of journals (files of rows): from processes that were killed, or that closed the journal.

    Each journal accepted the rows 0 to 5; the rows 0 and 1 were dropped, but may still be in the file.
    """
    base = tmp_path_factory.mktemp("killed")
    (base / "now").mkdir()
    with contextlib.closing(Journal(base / "now" / "journal.db", SETTINGS)) as journal:
        for number in range(6):
            if number == 3:
                journal._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
                journal.drop(2)
            journal.append(*sent(number))
        shutil.copytree(base / "now", base / "rows in the WAL")
        journal._db.execute("PRAGMA wal_checkpoint(PASSIVE)")
        shutil.copytree(base / "now", base / "rows in both")
    shutil.copytree(base / "now", base / "closed")
    return base


def sent(number):
    return bytes([number]) * 90, 10, 1, f"key {number}", ("reader", f"[{number}]")


def flipped(path):
    """Yield `(index, content)` for every STRIDE-th byte of a file; in the content, one bit of this byte is flipped.

    In a file of at most 100 bytes, every byte is flipped.
    """
    content = path.read_bytes()
    for place in range(0, len(content), STRIDE if len(content) > 100 else 1):
        yield place, content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :]


@pytest.mark.parametrize(
    "state, name",
    [(s, n) for s in ("rows in the WAL", "rows in both") for n in ("journal.db", "journal.db-wal", "journal.last")]
    + [("closed", "journal.db")],
)
def test_row_51_flipped_bits_keep_rows_or_raise(killed, tmp_path, state, name):
    noticed = 0
    for place, content in flipped(killed / state / name):
        folder = pathlib.Path(shutil.copytree(killed / state, tmp_path / str(place)))
        (folder / name).write_bytes(content)
        try:
            with contextlib.closing(Journal(folder / "journal.db", SETTINGS)) as journal:
                assert journal.next == 6, place
                assert [tuple(entry) for entry in journal.read(2, 6)] == [(n, 1, 10, sent(n)[0]) for n in range(2, 6)]
                assert journal.note("reader") == "[5]"
                for number in range(6):
                    # After the flip, a stored key may belong to other rows; then `append` raises an OnlineError.
                    with contextlib.suppress(errors.OnlineError):
                        assert journal.append(*sent(number)) == (number, True), place
        except errors.JournalError:
            noticed += 1
        shutil.rmtree(folder)
    assert noticed or name == "journal.last" or state == "rows in both"


@pytest.mark.parametrize("changed", ["flipped", "removed", "emptied"])
def test_row_51_missing_acknowledged_rows_are_named(killed, tmp_path, changed, caplog):
    folder = pathlib.Path(shutil.copytree(killed / "rows in the WAL", tmp_path / "copy"))
    wal = folder / "journal.db-wal"
    content = wal.read_bytes()
    if changed == "removed":
        wal.unlink()
    else:
        wal.write_bytes(b"" if changed == "emptied" else content[:-50] + b"?" + content[-49:])
    missing = "5 to 5" if changed == "flipped" else "3 to 5"
    with pytest.raises(
        errors.JournalError, match=f"the rows {missing} were acknowledged and are not in .*remove '.*last'"
    ):
        Journal(folder / "journal.db", SETTINGS)
    (folder / "journal.last").write_bytes(b"5 rows?")
    with contextlib.closing(Journal(folder / "journal.db", SETTINGS)) as journal:
        assert journal.append(*sent(journal.next)) == (5 if changed == "flipped" else 3, False)
    assert "journal.last is damaged" in caplog.text


def test_a_journal_of_an_earlier_version_is_upgraded(killed, tmp_path):
    folder = pathlib.Path(shutil.copytree(killed / "closed", tmp_path / "copy"))
    (folder / "journal.last").unlink()
    body = sent(3)[0]
    with contextlib.closing(sqlite3.connect(folder / "journal.db")) as database, database:
        database.execute("DROP INDEX second_copy")
        database.execute(
            "UPDATE entries SET digest = ? WHERE first = 3", (hashlib.blake2b(body, digest_size=16).digest(),)
        )
        database.execute(
            "UPDATE keys SET digest = ? WHERE first = 3", (hashlib.blake2b(body, digest_size=16).digest(),)
        )
    with contextlib.closing(Journal(folder / "journal.db", SETTINGS)) as journal:
        assert journal.read(3, 4)[0].body == body and journal.append(*sent(3)) == (3, True)
        assert journal._db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'second_copy'").fetchone() == (1,)
    assert (folder / "journal.last").read_bytes() == b"%020d %020d\n" % (6, 6)


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_row_67_other_users_cannot_read_the_files(open_journal, path):
    def modes():
        return {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()}

    before = os.umask(0)
    try:
        open_journal().append(b"a", 0, 1)
        private = dict.fromkeys(("journal.db", "journal.db-wal", "journal.last"), "0o600")
        assert modes() == private
        copy = pathlib.Path(shutil.copytree(path.parent, path.parent.with_name("copy")))
        for file in copy.iterdir():
            file.chmod(0o644)
        with contextlib.closing(Journal(copy / "journal.db", SETTINGS)):
            assert {oct(file.stat().st_mode & 0o777) for file in copy.iterdir()} == {"0o600"}
    finally:
        os.umask(before)


def test_row_51_files_that_are_no_journal(tmp_path, open_journal, path):
    other = tmp_path / "other.db"
    other.write_bytes(b"something else, which is long enough to be looked at " * 50)
    with pytest.raises(errors.JournalError, match="file is not a database"):
        Journal(other, SETTINGS)
    with pytest.raises(errors.JournalError, match="cannot be opened"):
        Journal(tmp_path / "nowhere" / "journal.db", SETTINGS)
    open_journal().close()
    with pytest.raises(errors.JournalError, match=r'the rows of a stream with {"batch_size": 2}, found'):
        Journal(path, {"batch_size": 3})
    with sqlite3.connect(path) as database:
        database.execute("UPDATE notes SET value = '3' WHERE name = 'format'")
    database.close()
    with pytest.raises(errors.JournalError, match="has the format 3, expected 1 or 2"):
        Journal(path, SETTINGS)


def appended_together(journal, asked):
    """Append each element of `asked` to a journal, each in a separate thread; return the results and errors, in order.

    All threads queue before the first append, so the journal writes all rows to its database in one commit.
    """
    found = [None] * len(asked)

    def append(place):
        try:
            found[place] = journal.append(*asked[place][:3], key=asked[place][3])
        except errors.FluidError as error:
            found[place] = error

    threads = [threading.Thread(target=append, args=(place,)) for place in range(len(asked))]
    with journal.changed:
        for count, thread in enumerate(threads, 1):
            thread.start()
            while len(journal._in_flight) < count:
                pass
    for thread in threads:
        thread.join()
    return found


def test_concurrent_appends_are_durable_before_each_returns(open_journal, path):
    journal = open_journal(max_rows=9, max_bytes=100)
    journal.append(b"before", 0, 1, key="known")
    said = []
    journal._db.set_trace_callback(lambda statement: said.append((statement, found_before(journal))))

    def found_before(journal):
        return [asked.outcome.done() for asked in journal._in_flight]

    asked = [(b"a", 0, 2, "a"), (b"b", 0, 1, None), (b"a", 0, 2, "a"), (b"c", 0, 2, "a"), (b"before", 0, 1, "known"),
             (b"d", 0, 6, None), (b"e", 0, 10, None), (b"f" * 100, 0, 1, None), (b"g", 0, 5, None)]  # fmt: skip
    found = appended_together(journal, asked)
    journal._db.set_trace_callback(None)
    assert found[:3] == [(1, False), (3, False), (1, True)] and found[4] == (0, True) and found[8] == (4, False)
    kinds = [errors.OnlineError, errors.JournalFullError, errors.FeedError, errors.JournalFullError]
    assert [type(found[place]) for place in (3, 5, 6, 7)] == kinds
    commits = [done for statement, done in said if statement == "COMMIT"]
    assert commits == [[False] * len(asked)], "one commit, and nobody was told before"
    assert not journal._in_flight and journal.next == 9 and journal.waiting == 9
    journal.close()
    with contextlib.closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT first, rows, body FROM entries ORDER BY first").fetchall() == [
            (0, 1, b"before"), (1, 2, b"a"), (3, 1, b"b"), (4, 5, b"g")
        ]  # fmt: skip


def test_row_49_an_oversized_request_blocks_no_other_request(open_journal):
    journal = open_journal()
    pages = journal._db.execute("PRAGMA page_count").fetchone()[0]
    journal._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    found = appended_together(journal, [(b"a", 0, 1, None), (b"b" * 100_000, 0, 1, None), (b"c", 0, 1, None)])
    assert (found[0], found[2]) == ((0, False), (1, False)) and type(found[1]) is errors.JournalError
    assert [entry.body for entry in journal.read(0, 2)] == [b"a", b"c"] and not journal._in_flight
