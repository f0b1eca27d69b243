"""What a compiled step computes and sends, read from the text of its module."""

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
# How much of its result a device sends when the devices stand in a ring, for a group of n.
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
    """One line of a module.

    Attributes:
      name: of its result.
      shape: of its result, as text; a tuple has several.
      kind: what it does, such as "all-reduce".
      operands: names of what it reads.
      rest: its attributes, as text.
    """

    name: str
    shape: str
    kind: str
    operands: tuple[str, ...]
    rest: str


class Work(NamedTuple):
    """What one device does in a step.

    Attributes:
      flops: of matrix products and convolutions, a multiplication and an addition being two.
      sent: bytes by the kind of collective, counted as if the devices of each group stood in a ring.
      collectives: how many there are of each kind.
      partial: whether there is a loop among them whose number of steps the data decides; it is counted as one step.

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
        """What it is to do this so many times."""
        sent = {kind: size * count for kind, size in self.sent.items()}
        collectives = {kind: number * count for kind, number in self.collectives.items()}
        return Work(self.flops * count, sent, collectives, self.partial)


def work_of(text: str) -> Work:
    """What one device does, by the text of a compiled module, whose loops are counted as often as they turn.

    Args:
      text: of `jax.stages.Compiled.as_text()`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> compiled = jax.jit(jnp.dot).lower(jnp.ones((2, 3)), jnp.ones((3, 4))).compile()
      >>> work_of(compiled.as_text()).flops
      48.0
    """
    computations = dict(_computations(text))
    return _Counter(computations).count(next(reversed(computations)))


class _Counter:
    """Counts computations, each once."""

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
    """The computations of a module by name; the last one is where it begins."""
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
    """The position behind the parenthesis that closes the first one."""
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position + 1
    return len(text)


def _called(instruction: Instruction) -> list[str]:
    """The computations that an instruction runs; those that combine two numbers, as of a sum, are none."""
    if instruction.kind not in ("call", "fusion", "while", "conditional", "async-start", "custom-call"):
        return []
    return [name.strip().lstrip("%") for found in _CALLED.findall(instruction.rest) for name in found.split(",")]


def _own(instruction: Instruction, shapes: Mapping[str, str]) -> Work:
    """What an instruction does itself, without those that it calls."""
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
    """How many devices take part in a collective together; 2 where the text does not tell."""
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
    """The bytes of all arrays of a shape."""
    return sum(
        math.prod(int(size) for size in sizes.split(",") if size) * _width(dtype)
        for dtype, sizes in _ARRAY.findall(shape)
    )


def _width(dtype: str) -> float:
    """The bytes of a number, by a name such as "f32", "bf16", "f8e4m3fn" or "pred"."""
    bits = _BITS.search(dtype)
    return int(bits[0]) / 8 if bits else 1.0


def _added(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    return {kind: one.get(kind, 0) + other.get(kind, 0) for kind in {**one, **other}}
