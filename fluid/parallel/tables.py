"""Tables whose rows are divided among devices: each reads and writes the rows that it has, and none of them travels."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec


class DividedTable:
    """Reads and writes some rows of a table, or of a slot of it, inside a compiled step.

    Rows are named by ids `[n]` that all devices know: ascending, each once, and the number of rows for what is none.

    Args:
      sharding: how the table lies; its first dimension is divided into parts.
    """

    def __init__(self, sharding: NamedSharding):
        self._sharding = sharding

    def read(self, array: Any, ids: Any) -> Any:
        """For each part of a table `[count, ...]` those rows, `[parts * n, ...]`, with 0 for what other parts have."""

        def read(mine: Any, ids: Any) -> Any:
            return mine.at[self._here(mine, ids)].get(
                mode="fill", fill_value=0, indices_are_sorted=True, unique_indices=True, wrap_negative_indices=False
            )

        return self._mapped(read, array, ids)

    def beside(self, values: Any) -> Any:
        """Values for those rows, `[n, ...]`, laid out like what `read` returns: `[parts * n, ...]`."""
        spec = self._sharding.spec
        known = PartitionSpec(None, *spec[1:])
        mapped = jax.shard_map(
            lambda values: values, mesh=self._sharding.mesh, in_specs=known, out_specs=spec, check_vma=False
        )
        return mapped(values)

    def write(self, array: Any, ids: Any, rows: Any) -> Any:
        """A table `[count, ...]` with other rows, of which each part takes its own from those that `read` returned."""

        def write(mine: Any, rows: Any, ids: Any) -> Any:
            return mine.at[self._here(mine, ids)].set(
                rows, mode="drop", indices_are_sorted=True, unique_indices=True, wrap_negative_indices=False
            )

        return self._mapped(write, array, rows, ids)

    def _mapped(self, function: Callable[..., Any], *arrays: Any) -> Any:
        """A function of the parts of arrays, and of the ids, which come last and are whole, on each device."""
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
        """Where rows are in the part of this device; what is outside of it is neither read nor written."""
        return ids - jax.lax.axis_index(self._sharding.spec[0]) * mine.shape[0]
