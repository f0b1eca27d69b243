"""Lowering: conversion of an exported model, for fixed sizes, to StableHLO for other compilers."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.export.inference_function import key_data
from fluid.export.signature import Entry
from fluid.export.stablehlo import portable


def lowered(
    entry: Entry,
    arrays: Mapping[str, np.ndarray],
    functions: Sequence[tuple[Mapping[str, int], Callable[..., Any]]],
    sizes: Mapping[str, int],
) -> bytes:
    """Return an entry point as a portable artifact of StableHLO; see `Artifact.stablehlo`.

    Args:
      entry: the signature of the entry point.
      arrays: the parameters and states that the functions read, by name.
      functions: the exported functions, each with its fixed sizes.
      sizes: a number for each open size, by name.
    """
    from jax.extend import mlir  # imported on use, because JAX imports Pallas with this module

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
    """Raise an ArgumentError unless `sizes` has a positive integer for each open size of the feeds, and no others."""
    wanted = list(dict.fromkeys(d for feed in entry.feeds for d in feed.dims if isinstance(d, str)))
    whole = all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes.values())
    if sizes.keys() != set(wanted) or not whole:
        example = ", ".join(f"{name!r}: {8 if name == 'batch' else 16}" for name in wanted)
        raise errors.ArgumentError(
            f"sizes={dict(sizes)}: expected a whole number from 1 on for each open size of the feeds, {{{example}}}"
        )


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
