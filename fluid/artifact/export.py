"""Export by `jax.export`: one function for all sizes where a program allows it, else one function for each size.

The file holds StableHLO without the parameters, the parameters as arrays, and a manifest with a checksum of each entry.
Locations of source lines are removed, so that a program always has the same bytes. A loaded file is a Program whose
`apply` calls the exported functions.
"""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.artifact.inference_function import InferenceFunction, key_data
from fluid.artifact.signature import BATCH, Dims, Feed
from fluid.core import FeedSpec
from fluid.layers.kernels.platform import traced_for

PLATFORMS = ("cpu", "cuda", "tpu")
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
STEPS = (4, 8, 16, 32, 64)
# More functions than this in one entry point are a mistake, or would take an hour to export.
MOST_FUNCTIONS = 64


@dataclass(frozen=True)
class Exported:
    """An exported entry point.

    Attributes:
      feeds: with the names of their open sizes.
      functions: serialized by jax.export, each with its fixed sizes.
      least: the smallest number of steps of a sequence.
      note: the reason for more than one function, or None.
    """

    feeds: tuple[Feed, ...]
    functions: list[tuple[Mapping[str, int], bytes]]
    least: int
    note: str | None


@dataclass(frozen=True)
class Form:
    """A choice of open and fixed sizes.

    Attributes:
      dims: of each feed.
      fixed: the fixed sizes of each function.
      least: the smallest number of steps of a sequence.
    """

    dims: Mapping[str, Dims]
    fixed: Sequence[Mapping[str, int]]
    least: int

    def symbols(self, fixed: Mapping[str, int]) -> dict[str, Any]:
        """Return the number or symbol of JAX for every name in the dimensions, for one choice of fixed sizes."""
        names = list(dict.fromkeys(d for dims in self.dims.values() for d in dims if isinstance(d, str)))
        open_ = [name for name in names if name not in fixed]
        least = [f"{name} >= {self.least}" for name in open_ if name != BATCH] if self.least > 1 else []
        scope = jax.export.SymbolicScope(least)
        found = jax.export.symbolic_shape(", ".join(open_), scope=scope) if open_ else ()
        return {**fixed, **dict(zip(open_, found, strict=True))}


def export(
    function: InferenceFunction,
    arrays: Mapping[str, Any],
    platforms: Sequence[str],
    batch_sizes: Sequence[int],
    buckets: Any,
) -> Exported:
    """Export an entry point.

    Args:
      function: of arrays, feeds and the data of a random key.
      arrays: by name; shapes and dtypes count, and names that the function does not read are ignored.
      platforms: of "cpu", "cuda", "rocm", "tpu".
      batch_sizes: one function each, for a program that cannot leave the batch size open.
      buckets: numbers of steps, one function each, for a program that cannot leave them open: a list, or one by feed.

    Raises:
      ArtifactError: the program cannot be exported.
    """
    by_feed = isinstance(buckets, Mapping)
    steps = {name: buckets.get(name, STEPS) if by_feed else buckets for name in function.feeds}
    shapes = {n: jax.ShapeDtypeStruct(arrays[n].shape, arrays[n].dtype) for n in function.arrays}
    key = jax.eval_shape(key_data) if function.random else None
    failures: list[Exception] = []
    for form in forms(function.feeds, batch_sizes, steps):
        feeds = tuple(Feed.of(spec, form.dims[name]) for name, spec in function.feeds.items())
        given = [
            (shapes, {feed.name: feed.abstract(symbols) for feed in feeds}, key)
            for symbols in map(form.symbols, form.fixed)
        ]
        try:
            functions = [_serialized(function, arguments, platforms) for arguments in given]
        except ImportError as error:
            raise errors.ArtifactError(
                "exporting needs the flatbuffers library, which JAX does not install: "
                "pip install 'fluid-jax[export]', or pip install flatbuffers"
            ) from error
        except Exception as error:
            failures.append(error)
            continue
        note = f"exported for each of these sizes, since {_first_line(failures[0])}" if len(functions) > 1 else None
        return Exported(feeds, list(zip(form.fixed, functions, strict=True)), form.least, note)
    raise errors.ArtifactError(
        f"this program cannot be exported for {', '.join(platforms)}, neither for all sizes "
        f"({_first_line(failures[0])}) nor for single ones ({_first_line(failures[-1])}). What runs Python while it "
        f"computes, such as layers.Print, cannot be exported; what runs on some devices only needs platforms=['cpu']"
    ) from failures[-1]


def settings() -> dict[str, Any]:
    """Return the settings of JAX that an exported function depends on."""
    return {
        "x64": jax.dtypes.canonicalize_dtype("float64") == np.float64,
        "prng": str(jax.random.key_impl(jax.random.key(0))),
    }


def forms(feeds: Mapping[str, FeedSpec], batch_sizes: Sequence[int], buckets: Mapping[str, Any]) -> Iterator[Form]:
    """Yield the ways to export a program, the best first.

    The best is one function for all sizes, in which each sequence has its own number of steps. Some programs need
        sequences of one length, and some at least two steps. A program that reads sizes as numbers needs a function for
    each size.

    Args:
      feeds: the declarations by name.
      batch_sizes: for a program that cannot leave the batch size open.
      buckets: numbers of steps by feed, for a program that cannot leave them open; a pair of lists for sequences of
        sequences.
    """
    apart = {name: _dims(spec, str(i)) for i, (name, spec) in enumerate(feeds.items())}
    equal = {name: _dims(spec, "") for name, spec in feeds.items()}
    sequences = [name for name, spec in feeds.items() if spec.lod_level]
    kinds = [apart, equal] if len(sequences) > 1 else [apart]
    open_forms = [(dims, least) for least in ((1, 2) if sequences else (1,)) for dims in kinds]
    batch = {BATCH: tuple(batch_sizes)} if any(BATCH in dims for dims in apart.values()) else {}
    steps = [
        {d: ladder for name in sequences for d, ladder in _ladders(feeds[name], dims[name], buckets[name]).items()}
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
    """Return increasing sizes from 1 on.

    Raises:
      ArgumentError: the sizes are none.
    """
    found = tuple(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str) else ()
    whole = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in found)
    if not found or not whole or list(found) != sorted(set(found)):
        raise errors.ArgumentError(f"{name}={sizes!r}: expected increasing sizes from 1 on, as in {name}=[1, 8, 64]")
    return found


def _dims(spec: FeedSpec, label: str) -> Dims:
    """Return the dimensions of a feed, with names for the open ones."""
    batch, *rest = spec.shape or (0,)
    first = [] if not spec.shape else [BATCH if batch is None else batch]
    steps = [f"outer{label}", f"steps{label}"][2 - spec.lod_level :] if spec.lod_level else []
    return (*first, *steps, *(f"size{label}_{i}" if d is None else d for i, d in enumerate(rest)))


def _ladders(spec: FeedSpec, dims: Dims, given: Any) -> dict[str, tuple[int, ...]]:
    """Return the numbers of steps to export for, by the name of the dimension."""
    if not spec.lod_level:
        return {}
    pairs = given if spec.lod_level == 2 and all(isinstance(g, Sequence) for g in given) else [given] * spec.lod_level
    names = [str(d) for d in dims[1 : 1 + spec.lod_level]]
    return {name: checked_sizes("buckets", sizes) for name, sizes in zip(names, pairs, strict=True)}


def _each(ladders: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Return every combination of the sizes, unless there are too many."""
    count = math.prod(map(len, ladders.values()))
    if count > MOST_FUNCTIONS:
        shown = "; ".join(f"{name} {', '.join(map(str, sizes))}" for name, sizes in ladders.items())
        raise errors.ArgumentError(
            f"there would be {count} functions to export, one for each combination of {shown}, more than "
            f"{MOST_FUNCTIONS}; give fewer sizes: batch_sizes=[1, 8], buckets=[16, 64]"
        )
    return [dict(zip(ladders, sizes, strict=True)) for sizes in itertools.product(*ladders.values())]


def _serialized(function: InferenceFunction, arguments: tuple[Any, ...], platforms: Sequence[str]) -> bytes:
    def call(arrays: Any, feeds: Any, key: Any) -> Any:  # its name is part of the exported function
        return function(arrays, feeds, key)

    with traced_for(platforms):
        exported = jax.export.export(jax.jit(call), platforms=tuple(platforms))(*arguments)
    return bytes(_without_locations(exported).serialize())


def _without_locations(exported: jax.export.Exported) -> jax.export.Exported:
    """Remove the locations, which are paths and lines of source files, so that a program always has the same bytes."""
    # On use: to load an exported model needs none of them, and JAX imports Pallas with them.
    from jax.extend import mlir
    from jax.extend.mlir import ir, passmanager
    from jax.extend.mlir.dialects import chlo, sdy, stablehlo

    context = ir.Context()
    for dialect in (chlo, sdy, stablehlo):
        dialect.register_dialect(context)
    with context, ir.Location.unknown(context):
        module = mlir.deserialize_portable_artifact(exported.mlir_module_serialized)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        # jax.export writes this version too, which a JAX that is four weeks older reads.
        month = stablehlo.StablehloCompatibilityRequirement.WEEK_4
        version = stablehlo.get_version_from_compatibility_requirement(month)
        content = mlir.serialize_portable_artifact(module, version, True)
    return dataclasses.replace(exported, mlir_module_serialized=content)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
