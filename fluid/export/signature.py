"""Signatures of entry points, which describe their feeds, outputs and sizes in the manifest of an exported model."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.checkpoint import natural
from fluid.core import Array, FeedSpec, NestedSequenceBatch, SequenceBatch
from fluid.reader import Table

BATCH = "batch"
# Explanation of the JSON of a Table, which converts raw rows to feeds. It is stored with the JSON for people who read
# an exported model without fluid.
_TABLE = (
    "numbers [rows, columns] are (value - shift) / scale, with fill for a missing value, from [fill, shift, scale]; "
    "categories [rows, columns] are the positions of values in these lists from 1 on, and 0 if missing or unknown"
)
Dims = tuple[int | str, ...]
# The valid structure of the manifest's JSON (feeds, outputs, entry points, arrays), which `check_structure` checks.
_LIMITS = [[int, int, int], [int, int, type(None)], [int, type(None), type(None)]]
_FEED = {
    **dict.fromkeys(("name", "dtype", "held"), str),
    "dims": [(str, natural)],
    "lod_level": lambda level: level in (0, 1, 2),
    "limits": (None, lambda limits: isinstance(limits, list) and [type(n) for n in limits] in _LIMITS),
    "bounds": (None, lambda bounds: isinstance(bounds, list) and len(bounds) == 2 and all(map(_is_bound, bounds))),
}
_OUTPUT = {
    **dict.fromkeys(("name", "value"), (None, str)),
    "shape": [(None, natural)],
    "dtype": str,
    "lod_level": natural,
}
_ENTRY = {
    "feeds": [_FEED],
    "outputs": [_OUTPUT],
    "arrays": [str],
    "functions": [{"sizes": {"*": natural}, "file": str}],
    "random": bool,
    "least": natural,
    "note": (None, str),
    "table": (None, dict),
    "by_row": (None, bool),
}
MANIFEST = {
    "made_with": {"*": str},
    "platforms": [str],
    "entries": {"*": _ENTRY},
    "arrays": {"*": {"file": str, "shape": [natural], "dtype": str, "state": bool}},
}


def _is_bound(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and value == value)


@dataclass(frozen=True)
class FeedSignature(FeedSpec):
    """A feed (input) of an entry point, which is one program of an exported model.

    Attributes:
      dims: the shape of the array, including the padded steps of sequences; a string is the name of an open size.
    """

    dims: Dims = ()

    @classmethod
    def of(cls, spec: FeedSpec, dims: Dims) -> "FeedSignature":
        """Create a FeedSignature from the declaration `spec` of a program's feed, with the dimensions `dims`."""
        return cls(spec.name, spec.shape, spec.dtype, spec.lod_level, limits=spec.limits, bounds=spec.bounds, dims=dims)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "FeedSignature":
        """Create a FeedSignature from JSON of `to_json`; raise TypeError or ValueError for invalid values."""
        dims, level = tuple(found["dims"]), found["lod_level"]
        if level and len(dims) <= level:
            raise ValueError(f"the feed {found['name']} has the dimensions {found['dims']}")
        shape = tuple(None if isinstance(d, str) else d for d in (*dims[:1], *dims[1 + level :]))
        limits = found["limits"] and tuple(found["limits"])
        bounds = found.get("bounds") and tuple(found["bounds"])
        dtype = str(jnp.dtype(found["dtype"]))
        return cls(found["name"], shape, dtype, level, limits=limits, bounds=bounds, dims=dims)

    def to_json(self) -> dict[str, Any]:
        """Return this feed as JSON for the manifest.

        The entry `held` is the dtype of the array that the exported function takes; `standalone.py` converts feeds to
        this dtype.
        """
        return {
            "name": self.name,
            "dims": self.dims,
            "dtype": self.dtype,
            "held": str(self.held),
            "lod_level": self.lod_level,
            "limits": self.limits,
            **({} if self.bounds is None else {"bounds": self.bounds}),
        }

    def abstract(self, sizes: Mapping[str, Any]) -> Any:
        """Return shape and dtype of the array that an exported function takes for this feed.

        For sequences, return a tuple: shape and dtype of the padded data, then of the lengths.
        """
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in self.dims)
        data = jax.ShapeDtypeStruct(shape, self.held)
        lengths = [jax.ShapeDtypeStruct(shape[: 1 + level], np.int32) for level in range(self.lod_level)]
        return (data, *lengths) if lengths else data

    def sizes(self, shape: Sequence[int]) -> dict[str, int]:
        """Return the sizes that the declaration of this feed leaves open, by name, read from the shape of an array."""
        return {d: size for d, size in zip(self.dims, shape, strict=True) if isinstance(d, str)}


@dataclass(frozen=True)
class Output:
    """A result of an entry point, which is one program of an exported model.

    Attributes:
      name: the key of the result in the program's dict of outputs, or the fetched name; None for an unnamed output.
      value: the name of this value inside the program, such as "fc_0.tmp_2"; None if the value has no name.
      shape: the shape of the array; None stands for the batch size, and for numbers of sequence steps.
      dtype: the dtype of the array.
      lod_level: 0 for arrays, 1 for sequences, 2 for sequences of sequences.
    """

    name: str | None
    value: str | None
    shape: tuple[int | None, ...]
    dtype: str
    lod_level: int = 0

    @property
    def array(self) -> Array:
        """Shape and dtype of this output, as an Array, the type of the entries of `Program.outputs`."""
        return Array(self.shape, self.dtype)


@dataclass(frozen=True)
class Function:
    """A description of an exported function, one of the functions that compute an entry point (a program).

    Attributes:
      sizes: the sizes that are fixed, by name; the other sizes of the feeds are open.
      file: the entry of the archive that holds the function, serialized by `jax.export`.
      module: the index of the first byte of the StableHLO module in this entry, and the index after its last byte.
      kept: the indices of the arguments that the module takes; the other arguments are unused.
      convention: the version of the calling convention of `jax.export`.
      constraints: the constraints of open sizes, such as "steps0 >= 2".
      feeds: the feeds by name, each a text such as "float32[batch,3]", or several texts for a sequence.
      results: the results, as texts such as "float32[batch,3]".

    `standalone.py` needs all attributes except `sizes` and `file`, because it does not use `jax.export.deserialize`.
    """

    sizes: Mapping[str, int]
    file: str = ""
    module: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()
    convention: int = 0
    constraints: tuple[str, ...] = ()
    feeds: Any = None
    results: Any = None


@dataclass(frozen=True)
class Entry:
    """The signature (feeds, results, functions) of an entry point, which is one program of an exported model.

    Attributes:
      feeds: the feeds, in the order of their declaration.
      outputs: the results, in the order in which the functions return them.
      arrays: names of the parameters and states that the functions read.
      functions: the exported functions, in the order of preference; the first function whose fixed sizes fit runs.
      random: True if the results depend on a random key.
      least: the minimum number of time steps to which a sequence may be padded.
      note: the reason why there is more than one function; None if there is one function.
      table: the `fluid.reader.Table` that encodes raw rows as feeds; None if the program has no Table.
      by_row: True if each row of the results is computed from one row of the feeds; None in a file of an earlier
        version, which does not say it.
    """

    feeds: tuple[FeedSignature, ...]
    outputs: tuple[Output, ...]
    arrays: tuple[str, ...]
    functions: tuple[Function, ...]
    random: bool = False
    least: int = 1
    note: str | None = None
    table: Table | None = None
    by_row: bool | None = None

    def to_json(self) -> dict[str, Any]:
        """Return this signature as JSON for the manifest."""
        found = {**asdict(replace(self, feeds=(), table=None)), "feeds": [feed.to_json() for feed in self.feeds]}
        if self.table is None:
            del found["table"]
            return found
        return {**found, "table": {"about": _TABLE, **self.table.to_json()}}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Entry":
        """Create an Entry from the JSON that `to_json` returned.

        Raises:
          KeyError: a value is missing.
          TypeError: a value has a wrong type.
          ValueError: a value is invalid.
        """
        for output in found["outputs"]:
            jnp.dtype(output["dtype"])
        return cls(
            feeds=tuple(map(FeedSignature.from_json, found["feeds"])),
            outputs=tuple(Output(**{**o, "shape": tuple(o["shape"])}) for o in found["outputs"]),
            arrays=tuple(found["arrays"]),
            functions=tuple(Function(f["sizes"], f["file"]) for f in found["functions"]),
            random=found["random"],
            least=found["least"],
            note=found["note"],
            table=None if found.get("table") is None else Table.from_json(found["table"]),
            by_row=found.get("by_row"),
        )


def leaves_of(value: Any) -> Any:
    """Convert a value to the types that exported functions use: an array, or a tuple of padded data and lengths."""
    if isinstance(value, NestedSequenceBatch):
        return value.data, value.lengths, value.inner_lengths
    return (value.data, value.lengths) if isinstance(value, SequenceBatch) else value


def value_of(leaves: Any) -> Any:
    """Join a tuple of padded data and lengths to a SequenceBatch or NestedSequenceBatch; return an array unchanged."""
    if not isinstance(leaves, tuple | list):
        return leaves
    return SequenceBatch(*leaves) if len(leaves) == 2 else NestedSequenceBatch(*leaves)


def level_of(value: Any) -> int:
    """Return the number of sequence levels: 0 for an array, 1 for a SequenceBatch, 2 for a NestedSequenceBatch."""
    return {SequenceBatch: 1, NestedSequenceBatch: 2}.get(type(value), 0)
