"""Pytrees of values in loops and branches: functions that fix dtypes, describe, compare and record them."""

from typing import Any

import jax

from fluid import core, errors
from fluid.layers.base import Layer, dense, describe


def strongly_typed(tree: Any) -> Any:
    """Convert the leaves of a pytree to arrays whose dtypes are not weak.

    A Python number is weakly typed in JAX: operations with other dtypes change its dtype, and a loop would then change
    the dtype of its carry.
    """

    def strong(leaf: Any) -> Any:
        array = dense(leaf)
        return jax.lax.convert_element_type(array, array.dtype) if array.weak_type else array

    return jax.tree.map(strong, tree)


def describe_tree(tree: Any) -> str:
    """Describe a pytree for messages, with dtypes and shapes for its leaves."""
    return str(jax.tree.map(describe, tree)).replace("'", "")


def check_same_specs(found: Any, expected: Any, message: str) -> None:
    """Check that two pytrees of arrays have equal structures, shapes and dtypes; `strongly_typed` prepares both.

    Args:
      found: the pytree to check.
      expected: the pytree to compare with.
      message: the message of the error; `{found}` and `{expected}` stand for descriptions of the two.

    Raises:
      ShapeError: the pytrees differ.
    """
    specs: list[Any] = [
        jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), tree) for tree in (found, expected)
    ]
    if jax.tree.flatten(specs[0]) != jax.tree.flatten(specs[1]):
        raise errors.ShapeError(message.format(found=describe_tree(found), expected=describe_tree(expected)))


def record_outputs(this: Layer, tree: Any) -> Any:
    """Record each array or sequence batch of a pytree as an output of the layer; return the recorded pytree."""
    batches = core.SequenceBatch | core.NestedSequenceBatch
    return jax.tree.map(this.output, tree, is_leaf=lambda value: isinstance(value, batches))
