"""Saving of exported models: programs and parameters in, one file out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.checkpoint import RENAME_THEM, PathLike, Rename, choose, source_of
from fluid.core import Program, creation_sites
from fluid.export import archive, standalone
from fluid.export.inference_function import InferenceFunction, key_data
from fluid.export.signature import Entry
from fluid.export.stablehlo import (
    BATCH_SIZES,
    PLATFORMS,
    STEPS,
    Exported,
    ExportedFunction,
    checked_sizes,
    export,
    forms,
    settings,
)
from fluid.runtime.fetch import Fetch
from fluid.runtime.finite import spoilt, warn_of_spoilt

ProgramFunction = Callable[[], Any] | Program
ENTRY = "predict"
_KEY_FILE = "key.npy"
_KNOWN_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def save(
    path: PathLike,
    program_func: ProgramFunction | Mapping[str, ProgramFunction],
    params: Mapping[str, Any] | PathLike,
    feed: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    fetch: Fetch | Mapping[str, Fetch] | None = None,
    *,
    platforms: Sequence[str] = PLATFORMS,
    precision: str | None = None,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    buckets: Any = STEPS,
    rename: Rename = None,
) -> None:
    """Export programs with their parameters; see `fluid.io.save_inference_model`."""
    several = isinstance(program_func, Mapping)
    programs = program_func if isinstance(program_func, Mapping) else {ENTRY: program_func}
    platforms, batch_sizes = checked_platforms(platforms), checked_sizes("batch_sizes", batch_sizes)
    functions = {
        name: InferenceFunction(program_of(program, precision), _of(feed, name, several), _of(fetch, name, several))
        for name, program in programs.items()
    }
    arrays = chosen_arrays(functions, params, rename)
    if names := sorted({n for function in functions.values() for n in spoilt(function.arrays, arrays)}):
        warn_of_spoilt("save_inference_model", names)
    if precision in ("bfloat16", "float16"):
        arrays = _rounded(functions, arrays, precision)
    exported = {
        name: export(function, arrays, platforms, forms(function.feeds, batch_sizes, buckets))
        for name, function in functions.items()
    }
    write_model(path, standalone.FORMAT, functions, exported, arrays, platforms)


def chosen_arrays(
    functions: Mapping[str, InferenceFunction], params: Mapping[str, Any] | PathLike, rename: Rename
) -> dict[str, np.ndarray]:
    """Return the arrays of `params` that the functions read, by their names in the program.

    Args:
      functions: the functions by entry point.
      params: arrays by name, or a file of parameters.
      rename: patterns and new names, see `fluid.checkpoint.renamed`.
    """
    found = source_of(params).renamed(rename)
    arrays: dict[str, np.ndarray] = {}
    for function in functions.values():
        found.check_table(None if function.table is None else function.table.to_json())
        wanted = {n: (spec.shape, spec.dtype) for n, spec in function.arrays.items()}
        report = choose(found, wanted, sites=creation_sites(function.arrays), allow_extra=True, advice=RENAME_THEM)
        arrays |= {n: found.arrays[n] for n in report.taken}
    return arrays


def _rounded(
    functions: Mapping[str, InferenceFunction], arrays: Mapping[str, np.ndarray], precision: str
) -> dict[str, np.ndarray]:
    """Round float32 parameters to `precision`, because a program that computes in `precision` rounds them anyway.

    States stay float32, because layers read them without rounding. Parameters that are fetched stay float32 too.
    """
    whole = {n for function in functions.values() for n in function.states}
    whole |= {str(output.name) for function in functions.values() for output in function.outputs}
    halves = {n for n, array in arrays.items() if array.dtype == np.float32} - whole
    return {n: array.astype(jax.numpy.dtype(precision)) if n in halves else array for n, array in arrays.items()}


def write_model(
    path: PathLike,
    kind: str,
    functions: Mapping[str, ExportedFunction],
    exported: Mapping[str, Exported],
    arrays: Mapping[str, np.ndarray],
    platforms: Sequence[str],
) -> None:
    """Write exported functions and their arrays to one file.

    Args:
      path: the path of the file.
      kind: the format in the manifest, `standalone.FORMAT` or `standalone.STEP`.
      functions: the functions, by entry point.
      exported: the results of `export`, by entry point.
      arrays: the arrays that the functions read, by name.
      platforms: the platforms that the functions were exported for.
    """
    blobs: dict[str, bytes] = {}
    entries = {name: _entry(function, exported[name], blobs).to_json() for name, function in functions.items()}
    files = {name: f"arrays/{i}.npy" for i, name in enumerate(arrays)}
    states = {n for function in functions.values() for n in function.states}
    key = np.asarray(key_data()) if any(function.random for function in functions.values()) else None
    manifest = {
        "format": kind,
        "version": standalone.VERSION,
        "made_with": {"jax": jax.__version__},
        "settings": settings(),
        "platforms": list(platforms),
        "entries": entries,
        "arrays": {n: {**_described(array, files[n]), "state": n in states} for n, array in arrays.items()},
        "key": None if key is None else _described(key, _KEY_FILE),
    }

    def contents() -> Iterator[tuple[str, bytes]]:
        yield from blobs.items()
        if key is not None:
            yield _KEY_FILE, archive.array_bytes("key", key)
        yield from ((files[n], archive.array_bytes(n, array)) for n, array in arrays.items())

    archive.write(path, manifest, contents())


def _entry(function: ExportedFunction, exported: Exported, blobs: dict[str, bytes]) -> Entry:
    """Return the signature of an entry point for the manifest; add its serialized functions to `blobs`, by file."""
    functions = []
    for made, blob in exported.functions:
        file = f"functions/{len(blobs)}.jax_export"
        blobs[file] = blob
        functions.append(replace(made, file=file))
    return Entry(
        exported.feeds,
        function.outputs,
        tuple(function.arrays),
        tuple(functions),
        function.random,
        exported.least,
        exported.note,
        function.table,
    )


def _described(array: np.ndarray, file: str) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": str(array.dtype), "file": file}


def program_of(function: ProgramFunction, precision: str | None = None) -> Program:
    """Return the program to export: of a program function, or a Program itself, in the given precision.

    Raises:
      ArgumentError: the program was exported already.
    """
    if not isinstance(function, Program):
        return Program(function, precision=precision)
    if function.exported:
        raise errors.ArgumentError(
            f"the program {function.name} was exported already; copy its file, or export the function that it came from"
        )
    return function if precision in (None, function.precision) else Program(function.function, precision=precision)


def _of(names: Any, entry: str, several: bool) -> Any:
    """Return the names in `feed` or `fetch` that belong to one entry point.

    With several entry points, `names` is a dict by entry point, or None.
    """
    if names is None or not several:
        return names
    if not isinstance(names, Mapping):
        raise errors.ArgumentTypeError(
            f"with several entry points, feed= and fetch= are dicts by entry point, found {names!r}: "
            f"fetch={{{entry!r}: ['fc_0.tmp_0']}}"
        )
    return names.get(entry)


def checked_platforms(platforms: Sequence[str]) -> tuple[str, ...]:
    """Check names of platforms, and return them as a tuple without repetitions.

    Raises:
      ArgumentError: a platform is unknown.
    """
    found = (platforms,) if isinstance(platforms, str) else tuple(platforms)
    if not found or any(platform not in _KNOWN_PLATFORMS for platform in found):
        raise errors.ArgumentError(
            f"platforms={platforms!r}: expected some of {', '.join(map(repr, _KNOWN_PLATFORMS))}, as in "
            f"platforms=['cpu', 'cuda']"
        )
    return tuple(dict.fromkeys(found))
