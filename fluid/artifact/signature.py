"""What the manifest of an artifact says of each entry point: feeds, outputs, sizes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core import Array, FeedSpec, NestedSequenceBatch, SequenceBatch
from fluid.storage import natural

BATCH = "batch"
Dims = tuple[int | str, ...]
# What a manifest must be, see `check_structure`.
_LIMITS = [[int, int, int], [int, int, type(None)]]
_FEED = {
    **dict.fromkeys(("name", "dtype", "held"), str),
    "dims": [(str, natural)],
    "lod_level": lambda level: level in (0, 1, 2),
    "limits": (None, lambda limits: isinstance(limits, list) and [type(n) for n in limits] in _LIMITS),
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
}
MANIFEST = {
    "made_with": {"*": str},
    "platforms": [str],
    "entries": {"*": _ENTRY},
    "arrays": {"*": {"file": str, "shape": [natural], "dtype": str, "state": bool}},
}
# What is exported: from arrays by name, feeds by name and the data of a random key, or None, to results. Feeds and
# results are arrays, or tuples of padded data and lengths.
Computation = Callable[[Mapping[str, Any], Mapping[str, Any], Any], list[Any]]


@dataclass(frozen=True)
class Feed:
    """One feed of an entry point.

    Attributes:
      name: of the feed.
      dims: its whole shape, the padded time steps of sequences included; a string stands for a size that is not fixed.
      dtype: the dtype as the program declared it.
      held: the dtype of the arrays that are given.
      lod_level: 0 for dense data, 1 for sequences, 2 for sequences of sequences.
      limits: which integers are allowed, see `FeedSpec.limits`.
    """

    name: str
    dims: Dims
    dtype: str
    held: str
    lod_level: int = 0
    limits: tuple[int, int, int | None] | None = None

    def spec(self, site: str) -> FeedSpec:
        """The declaration that data is checked against; `site` is where it comes from."""
        behind = self.dims[1 + self.lod_level :]
        shape = tuple(None if isinstance(d, str) else d for d in (*self.dims[:1], *behind))
        return FeedSpec(self.name, shape, self.dtype, self.lod_level, limits=self.limits, site=site)

    def abstract(self, sizes: Mapping[str, Any]) -> Any:
        """Shape and dtype of what an exported function takes: an array, or a tuple of padded data and lengths.

        Args:
          sizes: a number or symbol for each string in `dims`.
        """
        shape = tuple(sizes[d] if isinstance(d, str) else d for d in self.dims)
        data = jax.ShapeDtypeStruct(shape, self.held)
        lengths = [jax.ShapeDtypeStruct(shape[: 1 + level], np.int32) for level in range(self.lod_level)]
        return (data, *lengths) if lengths else data

    def sizes(self, shape: Sequence[int]) -> dict[str, int]:
        """Which size each string in `dims` has in a padded array of this feed."""
        return {d: size for d, size in zip(self.dims, shape, strict=True) if isinstance(d, str)}


@dataclass(frozen=True)
class Output:
    """One result of an entry point.

    Attributes:
      name: the key under which the program returned it, or the name that was fetched; else None.
      value: the named value that it is, such as "fc_0.tmp_2", or None.
      shape: of its array; None stands for a size that follows the batch.
      dtype: of its array.
      lod_level: as of a feed.
    """

    name: str | None
    value: str | None
    shape: tuple[int | None, ...]
    dtype: str
    lod_level: int = 0

    @property
    def array(self) -> Array:
        """Shape and dtype as a Program tells them."""
        return Array(self.shape, self.dtype)


@dataclass(frozen=True)
class Function:
    """One exported function of an entry point.

    Attributes:
      sizes: those sizes that it was exported for; all others it takes as they come.
      file: the entry of the archive that holds it.
    """

    sizes: Mapping[str, int]
    file: str


@dataclass(frozen=True)
class Entry:
    """One entry point.

    Attributes:
      feeds: in order of declaration.
      outputs: in order.
      arrays: names of the parameters and states that it takes.
      functions: to be tried in order; the first whose sizes fit runs.
      random: whether it takes a random key.
      least: the smallest number of steps that a sequence may be padded to.
      note: why there is more than one function, or None.
    """

    feeds: tuple[Feed, ...]
    outputs: tuple[Output, ...]
    arrays: tuple[str, ...]
    functions: tuple[Function, ...]
    random: bool = False
    least: int = 1
    note: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in the manifest."""
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "Entry":
        """What `to_json` returned; raises KeyError, TypeError or ValueError for anything else."""
        for described in (*found["feeds"], *found["outputs"]):
            jnp.dtype(described["dtype"]), jnp.dtype(described.get("held", "float32"))
            if len(described.get("dims", (0,) * 9)) <= described["lod_level"]:
                raise ValueError(f"the feed {described['name']} has the dimensions {described['dims']}")
        return cls(
            feeds=tuple(
                Feed(**{**f, "dims": tuple(f["dims"]), "limits": f["limits"] and tuple(f["limits"])})
                for f in found["feeds"]
            ),
            outputs=tuple(Output(**{**o, "shape": tuple(o["shape"])}) for o in found["outputs"]),
            arrays=tuple(found["arrays"]),
            functions=tuple(Function(**f) for f in found["functions"]),
            random=bool(found["random"]),
            least=int(found["least"]),
            note=found["note"],
        )

    def sizes_of(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """The size of every string in the dimensions of the feeds, for given data."""
        return {d: n for feed in self.feeds for d, n in feed.sizes(feeds[feed.name].shape).items()}


def leaves_of(value: Any) -> Any:
    """A value as an exported function takes and returns it: an array, or a tuple of padded data and lengths."""
    if isinstance(value, NestedSequenceBatch):
        return value.data, value.lengths, value.inner_lengths
    return (value.data, value.lengths) if isinstance(value, SequenceBatch) else value


def value_of(leaves: Any) -> Any:
    """What `leaves_of` took apart."""
    if not isinstance(leaves, tuple | list):
        return leaves
    return SequenceBatch(*leaves) if len(leaves) == 2 else NestedSequenceBatch(*leaves)


def level_of(value: Any) -> int:
    """The lod level of a value."""
    return {SequenceBatch: 1, NestedSequenceBatch: 2}.get(type(value), 0)
