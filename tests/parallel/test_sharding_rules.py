"""Tests of sharding rules that need a single device."""

import jax
import pytest
from jax.sharding import PartitionSpec

import fluid
from fluid.parallel.sharding_rules import ShardingRules


@pytest.mark.parametrize(
    ("sizes", "axes", "shape", "expected"),
    [
        ((6, 4), ("model", "data"), (6, 4), ("model", "data")),
        ((6, 4), ("model", "data"), (6,), ("model",)),
        ((6, 4), ("model", "data"), (4,), ("data",)),
        ((6, 4), ("model",), (4,), ()),
        ((6, 6), ("model",), (6, 6), ("model",)),
        ((6, 6), ("model",), (6,), ()),  # one number for each row, or for each column
        ((2, 6, 4), (None, "model"), (2, 4), (None,)),
        ((6, 4), ("model",), (5,), ()),
        ((6, 4), ("model",), (), ()),
    ],
)
def test_optimizer_states_follow_dimensions_that_their_shape_shows(sizes, axes, shape, expected):
    rules = ShardingRules(fluid.Mesh(data=1, model=1).over(jax.devices()[:1]))
    path = (jax.tree_util.GetAttrKey("v_col"), jax.tree_util.DictKey("w"))
    assert rules.follow(path, shape, {"w": (sizes, PartitionSpec(*axes))}) == PartitionSpec(*expected)
