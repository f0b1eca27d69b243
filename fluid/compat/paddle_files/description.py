"""Descriptions: PaddlePaddle's ProgramDesc as Python dataclasses of variables, ops, feeds and fetches."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fluid.compat.paddle_files import messages

_FIRST_UNREAD = (2, 0, 0)  # from this version of PaddlePaddle on, some ops have another meaning, and nothing is read
_TRACEBACK = b"op_callstack"


@dataclass(frozen=True)
class VarDesc:
    """A variable of a PaddlePaddle program.

    Attributes:
      name: the name, unique in the program.
      shape: -1 for a size that depends on the data; for sequences, the shape of all steps concatenated.
      dtype: for example "float32"; None for a variable that is not a tensor.
      lod_level: 0 for dense data, 1 for sequences, 2 for sequences of sequences.
      persistable: True for a parameter, a statistic or optimizer state, which is saved beside the program.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str | None
    lod_level: int
    persistable: bool


@dataclass(frozen=True)
class OpDesc:
    """An op (operator) of a PaddlePaddle program.

    Attributes:
      type: the type, for example "conv2d".
      inputs: names of variables by input slot.
      outputs: names of variables by output slot.
      attributes: numbers, strings, booleans, and lists of these, by name.
      has_block: True if the op runs another block of the program.
    """

    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, Any]
    has_block: bool = False

    def reads(self) -> Iterable[str]:
        """Return the names of all variables in the input slots."""
        return (name for names in self.inputs.values() for name in names)

    def writes(self) -> Iterable[str]:
        """Return the names of all variables in the output slots."""
        return (name for names in self.outputs.values() for name in names)


@dataclass(frozen=True)
class ProgramDesc:
    """The first block of a PaddlePaddle program.

    Attributes:
      variables: the variables by name.
      ops: in program order, without feed and fetch ops.
      feeds: names of the fed variables, in the order of their columns.
      fetches: names of the fetched variables, in the order of their columns.
    """

    variables: Mapping[str, VarDesc]
    ops: tuple[OpDesc, ...]
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]

    def parameters(self) -> list[str]:
        """Return the names of all persistable tensors, sorted, which is their order in a combined file."""
        return sorted(v.name for v in self.variables.values() if v.persistable and v.dtype is not None)

    def needed(self, fetches: Iterable[str]) -> list[OpDesc]:
        """Return the ops that the variables `fetches` depend on, in program order."""
        wanted = set(fetches)
        found = []
        for op in reversed(self.ops):
            if not wanted.isdisjoint(op.writes()):
                wanted.update(op.reads())
                found.append(op)
        return found[::-1]


def read_program(data: bytes) -> ProgramDesc:
    """Read a serialized ProgramDesc.

    Args:
      data: the bytes of a `__model__` file, which PaddlePaddle's `save_inference_model` writes.

    Raises:
      ValueError: the bytes are not a ProgramDesc; the message names the problem.
    """
    program = messages.parse("Program", data)
    _check_version(program.version.version)
    if not program.blocks or not program.blocks[0].ops:
        raise ValueError("it holds no block of ops")
    block = program.blocks[0]
    ops = [_op(op) for op in block.ops]
    feeds = _columns(ops, "feed", lambda op: op.outputs.get("Out", ()))
    fetches = _columns(ops, "fetch", lambda op: op.inputs.get("X", ()))
    if not fetches:
        raise ValueError("nothing is fetched; expected a program that save_inference_model wrote")
    variables = {variable.name: variable for variable in map(_variable, block.variables)}
    for name in (*feeds, *fetches):
        if name not in variables or variables[name].dtype is None:
            raise ValueError(f"the variable {name!r} is fed or fetched, and is no tensor of the program")
    return ProgramDesc(variables, tuple(op for op in ops if op.type not in ("feed", "fetch")), feeds, fetches)


def _check_version(number: int) -> None:
    version = (number // 1_000_000, number // 1000 % 1000, number % 1000)
    if not (0, 0, 0) <= version < _FIRST_UNREAD:
        raise ValueError(f"version {'.'.join(map(str, version))} wrote it; 0.14 to 1.8 are read")


def _op(op: Any) -> OpDesc:
    if not op.type:
        raise ValueError("an op has no type")
    attributes = {a.name.decode(): _attribute(a) for a in op.attributes if a.name != _TRACEBACK}
    has_block = any(a.type in messages.BLOCK_TYPES for a in op.attributes)
    return OpDesc(op.type.decode(), _slots(op.inputs), _slots(op.outputs), attributes, has_block)


def _slots(slots: Any) -> dict[str, tuple[str, ...]]:
    return {slot.parameter.decode(): tuple(name.decode() for name in slot.arguments) for slot in slots}


def _attribute(attribute: Any) -> Any:
    field = messages.ATTRIBUTE_FIELDS.get(attribute.type)
    if field is None:
        raise ValueError(f"the attribute {attribute.name.decode()!r} is of the unknown type {attribute.type}")
    value = getattr(attribute, field)
    if isinstance(value, int | float):
        return value
    if isinstance(value, bytes):
        return value.decode()
    return [item.decode() if isinstance(item, bytes) else item for item in value]


def _variable(variable: Any) -> VarDesc:
    name = variable.name.decode()
    kind = variable.type
    if kind.type != messages.LOD_TENSOR:
        return VarDesc(name, (), None, 0, variable.persistable)
    tensor = kind.lod_tensor.tensor
    dtype = messages.DTYPES.get(tensor.data_type)
    # PaddlePaddle multiplies sizes, -1 for unknown ones too, so that a negative number of any value is an unknown size.
    shape = tuple(max(size, -1) for size in tensor.dims)
    level = kind.lod_tensor.lod_level
    if (dtype is None and variable.persistable) or not 0 <= level <= 2:
        raise ValueError(
            f"the variable {name!r} has data type {tensor.data_type}, sizes {list(shape)}, LoD level {level}"
        )
    return VarDesc(name, shape, dtype, level, variable.persistable)


def _columns(ops: Iterable[OpDesc], kind: str, names: Any) -> tuple[str, ...]:
    """Return the variables that ops of type `kind` name, in the order of their columns."""
    found = [(op.attributes.get("col", 0), *names(op)) for op in ops if op.type == kind]
    if any(len(entry) != 2 or not isinstance(entry[0], int) for entry in found):
        raise ValueError(f"an op {kind!r} does not name one variable and its column")
    return tuple(name for _, name in sorted(found))
