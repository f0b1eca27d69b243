"""Parameters trained as length and direction: compared with the formula."""

import jax
import numpy as np
import pytest
from layers.layer_table import real
from layers.run_program import feeds, run

import fluid
from fluid import errors, layers

X = real(5, 4)


def weight(length, direction, dim):
    axes = tuple(a for a in range(direction.ndim) if dim is None or a != dim % direction.ndim)
    return length * direction / np.sqrt((direction**2).sum(axes, keepdims=True))


@pytest.mark.parametrize(("dim", "shape"), [(None, (1, 1)), (0, (4, 1)), (1, (1, 3)), (-1, (1, 3))])
def test_of_fc(dim, shape):
    attr = fluid.WeightNormParamAttr(dim=dim, name="w")
    program = fluid.Program(lambda: layers.fc(feeds(x=X)[0], 3, param_attr=attr, bias_attr=False))
    assert {n: s.shape for n, s in program.parameters.items()} == {"w_g": shape, "w_v": (4, 3)}
    start = {n: np.asarray(v) for n, v in program.init(jax.random.key(3)).items()}
    np.testing.assert_allclose(weight(start["w_g"], start["w_v"], dim), start["w_v"], rtol=1e-5)
    assert len({*np.ravel(start["w_v"])}) == 12, "the direction is drawn as a weight is"
    arrays = {"w_g": real(*shape, salt=1), "w_v": real(4, 3)}
    done = run(lambda: layers.fc(feeds(x=X)[0], 3, param_attr=attr, bias_attr=False), {"x": X}, arrays=arrays)
    np.testing.assert_allclose(done.outputs[0], X @ weight(arrays["w_g"], arrays["w_v"], dim), rtol=1e-5, atol=1e-6)


def test_filter_settings_hold_for_length_and_direction():
    image = real(2, 3, 5, 5)
    attr = fluid.WeightNormParamAttr(0, initializer=fluid.initializer.Normal(0.0, 0.1), learning_rate=0.5)

    def program():
        return layers.mean(layers.conv2d(feeds(x=image)[0], 2, 3, param_attr=attr, bias_attr=False))

    found = fluid.Program(program).parameters
    assert {n: s.shape for n, s in found.items()} == {"conv2d_0.w_0_g": (2, 1, 1, 1), "conv2d_0.w_0_v": (2, 3, 3, 3)}
    assert all(spec.settings.learning_rate == 0.5 and spec.trainable for spec in found.values())
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    before = {n: np.asarray(v) for n, v in trainer.params.items()}
    trainer.train(lambda: [[(row,) for row in image]], num_epochs=1)
    assert all(np.abs(np.asarray(v) - before[n]).max() > 0 for n, v in trainer.params.items())


def test_equal_names_share_a_weight():
    attr = fluid.WeightNormParamAttr(1, name="w")
    twice = fluid.Program(lambda: layers.fc(layers.fc(feeds(x=X)[0], 4, param_attr=attr), 4, param_attr=attr))
    assert list(twice.parameters) == ["w_g", "w_v", "fc_0.b_0", "fc_1.b_0"]


def test_wrong_uses_raise_argument_errors():
    with pytest.raises(errors.ArgumentError, match=r"dim=2\) of a parameter of shape \[4, 3\]"):
        fluid.Program(lambda: layers.fc(feeds(x=X)[0], 3, param_attr=fluid.WeightNormParamAttr(2)))
    ids = np.array([[1], [2]])
    with pytest.raises(errors.ArgumentError, match="cannot be looked up; is_sparse=False"):
        attr = fluid.WeightNormParamAttr(0)
        fluid.Program(lambda: layers.embedding(feeds(i=ids)[0], [5, 2], is_sparse=True, param_attr=attr))
