"""Entry points as exported functions: one for all sizes where that is possible, else one for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from fluid import errors
from fluid.artifact.signature import Computation, Feed
from fluid.artifact.sizes import BATCH_SIZES, STEPS, forms
from fluid.artifact.source import Source, key_data
from fluid.artifact.stablehlo import cleaned

PLATFORMS = ("cpu", "cuda", "tpu")


@dataclass(frozen=True)
class Options:
    """For what to export.

    Attributes:
      platforms: where the functions shall run: of "cpu", "cuda", "rocm", "tpu".
      batch_sizes: those to export a program for that cannot leave its batch size open.
      buckets: the numbers of steps to export a program for that cannot leave those open: a list, or one by feed.
    """

    platforms: Sequence[str] = PLATFORMS
    batch_sizes: Sequence[int] = BATCH_SIZES
    buckets: Any = STEPS


@dataclass(frozen=True)
class Exported:
    """An entry point, exported.

    Attributes:
      feeds: what is fed.
      functions: serialized by jax.export, each with the sizes that it was exported for.
      least: the smallest number of steps of a sequence.
      note: why there is more than one function, or None.
    """

    feeds: tuple[Feed, ...]
    functions: list[tuple[Mapping[str, int], bytes]]
    least: int
    note: str | None


def export(source: Source, computation: Computation, arrays: Mapping[str, Any], options: Options) -> Exported:
    """Export an entry point.

    Args:
      source: what is fed, and whether results are random.
      computation: the source, or what was made of it.
      arrays: that it takes, by name; their shapes and dtypes count.
      options: for what.

    Raises:
      ArtifactError: it cannot be exported.
    """
    buckets = options.buckets if isinstance(options.buckets, Mapping) else dict.fromkeys(source.specs, options.buckets)
    buckets = {name: buckets.get(name, STEPS) for name in source.specs}
    failures: list[Exception] = []
    for form in forms(source.specs, options.batch_sizes, buckets):
        feeds = tuple(
            Feed(n, form.dims[n], spec.dtype, str(spec.held), spec.lod_level, spec.limits)
            for n, spec in source.specs.items()
        )
        key = jax.eval_shape(key_data) if source.random else None
        shapes = {n: jax.ShapeDtypeStruct(v.shape, v.dtype) for n, v in arrays.items()}
        given = [
            (shapes, {feed.name: feed.abstract(symbols) for feed in feeds}, key)
            for symbols in map(form.symbols, form.fixed)
        ]
        try:
            functions = [_serialized(computation, arguments, options.platforms) for arguments in given]
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
        f"this program cannot be exported for {', '.join(options.platforms)}, neither for all sizes "
        f"({_first_line(failures[0])}) nor for single ones ({_first_line(failures[-1])}). What runs Python while it "
        f"computes, such as layers.Print, cannot be exported; what runs on some devices only needs platforms=['cpu']"
    ) from failures[-1]


def _serialized(computation: Computation, arguments: tuple[Any, ...], platforms: Sequence[str]) -> bytes:
    def call(arrays: Any, feeds: Any, key: Any) -> Any:  # its name is part of what is written
        return computation(arrays, feeds, key)

    exported = jax.export.export(jax.jit(call), platforms=tuple(platforms))(*arguments)
    return bytes(cleaned(exported).serialize())


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
