"""Calls of `train`: the output that they minimise, the step at which they continue, and messages of the log."""

import logging
import signal
import threading

import numpy as np
import pytest
from resumed_programs import X, Y, arrays, assert_equal, program, seen_by, small, state, trainer

import fluid
from fluid import errors, layers
from fluid.trainer import loop


def steps(into):
    return seen_by(into)


def places(seen):
    return [step[:2] for step in seen]


def interrupted_after(mine, count, reader, num_epochs=3, seen=None, **settings):
    """Train, and interrupt the training by SIGINT after `count` steps."""
    with pytest.raises(KeyboardInterrupt):
        mine.train(
            reader,
            num_epochs,
            seen_by([] if seen is None else seen, count, lambda: signal.raise_signal(signal.SIGINT)),
            **settings,
        )


def test_output_named_loss_is_minimised_at_any_position():
    def accuracy_first():
        found = program()
        return {"error": layers.identity(found["loss"], name="shown") * 1, "loss": found["loss"]}

    mine, other = trainer(function=accuracy_first), trainer(function=program)
    assert mine.program.loss_output == 1 and other.program.loss_output == 0
    for one in (mine, other):
        one.train(arrays())
    np.testing.assert_array_equal(mine.params["fc_0.w_0"], other.params["fc_0.w_0"])


def test_second_optimizer_for_a_minimising_program_raises():
    def minimising():
        loss = small()["loss"]
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    with pytest.raises(errors.ArgumentError, match=r"calls SGD.minimize itself.*Adam.*fluid.Trainer\(program\)"):
        fluid.Trainer(minimising, fluid.optimizer.Adam(0.1))
    assert fluid.Trainer(minimising).program.minimizes


def poisoned(at):
    def read():
        for i, (x, y) in enumerate(arrays()):
            yield (x * np.nan if i == at else x), y

    return read


@pytest.mark.parametrize("at", [0, 5])
def test_nonfinite_loss_is_warned_of_once(at):
    noticed = pytest.warns(errors.FluidWarning, match=f"feed 'x', sample 0, batch {at}: found NaN")
    with (
        pytest.warns(errors.FluidWarning, match=f"the loss is nan in step {at} of epoch 0.*TerminateOnNaN") as caught,
        noticed,
    ):
        trainer(function=small).train(poisoned(at), num_epochs=4)
    assert len(caught) == 1 and caught[0].filename == __file__


def test_run_in_default_mode_never_trains():
    mine = trainer()
    before = state(mine)
    batch = {"x": X[:8], "y": Y[:8]}
    loss, gradient = mine.run(batch, fetch=["loss", "fc_0.w_0@GRAD"])
    mine.session.run("small", batch)
    assert_equal(state(mine), before)
    assert np.any(np.asarray(gradient))
    mine.run(batch, mode="train")
    assert int(mine.session.scope.step) == 1
    with fluid.Session(mine.program.function) as own:
        own.run(feed=batch)
        assert int(own.scope.step) == 1, "a session of one's own trains when the program minimises"


class TestAfterAnInterruption:
    def test_fewer_epochs_than_done_train_nothing_with_message(self, caplog):
        mine, reader, seen = trainer(), arrays(), []
        interrupted_after(mine, 15, reader)
        assert "interrupted after 2 epochs and 3 steps; the next train() with the same reader" in caplog.text
        for _ in range(2):
            caplog.clear()
            mine.train(reader, 2, event_handler=steps(seen))
            assert not seen and "nothing to train: 2 epochs are done" in caplog.text and "resume=False" in caplog.text
        mine.train(reader, 3, event_handler=steps(seen))
        assert places(seen) == [(2, 3), (2, 4), (2, 5)]
        assert "training continues after 2 epochs and 3 steps" in caplog.text
        whole = trainer()
        whole.train(arrays(), 3)
        assert_equal(state(mine), state(whole))

    def test_another_reader_starts_anew_and_says_so(self, caplog):
        mine, seen = trainer(), []
        interrupted_after(mine, 8, arrays())
        mine.train(arrays(), 1, event_handler=steps(seen))
        assert places(seen) == [(0, i) for i in range(6)]
        assert "is given up" in caplog.text and "resume=True" in caplog.text

    def test_resume_true_continues_with_an_equal_reader(self):
        mine, whole, seen = trainer(), trainer(), []
        interrupted_after(mine, 8, arrays())
        mine.train(arrays(), 2, event_handler=steps(seen), resume=True)
        assert places(seen) == [(1, i) for i in range(2, 6)]
        whole.train(arrays(), 2)
        assert_equal(state(mine), state(whole))

    def test_resume_false_begins_with_epoch_0(self, caplog):
        mine, reader, seen = trainer(), arrays(), []
        interrupted_after(mine, 8, reader)
        mine.train(reader, 1, event_handler=steps(seen), resume=False)
        assert places(seen) == [(0, i) for i in range(6)] and "is given up" in caplog.text

    def test_nothing_to_resume_is_an_error(self):
        mine = trainer()
        with pytest.raises(errors.ArgumentError, match="leave resume out"):
            mine.train(arrays(), resume=True)
        with pytest.raises(errors.ArgumentTypeError, match="expected True, False or None"):
            mine.train(arrays(), resume="yes")


class TestRunAgain:
    """Reruns of a script with checkpoints: a call of `train` is recognised by its order and its epochs."""

    def run(self, folder, *epochs, resume=None):
        mine, seen = trainer(folder), []
        for count in epochs:
            mine.train(arrays(), count, event_handler=steps(seen), resume=resume)
        return mine, seen

    def test_calls_that_were_done_are_left_out(self, tmp_path, caplog):
        first, _ = self.run(tmp_path, 1, 2)
        again, seen = self.run(tmp_path, 1, 2)
        assert not seen and "call 0 of train(), of 1 epochs, was done before" in caplog.text
        assert_equal(state(again), state(first))

    def test_last_call_with_more_epochs_continues(self, tmp_path):
        self.run(tmp_path, 1, 2)
        _, seen = self.run(tmp_path, 1, 3)
        assert places(seen) == [(2, i) for i in range(6)]

    def test_an_earlier_call_with_other_epochs_is_refused(self, tmp_path):
        self.run(tmp_path, 1, 2)
        with pytest.raises(errors.ArgumentError, match=r"call 0 of train\(\) had num_epochs=1.*resume=False"):
            self.run(tmp_path, 5)

    def test_resume_false_trains_on_from_the_checkpoint(self, tmp_path, caplog):
        self.run(tmp_path, 1, 2)
        mine, seen = self.run(tmp_path, 1, resume=False)
        assert places(seen) == [(0, i) for i in range(6)] and int(mine.session.scope.step) == 24
        assert "starts with epoch 0" in caplog.text

    def test_resume_true_needs_something_to_continue(self, tmp_path):
        with pytest.raises(errors.ArgumentError, match="nothing to continue in"):
            trainer(tmp_path).train(arrays(), resume=True)

    def test_interruption_names_the_saved_checkpoint(self, tmp_path, caplog):
        interrupted_after(trainer(tmp_path), 8, arrays())
        assert f"saved as checkpoint 8 in '{tmp_path}'" in caplog.text and "when run again" in caplog.text
        _, seen = self.run(tmp_path, 2)
        assert places(seen) == [(1, i) for i in range(2, 6)]

    def test_another_optimizer_is_named(self, tmp_path):
        trainer(tmp_path, small, fluid.optimizer.Adam(0.1)).train(arrays())
        with pytest.raises(
            errors.ParameterError,
            match=r"it was Adam\(learning_rate=0.1\) when it was written, and SGD\(learning_rate=0.5\) now",
        ):
            trainer(tmp_path, small, fluid.optimizer.SGD(0.5))

    @pytest.mark.parametrize(
        ("before", "now", "said"),
        [
            (fluid.optimizer.SGD(0.1), fluid.optimizer.SGD(0.5), "SGD(learning_rate=0.5) now"),
            (
                fluid.optimizer.SGD(layers.exponential_decay(0.2, 4, 0.5)),
                fluid.optimizer.SGD(layers.exponential_decay(0.2, 8, 0.5)),
                "decay_steps=8",
            ),
        ],
    )
    def test_changed_rate_is_logged(self, before, now, said, tmp_path, caplog):
        trainer(tmp_path, small, before).train(arrays())
        trainer(tmp_path, small, before)
        assert "the optimizer was" not in caplog.text
        trainer(tmp_path, small, now)
        assert "the optimizer was" in caplog.text and said in caplog.text

    def test_checkpoint_without_call_records_accepts_other_epochs(self, tmp_path, monkeypatch):
        from fluid.trainer.resume import Progress

        written = Progress.snapshot
        monkeypatch.setattr(
            Progress,
            "snapshot",
            lambda self: lambda: {k: v for k, v in written(self)().items() if k != "finished_epochs"},
        )
        self.run(tmp_path, 1, 2)
        _, seen = self.run(tmp_path, 5)
        assert not seen


def test_parameters_are_read_by_another_thread_while_training(tmp_path):
    mine, stop, failures, read = trainer(), threading.Event(), [], []

    def look():
        try:
            while not stop.is_set():
                found = mine.params
                # The use of the parameters must not fail, although the training thread donates their buffers to JAX.
                read.append({n: np.asarray(v) for n, v in found.items()})
                mine.save_params(tmp_path / "now.params")
                mine.run({"x": X[:8], "y": Y[:8]})
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        mine.train(arrays(), num_epochs=40)
    finally:
        stop.set()
        thread.join()
    assert not failures and read


@pytest.mark.parametrize(("slow", "order"), [(float("inf"), ["read", "end"]), (0.0, ["end", "read"])])
def test_step_end_does_not_wait_for_slow_reader(slow, order, monkeypatch):
    monkeypatch.setattr(loop, "_SLOW", slow)
    happened = []

    def reader():
        for x, y in arrays():
            happened.append("read")
            yield x, y

    trainer().train(
        reader, event_handler=lambda e: happened.append("end") if isinstance(e, fluid.EndStepEvent) else None
    )
    assert happened[:2] == (["read", "read"] if slow else ["read", "end"])
    assert happened[1:3] == order


def test_stop_loses_no_minibatch_of_an_iterator():
    mine, seen = trainer(), []
    rows = list(arrays()())
    stream = iter(rows)
    mine.train(stream, event_handler=seen_by(seen, 2, lambda: mine.stop()))
    assert len(seen) == 2
    np.testing.assert_array_equal(next(stream)[0], rows[2][0])
    mine.train(stream, event_handler=steps(seen))
    assert len(seen) == 2 + 3


def test_users_generator_is_not_closed_by_stop():
    closed = []

    def read():
        try:
            yield from arrays()
        finally:
            closed.append(True)

    mine, stream = trainer(), read()
    mine.train(stream, event_handler=seen_by([], 2, lambda: mine.stop()))
    assert not closed and len(list(stream)) == 4 and closed


def generator():
    yield from zip(X.reshape(-1, 4, 4), Y.reshape(-1, 4, 1), strict=True)


@pytest.mark.parametrize(
    "reader", [lambda: arrays(), lambda: generator, lambda: generator()], ids=["arrays", "function", "iterator"]
)
def test_a_paused_training_continues_in_the_same_epoch(reader, caplog):
    mine, whole, source, seen, expected = trainer(), trainer(), reader(), [], []
    caplog.set_level(logging.WARNING)
    mine.train(source, event_handler=seen_by(seen, 3, lambda: mine.pause()))
    assert len(seen) == 3 and "training was paused after 3 steps" in caplog.text
    events = []
    mine.train(source, event_handler=lambda e: (events.append(e), steps(seen)(e)))
    assert [e.first_step for e in events if isinstance(e, fluid.BeginEpochEvent)] == [3]
    whole.train(reader(), event_handler=steps(expected))
    assert places(seen) == places(expected)
    assert_equal(state(mine), state(whole))


def test_refused_continuation_closes_its_reader():
    size, closed, mine = [4], [], trainer()

    def reader():
        try:
            for start in range(0, 24, size[0]):
                yield X[start : start + size[0]], Y[start : start + size[0]]
        finally:
            closed.append(True)

    interrupted_after(mine, 2, reader)
    size[0], before = 3, len(closed)
    with pytest.raises(errors.ReaderError, match="other minibatches than those trained on"):
        mine.train(reader)
    assert len(closed) == before + 1


def test_a_paused_training_continues_in_another_process(tmp_path):
    mine, whole, seen = trainer(tmp_path), trainer(), []
    mine.train(arrays(), 2, event_handler=seen_by(seen, 8, lambda: mine.pause()))
    again = trainer(tmp_path)
    again.train(arrays(), 2, event_handler=steps(seen))
    whole.train(arrays(), 2)
    assert_equal(state(again), state(whole))
    assert len(seen) == 12


@pytest.mark.parametrize("slow", [float("inf"), 0.0])
def test_an_epoch_stopped_in_its_last_step_is_complete(slow, monkeypatch):
    """Check the events of a stop in the last step, and of the training after it, for quick and slow readers."""
    monkeypatch.setattr(loop, "_SLOW", slow)
    mine, whole, reader, seen, events = trainer(), trainer(), arrays(), [], []
    stopped = seen_by(seen, 6, lambda: mine.stop())
    mine.train(reader, 2, event_handler=lambda e: (events.append(e), stopped(e)))
    mine.train(reader, event_handler=lambda e: (events.append(e), steps(seen)(e)))
    epochs = [(e.steps, e.completed) for e in events if isinstance(e, fluid.EndEpochEvent)]
    assert epochs == [(6, True), (6, True)] and len(seen) == 12
    whole.train(arrays(), 2)
    assert_equal(state(mine), state(whole))


def test_stop_in_the_last_step_saves_the_epoch(tmp_path):
    config = {"epoch_interval": 1}
    mine, seen = trainer(tmp_path, config=config), []
    mine.train(arrays(), 2, event_handler=seen_by([], 6, lambda: mine.stop()))
    events = []
    trainer(tmp_path, config=config).train(arrays(), 2, lambda e: (events.append(e), steps(seen)(e)))
    assert [(e.epoch, e.first_step) for e in events if isinstance(e, fluid.BeginEpochEvent)] == [(1, 0)]
    assert len(seen) == 6


def test_pause_outside_of_training_does_nothing():
    mine, seen = trainer(), []
    mine.pause()
    mine.train(arrays(), event_handler=steps(seen))
    assert len(seen) == 6


@pytest.mark.parametrize(("at", "steps"), [(0, 4), (2, 4), (5, 8), (1, 1), (9, 3)])
def test_one_infinite_loss_among_many_is_warned_of(at, steps):
    def program():
        x = fluid.layers.data("x", shape=[1])
        # the loss of a row 0 is infinite, and its gradient is 0, so that all other losses are finite
        w = fluid.layers.fc(x, 1, bias_attr=False)
        return fluid.layers.mean(fluid.layers.square(w)) + fluid.layers.mean(1.0 / x)

    rows = [[(np.array([0.0 if i == at else 2.0], "float32"),)] for i in range(12)]
    mine = fluid.Trainer(program, fluid.optimizer.SGD(0.01), steps_per_dispatch=steps)
    with pytest.warns(errors.FluidWarning, match=rf"the loss is inf in step {at} of epoch 0"):
        mine.train(rows, num_epochs=1)
    assert all(np.isfinite(v).all() for v in mine.params.values())
