"""The first training step: it is compiled while its minibatch is read, and no number or event changes."""

import signal
import threading
import traceback

import jax
import numpy as np
import pytest
from compile_counts import counted

import fluid
from fluid import errors, reader

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 3)).astype("float32")
Y = RNG.integers(0, 4, (10, 1))
ROWS = list(zip(X, Y, strict=True))
# The maximum time to wait for another thread, in seconds; then the test fails.
PATIENCE = 60


def program():
    x = fluid.layers.data("x", shape=[3])
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    return fluid.layers.mean(fluid.layers.fc(fluid.layers.dropout(x, 0.5), size=1) - label)


def trainer_of(function=program, **options):
    return fluid.Trainer(function, fluid.optimizer.SGD(0.1), **options)


def undeclared(data):
    """Return a reader function with the minibatches of `data`, but without the attribute `batch_size`."""
    return lambda: iter(list(data))


def reasons(trainer):
    return [compilation.reason for compilation in trainer.session.compilations]


@pytest.fixture
def held(monkeypatch):
    """Return an event: until it is set, `jax.stages.Lowered.compile` blocks, but calls of jitted functions compile."""
    go = threading.Event()
    compile_now = jax.stages.Lowered.compile

    def compile_later(lowered, *args, **options):
        assert go.wait(PATIENCE)
        return compile_now(lowered, *args, **options)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_later)
    yield go
    go.set()


def test_a_reader_may_wait_for_the_compilation():
    compiled = threading.Event()

    def rows():
        assert compiled.wait(PATIENCE)
        yield from ROWS

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.set()

    trainer = trainer_of()
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        trainer.train(reader.batch(rows, 5))
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert reasons(trainer) == ["first train run"]


def test_the_compilation_may_wait_for_the_reader(held):
    def rows():
        held.set()
        yield from ROWS

    trainer = trainer_of()
    trainer.train(reader.batch(rows, 5))
    assert held.is_set()
    assert reasons(trainer) == ["first train run"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: reader.arrays({"x": X.astype("float64"), "label": Y[:, 0]}, 4, shuffle=True),
        lambda: reader.buffered(reader.batch(ROWS, 4), 2),
    ],
    ids=["arrays", "rows"],
)
def test_declared_batch_size_changes_no_number_or_event(make):
    found = []
    for data in (make(), undeclared(make())):
        events = []
        trainer = trainer_of(seed=3)
        with counted() as compiled:
            trainer.train(data, event_handler=events.append)
        kinds = [(type(e).__name__, getattr(e, "compiled", None)) for e in events]
        losses = [float(e.metrics[0]) for e in events if isinstance(e, fluid.EndStepEvent)]
        found.append((len(compiled), reasons(trainer), kinds, losses, jax.tree.map(np.asarray, dict(trainer.params))))
    (count, *declared, parameters), (other_count, *said_nothing, other_parameters) = found
    assert declared == said_nothing
    assert count == other_count == len(declared[0]) == 2
    jax.tree.map(np.testing.assert_array_equal, parameters, other_parameters)


def test_on_device_data_compiles_the_step_once(held):
    held.set()
    data = reader.arrays((X, Y), 5, on_device=True)
    trainer = trainer_of()
    trainer.test(data)  # `test` copies the columns to the device, and compiles the selection of rows
    with counted() as compiled:
        trainer.train(data, num_epochs=2)
    assert len(compiled) == 1
    assert reasons(trainer)[1:] == ["first train run"]


def test_batched_steps_compile_no_single_step():
    trainer = trainer_of(steps_per_dispatch=2)
    trainer.train(reader.arrays((X, Y), 5))
    assert len(trainer.session.compilations) == 1
    assert "several steps in one call" in reasons(trainer)[0]


def test_program_error_equals_the_error_of_the_step():
    def particular():
        x = fluid.layers.data("x", shape=[3])
        if x.shape[0] == 5:
            raise ValueError("five rows are one too many")
        return fluid.layers.mean(fluid.layers.fc(x, size=1))

    found = []
    for data in (reader.arrays(X, 5), undeclared(reader.arrays(X, 5))):
        trainer = trainer_of(particular)
        before = {name: np.asarray(value) for name, value in trainer.params.items()}
        with pytest.raises(ValueError, match="one too many") as raised:
            trainer.train(data)
        for name, value in before.items():
            np.testing.assert_array_equal(value, trainer.params[name])
        frames = [(frame.name, frame.line) for frame in traceback.extract_tb(raised.value.__traceback__)]
        found.append((frames, reasons(trainer), getattr(raised.value, "__notes__", [])))
    assert found[0] == found[1]


def test_reader_error_raises_at_once_without_counted_compilation(held):
    def rows():
        raise OSError("no such disk")
        yield

    trainer = trainer_of()
    with pytest.raises(OSError, match="no such disk"):
        trainer.train(reader.batch(rows, 5))
    assert not held.is_set()
    assert reasons(trainer) == []
    held.set()
    with counted() as compiled:
        trainer.train(reader.batch(ROWS, 5))
    assert reasons(trainer) == ["first train run"]
    assert len(compiled) <= 1


def test_interrupt_while_reading_does_not_await_compilation(held):
    def rows():
        signal.raise_signal(signal.SIGINT)
        yield from ROWS

    trainer = trainer_of()
    with pytest.raises(KeyboardInterrupt):
        trainer.train(reader.batch(rows, 5))
    assert not held.is_set()
    assert reasons(trainer) == []


def test_unused_compilation_counts_only_when_needed():
    trainer = trainer_of()
    trainer.train(reader.batch(ROWS[:3], 5))
    assert reasons(trainer) == ["first train run"]
    with counted() as compiled:
        trainer.train(reader.batch(ROWS, 5))
    # A thread compiles the step for 5 rows in advance, and may finish this compilation after `counted` starts to count.
    assert len(compiled) <= 1
    assert reasons(trainer) == [
        "first train run",
        "new feed shapes: label [5, 1], x [5, 3]; before: label [3, 1], x [3, 3]",
    ]


def test_request_in_first_step_compiles_two_steps():
    """Check that a fetch in step 0 compiles another step function; later steps use the function compiled in advance."""

    class Ask(fluid.Handler):
        def begin_step(self, event):
            if event.step == 0:
                event.fetch(["x"])

    trainer = trainer_of()
    with counted() as compiled:
        trainer.train(reader.arrays((X, Y), 5), handlers=[Ask()])
    assert len(compiled) == len(trainer.session.compilations) == 2


def test_freezing_before_first_step_compiles_once():
    class Freeze(fluid.Handler):
        def begin_train(self, event):
            self.trainer.freeze("fc_0.b_0")

    trainer = trainer_of()
    with counted() as compiled:
        trainer.train(reader.arrays((X, Y), 5), handlers=[Freeze()])
    assert len(compiled) == 1
    assert reasons(trainer) == ["other parameters are frozen: 1 names"]


def test_readers_say_how_large_their_minibatches_are():
    batches = reader.batch(ROWS, 4)
    with pytest.warns(errors.FluidWarning, match="shuffle of minibatches"):
        shuffled = reader.shuffle(batches, 2)
    for made in (batches, reader.buffered(batches, 2), shuffled, reader.cache(batches)):
        assert made.batch_size == 4
    assert reader.firstn(batches, 1).batch_size == reader.shard(batches, 2, 0).batch_size == 4
    assert reader.arrays(X, 4).batch_size == 4
    assert reader.arrays(X, 100).batch_size == 10
    for unknown in (reader.map(lambda b: b[:2], batches), reader.chain(batches, batches), reader.shuffle(ROWS, 2)):
        assert unknown.batch_size is None
