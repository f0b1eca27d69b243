"""Write an artifact: programs and parameters in, one file out."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.artifact import archive, standalone
from fluid.artifact.export import PLATFORMS, Exported, Options, export
from fluid.artifact.signature import Entry, Function
from fluid.artifact.sizes import BATCH_SIZES, STEPS, checked_sizes
from fluid.artifact.source import Source, key_data
from fluid.core import Program
from fluid.session.names import Fetch
from fluid.storage import Rename, check_match, load_arrays, renamed

ProgramFunction = Callable[[], Any] | Program
ENTRY = "predict"
_KEY_FILE = "key.npy"
_KNOWN_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def save(
    path: Any,
    program_func: ProgramFunction | Mapping[str, ProgramFunction],
    params: Mapping[str, Any] | Any,
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
    functions = program_func if isinstance(program_func, Mapping) else {ENTRY: program_func}
    options = Options(_checked_platforms(platforms), checked_sizes("batch_sizes", batch_sizes), buckets)
    sources = {
        name: Source(_program(function, precision), _of(feed, name, several), _of(fetch, name, several))
        for name, function in functions.items()
    }
    arrays, states = _chosen(sources, params, rename)
    made = {name: export(source, {n: arrays[n] for n in source.arrays}, options) for name, source in sources.items()}
    blobs: list[bytes] = []
    entries = {name: _entry(sources[name], made[name], blobs).to_json() for name in made}
    manifest: dict[str, Any] = {
        "format": standalone.FORMAT,
        "version": standalone.VERSION,
        "made_with": {"jax": jax.__version__},
        "settings": settings(),
        "platforms": list(options.platforms),
        "entries": entries,
        "arrays": {
            n: {**_described(a), "file": _array_file(i), "state": n in states}
            for i, (n, a) in enumerate(arrays.items())
        },
        "key": None,
    }
    if any(source.random for source in sources.values()):
        manifest["key"] = {**_described(np.asarray(key_data())), "file": _KEY_FILE}

    def contents() -> Iterator[tuple[str, bytes]]:
        yield from ((_function_file(i), blob) for i, blob in enumerate(blobs))
        if manifest["key"] is not None:
            yield _KEY_FILE, archive.array_bytes("key", np.asarray(key_data()))
        yield from ((_array_file(i), archive.array_bytes(n, a)) for i, (n, a) in enumerate(arrays.items()))

    archive.write(path, manifest, contents())


def settings() -> dict[str, Any]:
    """What of JAX's configuration is part of an exported function."""
    return {
        "x64": jax.dtypes.canonicalize_dtype("float64") == np.float64,
        "prng": str(jax.random.key_impl(jax.random.key(0))),
    }


def _entry(source: Source, made: Exported, blobs: list[bytes]) -> Entry:
    """The entry of the manifest; its functions are appended to all that the file shall hold."""
    start = len(blobs)
    blobs += [blob for _, blob in made.functions]
    functions = tuple(Function(dict(fixed), _function_file(start + i)) for i, (fixed, _) in enumerate(made.functions))
    return Entry(made.feeds, source.outputs, tuple(source.arrays), functions, source.random, made.least, made.note)


def _array_file(index: int) -> str:
    return f"arrays/{index}.npy"


def _described(array: np.ndarray) -> dict[str, Any]:
    return {"shape": list(array.shape), "dtype": str(array.dtype)}


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


def _chosen(
    sources: Mapping[str, Source], params: Mapping[str, Any] | Any, rename: Rename
) -> tuple[dict[str, np.ndarray], set[str]]:
    """The arrays that the entry points need, and the names of those that are states."""
    given = isinstance(params, Mapping)
    where = "the given parameters" if given else params
    found = renamed(dict(params) if given else load_arrays(params)[0], rename, where)
    arrays: dict[str, np.ndarray] = {}
    for source in sources.values():
        wanted = {n: (spec.shape, spec.dtype) for n, spec in source.arrays.items()}
        check_match({n: np.asarray(found[n]) for n in wanted if n in found}, wanted, where)
        arrays |= {n: np.asarray(found[n]) for n in wanted}
    return arrays, {n for source in sources.values() for n, spec in source.arrays.items() if spec.trainable is None}


def _checked_platforms(platforms: Sequence[str]) -> tuple[str, ...]:
    found = (platforms,) if isinstance(platforms, str) else tuple(platforms)
    if not found or any(platform not in _KNOWN_PLATFORMS for platform in found):
        raise errors.ArgumentError(
            f"platforms={platforms!r}: expected some of {', '.join(map(repr, _KNOWN_PLATFORMS))}, as in "
            f"platforms=['cpu', 'cuda']"
        )
    return tuple(dict.fromkeys(found))
