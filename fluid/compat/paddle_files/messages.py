"""Messages: protobuf messages of PaddlePaddle, with the fields that fluid reads.

The messages are declared as text, one line for each field. The `protobuf` library builds their classes on first use.
"""

import functools
from typing import Any

from fluid import errors
from fluid._util import protobuf

# The names of PaddlePaddle's data types, by their numbers in files.
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
# By the number of the type of an attribute: the field of the message `Attribute` that holds its value.
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

# For each message its fields: name, number, type; "*" marks a repeated field. Text fields are bytes, because the
# library does not report damaged text.
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
    """Return the class of a message that `_MESSAGES` declares, for example "Program".

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
    """Parse `data` as the message that `_MESSAGES` declares under `name`.

    Raises:
      ValueError: the bytes are not a message of this type.
    """
    kind = message(name)
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise ValueError(f"not a message of the kind {name}: {error}") from error
