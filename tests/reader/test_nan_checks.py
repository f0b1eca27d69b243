"""NaN in float feeds: one warning for each feed, which names the feed, the sample and the batch."""

import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import fluid
from fluid import errors, layers
from fluid.core import FeedSpec, NestedSequenceBatch, SequenceBatch
from fluid.reader.feed_checks import NaNs

X = np.ones((12, 2), "float32")
Y = np.ones((12, 1), "float32")


def program(**options):
    x = layers.data("x", shape=[2], **options)
    y = layers.data("y", shape=[1])
    seen = layers.where(x == x, x, layers.zeros_like(x)) if options else x
    return layers.mean(layers.square_error_cost(layers.fc(seen, size=1), y))


def with_nan(array, *rows):
    changed = array.copy()
    changed[list(rows), -1] = np.nan
    return changed


def trainer_of(function=program):
    return fluid.Trainer(function, fluid.optimizer.SGD(0.1))


def told(caught):
    return [str(w.message) for w in caught if "feed '" in str(w.message)]


def test_nan_in_float_feeds_warns_once_per_feed():
    reader = fluid.reader.arrays((with_nan(X, 5, 10), with_nan(Y, 9)), batch_size=4)
    with pytest.warns(errors.FluidWarning) as caught:
        trainer_of().train(reader, num_epochs=3)
    first, second = told(caught)
    assert first.startswith("feed 'x', sample 1, batch 1: found NaN in 1 of 4 samples, expected numbers (declared at ")
    assert "test_nan_checks.py:22 in program" in first and "allow_nan=True" in first and "np.nan_to_num(value)" in first
    assert second.startswith("feed 'y', sample 1, batch 2: found NaN in 1 of 4 samples")
    assert {w.filename for w in caught} == {__file__}, "the warning names the user's line"


def test_a_trainer_warns_once_in_all_calls():
    trainer = trainer_of()
    reader = fluid.reader.arrays((with_nan(X, 5), Y), batch_size=4)
    with pytest.warns(errors.FluidWarning) as caught:
        warnings.simplefilter("always")
        trainer.test(reader)
        trainer.test(reader)
        trainer.run({"x": with_nan(X, 5), "y": Y})
    assert len(told(caught)) == 1


def test_nan_in_a_session_run_warns():
    with pytest.warns(errors.FluidWarning, match="feed 'x', sample 3: found NaN in 2 of 12 samples") as caught:
        trainer_of().run({"x": with_nan(X, 3, 7), "y": Y})
    assert caught[0].filename == __file__


def test_allow_nan_disables_the_warning():
    trainer = trainer_of(lambda: program(allow_nan=True))
    assert trainer.program.feeds["x"].allow_nan and not trainer.program.feeds["y"].allow_nan
    history = trainer.train(fluid.reader.arrays((with_nan(X, 5), Y), batch_size=4), num_epochs=2)
    assert np.isfinite(history["loss"]).all()


def test_infinities_do_not_warn():
    x = X.copy()
    x[0] = np.inf, -np.inf
    specs = {name: FeedSpec(name, (None, 2), "float32") for name in ("x", "huge")}
    NaNs().look(specs, {"x": x, "huge": np.full((9, 2), 3e38, "float32")})


def test_device_arrays_are_not_checked():
    NaNs().look({"x": FeedSpec("x", (None, 2), "float32")}, {"x": jnp.full((3, 2), jnp.nan)})


def test_padding_is_not_checked():
    spec = {"s": FeedSpec("s", (None, 1), "float32", lod_level=1)}
    data = np.array([[[1], [np.nan]], [[2], [3]]], "float32")
    NaNs().look(spec, {"s": SequenceBatch(data, np.array([1, 2]))})
    with pytest.warns(errors.FluidWarning, match="feed 's', sample 0: found NaN in 1 of 2 samples"):
        NaNs().look(spec, {"s": SequenceBatch(data, np.array([2, 2]))})


def test_sequences_of_sequences():
    spec = {"s": FeedSpec("s", (None, 1), "float32", lod_level=2)}
    nested = NestedSequenceBatch.from_rows([[[[1.0], [2.0]]], [[[3.0]], [[4.0], [np.nan]]]])
    with pytest.warns(errors.FluidWarning, match="feed 's', sample 1: found NaN in 1 of 2 samples"):
        NaNs().look(spec, {"s": nested})


@given(
    hnp.arrays(
        st.sampled_from(["float16", "float32", "float64", "complex64"]),
        hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4),
    )
)
def test_nan_is_found_exactly_as_by_numpy(array):
    spec = {"x": FeedSpec("x", (None, *array.shape[1:]), str(array.dtype))}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        NaNs().look(spec, {"x": array})
    assert bool(caught) == bool(np.isnan(array).any())
    if caught:
        first = np.argwhere(np.isnan(array))[0][0]
        assert f"sample {first}: found NaN in {len(set(np.argwhere(np.isnan(array))[:, 0]))} of" in str(
            caught[0].message
        )
