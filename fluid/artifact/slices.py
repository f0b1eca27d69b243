"""Slices of arrays whose sizes are open, in a form that is compiled as slices of fixed sizes are.

Where sizes are symbols, JAX clamps the start of a slice before it takes it, as slicing does itself, and makes gathers
of what NumPy's `x[:, 1:]` says. XLA then fuses what surrounds them in another way than for sizes that it knows, and
results differ in their last bits.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

_GATHER, _SLICE = "stablehlo.dynamic_gather", "stablehlo.real_dynamic_slice"
_ADD, _CLAMP = "stablehlo.add", "stablehlo.clamp"

# What sizes are computed with.
_ON_SIZES = frozenset(
    f"stablehlo.{name}"
    for name in (
        "add", "broadcast_in_dim", "clamp", "concatenate", "constant", "convert", "divide", "get_dimension_size",
        "maximum", "minimum", "multiply", "negate", "remainder", "reshape", "select", "sign", "slice", "subtract",
    )
)  # fmt: skip


def rewrite_slices(module: Any) -> None:
    """Change a module in place; its context is the current one."""
    for operation in list(operations(module.operation)):
        if operation.name == _CLAMP and _starts_slices_only(operation):
            operation.results[0].replace_all_uses_with(operation.operands[1])
            operation.erase()
        elif operation.name == _GATHER and _is_slice(operation):
            operation.results[0].replace_all_uses_with(_sliced(operation))
            operation.erase()


def operations(operation: Any) -> Iterator[Any]:
    """An operation and all that are inside of it."""
    yield operation
    for region in operation.regions:
        for block in region:
            for inner in block:
                yield from operations(inner.operation)


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


def _is_slice(gather: Any) -> bool:
    """Whether a gather takes one part of an array, from a place that depends on sizes alone."""
    operand, start, sizes = gather.operands
    numbers = stablehlo.GatherDimensionNumbers(gather.attributes["dimension_numbers"])
    rank = operand.type.rank
    return (
        start.type.rank == 1
        and not numbers.operand_batching_dims
        and len(numbers.offset_dims) + len(numbers.collapsed_slice_dims) == rank
        and start.type.element_type == sizes.type.element_type
        and _depends_on_sizes(start)
    )


def _depends_on_sizes(value: Any) -> bool:
    """Whether a value is computed from constants and sizes, which are arguments of functions that say so."""
    owner = value.owner
    if isinstance(owner, ir.Block):
        attributes = ir.ArrayAttr(owner.owner.attributes["arg_attrs"]) if "arg_attrs" in owner.owner.attributes else ()
        return bool(attributes) and "jax.global_constant" in ir.DictAttr(attributes[value.arg_number])
    operation = owner.operation
    return operation.name in _ON_SIZES and all(
        operation.name == "stablehlo.get_dimension_size" or _depends_on_sizes(operand) for operand in operation.operands
    )


def _sliced(gather: Any) -> Any:
    """What a gather takes, taken by a slice."""
    operand, start, sizes = gather.operands
    numbers = stablehlo.GatherDimensionNumbers(gather.attributes["dimension_numbers"])
    kind, rank = start.type.element_type, operand.type.rank
    collapsed = list(numbers.collapsed_slice_dims)
    with ir.InsertionPoint(gather):
        zeros, ones = _vector(kind, [0] * rank), _vector(kind, [1] * rank)
        places = list(numbers.start_index_map)
        parts = [
            stablehlo.slice(start, [places.index(i)], [places.index(i) + 1], [1]) if i in places else _vector(kind, [0])
            for i in range(rank)
        ]
        # Sizes are known when it is compiled, and what is computed from them is a number then.
        last = stablehlo.subtract(_sizes_of(operand, kind), sizes)
        begin = stablehlo.clamp(zeros, _joined(parts), last)
        end = stablehlo.add(begin, sizes)
        found, kept = gather.results[0].type, iter(range(rank))
        shape = [1 if i in collapsed else found.shape[next(kept)] for i in range(rank)]
        part = ir.RankedTensorType.get(shape, found.element_type)
        result = stablehlo.real_dynamic_slice(part, operand, begin, end, ones)
        if not collapsed:
            return result
        if found.has_static_shape:
            return stablehlo.reshape(found, result)
        left = [stablehlo.slice(sizes, [i], [i + 1], [1]) for i in range(rank) if i not in collapsed]
        return stablehlo.dynamic_reshape(found, result, _joined(left))


def _sizes_of(operand: Any, kind: Any) -> Any:
    """The sizes of an array, as a vector."""
    one = ir.RankedTensorType.get([1], kind)
    scalar = ir.RankedTensorType.get([], kind)
    sizes = []
    for i in range(operand.type.rank):
        if not operand.type.is_dynamic_dim(i):
            sizes.append(_vector(kind, [operand.type.shape[i]]))
            continue
        size = stablehlo.get_dimension_size(operand, i)
        sizes.append(stablehlo.reshape(one, stablehlo.convert(scalar, size)))
    return _joined(sizes)


def _vector(kind: Any, numbers: list[int]) -> Any:
    array: Any = np.array(numbers, f"int{ir.IntegerType(kind).width}")
    return stablehlo.constant(ir.DenseElementsAttr.get(array))


def _joined(parts: list[Any]) -> Any:
    return stablehlo.concatenate(parts, 0)
