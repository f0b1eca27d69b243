"""Exported functions without what they hold by accident: paths of source files, and indices that are clamped twice."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend import mlir
from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import chlo, sdy, stablehlo

_SLICE, _ADD, _CLAMP = "stablehlo.real_dynamic_slice", "stablehlo.add", "stablehlo.clamp"


def cleaned(exported: jax.export.Exported) -> jax.export.Exported:
    """The same function, without locations, and compiled to the same code as one of fixed sizes.

    Locations hold the paths of source files, which differ between machines. And where a size is a symbol, JAX clamps
    the start of a slice before it takes it, as slicing does itself; XLA then fuses the body of a loop in another way
    than it does for sizes that it knows, and results differ in their last bits.
    """
    context = ir.Context()
    for dialect in (chlo, sdy, stablehlo):
        dialect.register_dialect(context)
    with context, ir.Location.unknown(context):
        module = mlir.deserialize_portable_artifact(exported.mlir_module_serialized)
        for operation in list(_operations(module.operation)):
            if operation.name == _CLAMP and _starts_slices_only(operation):
                operation.results[0].replace_all_uses_with(operation.operands[1])
                operation.erase()
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        # What is four weeks old can read it, as jax.export has it too.
        month = stablehlo.StablehloCompatibilityRequirement.WEEK_4
        version = stablehlo.get_version_from_compatibility_requirement(month)
        content = mlir.serialize_portable_artifact(module, version, True)
    return dataclasses.replace(exported, mlir_module_serialized=content)


def _operations(operation: Any) -> Iterator[Any]:
    yield operation
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from _operations(inner.operation)


def _starts_slices_only(clamp: Any) -> bool:
    """Whether a value says where slices begin, and, with their size added, where they end, and nothing else."""
    users = _users(clamp)
    ends = [user for user in users if user.name == _ADD]
    slices = [user for user in users if user.name == _SLICE]
    return (
        bool(slices)
        and len(ends) + len(slices) == len(users)
        and all(user.name == _SLICE for end in ends for user in _users(end))
    )


def _users(operation: Any) -> list[Any]:
    return [use.owner.operation for use in operation.results[0].uses]
