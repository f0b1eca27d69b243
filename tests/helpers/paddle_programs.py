"""Programs of PaddlePaddle Fluid: recorded results, and a writer of model files; see data/paddle/README.md."""

import functools
import json
import pathlib
from dataclasses import dataclass, field

import numpy as np

import fluid
from fluid.compat.paddle_files import program_desc

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "data" / "paddle"
TYPES = "INT FLOAT STRING INTS FLOATS STRINGS BOOLEAN BOOLEANS BLOCK LONG BLOCKS LONGS".split()
NUMBERS = {name: number for number, name in program_desc.DTYPES.items()}
VERSION = 1_008_005


@functools.cache
def recorded():
    """Return the content of ops.json: default attributes of ops (`defaults`), and recorded programs (`cases`)."""
    return json.loads((FOLDER / "ops.json").read_text())


@functools.cache
def arrays():
    """Return the recorded arrays of all cases; the keys are `CASE/KIND/NAME`."""
    with np.load(FOLDER / "ops.npz") as file:
        return dict(file)


@dataclass
class Written:
    """A program that is built op by op and written in PaddlePaddle's format.

    Attributes:
      variables: a dict from names to `(dtype, shape, lod_level, persistable)`.
      ops: a list of `(type, inputs, outputs, attributes)`; `attributes` is a dict from names to `(type, value)`.
    """

    variables: dict = field(default_factory=dict)
    ops: list = field(default_factory=list)
    feeds: list = field(default_factory=list)
    fetches: list = field(default_factory=list)
    params: dict = field(default_factory=dict)
    version: int = VERSION

    def feed(self, name, shape, dtype="float32", lod_level=0):
        self.variables[name] = (dtype, shape, lod_level, False)
        self.feeds.append(name)
        return self

    def param(self, name, array):
        array = np.asarray(array)
        self.variables[name] = (str(array.dtype), array.shape, 0, True)
        self.params[name] = array
        return self

    def op(self, type, inputs, outputs, **attributes):
        """Append an op, and return the program.

        Args:
          type: the type of the op.
          inputs: a dict from input slots to a variable name or a list of names.
          outputs: a dict from output slots to a variable name or a list of names.
          **attributes: plain values.
        """
        listed = [{slot: [v] if isinstance(v, str) else v for slot, v in side.items()} for side in (inputs, outputs)]
        for names in listed[1].values():
            for name in names:
                self.variables.setdefault(name, ("float32", (-1,), 0, False))
        self.ops.append((type, *listed, {name: (_type(value), value) for name, value in attributes.items()}))
        return self

    def fetch(self, *names):
        self.fetches.extend(names)
        return self

    def serialized(self):
        """Serialize the program as the bytes of a ProgramDesc message."""
        program = program_desc.message("Program")()
        program.version.version = self.version
        block = program.blocks.add(index=0, parent=-1)
        lists = {"feed": program_desc.FEED_LIST, "fetch": program_desc.FETCH_LIST}
        for name, type_ in lists.items():
            block.variables.add(name=name.encode(), persistable=True).type.type = type_
        for name, (dtype, shape, lod_level, persistable) in self.variables.items():
            variable = block.variables.add(name=name.encode(), persistable=bool(persistable))
            variable.type.type = program_desc.LOD_TENSOR
            variable.type.lod_tensor.lod_level = lod_level
            variable.type.lod_tensor.tensor.data_type = NUMBERS[dtype]
            variable.type.lod_tensor.tensor.dims.extend(shape)
        for column, name in enumerate(self.feeds):
            _add_op(block, "feed", {"X": ["feed"]}, {"Out": [name]}, {"col": ("INT", column)})
        for op in self.ops:
            _add_op(block, *op)
        for column, name in enumerate(self.fetches):
            _add_op(block, "fetch", {"X": [name]}, {"Out": ["fetch"]}, {"col": ("INT", column)})
        return program.SerializeToString()

    def save(self, folder, combined=None):
        """Write the program and its parameters to a folder: a file for each parameter, or a file `combined` for all."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__model__").write_bytes(self.serialized())
        parts = {name: serialized(array) for name, array in sorted(self.params.items())}
        if combined is not None:
            (folder / combined).write_bytes(b"".join(parts.values()))
        else:
            for name, data in parts.items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(data)
        return folder


def serialized(array, levels=()):
    """Serialize an array as a variable in PaddlePaddle's format; `levels` holds the offsets of the sequences."""
    array = np.asarray(array)
    tensor = program_desc.message("Tensor")(data_type=NUMBERS[str(array.dtype)], dims=array.shape).SerializeToString()
    lod = b"".join((8 * len(offsets)).to_bytes(8, "little") + np.array(offsets, "<u8").tobytes() for offsets in levels)
    head = bytes(4) + len(levels).to_bytes(8, "little") + lod + bytes(4)
    return head + len(tensor).to_bytes(4, "little") + tensor + array.tobytes()


def case(name):
    """Return the program of a recorded case, its feeds by name, and the results of PaddlePaddle."""
    entry = recorded()["cases"][name]
    kinds = {kind: _arrays_of(name, kind) for kind in ("feed", "param", "out")}
    program = Written(entry["variables"], entry["ops"], list(entry["feeds"]), entry["fetches"], kinds["param"])
    for feed, array in kinds["feed"].items():
        program.variables.setdefault(feed, (str(array.dtype), array.shape, 0, False))
    feeds = {n: batch(kinds["feed"][n], lengths) for n, lengths in entry["feeds"].items()}
    return program, feeds, [kinds["out"][str(i)] for i in range(len(entry["fetches"]))]


def batch(array, lengths):
    """Convert an array of concatenated steps to a sequence batch; without `lengths`, return the array unchanged."""
    return array if lengths is None else fluid.create_lod_tensor(array, [lengths])


def _arrays_of(name, kind):
    prefix = f"{name}/{kind}/"
    return {key.removeprefix(prefix): value for key, value in arrays().items() if key.startswith(prefix)}


def _add_op(block, type, inputs, outputs, attributes):
    op = block.ops.add(type=type.encode())
    for slots, kept in ((inputs, op.inputs), (outputs, op.outputs)):
        for slot, names in slots.items():
            kept.add(parameter=slot.encode(), arguments=[name.encode() for name in names])
    for name, (kind, value) in attributes.items():
        attribute = op.attributes.add(name=name.encode(), type=TYPES.index(kind))
        place = program_desc.ATTRIBUTE_FIELDS[TYPES.index(kind)]
        if isinstance(value, list):
            getattr(attribute, place).extend([v.encode() if isinstance(v, str) else v for v in value])
        else:
            setattr(attribute, place, value.encode() if isinstance(value, str) else value)


def _type(value):
    """Return PaddlePaddle's name of the type of an attribute; an empty list, which may have any type, is "INTS"."""
    if isinstance(value, list):
        return _type(value[0]) + "S" if value else "INTS"
    return {bool: "BOOLEAN", int: "INT", float: "FLOAT", str: "STRING"}[type(value)]
