"""Files of compiled programs: each is whole or absent, and their total size is bounded."""

import os
import threading

import pytest

from fluid.runtime.compilation_cache import Entries


def age(folder, key, seconds):
    """Set the last use of a file to `seconds` ago."""
    path = folder / f"{key}.xla"
    then = path.stat().st_mtime - seconds
    os.utime(path, (then, then))


def test_stored_values_are_read_by_other_processes(tmp_path):
    Entries(tmp_path, 1000).put("a", b"first")
    Entries(tmp_path, 1000).put("a", b"second")
    assert Entries(tmp_path, 1000).get("a") == b"second"
    assert Entries(tmp_path, 1000).get("b") is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.xla"]


def test_a_file_under_a_wrong_key_is_removed(tmp_path):
    entries = Entries(tmp_path, 1000)
    entries.put("a", b"some machine code")
    (tmp_path / "a.xla").rename(tmp_path / "b.xla")
    assert entries.get("b") is None and not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied", "cut in the digest"])
def test_a_damaged_file_is_removed(tmp_path, damage):
    entries = Entries(tmp_path, 1000)
    entries.put("a", b"some machine code")
    path = tmp_path / "a.xla"
    content = path.read_bytes()
    flipped = content[:-1] + bytes([content[-1] ^ 1])
    path.write_bytes(
        {"cut": content[:-1], "flipped": flipped, "emptied": b"", "cut in the digest": content[:5]}[damage]
    )
    assert entries.get("a") is None and not path.exists()
    entries.put("a", b"some machine code")
    assert entries.get("a") == b"some machine code"


def test_the_least_recently_used_file_is_removed_first(tmp_path):
    first = Entries(tmp_path, 1000)
    for number in range(8):
        first.put(f"{number}", bytes(100))
        age(tmp_path, f"{number}", 1000 - number)
    first.get("0")
    # The 9 files of 116 bytes exceed the limit of 1000 bytes. A new `Entries` object counts them, like a new process.
    Entries(tmp_path, 1000).put("8", bytes(100))
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["0", "2", "3", "4", "5", "6", "7", "8"]


def test_writes_exceed_the_limit_by_an_eighth(tmp_path):
    entries = Entries(tmp_path, 10_000)
    for number in range(500):
        entries.put(f"{number}", bytes(100))
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000 * 9 / 8
    assert entries.get("499") == bytes(100)


def test_values_above_an_eighth_are_not_stored(tmp_path):
    entries = Entries(tmp_path, 1000)
    entries.put("a", bytes(110))
    assert entries.get("a") is None and not list(tmp_path.iterdir())


def test_old_temporary_files_of_killed_processes_are_removed(tmp_path):
    for name, old in (("new.tmp", 0), ("old.tmp", 7200)):
        (tmp_path / name).write_bytes(b"half")
        then = (tmp_path / name).stat().st_mtime - old
        os.utime(tmp_path / name, (then, then))
    Entries(tmp_path, 1000).put("a", b"1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.xla", "new.tmp"]


def test_an_absent_folder_stores_nothing_and_logs_once(tmp_path, caplog):
    entries = Entries(tmp_path / "gone", 1000)
    with caplog.at_level("INFO", "fluid"):
        entries.put("a", b"1")
        entries.put("b", b"1")
    assert entries.get("a") is None
    assert [record.getMessage().count("are not kept in") for record in caplog.records] == [1]


def test_concurrent_writers_and_readers_see_whole_values(tmp_path):
    values = [bytes([number]) * 5000 for number in range(8)]
    wrong = []

    def work(number):
        # The 16 entries of 5000 bytes need more than the limit of 60,000 bytes. So a cache removes files while other
        # threads write and read.
        entries = Entries(tmp_path, 60_000)
        for turn in range(60):
            key = f"{turn % 16}"
            entries.put(key, values[number])
            found = entries.get(key)
            if found is not None and found not in values:
                wrong.append(found[:20])

    threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and not list(tmp_path.glob("*.tmp"))
