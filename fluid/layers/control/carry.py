"""What loops and branches carry: pytrees of values, settled, compared and recorded."""

from typing import Any

import jax

from fluid import core, errors
from fluid.layers.base import Layer, dense, describe


def settled(tree: Any) -> Any:
    """A pytree with arrays of a definite dtype for its leaves: a number alone would take that of what it meets."""

    def settle(leaf: Any) -> Any:
        array = dense(leaf)
        return jax.lax.convert_element_type(array, array.dtype) if array.weak_type else array

    return jax.tree.map(settle, tree)


def shown(tree: Any) -> str:
    """A pytree for messages, with dtypes and shapes for its leaves."""
    return str(jax.tree.map(describe, tree)).replace("'", "")


def check_alike(found: Any, expected: Any, message: str) -> None:
    """Compare two pytrees of arrays by structure, shapes and dtypes.

    Args:
      found: settled.
      expected: settled.
      message: of the error; `{found}` and `{expected}` stand for the two.

    Raises:
      ShapeError: they differ.
    """
    specs: list[Any] = [
        jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape, v.dtype), tree) for tree in (found, expected)
    ]
    if jax.tree.flatten(specs[0]) != jax.tree.flatten(specs[1]):
        raise errors.ShapeError(message.format(found=shown(found), expected=shown(expected)))


def recorded(this: Layer, tree: Any) -> Any:
    """Record each array or sequence batch of a pytree as a result of the layer."""
    batches = core.SequenceBatch | core.NestedSequenceBatch
    return jax.tree.map(this.output, tree, is_leaf=lambda value: isinstance(value, batches))
