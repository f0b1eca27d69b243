"""Multi-process checkpoints: an error in one process fails the checkpoint; threads simulate the processes."""

import contextlib
import logging
import os
import types

import numpy as np
import pytest
from fake_coordination_service import together
from resumed_programs import Killed

from fluid import errors
from fluid.checkpoint import multi_process
from fluid.checkpoint.folder import Folder
from fluid.checkpoint.integrity import checksums
from fluid.checkpoint.multi_process import in_all, write_together
from fluid.distributed import Group
from fluid.trainer.checkpoint.writer import Writer


@pytest.fixture
def part(monkeypatch):
    """Write checkpoint parts as plain files, without Orbax; a test sets `part.happens`, for example to raise errors."""
    found = types.SimpleNamespace(happens=lambda index, temporary: None)

    def write(temporary, arrays, copied):
        index = int(arrays["index"])
        own = temporary / "arrays" / f"ocdbt.process_{index}"
        own.mkdir()
        (own / "data").write_text(f"of {index}")
        copied()
        found.happens(index, temporary)
        return checksums(temporary, [f"arrays/{own.name}/data"])

    merge = types.SimpleNamespace(finalize=lambda path: (path / "manifest.ocdbt").write_text("merged"))
    monkeypatch.setattr(multi_process, "_write_part", write)
    monkeypatch.setattr(multi_process, "_handler", lambda: merge)
    return found


def written(folder, step, size=3, timeout=20):
    """Write a checkpoint in `size` processes; return None or the error of each process."""

    def work(group):
        arrays = {"index": np.int64(group.index)}
        with contextlib.suppress(Killed):
            write_together(folder, step, arrays, lambda: {"of": group.index}, group, lambda: None)

    return together(size, work, timeout)[0]


def test_row_62_step_appears_after_all_parts_are_written(tmp_path, part):
    folder = Folder(tmp_path)
    seen = []
    part.happens = lambda index, temporary: seen.append((temporary.parent, folder.steps()))
    assert written(folder, 4) == [None] * 3
    assert seen == [(folder.path, [])] * 3
    assert folder.newest_whole() == (4, {}) and folder.meta(4)["of"] == 0
    sealed = {line.partition("  ")[2] for line in (tmp_path / "4" / "fluid.seal").read_text().splitlines()}
    assert {f"arrays/ocdbt.process_{i}/data" for i in range(3)} | {"arrays/manifest.ocdbt", "meta.json"} <= sealed
    (tmp_path / "4" / "arrays" / "ocdbt.process_2" / "data").write_text("of 3")
    assert folder.flaw(4) == "arrays/ocdbt.process_2/data is not what was written"


def full(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("failing", [0, 2, "merge"])
def test_row_25_and_62_failed_part_fails_all_and_leaves_nothing(tmp_path, part, monkeypatch, failing):
    folder = Folder(tmp_path)
    assert written(folder, 4) == [None] * 3
    if failing == "merge":
        monkeypatch.setattr(multi_process, "_handler", lambda: types.SimpleNamespace(finalize=full))
    part.happens = lambda index, temporary: full() if index == failing else None
    found = written(folder, 8)
    assert all(isinstance(error, errors.CheckpointError) for error in found)
    culprit = 0 if failing == "merge" else failing
    assert {str(error).partition(": ")[2] for error in found} == {
        f"process {culprit} has failed: OSError: [Errno 28] No space left on device"
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["4", "fluid.lock"] and folder.flaw(4) is None


def test_row_61_and_63_absent_process_times_out_and_sweep_cleans(tmp_path, part):
    folder = Folder(tmp_path)
    assert written(folder, 4) == [None] * 3

    def die(index, temporary):
        if index == 1:
            raise Killed

    part.happens = die
    found = written(folder, 8, timeout=0.2)
    assert isinstance(found[0], errors.DistributedError) and isinstance(found[2], errors.DistributedError)
    (torn,) = tmp_path.glob("8.writing-*")
    assert folder.newest_whole() == (4, {})
    folder.sweep()
    assert not torn.exists() and folder.steps() == [4]


def test_row_63_late_writer_of_a_killed_run_is_harmless(tmp_path, monkeypatch):
    folder = Folder(tmp_path)
    torn = folder.begin(8)
    plain = os.rmdir

    def late(path, **options):
        (torn / "late").touch()
        plain(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", late)
        folder.sweep()
    assert (torn / "late").exists() and folder.steps() == []
    folder.sweep()
    assert not torn.exists()


def test_row_21_shared_checks_find_all_flaws(tmp_path, part):
    folder = Folder(tmp_path)
    assert written(folder, 4) == [None] * 3
    for path in [p for p in (tmp_path / "4").rglob("*") if p.is_file() and p.name != "fluid.seal"]:
        whole = path.read_bytes()
        path.write_bytes(b"other" + whole)
        found = [folder.flaw(4, share, 3) for share in range(3)]
        assert sorted(found, key=str) == sorted([folder.flaw(4), None, None], key=str) and found.count(None) == 2
        path.write_bytes(whole)
        path.rename(path.with_name("moved"))
        assert None not in [folder.flaw(4, share, 3) for share in range(3)]
        path.with_name("moved").rename(path)
    assert folder.flaw(4) is None


def test_row_59_part_unseen_by_process_0_is_an_error(tmp_path, part, monkeypatch):
    write = multi_process._write_part

    def elsewhere(temporary, arrays, copied):
        found = write(temporary, arrays, copied)
        if int(arrays["index"]) == 1:
            (temporary / next(iter(found))).unlink()
        return found

    monkeypatch.setattr(multi_process, "_write_part", elsewhere)
    error = written(Folder(tmp_path), 4)[2]
    assert isinstance(error, errors.CheckpointError)
    assert "another process has written arrays/ocdbt.process_1/data, which is not to be seen" in str(error)


def test_error_in_a_single_process_is_unchanged():
    with pytest.raises(OSError, match="No space left"):
        in_all(Group(), "a part", full)


def saved(folder, steps, timeout=20, without=None):
    """Save checkpoints of `steps` in three processes except `without`; return the last and all steps by process."""

    def work(group):
        if group.index == without:
            return None
        writer = Writer(folder, 2, None, group)
        for step in steps:
            arrays = {"index": np.int64(group.index)}
            writer.start(step, arrays, lambda: {"position": {"epoch": 0}})
            writer.wait()
        return writer.base, writer.known

    return together(3, work, timeout)[0]


def test_row_62_all_processes_know_the_same_checkpoints(tmp_path, part, caplog):
    part.happens = lambda index, temporary: full() if index == 2 and temporary.name.startswith("6.") else None
    with caplog.at_level(logging.ERROR, logger="fluid"):
        assert saved(Folder(tmp_path), [2, 4, 6, 8]) == [(8, {4, 8})] * 3
    failure = "checkpoint 6 failed: CheckpointError: the parts of a checkpoint: process 2 has failed"
    # Each of the three processes logs the failure.
    assert [message[: len(failure)] for message in caplog.messages] == [failure] * 3


def test_row_61_timed_out_thread_fails_the_next_save(tmp_path, part):
    found = saved(Folder(tmp_path), [2], timeout=0.2, without=1)
    assert isinstance(found[0], errors.DistributedError) and isinstance(found[2], errors.DistributedError)
