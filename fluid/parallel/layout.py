"""OnMesh: the layout of the arrays of a Session on a mesh of devices."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from fluid import errors
from fluid.core import FSDP, Layout, Program, own_array
from fluid.parallel.batch_sharding import BatchSharding, put, rows_here
from fluid.parallel.gathering import MeshGathering
from fluid.parallel.layers_on_devices import OnDevices
from fluid.parallel.sharding_rules import ParameterShardings, ShardingRules
from fluid.param_attr import Shardings
from fluid.place import Mesh, OneDevice, Parallel, Place, device_of, devices_of

# Minimum number of elements of a sharded parameter that is initialized in shards, and never in full on one device.
LARGE = 1 << 24


def layout_of(place: Place, parallel: Parallel, shardings: Shardings | None) -> Layout:
    """Return the layout for the arrays of a Session: one device, a mesh, or different devices for different layers.

    Raises:
      ArgumentError: the number of devices differs from the mesh, or an argument is invalid.
      DeviceError: this machine does not have the device.
    """
    if parallel in (None, False) and all(isinstance(device, str) for device in (shardings or {}).values()):
        return OnDevices(device_of(place), shardings)
    if parallel is None or parallel is False:
        raise errors.ArgumentError(
            'shardings= says how parameters are divided over a mesh; give one: parallel="fsdp", or '
            "parallel=fluid.Mesh(data=4, model=2)"
        )
    mesh = mesh_of(parallel)
    devices = devices_of(place)
    if len(devices) == 1 and not shardings and not isinstance(parallel, Mesh):
        return OneDevice(devices[0])
    found = mesh.over(devices)
    return OnMesh(found, ShardingRules(found, shardings))


def mesh_of(parallel: Parallel) -> Mesh:
    """Convert the argument `parallel=` to a Mesh: True divides the batch, "fsdp" also the parameters.

    Raises:
      ArgumentError: `parallel` has another value.

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


class OnMesh:
    """The layout of the arrays of a Session on a mesh of devices, see `fluid.core.Layout`.

    A compiled step fixes the shardings of its arguments and results, and XLA partitions the computation.

    Attributes:
      mesh: the devices.
      device: a device of this process.
      in_parts: False, because a step is one compiled function for all devices.
      batch: the shardings of feeds.
      parameters: the shardings of parameters, states and optimizer states.
      gathering: an object that reads sharded arrays inside a compiled step.

    Example:
      >>> import fluid
      >>> layout = fluid.Session(place="cpu:0", parallel=fluid.Mesh(data=1)).engine.layout
      >>> tuple(layout.batch.sharding("x", (4, 2)).spec)
      ('data',)
    """

    in_parts = False

    def __init__(self, mesh: jax.sharding.Mesh, rules: ShardingRules):
        self.mesh = mesh
        self.device = mesh.local_devices[0]
        self.batch = BatchSharding(mesh)
        self.parameters = ParameterShardings(mesh, rules)
        self.gathering = MeshGathering(self.parameters)
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        # With several processes, results are replicated on each device. With one process, XLA chooses the sharding of
        # results.
        self._results = self._everywhere if mesh.is_multi_process else None

    def add(self, program: Program) -> None:
        """Register a program, and choose the shardings of its arrays, before they are created.

        Raises:
          ArgumentError: a parameter cannot be divided as its sharding rule demands.
        """
        self.parameters.add(program)
        self.gathering.add(program)
        self.batch.add(program)

    def check(self, names: Collection[str]) -> None:
        """Check that each name or glob in `shardings=` matches one of `names`, the arrays of all programs.

        Raises:
          UnknownNameError: a name or glob matches nothing.
        """
        self.parameters.rules.check_used(names)

    def place(self, value: Any) -> Any:
        """Put a full copy of a tree of arrays on every device."""
        return put(value, jax.tree.map(lambda _: self._everywhere, value))

    def replace(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
        """Copy each array of `new` to the devices, with the sharding of the array with the same name in `old`."""
        return {name: own_array(put(value, old[name].sharding)) for name, value in new.items()}

    def take(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Copy the arrays of a minibatch from the caller's memory, and divide their rows among the devices."""
        return self.batch.take(feed)

    def feed_sharding(self, name: str, shape: tuple[int, ...]) -> NamedSharding | None:
        """Return the sharding of an array of the feed `name` on the devices; None if the array stays in host memory."""
        return self.batch.fed(name, shape)

    def rows_here(self, count: int) -> Collection[int]:
        """Return the indices of those rows of a minibatch of `count` rows that are on devices of this process."""
        return rows_here(count, self.mesh)

    def initial(self, program: Program, root: jax.Array | None) -> dict[str, Any]:
        """Return the initial values of a program's parameters and states; zeros if the random key `root` is None.

        Large sharded arrays are computed in shards, so that no device ever holds such an array in full.
        """
        specs = program.parameters | program.states
        shardings = {n: self.parameters.sharding(n) for n in specs}
        large = {n: s for n, s in shardings.items() if any(s.spec) and math.prod(specs[n].shape) >= LARGE}
        if root is None:
            large = {}
        small = program.init(root, [n for n in specs if n not in large])
        values = {n: put(v, shardings[n]) for n, v in small.items()}
        if large:
            values |= jax.jit(lambda: program.init(root, list(large)), out_shardings=large)()
        return values

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the initial optimizer state of an update rule, with each array sharded like its parameter."""
        return jax.jit(rule.init, out_shardings=_shardings(self.parameters.slot_shapes(rule, parameters)))(parameters)

    def jit_train(self, step: Callable[..., Any], state: Any) -> Any:
        """Jit a training step; each array of the new state has the sharding of the array that it replaces."""
        return jax.jit(self._on_mesh(step, 2), donate_argnums=0, out_shardings=(_shardings(state), self._results))

    def jit_test(self, step: Callable[..., Any]) -> Any:
        """Jit a test-mode step, which also accepts feeds in host memory."""
        jitted = jax.jit(self._on_mesh(step, 1), out_shardings=self._results)
        return lambda arrays, feeds, *rest: jitted(arrays, self.take(feeds), *rest)

    def _on_mesh(self, step: Callable[..., Any], position: int) -> Callable[..., Any]:
        """Wrap a pure step: it divides the rows of feeds among devices, and its layers can read the mesh axes."""

        def call(*arguments: Any) -> Any:
            feeds, *rest = arguments[position:]
            split = [self.batch.split(feeds), *(self.batch.split(r) if isinstance(r, dict) else r for r in rest)]
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
                return step(*arguments[:position], *split)

        return call


def _shardings(arrays: Any) -> Any:
    return jax.tree.map(lambda array: array.sharding, arrays)
