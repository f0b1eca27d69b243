"""Resumed training: it continues with the same bits in a new Trainer, as in a new process, and in the same Trainer."""

import contextlib
import itertools
import json
import logging
import signal
import threading

import numpy as np
import pytest
import resumed_programs as shared
from resumed_programs import ROWS, X, Y, arrays, assert_equal, program, seen_by, small, state, trainer

import fluid
from fluid import errors
from fluid.runtime.state_io import live_state
from fluid.trainer.checkpoint.writer import Writer

WORDS = [[int(w) for w in shared.RNG.integers(0, 30, size=shared.RNG.integers(1, 20))] for _ in range(44)]


def words_program(**embedding):
    def words():
        x = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
        y = fluid.layers.data("y", shape=[1])
        summed = fluid.layers.sequence_pool(fluid.layers.embedding(x, size=[30, 4], **embedding), "sum")
        return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(summed, size=1), y))

    return words


def averaged():
    loss = program()["loss"]
    fluid.optimizer.SGD(0.1).minimize(loss)
    fluid.optimizer.ExponentialMovingAverage(0.9).update()
    return loss


def table():
    ids = fluid.layers.data("x", shape=[1], dtype="int64")
    y = fluid.layers.data("y", shape=[1])
    row = fluid.layers.embedding(ids, size=[40, 4], is_sparse=True)
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(row, size=1), y))


def ids():
    return fluid.reader.arrays((np.arange(44)[:, None] * 7 % 40, Y), batch_size=8, shuffle=True, seed=1)


def chained():
    rows = fluid.reader.map(lambda row: (row[0] * 2, row[1]), fluid.reader.shuffle(lambda: iter(ROWS), 16, seed=5))
    return fluid.reader.buffered(fluid.batch(rows, 8), 3)


def augmented():
    def jitter(row, rng):
        return row[0] + rng.normal(size=np.shape(row[0])).astype("float32"), row[1]

    return fluid.batch(fluid.reader.map(jitter, fluid.reader.shuffle(lambda: iter(ROWS), 16, seed=5), seed=5), 8)


def grouped():
    rows = fluid.reader.shuffle(lambda: zip(WORDS, Y, strict=True), 44, seed=2)
    return fluid.reader.bucket_by_length(rows, batch_size=8)


def generator():
    for i in range(0, 44, 8):
        yield X[i : i + 8], Y[i : i + 8]


def decaying():
    return fluid.optimizer.SGD(fluid.layers.exponential_decay(0.2, decay_steps=4, decay_rate=0.5))


CASES = {
    "plain": (small, None, arrays),
    "dropout and moving statistics": (program, None, arrays),
    "a chain of readers": (program, None, lambda: chained),
    "random augmentation": (program, None, lambda: augmented),
    "minibatches by length": (words_program(), None, lambda: grouped),
    "gradient accumulation": (small, lambda: fluid.optimizer.Adam(0.1, accumulate_steps=4), arrays),
    "a schedule": (small, decaying, arrays),
    "a sparse table": (table, lambda: fluid.optimizer.Adagrad(0.1), lambda: ids),
    "averages": (averaged, lambda: None, arrays),
    "a function that yields": (program, None, lambda: generator),
}


def new(case, folder=None, **options):
    function, optimizer, _ = CASES[case]
    config = {"step_interval": 3, **options.pop("config", {})}
    if optimizer is not None and optimizer() is None:  # the program calls `minimize`, so the Trainer gets none
        options["checkpoint_config"] = fluid.CheckpointConfig(folder, **config) if folder else None
        return fluid.Trainer(function, seed=3, **options)
    chosen = None if optimizer is None else optimizer()
    return trainer(folder, function, chosen, config if folder else None, **options)


def reader_of(case):
    made = CASES[case][2]()
    return made() if callable(made) and made in (chained, augmented, grouped, ids) else made


def stopped(*_):
    raise ZeroDivisionError("the machine went away")


def assert_same_batches(found, expected):
    assert [step[:2] for step in found] == [step[:2] for step in expected]
    for (_, _, feed), (_, _, wanted) in zip(found, expected, strict=True):
        assert all(np.array_equal(feed[name], wanted[name]) for name in wanted)


def seen_values(into, **options):
    """Return an event handler that records the feeds of all steps, with the padding of sequences, for comparisons."""

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent):
            feed = {n: np.array(getattr(v, "data", v) if hasattr(v, "lengths") else v) for n, v in event.feed.items()}
            into.append((event.epoch, event.step, feed))
        if isinstance(event, fluid.EndStepEvent) and len(into) == options.get("stop_after"):
            options["then"]()

    return on_event


@pytest.mark.sample(3)
@pytest.mark.parametrize("case", CASES)
def test_row_01_and_19_resume_within_epoch_keeps_the_bits(case, tmp_path):
    whole, expected = new(case), []
    whole.train(reader_of(case), num_epochs=3, event_handler=seen_values(expected))
    seen, steps = [], 6 * 3
    assert len(expected) == steps or case == "minibatches by length"
    broken = new(case, tmp_path)
    with pytest.raises(ZeroDivisionError):
        broken.train(reader_of(case), num_epochs=3, event_handler=seen_values(seen, stop_after=11, then=stopped))
    resumed = new(case, tmp_path)
    done = int(resumed.session.scope.step)
    assert done == 9
    del seen[done:]
    resumed.train(reader_of(case), num_epochs=3, event_handler=seen_values(seen))
    assert_same_batches(seen, expected)
    assert_equal(state(resumed), state(whole))


@pytest.mark.parametrize("cut", [1, 2, 6, 7, 12])
def test_row_06_stop_at_any_step_repeats_no_minibatch(cut, tmp_path):
    seen, config = [], {"step_interval": 1, "max_num_checkpoints": 1}
    with pytest.raises(ZeroDivisionError):
        # A step whose handler fails is not saved.
        trainer(tmp_path, config=config).train(arrays(), num_epochs=2, event_handler=seen_by(seen, cut, stopped))
    resumed = trainer(tmp_path, config=config)
    done = int(resumed.session.scope.step)
    # The last step of an epoch is saved after the handlers have processed the end of the epoch.
    assert done == max(cut - 1 - (cut == 7), 0) + (cut == 7)
    del seen[done:]
    resumed.train(arrays(), num_epochs=2, event_handler=seen_by(seen))
    assert [s[:2] for s in seen] == [(epoch, step) for epoch in range(2) for step in range(6)]


def test_row_06_events_say_the_resumed_position(tmp_path):
    events = []
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, config={"step_interval": 4}).train(arrays(), 2, event_handler=seen_by([], 6, stopped))
    resumed = trainer(tmp_path)
    resumed.train(arrays(), num_epochs=2, event_handler=events.append)
    kinds = [(type(e).__name__, getattr(e, "epoch", None), getattr(e, "step", None)) for e in events[:4]]
    assert kinds == [
        ("BeginTrainEvent", None, None),
        ("BeginEpochEvent", 0, None),
        ("BeginStepEvent", 0, 4),
        ("EndStepEvent", 0, 4),
    ]
    assert events[1].first_step == 4
    ends = [(e.epoch, e.steps, e.completed) for e in events if isinstance(e, fluid.EndEpochEvent)]
    assert ends == [(0, 6, True), (1, 6, True)] and events[-1].epochs == 2


def test_row_05_rerun_of_finished_training_does_nothing(tmp_path, caplog):
    first = trainer(tmp_path)
    first.train(arrays(), num_epochs=2)
    again, events = trainer(tmp_path), []
    assert_equal(state(again), state(first))
    again.train(arrays(), num_epochs=2, event_handler=events.append)
    assert [type(e).__name__ for e in events] == ["BeginTrainEvent", "EndTrainEvent"]
    assert int(again.session.scope.step) == 12 and "nothing to train" in caplog.text
    more = trainer(tmp_path)
    more.train(arrays(), num_epochs=3)
    longer = trainer()
    longer.train(arrays(), num_epochs=3)
    assert_equal(state(more), state(longer))


def test_row_07_fewer_epochs_than_done_train_nothing(tmp_path):
    trainer(tmp_path).train(arrays(), num_epochs=2)
    for epochs in (0, 1):
        again = trainer(tmp_path)
        again.train(arrays(), num_epochs=epochs)
        assert int(again.session.scope.step) == 12
    with pytest.raises(errors.ArgumentError, match="num_epochs=-1"):
        again.train(arrays(), num_epochs=-1)


def test_row_05_after_stop_a_rerun_continues(tmp_path):
    whole = trainer()
    whole.train(arrays(), num_epochs=2)
    first = trainer(tmp_path, config={"step_interval": None})
    first.train(arrays(), num_epochs=2, event_handler=seen_by([], 8, lambda: first.stop()))
    assert int(first.session.scope.step) == 8
    again = trainer(tmp_path, config={"step_interval": None})
    again.train(arrays(), num_epochs=2)
    assert_equal(state(again), state(whole))


@pytest.mark.parametrize("cut", [3, 9, 15, 21])
def test_several_train_calls_resume_to_the_same_state(cut, tmp_path):
    def run(trainer, on_event=None):
        reader = fluid.reader.arrays((X, Y), batch_size=8, shuffle=True, seed=4)
        for epochs in (1, 2, 1):
            trainer.train(reader, num_epochs=epochs, event_handler=on_event)

    whole = trainer()
    run(whole)
    with pytest.raises(ZeroDivisionError):
        run(trainer(tmp_path, config={"step_interval": 4}), seen_by([], cut, stopped))
    resumed = trainer(tmp_path, config={"step_interval": 4})
    run(resumed)
    assert_equal(state(resumed), state(whole))


def interrupt():
    signal.raise_signal(signal.SIGINT)


def test_row_02_next_call_continues_after_ctrl_c(tmp_path):
    for folder in (None, tmp_path):
        seen, ends, reader = [], [], arrays()
        whole, mine = trainer(), trainer(folder)
        whole.train(arrays(), num_epochs=2)

        def on_event(event, seen=seen, ends=ends):
            seen_by(seen, 4, interrupt)(event)
            if isinstance(event, fluid.EndStepEvent):
                ends.append(event.step)

        with pytest.raises(KeyboardInterrupt):
            mine.train(reader, num_epochs=2, event_handler=on_event)
        # SIGINT came within a step; before KeyboardInterrupt, this step and its handlers ran to the end.
        assert len(seen) == len(ends) == int(mine.session.scope.step) == 4
        mine.train(reader, num_epochs=2, event_handler=seen_by(seen))
        assert [s[:2] for s in seen] == [(epoch, step) for epoch in range(2) for step in range(6)]
        assert_equal(state(mine), state(whole))
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_row_02_without_checkpoints_another_reader_starts_anew():
    mine, seen = trainer(), []
    with pytest.raises(KeyboardInterrupt):
        mine.train(arrays(), event_handler=seen_by([], 4, interrupt))
    mine.train(arrays(), event_handler=seen_by(seen))
    assert len(seen) == 6


def test_row_02_ctrl_c_while_reading_does_not_wait(tmp_path):
    def reader():
        for i, batch in enumerate(generator()):
            if i == 3:
                interrupt()
                raise AssertionError("reading went on")
            yield batch

    mine = trainer(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        mine.train(reader)
    assert int(mine.session.scope.step) == 3
    assert mine._checkpoints.folder.steps() == [3]


def test_row_02_ctrl_c_during_handler_test_repeats_no_step(tmp_path):
    mine, seen, tested = trainer(tmp_path), [], []

    def slow():
        for batch in generator():
            tested.append(len(tested))
            if len(tested) == 2:
                interrupt()
            yield batch

    def on_event(event):
        seen_by(seen)(event)
        if isinstance(event, fluid.EndEpochEvent) and not tested:
            mine.test(slow)

    with pytest.raises(KeyboardInterrupt):
        mine.train(arrays(), num_epochs=2, event_handler=on_event)
    assert len(tested) == 2 and int(mine.session.scope.step) == 6
    events = []
    mine.train(arrays(), num_epochs=2, event_handler=events.append)
    # The interrupt came while a handler handled the EndEpochEvent: the event is sent again, and no step is repeated.
    assert [type(e).__name__ for e in events[1:4]] == ["BeginEpochEvent", "EndEpochEvent", "BeginEpochEvent"]
    assert int(mine.session.scope.step) == 12


def test_user_signal_handler_is_kept():
    got = []
    previous = signal.signal(signal.SIGINT, lambda number, frame: got.append(number))
    try:
        mine = trainer()
        mine.train(arrays(), event_handler=seen_by([], 2, interrupt))
        assert got == [signal.SIGINT] and int(mine.session.scope.step) == 6
    finally:
        signal.signal(signal.SIGINT, previous)


def test_row_02_training_in_a_thread_leaves_signals_alone(tmp_path):
    mine = trainer(tmp_path)
    thread = threading.Thread(target=mine.train, args=(arrays(),))
    thread.start()
    thread.join()
    assert int(mine.session.scope.step) == 6
    assert int(trainer(tmp_path).session.scope.step) == 6


def test_row_16_opaque_reader_skips_minibatches_without_feeding(tmp_path, caplog, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, config={"step_interval": 4}).train(generator, event_handler=seen_by([], 6, stopped))
    fed, feed = [], fluid.reader.feeder.Feeder.feed
    monkeypatch.setattr(fluid.reader.feeder.Feeder, "feed", lambda *a: (fed.append(a[2]), feed(*a))[1])
    trainer(tmp_path).train(generator)
    assert "4 minibatches of epoch 0 are read and dropped" in caplog.text
    assert fed == [3, 4, 5]  # minibatch 3 was trained before; it is fed to check that the reader has the same order


def test_row_16_another_order_is_noticed(tmp_path):
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, config={"step_interval": 4}).train(generator, event_handler=seen_by([], 6, stopped))
    resumed = trainer(tmp_path)
    with pytest.warns(errors.FluidWarning, match=r"another order.*map\(f, rows, seed=0\)"):
        resumed.train(lambda: ((x[::-1], y[::-1]) for x, y in generator()))
    assert int(resumed.session.scope.step) == 6


@pytest.mark.parametrize(
    "reader, message",
    [
        (lambda: itertools.islice(generator(), 3), "fewer minibatches"),
        (lambda: ((x[:5], y[:5]) for x, y in generator()), "has 5 samples, expected 8"),
        (fluid.reader.arrays((X, Y), batch_size=4), "taken from another reader"),
    ],
)
def test_row_17_changed_reader_raises_and_loses_nothing(reader, message, tmp_path):
    with pytest.raises(ZeroDivisionError):
        trainer(tmp_path, config={"step_interval": 4}).train(generator, event_handler=seen_by([], 6, stopped))
    resumed = trainer(tmp_path)
    with pytest.raises(errors.FluidError, match=message):
        resumed.train(reader)
    assert int(resumed.session.scope.step) == 4
    resumed.train(generator)  # with the unchanged reader, training continues after step 4
    assert int(resumed.session.scope.step) == 6


def test_row_17_batch_size_may_change_between_epochs(tmp_path):
    trainer(tmp_path).train(arrays(), num_epochs=1)
    resumed = trainer(tmp_path)
    resumed.train(fluid.reader.arrays((X, Y), batch_size=22), num_epochs=2)
    assert int(resumed.session.scope.step) == 6 + 2


class Keeper:
    """An iterator that returns and restores its position, by `get_state` and `set_state` as in Grain."""

    def __init__(self, as_bytes):
        self.position, self._as_bytes = 0, as_bytes

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == 6:
            raise StopIteration
        self.position += 1
        i = 8 * (self.position - 1)
        return X[i : i + 8], Y[i : i + 8]

    def get_state(self):
        found = {"position": self.position}
        return json.dumps(found).encode() if self._as_bytes else found

    def set_state(self, state):
        self.position = (json.loads(state) if self._as_bytes else state)["position"]


@pytest.mark.parametrize("as_bytes", [True, False])
def test_iterator_with_state_is_restored_without_skipping(as_bytes, tmp_path, caplog):
    whole = trainer()
    whole.train(generator, num_epochs=2)
    with pytest.raises(ZeroDivisionError):
        broken = trainer(tmp_path, config={"step_interval": 4})
        broken.train(lambda: Keeper(as_bytes), num_epochs=2, event_handler=seen_by([], 11, stopped))
    resumed = trainer(tmp_path)
    with caplog.at_level(logging.WARNING):
        resumed.train(lambda: Keeper(as_bytes), num_epochs=2)
    assert "dropped" not in caplog.text
    assert_equal(state(resumed), state(whole))


def test_unstorable_position_raises_before_the_first_step(tmp_path):
    class Odd:
        def __iter__(self):
            return generator()

        def state(self):
            return {1, 2}

        def restore(self, state):
            raise AssertionError

    mine = trainer(tmp_path)
    with pytest.raises(errors.ArgumentTypeError, match="cannot be stored"):
        mine.train(Odd())
    assert int(mine.session.scope.step) == 0


def test_handler_states_are_restored_from_the_checkpoint(tmp_path):
    class Count(fluid.Handler):
        count = 0

        def end_step(self, event):
            self.count += 1

        def state(self):
            return {"count": self.count}

        def restore(self, state):
            self.count = state["count"]

    counts = [Count() for _ in range(4)]
    with contextlib.suppress(ZeroDivisionError):
        trainer(tmp_path, config={"step_interval": 4}).train(
            arrays(), handlers=counts[:2], event_handler=seen_by([], 6, stopped)
        )
    trainer(tmp_path).train(arrays(), handlers=counts[2:])
    assert [c.count for c in counts[2:]] == [6, 6]


def test_row_09_resumed_step_donates_the_same_buffers(tmp_path):
    trainer(tmp_path, program).train(arrays())
    taken = []
    for mine in (trainer(None, program), trainer(tmp_path, program)):
        before = live_state(mine.session)
        mine.train(arrays(), num_epochs=2, event_handler=seen_by([], 1, mine.stop))
        taken.append({name for name, value in before.items() if value.is_deleted()})
    assert taken[0] == taken[1] and len(taken[0]) > 10


def activated(act="tanh", factor=1.0, named=False):
    def net():
        x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[1])
        hidden = fluid.layers.fc(x, size=3, act=act)
        hidden = fluid.layers.identity(hidden, name="hidden") if named else hidden
        hidden = fluid.layers.dropout(hidden, 0.3)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, size=1), y)) * factor
        return {"loss": loss, **({"double": fluid.layers.scale(loss, 2.0)} if named else {})}

    return net


def rows(count=44, size=8):
    return fluid.reader.arrays((X[:count], Y[:count]), batch_size=size)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({}, None),
        # A new output and a new name of a value leave the loss unchanged.
        ({"function": activated(named=True)}, None),
        ({"function": activated("relu")}, "the program computes its loss in another way"),
        ({"function": activated(factor=2.0)}, "the program computes its loss in another way"),
        ({"seed": 4}, "the seed was another one than now"),
        ({"reader": rows(40)}, "gives 40 rows, minibatches of 8 and gave 44 rows, minibatches of 8"),
        ({"reader": rows(44, 11)}, "gives 44 rows, minibatches of 11 and gave 44 rows, minibatches of 8"),
        ({"steps_per_dispatch": 2}, None),
    ],
)
def test_changes_between_epochs_are_warned_of(changed, said, tmp_path, caplog):
    config = fluid.CheckpointConfig(tmp_path)
    first = fluid.Trainer(activated(), fluid.optimizer.SGD(0.1), seed=3, checkpoint_config=config)
    first.train(rows(), 2, event_handler=lambda event: first.stop() if isinstance(event, fluid.EndEpochEvent) else None)
    caplog.clear()
    options = {"function": activated(), "seed": 3, "reader": rows(), **changed}
    function, reader = options.pop("function"), options.pop("reader")
    again = fluid.Trainer(function, fluid.optimizer.SGD(0.1), checkpoint_config=config, **options)
    again.train(reader, 3)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    told = [message for message in warnings if not message.startswith("continuing from")]
    assert len(told) == bool(said) and all(said in message for message in told), told


@pytest.mark.parametrize("older", [{"digests": None}, {"versions": {"jax": "0.0.1"}}])
def test_checkpoint_of_other_version_skips_program_comparison(older, tmp_path, caplog, monkeypatch):
    start = Writer.start
    monkeypatch.setattr(
        Writer, "start", lambda writer, step, arrays, meta: start(writer, step, arrays, lambda: {**meta(), **older})
    )
    config = fluid.CheckpointConfig(tmp_path)
    fluid.Trainer(activated(), fluid.optimizer.SGD(0.1), checkpoint_config=config).train(rows())
    fluid.Trainer(activated("relu"), fluid.optimizer.SGD(0.1), checkpoint_config=config)
    assert "continuing from" in caplog.text and "another way" not in caplog.text
