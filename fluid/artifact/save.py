"""Write an artifact: programs and parameters in, one file out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.artifact import archive, standalone
from fluid.artifact.export import PLATFORMS, Exported, Options, export
from fluid.artifact.folding import fold
from fluid.artifact.halving import stored_half
from fluid.artifact.signature import Computation, Entry, Function
from fluid.artifact.sizes import BATCH_SIZES, STEPS, checked_sizes
from fluid.artifact.source import Source, key_data
from fluid.core import Program, creation_sites
from fluid.runtime.fetch import Fetch
from fluid.runtime.finite import spoilt, warn_of_spoilt
from fluid.storage import RENAME_THEM, PathLike, Rename, choose, source_of

ProgramFunction = Callable[[], Any] | Program
ENTRY = "predict"
_KEY_FILE = "key.npy"
_KNOWN_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


@dataclass(frozen=True)
class _EntryPoint:
    """What shall become an entry of the manifest.

    Attributes:
      source: what is fed and what comes out.
      computation: the source, or what was made of it.
      arrays: that it takes, by name.
    """

    source: Source
    computation: Computation
    arrays: dict[str, np.ndarray]


def save(
    path: PathLike,
    program_func: ProgramFunction | Mapping[str, ProgramFunction],
    params: Mapping[str, Any] | PathLike,
    feed: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    fetch: Fetch | Mapping[str, Fetch] | None = None,
    *,
    platforms: Sequence[str] = PLATFORMS,
    precision: str | None = None,
    fold_batch_norm: bool = False,
    batch_sizes: Sequence[int] = BATCH_SIZES,
    buckets: Any = STEPS,
    rename: Rename = None,
) -> None:
    """Export programs with their parameters; see `fluid.io.save_inference_model`."""
    several = isinstance(program_func, Mapping)
    functions = program_func if isinstance(program_func, Mapping) else {ENTRY: program_func}
    options = Options(_checked_platforms(platforms), checked_sizes("batch_sizes", batch_sizes), buckets)
    sources = {
        name: Source(_program(function, precision), _of(feed, name, several), _of(fetch, name, several))
        for name, function in functions.items()
    }
    points = _with_arrays(sources, params, rename)
    if names := sorted({n for point in points.values() for n in spoilt(point.source.arrays, point.arrays)}):
        warn_of_spoilt("save_inference_model", names)
    if fold_batch_norm:
        points = {name: _EntryPoint(point.source, *fold(point.source, point.arrays)) for name, point in points.items()}
    if precision in ("bfloat16", "float16"):
        points = _halved(points, precision)
    made = {name: export(point.source, point.computation, point.arrays, options) for name, point in points.items()}
    _write(path, points, made, options.platforms)


def settings() -> dict[str, Any]:
    """What of JAX's configuration is part of an exported function."""
    return {
        "x64": jax.dtypes.canonicalize_dtype("float64") == np.float64,
        "prng": str(jax.random.key_impl(jax.random.key(0))),
    }


def _with_arrays(
    sources: Mapping[str, Source], params: Mapping[str, Any] | PathLike, rename: Rename
) -> dict[str, _EntryPoint]:
    """Entry points with the arrays that they need."""
    found = source_of(params).renamed(rename)
    points = {}
    for name, source in sources.items():
        wanted = {n: (spec.shape, spec.dtype) for n, spec in source.arrays.items()}
        report = choose(found, wanted, sites=creation_sites(source.arrays), allow_extra=True, advice=RENAME_THEM)
        points[name] = _EntryPoint(source, source, {n: found.arrays[n] for n in report.taken})
    return points


def _halved(points: Mapping[str, _EntryPoint], precision: str) -> dict[str, _EntryPoint]:
    """The same entry points, with half of the bytes for arrays of which none of them reads more than that."""
    whole: set[str] = set()
    for point in points.values():
        shapes = {n: jax.ShapeDtypeStruct(a.shape, a.dtype) for n, a in point.arrays.items()}
        _, feeds, key = point.source.example()
        whole |= point.arrays.keys() - stored_half(point.computation, (shapes, feeds, key), precision)
    dtype = jax.numpy.dtype(precision)
    return {
        name: replace(point, arrays={n: a if n in whole else a.astype(dtype) for n, a in point.arrays.items()})
        for name, point in points.items()
    }


def _write(
    path: PathLike, points: Mapping[str, _EntryPoint], made: Mapping[str, Exported], platforms: Sequence[str]
) -> None:
    blobs: list[bytes] = []
    entries = {name: _entry(point, made[name], blobs).to_json() for name, point in points.items()}
    arrays = _together(points)
    key = np.asarray(key_data()) if any(point.source.random for point in points.values()) else None
    states = {n for point in points.values() for n, spec in point.source.arrays.items() if spec.trainable is None}
    manifest = {
        "format": standalone.FORMAT,
        "version": standalone.VERSION,
        "made_with": {"jax": jax.__version__},
        "settings": settings(),
        "platforms": list(platforms),
        "entries": entries,
        "arrays": {
            n: {**_described(a, _array_file(i)), "state": n in states} for i, (n, a) in enumerate(arrays.items())
        },
        "key": None if key is None else _described(key, _KEY_FILE),
    }

    def contents() -> Iterator[tuple[str, bytes]]:
        yield from ((_function_file(i), blob) for i, blob in enumerate(blobs))
        if key is not None:
            yield _KEY_FILE, archive.array_bytes("key", key)
        yield from ((_array_file(i), archive.array_bytes(n, a)) for i, (n, a) in enumerate(arrays.items()))

    archive.write(path, manifest, contents())


def _together(points: Mapping[str, _EntryPoint]) -> dict[str, np.ndarray]:
    """The arrays of all entry points.

    Raises:
      ArgumentError: two of them folded one weight in different ways.
    """
    arrays: dict[str, np.ndarray] = {}
    for point in points.values():
        for name, array in point.arrays.items():
            if arrays.setdefault(name, array).tobytes() != array.tobytes():
                raise errors.ArgumentError(
                    f"fold_batch_norm=True makes two different arrays {name!r} for the entry points "
                    f"{', '.join(points)}; export them to a file each, or without it"
                )
    return arrays


def _entry(point: _EntryPoint, made: Exported, blobs: list[bytes]) -> Entry:
    """The entry of the manifest; its functions are appended to all that the file shall hold."""
    start = len(blobs)
    blobs += [blob for _, blob in made.functions]
    functions = tuple(Function(dict(fixed), _function_file(start + i)) for i, (fixed, _) in enumerate(made.functions))
    source = point.source
    return Entry(made.feeds, source.outputs, tuple(point.arrays), functions, source.random, made.least, made.note)


def _array_file(index: int) -> str:
    return f"arrays/{index}.npy"


def _described(array: np.ndarray, file: str) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": str(array.dtype), "file": file}


def _function_file(index: int) -> str:
    return f"functions/{index}.jax_export"


def _program(function: ProgramFunction, precision: str | None) -> Program:
    if not isinstance(function, Program):
        return Program(function, precision=precision)
    if function.exported:
        raise errors.ArgumentError(
            f"the program {function.name} was exported already; copy its file, or export the function that it came from"
        )
    return function if precision in (None, function.precision) else Program(function.function, precision=precision)


def _of(names: Any, entry: str, several: bool) -> Any:
    """The feeds or fetches of one entry point."""
    if names is None or not several:
        return names
    if not isinstance(names, Mapping):
        raise errors.ArgumentTypeError(
            f"with several entry points, feed= and fetch= are dicts by entry point, found {names!r}: "
            f"fetch={{{entry!r}: ['fc_0.tmp_0']}}"
        )
    return names.get(entry)


def _checked_platforms(platforms: Sequence[str]) -> tuple[str, ...]:
    found = (platforms,) if isinstance(platforms, str) else tuple(platforms)
    if not found or any(platform not in _KNOWN_PLATFORMS for platform in found):
        raise errors.ArgumentError(
            f"platforms={platforms!r}: expected some of {', '.join(map(repr, _KNOWN_PLATFORMS))}, as in "
            f"platforms=['cpu', 'cuda']"
        )
    return tuple(dict.fromkeys(found))
