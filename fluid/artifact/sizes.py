"""Which sizes an exported function leaves open, and which it is exported for one by one."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from fluid import errors
from fluid.artifact.signature import BATCH, Dims
from fluid.core import FeedSpec

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
STEPS = (4, 8, 16, 32, 64)
# More functions than this in one entry point are a mistake, or would take an hour to make.
MOST_FUNCTIONS = 64

# The sizes that exist, by the name that stands for them in the dimensions of feeds.
Ladders = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Form:
    """One way to leave sizes open.

    Attributes:
      dims: of each feed.
      fixed: for each function, the sizes that it is exported for.
      least: the smallest number of steps of a sequence.
    """

    dims: Mapping[str, Dims]
    fixed: Sequence[Mapping[str, int]]
    least: int

    def symbols(self, fixed: Mapping[str, int]) -> dict[str, Any]:
        """A number or a symbol of JAX for every name in the dimensions, for one of the functions."""
        names = list(dict.fromkeys(d for dims in self.dims.values() for d in dims if isinstance(d, str)))
        open_ = [name for name in names if name not in fixed]
        least = [f"{name} >= {self.least}" for name in open_ if name != BATCH] if self.least > 1 else []
        scope = jax.export.SymbolicScope(least)
        found = jax.export.symbolic_shape(", ".join(open_), scope=scope) if open_ else ()
        return {**fixed, **dict(zip(open_, found, strict=True))}


def forms(specs: Mapping[str, FeedSpec], batch_sizes: Sequence[int], buckets: Mapping[str, Any]) -> Iterator[Form]:
    """The ways to export a program, the best first.

    Best is one function for all sizes, with as many steps in each sequence as there are. Some programs want sequences
    that are equally long, and some at least two steps. What looks at sizes as numbers has to be exported once for each.

    Args:
      specs: the feeds.
      batch_sizes: those to export it for when the batch size cannot be left open.
      buckets: for each feed of sequences, the numbers of steps to export it for when those cannot be left open; a pair
        of lists for sequences of sequences.
    """
    apart = {name: _dims(spec, str(i)) for i, (name, spec) in enumerate(specs.items())}
    together = {name: _dims(spec, "") for name, spec in specs.items()}
    sequences = [name for name, spec in specs.items() if spec.lod_level]
    kinds = [apart, together] if len(sequences) > 1 else [apart]
    open_forms = [(dims, least) for least in ((1, 2) if sequences else (1,)) for dims in kinds]
    batch = {BATCH: tuple(batch_sizes)} if any(BATCH in dims for dims in apart.values()) else {}
    steps = [
        {d: ladder for name in sequences for d, ladder in _ladders(specs[name], dims[name], buckets[name]).items()}
        for dims in kinds
    ]
    yield from (Form(dims, [{}], least) for dims, least in open_forms)
    if sequences:
        yield from (Form(dims, _each(ladders), 1) for dims, ladders in zip(kinds, steps, strict=True))
    if batch:
        yield from (Form(dims, _each(batch), least) for dims, least in open_forms)
    if sequences and batch:
        yield from (Form(dims, _each({**batch, **ladders}), 1) for dims, ladders in zip(kinds, steps, strict=True))


def checked_sizes(name: str, sizes: Any) -> tuple[int, ...]:
    """Increasing sizes from 1 on.

    Raises:
      ArgumentError: they are none.
    """
    found = tuple(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str) else ()
    whole = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in found)
    if not found or not whole or list(found) != sorted(set(found)):
        raise errors.ArgumentError(f"{name}={sizes!r}: expected increasing sizes from 1 on, as in {name}=[1, 8, 64]")
    return found


def _dims(spec: FeedSpec, label: str) -> Dims:
    """The dimensions of a feed, with names for those that are not fixed."""
    batch, *rest = spec.shape or (0,)
    first = [] if not spec.shape else [BATCH if batch is None else batch]
    steps = [f"outer{label}", f"steps{label}"][2 - spec.lod_level :] if spec.lod_level else []
    return (*first, *steps, *(f"size{label}_{i}" if d is None else d for i, d in enumerate(rest)))


def _ladders(spec: FeedSpec, dims: Dims, given: Any) -> dict[str, tuple[int, ...]]:
    if not spec.lod_level:
        return {}
    pairs = given if spec.lod_level == 2 and all(isinstance(g, Sequence) for g in given) else [given] * spec.lod_level
    names = [str(d) for d in dims[1 : 1 + spec.lod_level]]
    return {name: checked_sizes("buckets", sizes) for name, sizes in zip(names, pairs, strict=True)}


def _each(ladders: Ladders) -> list[dict[str, int]]:
    """Every combination of the sizes, unless there are too many."""
    count = math.prod(map(len, ladders.values()))
    if count > MOST_FUNCTIONS:
        shown = "; ".join(f"{name} {', '.join(map(str, sizes))}" for name, sizes in ladders.items())
        raise errors.ArgumentError(
            f"there would be {count} functions to export, one for each combination of {shown}, more than "
            f"{MOST_FUNCTIONS}; give fewer sizes: batch_sizes=[1, 8], buckets=[16, 64]"
        )
    return [dict(zip(ladders, sizes, strict=True)) for sizes in itertools.product(*ladders.values())]
