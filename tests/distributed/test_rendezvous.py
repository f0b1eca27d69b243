"""Rendezvous of processes: index, coordinator and versions, and errors when a process is absent or differs."""

import contextlib
import itertools
import socket
import subprocess
import sys
import threading

import numpy as np
import pytest

import fluid
from fluid import errors
from fluid.__main__ import main
from fluid.distributed import rendezvous
from fluid.distributed.cluster import Membership, membership


@pytest.fixture
def port():
    """Return an unused port of this machine."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def met(port, greetings, timeout=5.0):
    """Run a rendezvous in threads; return None or the error message for each `(index, size, versions)`."""
    found = [None] * len(greetings)

    def run(number, index, size, versions):
        try:
            rendezvous.meet(Membership(f"127.0.0.1:{port}", size, index), versions, timeout)
        except errors.DistributedError as error:
            found[number] = str(error)

    threads = [threading.Thread(target=run, args=(i, *greeting)) for i, greeting in enumerate(greetings)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_all_meet(port):
    assert met(port, [(index, 4, {"jax": "1"}) for index in (2, 0, 3, 1)]) == [None] * 4


def test_port_scans_do_not_prevent_the_meeting(port):
    def knock():
        for message in (b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n"):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(message)

    knocking = [threading.Thread(target=knock) for _ in range(3)]
    for thread in knocking:
        thread.start()
    assert met(port, [(0, 2, {}), (1, 2, {})]) == [None, None]
    for thread in knocking:
        thread.join()


def test_row_56_a_process_that_does_not_come(port):
    (first, other) = met(port, [(0, 3, {}), (2, 3, {})], timeout=0.5)
    assert first == other == "process 1 of 3 did not come in time"


def test_row_56_absent_coordinator_is_an_error(port):
    (error,) = met(port, [(1, 2, {})], timeout=0.2)
    assert f"did not find process 0 at 127.0.0.1:{port} in time" in error


def test_row_56_the_port_is_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        (error,) = met(taken.getsockname()[1], [(0, 2, {})])
    assert "another program uses that port" in error


@pytest.mark.parametrize(
    ("greetings", "message"),
    [
        ([(0, 2, {}), (1, 3, {})], "processes is 2 in process 0, and 3 in process 1"),
        ([(0, 3, {}), (1, 3, {}), (1, 3, {})], "two processes say that they are process 1 of 3"),
        ([(0, 2, {"jax": "0.10"}), (1, 2, {"jax": "0.11"})], "jax is '0.10' in process 0, and '0.11' in process 1"),
    ],
)
def test_row_56_and_58_incompatible_processes_get_an_error(port, greetings, message):
    found = met(port, greetings, timeout=1)
    assert message in found[0] and found.count(None) == 0


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"FLUID_PROCESSES": "4"}, "need to know three things"),
        ({"FLUID_COORDINATOR": "node", "FLUID_PROCESSES": "4", "FLUID_PROCESS": "1"}, "'host:port'"),
        ({"FLUID_COORDINATOR": "node:1", "FLUID_PROCESSES": "4", "FLUID_PROCESS": "4"}, "a number from 0 to 3"),
        ({"FLUID_COORDINATOR": "node:1", "FLUID_PROCESSES": "four", "FLUID_PROCESS": "1"}, "FLUID_PROCESSES='four'"),
    ],
)
def test_row_56_a_place_that_makes_no_sense(environment, message):
    with pytest.raises(errors.ArgumentError, match=message):
        membership(environment=environment)


def test_slurm_variables_give_index_and_coordinator(monkeypatch):
    for name, value in {
        "SLURM_JOB_ID": "4242",
        "SLURM_NTASKS": "8",
        "SLURM_PROCID": "5",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_NUM_TASKS": "8",
        "SLURM_STEP_NODELIST": "node[003-004]",
    }.items():
        monkeypatch.setenv(name, value)
    found = membership()
    assert found.coordinator.startswith("node003:") and found[1:] == (8, 5, (1,))


def test_open_mpi_variables_give_index_and_coordinator(monkeypatch):
    for name, value in {
        "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1:34911",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    }.items():
        monkeypatch.setenv(name, value)
    found = membership()
    assert found.coordinator.startswith("10.96.0.1:") and found[1:] == (2, 1, (1,))


def test_initialize_without_a_cluster_is_single_process():
    assert repr(fluid.distributed.initialize()) == "process 0 of 1"
    assert fluid.distributed.group().is_first


@pytest.mark.parametrize("arguments", [["--processes", "0", "train.py"], ["nowhere.py"]])
def test_launch_refuses_meaningless_arguments(arguments, in_tmp, capsys):
    (in_tmp / "train.py").touch()
    assert main(["launch", *arguments]) == 1
    assert "launch: " in capsys.readouterr().err


@pytest.mark.full
def test_launched_module_lines_have_a_process_prefix(in_tmp):
    (in_tmp / "said.py").write_text(
        "import os, sys\n"
        "print('out', *sys.argv[1:], flush=True)\n"
        "print('err', os.environ['FLUID_PROCESS'], os.environ['FLUID_DEVICES'], file=sys.stderr)\n"
    )
    command = [sys.executable, "-m", "fluid", "launch", "--devices-per-process", "2", "-m", "said", "one", "two"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "out one two\n"
    assert sorted(done.stderr.splitlines()) == ["[1] err 1 2,3", "err 0 0,1"]


def test_missing_initialize_warns_once(monkeypatch):
    def trained():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    monkeypatch.setenv("FLUID_COORDINATOR", "forgotten:1")
    monkeypatch.setenv("FLUID_PROCESSES", "1")
    fluid.Session(trained)  # no warning, because a single process needs no `initialize`
    monkeypatch.setenv("FLUID_PROCESSES", "4")
    # No warning, because a program without training needs no other process.
    fluid.Session(lambda: fluid.layers.data("x", shape=[2]))
    with pytest.warns(
        fluid.errors.FluidWarning, match=r"FLUID_COORDINATOR=forgotten:1 is set.*initialize\(\)"
    ) as found:
        fluid.Session(trained)
        fluid.Session(trained)
    assert len(found) == 1 and found[0].filename == __file__


NUMBERS = itertools.count(1000)


def minimizing():
    loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss


def static_program():
    from fluid import static

    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup):
        loss = static.layers.mean(static.layers.fc(static.layers.data("x", shape=[2]), size=1))
        static.optimizer.SGD(0.1).minimize(loss)
    with static.scope_guard(static.Scope()):
        executor = static.Executor(static.CPUPlace())
        executor.run(startup)
        executor.run(main, feed={"x": np.ones((1, 2), "float32")}, fetch_list=[loss])


@pytest.mark.parametrize(
    "train",
    [
        lambda: fluid.Trainer(minimizing, None),
        lambda: fluid.Session().add(minimizing),
        static_program,
    ],
    ids=["Trainer", "Session.add", "Executor"],
)
@pytest.mark.parametrize(("variable", "value"), [("FLUID_COORDINATOR", "lost:{}"), ("FLUID_PROCESSES", "{}")])
def test_forgotten_initialize_warns_in_every_door(monkeypatch, train, variable, value):
    number = next(NUMBERS)  # a new number, because fluid warns only once about each value of a variable
    monkeypatch.setenv(variable, value.format(number))
    with pytest.warns(fluid.errors.FluidWarning, match=rf"{variable}=.*{number} is set.*initialize\(\)"):
        train()
