"""`concat` and `gather` on rows of sequence batches: compared with lists of rows."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.run_program import feeds, run

import fluid
from fluid import errors, layers

LENGTHS = st.lists(st.integers(0, 4), min_size=2, max_size=2)


def batch(lengths, time, salt=0):
    """Return a SequenceBatch of random steps of two numbers, with NaN as padding."""
    data = np.random.default_rng([salt, *lengths]).normal(size=(len(lengths), time, 2)).astype("float32")
    data[np.arange(time)[None] >= np.array(lengths)[:, None]] = np.nan
    return fluid.SequenceBatch(data, np.array(lengths, "int32"))


@settings(max_examples=10)
@given(first=LENGTHS, second=LENGTHS)
def test_concat_of_rows(first, second):
    x, y = batch(first, 4), batch(second, 6, salt=1)
    got = run(lambda: layers.concat(feeds(x=x, y=y), axis=0), {"x": x, "y": y}).outputs[0]
    for one, other in zip(got.rows(), [*x.rows(), *y.rows()], strict=True):
        np.testing.assert_array_equal(one, other)


@settings(max_examples=10)
@given(lengths=LENGTHS, count=st.sampled_from([0, 1, 6]), data=st.data())
def test_gather_counts_steps_through(lengths, count, data):
    x = batch(lengths, 4)
    steps = np.concatenate(x.rows())
    numbers = [data.draw(st.integers(0, len(steps) - 1)) for _ in range(count)] if len(steps) else []
    rows = [np.array(v, "int32").reshape(-1, 1) for v in (numbers, [0] * bool(len(steps)))]
    feed = {"x": x, "i": fluid.SequenceBatch.from_rows(rows, time=6)}
    got = run(lambda: layers.gather(*feeds(**feed)), feed).outputs[0]
    for one, number in zip(got.rows(), rows, strict=True):
        np.testing.assert_array_equal(one, steps[number[:, 0]])
    if numbers:
        got = run(lambda: layers.gather(feeds(x=x)[0], np.array(numbers)), {"x": x}).outputs[0]
        np.testing.assert_array_equal(got, steps[numbers])


def test_gather_sends_gradients_to_the_gathered_steps():
    x = batch([2, 0, 3], 3)
    program = fluid.Program(lambda: layers.gather(feeds(x=x)[0], np.array([3, 1, 3])))

    def total(data):
        return program.apply({}, {"x": x.with_data(data)}, key=None).outputs[0].sum()

    slopes = np.asarray(jax.grad(total)(np.nan_to_num(x.data)))
    want = np.zeros_like(slopes)
    want[0, 1] = 1
    want[2, 1] = 2
    np.testing.assert_array_equal(slopes, want)


def test_a_number_beyond_the_steps_shows():
    x = batch([1, 2], 2)
    got = run(lambda: layers.gather(feeds(x=x)[0], np.array([3, 2, -1])), {"x": x}).outputs[0]
    assert np.isnan(got[0]).all() and np.isnan(got[2]).all() and np.isfinite(got[1]).all()


def test_wrong_arguments_raise_shape_errors():
    x, y = batch([1, 2], 2), np.zeros((2, 2, 2), "float32")
    with pytest.raises(errors.ShapeError, match="cannot be joined"):
        fluid.Program(lambda: layers.concat(feeds(x=x, y=y)))
    with pytest.raises(errors.ShapeError, match="no list of rows"):
        fluid.Program(lambda: layers.gather(y, layers.cast(feeds(x=x)[0], "int32")))
