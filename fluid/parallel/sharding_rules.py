"""Sharding rules: the axes of a mesh that divide the dimensions of each parameter.

The first of these rules that applies to a parameter decides:

1. `shardings=`: the entry with the name of the parameter, else the glob that matches; two globs with different values
   are an error. `{"fc_*.w_0": (None, "model")}` divides the columns of `fc_0.w_0` over `model`. In `layers.repeat`,
   where the array is a stack of blocks, an entry is for the entire stack.
2. `ParamAttr(sharding=("model",))` divides the rows. In a block of `layers.repeat`, it is for the array of one block.
3. Otherwise the parameter is replicated on every device.

Two rules divide further dimensions:

4. The first dimension of a stack of `layers.repeat(pipeline="stage")` is divided over `stage`, unless rule 1 names
   another axis for it.
5. On a mesh with `fsdp`, a parameter of at least 4096 elements is also divided over `fsdp`: an embedding table by rows,
   another parameter along its longest dimension that is divisible and not divided yet. Rules 1 and 2 prevent this if
   they name `fsdp`, or no axis at all: `{"emb.w_0": (None,)}` replicates a table.

States, such as the statistics of `batch_norm`, follow rules 1 to 4. The optimizer state of a parameter is divided like
the parameter.
"""

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from fluid import errors
from fluid._util.globs import pattern_of, select
from fluid.core import FSDP, Axes, ParameterSpec, Program, axes_of, check_stages, partition, stack_axes
from fluid.param_attr import Shardings

# The type of a mapping from the name of each parameter to its shape and its PartitionSpec.
Divided = Mapping[str, tuple[tuple[int, ...], PartitionSpec]]

# Minimum number of elements of an array that is divided over the mesh axis "fsdp": for smaller arrays the saved memory
# is not worth the time of an all-gather.
_SMALL = 4096


class ShardingRules:
    """The rules that choose the PartitionSpec of each parameter on a mesh; the module docstring lists them.

    Raises:
      ArgumentError: a sharding is invalid, or names an axis that the mesh does not have.

    Example:
      >>> import fluid, jax
      >>> mesh = fluid.Mesh(fsdp=1, model=1).over(jax.devices()[:1])
      >>> rules = ShardingRules(mesh, {"fc_*.w_0": (None, "model"), "whole.w_0": (None,)})
      >>> def spec_of(name, shape, sharding=None, table=False):
      ...     attr = fluid.ParamAttr(sharding=sharding)
      ...     return tuple(rules.of(name, ParameterSpec(name, shape, "float32", None, True, attr), table))
      >>> spec_of("fc_0.w_0", (4, 6), sharding=("model",))  # rule 1 comes before rule 2
      (None, 'model')
      >>> spec_of("out.w_0", (4, 6), sharding=("model",))  # rule 2
      ('model',)
      >>> spec_of("out.w_0", (4, 6))  # rule 3
      ()
      >>> spec_of("fc_0.w_0", (4000, 6)), spec_of("out.w_0", (6, 4000))  # rules 1 and 5, rules 3 and 5
      (('fsdp', 'model'), (None, 'fsdp'))
      >>> spec_of("emb.w_0", (6, 4000), table=True), spec_of("whole.w_0", (6, 4000))  # a table by rows; no axis at all
      (('fsdp', None), (None,))
    """

    def __init__(self, mesh: jax.sharding.Mesh, shardings: Shardings | None = None):
        self._mesh = mesh
        self._shardings = {
            name: axes_of(f"shardings[{name!r}]", sharding, mesh.shape, strict=True)
            for name, sharding in (shardings or {}).items()
        }

    def of(self, name: str, spec: ParameterSpec, table: bool = False) -> PartitionSpec:
        """Return the PartitionSpec of one parameter or state.

        Raises:
          ArgumentError: a sharding is invalid, names an axis that the mesh does not have, or does not divide the shape;
            or two globs match, and differ.
        """
        stack = self._stack(name, spec)
        pattern = pattern_of(name, self._shardings, "shardings")
        own = getattr(spec.settings, "sharding", None)
        found, keeps_whole = partition(stack) if any(stack) else PartitionSpec(), False
        if pattern is not None:
            sharding = self._shardings[pattern]
            found = self._fitting(f"shardings[{pattern!r}]", _with_stack(stack, sharding), spec)
            keeps_whole = not any(sharding)
        elif own is not None:
            owner = f"ParamAttr(sharding=) of {name}"
            found = self._fitting(owner, stack + axes_of(owner, own, self._mesh.shape), spec)
            keeps_whole = not any(own)
        used = {axis for entry in found for axis in ((entry,) if isinstance(entry, str) else entry or ())}
        if keeps_whole or FSDP in used or spec.trainable is None:
            return found
        return self._divided(spec.shape, table, found, len(stack_axes(spec)))

    def check_used(self, names: Collection[str]) -> None:
        """Check that each name and glob in `shardings` matches one of `names`.

        Raises:
          UnknownNameError: a name or glob matches nothing.
        """
        select(list(self._shardings), names, "shardings")

    def follow(self, path: Sequence[Any], shape: tuple[int, ...], specs: Divided) -> PartitionSpec:
        """Return the PartitionSpec of an array of the optimizer state, derived from the parameter that it belongs to.

        An array that has only some dimensions of its parameter, such as one number for each row, is divided like these
        dimensions. If its shape does not show which ones, as one number for each row or column of a square matrix, or
        if it belongs to no parameter, the array is divided over "fsdp", if this is possible.
        """
        for entry in path:
            sizes, spec = specs.get(getattr(entry, "key", ""), ((), PartitionSpec()))
            every = itertools.combinations(range(len(sizes)), len(shape))
            found = [dimensions for dimensions in every if tuple(sizes[i] for i in dimensions) == shape]
            if sizes and len(found) == 1:
                return PartitionSpec(*(spec[i] for i in found[0] if i < len(spec)))
        return self._divided(shape, table=False)

    def _stack(self, name: str, spec: ParameterSpec) -> Axes:
        """Return the mesh axes that divide the blocks of `layers.repeat`, whose parameters are stacked in one array.

        The result has one entry for each leading dimension of the array that numbers blocks.
        """
        stack = stack_axes(spec)
        owner = f"layers.repeat(pipeline=) of {name}"
        axes = axes_of(owner, stack, self._mesh.shape)
        for count, found in zip(spec.shape, axes, strict=False):
            for axis in found:
                check_stages(owner, axis, count, self._mesh.shape[axis])
        return axes

    def _divided(
        self,
        shape: tuple[int, ...],
        table: bool,
        beside: PartitionSpec = PartitionSpec(),  # noqa: B008
        depth: int = 0,
    ) -> PartitionSpec:
        """Add the mesh axis "fsdp" to the PartitionSpec `beside`, at a dimension that is divisible and not divided yet.

        If there is no such dimension, or the array is small, return `beside` unchanged. The first `depth` dimensions
        are never divided: they number the blocks of `layers.repeat`, which run one after the other.
        """
        count = self._mesh.shape.get(FSDP, 1)
        entries = [*beside, *[None] * (len(shape) - len(beside))]
        fitting = [i for i, size in enumerate(shape) if i >= depth and size % count == 0 and entries[i] is None]
        if FSDP not in self._mesh.shape or not fitting or math.prod(shape) < _SMALL:
            return beside
        chosen = 0 if table and 0 in fitting else max(fitting, key=lambda i: shape[i])
        entries[chosen] = FSDP
        return PartitionSpec(*entries)

    def _fitting(self, owner: str, sharding: Axes, spec: ParameterSpec) -> PartitionSpec:
        """Check that a sharding divides the shape of an array evenly, and convert it to a PartitionSpec."""
        what = f"{spec.name} is {spec.dtype}{list(spec.shape)}"
        if len(sharding) > len(spec.shape):
            raise errors.ArgumentError(
                f"{owner} is for {len(sharding)} dimensions, and {what}; give {len(spec.shape)} axes or fewer"
            )
        for i, axes in enumerate(sharding):
            count = math.prod(self._mesh.shape[axis] for axis in axes)
            if spec.shape[i] % count:
                raise errors.ArgumentError(
                    f"{owner}: {what}, and its dimension {i}, of {spec.shape[i]}, cannot be divided over "
                    f"{' and '.join(map(repr, axes))}, of {count} devices; divide another dimension, or none: "
                    f"{(None,) * len(spec.shape)}"
                )
        return partition(sharding)


def _with_stack(stack: Axes, sharding: Axes) -> Axes:
    """Complete the user's `sharding` of a stack, an array that holds the parameters of several equal blocks.

    A dimension for which `sharding` names no mesh axis gets the axes that `stack` names for this dimension.
    """
    longer = sharding + ((),) * (len(stack) - len(sharding))
    return tuple(said or mine for said, mine in zip(longer, stack, strict=False)) + longer[len(stack) :]


class ParameterShardings:
    """The shardings of the parameters, states and optimizer states of all programs, from the sharding rules.

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
          ArgumentError: a parameter cannot be divided as its sharding rule demands.
        """
        arrays = program.parameters | program.states
        found = {n: (spec.shape, self.rules.of(n, spec, n in program.lookups)) for n, spec in arrays.items()}
        self._divided = found | self._divided

    def sharding(self, name: str) -> NamedSharding:
        """Return the sharding of the parameter or state `name`."""
        return NamedSharding(self.mesh, self._divided[name][1])

    def slot_shapes(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the shape, dtype and sharding of each array of the initial optimizer state of an update rule."""

        def shape(path: Any, slot: Any) -> jax.ShapeDtypeStruct:
            spec = self.rules.follow(path, slot.shape, self._divided)
            return jax.ShapeDtypeStruct(slot.shape, slot.dtype, sharding=NamedSharding(self.mesh, spec))

        return jax.tree_util.tree_map_with_path(shape, jax.eval_shape(rule.init, parameters))
