"""Plans: the memory and work of a training step, compiled for any mesh with shapes instead of arrays."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax

from fluid import errors
from fluid._util.text import counted, html_table, scaled, text_table
from fluid.core import TRAIN, Program, stand_in, whole_number
from fluid.optimizer.base import OptimizerLike
from fluid.parallel import OnMesh, Rules
from fluid.parallel.step_work import Work, work_of
from fluid.param_attr import Shardings
from fluid.place import Mesh
from fluid.runtime import Engine, Request, bind
from fluid.trainer.programs.training_program import trained_program

# The shape and dtype of an array that is not created, with the sharding that it would have.
Shape = jax.ShapeDtypeStruct


class ShapesOnMesh(OnMesh):
    """A layout on a mesh with which an Engine has shapes, with dtypes and shardings, instead of arrays."""

    def initial(self, program: Program, root: jax.Array | None) -> dict[str, Any]:
        """Return the shapes of a program's parameters and states, by name; `root` is ignored."""
        specs = program.parameters | program.states
        return {n: Shape(spec.shape, spec.dtype, sharding=self.sharding(n)) for n, spec in specs.items()}

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the shapes of the initial optimizer state for `parameters`."""
        return self.slot_shapes(rule, parameters)

    def feed(self, program: Program, batch_size: int, time: int) -> dict[str, Any]:
        """Return the shapes of a minibatch, by feed name.

        Args:
          program: the program to plan.
          batch_size: the number of rows of the minibatch.
          time: the number of time steps of each sequence.
        """
        specs = program.feeds
        return self.take(jax.eval_shape(lambda: {n: stand_in(s, batch_size, (time, time)) for n, s in specs.items()}))

    def take(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays or shapes of a minibatch as shapes with shardings, by feed name."""
        return {n: jax.tree.map(lambda array, name=n: self._fed(name, array), value) for n, value in feed.items()}

    def _fed(self, name: str, array: Any) -> Shape:
        return Shape(array.shape, array.dtype, sharding=self.sharding_in_step(name, array.shape))


def bytes_of(tree: Any) -> int:
    """Return the number of bytes that one device holds of all arrays, or shapes with shardings, in a pytree."""

    def size(array: Any) -> int:
        return math.prod(array.sharding.shard_shape(array.shape)) * int(array.dtype.itemsize)

    return sum(map(size, jax.tree.leaves(tree)))


_HEADER = ("mesh", "devices", "parameters", "slots", "feed", "activations", "peak", "FLOPs", "sent")


@dataclass(frozen=True)
class Candidate:
    """A mesh of a plan, with the memory and the work of each of its devices in a training step.

    Attributes:
      mesh: the mesh.
      devices: the number of devices of the mesh.
      parameters: bytes of parameters and states on each device.
      slots: bytes of the optimizer state on each device.
      feed: bytes of the minibatch on each device.
      activations: bytes of all intermediate values at the moment when they take most memory.
      peak: bytes of all arrays at this moment: intermediate values, and the arguments and results of the step.
      work: FLOPs of matrix products and convolutions, and the bytes sent by each kind of collective.
    """

    mesh: Mesh
    devices: int
    parameters: int
    slots: int
    feed: int
    activations: int
    peak: int
    work: Work


class Plan:
    """A plan of `fluid.plan`: the memory and the work of training a program on each of several meshes.

    Attributes:
      candidates: a Candidate for each mesh.
      memory: bytes of memory of one device; None if every candidate counts as fitting.
      program: the planned program.
      batch_size: the number of rows of the global minibatch.
    """

    def __init__(self, candidates: Sequence[Candidate], memory: int | None, program: Program, batch_size: int):
        self.candidates = tuple(candidates)
        self.memory = memory
        self.program = program
        self.batch_size = batch_size

    @property
    def smallest(self) -> Candidate | None:
        """The candidate with the fewest devices whose peak fits in `memory`; None if no candidate fits.

        Of several such candidates, it is the one with the fewest FLOPs, then with the fewest bytes sent.
        """
        fitting = [c for c in self.candidates if self._fits(c)]
        return min(fitting, key=lambda c: (c.devices, c.work.flops, sum(c.work.sent.values())), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers of the plan as a dict that can be written as JSON."""
        rows = []
        for candidate in self.candidates:
            row = {**asdict(candidate), **candidate.work._asdict(), "mesh": candidate.mesh.axes}
            rows.append({name: value for name, value in row.items() if name != "work"})
        smallest = self.smallest
        return {
            "program": self.program.name,
            "parameters": self.program.parameter_count,
            "batch_size": self.batch_size,
            "memory": self.memory,
            "candidates": rows,
            "smallest": None if smallest is None else smallest.mesh.axes,
        }

    def __str__(self) -> str:
        table = text_table([_HEADER, *map(_cells, self.candidates)], range(1, len(_HEADER))).splitlines()
        rule = "-" * max(map(len, table))
        return "\n".join([self._title(), table[0], rule, *table[1:], rule, *self._kinds(), *self._verdict()])

    def __repr__(self) -> str:
        return f"Plan({self._title()}: {counted(len(self.candidates), 'candidate')})"

    def _repr_html_(self) -> str:
        told = "<br>".join([*self._kinds(), *self._verdict()])
        return self._title() + html_table(map(_cells, self.candidates), _HEADER, range(1, len(_HEADER))) + told

    def _title(self) -> str:
        return f"{self.program.name}, {counted(self.program.parameter_count, 'parameter')}, {self.batch_size:,} rows"

    def _kinds(self) -> list[str]:
        """Return a line with the bytes sent by each kind of collective, for each candidate with communication."""
        return [
            f"{_axes(c.mesh)} sends "
            + ", ".join(f"{scaled(c.work.sent[kind], 'B')} by {counted(n, kind)}" for kind, n in _kinds(c.work))
            for c in self.candidates
            if c.work.sent
        ]

    def _verdict(self) -> list[str]:
        if self.memory is None:
            return []
        room = scaled(self.memory, "B")
        large = [_axes(c.mesh) for c in self.candidates if not self._fits(c)]
        told = [f"more than {room} on a device: {'; '.join(large)}"] if large else []
        smallest = self.smallest
        found = "none of these meshes fits" if smallest is None else f"the smallest that fits: {_axes(smallest.mesh)}"
        return [*told, f"{found} ({room} on a device)"]

    def _fits(self, candidate: Candidate) -> bool:
        return self.memory is None or candidate.peak <= self.memory


def plan(
    program_func: Callable[[], Any],
    optimizer: OptimizerLike | None,
    batch_size: int,
    meshes: Mesh | Sequence[Mesh],
    *,
    memory: int | None = None,
    time: int = 128,
    shardings: Shardings | None = None,
    precision: str | None = None,
) -> Plan:
    """Compute the memory, FLOPs and communication of a training step on each of several meshes.

    No array is created. The step that a Trainer would run is compiled for as many CPU devices as the largest mesh has.
    These devices need not exist: JAX simulates them after `jax.config.update("jax_num_cpu_devices", 256)`, which must
    come before JAX computes anything. `python -m fluid plan` sets this option. Parameters, optimizer state and feeds
    take equally many bytes on every kind of device. Activations are measured with XLA for CPUs, which fuses less than
    XLA for GPUs and TPUs.

    Args:
      program_func: as for `fluid.Trainer`.
      optimizer: as for `fluid.Trainer`.
      batch_size: the number of rows of the global minibatch.
      meshes: the candidates, such as `[fluid.Mesh(fsdp=64), fluid.Mesh(data=16, model=4)]`.
      memory: bytes of memory of each device; None skips the check for candidates that do not fit.
      time: the number of time steps of each sequence.
      shardings: as for `fluid.Trainer`.
      precision: as for `fluid.Trainer`.

    Returns:
      A Plan: `print` it, or read `plan.candidates` and `plan.smallest`.

    Raises:
      ArgumentError: an axis of a mesh has no size, the mesh cannot divide the program, or JAX has fewer devices than
        a mesh.
      FluidError: the program has an error, as for `fluid.Trainer`.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[64])
      ...     return fluid.layers.mean(fluid.layers.fc(x, size=128))
      >>> found = fluid.plan(program, fluid.optimizer.Adam(1e-3), 32, fluid.Mesh(data=1))
      >>> found.candidates[0].parameters, found.candidates[0].slots  # two slots, and a count of steps
      (33280, 66564)
    """
    whole_number("plan", "batch_size", batch_size)
    whole_number("plan", "time", time)
    if memory is not None:
        whole_number("plan", "memory", memory)
    program = trained_program(program_func, optimizer, precision)
    listed = [meshes] if isinstance(meshes, Mesh) else list(meshes)
    found = [_candidate(program, mesh, shardings, batch_size, time) for mesh in listed]
    return Plan(found, memory, program, batch_size)


def _candidate(program: Program, mesh: Mesh, shardings: Shardings | None, batch_size: int, time: int) -> Candidate:
    over = mesh.over(_devices(mesh))
    layout = ShapesOnMesh(over, Rules(over, shardings))
    engine = Engine(layout)
    engine.add(program)
    engine.check()
    feed = layout.feed(program, batch_size, time)
    compiled = bind(engine, program, Request(TRAIN, None, tuple(feed))).lowered(feed).compile()
    memory: Any = compiled.memory_analysis()
    arguments = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
    return Candidate(
        mesh=mesh,
        devices=over.size,
        parameters=bytes_of(engine.scope.arrays),
        slots=bytes_of(engine.scope.slots),
        feed=bytes_of(feed),
        activations=memory.temp_size_in_bytes,
        peak=arguments + memory.temp_size_in_bytes,
        work=work_of(str(compiled.as_text())),
    )


def _devices(mesh: Mesh) -> list[jax.Device]:
    """Return CPU devices of this process for a mesh, as many as the mesh has.

    Raises:
      ArgumentError: an axis of the mesh has no size, or JAX has fewer CPU devices.
    """
    sizes = list(mesh.axes.values())
    if -1 in sizes:
        raise errors.ArgumentError(f"{mesh!r} has an axis of size -1; a plan needs its size, as in fluid.Mesh(data=64)")
    here = jax.local_devices(backend="cpu")
    count = math.prod(sizes)
    if len(here) < count:
        raise errors.ArgumentError(
            f"{mesh!r} has {count} devices, and JAX was told of {len(here)}. Before it computes anything: "
            f'jax.config.update("jax_num_cpu_devices", {count}); from a shell python -m fluid plan does so'
        )
    return here[:count]


def _cells(candidate: Candidate) -> list[str]:
    sizes = (candidate.parameters, candidate.slots, candidate.feed, candidate.activations, candidate.peak)
    work = candidate.work
    return [
        _axes(candidate.mesh),
        f"{candidate.devices:,}",
        *(scaled(size, "B") for size in sizes),
        f"{scaled(work.flops)}{'+' if work.partial else ''}",
        scaled(sum(work.sent.values()), "B"),
    ]


def _kinds(work: Work) -> list[tuple[str, int]]:
    return sorted(work.collectives.items(), key=lambda item: -work.sent[item[0]])


def _axes(mesh: Mesh) -> str:
    return ", ".join(f"{name}={size}" for name, size in mesh.axes.items())
