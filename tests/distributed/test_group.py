"""Communication of processes: exchanges, comparisons, timeouts and signals; threads simulate the processes."""

import signal
import threading
import types

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from fake_coordination_service import together

import fluid
from fluid import errors
from fluid.checkpoint.folder import Folder
from fluid.distributed import Group, rendezvous
from fluid.reader.pipeline import Batch
from fluid.trainer.agreement import Agreement
from fluid.trainer.checkpoint.config import check_shared
from fluid.trainer.signals import Signals


def test_all_hear_the_values_of_all_in_order():
    def work(group):
        return [group.exchange(f"round {i}", [group.index, i]) for i in range(3)]

    found, _ = together(3, work)
    assert found == [[[[0, i], [1, i], [2, i]] for i in range(3)]] * 3


def test_the_first_is_heard_by_all():
    found, _ = together(3, lambda group: group.of_first("a number", 10 * (group.index + 1)))
    assert found == [10, 10, 10]


def test_old_rounds_are_deleted():
    def work(group):
        for i in range(300):
            group.exchange("a number", i)

    _, service = together(2, work)
    assert len(service.values) < 2 * 3 * 64 and service.deleted


def test_exchanges_of_separate_channels_do_not_mix():
    def work(group):
        apart = [group.apart(), group.apart()]
        said = {}
        threads = [
            threading.Thread(target=lambda i=i: said.update({i: apart[i].exchange("a number", [i, group.index])}))
            for i in range(2)
        ]
        for thread in threads if group.index else reversed(threads):
            thread.start()
        said["main"] = group.exchange("something else", group.index)
        for thread in threads:
            thread.join()
        return said

    expected = {i: [[i, index] for index in range(3)] for i in range(2)} | {"main": [0, 1, 2]}
    assert together(3, work)[0] == [expected] * 3


def test_row_61_timeout_names_the_absent_process():
    def work(group):
        if group.index == 0:
            group.meet("the end")

    (error, _), _ = together(2, work, timeout=0.05)
    assert isinstance(error, errors.DistributedError)
    assert "process 0 of 2 could not exchange the end" in str(error)
    assert "process 1 did not come within 0.05 seconds" in str(error)


def test_processes_at_different_steps_get_an_error():
    found, _ = together(2, lambda group: group.meet("a test" if group.index else "a step"))
    for error in found:
        assert isinstance(error, errors.DistributedError)
        assert "a step" in str(error) and "a test" in str(error)


@hypothesis.given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 1), max_size=3), min_size=2, max_size=3)
)
@hypothesis.settings(max_examples=15)
def test_row_58_different_settings_fail_in_all_processes(described):
    found, _ = together(len(described), lambda group: group.compare("settings", described[group.index]))
    differ = any(each != described[0] for each in described)
    assert all(isinstance(error, errors.DistributedError) == differ for error in found)
    assert len({str(error) for error in found}) == 1


def test_row_58_error_names_both_sides_of_a_difference():
    (error, _), _ = together(2, lambda group: group.compare("the seeds", {"seed": group.index + 3}))
    assert "seed is 3 in process 0, and 4 in process 1" in str(error)


def test_row_59_unshared_folder_is_refused(tmp_path):
    def own(group):
        check_shared(Folder(tmp_path / str(group.index)), group)

    def shared(group):
        check_shared(Folder(tmp_path / "shared"), group)

    found, _ = together(3, own)
    assert all(isinstance(error, errors.CheckpointError) for error in found)
    assert "is another one in process 1, 2 than in process 0" in str(found[0])
    assert together(3, shared)[0] == [None] * 3
    assert not list(tmp_path.rglob("*.token"))


class Ended(Exception):
    """An exception that simulates the end of a process; its argument is the exit status."""


def test_row_54_failing_process_ends_all_with_the_reason(monkeypatch, capsys):
    def end(status):
        raise Ended(status)

    def work(group):
        if group.index == 1:
            rendezvous.fail(group, "ValueError: an accident\nsecond line", 3)
        rendezvous._watch(group, threading.Event())

    monkeypatch.setattr(rendezvous, "_INTERVAL", 0.01)
    monkeypatch.setattr(rendezvous, "_end_now", end)
    found, _ = together(3, work)
    assert [error.args for error in found] == [(1,), (3,), (1,)]
    said = capsys.readouterr().err.splitlines()
    assert sorted(said) == [
        f"fluid: process 1 of 3 has failed: ValueError: an accident; so process {i} of 3 ends as well" for i in (0, 2)
    ]


class Process:
    """A simulated training process for an Agreement, by which processes stop and pause at the same step."""

    def __init__(self, group, stopping=False, pausing=False, received=None):
        self.did = []
        self.signals = Signals(together=True)
        self.signals.received = received
        stop, pause = (lambda: self.did.append("stop")), (lambda: self.did.append("pause"))
        self.progress = types.SimpleNamespace(epoch=0, step=4, last=None)
        self.agreement = Agreement(group, self.signals, self.progress, lambda: (stopping, pausing), stop, pause)

    def after_step(self, rows=8):
        batches = types.SimpleNamespace(ended=not rows, upcoming=Batch({"x": np.zeros((rows, 2))}) if rows else None)
        self.agreement.after_steps(types.SimpleNamespace(batches=batches))
        return self.progress.last, self.did, self.signals.arrived


@pytest.mark.parametrize(
    ("one", "rows", "expected"),
    [
        ({}, 8, (False, [], None)),
        ({}, 0, (True, [], None)),
        ({}, 5, (True, [], None)),
        ({"stopping": True}, 8, (False, ["stop"], None)),
        ({"stopping": True}, 0, (False, ["stop"], None)),
        ({"stopping": True, "pausing": True}, 8, (False, ["pause"], None)),
        ({"received": signal.SIGTERM}, 8, (False, [], signal.SIGTERM)),
    ],
)
def test_row_55_and_57_all_act_after_the_same_step(one, rows, expected):
    def work(group):
        process = Process(group, **one) if group.index == 1 else Process(group)
        return process.after_step(rows if group.index == 1 else 8)

    assert together(3, work)[0] == [expected] * 3


def test_signal_takes_effect_after_agreement():
    with Signals(terminate=True, together=True) as signals:
        signal.raise_signal(signal.SIGTERM)
        signals.check()
        with signals.at_once:
            pass
        assert signals.received == signal.SIGTERM and signals.arrived is None
        signals.received = None


def test_row_61_loggers_write_in_the_first_process_only(monkeypatch, tmp_path):
    data = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)

    def program():
        return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))

    monkeypatch.setattr("fluid.trainer.handlers.group", lambda: Group(1, 2))
    seen = []
    log = fluid.handlers.CSVLogger(tmp_path / "log.csv")
    fluid.Trainer(program, fluid.optimizer.SGD(0.1)).train(data, handlers=[log], event_handler=seen.append)
    assert not (tmp_path / "log.csv").exists()
    assert [type(event).__name__ for event in seen].count("EndStepEvent") == 2
