"""Exported detection layers: a single export serves all batch sizes and numbers of objects."""

import jax
import numpy as np
import pytest
from layers.layer_table import ROWS
from layers.measured_padding import assert_same
from layers.sequence_table import SEQUENCE_ROWS

import fluid
from fluid import layers

ELSEWHERE = ("concat", "gather", "deformable_conv", "temporal_shift")


def rows_of_detection():
    """Yield the rows of detection layers, from the table of arrays and from the table of sequences."""
    for table, rows in (("array", ROWS), ("sequence", SEQUENCE_ROWS)):
        for row in rows:
            here = getattr(getattr(layers, row.name, None), "__module__", "").startswith("fluid.layers.detection.")
            if here or row.name in ELSEWHERE:
                yield pytest.param(row, id=f"{row.id}-{table}")


def symbolic(feed):
    """Return the array shapes of a feed, with symbols for the batch size and for the number of sequence steps."""
    batch, time = jax.export.symbolic_shape("batch, time")

    def array(value, *lead):
        dtype = jax.dtypes.canonicalize_dtype(value.dtype)
        return jax.ShapeDtypeStruct((*lead, *value.shape[len(lead) :]), dtype)

    return {
        name: fluid.SequenceBatch(array(value.data, batch, time), array(value.lengths, batch))
        if isinstance(value, fluid.SequenceBatch)
        else array(value, batch)
        for name, value in feed.items()
    }


@pytest.mark.sample(3)
@pytest.mark.parametrize("row", list(rows_of_detection()))
def test_exported_layers_match_their_program(row):
    program = fluid.Program(row.program())
    arrays = program.init(jax.random.key(2))
    feed = jax.tree.map(lambda v: np.asarray(v, jax.dtypes.canonicalize_dtype(v.dtype)), row.feed)
    feeds, structure = jax.tree.flatten(feed)

    def apply(*leaves):
        return program.apply(arrays, jax.tree.unflatten(structure, leaves), key=None, mode="test").outputs

    exported = jax.export.export(jax.jit(lambda *leaves: jax.tree.leaves(apply(*leaves))))
    wants = jax.jit(apply)(*feeds)
    got = jax.tree.unflatten(jax.tree.structure(wants), exported(*jax.tree.leaves(symbolic(feed))).call(*feeds))
    assert_same(got, wants, row.id)
