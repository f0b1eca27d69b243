"""Parameter shardings: the shardings of the parameters, states and optimizer states of all programs of a Session."""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from fluid.core import Program
from fluid.parallel.sharding_rules import ShardingRules


class ParameterShardings:
    """The sharding of each array by name, as the rules divide it.

    Args:
      mesh: the devices.
      rules: the sharding rules.

    Attributes:
      mesh: the devices.
      rules: the sharding rules.
    """

    def __init__(self, mesh: jax.sharding.Mesh, rules: ShardingRules):
        self.mesh = mesh
        self.rules = rules
        self._divided: dict[str, tuple[tuple[int, ...], PartitionSpec]] = {}

    def add(self, program: Program) -> None:
        """Register the arrays of a program; an array of an earlier program keeps its sharding.

        Raises:
          ArgumentError: a parameter cannot be divided as its rule says.
        """
        arrays = program.parameters | program.states
        found = {n: (spec.shape, self.rules.of(n, spec, n in program.lookups)) for n, spec in arrays.items()}
        self._divided = found | self._divided

    def sharding(self, name: str) -> NamedSharding:
        """Return the sharding of a parameter or a state."""
        return NamedSharding(self.mesh, self._divided[name][1])

    def slot_shapes(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the shape, dtype and sharding of each array of the initial optimizer state of an update rule."""

        def shape(path: Any, slot: Any) -> jax.ShapeDtypeStruct:
            spec = self.rules.follow(path, slot.shape, self._divided)
            return jax.ShapeDtypeStruct(slot.shape, slot.dtype, sharding=NamedSharding(self.mesh, spec))

        return jax.tree_util.tree_map_with_path(shape, jax.eval_shape(rule.init, parameters))
