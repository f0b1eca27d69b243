"""Several training steps in one device call: all numbers, events and their order stay as with single steps."""

import jax
import numpy as np
import pytest
from donated_buffers import lent
from resumed_programs import Killed, X, Y, assert_equal, state, trainer

import fluid
from fluid import errors
from fluid.core import TRAIN
from fluid.reader.on_device import Picks, StackedFeeds
from fluid.runtime import CompiledStep, Request
from fluid.runtime.compiled_step import bind
from fluid.trainer.evaluation.means import Means

pytestmark = pytest.mark.usefixtures("optimized")
LABELS = (np.arange(len(X)) % 5).astype("int64")


def rich():
    """Return the outputs of a program whose steps depend on moving statistics and random numbers."""
    x, label = fluid.layers.data("x", shape=[4]), fluid.layers.data("label", shape=[1], dtype="int64")
    hidden = fluid.layers.dropout(fluid.layers.batch_norm(fluid.layers.fc(x, size=6, act="tanh")), 0.3)
    guess = fluid.layers.fc(hidden, size=5, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(guess, label))
    return {"loss": loss, "accuracy": fluid.layers.accuracy(guess, label), "guess": guess}


def optimizer():
    return fluid.optimizer.Adam(fluid.layers.exponential_decay(0.05, 2, 0.9), accumulate_steps=2)


def labelled(on_device=False):
    data = {"x": X, "label": LABELS}
    return fluid.reader.arrays(data, 8, shuffle=True, seed=4, drop_last=True, on_device=on_device)


def columns(on_device=False):
    """Return a reader of 11 minibatches: ten of 4 rows, and a last one of 3 rows."""
    return fluid.reader.arrays((X[:43], Y[:43]), batch_size=4, on_device=on_device)


class Seen(fluid.Handler):
    """A handler that records all events and their values."""

    def __init__(self):
        self.lines = []

    def fetches(self):
        return ["grad_norm_0"]

    def begin_step(self, event):
        self.lines.append(("begin", event.epoch, event.step, np.asarray(event.feed["x"]).tobytes()))

    def end_step(self, event):
        values = [np.asarray(value).tobytes() for value in (*event.metrics, *event.fetched)]
        self.lines.append(("end", event.epoch, event.step, values, event.examples, self.done))

    def end_epoch(self, event):
        self.lines.append(("epoch", event.epoch, event.steps, list(map(float, list(event.metrics)))))


@pytest.fixture
def calls(monkeypatch):
    """Return a list to which each device call with training steps appends its number of steps."""
    found = []
    run = CompiledStep.__call__

    def counting(self, feed, *given, count=None):
        found.extend([count or 1] if self._form.step.training else [])
        return run(self, feed, *given, count=count)

    monkeypatch.setattr(CompiledStep, "__call__", counting)
    return found


def trained(steps_per_dispatch, on_device=False, **options):
    """Train the net `rich` for three epochs; return its arrays, the recorded events, the history and the Trainer."""
    seen = Seen()
    made = trainer(None, rich, optimizer(), steps_per_dispatch=steps_per_dispatch, **options)
    history = made.train(labelled(on_device), 3, handlers=[seen])
    return state(made), seen.lines, dict(history), made


@pytest.fixture(scope="module")
def one_by_one():
    return trained(1)


@pytest.mark.parametrize("together, on_device", [(5, False), (4, True)])
def test_batched_steps_keep_all_bits_and_events(together, on_device, one_by_one, calls):
    found, lines, history, made = trained(together, on_device)
    assert_equal(found, one_by_one[0])
    assert lines == one_by_one[1] and history == one_by_one[2]
    assert calls == ([5] if together == 5 else [4, 1]) * 3


def test_call_ends_at_every_observed_step(calls, tmp_path):
    """Check that a compiled call of several steps ends before each handler, test, checkpoint and end of an epoch."""
    looked = []

    def spy(name):
        def look(event):
            looked.append((name, look.trainer.session.scope.step.item()))

        return look

    def run(together, folder):
        looked.clear()
        third, once = spy("every 3"), spy("once")
        handlers = [
            fluid.handlers.every(3)(third),
            fluid.handlers.once(5)(once),
            fluid.handlers.TestEvery(columns(), 7),
        ]
        config = {"step_interval": 4, "epoch_interval": None, "max_num_checkpoints": None}
        made = trainer(folder, config=config, steps_per_dispatch=together)
        third.trainer = once.trainer = made
        made.train(columns(), 2, handlers=handlers)
        steps = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
        return list(looked), steps, dict(made.history), state(made)

    expected = run(1, tmp_path / "one")
    calls.clear()
    found = run(8, tmp_path / "eight")
    assert found[:3] == expected[:3]
    assert_equal(found[3], expected[3])
    # One call of the device runs several steps if their minibatches have equal sizes. The last of the 11 minibatches of
    # an epoch is shorter, so calls also end after 10 and 21 steps.
    ends = {int(end) for end in np.cumsum(calls)}
    assert {3, 5, 6, 7, 9, 10, 11, 12, 14, 15, 18, 21, 22} | set(expected[1]) == ends
    assert max(calls) == 3


def test_requested_step_begins_a_new_call(calls):
    class Asks(fluid.Handler):
        fetched = ()

        def begin_step(self, event):
            if self.done in (0, 5):
                event.fetch("fc_0.w_0")

        def end_step(self, event):
            self.fetched = (*self.fetched, "fc_0.w_0" in event.fetched.keys())  # noqa: SIM118

    asks = Asks()
    trainer(steps_per_dispatch=4).train(columns(), handlers=[asks])
    assert asks.fetched == (True, *[False] * 4, True, *[False] * 5) and calls == [1, 4, 1, 4, 1]

    def late(event):
        if isinstance(event, fluid.BeginStepEvent) and event.step == 2:
            event.fetch("fc_0.w_0")

    with pytest.raises(errors.ArgumentError, match=r"expected the first step of a call.*steps_per_dispatch=1"):
        trainer(steps_per_dispatch=4).train(columns(), event_handler=late)


def test_pause_ends_after_the_call_without_lost_steps(calls):
    whole = trainer()
    whole.train(columns(), 2)
    calls.clear()
    made = trainer(steps_per_dispatch=4)
    seen = []

    def stop(event):
        if isinstance(event, fluid.EndStepEvent):
            seen.append((event.epoch, event.step))
            if len(seen) == 2:
                made.pause()

    reader = columns()
    made.train(reader, 2, event_handler=stop)
    # Events are sent after all steps of a call. So four steps have run when the second EndStepEvent calls `pause`.
    assert seen == [(0, 0), (0, 1), (0, 2), (0, 3)] and calls == [4]
    made.train(reader, 2, event_handler=stop)
    assert seen == [(epoch, step) for epoch in range(2) for step in range(11)]
    assert_equal(state(made), state(whole))


def test_kill_within_a_call_resumes_exactly(tmp_path):
    dies = 16  # step 16 is the first of three steps in one call
    whole = trainer()
    expected = Seen()
    whole.train(columns(), 3, handlers=[expected])

    class Dies(Seen):
        def end_step(self, event):
            super().end_step(event)
            if self.done == dies:
                raise Killed

    def make():
        config = {"step_interval": 3, "epoch_interval": None}
        return trainer(tmp_path, config=config, steps_per_dispatch=4)

    killed = Dies()
    doomed = make()
    doomed._checkpoints.__class__.__exit__, kept = lambda *_: None, doomed._checkpoints.__class__.__exit__
    try:
        with pytest.raises(Killed):
            doomed.train(columns(on_device=True), 3, handlers=[killed])
        doomed._checkpoints.wait()
    finally:
        doomed._checkpoints.__class__.__exit__ = kept
        doomed._checkpoints.folder.release()
    rest = Seen()
    again = make()
    first = again.session.scope.step.item()
    again.train(columns(), 3, handlers=[rest])  # columns on the host have the same order as columns on the device
    assert_equal(state(again), state(whole))
    steps = [line for line in expected.lines if line[0] != "epoch"]
    assert first < dies and first % 3 == 0
    assert [line for line in rest.lines if line[0] != "epoch"] == steps[2 * first :]
    assert [line for line in killed.lines if line[0] != "epoch"] == steps[: 2 * dies]
    assert dict(again.history) == dict(whole.history)


def wide():
    """Return the loss of layers that XLA might fuse differently in a loop: attention, GRU, pooling, a sparse table."""
    x, ids = fluid.layers.data("x", shape=[6, 8]), fluid.layers.data("ids", shape=[6, 1], dtype="int64")
    hidden = x + fluid.layers.embedding(ids, size=[30, 8], is_sparse=True)
    hidden = fluid.layers.layer_norm(hidden, begin_norm_axis=2)
    hidden = hidden + fluid.nets.scaled_dot_product_attention(hidden, hidden, hidden, num_heads=2)
    outputs, _ = fluid.layers.rnn(fluid.layers.GRUCell(hidden_size=24), hidden)
    pooled = fluid.layers.pool2d(fluid.layers.unsqueeze(outputs, axes=[1]), pool_size=2, pool_stride=2)
    dense = fluid.layers.batch_norm(fluid.layers.fc(pooled, size=128), act="relu")
    return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(fluid.layers.dropout(dense, 0.2), size=1) - 1))


@pytest.mark.full
def test_recurrent_sparse_program_keeps_bits_in_batched_steps():
    rng = np.random.default_rng(1)
    data = {"x": rng.normal(size=(96, 6, 8)).astype("float32"), "ids": rng.integers(0, 30, (96, 6, 1))}

    def left_by(together, on_device):
        made = fluid.Trainer(wide, fluid.optimizer.Adagrad(0.05), seed=2, steps_per_dispatch=together)
        made.train(fluid.reader.arrays(data, 16, on_device=on_device), 2)
        return state(made)

    expected = left_by(1, False)
    assert_equal(left_by(6, True), expected)


def test_batched_steps_share_a_call_and_a_compilation(calls):
    made = trainer(steps_per_dispatch=8)
    made.train(columns(), 4)
    assert calls == [8, 2, 1] * 4
    reasons = [compilation.reason for compilation in made.session.compilations]
    assert reasons[0] == "several steps in one call: x [4, 4], y [4, 1]"
    assert reasons[1:] == ["new feed shapes: x [3, 4], y [3, 1]; before: x [4, 4], y [4, 1]"]


@pytest.fixture(scope="module")
def made():
    return trainer(None, rich, optimizer(), steps_per_dispatch=4)


def fed(made, on_device):
    """Return the feeds of three training steps in one call: stacked minibatches or, if `on_device`, numbers of rows."""
    feeds = [{"x": X[i : i + 8], "label": LABELS[i : i + 8, None].astype("int32")} for i in range(0, 24, 8)]
    if not on_device:
        return made.session.engine.place(StackedFeeds.of(feeds, 4))
    whole = {"x": X, "label": LABELS[:, None].astype("int32")}
    return made.session.engine.place(Picks(whole, np.arange(32, dtype="int32").reshape(4, 8), np.int32(3)))


@pytest.mark.parametrize("how", ["one", "stacked", "picked"])
def test_step_donates_all_parameters_and_transfers_nothing(how, made):
    step = bind(made.session.engine, made.program, Request(TRAIN, None, ("x", "label")))
    feed = {"x": X[:8], "label": LABELS[:8, None].astype("int32")}
    given = made.session.engine.place(feed) if how == "one" else fed(made, how == "picked")
    carried = len(jax.tree.leaves(made.session.engine.arguments(step._form.step)[0]))
    assert lent(step.lowered(given).compile()) == set(range(carried))
    with jax.transfer_guard("disallow"):
        for _ in range(2):
            results = step(given, count=None if how == "one" else 3)
    assert len(results) == (1 if how == "one" else 3)


def test_later_epochs_transfer_nothing_implicitly(made):
    """Check that later epochs of on-device data copy only row numbers to the device, by explicit transfers."""
    reader = labelled(on_device=True)
    made.train(reader)
    done = made.session.scope.step.item()
    with jax.transfer_guard("disallow"):
        made.train(reader)
    assert made.session.scope.step.item() == done + 5


def test_measured_handler_acts_right_after_its_step(calls):
    class Acts(fluid.Handler):
        def measured(self, event):
            self.trainer.learning_rate = 0.1 / (1 + float(event.metrics["grad_norm_0"]))

    def run(together):
        made = trainer(steps_per_dispatch=together)
        made.train(columns(), handlers=[Acts(), fluid.handlers.GradientMonitor(every=3)])
        return state(made)

    assert_equal(run(8), run(1))
    assert calls[:5] == [3, 3, 3, 1, 1]


def test_nan_report_finds_the_step_within_a_call():
    def logs():
        return fluid.layers.mean(fluid.layers.fc(fluid.layers.log(fluid.layers.data("x", shape=[2])), size=1))

    x = np.ones((12, 2), "float32")
    x[7, 1] = 0  # row 7 is in the fourth of six minibatches

    def told(together, on_device):
        made = fluid.Trainer(logs, fluid.optimizer.SGD(0.1), seed=1, steps_per_dispatch=together)
        with pytest.raises(errors.NonFiniteError) as raised:
            nan = fluid.handlers.TerminateOnNaN(report=True, every=4)
            made.train(fluid.reader.arrays((x,), 2, on_device=on_device), handlers=[nan])
        return str(raised.value), state(made)

    expected = told(1, False)
    found = told(4, True)
    assert "step 3 of epoch 0" in found[0] and found[0] == expected[0]
    assert_equal(found[1], expected[1])


def test_batched_custom_steps_equal_single_steps():
    def halved(step):
        here = step.losses_and_gradients()
        parameters, slots = step.update({name: 0.5 * value for name, value in here.gradients.items()})
        return parameters, slots, here

    def run(together):
        made = trainer(steps_per_dispatch=together, step=halved)
        made.train(columns())
        return state(made)

    assert_equal(run(4), run(1))


def test_call_ends_at_the_turn_of_another_program(calls):
    def other():
        x = fluid.layers.data("x", shape=[4])
        return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(x, size=2, param_attr="other.w", bias_attr=False)))

    def ours():
        x = fluid.layers.data("x", shape=[4])
        return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(x, size=1, param_attr="ours.w", bias_attr=False)))

    def run(together):
        sgd = fluid.optimizer.SGD(0.1)
        made = fluid.Trainer([(ours, sgd), (other, sgd)], schedule="3:1", seed=1, steps_per_dispatch=together)
        made.train(lambda: [{"x": X[i : i + 4]} for i in range(0, 32, 4)])
        return state(made)

    expected = run(1)
    calls.clear()
    assert_equal(run(8), expected)
    assert calls == [3, 1, 3, 1]


def convolves():
    image = fluid.layers.data("image", shape=[1, 4, 4])
    return fluid.layers.mean(fluid.layers.conv2d(image, num_filters=1, filter_size=3))


def test_wrong_steps_per_dispatch_raises_argument_error():
    for wrong in (0, -1, 1.5, True, "auto"):
        with pytest.raises(errors.ArgumentError, match=r"expected a number of steps from 1 on"):
            trainer(steps_per_dispatch=wrong)
    with pytest.raises(errors.ArgumentError, match=r"steps_per_dispatch=4: the program convolves has convolutions"):
        fluid.Trainer(convolves, fluid.optimizer.SGD(0.1), steps_per_dispatch=4)
    with pytest.raises(errors.ArgumentError, match="the steps of several devices run one by one"):
        trainer(steps_per_dispatch=2, parallel=fluid.Mesh(data=1))


class Overrides(fluid.Handler):
    """A handler that records the losses, and sets the feed `x` of some steps, counted over all epochs, to zero."""

    def __init__(self, steps):
        self._steps = steps
        self.losses = []

    def begin_step(self, event):
        if self.done in self._steps:
            event.override({"x": np.zeros(event.feed["x"].shape, "float32")})

    def end_step(self, event):
        self.losses.append(float(event.metrics["loss"]))


@pytest.mark.parametrize("on_device", [False, True])
def test_minibatches_read_for_a_shortened_call_are_fed_later(on_device):
    def run(together):
        seen = Overrides((4, 5))
        made = trainer(steps_per_dispatch=together)
        made.train(columns(on_device), 2, handlers=[seen])
        return seen.losses, state(made)

    losses, left = run(1)
    found = run(4)
    assert found[0] == losses
    assert_equal(found[1], left)


class Work:
    """A fake scalar on the device; `done` is True if the device has computed the scalar."""

    def __init__(self, value):
        self._value = value
        self.done = False

    def __array__(self, dtype=None, copy=None):
        assert self.done
        return np.asarray(self._value)

    def is_ready(self):
        return self.done


def test_means_read_a_bounded_number_of_computed_values():
    losses = np.random.default_rng(0).normal(size=1000).astype("float32")
    means, work = Means(fluid.Program(lambda: fluid.layers.mean(fluid.layers.data("x", shape=[2])))), []
    for number, loss in enumerate(losses):
        work.append(Work(loss))
        means.add(fluid.Results([work[-1]], ["loss"]), examples=1)
        if number % 50 == 49:  # one device call computes fifty steps
            for each in work:
                each.done = True
        assert len(means._unread) <= 50 + 40
    assert means.read()["loss"] == pytest.approx(losses.astype("float64").mean(), rel=1e-12)
