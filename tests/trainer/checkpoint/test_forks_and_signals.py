"""Processes that a handler forks write no checkpoints, and Ctrl-C ends training also if its exception is lost."""

import gc
import os
import signal
import sys
import warnings

import pytest
from resumed_programs import arrays, trainer

import fluid
from fluid import errors
from fluid.runtime.interrupts import InterruptGuard
from fluid.trainer.signals import Signals


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.parametrize("way", ["goes on", "exits"])
def test_row_02_a_forked_child_writes_no_checkpoint(tmp_path, way):
    parent, codes = os.getpid(), []
    mine = trainer(tmp_path, config={"step_interval": 1})

    def fork(event):
        if isinstance(event, fluid.EndStepEvent) and event.step == 2:
            with warnings.catch_warnings(action="ignore"):  # JAX warns of forks
                child = os.fork()
            if child:
                codes.append(os.waitpid(child, 0)[1])
            else:
                signal.alarm(60)
                if way == "exits":
                    sys.exit(7)

    try:
        mine.train(arrays(), event_handler=fork)
        assert os.getpid() == parent
    except errors.CheckpointError as error:
        assert way == "goes on" and f"forked from process {parent}" in str(error)
    except SystemExit as error:
        assert way == "exits" and error.code == 7
    finally:
        if os.getpid() != parent:
            saved, failed = mine._checkpoints.folder.steps(), sys.exception()
            with pytest.raises(errors.CheckpointError, match="this process was forked"):
                mine._checkpoints.__enter__()
            os._exit(0 if failed is None and max(saved) <= 2 and (tmp_path / "fluid.lock").exists() else 1)
    assert codes == [0]
    assert mine._checkpoints.folder.steps() == [4, 5, 6]


def test_row_02_a_lost_interrupt_ends_training(monkeypatch):
    """Raise Ctrl-C in a callback of garbage collection, whose exceptions Python drops, while data is opened."""
    lost, steps = [], []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: lost.append(found.exc_type))

    def interrupt(phase, info):
        gc.callbacks.remove(interrupt)
        signal.raise_signal(signal.SIGINT)

    def reader():
        gc.callbacks.append(interrupt)
        gc.collect()
        return iter(arrays()())

    with pytest.raises(KeyboardInterrupt):
        trainer().train(reader, event_handler=lambda event: steps.append(type(event) is fluid.EndStepEvent))
    assert lost == [KeyboardInterrupt] and sum(steps) <= 1


def test_row_02_a_second_signal_needs_no_exception():
    """Send SIGTERM while a session delays Ctrl-C: then the next Ctrl-C ends the process by the system itself."""
    with pytest.raises(SystemExit), Signals(terminate=True) as signals:
        with InterruptGuard():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGINT) == signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        signals.check()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_row_02_reading_ends_after_a_lost_interrupt():
    with pytest.raises(KeyboardInterrupt), Signals() as signals:
        with signals.at_once:
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                pass
        pytest.fail("the training goes on")
