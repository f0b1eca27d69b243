"""Checkpoints of a custom training loop: a killed loop continues, and ends with the same bits as an unbroken loop."""

import logging
import signal

import custom_loop_to_kill
import forked
import numpy as np
import pytest
import trainer_to_kill
from resumed_programs import ROWS, X, Y, arrays, assert_equal, small, trainer

import fluid
from fluid import errors

PER_EPOCH = -(-len(ROWS) // 8)


def minimised():
    outputs = small()
    fluid.optimizer.Adam(0.1).minimize(outputs["loss"])
    return outputs


def held(session):
    return {name: np.array(value) for name, value in session.state().items()}


class Count:
    """An object of a user whose state, a number, belongs to the checkpoint."""

    def __init__(self):
        self.number = 0

    def state(self):
        return self.number

    def restore(self, state):
        self.number = state


def loop(folder, num_epochs=3, after=lambda done: None, parts=(), **options):
    """Train in a custom loop that calls `after(steps done)` after each step; return the Session and the Checkpoint."""
    session = fluid.Session(minimised, seed=3)
    shuffled = fluid.reader.arrays((X, Y), batch_size=8, shuffle=True)
    feeds = fluid.reader.prefetch(shuffled, session)
    with fluid.Checkpoint(session, folder, [feeds, *parts], **options) as checkpoint:
        while feeds.epoch < num_epochs:
            for feed in feeds:
                session.step(feed)
                after(int(session.scope.step))
                checkpoint.after_step()
    return session, checkpoint


def steps(folder):
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the state of the Session after an uninterrupted loop, as arrays by name."""
    return held(loop(tmp_path_factory.mktemp("whole"))[0])


def die_at(step, error):
    def after(done):
        if done == step:
            raise error

    return after


@pytest.mark.parametrize("step", [1, 4, PER_EPOCH + 1])
def test_loop_continues_from_newest_checkpoint_after_an_error(step, whole, tmp_path):
    with pytest.raises(ZeroDivisionError):
        loop(tmp_path, after=die_at(step, ZeroDivisionError()), step_interval=2)
    saved = steps(tmp_path)
    assert saved == [s for s in range(2, step, 2)][-3:], "what the error left behind is not saved"
    session, checkpoint = loop(tmp_path, step_interval=2)
    assert checkpoint.restored == (saved[-1] if saved else None)
    assert_equal(held(session), whole)


@pytest.mark.parametrize("number, error", [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_signal_saves_at_the_end_of_the_step(number, error, whole, tmp_path, caplog):
    done = []

    def after(step):
        if step == 3:
            signal.raise_signal(number)
        done.append(step)

    with caplog.at_level(logging.WARNING, "fluid"), pytest.raises(error):
        loop(tmp_path, after=after, step_interval=None)
    assert done == [1, 2, 3] and steps(tmp_path) == [3]
    assert "training ends after this step" in caplog.text
    session, checkpoint = loop(tmp_path, step_interval=None)
    assert checkpoint.restored == 3
    assert_equal(held(session), whole)


def test_interrupt_within_a_minibatch_saves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        loop(tmp_path, after=die_at(3, KeyboardInterrupt()), step_interval=None)
    assert steps(tmp_path) == []


def test_finished_loop_continues_with_more_epochs(whole, tmp_path):
    loop(tmp_path, num_epochs=1)
    session, _ = loop(tmp_path, num_epochs=3)
    assert_equal(held(session), whole)
    again, checkpoint = loop(tmp_path, num_epochs=3)
    assert checkpoint.restored == 3 * PER_EPOCH
    assert_equal(held(again), whole)


def test_user_state_is_restored_at_any_kept_step(tmp_path):
    counting = Count()

    def count(done):
        counting.number = 10 * done

    loop(tmp_path, after=count, parts=[counting], step_interval=5, max_num_checkpoints=None)
    session, fresh = fluid.Session(minimised, seed=3), Count()
    feeds = fluid.reader.prefetch(fluid.reader.arrays((X, Y), batch_size=8, shuffle=True), session)
    checkpoint = fluid.Checkpoint(session, tmp_path, [feeds, fresh])
    assert (fresh.number, checkpoint.restored, feeds.epoch) == (180, 18, 3)
    assert checkpoint.restore(5) == 5
    assert (fresh.number, int(session.scope.step), feeds.epoch) == (50, 5, 0)
    with pytest.raises(errors.CheckpointError, match="no checkpoint 6"):
        checkpoint.restore(6)


def test_folder_of_the_other_loop_kind_raises(tmp_path):
    loop(tmp_path / "mine", num_epochs=1)
    with pytest.raises(errors.CheckpointError, match=r"written by fluid.Checkpoint.*read by a Trainer"):
        trainer(tmp_path / "mine", function=small)
    trainer(tmp_path / "other").train(arrays())
    session = fluid.Session(minimised)
    before = held(session)
    with pytest.raises(errors.CheckpointError, match=r"written by a Trainer.*read by fluid.Checkpoint"):
        fluid.Checkpoint(session, tmp_path / "other")
    assert_equal(held(session), before)
    loaded = fluid.Inferencer(small, checkpoint=tmp_path / "mine")
    assert loaded.session.scope["fc_0.w_0"].shape == (4, 1)


def test_wrong_arguments_raise_named_errors(tmp_path):
    session = fluid.Session(minimised)
    with pytest.raises(errors.ArgumentTypeError, match=r"expected a fluid.Session, found Trainer.*CheckpointConfig"):
        fluid.Checkpoint(trainer(), tmp_path)
    with pytest.raises(errors.ArgumentTypeError, match="objects with state.*found function"):
        fluid.Checkpoint(session, tmp_path, [arrays])
    counting = Count()
    counting.number = X
    with pytest.raises(errors.ArgumentTypeError, match="state.. of Count cannot be stored.*JSON"):
        fluid.Checkpoint(session, tmp_path, counting)
    checkpoint = fluid.Checkpoint(session, tmp_path)
    for call in (checkpoint.after_step, checkpoint.save):
        with pytest.raises(errors.ArgumentError, match="outside of the block"):
            call()
    with checkpoint, pytest.raises(errors.CheckpointError, match="another"), fluid.Checkpoint(session, tmp_path):
        pass
    session.step({"x": X, "y": Y})
    with checkpoint:
        checkpoint.save()
    with pytest.raises(errors.CheckpointError, match="states of 0 objects, found 1"):
        fluid.Checkpoint(session, tmp_path, Count())


@pytest.mark.full
def test_killed_loop_resumes_to_the_same_bits(tmp_path):
    said = []
    ended = trainer_to_kill.digest(custom_loop_to_kill.train(tmp_path / "whole", said.append))
    heard = {}
    # The first process is killed after it has printed 11 lines; the second process runs to its end.
    for after in (11, None):
        lines = []
        with forked.Process(custom_loop_to_kill.__file__, tmp_path / "killed") as mine:
            for line in mine.stdout:
                lines.append(line.strip())
                if len(lines) == after:
                    mine.kill()
            log = mine.stderr.read()
        assert mine.returncode == (0 if after is None else -signal.SIGKILL), log
        for line in lines[: None if after is None else after]:
            assert heard.setdefault(line.split()[0], line) == line
    assert [line for line in heard.values() if not line.startswith("ended")] == said
    assert lines[-1] == f"ended {ended}"


def test_steps_without_after_step_are_warned_of(tmp_path):
    session = fluid.Session(minimised)
    checkpoint = fluid.Checkpoint(session, tmp_path)
    with pytest.warns(errors.FluidWarning, match=r"2 steps were trained.*checkpoint\.after_step\(\).*each step"):  # noqa: SIM117
        with checkpoint:
            session.step({"x": X, "y": Y})
            session.step({"x": X, "y": Y})
    with checkpoint:
        session.step({"x": X, "y": Y})
        checkpoint.save()
    with fluid.Checkpoint(session, tmp_path / "at_the_end", step_interval=None):
        session.step({"x": X, "y": Y})
    with fluid.Checkpoint(session, tmp_path / "nothing"):
        pass
