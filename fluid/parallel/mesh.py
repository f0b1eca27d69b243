"""Meshes: the mesh for a value of `parallel=`, and the axes of a mesh that divide the batch."""

import jax

from fluid import errors
from fluid.core import DATA, FSDP
from fluid.place import Mesh, Parallel


def mesh_of(parallel: Parallel) -> Mesh:
    """Return the mesh for a value of `parallel=`.

    Raises:
      ArgumentError: `parallel` is no valid value.

    Example:
      >>> mesh_of(True), mesh_of("fsdp")
      (Mesh(data=-1), Mesh(fsdp=-1))
    """
    if isinstance(parallel, Mesh):
        return parallel
    if parallel is True:
        return Mesh(data=-1)
    if isinstance(parallel, str) and parallel == FSDP:
        return Mesh(fsdp=-1)
    raise errors.ArgumentError(
        f'parallel={parallel!r}: expected None for one device, True for the batch over all devices, "fsdp" for '
        f"parameters and slots over them as well, or a mesh such as fluid.Mesh(data=4, model=2)"
    )


def batch_axes(mesh: jax.sharding.Mesh) -> tuple[str, ...]:
    """Return the axes of a mesh that divide the batch, outermost first."""
    return tuple(name for name in mesh.axis_names if name in (DATA, FSDP))
