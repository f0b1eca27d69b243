"""Center loss: half the squared distance, and centers that move by the formula of the paper."""

import numpy as np
import pytest
from layers.layer_table import real
from layers.run_program import feeds, run

import fluid
from fluid import errors, layers

X, LABEL, CENTERS = real(5, 3), np.array([[0], [2], [0], [1], [0]]), real(4, 3, salt=1)


@pytest.mark.parametrize("alpha", [0.3, np.array([0.3], "float32")])
@pytest.mark.parametrize("moves", [True, False])
@pytest.mark.parametrize("mode", ["train", "test"])
def test_center_loss(alpha, moves, mode):
    done = run(
        lambda: layers.center_loss(*feeds(x=X, label=LABEL), 4, alpha, "centers", moves),
        {"x": X, "label": LABEL},
        arrays={"centers": CENTERS},
        mode=mode,
    )
    difference = X - CENTERS[LABEL[:, 0]]
    np.testing.assert_allclose(done.outputs[0], 0.5 * (difference**2).sum(1, keepdims=True), rtol=1e-5)
    want = CENTERS.copy()
    for number in range(4) if moves and mode == "train" else []:
        own = difference[LABEL[:, 0] == number]
        want[number] += 0.3 * own.sum(0) / (1 + len(own))
    np.testing.assert_allclose(done.states["centers"], want, rtol=1e-5, atol=1e-6)


def test_centers_have_a_name_and_an_initializer():
    attr = fluid.ParamAttr(initializer=fluid.initializer.Constant(2.0))
    program = fluid.Program(lambda: layers.center_loss(*feeds(x=X, label=LABEL), 4, 0.1, attr))
    assert list(program.states) == ["center_loss_0.w_0"] and not program.parameters
    with fluid.Session(program) as session:
        np.testing.assert_array_equal(session.scope["center_loss_0.w_0"], np.full((4, 3), 2.0))


def test_wrong_arguments_raise_named_errors():
    with pytest.raises(errors.ArgumentError, match="param_attr=False is not possible"):
        fluid.Program(lambda: layers.center_loss(*feeds(x=X, label=LABEL), 4, 0.1, False))
    with pytest.raises(errors.ShapeError, match=r"expected \[batch, width\] and \[batch, 1\]"):
        fluid.Program(lambda: layers.center_loss(*feeds(x=X, label=LABEL[:3].T), 4, 0.1))
