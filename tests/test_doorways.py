"""Calls that users of other libraries try first: they work, or the error names the right call.

A call works if it can have only one meaning.
"""

import copy
import inspect
import pickle
import re

import numpy as np
import pandas
import pytest

import fluid
from fluid import errors, layers
from fluid._util.known_names import KnownAttributes, hints

X = np.arange(24, dtype="float32").reshape(8, 3) / 24
Y = X.sum(1, keepdims=True)


def inference_program():
    return layers.fc(layers.data("x", shape=[3]), size=1, name="guess")


def train_program():
    guess = inference_program()
    return layers.mean(layers.square_error_cost(guess, layers.data("y", shape=[1])))


@pytest.fixture
def trainer():
    return fluid.Trainer(train_program, fluid.optimizer.SGD(0.1))


@pytest.fixture
def inferencer(trainer):
    return fluid.Inferencer(inference_program, params=trainer.params)


def data():
    return fluid.reader.arrays({"x": X, "y": Y}, batch_size=4)


@pytest.mark.parametrize(
    "name, instead",
    [("fit", "trainer.train(reader, num_epochs=10)"), ("evaluate", "trainer.test(reader)"), ("lr", ".learning_rate")],
)
def test_names_of_other_libraries_name_the_right_spelling(trainer, name, instead):
    assert not hasattr(trainer, name)
    with pytest.raises(AttributeError, match=re.escape(f"'Trainer' object has no attribute {name!r}")) as error:
        getattr(trainer, name)
    assert instead in str(error.value)


def test_fit_of_an_inferencer_names_the_trainer(inferencer):
    with pytest.raises(AttributeError, match=r"'Inferencer' object has no attribute 'fit'; write fluid.Trainer\("):
        inferencer.fit(X, Y)


@pytest.mark.parametrize("kind", [fluid.Trainer, fluid.Inferencer])
def test_hints_name_existing_attributes_for_absent_names(kind, trainer, inferencer):
    for name, instead in hints(kind.__name__).items():
        assert not hasattr(kind, name)
        for of, attribute in re.findall(r"\b(trainer|inferencer|fluid(?:\.\w+)*)\.(\w+)", instead):
            where = {"trainer": trainer, "inferencer": inferencer}.get(of) or eval(of, {"fluid": fluid})
            assert hasattr(where, attribute), f"{name}: {instead}"


def test_other_names_are_as_always(trainer):
    with pytest.raises(AttributeError, match="no attribute 'trian'. Did you mean 'train'") as error:
        getattr(trainer, "trian")  # noqa: B009
    assert error.value.name == "trian"
    assert not hasattr(trainer, "__array__") and getattr(trainer, "_nothing", 3) == 3

    class Failing(KnownAttributes):
        @property
        def value(self):
            return self.nothing

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(Failing(), "value")  # noqa: B009


def test_copy_and_pickle_do_as_always():
    class Plain(KnownAttributes):
        pass

    assert copy.copy(Plain()).__dict__ == copy.deepcopy(Plain()).__dict__ == {}
    assert pickle.loads(pickle.dumps(Pickled(3))).value == 3


class Pickled(KnownAttributes):
    def __init__(self, value):
        self.value = value


@pytest.mark.parametrize("y", [Y, pandas.Series(Y[:, 0])])
@pytest.mark.parametrize("x", [X, pandas.DataFrame(X)])
def test_train_with_arrays_names_the_call(trainer, x, y):
    with pytest.raises(errors.ArgumentTypeError, match="found arrays, one for each feed") as error:
        trainer.train(x, y)
    call = re.search(r"trainer\.train\(.*\)$", str(error.value)).group()
    assert "{'x': x, 'y': y}" in call and "[" not in call, "no array is printed"
    eval(call.replace("num_epochs=10", "num_epochs=1"), {"trainer": trainer, "fluid": fluid, "x": x, "y": y})
    with pytest.raises(errors.ArgumentTypeError, match="found arrays, one for each feed") as error:
        trainer.test(x, y)
    call = re.search(r"trainer\.test\(.*\)$", str(error.value)).group()
    eval(call, {"trainer": trainer, "fluid": fluid, "x": x, "y": y})
    assert int(trainer.session.scope.step) == 1


def test_fluid_train_with_arrays_names_the_call():
    with pytest.raises(errors.ArgumentTypeError, match="found arrays, one for each feed.*{'x': x, 'y': y}"):
        fluid.train(train_program, X, Y)
    with pytest.raises(errors.ArgumentTypeError, match="found arrays; say how many rows make one"):
        fluid.train(train_program, X)


@pytest.mark.parametrize("x", [X, X.tolist(), pandas.DataFrame(X), pandas.DataFrame({"x": list(X)})["x"].tolist()])
def test_infer_takes_the_data_of_the_only_feed(inferencer, x):
    (expected,) = inferencer.infer({"x": X})
    (found,) = inferencer.infer(x)
    np.testing.assert_array_equal(found, expected)


def test_infer_takes_sequences_of_the_only_feed():
    def program():
        return layers.sequence_pool(layers.data("s", shape=[1], lod_level=1), "sum")

    assert fluid.Inferencer(program, params={}).infer([[1.0, 2.0], [3.0]])[0].ravel().tolist() == [3, 3]


def test_infer_of_several_feeds_names_them():
    def program():
        return layers.data("a", shape=[1]) + layers.data("b", shape=[1])

    inferencer = fluid.Inferencer(program, params={})
    for given in (X, [[1]], None):
        with pytest.raises(errors.ArgumentTypeError, match=r"'a', 'b' by name: inferencer.infer\({'a': a, 'b': b}\)"):
            inferencer.infer(given)
    frame = pandas.DataFrame({"b": [1.0, 2.0], "a": [10.0, 20.0]})
    assert inferencer.infer(frame)[0].ravel().tolist() == [11, 22]
    with pytest.raises(errors.UnknownNameError, match="'c'"):
        inferencer.infer(frame.assign(c=0.0))


def test_a_handler_need_not_stand_in_a_list(trainer):
    timer, events = fluid.handlers.Timer(every=1), []
    trainer.train(data(), handlers=timer)
    assert timer.trainer is trainer
    trainer.train(data(), handlers=events.append)
    assert isinstance(events[-1], fluid.EndTrainEvent)
    fluid.train(train_program, data(), optimizer=fluid.optimizer.SGD(0.1), handlers=fluid.handlers.Timer())


@pytest.mark.parametrize("handlers", ["Timer", 3, fluid.handlers.Timer, [fluid.handlers.Timer]])
def test_handlers_of_wrong_types_are_refused(trainer, handlers):
    with pytest.raises(errors.ArgumentTypeError, match=r"handlers=|a handler is a function of one event"):
        trainer.train(data(), handlers=handlers)
    assert int(trainer.session.scope.step) == 0


def test_a_list_as_event_handler_names_handlers(trainer):
    with pytest.raises(errors.ArgumentTypeError, match=r"handlers=\[...\] for several"):
        trainer.train(data(), event_handler=[fluid.handlers.Timer()])


def test_a_trainer_shows_only_names_that_are_there(trainer):
    there = {name for name, _ in inspect.getmembers(trainer)}
    assert set(hints("Trainer").keys()) & there == {"program"}  # a Trainer of several programs has no `program`
