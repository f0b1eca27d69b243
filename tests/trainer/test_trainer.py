"""Trainer: learning, the order of events, testing, stopping and saving."""

import _thread
import copy
import functools
import pickle
import signal
import threading
import traceback

import numpy as np
import optax
import pytest
from compile_counts import counted

import fluid
from fluid import errors

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 4)).astype("float32")
Y = (X @ [[1.0], [-2.0], [0.5], [3.0]] + 0.7).astype("float32")


def train_program():
    x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[1])
    prediction = fluid.layers.fc(x, size=1)
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(prediction, y)), "prediction": prediction}


def make(optimizer=None, **options):
    return fluid.Trainer(train_program, optimizer or fluid.optimizer.SGD(0.1), **options)


def reader(batch_size=16, count=48):
    return fluid.reader.arrays((X[:count], Y[:count]), batch_size=batch_size)


def record(events, then=None):
    def on_event(event):
        fields = [getattr(event, f) for f in ("epoch", "step", "completed", "stopped") if hasattr(event, f)]
        events.append((type(event).__name__.removesuffix("Event"), *fields))
        if then is not None:
            then(event)

    return on_event


def steps(epoch, count, last=None):
    begun = [(kind, epoch, step) for step in range(count) for kind in ("BeginStep", "EndStep")]
    return begun if last is None else begun[: begun.index((last, epoch, count - 1)) + 1]


def test_linear_regression_learns_the_weights():
    trainer = make()
    trainer.train(reader(), num_epochs=60)
    np.testing.assert_allclose(trainer.params["fc_0.w_0"], [[1.0], [-2.0], [0.5], [3.0]], atol=1e-2)
    assert trainer.test(reader())["loss"] < 1e-3


@pytest.mark.parametrize(
    "build",
    [
        lambda: fluid.Trainer(train_program, fluid.optimizer.SGD(0.1)),
        lambda: fluid.Trainer(train_func=train_program, optimizer_func=lambda: fluid.optimizer.SGD(0.1)),
        lambda: fluid.Trainer(program_func=train_program, optimizer=optax.sgd(0.1)),
        lambda: fluid.Trainer(functools.partial(train_program), optimizer=fluid.optimizer.SGD(0.1)),
    ],
)
def test_all_constructor_spellings_train_the_same(build):
    trainer, want = build(), make()
    for t in (trainer, want):
        t.train(reader(), num_epochs=2)
    assert np.array_equal(trainer.params["fc_0.w_0"], want.params["fc_0.w_0"])


def test_a_program_that_minimises_itself_needs_no_optimizer():
    def program():
        outputs = train_program()
        fluid.optimizer.SGD(0.1).minimize(outputs["loss"])
        return outputs

    trainer, want = fluid.Trainer(program), make()
    for t in (trainer, want):
        t.train(reader(), num_epochs=2)
    assert np.array_equal(trainer.params["fc_0.w_0"], want.params["fc_0.w_0"])


def test_fluid_train_builds_and_trains_a_trainer():
    seen = []
    trainer = fluid.train(
        train_program, reader(), num_epochs=2, optimizer=fluid.optimizer.SGD(0.1), event_handler=record(seen), seed=3
    )
    assert isinstance(trainer, fluid.Trainer) and seen[-1] == ("EndTrain", False)
    assert fluid.train(train_program, reader()).program.minimizes[0].optimizer == fluid.optimizer.Adam()


def test_training_sends_all_events_in_order():
    seen = []
    make().train(reader(), num_epochs=2, event_handler=record(seen))
    assert seen == [
        ("BeginTrain",),
        ("BeginEpoch", 0),
        *steps(0, 3),
        ("EndEpoch", 0, True),
        ("BeginEpoch", 1),
        *steps(1, 3),
        ("EndEpoch", 1, True),
        ("EndTrain", False),
    ]


def test_stop_after_a_step_sends_ending_events():
    seen, trainer = [], make()

    def stop(event):
        if isinstance(event, fluid.EndStepEvent) and event.step == 1:
            trainer.stop()

    trainer.train(reader(), num_epochs=5, event_handler=record(seen, stop))
    want = [("BeginTrain",), ("BeginEpoch", 0), *steps(0, 2), ("EndEpoch", 0, False), ("EndTrain", True)]
    assert seen == want
    trainer.train(reader(), num_epochs=1, event_handler=record(seen))
    again = [("BeginTrain",), ("BeginEpoch", 0), *steps(0, 3), ("EndEpoch", 0, True), ("EndTrain", False)]
    assert seen == want + again


@pytest.mark.parametrize(
    "kind, want",
    [
        ("BeginTrain", [("BeginTrain",), ("EndTrain", True)]),
        ("BeginStep", [("BeginTrain",), ("BeginEpoch", 0), *steps(0, 1), ("EndEpoch", 0, False), ("EndTrain", True)]),
        ("EndEpoch", [("BeginTrain",), ("BeginEpoch", 0), *steps(0, 3), ("EndEpoch", 0, True), ("EndTrain", True)]),
    ],
)
def test_stop_at_other_events_sends_ending_events(kind, want):
    seen, trainer = [], make()
    trainer.train(
        reader(),
        num_epochs=5,
        event_handler=record(seen, lambda e: type(e).__name__ == f"{kind}Event" and trainer.stop()),
    )
    assert seen == want


def test_handler_exception_sends_only_end_train():
    seen, trainer = [], make()

    def fail(event):
        if isinstance(event, fluid.EndStepEvent) and event.step == 1:
            raise ZeroDivisionError("mine")
        if isinstance(event, fluid.EndTrainEvent):
            seen.append(repr(event.error))

    with pytest.raises(ZeroDivisionError, match="mine"):
        trainer.train(reader(), num_epochs=5, event_handler=record(seen, fail))
    want = [("BeginTrain",), ("BeginEpoch", 0), *steps(0, 2), ("EndTrain", False), "ZeroDivisionError('mine')"]
    assert seen == want
    assert int(trainer.session.scope.step) == 2
    trainer.train(reader(), num_epochs=1)
    assert int(trainer.session.scope.step) == 5


def test_reader_exception_sends_only_end_train():
    seen, trainer = [], make()

    def failing():
        yield X[:16], Y[:16]
        yield X[16:32], Y[16:32]
        raise LookupError("no more disks")

    with pytest.raises(LookupError, match="no more disks") as caught:
        trainer.train(failing, num_epochs=5, event_handler=record(seen))
    assert seen == [("BeginTrain",), ("BeginEpoch", 0), *steps(0, 2), ("EndTrain", False)]
    assert "failing" in [f.name for f in traceback.extract_tb(caught.tb)]
    assert int(trainer.session.scope.step) == 2


@pytest.mark.parametrize("moment", ["BeginTrain", "BeginEpoch", "BeginStep", "EndStep", "EndEpoch"])
def test_keyboard_interrupt_sends_only_end_train(moment):
    seen, trainer = [], make()

    def interrupt(event):
        if type(event).__name__ == f"{moment}Event":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.train(reader(), num_epochs=5, event_handler=record(seen, interrupt))
    whole = [("BeginTrain",), ("BeginEpoch", 0), *steps(0, 3), ("EndEpoch", 0, True)]
    cut = next(i for i, entry in enumerate(whole) if entry[0] == moment)
    assert seen == [*whole[: cut + 1], ("EndTrain", False)]
    done = int(trainer.session.scope.step)
    trainer.train(reader(), num_epochs=1)
    assert int(trainer.session.scope.step) == done + 3


# If the interrupt arrives in a destructor, Python drops the exception, and pytest warns of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_real_interrupts_at_any_moment_leave_whole_steps():
    trainer, rng = make(), np.random.default_rng(0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    interrupted = 0
    for _ in range(30):
        timer = threading.Timer(float(rng.uniform(0.0005, 0.02)), _thread.interrupt_main)
        try:
            timer.start()
            trainer.train(reader(), num_epochs=3000)
            timer.join()
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
        assert all(np.isfinite(np.asarray(v)).all() for v in trainer.params.values())
    assert interrupted > 20
    trainer.train(reader(), num_epochs=1)


def test_metrics_are_lazy_and_named():
    seen = []

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent):
            assert not isinstance(event.metrics[0], float) and "metrics" not in repr(event)
            seen.append(event.metrics)

    trainer = make()
    trainer.train(reader(), event_handler=on_event)
    assert len(seen) == 3
    loss = seen[0]["loss"]
    assert float(loss) == float(seen[0][0]) and "%f" % loss and format(loss, ".3") and loss < 1e9
    assert np.array(loss).shape == () and seen[0]["prediction"].shape == (16, 1)
    with pytest.raises(KeyError, match="Did you mean 'loss'"):
        seen[0]["los"]


def test_handlers_are_an_onion():
    seen = []

    class Ring(fluid.Handler):
        def __init__(self, name):
            self.name = name

        def begin_epoch(self, event):
            seen.append(f"{self.name} in")

        def end_epoch(self, event):
            seen.append(f"{self.name} out")

        def end_train(self, event):
            seen.append(f"{self.name} end")

    def innermost(event):
        if isinstance(event, fluid.BeginEpochEvent | fluid.EndEpochEvent):
            seen.append(type(event).__name__)

    make().train(reader(), event_handler=innermost, handlers=[Ring("a"), Ring("b")])
    assert seen == ["a in", "b in", "BeginEpochEvent", "EndEpochEvent", "b out", "a out", "b end", "a end"]


def test_failing_end_train_still_ends_entered_handlers():
    left = []

    class Ring(fluid.Handler):
        def __init__(self, name, fails=False):
            self.name, self.fails = name, fails

        def begin_train(self, event):
            if self.name == "c":
                raise RuntimeError("cannot begin")

        def end_train(self, event):
            left.append(self.name)
            if self.fails:
                raise OSError("cannot end")

    with pytest.raises(RuntimeError, match="cannot begin") as caught:
        make().train(reader(), handlers=[Ring("a"), Ring("b", fails=True), Ring("c"), Ring("d")])
    assert left == ["c", "b", "a"]
    assert any("cannot end" in note for note in caught.value.__notes__)
    with pytest.raises(OSError, match="cannot end"):
        make().train(reader(), handlers=[Ring("b", fails=True)])


@pytest.mark.parametrize(
    "handler, match",
    [
        (lambda: None, "one event"),
        (lambda a, b: None, "one event"),
        (fluid.Handler, "a fluid.Handler object"),
        (3, "function of one event"),
    ],
)
def test_a_bad_handler_fails_at_registration(handler, match):
    trainer = make()
    with pytest.raises(errors.ArgumentTypeError, match=match):
        trainer.train(reader(), event_handler=handler)
    assert int(trainer.session.scope.step) == 0


@pytest.mark.parametrize("batch_size", [1, 5, 16, 47, 48, 100])
def test_testing_is_exact_under_any_batch_size(batch_size):
    trainer = make()
    trainer.train(reader(), num_epochs=2)
    weight, bias = (np.asarray(trainer.params[n], "float64") for n in ("fc_0.w_0", "fc_0.b_0"))
    want = np.mean((X.astype("float64") @ weight + bias - Y) ** 2)
    found = trainer.test(reader(batch_size))
    assert found["loss"] == pytest.approx(want, rel=1e-6)
    np.testing.assert_allclose(found["prediction"], X @ weight + bias, rtol=1e-4, atol=1e-5)


def test_testing_changes_nothing():
    trainer = make()
    before = trainer.params
    trainer.test(reader())
    for name, value in trainer.params.items():
        assert np.array_equal(value, before[name])


def test_testing_inside_a_handler_sees_falling_loss():
    losses, trainer = [], make()

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            losses.append(trainer.test(reader())[0])

    trainer.train(reader(), num_epochs=3, event_handler=on_event)
    assert losses[0] > losses[1] > losses[2]


def test_training_inside_a_handler_is_refused():
    trainer = make()
    with pytest.raises(errors.ArgumentError, match="handler"):
        trainer.train(reader(), event_handler=lambda event: trainer.train(reader()))


def test_second_step_and_second_test_compile_nothing():
    trainer, compiled_at = make(), []
    with counted() as compiled:

        def on_event(event):
            if isinstance(event, fluid.EndStepEvent):
                compiled_at.append(len(compiled))

        trainer.train(reader(), num_epochs=2, event_handler=on_event)
    assert compiled_at[0] == compiled_at[-1] == len(compiled)
    trainer.test(reader())
    with counted() as compiled:
        trainer.test(reader())
        trainer.train(reader())
    assert compiled == []
    assert len(trainer.session.compilations) == 2


def test_equal_seeds_train_to_equal_bits():
    found = []
    for _ in range(2):
        trainer = make(fluid.optimizer.Adam(0.01), seed=4)
        shuffled = fluid.reader.arrays((X, Y), batch_size=7, shuffle=True, seed=9)
        trainer.train(shuffled, num_epochs=3)
        found.append(trainer.params)
    for name, value in found[0].items():
        assert np.array_equal(value, found[1][name])


def test_saved_params_start_a_trainer_and_inferencer(tmp_path):
    trainer = make()
    trainer.train(reader(), num_epochs=3)
    trainer.save_params(tmp_path / "line.params")
    warm = make(param_path=tmp_path / "line.params", seed=9)
    assert np.array_equal(warm.params["fc_0.w_0"], trainer.params["fc_0.w_0"])
    handed = fluid.Inferencer(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1), params=trainer.params)
    loaded = fluid.Inferencer(
        lambda: fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1), param_path=tmp_path / "line.params"
    )
    want = trainer.test(reader())["prediction"]
    for inferencer in (handed, loaded):
        np.testing.assert_allclose(inferencer.infer({"x": X})[0], want, rtol=1e-5, atol=1e-6)


def test_feed_order_accepts_list_dict_and_default():
    rows = list(zip(Y, X, strict=True))
    found = []
    for order in (["y", "x"], {"x": 1, "y": 0}):
        trainer = make()
        trainer.train(fluid.batch(lambda: rows, 16), feed_order=order)
        found.append(trainer.params["fc_0.w_0"])
    trainer = make()
    trainer.train(fluid.batch(list(zip(X, Y, strict=True)), 16))
    for value in found:
        assert np.array_equal(value, trainer.params["fc_0.w_0"])


def test_an_infinite_reader_ends_with_stop():
    trainer = make()

    def endless():
        while True:
            yield X, Y

    def stop(event):
        if isinstance(event, fluid.EndStepEvent) and event.step == 4:
            trainer.stop()

    trainer.train(endless, event_handler=stop)
    assert int(trainer.session.scope.step) == 5


def test_the_users_reader_is_closed():
    closed = []

    def generator():
        try:
            while True:
                yield X, Y
        finally:
            closed.append(True)

    trainer = make()
    trainer.train(generator, event_handler=lambda e: isinstance(e, fluid.EndStepEvent) and trainer.stop())
    assert closed == [True]
    with pytest.raises(ZeroDivisionError):
        trainer.train(generator, event_handler=lambda e: isinstance(e, fluid.EndStepEvent) and 1 / 0)
    assert closed == [True, True]


def test_training_leaves_no_thread():
    before = threading.active_count()
    trainer = make()
    trainer.train(fluid.reader.buffered(reader(), 4), num_epochs=3)
    with pytest.raises(ZeroDivisionError):
        trainer.train(
            fluid.reader.buffered(reader(), 4), event_handler=lambda e: isinstance(e, fluid.EndStepEvent) and 1 / 0
        )
    assert threading.active_count() == before


def test_zero_epochs_are_no_steps():
    seen, trainer = [], make()
    trainer.train(reader(), num_epochs=0, event_handler=record(seen))
    assert seen == [("BeginTrain",), ("EndTrain", False)]


def test_the_progress_bar_shows_epochs_and_the_loss(capsys):
    make().train(reader(), num_epochs=2, progress=True)
    shown = capsys.readouterr().err
    assert "epoch 1/2" in shown and "epoch 2/2" in shown and "loss" in shown
    make().train(reader(), num_epochs=2)
    assert capsys.readouterr().err == ""  # no bar is shown, because standard error is no terminal


def test_the_progress_bar_is_closed_after_an_error(capsys):
    bar = fluid.ProgressBar(show=True)
    with pytest.raises(ZeroDivisionError):
        make().train(reader(), handlers=[bar], event_handler=lambda e: isinstance(e, fluid.EndStepEvent) and 1 / 0)
    assert bar._bar is None


def test_repr_does_not_wait_for_the_device():
    def train_program():
        x = fluid.layers.data("x", shape=[2])
        return fluid.layers.mean(fluid.layers.fc(x, size=600))

    trainer = fluid.Trainer(train_program, fluid.optimizer.Adam(0.003, beta1=0.8))
    told = "Trainer(train_program: 1,800 parameters, Adam(learning_rate=0.003, beta1=0.8), step {}, on {})"
    platform = trainer.session.device.platform
    assert repr(trainer) == told.format(0, platform)
    trainer.train(fluid.reader.arrays((np.ones((6, 2), "float32"),), batch_size=2), progress=False)
    assert float(trainer.session.scope.step) == 3  # reading the step counter waits for the last step
    assert repr(trainer) == told.format(3, platform)
    assert repr(trainer) in trainer._repr_html_() and "float32[batch, 2]" in trainer._repr_html_()

    class Running:
        def is_deleted(self):
            return False

        def is_ready(self):
            return False

    trainer.session.scope.step = Running()
    assert "in a step, on" in repr(trainer)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copies_and_pickles_raise_with_the_alternative(copied, tmp_path):
    trainer = fluid.Trainer(train_program, fluid.optimizer.SGD(0.1))
    with pytest.raises(errors.ArgumentTypeError, match=r"fluid.Trainer cannot be copied or pickled.*param_path="):
        copied(trainer)
    with pytest.raises(errors.ArgumentTypeError, match=r"fluid.Session cannot .*save_params"):
        copied(trainer.session)
    trainer.save_inference_model(tmp_path / "net.fluid")
    with pytest.raises(errors.ArgumentTypeError, match=r"fluid.Inferencer cannot .*save_inference_model"):
        copied(fluid.Inferencer(param_path=tmp_path / "net.fluid"))


def test_stop_iteration_of_a_handler_names_trainer_stop():
    def handler(event):
        raise StopIteration

    trainer = fluid.Trainer(train_program, fluid.optimizer.SGD(0.1))
    with pytest.raises(StopIteration) as raised:
        trainer.train(lambda: [], event_handler=handler)
    assert "trainer.stop()" in "".join(raised.value.__notes__)
