"""Axes: the axes of a mesh of devices, which divide the dimensions of arrays."""

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from fluid import errors

# The axes that divide the batch; "fsdp" also divides parameters and optimizer state.
DATA = "data"
FSDP = "fsdp"

# For each dimension of an array, the axes that divide it; dimensions after the last entry are whole.
Axes = tuple[tuple[str, ...], ...]


def axes_of(owner: str, sharding: Any, known: Mapping[str, int], strict: bool = False) -> Axes:
    """Convert a sharding, which names one axis, several axes or None for each dimension, to Axes.

    A program that names axes also runs on a mesh that has only the axes of the batch. There, the other names in a
    sharding divide nothing.

    Args:
      owner: the owner of the sharding, for messages.
      sharding: the user's argument.
      known: the axes of the mesh and their sizes.
      strict: refuse an axis that the mesh does not have, also on a mesh that has only the axes of the batch.

    Raises:
      ArgumentError: the value is not a sharding, names an unknown axis, or uses an axis twice.

    Example:
      >>> axes_of("w", (None, "model", ("data", "fsdp")), {"data": 2, "fsdp": 2, "model": 2})
      ((), ('model',), ('data', 'fsdp'))
    """
    if isinstance(sharding, str) or not isinstance(sharding, Sequence) or not all(map(_is_axis, sharding)):
        raise errors.ArgumentError(
            f'{owner}: found {sharding!r}, expected for each dimension an axis of the mesh, or None: (None, "model")'
        )
    found = [() if d is None else (d,) if isinstance(d, str) else tuple(d) for d in sharding]
    every = [axis for axes in found for axis in axes]
    missing = [axis for axis in every if axis not in known]
    if missing and (strict or not {DATA, FSDP}.issuperset(known)):
        more = ", ".join(f"{name}={size}" for name, size in {**known, missing[0]: 1}.items())
        raise errors.ArgumentError(
            f"{owner}: {tuple(sharding)!r} names the axis {missing[0]!r}, and the mesh has "
            f"{', '.join(map(repr, known))}. {errors.nearest(missing[0], known)} An axis of one device divides "
            f"nothing: parallel=fluid.Mesh({more})"
        )
    if len(set(every)) < len(every):
        raise errors.ArgumentError(f"{owner}: {tuple(sharding)!r} uses an axis twice; an axis divides one dimension")
    return tuple(tuple(axis for axis in axes if axis in known) for axes in found)


def partition(axes: Axes) -> PartitionSpec:
    """Convert Axes to a PartitionSpec of JAX."""
    return PartitionSpec(*(None if not found else found[0] if len(found) == 1 else found for found in axes))


def axes_here() -> dict[str, int]:
    """Return the axes and sizes of the mesh of the step that is being traced; empty on one device."""
    return dict(jax.sharding.get_abstract_mesh().shape)


def manual_axes_here() -> set[str]:
    """Return the manual axes of the mesh: the axes of `jax.shard_map`, inside which a device sees only its part."""
    mesh = jax.sharding.get_abstract_mesh()
    return set(mesh.manual_axes) if mesh.shape else set()


@contextlib.contextmanager
def manual_axes(axes: Collection[str]) -> Iterator[None]:
    """Trace the block as if it were inside a `jax.shard_map` over these axes."""
    mesh = jax.sharding.get_abstract_mesh()
    with jax.sharding.use_abstract_mesh(mesh.update_axis_types(dict.fromkeys(axes, AxisType.Manual))):
        yield


def divided(array: Any, axes: Axes) -> Any:
    """Constrain the sharding of an array to `axes` on the mesh of the step that is being traced.

    On one device, the array stays unchanged. Manual axes are left out, because they already divide the array.
    """
    if not axes_here():
        return array
    done = manual_axes_here()
    return jax.lax.with_sharding_constraint(array, partition(tuple(tuple(a for a in d if a not in done) for d in axes)))


def refuse_mesh(owner: str, instead: str) -> None:
    """Refuse a layer that computes on the host in the middle of a step for several devices.

    The devices would wait for each other at the call of the host; devices of a CPU would wait forever.

    Args:
      owner: the layer, for the message.
      instead: the advice, for the message.

    Raises:
      ArgumentError: the step is traced for several devices.
    """
    if math.prod(axes_here().values()) > 1:
        raise errors.ArgumentError(
            f"{owner}: the host cannot take part in a step on several devices, Mesh"
            f"({', '.join(f'{name}={size}' for name, size in axes_here().items())}); {instead}, or leave parallel= out"
        )


def _is_axis(entry: Any) -> bool:
    return entry is None or isinstance(entry, str) or (isinstance(entry, tuple | list) and all(map(_is_name, entry)))


def _is_name(entry: Any) -> bool:
    return isinstance(entry, str)
