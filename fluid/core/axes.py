"""Mesh axes: checks and conversions of the mesh axes that shard the dimensions of arrays."""

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from fluid import errors

# Names of the mesh axes that shard the batch. The axis "fsdp" also shards parameters and optimizer state.
DATA = "data"
FSDP = "fsdp"

# `Axes` has one tuple of mesh axes for each dimension of an array. Dimensions after the last tuple are not sharded.
Axes = tuple[tuple[str, ...], ...]


def axes_of(owner: str, sharding: Any, known: Mapping[str, int], strict: bool = False) -> Axes:
    """Convert the user's sharding of an array to `Axes`: one tuple of mesh axes for each dimension.

    A mesh with only the batch axes "data" and "fsdp" ignores other axis names, unless `strict` is set. So a program
    that names more axes also runs on such a mesh.

    Raises:
      ArgumentError: `sharding` has another form, names an unknown axis, or uses an axis twice.

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
    """Convert `axes`, a tuple of mesh axes for each dimension of an array, to a `PartitionSpec` of JAX."""
    return PartitionSpec(*(None if not found else found[0] if len(found) == 1 else found for found in axes))


def axes_here() -> dict[str, int]:
    """Return the size of each mesh axis, by name, for the step that JAX traces now; an empty dict on one device."""
    return dict(jax.sharding.get_abstract_mesh().shape)


def manual_axes_here() -> set[str]:
    """Return the manual mesh axes: the axes of the enclosing `jax.shard_map`, in which a device sees only its shard."""
    mesh = jax.sharding.get_abstract_mesh()
    return set(mesh.manual_axes) if mesh.shape else set()


@contextlib.contextmanager
def manual_axes(axes: Collection[str]) -> Iterator[None]:
    """Trace the body of the `with` statement as if it were inside a `jax.shard_map` over the mesh axes `axes`."""
    mesh = jax.sharding.get_abstract_mesh()
    with jax.sharding.use_abstract_mesh(mesh.update_axis_types(dict.fromkeys(axes, AxisType.Manual))):
        yield


def divided(array: Any, axes: Axes) -> Any:
    """Constrain the sharding of an array to `axes`, a tuple of mesh axes for each dimension, in a traced step.

    On one device, the function returns the array unchanged. The function ignores axes of an enclosing
    `jax.shard_map`, because they already divide the array.
    """
    if not axes_here():
        return array
    done = manual_axes_here()
    return jax.lax.with_sharding_constraint(array, partition(tuple(tuple(a for a in d if a not in done) for d in axes)))


def refuse_mesh(owner: str, instead: str) -> None:
    """Raise an error for a layer that calls Python on the host if JAX traces the layer for several devices.

    The devices would wait for each other at the call of Python; CPU devices would wait forever.

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
