"""Multi-process training and its failures; each test starts several processes, which takes seconds."""

import os
import pathlib
import re
import signal
import time

import digits_in_processes
import numpy as np
import process_training
import pytest
from launch_processes import Launched, launched, pids, steps

import fluid
from fluid.checkpoint.folder import Folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Train in a single process; return its output lines and its final parameters."""
    folder = tmp_path_factory.mktemp("alone")
    process_training.main(folder)
    lines = (folder / "0.said").read_text().splitlines()
    return lines, fluid.io.load_arrays(folder / "end.params")[0]


def check_same(alone, folder, lines):
    """Check that minibatches, test results and parameters equal the ones of a single process."""
    expected, _ = alone
    assert steps(lines) == steps(expected)
    numbers = [[float(word) for word in line.split()[1:]] for line in (lines[-3], expected[-3])]
    np.testing.assert_allclose(*numbers, rtol=1e-5)
    assert lines[-2].split()[1:3] == ["45", "1"] == expected[-2].split()[1:3]
    check_same_parameters(alone, folder)


def check_same_parameters(alone, folder):
    found = fluid.io.load_arrays(folder / "end.params")[0]
    assert found.keys() == alone[1].keys()
    for name, value in alone[1].items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.full
def test_row_52_and_62_two_processes_equal_single_training(alone, tmp_path):
    said, log, code = launched(2, tmp_path, "plain", "fsdp")
    assert code == 0, log
    check_same(alone, tmp_path, said[0])
    assert steps(said[1]) == steps(said[0]) and said[1][-3:] == said[0][-3:]
    # Each process reads half of the rows of a full minibatch, and all rows of the last minibatch: its size is odd.
    worked = f"worked {process_training.EPOCHS * (process_training.ROWS // process_training.BATCH * 4 + 5)}"
    assert worked in said[0] and worked in said[1]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 1 + process_training.EPOCHS
    check_parts(tmp_path, said[1])


def check_parts(folder, lines):
    """Check that two processes wrote parts of the last checkpoint, and that one process reads the checkpoint."""
    # Processes gather only the minibatch, because the checkpoint stores a checksum of the whole minibatch.
    assert f"gathered {process_training.BATCH}x1 {process_training.BATCH}x4" in lines
    parts = folder / str(process_training.STEPS) / "arrays"
    sizes = [sum(p.stat().st_size for p in (parts / f"ocdbt.process_{i}").rglob("*") if p.is_file()) for i in (0, 1)]
    # Each of the two processes writes half of the first weight, and half of each of its two arrays of optimizer state.
    # The files are compressed, so the test expects more than two halves, instead of three.
    half = 4 * process_training.WIDTH * 4 // 2
    assert min(sizes) > 2 * half
    found = Folder(folder, read_only=True)
    assert found.flaw(process_training.STEPS) is None
    arrays = found.arrays(process_training.STEPS)
    for name, value in fluid.io.load_arrays(folder / "end.params")[0].items():
        np.testing.assert_array_equal(arrays[name], value, err_msg=name)


@pytest.mark.full
def test_row_53_and_60_and_63_other_count_continues_after_torn_parts(alone, tmp_path):
    check_torn(alone, tmp_path, "torn")


@pytest.mark.soak
def test_row_53_and_60_and_63_other_count_continues_after_missing_seal(alone, tmp_path):
    check_torn(alone, tmp_path, "unsealed")


def check_torn(alone, tmp_path, mode):
    """Train in one process, in two until process 1 is killed, and in one; compare with a training without a kill."""
    process_training.main(tmp_path, "begun")  # trains in the test's process alone
    assert Folder(tmp_path, read_only=True).newest_whole() == (8, {})
    seen = steps((tmp_path / "0.said").read_text().splitlines())
    shared = sorted(p for p in (tmp_path / "8").rglob("*") if p.is_file() and p.name != "fluid.seal")
    shared[1].write_bytes(b"")  # damages a file that process 1 verifies before it reads the checkpoint
    said, log, code = launched(2, tmp_path, mode, "fsdp")
    assert code == 128 + signal.SIGKILL and "was ended by SIGKILL" in log, log
    assert "checkpoint 8 is damaged" in log and (tmp_path / "8.damaged").is_dir()
    assert min(steps(said[0])) == 6
    read = next(line.split()[1:] for line in said[1] if line.startswith("parts"))
    # Process 1 reads parts of the first weight and of its optimizer state.
    assert "fc_0.w_0" in read and sum(name.endswith("/fc_0.w_0") for name in read) >= 2
    note(seen, steps(said[0]))
    assert not any(alive(pid) for pid in pids(tmp_path).values())
    (torn,) = tmp_path.glob("14.writing-*")
    assert {path.name for path in (torn / "arrays").iterdir()} >= {"ocdbt.process_0", "ocdbt.process_1"}
    assert not (tmp_path / "14").exists() and Folder(tmp_path, read_only=True).newest_whole() == (12, {})
    process_training.main(tmp_path, "rest")  # trains in the test's process alone
    assert not torn.exists()
    lines = (tmp_path / "0.said").read_text().splitlines()
    assert min(steps(lines[len(said[0]) :])) == 12
    note(seen, steps(lines))
    assert seen == steps(alone[0])
    check_same_parameters(alone, tmp_path)


@pytest.mark.full
def test_row_52_digits_end_with_single_process_parameters(tmp_path):
    folders = {count: tmp_path / str(count) for count in (1, 2, 4)}
    for folder in folders.values():
        folder.mkdir()
    digits_in_processes.main(folders[1])
    expected = fluid.io.load_arrays(folders[1] / "end.params")[0]
    for count in (2, 4):
        _, log, code = launched(count, folders[count], script=digits_in_processes.__file__)
        assert code == 0, log
        found = fluid.io.load_arrays(folders[count] / "end.params")[0]
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)


@pytest.mark.soak
def test_row_52_four_processes_equal_single_training(alone, tmp_path):
    said, log, code = launched(4, tmp_path)
    assert code == 0, log
    check_same(alone, tmp_path, said[0])


@pytest.mark.soak
@pytest.mark.parametrize("parallel", ["data", "fsdp"])
@pytest.mark.parametrize("victim", [0, 1])
def test_row_53_and_60_other_counts_continue_after_kill(alone, tmp_path, victim, parallel):
    seen = check_killed(tmp_path, victim, parallel, [2, 3, 1, 4, 2])
    said, log, code = launched(2, tmp_path, "plain", parallel)
    assert code == 0, log
    check_unbroken(alone, tmp_path, seen, said[0])


@pytest.mark.full
def test_row_53_and_60_single_process_continues_after_kill(alone, tmp_path):
    seen = check_killed(tmp_path, 1, "fsdp", [2])
    process_training.main(tmp_path)  # continues the killed training in a single process
    check_unbroken(alone, tmp_path, seen, (tmp_path / "0.said").read_text().splitlines())


def check_killed(tmp_path, victim, parallel, counts):
    """Launch a training for each number of processes in `counts`, and kill one process each time.

    Return the steps that all launches together have trained.
    """
    moments = np.random.default_rng(victim)
    seen = {}
    for count in counts:
        launch = Launched(count, tmp_path, "plain", parallel)
        begun = max(seen, default=0)
        moment = float(moments.uniform(0, 0.5))

        def kill(moment=moment, count=count):
            time.sleep(moment)
            os.kill(pids(tmp_path)[min(victim, count - 1)], signal.SIGKILL)

        said, log, code = launch.ended("step", kill)
        assert code == 128 + signal.SIGKILL, log
        assert "was ended by SIGKILL" in log
        note(seen, steps(said.get(0, [])))
        assert max(seen) >= begun
        assert not any(alive(pid) for pid in pids(tmp_path).values())
    return seen


def check_unbroken(alone, tmp_path, seen, lines):
    """Check that a training that was killed and launched several times equals a training in a single process.

    The steps, minibatches and parameters of all launches together are compared.
    """
    note(seen, steps(lines))
    assert seen == steps(alone[0])
    assert not list(tmp_path.glob("*.writing*"))
    check_same_parameters(alone, tmp_path)


@pytest.mark.soak
def test_row_25_and_62_unwritable_part_is_reported_and_training_continues(alone, tmp_path):
    said, log, code = launched(2, tmp_path, "full", "fsdp")
    assert code == 0, log
    failed = [int(n) for n in re.findall(r"checkpoint ([0-9]+) failed: CheckpointError: the parts .* process 1", log)]
    assert failed and set(failed) <= {8, 10, 12, 14}, log
    assert sorted(Folder(tmp_path, read_only=True).steps()) == [
        process_training.STEPS - 2,
        process_training.STEPS,
    ]
    assert not list(tmp_path.glob("*.writing*"))
    check_same(alone, tmp_path, said[0])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mode", "status", "reason"),
    [("raise", 1, "ValueError: an accident"), ("exit", 7, "it has ended with exit status 7")],
)
def test_row_54_exception_in_a_process_ends_all(tmp_path, mode, status, reason):
    said, log, code = launched(2, tmp_path, mode)
    assert code == status and f"process 1 of 2 has failed: {reason}" in log
    assert not any(alive(pid) for pid in pids(tmp_path).values())
    assert said[0][-1].startswith("step")


@pytest.mark.soak
def test_row_55_signal_makes_all_save_the_same_step(alone, tmp_path):
    said, log, code = launched(2, tmp_path, "terminated")
    assert code == 128 + signal.SIGTERM, log
    assert steps(said[0]).keys() == steps(said[1]).keys() == set(range(8))
    again, log, code = launched(2, tmp_path)
    assert code == 0, log
    assert min(steps(again[0])) == 8
    assert {**steps(said[0]), **steps(again[0])} == steps(alone[0])


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_row_55_launcher_forwards_signals(tmp_path, number):
    launch = Launched(2, tmp_path)
    said, log, code = launch.ended("step 3", lambda: launch.send_signal(number))
    assert code == 128 + number, log
    assert steps(said[0]).keys() == steps(said[1]).keys()
    done = max(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit())
    assert done == len(steps(said[0])) < process_training.STEPS


@pytest.mark.soak
def test_row_53_processes_end_with_a_killed_launcher(tmp_path):
    launch = Launched(2, tmp_path, "late")
    launch.ended("step 3", launch.kill)
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids(tmp_path).values()):
        assert time.monotonic() < deadline


@pytest.mark.soak
def test_row_57_unequal_data_ends_the_epoch_of_all(tmp_path):
    said, log, code = launched(2, tmp_path, "short")
    assert code == 0, log
    assert "epoch 0 ends after 3 steps, since the next minibatches differ: x [8, 4]" in log
    assert said[0][-1] == said[1][-1] == f"ended {3 * process_training.EPOCHS}"


@pytest.mark.soak
def test_stop_in_a_process_stops_all(tmp_path):
    said, log, code = launched(2, tmp_path, "stop")
    assert code == 0, log
    assert said[0][-1] == said[1][-1] == "ended 8"


@pytest.mark.soak
@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("seed", "seed is 3 in process 0, and 4 in process 1"),
        ("folder", "is another one in process 1 than in process 0"),
        ("forgotten", "each would train by itself"),
        ("alone", "the processes are not at the same place of the program"),
    ],
)
def test_row_58_processes_that_differ_are_refused(tmp_path, mode, message):
    _, log, code = launched(2, tmp_path, mode)
    assert code == 1 and message in log, log


@pytest.mark.soak
def test_row_61_absent_process_times_out(tmp_path, monkeypatch):
    monkeypatch.setenv("FLUID_TIMEOUT", "10")
    _, log, code = launched(2, tmp_path, "late")
    assert code == 1 and "process 1 did not come within 10 seconds" in log, log


def note(seen, found):
    """Add the steps `found` to `seen`; both are dicts from step numbers to checksums of minibatches.

    Check first that each step in both dicts has equal checksums.
    """
    assert all(seen.get(number, digest) == digest for number, digest in found.items())
    seen.update(found)


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return pathlib.Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
