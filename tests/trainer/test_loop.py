"""fluid.Loop: the handlers of a custom training loop receive the same events as the handlers of a Trainer."""

import numpy as np
import pytest
from resumed_programs import ROWS, X, Y, arrays, assert_equal, small, state, trainer

import fluid
from fluid import errors

PER_EPOCH = -(-len(ROWS) // 8)


def minimised():
    outputs = small()
    fluid.optimizer.Adam(0.1).minimize(outputs["loss"])
    return outputs


class Seen(fluid.Handler):
    """A handler that records all events with their values; its record is part of the checkpoint."""

    def __init__(self):
        self.lines = []

    def fetches(self):
        return ["grad_norm_0"]

    def begin_train(self, event):
        self.lines.append(f"begin train {event.num_epochs} {event.resumed}")

    def begin_epoch(self, event):
        self.lines.append(f"begin epoch {event.epoch} {event.first_step}")

    def begin_step(self, event):
        self.lines.append(f"begin {event.epoch} {event.step} {float(np.sum(event.feed['x'])):.6f}")

    def end_step(self, event):
        values = f"{float(event.metrics['loss']):.6f} {float(event.fetched['grad_norm_0']):.6f}"
        self.lines.append(f"end {event.epoch} {event.step} {values} {event.examples} {self.done}")

    def end_epoch(self, event):
        told = (event.epoch, event.steps, event.completed, event.compiled, f"{event.metrics['loss']:.6f}")
        self.lines.append(f"end epoch {told}")

    def end_train(self, event):
        self.lines.append(f"end train {event.epochs} {event.stopped} {event.error!r}")

    def state(self):
        return {"lines": self.lines}

    def restore(self, state):
        self.lines = list(state["lines"])


def run(handlers, num_epochs=3, each=lambda loop, feed: loop.step(feed), folder=None, after=lambda loop: None):
    session = fluid.Session(minimised, seed=3)
    feeds = fluid.reader.prefetch(arrays(), session)
    loop = fluid.Loop(session, feeds, num_epochs, handlers=handlers, progress=False)
    if folder is None:
        with loop:
            for feed in loop:
                each(loop, feed)
                after(loop)
        return loop
    with fluid.Checkpoint(session, folder, [feeds, loop], step_interval=2) as checkpoint, loop:
        for feed in loop:
            each(loop, feed)
            after(loop)
            checkpoint.after_step()
    return loop


def test_loop_sends_the_events_of_a_trainer():
    theirs, mine = Seen(), Seen()
    expected = trainer()
    history = expected.train(arrays(), 3, handlers=[theirs])
    loop = run([mine])
    assert mine.lines == theirs.lines
    assert dict(loop.history) == dict(history)
    found = {name.replace("/minimised/", "/small/"): np.array(v) for name, v in loop.session.state().items()}
    assert_equal(found, state(expected))


def test_loop_serves_stop_and_step_requests():
    losses = []

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent) and event.step == 1:
            event.fetch("fc_0")
            event.override({"fc_0": event.feed["y"]})
        if isinstance(event, fluid.EndStepEvent):
            losses.append((float(event.metrics["loss"]), event.fetched.keys()))

    seen = Seen()
    loop = run([seen, on_event], after=lambda loop: loop.stop() if len(losses) == 3 else None)
    assert [keys for _, keys in losses] == [["grad_norm_0"], ["grad_norm_0", "fc_0"], ["grad_norm_0"]]
    assert losses[1][0] == 0.0 < losses[2][0]
    assert seen.lines[-2:] == [seen.lines[-2], "end train 0 True None"] and "False" in seen.lines[-2]
    assert loop.epoch == 0 and int(loop.session.scope.step) == 3


def test_epoch_stopped_in_its_last_step_is_complete():
    theirs, mine, other = Seen(), Seen(), trainer()
    last = lambda event: isinstance(event, fluid.EndStepEvent) and event.step == PER_EPOCH - 1  # noqa: E731
    other.train(arrays(), 3, lambda event: other.stop() if last(event) else None, handlers=[theirs])
    loop = run([mine], after=lambda loop: loop.stop() if int(loop.session.scope.step) == PER_EPOCH else None)
    assert mine.lines == theirs.lines and loop.epoch == 1
    feeds = [{"x": X[:8], "y": Y[:8]}] * 2  # a list knows its end too
    with fluid.Loop(loop.session, feeds, 3, progress=False) as short:
        for feed in short:
            short.step(feed)
            if int(loop.session.scope.step) == PER_EPOCH + 2:
                short.stop()
    assert short.epoch == 1


@pytest.mark.parametrize("died", [2, PER_EPOCH, PER_EPOCH + 3])
def test_continued_loop_sends_the_remaining_events(died, tmp_path):
    whole = Seen()
    run([whole])
    first, second = Seen(), Seen()

    def die(loop):
        if int(loop.session.scope.step) == died + 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run([first], folder=tmp_path, after=die)
    assert first.lines[-1] == f"end train {died // PER_EPOCH} False ZeroDivisionError()"
    continued = run([second], folder=tmp_path)

    def kept(lines):
        """Return the lines of steps, without the repetitions of a resumed training; leave out the lines of epochs."""
        steps = [
            line for line in lines if line.startswith(("begin 0", "begin 1", "begin 2", "end 0", "end 1", "end 2"))
        ]
        return list(dict.fromkeys(steps))

    assert kept(second.lines) == kept(whole.lines)
    assert sum(line.startswith("begin train") for line in second.lines) == 2
    assert continued.history["epoch"] == [0, 1, 2] and continued.history["step"] == [6, 12, 18]


def test_tests_files_and_the_progress_bar_work(in_tmp, capsys):
    session = fluid.Session(minimised, seed=3)
    feeds = fluid.reader.prefetch(arrays(), session)
    testing = fluid.handlers.TestEvery(arrays())
    handlers = [fluid.ProgressBar(show=True), fluid.handlers.CSVLogger("log.csv"), testing]
    with fluid.Loop(session, feeds, 2, handlers=handlers) as loop:
        for feed in loop:
            loop.step(feed)
    rows = (in_tmp / "log.csv").read_text().split()
    assert len(rows) == 3 and "test_loss" in rows[0]
    assert float(rows[-1].split(",")[rows[0].split(",").index("test_loss")]) == pytest.approx(
        float(loop.test(arrays())["loss"]), rel=1e-5
    )
    assert "epoch 2/2" in capsys.readouterr().err


def test_loop_accepts_plain_minibatches_and_foreign_steps():
    def other():
        loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1)))
        fluid.optimizer.SGD(0.01).minimize(loss)
        return {"penalty": loss}

    session = fluid.Session(minimised, other)
    seen = Seen()
    with fluid.Loop(session, lambda: range(3), 2, minimised, [seen], progress=False) as loop:
        for number in loop:
            rows = slice(8 * number, 8 * number + 8)
            loop.step({"x": X[rows], "y": Y[rows]})
            session.step({"x": X[rows]}, other)
    assert int(session.scope.step) == 12 and loop.epoch == 2
    assert [line.split()[-1] for line in seen.lines if line.startswith("end 1")] == ["4", "5", "6"]


def test_wrong_arguments_raise_named_errors():
    session = fluid.Session(minimised, small)
    with pytest.raises(errors.ArgumentError, match=r"minimises nothing.*program=\.\.\."):
        fluid.Loop(session, [], program=small)
    loop = fluid.Loop(session, [{"x": X, "y": Y}], program=minimised, progress=False)
    with pytest.raises(errors.ArgumentError, match=r"with fluid.Loop\(session, feeds\) as loop"):
        loop.step({"x": X, "y": Y})
    with pytest.raises(errors.ArgumentError, match="has not begun"):
        next(iter(loop))
    with loop:
        with pytest.raises(errors.FeedError, match="found 'x', expected every feed.*missing 'y'"):
            loop.step({"x": X})
        with pytest.raises(errors.FeedError, match="event.override"):
            loop.step({"x": X, "y": Y, "fc_0": Y})
        with pytest.raises(errors.CheckpointError, match="fluid.Checkpoint"):
            loop.save_checkpoint()
    assert int(session.scope.step) == 0


def test_epoch_without_loop_step_is_warned_of_once():
    with pytest.warns(errors.FluidWarning, match=r"without a loop\.step\(feed\).*instead of session\.step") as caught:
        loop = run([], num_epochs=2, each=lambda loop, feed: loop.session.step(feed))
    assert len(caught) == 1 and loop.epoch == 2
    run([], num_epochs=2, each=lambda loop, feed: loop.stop())


def test_a_step_outside_of_an_epoch_is_refused():
    session = fluid.Session(minimised)
    feeds = fluid.reader.prefetch(arrays(), session)
    with (
        fluid.Loop(session, feeds, progress=False) as loop,
        pytest.raises(errors.ArgumentError, match="expected for each minibatch of the loop itself"),
    ):
        loop.step(next(iter(feeds)))


def test_loop_over_read_reader_logs_nothing_to_train(caplog):
    session = fluid.Session(minimised)
    used = arrays()
    list(used())
    with fluid.Loop(session, fluid.reader.prefetch(used, session), progress=False) as loop:
        assert not list(loop)
    assert "nothing to train: 1 epochs are done" in caplog.text and "num_epochs=1" in caplog.text


def test_a_loop_is_kept_with_its_feeds(tmp_path):
    session = fluid.Session(minimised)
    feeds = fluid.reader.prefetch(arrays(), session)
    loop = fluid.Loop(session, feeds, progress=False)
    with pytest.warns(errors.FluidWarning, match=r"reads them from the beginning: state_of=\[feeds, loop\]"):
        fluid.Checkpoint(session, tmp_path, loop)
    fluid.Checkpoint(session, tmp_path, [loop, feeds])
    fluid.Checkpoint(session, tmp_path, fluid.Loop(session, [{"x": X, "y": Y}], progress=False))


def test_iterator_for_two_epochs_raises_reader_error():
    session = fluid.Session(minimised)
    for feeds, words in ((iter([{"x": X, "y": Y}]), "iterated once only"), (lambda: iter([]), "gave nothing")):
        with (
            pytest.raises(errors.ReaderError, match=words),
            fluid.Loop(session, feeds, num_epochs=2, progress=False) as loop,
        ):
            for feed in loop:
                loop.step(feed)


def test_break_within_an_epoch_is_warned_of():
    session = fluid.Session(minimised)
    with (
        pytest.warns(errors.FluidWarning, match=r"left in the middle of an epoch.*loop\.stop\(\) instead of break"),
        fluid.Loop(session, [{"x": X, "y": Y}] * 3, progress=False) as loop,
    ):
        for feed in loop:
            loop.step(feed)
            break
    with pytest.raises(KeyError), fluid.Loop(session, [{"x": X, "y": Y}], progress=False) as loop:
        for feed in loop:
            raise KeyError(feed)
