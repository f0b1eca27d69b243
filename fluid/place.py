"""Places and meshes: a place names the device of a Session; a mesh arranges several devices along named axes."""

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
    """The place of the host's CPU.

    Example:
      >>> import fluid
      >>> fluid.place.device_of(fluid.CPUPlace()).platform
      'cpu'
    """


@dataclass(frozen=True)
class CUDAPlace:
    """The place of one NVIDIA GPU.

    Args:
      device_id: the index of the GPU in JAX's list of GPUs.

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
        # A new array is on JAX's default device, which the user may have set by `jax.default_device`.
        return next(iter(jax.device_put(np.int32(0)).devices()))
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
    """Return the list of JAX devices that a place names, for arrays that are divided over several devices.

    Args:
      place: None for all devices of JAX's default kind, in all processes; "cpu", "gpu" or "tpu" for all devices of this
        kind; "gpu:1" for one device; a list of places, one for each device; or a string of several places,
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
    """Return whether a place names several devices, as a list or as a string.

    Example:
      >>> is_several("cpu:1,cpu:2"), is_several("cpu:1"), is_several(["cpu:1"])
      (True, False, False)
    """
    listed = _listed(place)
    return isinstance(listed, list | tuple) and len(listed) > 1


@functools.cache
def remark_on_other_devices() -> None:
    """Log once how to use all devices, if the machine has several devices and the user did not choose one."""
    devices = jax.local_devices()
    # If the default device is not the first device, the user has set `jax.default_device`.
    if len(devices) > 1 and device_of(None) == devices[0]:
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
    """Run the layers inside a `with` block on another device, which also stores their parameters and optimizer state.

    Results equal the results on one device. Each device runs separately compiled functions, and values are copied
    between devices. A guard may contain loops, but must not be inside a loop. A program with a guard cannot use
    `parallel`.

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
    """Return the name of a device as a string for `place=`, such as "gpu:0"."""
    return f"{device.platform}:{device.id}"


class Mesh:
    """A mesh: devices arranged along named axes, over which arrays are divided.

    The axes `data` and `fsdp` divide the batch. The axis `fsdp` also divides parameters and optimizer state. For all
    other axes, `ParamAttr(sharding=)`, `shardings=` and `layers.shard` define which arrays they divide. `place=`
    selects the devices.

    Args:
      **axes: the number of devices along each axis, outermost axis first. At most one number may be -1, which means all
        remaining devices.

    Attributes:
      axes: the number of devices along each axis, by name.

    Raises:
      ArgumentError: no axis is given, a size is neither a positive integer nor -1, or two sizes are -1.

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
        """Return a JAX mesh of the given devices, in which adjacent devices along an axis have fast connections.

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


# The type of `parallel=`: None, False, True, "fsdp" or a Mesh.
Parallel = bool | str | Mesh | None


class OneDevice:
    """A layout that stores all arrays of a Session on one device; implements `fluid.core.Layout`.

    Attributes:
      device: the device.
      mesh: None, because there is no mesh.
      in_parts: False, because a step is one compiled function; True only in `fluid.parallel.OnDevices`, which compiles
        a function for each device.
      gathering: None, because no parameters are divided.
    """

    mesh = None
    in_parts = False
    gathering = None

    def __init__(self, device: jax.Device):
        self.device = device
        self._sharding = jax.sharding.SingleDeviceSharding(device)

    def on(self, device: jax.Device) -> "OneDevice":
        """Return a OneDevice layout for the device `device`."""
        return OneDevice(device)

    def add(self, program: Any) -> None:
        """Register a program before its arrays are created; on one device this does nothing."""

    def check(self, names: Any) -> None:
        """Check the names in the user's `shardings=`; on one device there are no shardings, so this does nothing."""

    def place(self, value: Any) -> Any:
        """Copy a pytree of arrays to the device."""
        return jax.device_put(value, self._sharding)

    def replace(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies on the device of the arrays `new`, to replace the arrays `old`."""
        # Copy the arrays, because steps donate their buffers, and the caller's arrays must stay valid.
        placed: dict[str, Any] = self.place({name: own_array(value) for name, value in new.items()})
        return placed

    def take(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Copy fed arrays to the device; on a CPU, to new host arrays, because callers may change their arrays."""
        if self.device.platform != "cpu":
            taken: dict[str, Any] = self.place(dict(feed))
            return taken
        return {
            n: v.copy() if type(v) is np.ndarray else jax.tree.map(lambda a: own(a, self.device), v)
            for n, v in feed.items()
        }

    def feed_sharding(self, name: str, shape: tuple[int, ...]) -> jax.sharding.Sharding | None:
        """Return the sharding of a fed array after `take`; None on a CPU, where the array is in host memory."""
        return None if self.device.platform == "cpu" else self._sharding

    def rows_here(self, count: int) -> Collection[int]:
        """Return the indices of the minibatch rows that this process feeds: on one device, all `count` rows."""
        return range(count)

    def initial(self, program: Any, root: jax.Array | None) -> dict[str, Any]:
        """Return the initial parameters and states of a program, by name; zeros if the random key `root` is None."""
        values: dict[str, Any] = self.place(program.init(root))
        return values

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the initial optimizer state of an update rule for `parameters`, on the device."""
        return self.place(rule.first_slots(parameters))

    def jit_train(self, step: Callable[..., Any], state: Any) -> Any:
        """Compile a training step by `jax.jit`, with donation of the arrays in its first argument."""
        return jax.jit(step, donate_argnums=0)

    def jit_test(self, step: Callable[..., Any]) -> Any:
        """Compile an inference step by `jax.jit`, without donation."""
        return jax.jit(step)


def own(value: Any, device: jax.Device) -> Any:
    """Copy a NumPy array if the device is a CPU, where JAX would otherwise share the caller's memory.

    Numbers and lists are converted to NumPy arrays. Other arrays are returned unchanged.
    """
    on_host = isinstance(value, np.ndarray) and device.platform == "cpu"
    return np.array(value) if on_host or not isinstance(value, np.ndarray | jax.Array) else value


def _devices(kind: str, everywhere: bool = False) -> list[jax.Device]:
    """Return all devices of a kind in this process or, if `everywhere`, in all processes; empty if there are none."""
    try:
        return jax.devices(kind) if everywhere else jax.local_devices(backend=kind)
    except RuntimeError:
        return []


def _listed(place: Place) -> Place:
    """Convert a place to lower case, and a string of several devices, such as "gpu:0,gpu:1", to a list."""
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
