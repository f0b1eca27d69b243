"""Places: which device a Session works on."""

from dataclasses import dataclass

import jax
import numpy as np

from fluid import errors


@dataclass(frozen=True)
class CPUPlace:
    """The host's processor.

    Example:
      >>> import fluid
      >>> fluid.place.device_of(fluid.CPUPlace()).platform
      'cpu'
    """


@dataclass(frozen=True)
class CUDAPlace:
    """One NVIDIA GPU.

    Args:
      device_id: position among the GPUs that JAX sees.

    Example:
      >>> import fluid
      >>> fluid.CUDAPlace(1).device_id
      1
    """

    device_id: int = 0


Place = CPUPlace | CUDAPlace | str | None


def device_of(place: Place) -> jax.Device:
    """The JAX device of a place.

    Args:
      place: None for JAX's default device, a CPUPlace or CUDAPlace, or a string such as "cpu", "gpu:0", "tpu:1".

    Raises:
      ArgumentError: the place is none of those.
      DeviceError: this machine has no such device.

    Example:
      >>> device_of("cpu:0").platform
      'cpu'
    """
    if place is None:
        return next(iter(jax.device_put(np.int32(0)).devices()))  # heeds jax.default_device
    kind, index = _kind_and_index(place)
    try:
        devices = jax.local_devices(backend=kind)
    except RuntimeError:
        devices = []
    if index < len(devices):
        return devices[index]
    here = ", ".join(f'"{d.platform}:{d.id}"' for d in jax.local_devices())
    raise errors.DeviceError(
        f"{place!r} asks for a device that is not here; JAX sees {here}. "
        f"Use place=None for the default device, or install JAX for it (pip install 'jax[cuda]')"
    )


def _kind_and_index(place: CPUPlace | CUDAPlace | str) -> tuple[str, int]:
    if isinstance(place, CPUPlace):
        return "cpu", 0
    if isinstance(place, CUDAPlace):
        return "cuda", place.device_id
    if isinstance(place, str):
        kind, _, index = place.partition(":")
        if kind in ("cpu", "gpu", "cuda", "rocm", "tpu") and (index or "0").isdigit():
            return kind, int(index or 0)
    raise errors.ArgumentError(
        f'a place is None, fluid.CPUPlace(), fluid.CUDAPlace(0) or a string like "cpu" or "gpu:0"; found {place!r}'
    )
