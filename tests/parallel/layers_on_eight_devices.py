"""Tests of a sample of all layers on eight devices; `test_eight_devices.py` runs this file with eight devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.layer_table import ROWS
from layers.sequence_table import SEQUENCE_ROWS

import fluid
from fluid import layers

MESHES = {
    "data": True,
    "fsdp": "fsdp",
    "4x2": fluid.Mesh(data=4, model=2),
    "2x2x2": fluid.Mesh(data=2, fsdp=2, model=2),
}
ASK_THE_HOST = {"Print", "py_func", "autoincreased_step_counter"}
NAMED = {**{row.id: row for row in ROWS}, **{f"sequences-{row.id}": row for row in SEQUENCE_ROWS}}
SAMPLE = [name for name in list(NAMED)[::7] if NAMED[name].name not in ASK_THE_HOST]


def more_rows(value):
    """Repeat the rows of a feed to 24 rows or a few more; convert floats to float64."""
    if isinstance(value, fluid.SequenceBatch):
        return fluid.SequenceBatch(more_rows(np.asarray(value.data)), more_rows(np.asarray(value.lengths)))
    array = value.astype("float64") if value.dtype.kind == "f" else value
    return np.concatenate([array] * -(-24 // len(array)))


def training(row, feed):
    """Return a program with the layer of a row of the layer table, a loss and an optimizer."""
    call = row.program(feed, "float64")

    def program():
        found = jax.tree.leaves(call())
        moving = [value for value in found if jnp.issubdtype(value.dtype, jnp.floating)]
        offset = layers.create_parameter([1], "float64", name="offset", attr=None)
        loss = sum((layers.reduce_mean(layers.square(value + offset)) for value in moving), layers.reduce_mean(offset))
        fluid.optimizer.SGD(0.01).minimize(loss)
        return {"loss": loss, **{f"result_{i}": value for i, value in enumerate(found)}}

    return program


def trained(name, parallel):
    """Train for twenty steps in float64, because some layers amplify rounding; return the losses and final arrays."""
    row = NAMED[name]
    feed = {key: more_rows(value) for key, value in row.feed.items()}
    with jax.enable_x64(True):
        session = fluid.Session(training(row, feed), parallel=parallel)
        losses = [session.step(feed)["loss"] for _ in range(20)]
        return [np.asarray(value) for value in [*losses, *(v for _, v in sorted(session.scope.items()))]]


@functools.lru_cache(maxsize=1)
def on_one_device(name):
    return trained(name, None)


@pytest.mark.soak
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_layer_on_a_mesh(name, mesh):
    for one, many in zip(on_one_device(name), trained(name, MESHES[mesh]), strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-5, atol=1e-9)
