"""Exported functions in a form that gives the same bits as the function that they were made of, on every machine."""

import dataclasses
from typing import Any

import jax
from jax.extend import mlir
from jax.extend.mlir import ir, passmanager
from jax.extend.mlir.dialects import chlo, sdy, stablehlo

from fluid.artifact.slices import operations, rewrite_slices


def cleaned(exported: jax.export.Exported) -> jax.export.Exported:
    """The same function, compiled to the same code as one of fixed sizes, and without the paths of source files."""
    context = ir.Context()
    for dialect in (chlo, sdy, stablehlo):
        dialect.register_dialect(context)
    with context, ir.Location.unknown(context):
        module = mlir.deserialize_portable_artifact(exported.mlir_module_serialized)
        rewrite_slices(module)
        _repeat_functions(module)
        _tell_apart(module)
        # Locations hold the paths of source files.
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        # What is four weeks old can read it, as jax.export has it too.
        month = stablehlo.StablehloCompatibilityRequirement.WEEK_4
        version = stablehlo.get_version_from_compatibility_requirement(month)
        content = mlir.serialize_portable_artifact(module, version, True)
    return dataclasses.replace(exported, mlir_module_serialized=content)


def _repeat_functions(module: Any) -> None:
    """Give every call a function of its own, so that what two calls compute can be told apart."""
    functions = ir.SymbolTable(module.operation)
    called: set[str] = set()
    waiting = [functions["main"]]
    while waiting:
        for operation in list(operations(waiting.pop().operation)):
            if operation.name != "func.call":
                continue
            name = ir.FlatSymbolRefAttr(operation.attributes["callee"]).value
            if name in called:
                copy = functions[name].operation.clone(ip=ir.InsertionPoint.at_block_begin(module.body))
                name = ir.StringAttr(functions.insert(copy)).value
                operation.attributes["callee"] = ir.FlatSymbolRefAttr.get(name)
            called.add(name)
            waiting.append(functions[name])


def _tell_apart(module: Any) -> None:
    """Number all operations, so that no two are the same.

    When sizes become numbers, JAX merges operations that are the same before XLA sees them. XLA merges them later, and
    simplifies what has one user in other ways than what has two, so that results would differ in their last bits.
    """
    for number, operation in enumerate(operations(module.operation)):
        # Calls of what only XLA knows must have the attributes that it expects.
        known = operation.name.startswith(("stablehlo.", "chlo.")) and operation.name != "stablehlo.custom_call"
        if known and len(operation.results):
            mark: dict[str, ir.Attribute] = {"n": ir.StringAttr.get(str(number))}
            operation.attributes["mhlo.frontend_attributes"] = ir.DictAttr.get(mark)
