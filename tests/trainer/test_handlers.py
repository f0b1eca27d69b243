"""The handler protocol: errors in handlers, announced values, and handler states for a resumed training."""

import numpy as np
import pytest

import fluid
from fluid import errors
from fluid.trainer.handlers import Dispatcher

X = np.arange(24, dtype="float32").reshape(12, 2) / 24


def train_program():
    return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))


def make():
    return fluid.Trainer(train_program, fluid.optimizer.SGD(0.1))


def reader(batch_size=4):
    return fluid.reader.arrays((X,), batch_size=batch_size)


def handler_with(name, function=lambda self, event: None):
    return type("Mine", (fluid.Handler,), {name: function})()


class Reporting(fluid.Handler):
    def measures(self):
        return ["score"]


@pytest.mark.parametrize("use", [lambda h: h.done, lambda h: h.announce(0, 0, {"score": 1.0})])
def test_handler_of_no_training_says_so(use):
    with pytest.raises(errors.ArgumentError, match=r"Reporting: found a handler of no training.*handlers=\[handler\]"):
        use(Reporting())


@pytest.mark.parametrize(
    "name", ["on_end_epcoh", "on_epoch_end", "on_train_begin", "end_batch", "begin_steps", "epoch_end"]
)
def test_misspelt_event_method_is_warned_of_once(name):
    class Two(fluid.Handler):
        pass

    setattr(Two, name, lambda self, event: None)
    trainer = make()
    with pytest.warns(errors.FluidWarning) as caught:
        trainer.train(reader(), handlers=[Two(), Two()])
    (warning,) = caught
    assert str(warning.message).startswith(
        f"Two has a method '{name}', which no event calls; events call begin_train, "
    )
    assert warning.filename == __file__
    assert int(trainer.session.scope.step) == 3


@pytest.mark.parametrize(
    "name", ["draw", "write", "stop", "reset", "_end_epcoh", "steps", "ending", "endstep", "mesured"]
)
def test_other_handler_methods_are_not_warned_of(name):
    make().train(reader(), handlers=[handler_with(name)])


@pytest.mark.parametrize("function", [lambda self: None, lambda self, event, more: None])
def test_a_method_that_takes_no_event_is_refused(function):
    trainer = make()
    with pytest.raises(errors.ArgumentTypeError, match=r"Mine\..*cannot be called with one event.*\(self, event\)"):
        trainer.train(reader(), handlers=[handler_with("end_step", function)])
    assert int(trainer.session.scope.step) == 0


class Announcing(fluid.Handler):
    def __init__(self, name="announced", values=None):
        self.name, self.values = name, values

    def measures(self):
        return [self.name]

    def end_epoch(self, event):
        value = event.epoch if self.values is None else self.values[event.epoch]
        self.announce(event.epoch, event.steps - 1, {self.name: value})


@pytest.mark.parametrize("first", [True, False])
def test_announcements_reach_all_handlers_from_the_inside(first):
    seen = []

    class Ring(fluid.Handler):
        def __init__(self, name):
            self.name = name

        def measured(self, event):
            seen.append((self.name, event.epoch, event.step, event.metrics["announced"]))

    rings = [Ring("a"), Ring("b")]
    rings.insert(0 if first else 2, Announcing())
    told = []
    make().train(reader(), num_epochs=2, handlers=rings, event_handler=lambda e: told.append(type(e).__name__))
    assert seen == [("b", 0, 2, 0), ("a", 0, 2, 0), ("b", 1, 2, 1), ("a", 1, 2, 1)]
    assert told.count("MeasuredEvent") == 2


def test_announcing_unlisted_value_raises_argument_error():
    class Wrong(Announcing):
        def measures(self):
            return ["other"]

    with pytest.raises(errors.ArgumentError, match=r"Wrong announces 'announced'.*return \['other', 'announced'\]"):
        make().train(reader(), handlers=[Wrong()])


def test_steps_are_counted_over_several_calls():
    seen, trainer = [], make()

    class Count(fluid.Handler):
        def begin_train(self, event):
            seen.append(self.done)

        def end_step(self, event):
            seen.append(self.done)

    trainer.train(reader(), handlers=[Count()])
    trainer.train(reader(), handlers=[Count()])
    assert seen == [0, 1, 2, 3, 3, 4, 5, 6]


def test_begin_step_event_has_its_minibatch():
    seen = []
    make().train(reader(5), event_handler=lambda e: isinstance(e, fluid.BeginStepEvent) and seen.append(e))
    np.testing.assert_array_equal(np.concatenate([event.feed["x"] for event in seen]), X)
    assert all(event.seconds > 0 for event in seen)


def test_reused_dispatcher_leaves_only_entered_handlers():
    seen = []

    class Named(fluid.Handler):
        def __init__(self, name):
            self.name = name

        def begin_train(self, event):
            seen.append(f"{self.name} begins")

        def end_train(self, event):
            seen.append(f"{self.name} ends")

    dispatcher = Dispatcher([Named("a"), Named("b")])
    dispatcher.enter(fluid.BeginTrainEvent(1))
    dispatcher.leave(fluid.EndTrainEvent(1))
    assert seen == ["a begins", "b begins", "b ends", "a ends"]
    # This training fails before its begin event, so its end event calls no handler.
    dispatcher.leave(fluid.EndTrainEvent(0, error=OSError()))
    assert len(seen) == 4
    dispatcher.enter(fluid.BeginTrainEvent(1))
    dispatcher.leave(fluid.EndTrainEvent(1))
    assert seen[4:] == seen[:4]


class Remembering(fluid.Handler):
    def __init__(self, value=None):
        self.value = value

    def state(self):
        return {"value": self.value}

    def restore(self, state):
        self.value = state["value"]


def test_states_restore_to_same_class_handlers_in_order():
    class Other(Remembering):
        pass

    saved = Dispatcher([Remembering(1), Other(2), lambda event: None, Remembering(3)]).state()
    again = [Other(), Remembering(), Remembering(), Remembering()]
    Dispatcher(again).restore(saved)
    assert [handler.value for handler in again] == [2, 1, 3, None]


def test_states_match_by_module_or_bare_class_name():
    here, there = (type("Counting", (Remembering,), {"__module__": module}) for module in ("here", "there"))
    saved = Dispatcher([here(1), there(2)]).state()
    again = [there(), here()]
    Dispatcher(again).restore(saved)
    assert [handler.value for handler in again] == [2, 1]
    moved = [type("Counting", (Remembering,), {"__module__": "elsewhere"})() for _ in range(2)]
    Dispatcher(moved).restore([{**saved[0], "handler": "Counting"}, saved[1]])
    assert [handler.value for handler in moved] == [1, 2]
    left = there()
    Dispatcher([left]).restore(saved)
    assert left.value == 2


def test_unmatched_handler_state_is_logged(caplog):
    saved = Dispatcher([Remembering(1), fluid.Handler(), Remembering(3)]).state()
    kept = Remembering()
    Dispatcher([kept]).restore(saved)
    assert kept.value == 1
    (record,) = caplog.records  # one message is enough, because the plain fluid.Handler has no state that could be lost
    assert "state of the handler Remembering, number 3 of 3, which no handler" in record.getMessage()


def test_user_progress_bar_replaces_the_default_bar(capsys):
    bar = fluid.ProgressBar(show=True, interval=0)
    make().train(reader(), num_epochs=2, handlers=[bar, Announcing("test_loss", [0.25, 0.125])], progress=True)
    shown = capsys.readouterr().err.replace("\r", "\n").splitlines()
    ends = [[line for line in shown if f"epoch {epoch}/2" in line][-1] for epoch in (1, 2)]
    assert "test_loss 0.25" in ends[0] and "test_loss 0.125" in ends[1]
    assert sum("epoch 1/2: 0step" in line for line in shown) == 1


def test_hidden_progress_bar_reads_no_metrics(capsys):
    class Unread(list):
        def __getitem__(self, index):
            raise AssertionError("a metric was read")

    bar = fluid.ProgressBar(show=False)
    event = fluid.EndStepEvent(0, 0, fluid.Results(Unread([1.0])))
    bar.end_step(event)
    assert capsys.readouterr().err == ""


class Ends(fluid.Handler):
    def __init__(self, returned):
        self.returned = returned

    def end_step(self, event):
        return self.returned


def ends(event):
    return -1


def test_handler_returning_false_or_minus_1_warns_once():
    step = fluid.EndStepEvent(0, 0, {})
    for told, name in (
        (Ends(False), "Ends.end_step"),
        (ends, "ends"),
        (fluid.handlers.every(1)(lambda event: None), ""),
    ):
        dispatcher = Dispatcher([told])
        if not name:
            dispatcher(step)
            continue
        with pytest.warns(errors.FluidWarning, match=rf"^{name} at test_handlers.py:\d+ returned.*stop\(\)") as caught:
            dispatcher(step)
            dispatcher(step)
        assert len(caught) == 1


def test_other_results_of_handlers_are_not_warned_of():
    step = fluid.EndStepEvent(0, 0, {})
    for told in (Ends(None), Ends(0), Ends(np.zeros(3)), Ends("stop"), lambda event: isinstance(event, str), [].append):
        Dispatcher([told])(step)
