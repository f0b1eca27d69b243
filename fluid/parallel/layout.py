"""OnMesh: the shardings of the arrays of a Session on several devices."""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from fluid import errors
from fluid.core import FSDP, Program, own_array, partition, stack_depth
from fluid.parallel.gathering import gathered, gathering_again
from fluid.parallel.mesh import mesh_of
from fluid.parallel.parts import OnDevices
from fluid.parallel.placing import put, rows_here, rows_sharding, split_rows
from fluid.parallel.rules import Rules
from fluid.parallel.tables import DividedTable
from fluid.param_attr import Shardings
from fluid.place import Mesh, OneDevice, Parallel, Place, device_of, devices_of, own

# A divided parameter with at least this many elements is initialized in shards, and never whole on one device.
LARGE = 1 << 24


def layout_of(place: Place, parallel: Parallel, shardings: Shardings | None) -> "OneDevice | OnMesh":
    """Return the layout of the arrays of a Session, from its arguments.

    Args:
      place: the devices.
      parallel: the mesh, or `True` or "fsdp"; see `fluid.Trainer`.
      shardings: shardings of parameters, by name or glob.

    Raises:
      ArgumentError: the number of devices differs from the mesh, or an argument is invalid.
      DeviceError: there is no such device.
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
    return OnMesh(found, Rules(found, shardings))


class OnMesh:
    """The layout of the arrays of a Session on a mesh of devices.

    XLA partitions the computation: a compiled step gets the shardings of its arguments and of its results.

    Args:
      mesh: the devices.
      rules: the sharding rules of the parameters.

    Attributes:
      mesh: the devices.
      device: a device of this process.
      in_parts: False, see `OneDevice`.

    Example:
      >>> import fluid
      >>> layout = fluid.Session(place="cpu:0", parallel=fluid.Mesh(data=1)).engine.layout
      >>> tuple(layout.sharding_in_step("x", (4, 2)).spec)
      ('data',)
    """

    in_parts = False

    def __init__(self, mesh: jax.sharding.Mesh, rules: Rules):
        self.mesh = mesh
        self.device = mesh.local_devices[0]
        self._rules = rules
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._divided: dict[str, tuple[tuple[int, ...], PartitionSpec]] = {}
        self._parts: dict[str, tuple[NamedSharding, NamedSharding]] = {}
        self._stacks: set[str] = set()
        self._single: set[str] = set()  # feeds and arrays that have no rows of a batch
        # True if a step gets arrays on the host, and transfers them faster than a call before the step would.
        self._takes_from_host = mesh.size == 1 and self.device.platform == "cpu"

    def add(self, program: Program) -> None:
        """Register a program before its arrays are created.

        Raises:
          ArgumentError: a parameter cannot be divided as its rule says.
        """
        arrays = program.parameters | program.states
        tables = program.lookups
        found = {n: (spec.shape, self._rules.of(n, spec, n in tables)) for n, spec in arrays.items()}
        self._divided |= {n: f for n, f in found.items() if n not in self._divided}
        self._parts |= {n: (self.sharding(n), self._together(n)) for n in arrays if self._is_gathered(n, tables)}
        self._stacks |= {n for n, spec in arrays.items() if stack_depth(spec)}
        self._single |= {n for n, spec in program.feeds.items() if spec.shape[:1] != (None,)}

    def check(self, names: Collection[str]) -> None:
        """Check the names in the user's rules, once all programs are known.

        Raises:
          UnknownNameError: a rule matches no name.
        """
        self._rules.check_used(names)

    def place(self, value: Any) -> Any:
        """Put a whole copy of a tree of arrays on every device."""
        return put(value, jax.tree.map(lambda _: self._everywhere, value))

    def replace(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of arrays, with the shardings of the arrays that they replace; see `OneDevice.replace`."""
        return {name: self._copied(value, old[name].sharding) for name, value in new.items()}

    def take(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Copy a feed from the caller's memory, and divide its rows among the devices."""
        taken = {n: jax.tree.map(lambda array: own(array, self.device), value) for n, value in feed.items()}
        if self._takes_from_host and all(type(array) is np.ndarray for array in jax.tree.leaves(taken)):
            return taken
        places = {
            n: jax.tree.map(lambda array, n=n: self.sharding_in_step(n, array.shape), value)
            for n, value in taken.items()
        }
        # One call for all arrays: each call of JAX that puts arrays on devices costs as much as a small step.
        placed: dict[str, Any] = put(taken, places)
        return placed

    def rows_here(self, count: int) -> Collection[int]:
        """Return the indices of the rows, of a minibatch of `count` rows, that are on devices of this process."""
        return rows_here(count, self.mesh)

    def initial(self, program: Program, root: jax.Array | None) -> dict[str, Any]:
        """Return the initial values of a program's parameters and states, by name; zeros if `root` is None.

        Large sharded arrays are computed in shards, so that no device ever holds a whole one.
        """
        large = [n for n, (shape, spec) in self._divided.items() if any(spec) and math.prod(shape) >= LARGE]
        there = [n for n in large if root is not None and (n in program.parameters or n in program.states)]
        small = program.init(root, [n for n in (*program.parameters, *program.states) if n not in there])
        values = {n: put(v, self.sharding(n)) for n, v in small.items()}
        if there:
            shardings = {n: self.sharding(n) for n in there}
            values |= jax.jit(lambda: program.init(root, there), out_shardings=shardings)()
        return values

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the initial optimizer state of an update rule, with each array sharded like its parameter."""
        shapes = self.slot_shapes(rule, parameters)
        return jax.jit(rule.init, out_shardings=self.shardings(shapes))(parameters)

    def slot_shapes(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the shape, dtype and sharding of each array of the initial optimizer state of an update rule."""

        def shape(path: Any, slot: Any) -> jax.ShapeDtypeStruct:
            spec = self._rules.follow(path, slot.shape, self._divided)
            return jax.ShapeDtypeStruct(slot.shape, slot.dtype, sharding=NamedSharding(self.mesh, spec))

        return jax.tree_util.tree_map_with_path(shape, jax.eval_shape(rule.init, parameters))

    def shardings(self, arrays: Any) -> Any:
        """Return the shardings of a tree of arrays."""
        return jax.tree.map(lambda array: array.sharding, arrays)

    @property
    def results(self) -> NamedSharding | None:
        """The sharding of a step's results.

        With several processes, each device has the whole results. With one process it is None, so that XLA chooses.
        """
        return self._everywhere if self.mesh.is_multi_process else None

    def traced(self, function: Callable[..., Any], position: int) -> Callable[..., Any]:
        """Return a function for `jax.jit` that divides rows, and inside which layers know the axes of the mesh.

        Args:
          function: a step.
          position: index of the argument with the feeds; a later argument that is a dict holds overrides by name.
        """

        def call(*arguments: Any) -> Any:
            feeds, *rest = arguments[position:]
            split = [self._split(feeds), *(self._split(r) if isinstance(r, dict) else r for r in rest)]
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
                return function(*arguments[:position], *split)

        return call

    def taking(self, test: Callable[..., Any]) -> Callable[..., Any]:
        """Return a compiled test-mode step that also takes feeds on the host; feeds are its second argument."""
        return lambda arrays, feeds, *rest: test(arrays, self.take(feeds), *rest)

    def gather(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Gather parameters that are sharded over "fsdp", inside a compiled step; tables and stacks stay sharded."""
        now = self._parts.keys() - self._stacks
        return {n: gathered(v, *self._parts[n]) if n in now else v for n, v in arrays.items()}

    def gather_one(self, name: str, array: Any) -> Any:
        """Gather the slice of a stacked array for one block, when the block is computed."""
        if name not in self._parts:
            return array
        rank = len(self._divided[name][0])
        whole = [(*s.spec, *[None] * (rank - len(s.spec))) for s in self._parts[name]]
        return gathered(array, *(NamedSharding(self.mesh, PartitionSpec(*entries[-array.ndim :])) for entries in whole))

    def gathering_again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, changed so that its backward pass gathers parameters again, if there are any to gather."""
        return gathering_again(function) if self._parts else function

    def together(self, value: Any) -> Any:
        """Replicate the arrays of a tree on every device, inside a compiled step."""
        return jax.lax.with_sharding_constraint(value, self._everywhere)

    def table(self, name: str) -> DividedTable | None:
        """Return the reader and writer of a table with divided rows; None if each device has all rows."""
        sharding = self.sharding(name)
        return DividedTable(sharding) if any(sharding.spec[:1]) else None

    def _split(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        return {n: v if self._is_single(n) else split_rows(v, self.mesh) for n, v in feed.items()}

    def _is_single(self, name: str) -> bool:
        return name in self._single or name in self._divided

    def feed_sharding(self, name: str, shape: tuple[int, ...]) -> NamedSharding | None:
        """Return the sharding of an array of a feed that `take` returned; None for host memory."""
        return None if self._takes_from_host else self.sharding_in_step(name, shape)

    def sharding_in_step(self, name: str, shape: tuple[int, ...]) -> NamedSharding:
        """Return the sharding of an array of a feed inside a step."""
        return self._everywhere if self._is_single(name) else rows_sharding(shape, self.mesh)

    def sharding(self, name: str) -> NamedSharding:
        """Return the sharding of a parameter or a state."""
        return NamedSharding(self.mesh, self._divided[name][1])

    def _is_gathered(self, name: str, tables: Collection[str]) -> bool:
        return name not in tables and FSDP in jax.tree.leaves(tuple(self._divided[name][1]))

    def _together(self, name: str) -> NamedSharding:
        """Return the sharding of an array after it is gathered over the axis "fsdp"; other axes still divide it."""
        others = [
            tuple(a for a in ((axes,) if isinstance(axes, str) else axes or ()) if a != FSDP)
            for axes in self._divided[name][1]
        ]
        return NamedSharding(self.mesh, partition(tuple(others)))

    def _copied(self, value: Any, sharding: Any) -> jax.Array:
        return own_array(put(value, sharding))
