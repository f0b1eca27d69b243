"""Axes of a mesh of devices: what divides the dimensions of an array."""

import contextlib
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
from jax.sharding import AxisType, PartitionSpec

from fluid import errors

# The axes that divide the batch; "fsdp" divides parameters and slots as well.
DATA = "data"
FSDP = "fsdp"

# For each dimension of an array the axes that divide it; those behind the last are whole.
Axes = tuple[tuple[str, ...], ...]


def axes_of(owner: str, sharding: Any, known: Mapping[str, int], strict: bool = False) -> Axes:
    """Read a sharding, which names an axis for each dimension, several, or None.

    A program that names axes runs on any mesh: where there are no other axes than those of the batch, what it names
    beside them divides nothing.

    Args:
      owner: whose it is, for messages.
      sharding: what the user gave.
      known: the axes of the mesh and their sizes.
      strict: whether an axis that is not there is an error in any case.

    Raises:
      ArgumentError: it is no sharding, or names an axis that is not there.

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
    """What JAX calls it."""
    return PartitionSpec(*(None if not found else found[0] if len(found) == 1 else found for found in axes))


def axes_here() -> dict[str, int]:
    """The axes of the mesh that the step which is traced is for, and their sizes; none on one device."""
    return dict(jax.sharding.get_abstract_mesh().shape)


def manual_axes_here() -> set[str]:
    """Those of them of which each device has its part, and sees no other: the inside of `jax.shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    return set(mesh.manual_axes) if mesh.shape else set()


@contextlib.contextmanager
def manual_axes(axes: Collection[str]) -> Iterator[None]:
    """Trace something as the inside of a `jax.shard_map` over these axes will be."""
    mesh = jax.sharding.get_abstract_mesh()
    with jax.sharding.use_abstract_mesh(mesh.update_axis_types(dict.fromkeys(axes, AxisType.Manual))):
        yield


def divided(array: Any, axes: Axes) -> Any:
    """An array, divided so on the mesh that the step which is traced is for."""
    if not axes_here():
        return array
    done = manual_axes_here()
    return jax.lax.with_sharding_constraint(array, partition(tuple(tuple(a for a in d if a not in done) for d in axes)))


def refuse_mesh(owner: str, instead: str) -> None:
    """Refuse what the host computes in the middle of a step, while the step is traced for several devices.

    They wait for each other there, and with devices of a CPU for good.

    Args:
      owner: the layer, for the message.
      instead: what to write.

    Raises:
      ArgumentError: there are several devices.
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
