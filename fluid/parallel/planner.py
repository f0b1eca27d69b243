"""Plans: the memory and work of a training step on any mesh, from a compilation with shapes instead of arrays.

The FLOPs and the communication of the step are read from the text of its HLO module. `compiled.cost_analysis()` cannot
give them (jax 0.10.2). It counts the body of a loop, as in `layers.repeat`, only once: 65,538 FLOPs for ten products of
65,536 FLOPs in a `scan`. It counts no collectives.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import jax

from fluid import errors
from fluid._util.text import counted, html_table, scaled, text_table
from fluid.core import TRAIN, Program, stand_in, whole_number
from fluid.optimizer.base import OptimizerLike
from fluid.parallel import OnMesh, ShardingRules
from fluid.param_attr import Shardings
from fluid.place import Mesh
from fluid.runtime import Engine, Request, bind
from fluid.trainer.programs.training_program import trained_program

_HEAD = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_NAME = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ")
_ARRAY = re.compile(r"\b([a-z]+[0-9a-z]*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|branch_computations|(?:true|false)_computation)=\{?([^,{}]+(?:, ?%[^,{}]+)*)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CONTRACTED = re.compile(r"lhs_contracting_dims=\{([\d,]*)\}")
_LABELS = re.compile(r"dim_labels=\w+_(\w+)->")
_GROUPS = re.compile(r"replica_groups=(\{\{[\d,]+|\[[\d,]+\]|mesh\[[^\]]*\] \{[^}]*\})")
# `_SENT` maps each kind of collective to a function of n, the number of devices in a ring. The function returns the
# bytes that one device sends, divided by the bytes of the result.
_SENT = {
    "all-reduce": lambda n: 2 * (n - 1) / n,
    "all-gather": lambda n: (n - 1) / n,
    "reduce-scatter": lambda n: n - 1,
    "all-to-all": lambda n: (n - 1) / n,
    "ragged-all-to-all": lambda n: (n - 1) / n,
    "collective-permute": lambda n: 1,
    "collective-broadcast": lambda n: 1,
}


class Instruction(NamedTuple):
    """One instruction of a compiled HLO module, parsed from one line of its text.

    Attributes:
      name: the name of the result.
      shape: the shape of the result as text, such as "f32[2,3]"; a tuple of results has several shapes.
      kind: the opcode, such as "all-reduce".
      operands: the names of the operands.
      rest: the attributes after the operands, as text.
    """

    name: str
    shape: str
    kind: str
    operands: tuple[str, ...]
    rest: str


class Work(NamedTuple):
    """The FLOPs and the communication of one device in a step.

    Attributes:
      flops: FLOPs of matrix products and convolutions; a multiplication and an addition count as two.
      sent: bytes that the device sends for each kind of collective, if the devices of each group form a ring.
      collectives: the number of collectives of each kind.
      partial: True if the number of iterations of a loop depends on the data; the loop then counts as one iteration.

    Example:
      >>> (Work(10) + Work(5, {"all-reduce": 8.0}, {"all-reduce": 1}).times(2)).sent
      {'all-reduce': 16.0}
    """

    flops: float = 0.0
    sent: Mapping[str, float] = {}
    collectives: Mapping[str, int] = {}
    partial: bool = False

    def __add__(self, other: Work) -> Work:  # type: ignore[override]
        return Work(
            self.flops + other.flops,
            _added(self.sent, other.sent),
            _added(self.collectives, other.collectives),
            self.partial or other.partial,
        )

    def times(self, count: int) -> Work:
        """Return the Work (FLOPs and communication) of `count` repetitions of this Work, such as loop iterations."""
        sent = {kind: size * count for kind, size in self.sent.items()}
        collectives = {kind: number * count for kind, number in self.collectives.items()}
        return Work(self.flops * count, sent, collectives, self.partial)


def work_of(text: str) -> Work:
    """Return the FLOPs and the communication of one device in a compiled HLO module.

    The body of a loop counts once for each iteration.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> compiled = jax.jit(jnp.dot).lower(jnp.ones((2, 3)), jnp.ones((3, 4))).compile()
      >>> work_of(compiled.as_text()).flops
      48.0
    """
    computations = dict(_computations(text))
    return _Counter(computations).count(next(reversed(computations)))


class _Counter:
    """A counter of the FLOPs and the communication of each computation (function) of a compiled HLO module."""

    def __init__(self, computations: Mapping[str, list[Instruction]]):
        self._computations = computations
        self.count = functools.cache(self._count)

    def _count(self, computation: str) -> Work:
        shapes = {i.name: i.shape for i in self._computations[computation]}
        total = Work()
        for instruction in self._computations[computation]:
            total += _own(instruction, shapes)
            called = [self.count(name) for name in _called(instruction) if name in self._computations]
            if instruction.kind == "conditional":
                total += max(called, key=lambda work: (work.flops, sum(work.sent.values())))
            elif instruction.kind == "while":
                trips = _TRIPS.search(instruction.rest)
                body = sum(called, Work())
                total += body.times(int(trips[1])) if trips else body._replace(partial=True)
            else:
                total = sum(called, total)
        return total


def _computations(text: str) -> Iterator[tuple[str, list[Instruction]]]:
    """Parse a module into pairs (name, instructions), one for each computation (function), the main function last."""
    found: dict[str, list[Instruction]] = {}
    entry = name = ""
    for line in text.splitlines():
        if head := _HEAD.match(line):
            name = head[1]
            found[name] = []
            entry = name if line.startswith("ENTRY") else entry
        elif name and (instruction := _instruction(line)):
            found[name].append(instruction)
    return iter([*((n, i) for n, i in found.items() if n != entry), (entry, found[entry])])


def _instruction(line: str) -> Instruction | None:
    named = _NAME.match(line)
    if named is None:
        return None
    rest = line[named.end() :]
    shape = rest[: _closing(rest)] if rest.startswith("(") else rest.partition(" ")[0]
    kind, _, rest = rest[len(shape) :].strip().partition("(")
    end = _closing(f"({rest}") - 1
    operands = re.findall(r"%?([\w.\-]+)(?:,|$)", rest[: end - 1])
    return Instruction(named[1], shape, kind, tuple(operands), rest[end:])


def _closing(text: str) -> int:
    """Return the index after the parenthesis that closes the "(" at the start of `text`; else the length of `text`."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position + 1
    return len(text)


def _called(instruction: Instruction) -> list[str]:
    if instruction.kind not in ("call", "fusion", "while", "conditional", "async-start", "custom-call"):
        return []
    return [name.strip().lstrip("%") for found in _CALLED.findall(instruction.rest) for name in found.split(",")]


def _own(instruction: Instruction, shapes: Mapping[str, str]) -> Work:
    """Return the FLOPs and communication of an HLO instruction itself, without the computations that it calls."""
    kind = instruction.kind.removesuffix("-start")
    if kind in _SENT:
        size = _bytes(instruction.shape)
        if kind != instruction.kind and instruction.shape.startswith("("):
            size = _bytes(instruction.shape.partition(",")[2]) if kind != "all-reduce" else size
        group = _group(instruction.rest)
        return Work(sent={kind: size * _SENT[kind](group)}, collectives={kind: 1}) if group > 1 else Work()
    if instruction.kind == "dot":
        contracted = _CONTRACTED.search(instruction.rest)
        dimensions = _dimensions(shapes[instruction.operands[0]])
        inner = math.prod(dimensions[int(d)] for d in contracted[1].split(",")) if contracted and contracted[1] else 1
        return Work(2.0 * math.prod(_dimensions(instruction.shape)) * inner)
    if instruction.kind == "convolution":
        labels = _LABELS.search(instruction.rest)
        kernel = _dimensions(shapes[instruction.operands[1]])
        each = math.prod(size for size, label in zip(kernel, labels[1] if labels else "", strict=False) if label != "o")
        return Work(2.0 * math.prod(_dimensions(instruction.shape)) * each)
    return Work()


def _group(rest: str) -> int:
    """Return the number of devices in each group of a collective, from its attributes; 2 if no groups are given."""
    found = _GROUPS.search(rest)
    if found is None:
        return 2
    groups = found[1]
    if groups.startswith("mesh"):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", groups))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'(\w+)'", groups.partition("]")[2]))
    if groups.startswith("["):
        return int(groups[1:-1].split(",")[-1])
    return groups.count(",") + 1


def _dimensions(shape: str) -> list[int]:
    found = _ARRAY.search(shape)
    return [int(size) for size in found[2].split(",") if size] if found else []


def _bytes(shape: str) -> float:
    """Return the total number of bytes of the arrays that a shape text lists, such as "(f32[2,3], s32[])"."""
    return sum(
        math.prod(int(size) for size in sizes.split(",") if size) * _width(dtype)
        for dtype, sizes in _ARRAY.findall(shape)
    )


def _width(dtype: str) -> float:
    bits = _BITS.search(dtype)
    return int(bits[0]) / 8 if bits else 1.0


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {kind: one.get(kind, 0) + other.get(kind, 0) for kind in {**one, **other}}


# `Shape` is the type of the descriptions (shape, dtype and sharding) that a plan uses instead of arrays.
Shape = jax.ShapeDtypeStruct


class ShapesOnMesh(OnMesh):
    """A layout that plans the memory of a training without creating arrays.

    Its methods return descriptions (shape, dtype, sharding) instead of arrays.
    """

    def initial(self, program: Program, root: jax.Array | None) -> dict[str, Any]:
        """Return shape, dtype and sharding of a program's parameters and states, by name; the key `root` is ignored."""
        specs = program.parameters | program.states
        return {n: Shape(spec.shape, spec.dtype, sharding=self.parameters.sharding(n)) for n, spec in specs.items()}

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return shape, dtype and sharding of each array of the initial optimizer state for `parameters`."""
        return self.parameters.slot_shapes(rule, parameters)

    def feed(self, program: Program, batch_size: int, time: int) -> dict[str, Any]:
        """Return shape, dtype and sharding of the arrays of a minibatch, by feed name."""
        specs = program.feeds
        return self.take(jax.eval_shape(lambda: {n: stand_in(s, batch_size, (time, time)) for n, s in specs.items()}))

    def take(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the arrays of a minibatch to descriptions with shape, dtype and sharding, by feed name."""
        return {n: jax.tree.map(lambda array, name=n: self._fed(name, array), value) for n, value in feed.items()}

    def _fed(self, name: str, array: Any) -> Shape:
        return Shape(array.shape, array.dtype, sharding=self.batch.sharding(name, array.shape))


def bytes_of(tree: Any) -> int:
    """Return the number of bytes that one device stores for all arrays of a pytree, from their shapes and shardings."""

    def size(array: Any) -> int:
        return math.prod(array.sharding.shard_shape(array.shape)) * int(array.dtype.itemsize)

    return sum(map(size, jax.tree.leaves(tree)))


_HEADER = ("mesh", "devices", "parameters", "slots", "feed", "activations", "peak", "FLOPs", "sent")


@dataclass(frozen=True)
class Candidate:
    """A mesh of a plan, with the memory and the work that each device of the mesh needs for a training step.

    Attributes:
      mesh: the mesh.
      devices: the number of devices of the mesh.
      parameters: bytes of parameters and states on each device.
      slots: bytes of the optimizer state on each device.
      feed: bytes of the minibatch on each device.
      activations: maximum of the bytes of all intermediate values at one time, on each device.
      peak: maximum of the bytes of all arrays at one time: intermediate values, arguments and results of the step.
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
    """The result of `fluid.plan`: the memory and the work of training a program on each of several meshes.

    Attributes:
      candidates: a Candidate for each mesh.
      memory: bytes of memory of one device; None for no limit.
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
        """The candidate mesh with the fewest devices whose peak of memory fits in `memory`; None if none fits.

        Among candidates with equally many devices, it is the one with the fewest FLOPs, then with the fewest bytes
        sent.
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
        parts = "<br>".join([*self._kinds(), *self._verdict()])
        return self._title() + html_table(map(_cells, self.candidates), _HEADER, range(1, len(_HEADER))) + parts

    def _title(self) -> str:
        return f"{self.program.name}, {counted(self.program.parameter_count, 'parameter')}, {self.batch_size:,} rows"

    def _kinds(self) -> list[str]:
        """Return lines of text with the bytes sent by each kind of collective, one for each mesh with communication."""
        return [
            f"{_axes(c.mesh)} sends "
            + ", ".join(f"{scaled(c.work.sent[kind], 'B')} by {counted(n, kind)}" for kind, n in _kinds(c.work))
            for c in self.candidates
            if c.work.sent
        ]

    def _verdict(self) -> list[str]:
        if self.memory is None:
            return []
        memory = scaled(self.memory, "B")
        large = [_axes(c.mesh) for c in self.candidates if not self._fits(c)]
        parts = [f"more than {memory} on a device: {'; '.join(large)}"] if large else []
        smallest = self.smallest
        found = "none of these meshes fits" if smallest is None else f"the smallest that fits: {_axes(smallest.mesh)}"
        return [*parts, f"{found} ({memory} on a device)"]

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
      program_func: the program function, as for `fluid.Trainer`.
      optimizer: the optimizer, as for `fluid.Trainer`.
      batch_size: the number of rows of the global minibatch.
      meshes: the candidates, such as `[fluid.Mesh(fsdp=64), fluid.Mesh(data=16, model=4)]`.
      memory: bytes of memory of each device; None skips the check for candidates that do not fit.
      time: the number of time steps of each sequence.
      shardings: shardings of parameters by name or glob, as for `fluid.Trainer`.
      precision: the dtype of the computation, as for `fluid.Trainer`.

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
    layout = ShapesOnMesh(over, ShardingRules(over, shardings))
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
    """Return as many CPU devices of this process as a mesh has devices."""
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
