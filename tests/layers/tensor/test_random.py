"""Random layers: their distributions, changes from step to step, and fixed seeds."""

import numpy as np
import pytest
from layers.run_program import feeds, output, run

import fluid
from fluid import errors, layers

P = np.tile(np.array([0.1, 0.2, 0.7], "float32"), (4000, 1))


def drawn(function, key=0, mode="train", **arrays):
    return output(lambda: function(*feeds(**arrays)), arrays, key=key, mode=mode)


def test_random_values_have_the_requested_moments():
    uniform = drawn(lambda: layers.uniform_random([100, 50], min=1.0, max=3.0))
    assert 1 <= uniform.min() and uniform.max() < 3 and uniform.mean() == pytest.approx(2, abs=0.03)
    normal = drawn(lambda: layers.gaussian_random([100, 50], mean=1.0, std=2.0))
    assert normal.mean() == pytest.approx(1, abs=0.1) and normal.std() == pytest.approx(2, abs=0.1)
    whole = drawn(lambda: layers.uniform_random([1000], "int64", 2, 5))
    assert set(whole.tolist()) == {2, 3, 4}


def test_batch_size_like_draws_follow_the_batch():
    x = np.zeros((7, 2), "float32")
    assert drawn(lambda x: layers.uniform_random_batch_size_like(x, [-1, 3]), x=x).shape == (7, 3)
    got = drawn(lambda x: layers.gaussian_random_batch_size_like(x, [3, -1], output_dim_idx=1, input_dim_idx=0), x=x)
    assert got.shape == (3, 7)


def test_classes_are_drawn_by_their_probability():
    got = drawn(lambda p: layers.sampling_id(p), p=P)
    np.testing.assert_allclose(np.bincount(got) / 4000, P[0], atol=0.03)
    assert got.dtype == drawn(lambda p: layers.sampling_id(p, dtype="float32"), p=P).dtype == "int32"
    never = np.array([[0.0, 1.0, 0.0]] * 50, "float32")
    assert set(drawn(layers.sampling_id, p=never).tolist()) == {1}


@pytest.mark.parametrize(
    "draw",
    [
        lambda seed: layers.uniform_random([5], seed=seed),
        lambda seed: layers.gaussian_random([5], seed=seed),
        lambda seed: layers.sampling_id(np.full((50, 9), 1 / 9), seed=seed),
    ],
)
def test_each_step_draws_anew_without_a_seed(draw):
    assert not np.array_equal(drawn(lambda: draw(0), key=1), drawn(lambda: draw(0), key=2))
    assert np.array_equal(drawn(lambda: draw(3), key=1), drawn(lambda: draw(3), key=2))


def test_draws_belong_to_names():
    def program(first):
        values = [layers.uniform_random([4], name="a")] if first else []
        return [*values, layers.uniform_random([4], name="b"), layers.uniform_random([4], name="c")]

    alone, after = run(lambda: program(False), {}).outputs, run(lambda: program(True), {}).outputs
    assert np.array_equal(alone[0], after[1]) and np.array_equal(alone[1], after[2])
    assert not np.array_equal(alone[0], alone[1])


def test_bad_arguments():
    with pytest.raises(errors.ArgumentError, match="batch_size_like"):
        fluid.Program(lambda: layers.uniform_random([-1, 3]))
    with pytest.raises(errors.ArgumentError, match="are floats"):
        fluid.Program(lambda: layers.gaussian_random([3], dtype="int64"))
