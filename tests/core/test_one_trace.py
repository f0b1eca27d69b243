"""One trace decides: later traces of a program give the program that was made, whatever Python holds by then."""

import functools
import os
import random
import time
import warnings

import jax
import numpy as np
import pytest

import fluid
from fluid import errors, layers
from fluid.serving.batching import Runner
from fluid.serving.settings import Settings

FACTOR = 2.0
SETTINGS = {"factor": 2.0, "note": "first"}


class Options:
    """Settings as an object of a user."""

    factor = 2.0


OPTIONS = Options()
WEIGHTS = np.array([1.0, 2.0], "float32")
X = np.arange(8, dtype="float32").reshape(4, 2)
Y = np.ones((4, 1), "float32")


def _scaled(x):
    return FACTOR * x


def _net():
    return _scaled(layers.fc(layers.data("x", shape=[2]), size=1))


def _train():
    return layers.mean(layers.square_error_cost(_net(), layers.data("y", shape=[1])))


def _reader(batch_size):
    return fluid.reader.arrays({"x": X, "y": Y}, batch_size=batch_size)


def _inputs():
    return fluid.reader.arrays({"x": X}, batch_size=2)


def _value(function, rows=2):
    """Return the first output of a program function, run by a Session on some rows."""
    return np.asarray(fluid.Session(function).run(feed={"x": X[:rows]})[0])


class _Scaler:
    def scaled(self, inner):
        return inner()


def _decorated(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


# Each maker returns a program function that reads `factor`, a variable of an enclosing function, in another way.
READERS = {
    "itself": lambda read: lambda: read() * layers.data("x", shape=[2]),
    "partial": lambda read: functools.partial(lambda given: given() * layers.data("x", shape=[2]), read),
    "method": lambda read: functools.partial(_Scaler().scaled, lambda: read() * layers.data("x", shape=[2])),
    "decorated": lambda read: _decorated(lambda: _decorated(read)() * layers.data("x", shape=[2])),
    "shared": lambda read: _calling(fluid.shared(lambda x: read() * x, name="net")),
}


def _calling(net):
    return lambda: net(layers.data("x", shape=[2]))


@pytest.mark.parametrize("way", READERS)
def test_programs_of_a_loop_keep_their_own_number(way):
    sessions = {}
    for factor in (1.0, 3.0, 5.0):
        sessions[factor] = fluid.Session(READERS[way](lambda: factor))  # noqa: B023
    for number, session in sessions.items():
        for rows in (2, 3):
            np.testing.assert_array_equal(session.run(feed={"x": X[:rows]})[0], number * X[:rows])


def test_trainers_of_a_loop_keep_their_own_rate():
    trainers = {}
    for factor in (1.0, 4.0):

        def program():
            half = fluid.initializer.Constant(0.5)
            guess = factor * layers.fc(layers.data("x", shape=[2]), size=1, param_attr=half)  # noqa: B023
            return layers.mean(layers.square_error_cost(guess, layers.data("y", shape=[1])))

        trainers[factor] = fluid.Trainer(program, fluid.optimizer.SGD(0.0))
    for number, trainer in trainers.items():
        wanted = np.mean((number * X.sum(1) * 0.5 - 1) ** 2)
        np.testing.assert_allclose(trainer.train(_reader(4))["loss"][-1], wanted, rtol=1e-6)
        np.testing.assert_allclose(trainer.test(_reader(2))[0], wanted, rtol=1e-6)


@pytest.mark.parametrize("varied", [{}, {"rate": [1.0, 2.0]}])
def test_members_of_a_population_keep_the_number(varied):
    factor = 2.0

    def program(rate=1.0):
        return layers.mean(rate * factor * layers.data("x", shape=[2]) * layers.create_parameter([1], "float32"))

    population = fluid.Population(program, fluid.optimizer.SGD(0.0), size=2, vary=varied)
    before = np.asarray(population.test(fluid.reader.arrays({"x": X}, batch_size=4))[0])
    factor = 7.0
    np.testing.assert_allclose(np.asarray(population.test(_inputs())[0]), before, rtol=1e-6)


def test_lists_and_own_counters_stay_shared():
    calls, seen = 0, []

    def program():
        nonlocal calls
        calls += 1
        seen.append(calls)
        return layers.data("x", shape=[2])

    session = fluid.Session(program)
    made = calls
    assert seen == list(range(1, made + 1))
    session.run(feed={"x": X})
    assert calls > made and seen[-1] == calls


def test_a_function_may_close_over_itself():
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    def program():
        return power(layers.data("x", shape=[2]), 3)

    np.testing.assert_array_equal(_value(program), X[:2] ** 3)


def test_a_session_finds_its_program_by_the_function():
    factor = 3.0

    def program():
        return factor * layers.data("x", shape=[2])

    session = fluid.Session(program)
    np.testing.assert_array_equal(session.run(program, feed={"x": X})[0], 3 * X)


def _session(tmp_path):
    session = fluid.Session(_train)
    return lambda: session.run(feed={"x": X[:3], "y": Y[:3]})


def _trained(tmp_path):
    trainer = fluid.Trainer(_train, fluid.optimizer.SGD(0.1))
    trainer.train(_reader(4))
    return trainer


def _later_training(tmp_path):
    trainer = _trained(tmp_path)
    return lambda: trainer.train(_reader(2))


def _test(tmp_path):
    trainer = _trained(tmp_path)
    trainer.test(_reader(4))
    return lambda: trainer.test(_reader(2))


def _fetching_test(tmp_path):
    trainer = _trained(tmp_path)
    return lambda: trainer.test(_reader(2), fetch=["fc_0"])


def _exported(tmp_path):
    trainer = _trained(tmp_path)
    return lambda: trainer.save_inference_model(tmp_path / "net.fluid", fetch=["fc_0"])


def _exported_in_bfloat16(tmp_path):
    trainer = _trained(tmp_path)
    return lambda: trainer.save_inference_model(tmp_path / "net.fluid", precision="bfloat16")


def _infer(tmp_path):
    inferencer = fluid.Inferencer(_net, params=_trained(tmp_path).params)
    inferencer.infer({"x": X})
    return lambda: inferencer.infer({"x": X[:1]})


def _first_infer(tmp_path):
    inferencer = fluid.Inferencer(_net, params=_trained(tmp_path).params)
    return lambda: inferencer.infer({"x": X})


def _served(tmp_path):
    inferencer = fluid.Inferencer(_net, params=_trained(tmp_path).params)
    return Runner(inferencer.session, inferencer.program, Settings(max_batch=2), "net").warm_up


def _several(tmp_path):
    other = fluid.TrainingProgram(lambda: _train() + 1.0, fluid.optimizer.SGD(0.1), name="other")
    trainer = fluid.Trainer([fluid.TrainingProgram(_train, fluid.optimizer.SGD(0.1)), other])
    return lambda: trainer.train(_reader(2))


def _population(tmp_path):
    population = fluid.Population(_train, fluid.optimizer.SGD(0.1), size=2)
    return lambda: population.train(_reader(2))


def _varied_population(tmp_path):
    program = lambda rate: rate * _train()  # noqa: E731
    population = fluid.Population(program, fluid.optimizer.SGD(0.1), size=2, vary={"rate": [1.0, 2.0]})
    return lambda: population.train(_reader(2))


def _loop(tmp_path):
    def train():
        loss = _train()
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    session = fluid.Session(train)

    def steps():
        with fluid.Loop(session, [{"x": X, "y": Y}]) as loop:
            for feed in loop:
                loop.step(feed)

    return steps


LATER = [
    _session,
    _later_training,
    _test,
    _fetching_test,
    _exported,
    _exported_in_bfloat16,
    _infer,
    _first_infer,
    _served,
    _several,
    _population,
    _varied_population,
    _loop,
]


@pytest.mark.parametrize("prepared", LATER, ids=lambda f: f.__name__.strip("_"))
def test_a_changed_global_is_an_error(prepared, tmp_path, monkeypatch):
    later = prepared(tmp_path)
    monkeypatch.setitem(globals(), "FACTOR", -1.5)
    with pytest.raises(errors.ProgramError, match=r"test_one_trace.py:\d+ in _scaled.*`FACTOR` was 2.0 .* is -1.5 now"):
        later()


@pytest.mark.parametrize("prepared", LATER, ids=lambda f: f.__name__.strip("_"))
def test_nothing_is_said_while_nothing_changes(prepared, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prepared(tmp_path)()


def _changed(change, function, match):
    session = fluid.Session(function)
    session.run(feed={"x": X})
    change()
    with pytest.raises(errors.ProgramError, match=match):
        session.run(feed={"x": X[:2]})


def test_a_redefined_function_is_an_error(monkeypatch):
    change = lambda: monkeypatch.setitem(globals(), "_scaled", lambda x: 1.0 - x)  # noqa: E731
    _changed(change, lambda: _scaled(layers.data("x", shape=[2])), "`_scaled` was the function of .* now")


def test_equal_code_on_another_line_is_no_error(monkeypatch):
    session = fluid.Session(lambda: _scaled(layers.data("x", shape=[2])))
    session.run(feed={"x": X})

    def again(x):
        return FACTOR * x

    monkeypatch.setitem(globals(), "_scaled", again)
    np.testing.assert_array_equal(session.run(feed={"x": X[:2]})[0], 2 * X[:2])


def test_an_element_of_a_dict_is_compared(monkeypatch):
    change = lambda: monkeypatch.setitem(SETTINGS, "factor", 0.5)  # noqa: E731
    _changed(change, lambda: layers.data("x", shape=[2]) * SETTINGS["factor"], r"`SETTINGS\['factor'\]` was 2.0")


def test_attributes_of_objects_and_classes_are_compared(monkeypatch):
    for change in (
        lambda: monkeypatch.setattr(OPTIONS, "factor", 0.5, raising=False),
        lambda: monkeypatch.setattr(Options, "factor", 0.5),
    ):
        with monkeypatch.context():
            _changed(change, lambda: layers.data("x", shape=[2]) * OPTIONS.factor, r"`OPTIONS.factor` was .*0.5 now")
        monkeypatch.undo()


def test_a_method_reads_its_object_as_it_was():
    class Net:
        def __init__(self):
            self.factor = 2.0

        def program(self):
            return self.factor * layers.data("x", shape=[2])

    net = Net()
    _changed(lambda: setattr(net, "factor", 3.0), net.program, "`self.factor` was 2.0 .* 3.0 now.*def make.factor")


def test_numbers_of_an_array_are_compared():
    change = lambda: WEIGHTS.__setitem__(0, -1.0)  # noqa: E731
    try:
        _changed(change, lambda: layers.data("x", shape=[2]) * WEIGHTS, "`WEIGHTS` was float32.2. ")
    finally:
        WEIGHTS[0] = 1.0


def test_a_number_in_a_jitted_function_is_compared(monkeypatch):
    jitted = jax.jit(lambda x: FACTOR * x)
    change = lambda: monkeypatch.setitem(globals(), "FACTOR", 3.0)  # noqa: E731
    _changed(change, lambda: jitted(layers.data("x", shape=[2])), "`FACTOR` was 2.0 .* 3.0 now")


def test_numbers_of_a_large_array_are_compared():
    table = np.ones([2, 400_000], "float32")
    _changed(lambda: table.fill(0.0), lambda: layers.data("x", shape=[2]) @ table[:, :2], "`table` was float32")


def test_a_variable_of_the_environment_is_compared(monkeypatch):
    monkeypatch.setenv("FACTOR", "2")
    change = lambda: monkeypatch.setenv("FACTOR", "3")  # noqa: E731
    program = lambda: float(os.environ["FACTOR"]) * layers.data("x", shape=[2])  # noqa: E731
    _changed(change, program, r"`os.environ\['FACTOR'\]` was '2' .* '3' now")


def test_two_functions_of_one_factory_are_compared(monkeypatch):
    def make(settings):
        return lambda x: x * settings["factor"]

    first, second = {"factor": 1.0}, {"factor": 2.0}
    monkeypatch.setitem(SETTINGS, "functions", [make(first), make(second)])

    def program():
        x = layers.data("x", shape=[2])
        return sum(function(x) for function in SETTINGS["functions"])

    _changed(lambda: second.update(factor=3.0), program, r"`settings\['factor'\]` was 2.0 .* 3.0 now")


def test_a_value_of_test_mode_alone_is_compared(monkeypatch):
    def program():
        x = layers.data("x", shape=[2])
        return x if layers.is_training() else x * FACTOR

    _changed(lambda: monkeypatch.setitem(globals(), "FACTOR", 3.0), program, "`FACTOR` was 2.0")


def test_a_value_that_computes_nothing_may_change(monkeypatch):
    def program():
        assert isinstance(SETTINGS["note"], str)
        return 2.0 * layers.data("x", shape=[2])

    session = fluid.Session(program)
    for rows, note in enumerate(("second", "third"), 1):
        monkeypatch.setitem(SETTINGS, "note", note)
        np.testing.assert_array_equal(session.run(feed={"x": X[:rows]})[0], 2 * X[:rows])


def test_programs_may_branch_on_sizes(monkeypatch):
    def program():
        x = layers.data("x", shape=[2])
        factor = 3.0 if x.shape[0] > 3 else FACTOR
        return layers.reshape(factor * x, [x.shape[0] * 2])

    session = fluid.Session(program)
    for rows in (1, 4, 2):
        wanted = (3.0 if rows > 3 else 2.0) * X[:rows].ravel()
        np.testing.assert_array_equal(session.run(feed={"x": X[:rows]})[0], wanted)


CALLS = 0


def _counter():
    global CALLS
    CALLS += 1
    return CALLS


NUMBERS = {
    "random": random.random,
    "numpy": lambda: float(np.random.normal()),
    "generator": lambda: np.random.default_rng().normal(),
    "clock": lambda: time.perf_counter() % 1.0,
    "counter": _counter,
}


@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_that_change_in_each_trace_are_said(kind):
    number = NUMBERS[kind]

    def noisy():
        return layers.mean(layers.data("x", shape=[2]) * number())

    with pytest.warns(errors.FluidWarning, match=r"test_one_trace.py:\d+ in .*noisy: a number .* each time") as caught:
        fluid.Program(noisy)
    assert len(caught) == 1


def test_a_counter_that_computes_nothing_is_not_said():
    def steady():
        _counter()
        random.random()
        return layers.mean(layers.data("x", shape=[2]))

    fluid.Program(steady)  # a warning would fail this test


def test_one_call_of_train_traces_the_program_once_less():
    traced = []

    def program():
        traced.append(fluid.core.current_frame("test").precision)
        return layers.mean(layers.fc(layers.data("x", shape=[2]), size=1))

    trainer = fluid.train(program, _inputs(), precision="bfloat16")
    assert set(traced) == {"bfloat16"}
    assert trainer.program.minimizes[0].optimizer == fluid.optimizer.Adam()


def test_train_keeps_the_optimizer_of_the_program():
    def program():
        loss = layers.mean(layers.fc(layers.data("x", shape=[2]), size=1))
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    assert [m.optimizer for m in fluid.train(program, _inputs()).program.minimizes] == [fluid.optimizer.SGD(0.1)]


def test_a_second_predict_traces_nothing():
    traced = []

    def program():
        x = layers.data("x", shape=[2])
        traced.append(x.shape)
        return 2.0 * x

    inferencer = fluid.Inferencer(program, params={})
    first = [r[0] for r in inferencer.predict(_inputs())]
    known = len(traced)
    second = [r[0] for r in inferencer.predict(_inputs())]
    assert len(traced) == known
    np.testing.assert_array_equal(np.concatenate(first), 2 * X)
    np.testing.assert_array_equal(np.concatenate(second), 2 * X)


def test_a_kept_value_names_program_and_ways_out():
    kept = []

    def program():
        kept.append(layers.fc(layers.data("x", shape=[2]), size=1))
        return layers.mean(kept[-1])

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    trainer.train(_inputs())
    trainer.test(_inputs())
    for value in (kept[0], kept[-1]):  # of the first trace, and of the step in test mode
        with pytest.raises(Exception, match=r"was program at .*test_one_trace.py:\d+, .*return.*fetch.*create_state"):
            value + 1.0
        with pytest.raises(Exception, match=r"function program at .*test_one_trace.py:\d+, .*return.*fetch"):
            np.asarray(value)
