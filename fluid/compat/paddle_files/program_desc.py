"""ProgramDesc: protobuf messages of PaddlePaddle, and Python dataclasses of their variables, ops, feeds and fetches.

The dict `_MESSAGES` declares the messages, and the `protobuf` library builds their classes on first use.
"""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fluid import errors
from fluid._util import protobuf

# A dict from the number of a dtype in PaddlePaddle files to the name of the dtype.
DTYPES = {
    0: "bool",
    1: "int16",
    2: "int32",
    3: "int64",
    4: "float16",
    5: "float32",
    6: "float64",
    20: "uint8",
    21: "int8",
}
LOD_TENSOR = 7
FEED_LIST = 9
FETCH_LIST = 10
# A dict from the number of an attribute type to the field of the protobuf message `Attribute` that holds the value.
ATTRIBUTE_FIELDS = {
    0: "i",
    1: "f",
    2: "s",
    3: "ints",
    4: "floats",
    5: "strings",
    6: "b",
    7: "bools",
    8: "block",
    9: "l",
    10: "blocks",
    11: "longs",
}
BLOCK_TYPES = (8, 10)

# The fields of each protobuf message: name, number, type; "*" marks a repeated field. Text fields have the type bytes,
# because the protobuf library does not report damaged text.
_MESSAGES = {
    "Version": ("version 1 int64",),
    "Attribute": (
        "name 1 bytes",
        "type 2 int32",
        "i 3 int32",
        "f 4 float",
        "s 5 bytes",
        "ints 6 int32*",
        "floats 7 float*",
        "strings 8 bytes*",
        "b 10 bool",
        "bools 11 bool*",
        "block 12 int32",
        "l 13 int64",
        "blocks 14 int32*",
        "longs 15 int64*",
    ),
    "Slot": ("parameter 1 bytes", "arguments 2 bytes*"),
    "Op": ("inputs 1 Slot*", "outputs 2 Slot*", "type 3 bytes", "attributes 4 Attribute*"),
    "Tensor": ("data_type 1 int32", "dims 2 int64*"),
    "LoDTensor": ("tensor 1 Tensor", "lod_level 2 int32"),
    "VariableType": ("type 1 int32", "selected_rows 2 Tensor", "lod_tensor 3 LoDTensor"),
    "Variable": ("name 1 bytes", "type 2 VariableType", "persistable 3 bool"),
    "Block": ("index 1 int32", "parent 2 int32", "variables 3 Variable*", "ops 4 Op*"),
    "Program": ("blocks 1 Block*", "version 4 Version"),
}


@functools.cache
def message(name: str) -> Any:
    """Return the protobuf class of the message `name`, for example "Program".

    Raises:
      ParameterFileError: the `protobuf` library is not installed.
    """
    try:
        return protobuf.classes("fluid.compat.paddle_files", _MESSAGES)[name]
    except ImportError as error:
        raise errors.ParameterFileError(
            "the original's files are protobuf messages, and the protobuf library is not installed: "
            "pip install 'fluid-jax[original]'"
        ) from error


def parse(name: str, data: bytes) -> Any:
    """Parse the bytes `data` as the protobuf message `name`, for example "Program".

    Raises:
      ValueError: the bytes are not a message of this type.
    """
    kind = message(name)
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ValueError(f"not a message of the kind {name}: {error}") from error


_FIRST_UNREAD = (2, 0, 0)  # The first unsupported PaddlePaddle version, in which some ops have another meaning.
_TRACEBACK = b"op_callstack"


@dataclass(frozen=True)
class VarDesc:
    """A variable of a PaddlePaddle program.

    Attributes:
      name: the name, unique in the program.
      shape: the shape, with -1 for a size that depends on the data; for sequences, the shape of the concatenated steps.
      dtype: for example "float32"; None for a variable that is not a tensor.
      lod_level: 0 for dense data, 1 for sequences, 2 for sequences of sequences.
      persistable: True for a parameter, a statistic or optimizer state, whose value is saved beside the program.
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
      has_block: True if the op runs another block of the program, as loops and branches do.
    """

    type: str
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]
    attributes: Mapping[str, Any]
    has_block: bool = False

    def reads(self) -> Iterable[str]:
        """Return the names of all variables that the PaddlePaddle op reads."""
        return (name for names in self.inputs.values() for name in names)

    def writes(self) -> Iterable[str]:
        """Return the names of all variables in the output slots of the op."""
        return (name for names in self.outputs.values() for name in names)


@dataclass(frozen=True)
class ProgramDesc:
    """The main block of a PaddlePaddle program, without the blocks of loops and branches.

    Attributes:
      variables: the variables by name.
      ops: the ops in program order, without feed and fetch ops.
      feeds: names of the fed variables, in the order in which the user feeds them.
      fetches: names of the fetched variables, in the order of the results.
    """

    variables: Mapping[str, VarDesc]
    ops: tuple[OpDesc, ...]
    feeds: tuple[str, ...]
    fetches: tuple[str, ...]

    def parameters(self) -> list[str]:
        """Return the names of all persistable tensors, sorted as in PaddlePaddle's combined parameter file."""
        return sorted(v.name for v in self.variables.values() if v.persistable and v.dtype is not None)

    def needed(self, fetches: Iterable[str]) -> list[OpDesc]:
        """Return all ops whose results the variables `fetches` depend on, in program order."""
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
    program = parse("Program", data)
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
    has_block = any(a.type in BLOCK_TYPES for a in op.attributes)
    return OpDesc(op.type.decode(), _slots(op.inputs), _slots(op.outputs), attributes, has_block)


def _slots(slots: Any) -> dict[str, tuple[str, ...]]:
    return {slot.parameter.decode(): tuple(name.decode() for name in slot.arguments) for slot in slots}


def _attribute(attribute: Any) -> Any:
    field = ATTRIBUTE_FIELDS.get(attribute.type)
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
    if kind.type != LOD_TENSOR:
        return VarDesc(name, (), None, 0, variable.persistable)
    tensor = kind.lod_tensor.tensor
    dtype = DTYPES.get(tensor.data_type)
    # PaddlePaddle may multiply an unknown size, -1, by known sizes, so every negative size means an unknown size.
    shape = tuple(max(size, -1) for size in tensor.dims)
    level = kind.lod_tensor.lod_level
    if (dtype is None and variable.persistable) or not 0 <= level <= 2:
        raise ValueError(
            f"the variable {name!r} has data type {tensor.data_type}, sizes {list(shape)}, LoD level {level}"
        )
    return VarDesc(name, shape, dtype, level, variable.persistable)


def _columns(ops: Iterable[OpDesc], kind: str, names: Any) -> tuple[str, ...]:
    """Return the variables of all ops "feed" or "fetch" (`kind`) of a PaddlePaddle program, by name.

    The names are sorted by the attribute `col` of the ops.
    """
    found = [(op.attributes.get("col", 0), *names(op)) for op in ops if op.type == kind]
    if any(len(entry) != 2 or not isinstance(entry[0], int) for entry in found):
        raise ValueError(f"an op {kind!r} does not name one variable and its column")
    return tuple(name for _, name in sorted(found))
