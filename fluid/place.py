"""Places and meshes: the device of a Session, or several devices along named axes."""

import contextlib
import functools
import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import numpy as np

from fluid import errors
from fluid.core import current_frame, own_array
from fluid.core.equations import DEFAULT, DEVICE

log = logging.getLogger("fluid")


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
      device_id: index among the GPUs that JAX sees.

    Example:
      >>> import fluid
      >>> fluid.CUDAPlace(1).device_id
      1
    """

    device_id: int = 0


OnePlace: TypeAlias = CPUPlace | CUDAPlace | jax.Device | str
Place: TypeAlias = OnePlace | list[OnePlace] | tuple[OnePlace, ...] | None


def device_of(place: Place) -> jax.Device:
    """Return the JAX device of a place.

    Args:
      place: None for JAX's default device, a CPUPlace or CUDAPlace, a `jax.Device`, or a string such as "cpu", "gpu:0",
        "TPU:1", in upper or lower case.

    Raises:
      ArgumentError: the value is not a place, or is a list of several places.
      DeviceError: this machine does not have the device.

    Example:
      >>> device_of("CPU:0").platform
      'cpu'
    """
    place = _listed(place)
    if place is None:
        return next(iter(jax.device_put(np.int32(0)).devices()))  # the default device, as `jax.default_device` sets it
    if isinstance(place, list | tuple):
        if len(place) == 1:
            return device_of(place[0])
        raise errors.ArgumentError(
            f"place={place!r}: {len(place)} places need parallel=, which says what is divided among their devices: "
            f"place={place!r}, parallel=True"
        )
    if isinstance(place, jax.Device):
        return place
    kind, index = _kind_and_index(place)
    devices = _devices(kind)
    if index < len(devices):
        return devices[index]
    raise _not_here(place)


def devices_of(place: Place) -> list[jax.Device]:
    """Return the JAX devices of a place, for arrays that are divided over several devices.

    Args:
      place: None for all devices of JAX's default kind, in all processes; "cpu", "gpu" or "tpu" for all devices of this
        kind; "gpu:1" for one device; or a list of places, each of which stands for one device, also written
        "gpu:0,gpu:1".

    Raises:
      ArgumentError: the value is not a place, or names a device twice.
      DeviceError: this machine does not have the device.

    Example:
      >>> [device.platform for device in devices_of(["cpu:0"])]
      ['cpu']
    """
    place = _listed(place)
    if place is None:
        return jax.devices()
    if isinstance(place, list | tuple):
        found = [device_of(one) for one in place]
        if not found or len(set(found)) < len(found):
            raise errors.ArgumentError(f'place={place!r}: expected devices, each once, as in ["gpu:0", "gpu:1"]')
        return found
    if isinstance(place, jax.Device):
        return [place]
    kind, _ = _kind_and_index(place)
    if isinstance(place, CPUPlace) or place == kind:
        found = _devices(kind, everywhere=True)
        if not found:
            raise _not_here(place)
        return found
    return [device_of(place)]


def is_several(place: Place) -> bool:
    """Return whether a place is a list of several devices, or a string that names several devices.

    Example:
      >>> is_several("cpu:1,cpu:2"), is_several("cpu:1"), is_several(["cpu:1"])
      (True, False, False)
    """
    listed = _listed(place)
    return isinstance(listed, list | tuple) and len(listed) > 1


@functools.cache
def remark_on_other_devices() -> None:
    """Log, once, the device in use and how to use all, if this machine has several devices and the user named none."""
    devices = jax.local_devices()
    if len(devices) > 1 and device_of(None) == devices[0]:  # else `jax.default_device` names a device
        used, other = (f'"{device.platform}:{device.id}"' for device in devices[:2])
        log.warning(
            "one of %d devices is used, %s; parallel=True uses all, place=%s another one, and place=%s this one",
            len(devices),
            used,
            other,
            used,
        )


@contextlib.contextmanager
def device_guard(device: OnePlace | None = None) -> Iterator[None]:
    """Compute the layers inside on another device; their parameters and optimizer states are there too.

    Numbers equal the numbers on one device. Each device has its own compiled functions, and results move between them.
    The guard surrounds whole loops, and is not inside one. A program with a guard runs without `parallel`.

    Args:
      device: a device, see `fluid.place.device_of`; None for the device of the Session.

    Raises:
      OutsideProgramError: no program function is running.
      ArgumentError: the value is not a place, or the guard is inside a loop or branch.
      DeviceError: this machine does not have the device.

    Example:
      >>> import fluid
      >>> def program():
      ...     hidden = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=3)
      ...     with fluid.device_guard("cpu:0"):
      ...         return fluid.layers.fc(hidden, size=1)
      >>> session = fluid.Session(program)
      >>> session.scope["fc_1.w_0"].devices()
      {CpuDevice(id=0)}
    """
    frame = current_frame("device_guard")
    if frame.inside_loop:
        raise errors.ArgumentError(
            f"device_guard({device!r}) is inside a loop or branch, expected around it: a loop runs on one device"
        )
    outer = frame.device
    frame.device = "" if device is None else place_of(device_of(device))
    frame.declared.devices |= {frame.device} - {""}
    try:
        with jax.named_scope(f"{DEVICE}{frame.device or DEFAULT})"):
            yield
    finally:
        frame.device = outer


def place_of(device: jax.Device) -> str:
    """Return the name of a device, in the form of `place=`."""
    return f"{device.platform}:{device.id}"


class Mesh:
    """Devices along named axes, over which arrays are divided.

    The axes `data` and `fsdp` divide the batch. The axis `fsdp` also divides parameters and optimizer state.
    `ParamAttr(sharding=)`, `shardings=` and `layers.shard` name the arrays that other axes divide. `place=` names the
    devices.

    Args:
      **axes: the number of devices along each axis, outermost first; -1, for at most one axis, for all remaining
        devices.

    Attributes:
      axes: the number of devices along each axis, by name.

    Raises:
      ArgumentError: there is no axis, a size is neither a positive integer nor -1, or two sizes are -1.

    Example:
      >>> import fluid
      >>> fluid.Mesh(data=4, model=2)
      Mesh(data=4, model=2)

    References:
      Xu et al., "GSPMD: General and Scalable Parallelization for ML Computation Graphs" (2021).
    """

    def __init__(self, **axes: int):
        spelled = "fluid.Mesh(data=4, model=2)"
        if not axes:
            raise errors.ArgumentError(f"a mesh needs at least one axis: {spelled}")
        for name, size in axes.items():
            if isinstance(size, bool) or not isinstance(size, int | np.integer) or (size < 1 and size != -1):
                raise errors.ArgumentError(
                    f"Mesh({name}={size!r}): expected the number of devices along the axis, or -1 for all that are "
                    f"left: {spelled}"
                )
        if list(axes.values()).count(-1) > 1:
            raise errors.ArgumentError(f"{_shown(axes)}: one axis at most is -1; write the sizes of the others")
        self.axes = {name: int(size) for name, size in axes.items()}

    def __repr__(self) -> str:
        return _shown(self.axes)

    def over(self, devices: Sequence[jax.Device]) -> jax.sharding.Mesh:
        """Return a JAX mesh of these devices, in which neighbours along an axis have a fast connection.

        Raises:
          ArgumentError: the number of devices does not match the axes.

        Example:
          >>> import jax
          >>> Mesh(data=-1, model=1).over(jax.devices()[:1]).axis_names
          ('data', 'model')
        """
        known = math.prod(size for size in self.axes.values() if size != -1)
        sizes = {name: len(devices) // known if size == -1 else size for name, size in self.axes.items()}
        if math.prod(sizes.values()) != len(devices) or 0 in sizes.values():
            raise errors.ArgumentError(
                f"{self!r} has {known} devices{' or a multiple of it' if -1 in self.axes.values() else ''}, and there "
                f"are {len(devices)}; say which to use, as in place={_some_places(devices, known)}, or give an axis "
                f"the size -1 for all that are left"
            )
        automatic = (jax.sharding.AxisType.Auto,) * len(sizes)
        return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=automatic, devices=list(devices))


# The values of `parallel=`: None, False, True, "fsdp" or a mesh.
Parallel = bool | str | Mesh | None


class OneDevice:
    """The layout of a Session's arrays on one device, see `fluid.core.Layout`.

    Args:
      device: the device.

    Attributes:
      device: the device.
      mesh: None.
      in_parts: whether arrays are on further devices, see `fluid.parallel.OnDevices`.
      gathering: None.
    """

    mesh = None
    in_parts = False
    gathering = None

    def __init__(self, device: jax.Device):
        self.device = device
        self._sharding = jax.sharding.SingleDeviceSharding(device)

    def on(self, device: jax.Device) -> "OneDevice":
        """Return this layout on another device."""
        return OneDevice(device)

    def add(self, program: Any) -> None:
        """Register a program before its arrays are created; on one device this does nothing."""

    def check(self, names: Any) -> None:
        """Check the user's settings by name, after all programs are added; on one device this does nothing."""

    def place(self, value: Any) -> Any:
        """Put a tree of arrays on the device."""
        return jax.device_put(value, self._sharding)

    def replace(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of arrays on the device, to replace other arrays."""
        # Copied, because steps donate the buffers, and the caller's arrays must stay valid.
        placed: dict[str, Any] = self.place({name: own_array(value) for name, value in new.items()})
        return placed

    def take(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Copy a feed out of the caller's memory, and move it to the device unless the device is the host."""
        if self.device.platform != "cpu":
            taken: dict[str, Any] = self.place(dict(feed))
            return taken
        return {
            n: v.copy() if type(v) is np.ndarray else jax.tree.map(lambda a: own(a, self.device), v)
            for n, v in feed.items()
        }

    def feed_sharding(self, name: str, shape: tuple[int, ...]) -> jax.sharding.Sharding | None:
        """Return the sharding of a feed's array after `take`; None for the memory of the host."""
        return None if self.device.platform == "cpu" else self._sharding

    def rows_here(self, count: int) -> Collection[int]:
        """Return the indices of all rows of a minibatch of `count` rows."""
        return range(count)

    def initial(self, program: Any, root: jax.Array | None) -> dict[str, Any]:
        """Return the initial values of a program's parameters and states, on the device; zeros if `root` is None."""
        values: dict[str, Any] = self.place(program.init(root))
        return values

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the initial optimizer state of an update rule for `parameters`, on the device."""
        return self.place(rule.first_slots(parameters))

    def jit_train(self, step: Callable[..., Any], state: Any) -> Any:
        """Compile a training step, which donates the arrays of its first argument."""
        return jax.jit(step, donate_argnums=0)

    def jit_test(self, step: Callable[..., Any]) -> Any:
        """Compile a step that changes no arrays."""
        return jax.jit(step)


def own(value: Any, device: jax.Device) -> Any:
    """Copy a NumPy array for a CPU device, where JAX would share the caller's memory.

    Numbers and lists are converted to NumPy arrays. Other arrays are returned unchanged.
    """
    on_host = isinstance(value, np.ndarray) and device.platform == "cpu"
    return np.array(value) if on_host or not isinstance(value, np.ndarray | jax.Array) else value


def _devices(kind: str, everywhere: bool = False) -> list[jax.Device]:
    """Return the devices of a kind in this process, or in all processes; empty if JAX does not have the backend."""
    try:
        return jax.devices(kind) if everywhere else jax.local_devices(backend=kind)
    except RuntimeError:
        return []


def _listed(place: Place) -> Place:
    """Return a place in lower case, and a string of several devices, "gpu:0,gpu:1", as a list."""
    if not isinstance(place, str):
        return (
            [one.lower() if isinstance(one, str) else one for one in place]
            if isinstance(place, list | tuple)
            else place
        )
    parts: list[OnePlace] = [part.strip().lower() for part in place.split(",")]
    return parts if len(parts) > 1 else parts[0]


def _not_here(place: Any) -> errors.DeviceError:
    here = ", ".join(f'"{d.platform}:{d.id}"' for d in jax.local_devices())
    return errors.DeviceError(
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


def _shown(axes: dict[str, int]) -> str:
    return f"Mesh({', '.join(f'{name}={size}' for name, size in axes.items())})"


def _some_places(devices: Sequence[jax.Device], count: int) -> str:
    kind = devices[0].platform
    return str([f"{kind}:{i}" for i in range(min(count, 3))])[:-1] + (", ...]" if count > 3 else "]")
