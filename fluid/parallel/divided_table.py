"""Divided tables: each device reads and writes the rows of its own shard; no table rows are sent between devices."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec


class DividedTable:
    """The implementation of `fluid.core.layout.TableRows` for a sharded table. All devices know the ids of the rows.

    Args:
      sharding: the sharding of the table, which divides its first dimension.
    """

    def __init__(self, sharding: NamedSharding):
        self._sharding = sharding

    def read(self, array: Any, ids: Any) -> Any:
        """Return rows of a table `[count, ...]`, as an array `[shards * n, ...]`.

        Each shard has `n` of these rows, one for each id; rows that are in another shard are 0 there.
        """

        def read(mine: Any, ids: Any) -> Any:
            return mine.at[self._here(mine, ids)].get(
                mode="fill", fill_value=0, indices_are_sorted=True, unique_indices=True, wrap_negative_indices=False
            )

        return self._mapped(read, array, ids)

    def beside(self, values: Any) -> Any:
        """Repeat values `[n, ...]` once for each shard, in the layout of the result of `read`: `[shards * n, ...]`."""
        spec = self._sharding.spec
        known = PartitionSpec(None, *spec[1:])
        mapped = jax.shard_map(
            lambda values: values, mesh=self._sharding.mesh, in_specs=known, out_specs=spec, check_vma=False
        )
        return mapped(values)

    def write(self, array: Any, ids: Any, rows: Any) -> Any:
        """Return the table `[count, ...]` with new rows; each device writes the rows of its own shard.

        Args:
          array: the table.
          ids: the row numbers `[n]`.
          rows: the new rows `[shards * n, ...]`, in the layout of the result of `read`.
        """

        def write(mine: Any, rows: Any, ids: Any) -> Any:
            return mine.at[self._here(mine, ids)].set(
                rows, mode="drop", indices_are_sorted=True, unique_indices=True, wrap_negative_indices=False
            )

        return self._mapped(write, array, rows, ids)

    def _mapped(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """Apply a function to the shards of arrays on each device; the last argument, the ids, is whole."""
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
        """Return the positions of ids in the shard of this device; positions outside are neither read nor written."""
        return ids - jax.lax.axis_index(self._sharding.spec[0]) * mine.shape[0]
