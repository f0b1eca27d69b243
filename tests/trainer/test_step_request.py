"""Requests of handlers for single training steps: `event.fetch` returns values, and `event.override` replaces them."""

import jax
import numpy as np
import pytest
from compile_counts import counted
from resumed_programs import ROWS, arrays, assert_equal, state, trainer

import fluid
from fluid import errors

PER_EPOCH = -(-len(ROWS) // 8)


def training(on_begin, on_end=lambda event: None, num_epochs=1, **options):
    """Train a small net; call `on_begin(trainer, event)` before each step, and `on_end(event)` after it.

    Return the Trainer.
    """
    mine = trainer(**options)

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent):
            on_begin(mine, event)
        if isinstance(event, fluid.EndStepEvent):
            on_end(event)

    mine.train(arrays(), num_epochs, on_event)
    return mine


def test_only_the_requested_step_returns_fetched_values():
    seen, expected = {}, {}

    def begin(mine, event):
        if event.step == 2:
            event.fetch(["fc_0.tmp_*", "fc_0.w_0@GRAD"])
            event.fetch("fc_0.w_0@GRAD")
            expected.update(mine.run(event.feed, ["fc_0.tmp_0", "fc_0.w_0@GRAD"]).items())

    training(begin, lambda event: seen.update({event.step: event.fetched}))
    assert all(not seen[step].keys() for step in range(PER_EPOCH) if step != 2)
    assert seen[2].keys() == ["fc_0.tmp_0", "fc_0.tmp_1", "fc_0.w_0@GRAD"]
    for name, value in expected.items():
        np.testing.assert_allclose(seen[2][name], value, rtol=1e-5, atol=1e-6)


def test_fetching_changes_nothing_and_is_compiled_once():
    ends, whole = [], trainer()
    whole.train(arrays(), 3)
    mine = training(lambda mine, event: event.fetch("fc_0") if event.step % 2 else None, ends.append, num_epochs=3)
    assert_equal(state(mine), state(whole))
    full = [c for c in mine.session.compilations if "another fetch list" in c.reason]
    # At most 4 compilations: two minibatch sizes, each with and without the fetched value.
    assert len(full) == 1 and len(mine.session.compilations) <= 4
    assert [event.fetched.keys() for event in ends[:2]] == [[], ["fc_0"]]


def test_handler_without_requests_compiles_nothing_more():
    mine = trainer()
    with counted() as plain:
        mine.train(arrays(), 2)
    other = trainer()
    with counted() as told:
        other.train(arrays(), 2, lambda event: None)
    assert len(told) <= len(plain)
    assert len(other.session.compilations) == len(mine.session.compilations) == 2


def test_handler_fetches_combine_with_step_requests():
    class Watch(fluid.Handler):
        seen = []

        def fetches(self):
            return ["grad_norm_0"]

        def end_step(self, event):
            self.seen.append(event.fetched.keys())

    mine = trainer()
    watch = Watch()
    mine.train(arrays(), 1, lambda e: isinstance(e, fluid.BeginStepEvent) and e.fetch("loss"), handlers=[watch])
    assert watch.seen == [["grad_norm_0", "loss"]] * PER_EPOCH


def test_override_replaces_the_value_in_the_step():
    """Check that the loss is 0 and the weight gets no gradient in a step whose prediction is replaced by the labels."""
    losses, weights = [], []

    def begin(mine, event):
        weights.append(mine.session.scope["fc_0.w_0"].tolist())
        if event.step == 1:
            event.override({"fc_0": event.feed["y"]})

    training(begin, lambda e: losses.append(float(e.metrics["loss"])), optimizer=fluid.optimizer.SGD(0.1))
    assert losses[1] == 0.0 and losses[0] > 0 and losses[2] > 0
    assert weights[0] != weights[1] == weights[2] != weights[3]


def test_override_accepts_a_scalar_and_a_feed():
    losses = []

    def begin(mine, event):
        if event.step == 0:
            event.override({"fc_0": 0.0, "y": np.full((8, 1), 3.0)})

    training(begin, lambda e: losses.append(float(e.metrics["loss"])))
    assert losses[0] == pytest.approx(9.0)


def test_overridden_step_equals_training_by_hand():
    """Check that overriding the feed `x` trains the same parameters as running a step with the new value of `x`."""
    half = 0.5 * np.asarray(arrays()().__next__()[0])

    def begin(mine, event):
        if event.step == 0:
            event.override({"x": half})

    mine = training(begin, optimizer=fluid.optimizer.Adam(0.1))
    other = trainer()
    for index, (x, y) in enumerate(arrays()()):
        other.run({"x": half if index == 0 else x, "y": y}, mode="train")
    assert_equal(state(mine), state(other))


@pytest.mark.parametrize(
    "ask, error, match",
    [
        (lambda e: e.fetch("fc_7*"), errors.UnknownNameError, r"matches 'fc_7\*'. Did you mean 'fc_0"),
        (lambda e: e.fetch("los"), errors.UnknownNameError, "Did you mean 'loss'"),
        (lambda e: e.override({"fc_0.tmp_7": 0.0}), errors.UnknownNameError, "Did you mean 'fc_0.tmp_"),
        (lambda e: e.override([1]), errors.ArgumentTypeError, "dict of arrays"),
        (lambda e: (e.override({"fc_0": 0.0}), e.override({"fc_0": 1.0})), errors.ArgumentError, "overridden twice"),
        (lambda e: e.override({"fc_0": np.zeros((8, 3))}), errors.FeedError, r"\[8, 3\]"),
        (lambda e: e.override({"x": np.zeros((8, 3))}), errors.FeedError, "x"),
    ],
)
def test_wrong_request_raises_and_trains_nothing(ask, error, match):
    mine = trainer()
    before = state(mine)
    with pytest.raises(error, match=match):
        mine.train(arrays(), 1, lambda e: isinstance(e, fluid.BeginStepEvent) and ask(e))
    assert_equal(state(mine), before)


def test_request_after_the_step_began_raises():
    begun = []

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent):
            begun.append(event)
        if isinstance(event, fluid.EndStepEvent):
            begun[-1].fetch("loss")

    with pytest.raises(errors.ArgumentError, match="after the step had begun"):
        trainer().train(arrays(), 1, on_event)
    with pytest.raises(errors.ArgumentError, match="belongs to no step"):
        fluid.BeginStepEvent(0, 0).override({"x": 1.0})


def test_fetched_values_stay_on_the_device():
    seen = []
    training(lambda mine, e: e.fetch("fc_0"), lambda e: seen.append(e.fetched["fc_0"]))
    assert isinstance(seen[0], jax.Array) and seen[0].shape == (8, 1)


@pytest.mark.parametrize("every", [1, 4])
def test_nan_report_names_a_nonfinite_override(every):
    mine = trainer()
    before = []

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent) and event.step == 2:
            before.append(state(mine))
            event.override({"fc_0.tmp_0": np.inf})

    watch = fluid.handlers.TerminateOnNaN(report=True, every=every)
    with pytest.raises(errors.NonFiniteError, match="step 2 of epoch 0: .* event.override had replaced 'fc_0.tmp_0'"):
        mine.train(arrays(), 1, on_event, handlers=[watch], progress=False)
    assert_equal(state(mine), before[0])
