"""A renamed program function: its training continues from a checkpoint if no other program is trained."""

import numpy as np
import pytest

import fluid
from fluid import errors
from fluid.optimizer import Adam

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")


def body():
    x = fluid.layers.dropout(fluid.layers.data("x", shape=[3]), 0.2)
    return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(x, size=2)))


def before():
    return body()


def after():
    return body()


def other():
    return body()


def reader():
    return fluid.reader.arrays(X, batch_size=8, shuffle=True)


def train(function, epochs, folder=None, learning_rate=None):
    config = None if folder is None else fluid.CheckpointConfig(folder)
    trainer = fluid.Trainer(function, Adam(0.1), checkpoint_config=config)
    if learning_rate is not None:
        trainer.learning_rate = learning_rate
    trainer.train(reader(), epochs)
    return trainer


@pytest.mark.parametrize("function", [after, lambda: body()])
def test_a_renamed_function_continues_its_checkpoint(function, tmp_path):
    wanted = train(before, 3).session.state()
    train(before, 1, tmp_path)
    found = train(function, 3, tmp_path).session
    for array, same in zip(found.state().values(), wanted.values(), strict=True):
        np.testing.assert_array_equal(array, same)


def test_set_rate_survives_a_renamed_program(tmp_path):
    train(before, 1, tmp_path, learning_rate=0.02)
    assert train(after, 1, tmp_path).learning_rate == 0.02


def test_session_loads_file_of_a_renamed_program(tmp_path):
    trained = train(before, 1)
    trained.session.save(tmp_path / "session")
    again = fluid.Trainer(after, Adam(0.1))
    again.session.load(tmp_path / "session")
    for found, wanted in zip(again.session.state().values(), trained.session.state().values(), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_custom_loop_with_renamed_program_continues(tmp_path):
    def minimized(function):
        def program():
            loss = function()
            Adam(0.1).minimize(loss)
            return loss

        return fluid.Program(program, name=function.__name__)

    for function, restored in [(before, None), (after, 3)]:
        session = fluid.Session(minimized(function), fluid.Program(other, name="other"))
        feeds = fluid.reader.prefetch(reader(), session, program=function.__name__)
        with fluid.Checkpoint(session, tmp_path, feeds) as checkpoint:
            for feed in feeds:
                session.run(function.__name__, feed)
                checkpoint.after_step()
        assert checkpoint.restored == restored
    assert int(session.scope.step) == 6


def test_the_names_of_several_programs_count(tmp_path):
    config = fluid.CheckpointConfig(tmp_path)

    def named(name):
        def function():
            with fluid.name_scope(name[:1]):
                return body()

        function.__name__ = name
        return function

    fluid.Trainer([named("a"), named("b")], Adam(0.1), checkpoint_config=config).train(reader())
    with pytest.raises(errors.ParameterError, match="@slots/"):
        fluid.Trainer([named("ax"), named("b")], Adam(0.1), checkpoint_config=config)
    with pytest.raises(errors.ParameterError, match="a|b"):
        fluid.Trainer(named("a"), Adam(0.1), checkpoint_config=config)
