"""Rows of all layers, by force: where the analysis finds that rows are alone, other rows change nothing."""

import jax
import numpy as np
import pytest
from layers.layer_table import ROWS
from layers.sequence_table import SEQUENCE_ROWS

import fluid

# Layers that the analysis must follow; without them, an analysis that follows nothing would pass.
FOLLOWED = {"fc", "conv2d", "batch_norm", "layer_norm", "embedding", "softmax", "dynamic_lstm", "sequence_pool"}
CASES = [
    pytest.param(row, id=f"{row.id}-{kind}")
    for kind, rows in (("array", ROWS), ("sequence", SEQUENCE_ROWS))
    for row in rows
]


def changed(array, kept, change):
    """Return a copy of an array whose rows but one are reordered and, if they are floats, changed."""
    array = np.asarray(array)
    others = np.delete(np.arange(len(array)), kept)
    copy = array.copy()
    copy[others] = array[np.roll(others, 1)]
    if array.dtype.kind == "f":
        copy[others] = change(copy[others])
    return copy


CHANGES = {"smaller": lambda v: 0.37 * v, "larger": lambda v: 900 * v, "NaN": lambda v: np.full_like(v, np.nan)}


@pytest.mark.sample(8)
@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
@pytest.mark.parametrize("row", CASES)
def test_rows_said_to_be_alone_are_alone(row):
    program = fluid.Program(row.program())
    alone = [i for i in range(len(program.outputs)) if program.mixing([i]) is None]
    assert alone or row.name not in FOLLOWED
    if not alone:
        return
    arrays = {
        name: np.asarray(0.3 * jax.random.normal(jax.random.key(i), spec.shape)).astype(spec.dtype)
        for i, (name, spec) in enumerate((program.parameters | program.states).items())
    }

    @jax.jit
    def results(feed):
        outputs = program.apply(arrays, feed, key=jax.random.key(0), mode="test").outputs
        return [outputs[i] for i in alone]

    wanted = jax.tree.leaves(results(row.feed))
    count = len(jax.tree.leaves(row.feed)[0])
    for kept in {0, count - 1}:
        for change in CHANGES.values():
            feed = jax.tree.map(lambda v, kept=kept, change=change: changed(v, kept, change), row.feed)
            for got, want in zip(jax.tree.leaves(results(feed)), wanted, strict=True):
                np.testing.assert_allclose(np.asarray(got)[kept], np.asarray(want)[kept], rtol=1e-4, atol=1e-5)
