"""Which dimension of a parameter is divided over which axis of a mesh."""

import fnmatch
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from fluid import errors
from fluid.core import FSDP, Axes, ParameterSpec, axes_of, check_stages, partition, stack_axes
from fluid.naming import select
from fluid.param_attr import Shardings

# For each parameter its shape and how it is divided, by name.
Divided = Mapping[str, tuple[tuple[int, ...], PartitionSpec]]

# What is smaller costs more to bring together than it takes to hold.
_SMALL = 4096


class Rules:
    """How the parameters of programs are divided over a mesh.

    The first of `shardings` that matches decides, then the parameter's own `ParamAttr(sharding=)`. What nobody decides
    is whole on every device; but over an axis `fsdp` parameters of more than a few thousand numbers are divided: tables
    by rows, others along their longest dimension that can be divided. So are those that are divided over other axes,
    along a dimension that is left; only a sharding that names no axis at all keeps a parameter whole. Of the arrays of
    `layers.repeat`, `ParamAttr(sharding=)` is about those of one block, and `shardings` about all of them as a stack,
    whose first dimension is divided over the axis of its pipeline in any case.

    Args:
      mesh: the devices.
      shardings: by names and globs.

    Raises:
      ArgumentError: a sharding is none, or names an axis that is not there.

    Example:
      >>> import fluid, jax
      >>> mesh = fluid.Mesh(fsdp=1, model=1).over(jax.devices()[:1])
      >>> rules = Rules(mesh, {"fc_*.w_0": (None, "model")})
      >>> tuple(rules.of("fc_0.w_0", ParameterSpec("fc_0.w_0", (4, 6), "float32", None, True)))
      (None, 'model')
      >>> tuple(rules.of("emb.w_0", ParameterSpec("emb.w_0", (4000, 6), "float32", None, True)))
      ('fsdp', None)
    """

    def __init__(self, mesh: jax.sharding.Mesh, shardings: Shardings | None = None):
        self._mesh = mesh
        self._shardings = {
            name: axes_of(f"shardings[{name!r}]", sharding, mesh.shape, strict=True)
            for name, sharding in (shardings or {}).items()
        }

    def of(self, name: str, spec: ParameterSpec, table: bool = False) -> PartitionSpec:
        """How one parameter or state is divided.

        Args:
          name: its name.
          spec: its declaration.
          table: whether its rows are looked up.

        Raises:
          ArgumentError: a sharding is none, names an axis that is not there, or divides what cannot be divided.
        """
        stack = self._stack(name, spec)
        for pattern, sharding in self._shardings.items():
            if pattern == name or fnmatch.fnmatchcase(name, pattern):
                found = self._fitting(f"shardings[{pattern!r}]", _with_stack(stack, sharding), spec)
                return self._also_divided(found, sharding, spec, table)
        own = getattr(spec.settings, "sharding", None)
        if own is not None:
            owner = f"ParamAttr(sharding=) of {name}"
            found = self._fitting(owner, stack + axes_of(owner, own, self._mesh.shape), spec)
            return self._also_divided(found, own, spec, table)
        return self._also_divided(partition(stack) if any(stack) else PartitionSpec(), (FSDP,), spec, table)

    def check_used(self, names: Collection[str]) -> None:
        """Find out whether each of `shardings` stands for something.

        Raises:
          UnknownNameError: one matches no name.
        """
        select(list(self._shardings), names, "shardings")

    def follow(self, path: Sequence[Any], shape: tuple[int, ...], specs: Divided) -> PartitionSpec:
        """How an optimizer's slot is divided: as the parameter under whose name it is kept.

        A slot of the first dimensions alone, such as one number for each row, is divided as these are.

        Args:
          path: where the slot is in the optimizer's state, as from `jax.tree_util`.
          shape: of the slot.
          specs: the parameters.
        """
        for entry in path:
            known = specs.get(getattr(entry, "key", ""))
            if known is not None and known[0][: len(shape)] == shape:
                return PartitionSpec(*known[1][: len(shape)])
        return self._divided(shape, table=False)

    def _also_divided(
        self, found: PartitionSpec, said: Sequence[Any], spec: ParameterSpec, table: bool
    ) -> PartitionSpec:
        """The same, and over "fsdp" along a dimension that is left, where the user has named other axes."""
        used = {axis for entry in found for axis in ((entry,) if isinstance(entry, str) else entry or ())}
        if not any(said) or FSDP in used or spec.trainable is None:
            return found
        return self._divided(spec.shape, table, found, len(stack_axes(spec)))

    def _stack(self, name: str, spec: ParameterSpec) -> Axes:
        """How the dimensions of an array are divided that are those of the stacks which it is in."""
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
        """What is divided over "fsdp" although nobody said so, beside what is divided already.

        The blocks of a stack are used one after the other, so none of its first dimensions is divided.
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
        """The same as a PartitionSpec of an array."""
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
    """A sharding of a whole array, whose first dimensions are divided as a stack where it divides them by nothing."""
    longer = sharding + ((),) * (len(stack) - len(sharding))
    return tuple(said or mine for said, mine in zip(longer, stack, strict=False)) + longer[len(stack) :]
