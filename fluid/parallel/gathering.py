"""Gathering: all-gather parameters that are sharded over the mesh axis "fsdp" where a program reads them.

The optimizer updates shards. A program reads a gathered copy of a parameter. In a stack of blocks, such as
`layers.repeat` creates, each block gathers its own slice. A policy of `jax.checkpoint` gathers parameters again for the
backward pass, instead of storing the gathered copies.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend.core import primitives
from jax.sharding import NamedSharding, PartitionSpec

from fluid.core import FSDP, Program, partition, stack_depth
from fluid.core.equations import inner_jaxprs
from fluid.parallel.sharding_rules import ParameterShardings


class DividedTable:
    """A reader and writer of rows of an embedding table that is sharded by rows; see `fluid.core.layout.TableRows`.

    The row ids are replicated on all devices.
    """

    def __init__(self, sharding: NamedSharding):
        self._sharding = sharding

    def read(self, array: Any, ids: Any) -> Any:
        """Read rows of an embedding table `[count, ...]`, which is divided into shards on several devices.

        The argument `ids` has `n` row numbers. Each shard returns `n` rows, one for each id, so the result is
        `[shards * n, ...]`. A row that another shard holds is 0 in the result of this shard.
        """

        def read(mine: Any, ids: Any) -> Any:
            return mine.at[self._here(mine, ids)].get(
                mode="fill", fill_value=0, indices_are_sorted=True, unique_indices=True, wrap_negative_indices=False
            )

        return self._mapped(read, array, ids)

    def beside(self, values: Any) -> Any:
        """Repeat values `[n, ...]` for each shard of an embedding table, so that they correspond to rows of `read`.

        The result is an array `[shards * n, ...]` with the sharding of these rows.
        """
        spec = self._sharding.spec
        known = PartitionSpec(None, *spec[1:])
        mapped = jax.shard_map(
            lambda values: values, mesh=self._sharding.mesh, in_specs=known, out_specs=spec, check_vma=False
        )
        return mapped(values)

    def write(self, array: Any, ids: Any, rows: Any) -> Any:
        """Return the embedding table `[count, ...]` with new rows; each device writes the rows of its own shard.

        Args:
          ids: the row numbers `[n]`.
          rows: the new rows `[shards * n, ...]`: for each shard `n` rows, sharded like a result of `read`.
        """

        def write(mine: Any, rows: Any, ids: Any) -> Any:
            return mine.at[self._here(mine, ids)].set(
                rows, mode="drop", indices_are_sorted=True, unique_indices=True, wrap_negative_indices=False
            )

        return self._mapped(write, array, rows, ids)

    def _mapped(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """Run a function on each device, with the shards of `arrays` that the device stores.

        The last array, the row ids of a table, is not divided: each device gets all ids.
        """
        specs = [PartitionSpec(*self._sharding.spec[: array.ndim]) for array in arrays[:-1]]
        mapped = jax.shard_map(
            function,
            mesh=self._sharding.mesh,
            in_specs=(*specs, PartitionSpec()),
            out_specs=specs[0],
            check_vma=False,
        )
        return mapped(*arrays)

    def _here(self, mine: Any, ids: Any) -> Any:
        """Convert row ids of a sharded table to row indices in the shard of this device.

        The index of a row in another shard is out of range.
        """
        return ids - jax.lax.axis_index(self._sharding.spec[0]) * mine.shape[0]


# The results of these operations are as large as a parameter. The backward pass computes the results again, so that
# they are not stored. One operation is the gather of a sharded parameter; layers apply the others to a parameter.
# `checkpoint_name` would be no alternative: it stores its input, the gathered copy. Also, inside a `jax.jit` with
# `out_shardings`, a pipeline with `checkpoint_name` gathers twice as often (jax 0.10.2).
_NOT_KEPT = {
    primitives.sharding_constraint_p,
    primitives.convert_element_type_p,
    primitives.reshape_p,
    primitives.transpose_p,
    primitives.squeeze_p,
}


class _Gathered(NamedTuple):
    """The sharding of a parameter before and after it is gathered over the mesh axis "fsdp".

    Attributes:
      parts: the mesh axes that divide each dimension before the gather.
      whole: the mesh axes that divide each dimension after the gather, all except "fsdp".
      is_stack: True if the array is a stack of the parameters of several blocks.
    """

    parts: tuple[Any, ...]
    whole: tuple[Any, ...]
    is_stack: bool


class MeshGathering:
    """A reader of sharded parameters on a mesh, which implements `fluid.core.Gathering`."""

    def __init__(self, parameters: ParameterShardings):
        self._parameters = parameters
        self._mesh = parameters.mesh
        self._gathered: dict[str, _Gathered] = {}

    def add(self, program: Program) -> None:
        """Register the parameters of a program that `gather` gathers from all devices.

        These are the parameters that the mesh axis "fsdp" divides, except embedding tables.
        """
        for name, spec in (program.parameters | program.states).items():
            entries = tuple(self._parameters.sharding(name).spec)
            if name not in program.lookups and FSDP in jax.tree.leaves(entries):
                axes = ((entry,) if isinstance(entry, str) else entry or () for entry in entries)
                whole = partition(tuple(tuple(axis for axis in found if axis != FSDP) for found in axes))
                rest = [None] * (len(spec.shape) - len(entries))
                self._gathered[name] = _Gathered((*entries, *rest), (*whole, *rest), stack_depth(spec) > 0)

    def gather(self, name: str, array: Any) -> Any:
        """Gather the parts of a parameter, which the mesh axis "fsdp" divides, on each device inside a compiled step.

        `layers.repeat` joins the parameters of several blocks to one array, a stack. A complete stack is returned
        unchanged, and the slice of a stack for one block is gathered.
        """
        found = self._gathered.get(name)
        if found is None or (found.is_stack and array.ndim == len(found.parts)):
            return array
        first = len(found.parts) - array.ndim
        parts, whole = (NamedSharding(self._mesh, PartitionSpec(*axes[first:])) for axes in found[:2])
        return gathered(array, parts, whole)

    def gathering_again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its backward pass gathers parameters again instead of storing the gathered copies.

        So a device holds its own shards, and full parameters only of the layer that it computes. All other values are
        stored for the backward pass. A function that already recomputes blocks, as with `layers.repeat(remat=True)`,
        runs unchanged: its blocks gather their parameters inside, and this wrapper would override their policy.
        """

        def call(*arguments: Any) -> Any:
            if _recomputes(jax.make_jaxpr(function)(*arguments).jaxpr):
                return function(*arguments)
            return jax.checkpoint(function, policy=_is_kept)(*arguments)

        return call if self._gathered else function

    def replicate(self, value: Any) -> Any:
        """Replicate the arrays of a tree on every device, inside a compiled step."""
        return jax.lax.with_sharding_constraint(value, NamedSharding(self._mesh, PartitionSpec()))

    def table(self, name: str) -> DividedTable | None:
        """Return a DividedTable for an embedding table that is divided by rows; None if each device has all rows."""
        sharding = self._parameters.sharding(name)
        return DividedTable(sharding) if any(sharding.spec[:1]) else None


def gathered(array: Any, parts: NamedSharding, whole: NamedSharding) -> Any:
    """All-gather a sharded array inside a compiled step; the gradient gets the sharding of the array.

    References:
      Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020).
    """

    @jax.custom_vjp
    def gather(value: Any) -> Any:
        return jax.lax.with_sharding_constraint(value, whole)

    def forward(value: Any) -> tuple[Any, None]:
        return jax.lax.with_sharding_constraint(value, whole), None

    def backward(_: None, gradient: Any) -> tuple[Any]:
        return (jax.lax.with_sharding_constraint(gradient, parts),)

    gather.defvjp(forward, backward)
    return gather(array)


def _recomputes(jaxpr: Any) -> bool:
    return any(
        equation.primitive is primitives.remat_p or any(map(_recomputes, inner_jaxprs(equation)))
        for equation in jaxpr.eqns
    )


def _is_kept(operation: Any, *_: Any, **__: Any) -> bool:
    return operation not in _NOT_KEPT
