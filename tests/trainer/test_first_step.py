"""The first training step: how often the step is compiled, and the recorded reasons."""

import numpy as np
from compile_counts import counted

import fluid
from fluid import reader

RNG = np.random.default_rng(0)
X = RNG.normal(size=(10, 3)).astype("float32")
Y = RNG.integers(0, 4, (10, 1))
ROWS = list(zip(X, Y, strict=True))


def program():
    x = fluid.layers.data("x", shape=[3])
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    return fluid.layers.mean(fluid.layers.fc(fluid.layers.dropout(x, 0.5), size=1) - label)


def trainer_of(function=program, **options):
    return fluid.Trainer(function, fluid.optimizer.SGD(0.1), **options)


def reasons(trainer):
    return [compilation.reason for compilation in trainer.session.compilations]


def test_on_device_data_compiles_the_step_once():
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


def test_a_new_batch_size_compiles_again():
    trainer = trainer_of()
    trainer.train(reader.batch(ROWS[:3], 5))
    assert reasons(trainer) == ["first train run"]
    with counted() as compiled:
        trainer.train(reader.batch(ROWS, 5))
    assert len(compiled) == 1
    assert reasons(trainer) == [
        "first train run",
        "new feed shapes: label [5, 1], x [5, 3]; before: label [3, 1], x [3, 3]",
    ]


def test_request_in_first_step_compiles_two_steps():
    """Check that a fetch in step 0 compiles another step function than the later steps."""

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
