"""The learning rate: warnings about rates that Python computes, and rates that are read and set between steps."""

import warnings

import compile_counts
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fluid
from fluid import errors, layers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(8, 3)).astype("float32")
FEED = {"x": X}


def loss_of():
    x = layers.data("x", shape=[3])
    hidden = layers.fc(x, size=4, act="tanh", param_attr=fluid.ParamAttr(learning_rate=0.5))
    return layers.mean(layers.square(layers.fc(hidden, size=1) - 1.0))


def with_optimizer(optimizer):
    def program():
        loss = loss_of()
        optimizer.minimize(loss)
        return loss

    return program


def trained(optimizer, steps=3, before=lambda session, step: None):
    """Train for `steps` steps, call `before(session, step)` before each step, and return all arrays by name."""
    session = fluid.Session(with_optimizer(optimizer))
    for step in range(steps):
        before(session, step)
        session.run(feed=FEED)
    return {n: np.asarray(v) for n, v in session.state().items() if not n.startswith("@learning_rate")}


def assert_same(found, wanted, rtol=1e-6, atol=1e-7):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)


# Warnings about learning rates that Python computes once, when JAX traces the program.


def test_a_rate_computed_by_python_warns():
    settings = {"rate": 0.1}
    schedule = lambda updates_done: settings["rate"]  # noqa: E731
    with pytest.warns(fluid.errors.FluidWarning, match=r"does not depend on .*trainer.learning_rate = 0.01") as caught:
        fluid.Trainer(loss_of, fluid.optimizer.SGD(schedule))
    assert caught[0].filename == __file__


@pytest.mark.parametrize("wrap", [fluid.optimizer.Lookahead, fluid.optimizer.ExponentialMovingAverage(0.9).track])
def test_the_warning_sees_through_wrappers(wrap):
    with pytest.warns(fluid.errors.FluidWarning, match="does not depend on its argument"):
        fluid.Trainer(loss_of, wrap(fluid.optimizer.SGD(lambda updates_done: 0.1)))


@pytest.mark.parametrize(
    "rate",
    [
        0.1,
        lambda count: 0.1 * 0.9**count,
        lambda count: jnp.where(count < 3, 0.1, 0.01),
        optax.constant_schedule(0.1),
        optax.cosine_decay_schedule(0.1, 10),
        layers.piecewise_decay([], [0.1]),
        layers.warmup_cosine(0.1, 2, 10),
    ],
)
def test_learning_rate_takes_functions_of_the_step(rate):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = trained(fluid.optimizer.SGD(rate))
    number = [float(rate(count)) if callable(rate) else rate for count in range(3)]
    wanted = trained(fluid.optimizer.SGD(1.0), before=lambda s, step: s.set_learning_rates(number[step]))
    assert_same({n: found[n] for n in wanted if "@" not in n}, {n: v for n, v in wanted.items() if "@" not in n})


def test_a_schedule_with_python_conditions_names_jnp_where():
    for schedule in (lambda count: 0.1 if count < 100 else 0.01, lambda count: 0.1 * 0.9 ** int(count)):
        with pytest.raises(errors.ArgumentError, match=r"jnp.where\(updates_done < 1000, 0.1, 0.01\)"):
            fluid.Trainer(loss_of, fluid.optimizer.SGD(schedule))


@pytest.mark.parametrize(
    ("rate", "found"),
    [
        (lambda count: None, "returned None"),
        (lambda count: "0.1", "returned '0.1'"),
        (lambda count: [0.1 * count], r"returned \[.*\], expected one number"),
        (lambda count: jnp.ones(1) * count, r"float32 and shape \[1\]"),
        (lambda count: np.full((2, 1), 0.1), r"float64 and shape \[2, 1\]"),
        (lambda count: count < 3, r"bool and shape \[\]"),
        (lambda count: np.array("fast"), "a rate of <U4"),
    ],
)
def test_a_schedule_that_returns_no_number_is_refused(rate, found):
    with pytest.raises(errors.ArgumentError, match=f"learning_rate=<lambda>: the function .*{found}"):
        fluid.Trainer(loss_of, fluid.optimizer.SGD(rate))


class Computing:
    """A program that computes its learning rate in Python, from the attribute `rate`."""

    def __init__(self, wrap=lambda optimizer: optimizer, make=lambda rate: rate):
        self.rate = 0.1
        self.wrap = wrap
        self.make = make

    def program(self):
        loss = loss_of()
        self.wrap(fluid.optimizer.SGD(self.make(self.rate))).minimize(loss)
        return loss


@pytest.mark.parametrize("mode", ["train", "test"])
@pytest.mark.parametrize(
    "make", [lambda rate: rate, lambda rate: lambda count: rate * 0.9**count], ids=["number", "schedule"]
)
@pytest.mark.parametrize("wrap", [lambda o: o, fluid.optimizer.Lookahead], ids=["plain", "wrapped"])
def test_a_later_trace_with_another_rate_warns(mode, make, wrap):
    computing = Computing(wrap, make)
    session = fluid.Session(computing.program)
    session.run(feed=FEED)
    session.run(feed=FEED, mode="test")
    computing.rate = 0.2
    # This step is already compiled, so the function is not traced and its new rate cannot be detected.
    session.run(feed=FEED)
    with pytest.warns(fluid.errors.FluidWarning, match=r"another learning rate .*trainer.learning_rate = 0.01") as seen:
        session.run(feed={"x": X[:5]}, mode=mode)
    assert seen[0].filename == __file__


def test_the_rate_of_the_first_trace_is_used():
    computing = Computing()
    session = fluid.Session(computing.program)
    computing.rate = 0.2
    with pytest.warns(fluid.errors.FluidWarning, match="0.2, before 0.1, which is the one that counts"):
        assert float(session.run(feed=FEED, fetch=["learning_rate_0"])[0]) == np.float32(0.1)


def test_equal_rates_of_later_traces_do_not_warn():
    makes = [
        lambda rate: layers.exponential_decay(rate, 5, 0.5),
        lambda rate: lambda count: jax.nn.relu(rate - 0.01 * count),
        lambda rate: lambda count: jnp.asarray([rate, 0.1])[jnp.minimum(count, 1)],
    ]
    for make in makes:
        session = fluid.Session(Computing(make=make).program)
        for rows in (8, 5):
            session.run(feed={"x": X[:rows]})


# Tests of learning rates that a user reads or sets between training steps.


def test_setting_the_rate_compiles_nothing():
    trainer = fluid.Trainer(loss_of, fluid.optimizer.SGD(0.1))
    data = fluid.reader.arrays((X,), batch_size=4)
    trainer.train(data)
    assert trainer.learning_rate == np.float32(0.1)
    trainer.learning_rate = 0.3
    with compile_counts.counted() as counted:
        trainer.train(data)
        trainer.learning_rate = 0
        before = trainer.session.state()
        kept = {n: np.array(before[n]) for n in trainer.program.parameters}
        trainer.train(data)
    assert counted == [] and len(trainer.session.compilations) == 1 and trainer.learning_rate == 0
    assert all(np.array_equal(kept[n], trainer.params[n]) for n in kept)
    trainer.learning_rate = None
    assert trainer.learning_rate == np.float32(0.1)


WRAPPERS = {
    "adam": lambda rate: fluid.optimizer.Adam(rate),
    "ftrl": lambda rate: fluid.optimizer.Ftrl(rate, l1=0.01),
    "accumulated": lambda rate: fluid.optimizer.Adam(rate, accumulate_steps=2),
    "lookahead": lambda rate: fluid.optimizer.Lookahead(fluid.optimizer.Adam(rate), k=2),
    "averaged": lambda rate: fluid.optimizer.ExponentialMovingAverage(0.9).track(fluid.optimizer.Adam(rate)),
    "clipped": lambda rate: fluid.optimizer.Momentum(rate, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.1)),
    "decayed": lambda rate: fluid.optimizer.SGD(rate, regularization=fluid.regularizer.L2Decay(0.1)),
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapping_optimizers_follow_the_set_rate(name):
    found = trained(WRAPPERS[name](0.9), 4, lambda session, step: session.set_learning_rates(0.03))
    assert_same(found, trained(WRAPPERS[name](0.03), 4))


def test_setting_a_rate_replaces_the_schedule_until_reset():
    session = fluid.Session(with_optimizer(fluid.optimizer.SGD(lambda count: 0.1 * 0.5**count)))
    rates = []
    for value in (None, 0.3, 0.3, None):
        session.set_learning_rates(value)
        rates.append(session.learning_rates()[0])
        fetched = session.run(feed=FEED, fetch=["learning_rate_0"])[0]
        assert float(fetched) == np.float32(rates[-1])
    np.testing.assert_allclose(rates, [0.1, 0.3, 0.3, 0.0125], rtol=1e-6)


def two_rates():
    loss = loss_of()
    fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["fc_0.w_0"])
    fluid.optimizer.Adam(lambda count: 0.2 * 0.5**count).minimize(loss, parameter_list=["fc_1.w_0"])
    return {"loss": loss}


def test_every_minimize_has_a_separate_rate():
    trainer = fluid.Trainer(two_rates)
    assert trainer.learning_rate == (np.float32(0.1), np.float32(0.2))
    trainer.learning_rate = (0.0, None)
    before = trainer.params
    trainer.train([[(row,) for row in X]])
    after = trainer.params
    changed = {n for n in before if not np.array_equal(before[n], after[n])}
    assert changed == {"fc_1.w_0"} and trainer.learning_rate == (0.0, np.float32(0.1))
    for value in (0.1, [0.1], [0.1, 0.1, 0.1]):
        with pytest.raises(errors.ArgumentError, match=r"2 learning rates; write learning_rate = \[0.01, 0.01\]"):
            trainer.learning_rate = value
    assert trainer.learning_rate == (0.0, np.float32(0.1))


def test_programs_of_a_session_have_separate_rates():
    def other():
        return with_optimizer(fluid.optimizer.SGD(0.5))()

    session = fluid.Session(with_optimizer(fluid.optimizer.SGD(0.1)), other)
    session.set_learning_rates(0.2, other)
    assert session.learning_rates("program") == (np.float32(0.1),) and session.learning_rates(other) == (
        np.float32(0.2),
    )
    with pytest.raises(errors.UnknownNameError, match="no program 'third'"):
        session.set_learning_rates(0.2, "third")


@pytest.mark.parametrize("value", [-0.1, "fast", True, float("nan"), float("inf"), lambda count: 0.1, [], [[0.1]]])
def test_rates_that_make_no_sense_are_refused(value):
    trainer = fluid.Trainer(loss_of, fluid.optimizer.SGD(0.1))
    with pytest.raises(errors.ArgumentError, match="learning_rate = "):
        trainer.learning_rate = value
    assert trainer.learning_rate == np.float32(0.1)


@pytest.mark.parametrize("value", [1, np.float32(0.5), np.float64(0.5), jnp.float32(0.5), np.array(0.5)])
def test_any_number_type_is_accepted(value):
    trainer = fluid.Trainer(loss_of, fluid.optimizer.SGD(0.1))
    trainer.learning_rate = value
    assert trainer.learning_rate == float(value)


def test_a_plain_optax_transformation_names_an_optimizer_class():
    trainer = fluid.Trainer(loss_of, optax.adamw(0.1))
    for touch in (lambda: trainer.learning_rate, lambda: setattr(trainer, "learning_rate", 0.1)):
        with pytest.raises(errors.UnknownNameError, match=r"(?s)class Mine.*optax.adamw\(self.learning_rate\)"):
            touch()
    trainer.learning_rate = None  # None means the rate of the optimizer, so the assignment is valid

    class Mine(fluid.optimizer.Optimizer):
        def rule(self):
            return optax.adamw(self.learning_rate)

    found = trained(Mine(0.9), 3, lambda session, step: session.set_learning_rates(0.1))
    wanted = trained(fluid.optimizer.Optax(optax.adamw(0.1)))
    parameters = {n for n in wanted if "@" not in n}
    assert_same({n: found[n] for n in parameters}, {n: wanted[n] for n in parameters})


def test_half_precision_parameters_and_optimizer_state_keep_dtypes():
    def program():
        x = layers.data("x", shape=[3], dtype="bfloat16")
        loss = layers.mean(layers.square(layers.fc(x, size=2)))
        fluid.optimizer.RMSProp(0.1, momentum=0.9).minimize(loss)
        return loss

    session = fluid.Session(program)
    dtypes = jax.tree.map(lambda v: v.dtype, session.scope.slots)
    for rate in (0.1, 0.2, None):
        session.set_learning_rates(rate)
        session.run(feed=FEED)
    assert jax.tree.map(lambda v: v.dtype, session.scope.slots) == dtypes
    assert len(session.compilations) == 1 and session.scope["fc_0.w_0"].dtype == "bfloat16"


# Checkpoints keep learning rates that the user has set.


def test_a_set_rate_is_saved_and_restored(tmp_path):
    first = fluid.Session(two_rates)
    first.set_learning_rates([0.03, None])
    first.run(feed=FEED)
    first.save(tmp_path / "session")
    again = fluid.Session(two_rates)
    again.load(tmp_path / "session")
    assert again.learning_rates() == first.learning_rates() == (np.float32(0.03), np.float32(0.1))
    for session in (first, again):
        session.run(feed=FEED)
    assert all(np.array_equal(v, again.state()[n]) for n, v in first.state().items())


@pytest.mark.parametrize("rate", [0.01 * 0.1**0.5, 1 / 3, 1e-300, np.nextafter(0.1, 1)])
def test_a_saved_rate_is_not_rounded(rate, tmp_path):
    first = fluid.Session(two_rates)
    first.set_learning_rates([None, rate])
    first.save(tmp_path / "session")
    again = fluid.Session(two_rates)
    again.load(tmp_path / "session")
    assert again.engine.rates.given("two_rates") == [None, float(rate)]


def test_a_saved_rate_of_float32_is_restored(tmp_path):
    session = fluid.Session(two_rates)
    state = session.state() | {"@learning_rate/two_rates/1": np.float32(0.03)}
    fluid.io.save_arrays(tmp_path / "session", state, "session")
    session.load(tmp_path / "session")
    assert session.engine.rates.given("two_rates") == [None, 0.03]


def test_a_file_without_rates_restores_the_declared_rates(tmp_path):
    plain = fluid.Session(with_optimizer(fluid.optimizer.SGD(0.1)))
    plain.save(tmp_path / "session")
    assert not [n for n in fluid.io.load_arrays(tmp_path / "session")[0] if "learning_rate" in n]
    other = fluid.Session(with_optimizer(fluid.optimizer.SGD(0.1)))
    other.set_learning_rates(0.7)
    other.load(tmp_path / "session")
    assert other.learning_rates() == (np.float32(0.1),) and list(other.state()) == list(plain.state())


def test_a_saved_rate_of_another_program_is_refused(tmp_path):
    session = fluid.Session(two_rates)
    session.set_learning_rates([0.1, 0.1])
    session.save(tmp_path / "session")
    with pytest.raises(errors.ParameterError, match="extra: @learning_rate/two_rates/1"):
        one = fluid.Session(fluid.Program(with_optimizer(fluid.optimizer.SGD(0.1)), name="two_rates"))
        one.load(tmp_path / "session")


def halved_after(steps):
    class Halving(fluid.Handler):
        def end_step(self, event):
            if self.done == steps:
                self.trainer.learning_rate = self.trainer.learning_rate / 2

    return Halving()


def make(folder):
    config = fluid.CheckpointConfig(folder, step_interval=1)
    return fluid.Trainer(loss_of, fluid.optimizer.Adam(0.1), checkpoint_config=config)


class Killed(BaseException):
    pass


def test_a_resumed_training_keeps_the_set_rate(tmp_path):
    data = fluid.reader.arrays((X,), batch_size=2)
    whole = make(tmp_path / "whole")
    whole.train(data, num_epochs=2, handlers=[halved_after(2)])

    def kill(event):
        if isinstance(event, fluid.EndStepEvent) and event.step == 2 and event.epoch == 1:
            raise Killed

    with pytest.raises(Killed):
        make(tmp_path / "cut").train(data, num_epochs=2, handlers=[halved_after(2)], event_handler=kill)
    resumed = make(tmp_path / "cut")
    assert resumed.learning_rate == np.float32(0.05)
    resumed.train(data, num_epochs=2, handlers=[halved_after(2)])
    found, wanted = resumed.session.state(), whole.session.state()
    assert found.keys() == wanted.keys() and "@learning_rate/loss_of/0" in found
    assert all(np.array_equal(found[n], wanted[n]) for n in wanted)


def test_the_nan_report_replays_the_set_rates():
    def program():
        x = layers.data("x", shape=[1])
        w = layers.create_parameter([1], name="w", default_initializer=fluid.initializer.Constant(1.0))
        return layers.mean(layers.square(x * w))

    rates = [0.1, 1e38, 0.1]

    class Setting(fluid.Handler):
        def begin_step(self, event):
            self.trainer.learning_rate = rates[event.step]

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.0))
    data = fluid.reader.arrays((np.full((3, 1), 4.0, "float32"),), batch_size=1)
    handlers = [Setting(), fluid.handlers.TerminateOnNaN(report=True, every=3)]
    with pytest.raises(errors.NonFiniteError, match=r"step 1 of epoch 0.*(?s:.*)learning_rate_0 1e\+38"):
        trainer.train(data, handlers=handlers)
    np.testing.assert_allclose(trainer.params["w"], [1 - 0.1 * 2 * 16], rtol=1e-6)


# Tests of learning rates of sparse tables, and of the cost of a learning rate that a user can set.


def looked_up(optimizer):
    def program():
        ids = layers.data("ids", shape=[1], dtype="int64")
        table = layers.embedding(ids, size=[10, 4], is_sparse=True, param_attr="table")
        loss = layers.mean(layers.square(table - 1.0))
        optimizer.minimize(loss)
        return loss

    return program


@pytest.mark.parametrize("kind", [fluid.optimizer.SGD, fluid.optimizer.Adagrad])
def test_rows_of_sparse_tables_follow_the_rate(kind):
    sessions = [fluid.Session(looked_up(kind(rate))) for rate in (0.9, 0.05)]
    sessions[0].set_learning_rates(0.05)
    for session in sessions:
        assert session.engine.rules["program"][0].tables == ("table",)
        for ids in ([[1], [2], [1]], [[2], [9], [0]]):
            session.run(feed={"ids": ids})
    np.testing.assert_allclose(sessions[0].scope["table"], sessions[1].scope["table"], rtol=1e-6)


def test_a_rule_with_delayed_rows_warns():
    session = fluid.Session(looked_up(fluid.optimizer.Ftrl(0.1, l1=0.01)))
    with pytest.warns(fluid.errors.FluidWarning, match="from its next look-up on"):
        session.set_learning_rates(0.05)
    session.set_learning_rates(None)


def test_a_settable_rate_adds_no_kernels():
    """Check that a training step with a settable learning rate compiles to as many kernels as with a constant rate."""

    def kernels(settable):
        session = fluid.Session(with_optimizer(fluid.optimizer.Adam(0.1)))
        program = session.programs["program"]
        step = fluid.runtime.step.Step(
            program, session.engine.rules["program"], fluid.runtime.Request("train", None, ("x",))
        )
        state, constants = session.engine.arguments(step)
        if settable:
            lowered = jax.jit(step.train).lower(state, constants, {"x": X}, {})
        else:
            fixed = constants._replace(rates=[0.1])
            lowered = jax.jit(lambda state, *rest: step.train(state, fixed, *rest)).lower(state, {"x": X}, {})
        entry = lowered.compile({"xla_backend_optimization_level": 3}).as_text().partition("ENTRY")[2]
        return [entry.count(f" {kind}(") for kind in ("fusion", "dot", "custom-call", "while", "conditional")]

    assert kernels(True) == kernels(False)


class Shrinking(fluid.Handler):
    """Multiply the rate by a factor at the end of each epoch, as ReduceLROnPlateau does."""

    def __init__(self, factor):
        self.factor = factor

    def end_epoch(self, event):
        self.trainer.learning_rate = self.trainer.learning_rate * self.factor


@pytest.mark.parametrize("factor", [0.1**0.5, 1 / 3, 0.7])
def test_rates_changed_by_a_factor_resume_exactly(factor, tmp_path):
    data = fluid.reader.arrays((X,), batch_size=2)
    whole = make(tmp_path / "whole")
    whole.train(data, num_epochs=5, handlers=[Shrinking(factor)])
    for epochs in (1, 3, 5):
        resumed = make(tmp_path / "cut")
        resumed.train(data, num_epochs=epochs, handlers=[Shrinking(factor)])
    assert resumed.learning_rate == whole.learning_rate
    found, wanted = resumed.session.state(), whole.session.state()
    assert all(np.array_equal(found[n], wanted[n]) for n in wanted)
