"""First compilations: XLA compiles only the listed programs before the first training step and the first answer."""

import jax
import numpy as np
import pytest
from compile_counts import counted

import fluid
from fluid.runtime.parameter_updates import rules_of


def digits_program():
    image = fluid.layers.data("image", shape=[1, 8, 8])
    hidden = fluid.nets.simple_img_conv_pool(
        image, num_filters=20, filter_size=3, pool_size=2, pool_stride=2, act="relu"
    )
    return fluid.layers.fc(fluid.layers.batch_norm(hidden), size=10, act="softmax")


def train_program():
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    prediction = digits_program()
    loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
    return {"loss": loss, "accuracy": fluid.layers.accuracy(prediction, label)}


def widths_program():
    hidden = fluid.layers.data("x", shape=[3])
    for width in range(2, 22):
        hidden = fluid.layers.fc(hidden, size=width)
    return fluid.layers.mean(hidden)


@pytest.fixture
def compiled():
    """Clear JAX's caches, as in a new process, and return a list that grows with each compilation."""
    jax.clear_caches()
    with counted() as seen:
        yield seen


def test_a_convolutional_net(compiled):
    """Check a convolutional net: normal initial values, the training step and inference compile once each.

    Initial values from uniform distributions need no compilation.
    """
    images = np.zeros((8, 1, 8, 8), "float32")
    batch = {"image": images, "label": np.zeros((8, 1), "int64")}
    trainer = fluid.Trainer(train_program, fluid.optimizer.Adam(1e-3))
    assert len(compiled) == 1
    trainer.train(lambda: [batch, batch])
    assert len(compiled) == 2
    trainer.test(lambda: [batch])
    count = len(compiled)
    inferencer = fluid.Inferencer(digits_program, params=trainer.params)
    assert len(compiled) == count
    inferencer.infer({"image": images})
    assert len(compiled) == count + 1


def test_training_runs_the_program_function_twice():
    runs = []

    def program():
        runs.append(None)
        return train_program()

    batch = {"image": np.zeros((8, 1, 8, 8), "float32"), "label": np.zeros((8, 1), "int64")}
    fluid.Trainer(program, fluid.optimizer.Adam(1e-3)).train(lambda: [batch, batch])
    assert len(runs) == 2


def test_an_answer(compiled):
    """Check that an Inferencer with given parameters draws no initial values, so only the inference is compiled."""
    params = dict(fluid.Session(digits_program).params())
    jax.clear_caches()
    compiled.clear()
    inferencer = fluid.Inferencer(digits_program, params=params)
    assert len(compiled) == 0
    inferencer.infer({"image": np.zeros((1, 1, 8, 8), "float32")})
    assert len(compiled) == 1


def test_no_initial_values():
    session = fluid.Session(widths_program, initial=False)
    assert all(not np.any(array) and array.dtype == "float32" for array in session.params().values())
    assert {n: a.shape for n, a in session.params().items()} == {n: s.shape for n, s in session.scope.specs.items()}
    added = session.add(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[3]), size=2, name="later"))
    assert all(np.any(session.params()[name]) for name in added.parameters if name.endswith("w_0"))


def test_twenty_widths(compiled):
    trainer = fluid.Trainer(widths_program, fluid.optimizer.Momentum(0.1, 0.9))
    assert len(compiled) == 0
    trainer.train(lambda: [{"x": np.zeros((2, 3), "float32")}])
    assert len(compiled) == 1


def test_reading_and_loading_parameters_compiles_nothing(compiled, tmp_path):
    trainer = fluid.Trainer(widths_program, fluid.optimizer.SGD(0.1))
    count = len(compiled)
    trainer.save_params(tmp_path / "saved")
    trainer.load_params(tmp_path / "saved")
    for name, value in trainer.params.items():
        trainer.session.scope[name] = np.asarray(value)
    fluid.Trainer(widths_program, fluid.optimizer.SGD(0.1), params=trainer.params)
    assert len(compiled) == count


@pytest.mark.parametrize(
    "optimizer",
    [
        fluid.optimizer.SGD(0.1),
        fluid.optimizer.Adam(1e-3),
        fluid.optimizer.Adagrad(0.1, initial_accumulator_value=0.5),
        fluid.optimizer.Muon(1e-3),
        fluid.optimizer.Lookahead(fluid.optimizer.Adam(1e-3)),
        fluid.optimizer.Momentum(0.1, 0.9, accumulate_steps=4, grad_clip=fluid.clip.GradientClipByGlobalNorm(1.0)),
    ],
    ids=lambda optimizer: type(optimizer).__name__,
)
def test_initial_optimizer_state_equals_xla_results(optimizer):
    def program():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=3))
        optimizer.minimize(loss)
        return loss

    (rule,) = rules_of(fluid.Program(program))
    arrays = fluid.Session(program).scope.copies()
    found, wanted = rule.first_slots(arrays), jax.jit(rule.init)(arrays)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for mine, its in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert mine.dtype == its.dtype
        np.testing.assert_array_equal(mine, its)
