"""Work: the FLOPs and the communication of a compiled step, read from the text of its HLO module.

`compiled.cost_analysis()` returns neither. It counts the body of a loop, as in `layers.repeat`, only once: 65,538 FLOPs
for ten products of 65,536 FLOPs in a `scan`, with jax 0.10.2. It counts no collectives.
"""

import functools
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
# The bytes that each device sends in a collective of a group of n devices in a ring, as a multiple of the bytes of the
# collective's result.
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
    """One instruction of a compiled module, which is one line of its text.

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
      sent: bytes sent by each kind of collective, if the devices of each group form a ring.
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

    def __add__(self, other: "Work") -> "Work":  # type: ignore[override]
        return Work(
            self.flops + other.flops,
            _added(self.sent, other.sent),
            _added(self.collectives, other.collectives),
            self.partial or other.partial,
        )

    def times(self, count: int) -> "Work":
        """Return the work of `count` repetitions of this work, such as the iterations of a loop."""
        sent = {kind: size * count for kind, size in self.sent.items()}
        collectives = {kind: number * count for kind, number in self.collectives.items()}
        return Work(self.flops * count, sent, collectives, self.partial)


def work_of(text: str) -> Work:
    """Return the work of one device in a compiled module; the body of a loop counts once for each iteration.

    Args:
      text: the text of the module, from `jax.stages.Compiled.as_text()`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> compiled = jax.jit(jnp.dot).lower(jnp.ones((2, 3)), jnp.ones((3, 4))).compile()
      >>> work_of(compiled.as_text()).flops
      48.0
    """
    computations = dict(_computations(text))
    return _Counter(computations).count(next(reversed(computations)))


class _Counter:
    """A counter of the work of the computations (functions) in a module, which caches the work of each."""

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
    """Return pairs of the name and the instructions of each computation of a module; the entry computation is last."""
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
    """Return the index after the parenthesis that closes the one at the start of `text`; the length without one."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position + 1
    return len(text)


def _called(instruction: Instruction) -> list[str]:
    """Return the names of the computations that an instruction calls, except the scalar computation of a reduction."""
    if instruction.kind not in ("call", "fusion", "while", "conditional", "async-start", "custom-call"):
        return []
    return [name.strip().lstrip("%") for found in _CALLED.findall(instruction.rest) for name in found.split(",")]


def _own(instruction: Instruction, shapes: Mapping[str, str]) -> Work:
    """Return the work of an instruction itself, without the computations that it calls."""
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
    """Return the number of devices in each group of a collective, from its attributes; 2 if they do not name groups."""
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
    """Return the number of bytes of all arrays in the text of a shape, such as "(f32[2,3], s32[])"."""
    return sum(
        math.prod(int(size) for size in sizes.split(",") if size) * _width(dtype)
        for dtype, sizes in _ARRAY.findall(shape)
    )


def _width(dtype: str) -> float:
    """Return the number of bytes of one number, by the name of its dtype: "f32", "bf16", "f8e4m3fn" or "pred"."""
    bits = _BITS.search(dtype)
    return int(bits[0]) / 8 if bits else 1.0


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {kind: one.get(kind, 0) + other.get(kind, 0) for kind in {**one, **other}}
