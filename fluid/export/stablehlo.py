"""Export by `jax.export`: one function for all sizes if the program allows open sizes, else one function for each size.

The exported file holds StableHLO without the parameters, the parameters as arrays, a manifest, and a checksum of each
entry. Source locations are removed, so that equal programs give equal bytes. A loaded file is a Program whose `apply`
calls the exported functions. For other compilers, an entry point is converted to StableHLO with fixed sizes.
"""

import io
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import numpy as np

from fluid import errors
from fluid.core import FeedSpec
from fluid.export.inference_function import key_data
from fluid.export.signature import BATCH, Dims, Entry, FeedSignature, Function, Output
from fluid.layers.kernels.data_format import traced_for
from fluid.reader import Table

PLATFORMS = ("cpu", "cuda", "tpu")
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
STEPS = (4, 8, 16, 32, 64)
# Maximum number of functions of one entry point: a larger number is a mistake, or would take an hour to export.
MOST_FUNCTIONS = 64


class ExportedFunction(Protocol):
    """The interface of a pure function of arrays, feeds and the data of a random key, which can be exported.

    Attributes:
      feeds: declarations of the feeds by name.
      arrays: the arrays that the function reads, by name.
      states: names of the arrays that are not parameters.
      outputs: descriptions of the results.
      random: True if the results depend on a random key.
      table: the `fluid.reader.Table` that encodes raw rows as feeds; None if the program has no Table.
      by_row: True if each row of the results is computed from one row of the feeds; None if there are no such rows.
    """

    feeds: dict[str, FeedSpec]
    arrays: dict[str, Any]
    states: Collection[str]
    outputs: tuple[Output, ...]
    random: bool
    table: Table | None
    by_row: bool | None

    def __call__(self, arrays: Mapping[str, Any], feeds: Mapping[str, Any], key: Any) -> Any:
        """Compute the results of the function from arrays by name, feeds by name, and the data of a random key."""


@dataclass(frozen=True)
class Exported:
    """An exported entry point (program): the functions that compute it, and the sizes that they accept.

    Attributes:
      feeds: the feeds; each dimension of unknown size has a name.
      functions: for each function its description, and its bytes as serialized by jax.export.
      least: the minimum number of steps to which a sequence may be padded.
      note: the reason why there is more than one function; None if there is one function.
    """

    feeds: tuple[FeedSignature, ...]
    functions: list[tuple[Function, bytes]]
    least: int
    note: str | None


@dataclass(frozen=True)
class Form:
    """A choice, for the export of a program, of open sizes, which accept any number, and fixed sizes.

    Attributes:
      dims: the dimensions of each feed, by name; a string names a size that a function fixes or leaves open.
      fixed: for each function to export, its fixed sizes by name.
      least: the minimum number of steps to which a sequence may be padded.
    """

    dims: Mapping[str, Dims]
    fixed: Sequence[Mapping[str, int]]
    least: int

    def open_sizes(self, fixed: Mapping[str, int]) -> list[str]:
        """Return the names of the open sizes: an exported function accepts any number for them."""
        return list(
            dict.fromkeys(d for dims in self.dims.values() for d in dims if isinstance(d, str) and d not in fixed)
        )

    def constraints(self, fixed: Mapping[str, int]) -> tuple[str, ...]:
        """Return the constraints of the open sizes for JAX's symbolic shapes, such as "steps0 >= 2"."""
        steps = [name for name in self.open_sizes(fixed) if name != BATCH]
        return tuple(f"{name} >= {self.least}" for name in steps) if self.least > 1 else ()

    def symbols(self, fixed: Mapping[str, int]) -> dict[str, Any]:
        """Return all named sizes of the feeds, by name: the number in `fixed`, or else a symbolic size of JAX."""
        open_ = self.open_sizes(fixed)
        scope = jax.export.SymbolicScope(self.constraints(fixed))
        found = jax.export.symbolic_shape(", ".join(open_), scope=scope) if open_ else ()
        return {**fixed, **dict(zip(open_, found, strict=True))}


def export(
    function: ExportedFunction, arrays: Mapping[str, Any], platforms: Sequence[str], candidates: Iterable[Form]
) -> Exported:
    """Export an entry point (program) with the first choice of open and fixed sizes that the program allows.

    Raises:
      ArtifactError: the program cannot be exported.
    """
    shapes = {n: _shape(arrays[n]) for n in function.arrays}
    key = jax.eval_shape(key_data) if function.random else None
    failures: list[Exception] = []
    sized = False
    for form in candidates:
        sized |= form.fixed != [{}]
        feeds = tuple(FeedSignature.of(spec, form.dims[name]) for name, spec in function.feeds.items())
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
        why = f", since {_first_line(failures[0])}" if failures else ""
        note = f"exported for each of these sizes{why}" if len(functions) > 1 else None
        made = [
            (_described(exported, blob, fixed, form.constraints(fixed)), blob)
            for fixed, (exported, blob) in zip(form.fixed, functions, strict=True)
        ]
        return Exported(feeds, made, form.least, note)
    single = (
        f"nor for single ones ({_first_line(failures[-1])})"
        if sized
        else "and no sizes are named, as in batch_sizes=[64], and for sequences buckets=[32]"
    )
    raise errors.ArtifactError(
        f"this program cannot be exported for {', '.join(platforms)}, neither for all sizes "
        f"({_first_line(failures[0])}) {single}. What runs Python while it "
        f"computes, such as layers.Print, cannot be exported; what runs on some devices only needs platforms=['cpu']"
    ) from failures[-1]


def settings() -> dict[str, Any]:
    """Return the JAX settings on which an exported function depends: x64 and the random generator."""
    return {
        "x64": jax.dtypes.canonicalize_dtype("float64") == np.float64,
        "prng": str(jax.random.key_impl(jax.random.key(0))),
    }


def forms(feeds: Mapping[str, FeedSpec], batch_sizes: Sequence[int], buckets: Any) -> Iterator[Form]:
    """Yield the choices of open and fixed sizes with which to try to export a program, the best choice first.

    Args:
      buckets: numbers of steps for a program that cannot leave them open: a list, or a list for each feed by name. For
        sequences of sequences, a pair of lists.
    """
    sequences = any(spec.lod_level for spec in feeds.values())
    batch = any(BATCH in _dims(spec, "") for spec in feeds.values())
    yield from sized_forms(feeds, None, None)
    if sequences:
        yield from sized_forms(feeds, None, buckets)
    if batch:
        yield from sized_forms(feeds, batch_sizes, None)
    if sequences and batch:
        yield from sized_forms(feeds, batch_sizes, buckets)


def sized_forms(feeds: Mapping[str, FeedSpec], batch_sizes: Sequence[int] | None, buckets: Any) -> Iterator[Form]:
    """Yield ways to export a program for given batch sizes and numbers of steps, the best way first.

    In the best way, the sequences of each feed have their own number of steps. Some programs need an equal number of
    steps in all feeds, and some need at least two steps.
    """
    sequences = [name for name, spec in feeds.items() if spec.lod_level]
    apart = {name: _dims(spec, str(i)) for i, (name, spec) in enumerate(feeds.items())}
    equal = {name: _dims(spec, "") for name, spec in feeds.items()}
    known = any(BATCH in dims for dims in apart.values()) and batch_sizes is not None
    batch = {BATCH: tuple(batch_sizes or ())} if known else {}
    for least in (1, 2) if sequences and buckets is None else (1,):
        for dims in [apart, equal] if len(sequences) > 1 else [apart]:
            steps: dict[str, tuple[int, ...]] = {}
            for name in sequences if buckets is not None else ():
                given = buckets.get(name, STEPS) if isinstance(buckets, Mapping) else buckets
                steps |= _ladders(feeds[name], dims[name], given)
            yield Form(dims, _each({**batch, **steps}), least)


def checked_sizes(name: str, sizes: Any) -> tuple[int, ...]:
    """Check that sizes are increasing integers of at least 1, and return them as a tuple.

    Raises:
      ArgumentError: `sizes` is empty, not increasing, or holds something else.
    """
    found = tuple(sizes) if isinstance(sizes, Sequence) and not isinstance(sizes, str) else ()
    whole = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in found)
    if not found or not whole or list(found) != sorted(set(found)):
        raise errors.ArgumentError(f"{name}={sizes!r}: expected increasing sizes from 1 on, as in {name}=[1, 8, 64]")
    return found


def _dims(spec: FeedSpec, label: str) -> Dims:
    """Return the dimensions of a feed; for an unknown size a name, such as "batch", or "steps0" for the label "0"."""
    batch, *rest = spec.shape or (0,)
    first = [] if not spec.shape else [BATCH if batch is None else batch]
    steps = [f"outer{label}", f"steps{label}"][2 - spec.lod_level :] if spec.lod_level else []
    return (*first, *steps, *(f"size{label}_{i}" if d is None else d for i, d in enumerate(rest)))


def _ladders(spec: FeedSpec, dims: Dims, given: Any) -> dict[str, tuple[int, ...]]:
    """Return the numbers of steps for which a feed of sequences is exported, by the name of the dimension.

    For a feed without sequences, return an empty dict.
    """
    if not spec.lod_level:
        return {}
    pairs = given if spec.lod_level == 2 and all(isinstance(g, Sequence) for g in given) else [given] * spec.lod_level
    names = [str(d) for d in dims[1 : 1 + spec.lod_level]]
    return {name: checked_sizes("buckets", sizes) for name, sizes in zip(names, pairs, strict=True)}


def _each(ladders: Mapping[str, Sequence[int]]) -> list[dict[str, int]]:
    """Return all combinations of the sizes of dimensions, each as a dict of sizes by name of the dimension.

    The model is exported for each combination.
    """
    count = math.prod(map(len, ladders.values()))
    if count > MOST_FUNCTIONS:
        shown = "; ".join(f"{name} {', '.join(map(str, sizes))}" for name, sizes in ladders.items())
        raise errors.ArgumentError(
            f"there would be {count} functions to export, one for each combination of {shown}, more than "
            f"{MOST_FUNCTIONS}; give fewer sizes: batch_sizes=[1, 8], buckets=[16, 64]"
        )
    return [dict(zip(ladders, sizes, strict=True)) for sizes in itertools.product(*ladders.values())]


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    # Keep JAX's weak type: learning rates have it, so that half-precision parameters keep their dtype.
    weak = bool(getattr(array, "weak_type", False))
    return jax.ShapeDtypeStruct(array.shape, array.dtype, weak_type=weak)


def _serialized(function: ExportedFunction, arguments: tuple[Any, ...], platforms: Sequence[str]) -> tuple[Any, bytes]:
    # The exported file contains the name of this function. Keep the name, so that the bytes of the file do not change.
    def call(arrays: Any, feeds: Any, key: Any) -> Any:
        return function(arrays, feeds, key)

    with traced_for(platforms):
        exported = jax.export.export(jax.jit(call), platforms=tuple(platforms))(*arguments)
    exported = replace(exported, mlir_module_serialized=portable(exported.mlir_module_serialized))
    return exported, bytes(exported.serialize())


def _described(exported: Any, blob: bytes, fixed: Mapping[str, int], constraints: tuple[str, ...]) -> Function:
    def described(tree: Any, leaves: Any) -> Any:
        texts = [f"{leaf.dtype}[{','.join(map(str, leaf.shape))}]" for leaf in leaves]
        return jax.tree.unflatten(tree, texts)

    start = blob.index(exported.mlir_module_serialized)
    return Function(
        dict(fixed),
        module=(start, start + len(exported.mlir_module_serialized)),
        kept=tuple(exported.module_kept_var_idx),
        convention=exported.calling_convention_version,
        constraints=constraints,
        feeds=described(exported.in_tree, exported.in_avals)[0][1],
        results=described(exported.out_tree, exported.out_avals),
    )


def portable(content: bytes, refined: bool = False) -> bytes:
    """Convert a StableHLO module to a portable artifact, a format that later compilers can read.

    Source locations (paths and line numbers) are removed, so that equal programs give equal bytes.
    """
    # Deferred imports: they also import Pallas, which takes time, and loading an exported model does not need them.
    from jax.extend import mlir
    from jax.extend.mlir import ir, passmanager
    from jax.extend.mlir.dialects import stablehlo
    from jax.interpreters.mlir import make_ir_context

    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(content) if refined else mlir.deserialize_portable_artifact(content)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        # Like jax.export, write the StableHLO version of four weeks ago, so that a JAX release of that time can read
        # the module.
        month = stablehlo.StablehloCompatibilityRequirement.WEEK_4
        version = stablehlo.get_version_from_compatibility_requirement(month)
        return bytes(mlir.serialize_portable_artifact(module, version, True))


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def lowered(
    entry: Entry,
    arrays: Mapping[str, np.ndarray],
    functions: Sequence[tuple[Mapping[str, int], Callable[..., Any]]],
    sizes: Mapping[str, int],
) -> bytes:
    """Convert an entry point, for fixed sizes, to the bytes of a StableHLO portable artifact with the parameters."""
    from jax.extend import mlir  # deferred import, because `jax.extend.mlir` also imports Pallas

    _check(entry, sizes)
    fitting = [call for fixed, call in functions if fixed.items() <= sizes.items()]
    if not fitting:
        known = "; ".join(_shown(fixed) for fixed, _ in functions)
        raise errors.ArgumentError(
            f"found {_shown(sizes)}, and the model was exported for {known}; choose one of these"
        )
    names = [feed.name for feed in entry.feeds]
    given = [feed.abstract(sizes) for feed in entry.feeds] + ([jax.eval_shape(key_data)] if entry.random else [])

    def main(*given: Any) -> Any:
        key = given[-1] if entry.random else None
        return fitting[0](dict(arrays), dict(zip(names, given, strict=False)), key)

    module: Any = jax.jit(main, keep_unused=True).lower(*given).compiler_ir("stablehlo")
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    refined = mlir.refine_polymorphic_shapes(
        mlir_module=bytecode.getvalue(),
        enable_shape_assertions=True,
        validate_static_shapes=True,
        enable_shardy=True,
    )
    return portable(refined, refined=True)


def _check(entry: Entry, sizes: Mapping[str, int]) -> None:
    """Check that `sizes` gives a positive integer to each open size of the feeds, such as "batch", and to no other."""
    wanted = list(dict.fromkeys(d for feed in entry.feeds for d in feed.dims if isinstance(d, str)))
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes.values())
    if sizes.keys() != set(wanted) or not whole:
        example = ", ".join(f"{name!r}: {8 if name == 'batch' else 16}" for name in wanted)
        raise errors.ArgumentError(
            f"sizes={dict(sizes)}: expected a whole number from 1 on for each open size of the feeds, {{{example}}}"
        )


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
