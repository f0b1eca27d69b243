"""OnMesh: where the arrays of a Session lie while it works on several devices."""

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
from fluid.parallel.placing import put, rows_here, rows_sharding, split_rows
from fluid.parallel.rules import Rules
from fluid.parallel.tables import DividedTable
from fluid.param_attr import Shardings
from fluid.place import Mesh, OneDevice, Parallel, Place, devices_of, own

# How many numbers a parameter has that is not made on one device and divided afterwards.
LARGE = 1 << 24


def layout_of(place: Place, parallel: Parallel, shardings: Shardings | None) -> "OneDevice | OnMesh":
    """Where the arrays of a Session lie, by what its user says.

    Args:
      place: the devices.
      parallel: what is divided among them.
      shardings: how parameters are divided, by names and globs.

    Raises:
      ArgumentError: the devices are not as many as the mesh has, or an argument is none.
      DeviceError: there is no such device.
    """
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
    """Where the arrays of a Session lie while it works on a mesh of devices.

    XLA divides the computation: a compiled step is told where its arrays lie, and where those that it makes shall lie.

    Args:
      mesh: the devices.
      rules: how parameters are divided.

    Attributes:
      mesh: the devices.
      device: one of them.

    Example:
      >>> import fluid
      >>> layout = fluid.Session(place="cpu:0", parallel=fluid.Mesh(data=1)).engine.layout
      >>> tuple(layout.sharding_in_step("x", (4, 2)).spec)
      ('data',)
    """

    def __init__(self, mesh: jax.sharding.Mesh, rules: Rules):
        self.mesh = mesh
        self.device = mesh.local_devices[0]
        self._rules = rules
        self._everywhere = NamedSharding(mesh, PartitionSpec())
        self._divided: dict[str, tuple[tuple[int, ...], PartitionSpec]] = {}
        self._parts: dict[str, tuple[NamedSharding, NamedSharding]] = {}
        self._stacks: set[str] = set()
        self._single: set[str] = set()  # feeds and arrays that have no rows of a batch
        # A step places what comes from the host by itself, sooner than it can be done for it.
        self._takes_from_host = mesh.size == 1 and self.device.platform == "cpu"

    def add(self, program: Program) -> None:
        """Get to know a program before its arrays are made.

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
        """Find out whether what the user said of names is right, once all programs are known.

        Raises:
          UnknownNameError: a rule matches no name.
        """
        self._rules.check_used(names)

    def place(self, value: Any) -> Any:
        """Put a tree of arrays on every device."""
        return put(value, jax.tree.map(lambda _: self._everywhere, value))

    def replace(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
        """Put copies of arrays where others lie whose places they take; arguments as for `OneDevice.replace`."""
        return {name: self._copied(value, old[name].sharding) for name, value in new.items()}

    def take(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Make a feed independent of the caller's memory, and divide its rows among the devices."""
        taken = {n: jax.tree.map(lambda array: own(array, self.device), value) for n, value in feed.items()}
        if self._takes_from_host and all(type(array) is np.ndarray for array in jax.tree.leaves(taken)):
            return taken
        places = {
            n: jax.tree.map(lambda array, n=n: self.sharding_in_step(n, array.shape), value)
            for n, value in taken.items()
        }
        # All at once: each call of JAX for it costs as much as a small step.
        placed: dict[str, Any] = put(taken, places)
        return placed

    def rows_here(self, count: int) -> Collection[int]:
        """Which rows of a minibatch of so many are put on devices of this process."""
        return rows_here(count, self.mesh)

    def initial(self, program: Program, root: jax.Array | None) -> dict[str, Any]:
        """The initial values of a program's parameters and states, by name; zeros for None.

        What is large and divided is computed where it lies, so that no device ever holds all of it.
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
        """What a rule keeps before its first update: each slot divided as its parameter."""
        shapes = self.slot_shapes(rule, parameters)
        return jax.jit(rule.init, out_shardings=self.shardings(shapes))(parameters)

    def slot_shapes(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """The shapes of those, each of which says where it lies."""

        def shape(path: Any, slot: Any) -> jax.ShapeDtypeStruct:
            spec = self._rules.follow(path, slot.shape, self._divided)
            return jax.ShapeDtypeStruct(slot.shape, slot.dtype, sharding=NamedSharding(self.mesh, spec))

        return jax.tree_util.tree_map_with_path(shape, jax.eval_shape(rule.init, parameters))

    def shardings(self, arrays: Any) -> Any:
        """Where the arrays of a tree lie."""
        return jax.tree.map(lambda array: array.sharding, arrays)

    @property
    def results(self) -> NamedSharding | None:
        """Where what a step returns shall lie: in several processes all of it in each, else where XLA finds best."""
        return self._everywhere if self.mesh.is_multi_process else None

    def traced(self, function: Callable[..., Any], position: int) -> Callable[..., Any]:
        """A function to be jitted, inside which rows are divided and layers know the axes of the mesh.

        Args:
          function: a step.
          position: of its argument that is the feeds; those behind it are trees that hold overrides by name, or not.
        """

        def call(*arguments: Any) -> Any:
            feeds, *rest = arguments[position:]
            split = [self._split(feeds), *(self._split(r) if isinstance(r, dict) else r for r in rest)]
            with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
                return function(*arguments[:position], *split)

        return call

    def taking(self, test: Callable[..., Any]) -> Callable[..., Any]:
        """A compiled step in test mode, whose feeds, its second argument, may be on the host still."""
        return lambda arrays, feeds, *rest: test(arrays, self.take(feeds), *rest)

    def gather(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """Inside a compiled step: bring parameters together that lie in parts over "fsdp", but no tables and stacks."""
        now = self._parts.keys() - self._stacks
        return {n: gathered(v, *self._parts[n]) if n in now else v for n, v in arrays.items()}

    def gather_one(self, name: str, array: Any) -> Any:
        """The same for one array of a stack, when its block is computed."""
        if name not in self._parts:
            return array
        rank = len(self._divided[name][0])
        whole = [(*s.spec, *[None] * (rank - len(s.spec))) for s in self._parts[name]]
        return gathered(array, *(NamedSharding(self.mesh, PartitionSpec(*entries[-array.ndim :])) for entries in whole))

    def gathering_again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, whose gradient brings parameters together again instead of keeping them until then."""
        return gathering_again(function) if self._parts else function

    def together(self, value: Any) -> Any:
        """Inside a compiled step: the arrays of a tree, of which each device shall have all."""
        return jax.lax.with_sharding_constraint(value, self._everywhere)

    def table(self, name: str) -> DividedTable | None:
        """What reads and writes rows of a table; None where devices have all of its rows."""
        sharding = self.sharding(name)
        return DividedTable(sharding) if any(sharding.spec[:1]) else None

    def _split(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        return {n: v if self._is_single(n) else split_rows(v, self.mesh) for n, v in feed.items()}

    def _is_single(self, name: str) -> bool:
        return name in self._single or name in self._divided

    def feed_sharding(self, name: str, shape: tuple[int, ...]) -> NamedSharding | None:
        """Where an array of a feed lies that `take` returned; None for the memory of the host."""
        return None if self._takes_from_host else self.sharding_in_step(name, shape)

    def sharding_in_step(self, name: str, shape: tuple[int, ...]) -> NamedSharding:
        """Where an array of a feed lies for a step."""
        return self._everywhere if self._is_single(name) else rows_sharding(shape, self.mesh)

    def sharding(self, name: str) -> NamedSharding:
        """Where a parameter or a state lies."""
        return NamedSharding(self.mesh, self._divided[name][1])

    def _is_gathered(self, name: str, tables: Collection[str]) -> bool:
        return name not in tables and FSDP in jax.tree.leaves(tuple(self._divided[name][1]))

    def _together(self, name: str) -> NamedSharding:
        """How an array lies that is divided as it is, but not over "fsdp"."""
        others = [
            tuple(a for a in ((axes,) if isinstance(axes, str) else axes or ()) if a != FSDP)
            for axes in self._divided[name][1]
        ]
        return NamedSharding(self.mesh, partition(tuple(others)))

    def _copied(self, value: Any, sharding: Any) -> jax.Array:
        return own_array(put(value, sharding))
