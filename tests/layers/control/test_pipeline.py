"""Pipelines of `layers.repeat`: microbatches, shapes and refused arguments; `tests/parallel` compares the results."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import AbstractMesh, AxisType

import fluid
from fluid import errors, layers
from fluid.layers.control.pipelined import Pipeline

SMALL = st.integers(1, 4)


@given(SMALL, SMALL, SMALL, SMALL, st.integers(1, 40))
@settings(max_examples=60, deadline=None)
def test_split_puts_each_row_in_a_single_microbatch(stages, microbatches, shards, groups, rows):
    split = Pipeline("stage", stages, microbatches, shards, groups).split(rows)
    assert split.microbatches <= microbatches
    assert rows <= split.total < rows + shards * groups * split.each
    if rows % (shards * groups * microbatches) == 0:
        assert (split.total, split.microbatches) == (rows, microbatches)
    numbers = np.arange(split.total).reshape(shards, -1)
    for shard in range(shards):
        parts = np.asarray(split.parts(numbers[shard]))
        assert parts.shape == (split.microbatches, split.rows)
        for microbatch, part in enumerate(parts):
            assert split.first(shard, microbatch) == part[0]
        assert np.asarray(split.together(parts)).tolist() == numbers[shard].tolist()


def traced(block, mesh=None, n=4, x=None, mode="train", **settings):
    """Return the output shapes of a `repeat` with a pipeline, traced for an abstract mesh without devices."""
    axes = {"stage": 2} if mesh is None else mesh
    given = {"pipeline": "stage", **settings}

    def program():
        fed = layers.data("x", shape=[4])
        return layers.repeat(block, n, fed if x is None else x(fed), **given)

    found = fluid.Program(program)

    def apply(arrays, fed, key):
        types = (AxisType.Auto,) * len(axes)
        with jax.sharding.use_abstract_mesh(AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=types)):
            return found.apply(arrays, {"x": fed}, key=key, mode=mode).outputs

    key = jax.random.key(1)
    return jax.eval_shape(apply, found.init(key), jnp.ones((6, 4)), key)


def dense(h):
    return layers.fc(h, 4)


def test_a_pipeline_keeps_the_shape_of_its_input():
    assert [v.shape for v in traced(lambda h: layers.dropout(dense(h), 0.5))] == [(6, 4)]
    assert [v.shape for v in traced(dense, {"model": 3, "stage": 1})] == [(6, 4)]
    assert [v.shape for v in traced(dense, {"data": 2, "fsdp": 2}, n=3)] == [(6, 4)]


def outside(function):
    """Return a block for a pipeline and its input, as arguments of `traced`; the block reads a vector from outside."""
    made = []

    def x(fed):
        made[:] = [2 * layers.create_parameter([4], name="outside", attr=None)]
        return fed

    return {"block": lambda h: function(dense(h), made[0]), "x": x}


def test_vectors_from_outside_are_read_by_all_stages():
    assert [v.shape for v in traced(**outside(lambda h, vector: jnp.where(h > 0, h * vector, vector)))] == [(6, 4)]


def random(draw):
    return {"block": lambda h: dense(h) + draw(layers.random_key(), h)}


REFUSED = {
    "no such axis": ({"block": dense, "mesh": {"stages": 2}}, "names the axis 'stage', and the mesh has 'stages'. Did"),
    "uneven": (
        {"block": dense, "n": 3},
        "3 blocks cannot be divided evenly into the 2 stages of the axis 'stage'; take 2 or 4",
    ),
    "axis of the batch": ({"block": dense, "pipeline": "data"}, "pipeline='data', which is an axis of the batch"),
    "no microbatches": ({"block": dense, "microbatches": 0}, "microbatches=0"),
    "no pipeline": ({"block": dense, "microbatches": 2, "pipeline": None}, 'name its axis, as in pipeline="stage"'),
    "xs": ({"block": lambda h, x: (h, x), "xs": np.ones(4)}, "are given no xs"),
    "statistics": (
        {"block": layers.batch_norm},
        "the block changes 'repeat_0/batch_norm_0.w_1', .* use layers.feature_norm",
    ),
    "value without rows": (
        {"block": lambda v: v, "x": lambda x: (x, jnp.ones(()))},
        "has the rows of the batch as its first",
    ),
    "pipeline inside": (
        {"block": lambda h: layers.repeat(dense, 2, h, pipeline="other"), "mesh": {"stage": 2, "other": 2}},
        "this is a block of a pipeline, which has none itself",
    ),
    "mean over rows": (
        {"block": lambda h: dense(h) - jnp.mean(h, axis=0)},
        "depends on other rows of the batch, at .*test_pipeline",
    ),
    "order of rows": ({"block": lambda h: jnp.sort(dense(h), axis=0)}, "depends on other rows of the batch"),
    "first row": ({"block": lambda h: dense(h) + h[:1]}, "depends on other rows of the batch"),
    "rows turned around": (
        {"block": lambda h: dense(h) + h[::-1]},
        "depends on other rows of the batch, at .*test_pipeline",
    ),
    "rows moved on": ({"block": lambda h: dense(h) + jnp.roll(h, 1, axis=0)}, "depends on other rows of the batch"),
    "mean in a loop": (
        {"block": lambda h: jax.lax.scan(lambda z, i: (z - z.mean(0), None), dense(h), jnp.arange(2))[0]},
        "depends on other rows of the batch",
    ),
    "loop": (
        outside(lambda h, v: jax.lax.scan(lambda z, i: (z * v, None), h, jnp.arange(2))[0]),
        "a loop or branch in the block, at .*test_pipeline.*, reads a value from outside",
    ),
    "seed": ({"block": lambda h: layers.dropout(dense(h), 0.5, seed=3)}, "with a key of its own; leave seed= out"),
    "key of its own": (
        random(lambda k, h: jax.random.normal(jax.random.key(3), h.shape)),
        "test_pipeline.* draws random numbers with a key of its own",
    ),
    "seed in a call": (
        {"block": lambda h: layers.remat(lambda: layers.dropout(dense(h), 0.5, seed=3))},
        "with a key of its own; leave seed= out",
    ),
}


@pytest.mark.parametrize(
    "draw",
    [
        lambda key, h: jax.random.gamma(key, 2.0, h.shape),
        lambda key, h: jax.random.normal(key, (h.size,)).reshape(h.shape),
        lambda key, h: jax.vmap(lambda k: jax.random.uniform(k, h.shape[1:]))(jax.random.split(key, h.shape[0])),
    ],
    ids=["gamma", "flat", "a key for each row"],
)
def test_blocks_draw_randomly_from_the_step_key(draw):
    assert [v.shape for v in traced(**random(draw))] == [(6, 4)]


@pytest.mark.parametrize("case", REFUSED)
def test_unsupported_pipelines_are_refused(case):
    settings, words = REFUSED[case]
    with pytest.raises(errors.FluidError, match=words):
        traced(**settings)


def test_outside_values_with_rows_raise_a_hint():
    made = []

    def x(fed):
        made[:] = [fed]
        return fed

    with pytest.raises(Exception, match="incompatible shapes") as raised:
        traced(lambda h: dense(h) + made[0], x=x)
    assert any("was given 7 here; values from outside that have rows go through x" in n for n in raised.value.__notes__)
