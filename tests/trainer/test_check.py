"""Trainer.check: a dry run of a training, which reports the parts that work or fail, and changes nothing."""

import os

import numpy as np
import pytest

import fluid
from fluid import errors, layers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 4)).astype("float32")
Y = (X @ [[1.0], [-2.0], [0.5], [3.0]]).astype("float32")


def program():
    x, y = layers.data("x", shape=[4]), layers.data("y", shape=[1])
    hidden = layers.dropout(layers.batch_norm(layers.fc(x, size=8, act="tanh")), 0.2)
    guess = layers.fc(hidden, size=1, name="guess")
    return {"loss": layers.mean(layers.square_error_cost(guess, y)), "guess": guess}


def sampled():
    """Return the outputs of a program that draws random numbers also in test mode."""
    x = layers.data("x", shape=[4])
    noise = layers.gaussian_random([1])
    return {"loss": layers.mean(layers.fc(x, size=1) ** 2), "noise": noise}


def data(**columns):
    return fluid.reader.arrays(columns or {"x": X, "y": Y}, batch_size=16, shuffle=True, seed=2)


def arrays_of(trainer):
    return {name: np.array(value) for name, value in trainer.session.state().items()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert all(found[n].tobytes() == v.tobytes() and found[n].dtype == v.dtype for n, v in expected.items())


def states(check):
    return {part.name: part.state for part in check.parts}


def test_every_part_of_a_sound_program_works():
    trainer = fluid.Trainer(program, fluid.optimizer.Adam(0.1))
    check = trainer.check(data())
    assert check.ok and list(states(check)) == ["read", "train", "test", "save", "export"]
    assert "6 of 6 parameters changed" in check["train"].found
    assert "guess computed from x" in check["export"].found
    table = repr(check).splitlines()
    assert table[0].split() == ["part", "state", "found"] and table[1].split()[:4] == [
        "read",
        "works",
        "x",
        "float32[16,",
    ]
    assert "<td" in check._repr_html_()


def test_check_finds_the_losses_of_the_trainer():
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    reader = fluid.reader.arrays({"x": X, "y": Y}, batch_size=64)
    check = trainer.check(reader)
    assert f"loss {float(trainer.test(reader)['loss']):.4g}" in check["test"].found
    loss = trainer.run({"x": X, "y": Y}, mode="train")["loss"]
    assert f"loss {float(loss):.4g}" in check["train"].found


def test_check_changes_no_bit_of_the_trainer():
    ema = fluid.optimizer.ExponentialMovingAverage(0.9)
    trainers = [fluid.Trainer(program, ema.track(fluid.optimizer.Adam(0.1))) for _ in range(2)]
    readers = [data(), data()]
    for trainer, reader in zip(trainers, readers, strict=True):
        trainer.learning_rate = 0.02
        trainer.freeze("fc_0.w_0")
        trainer.train(reader, 2)
    before, position, history = arrays_of(trainers[0]), readers[0].state(), dict(trainers[0].history)
    assert trainers[0].check(readers[0]).ok
    assert_equal(arrays_of(trainers[0]), before)
    assert (readers[0].state(), dict(trainers[0].history)) == (position, history)
    assert (trainers[0].learning_rate, trainers[0].frozen) == (trainers[1].learning_rate, trainers[1].frozen)
    for trainer, reader in zip(trainers, readers, strict=True):  # `check` does not change the next training
        trainer.train(reader, 1)
    assert_equal(arrays_of(trainers[0]), arrays_of(trainers[1]))


def test_check_changes_no_random_number_of_later_answers():
    trainers = [fluid.Trainer(sampled, fluid.optimizer.SGD(0.1)) for _ in range(2)]
    assert trainers[0].check(data(x=X)).ok
    first, second = (trainer.run({"x": X}, fetch="noise")[0] for trainer in trainers)
    np.testing.assert_array_equal(first, second)


def test_check_writes_no_file_and_moves_no_checkpoint(tmp_path):
    config = fluid.CheckpointConfig(tmp_path / "checkpoints", step_interval=1)
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1), checkpoint_config=config)
    trainer.train(data(), 1)
    before = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    here = sorted(os.listdir())
    assert trainer.check(data()).ok
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == before
    assert sorted(os.listdir()) == here
    assert len(trainer.train(data(), 3)["loss"]) == 3


def test_check_and_training_share_a_compilation():
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    trainer.check(data())
    count = sum(compilation.mode == "train" for compilation in trainer.session.compilations)
    trainer.train(data(), 1)
    assert sum(compilation.mode == "train" for compilation in trainer.session.compilations) == count == 1


def test_unreadable_data_fails_and_ends_the_run():
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    check = trainer.check(data(x=X, z=Y))
    assert states(check) == {
        "read": "fails",
        "train": "not run",
        "test": "not run",
        "save": "not run",
        "export": "not run",
    }
    assert isinstance(check["read"].error, errors.UnknownNameError) and not check.ok
    assert "'z'" in repr(check)


def test_infinite_loss_fails_and_the_rest_works():
    def infinite():
        return layers.mean(layers.log(layers.fc(layers.data("x", shape=[4]), size=1) * 0.0))

    trainer = fluid.Trainer(infinite, fluid.optimizer.SGD(0.1))
    before = arrays_of(trainer)
    check = trainer.check(data(x=X))
    assert states(check) == {"read": "works", "train": "fails", "test": "works", "save": "works", "export": "works"}
    assert isinstance(check["train"].error, errors.NonFiniteError)
    assert_equal(arrays_of(trainer), before)


def test_export_that_fails_says_why():
    def printing():
        return layers.mean(layers.Print(layers.fc(layers.data("x", shape=[4]), size=1)) ** 2)

    check = fluid.Trainer(printing, fluid.optimizer.SGD(0.1)).check(data(x=X))
    assert states(check)["export"] == "fails" and states(check)["train"] == "works"
    assert "cannot be exported" in repr(check)


def test_parameters_without_a_gradient_are_named():
    def blocked():
        hidden = layers.fc(layers.data("x", shape=[4]), size=2, name="blocked")
        return layers.mean(layers.fc(layers.relu(hidden - 1e6), size=1, name="head") ** 2 + 1.0)

    check = fluid.Trainer(blocked, fluid.optimizer.SGD(0.1)).check(data(x=X))
    assert "not blocked.w_0, blocked.b_0" in check["train"].found


def test_check_exports_the_infer_func():
    def net():
        return layers.fc(layers.data("x", shape=[4]), size=1, name="guess")

    def training():
        return layers.mean(layers.square_error_cost(net(), layers.data("y", shape=[1])))

    check = fluid.Trainer(training, fluid.optimizer.SGD(0.1), infer_func=net).check(data())
    assert check["export"].found.startswith("guess") or "computed from x" in check["export"].found


def test_sequences_are_checked_too():
    def words():
        embedded = layers.embedding(layers.data("w", shape=[1], dtype="int64", lod_level=1), size=[10, 4])
        guess = layers.fc(layers.sequence_pool(embedded, "sum"), size=1, name="guess")
        return {"loss": layers.mean(guess**2), "guess": guess}

    reader = fluid.reader.batch(lambda: iter([([1, 2, 3],), ([4],)]), batch_size=2)
    assert fluid.Trainer(words, fluid.optimizer.SGD(0.1)).check(reader).ok


def test_each_of_several_programs_is_checked():
    def first():
        return layers.mean(layers.fc(layers.data("x", shape=[4]), size=1, name="a") ** 2)

    def second():
        return layers.mean(layers.fc(layers.data("y", shape=[1]), size=1, name="b") ** 2)

    trainer = fluid.Trainer([first, second], fluid.optimizer.SGD(0.1))
    check = trainer.check({"first": data(x=X), "second": data(y=Y)})
    assert check.ok and "train second" in states(check) and len(check.parts) == 10


def test_check_during_training_is_refused():
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    with pytest.raises(errors.ArgumentError, match="while training runs"):
        trainer.train(data(), event_handler=lambda event: trainer.check(data()))


def test_arrays_are_no_reader():
    with pytest.raises(errors.ArgumentTypeError):
        fluid.Trainer(program, fluid.optimizer.SGD(0.1)).check(None)


def test_unknown_part_is_refused():
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'train'"):
        fluid.Trainer(program, fluid.optimizer.SGD(0.1)).check(data())["trian"]
