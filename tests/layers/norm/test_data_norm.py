"""`data_norm`: normalises by three sums over all data so far, which are updated as in PaddlePaddle Fluid."""

import numpy as np
import pytest
from golden_cases import cases
from layers.layer_table import real
from layers.run_program import feeds, run

import fluid
from fluid import errors, layers

X, DECAY = 3 + 2 * real(6, 4), 0.5
STATES = ["seen.batch_size", "seen.batch_sum", "seen.batch_square_sum"]


def program():
    start = {"batch_size": 8.0, "batch_sum": 4.0, "batch_square": 20.0}
    return layers.data_norm(*feeds(x=X), param_attr=start, name="seen", summary_decay_rate=DECAY)


def test_sums_over_all_steps():
    with fluid.Session(program) as session:
        count, total, squares = np.full(4, 8.0), np.full(4, 4.0), np.full(4, 20.0)
        for step in range(3):
            x = X + step
            (got,) = session.run(feed={"x": x}, mode="train")
            mean = total / count
            np.testing.assert_allclose(got, (x - mean) * np.sqrt(count / squares), rtol=1e-4)
            count = DECAY * count + len(x)
            total = DECAY * total + x.sum(0)
            squares = DECAY * squares + ((x - mean) ** 2).sum(0) + 1e-5 * len(x)
            for name, want in zip(STATES, (count, total, squares), strict=True):
                np.testing.assert_allclose(session.scope[name], want, rtol=1e-4)
        session.run(feed={"x": X}, mode="test")
        np.testing.assert_allclose(session.scope[STATES[0]], count, rtol=1e-6)


@pytest.mark.parametrize("name", ["data_norm_default", "data_norm_statistics"])
def test_a_step_adds_the_gradients_of_paddle(name):
    (case,) = (case for case in cases() if case.spec["name"] == name)
    before, added = case.arrays("before"), case.arrays("grad")
    done = run(case.program(), case.arrays("feed"), arrays=before)
    for state, value in before.items():
        np.testing.assert_allclose(done.states[state], 0.9999999 * value + added[state], rtol=1e-6)


def test_wrong_settings_raise_argument_errors():
    for wrong in ({"batch_mean": 1.0}, "scale"):
        with pytest.raises(errors.ArgumentError, match="expected a dict of 'batch_size'"):
            fluid.Program(lambda wrong=wrong: layers.data_norm(*feeds(x=X), param_attr=wrong))
    with pytest.raises(errors.ArgumentError, match="slot_dim=2"):
        fluid.Program(lambda: layers.data_norm(*feeds(x=X), slot_dim=2))


@pytest.mark.parametrize("start", [{"batch_size": 0}, {"batch_square": 0.0}])
def test_sums_that_are_divided_by_are_positive(start):
    with pytest.raises(errors.ArgumentError, match="expected batch_size and batch_square above 0"):
        fluid.Program(lambda: layers.data_norm(*feeds(x=X), param_attr=start))
