"""Checks and conversions of the arguments of gated recurrent layers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers import functional
from fluid.layers.base import Layer, array_of, describe
from fluid.layers.kernels.table import plus
from fluid.layers.recurrent.cells import Cell


def width_of(this: Layer, size: Any, gates: int) -> int:
    """Return the width of the hidden state, which is `size` divided by the number of gates.

    Raises:
      ArgumentError: the size is no positive multiple of the number of gates.
    """
    size = core.whole_number(this.name, "size", size, least=gates)
    if size % gates:
        raise errors.ArgumentError(
            f"{this.name}(size={size}): expected {gates} times the width of the hidden state, as in "
            f"size={(size // gates + 1) * gates}"
        )
    return size // gates


def projected(this: Layer, value: core.Value, size: int) -> core.SequenceBatch:
    """Check that the input of a recurrence is a sequence batch `[batch, time, size]`, and return it.

    Raises:
      ShapeError: the input is no sequence batch of this size.
    """
    if not isinstance(value, core.SequenceBatch) or value.data.ndim != 3 or value.shape[2] != size:
        found = "a sequence batch" if isinstance(value, core.SequenceBatch) else "an array"
        raise errors.ShapeError(
            f"{this.name} takes a sequence batch [batch, time, {size}], found {found} {describe(value)}; project it "
            f"first: x = fluid.layers.fc(x, size={size})"
        )
    core.check_not_changed(this.frame, value)
    return value


def with_bias(x: core.SequenceBatch, bias: jax.Array) -> core.SequenceBatch:
    """Add a bias of `size` numbers to the projected input of a recurrence, `[batch, time, size]`."""
    return x.with_data(plus(x.data, bias.reshape(-1)))


def starting_state(this: Layer, cell: Cell, batch: core.SequenceBatch, **given: core.Value | None) -> Any:
    """Return the initial state of a recurrence over sequences: zeros, or arrays that the user gives.

    Args:
      this: the layer, for messages.
      cell: the cell, which returns the default state.
      batch: the projected input, `[batch, time, ...]`.
      given: the user's value for each array of the state, in order, under the name of the argument; None for zeros.

    Raises:
      ShapeError: a given value has the wrong shape.
    """
    zeros, structure = jax.tree.flatten(cell.initial_state(batch.data))
    arrays = [
        zero if value is None else given_state(this, value, zero.shape, zero.dtype, argument)
        for (argument, value), zero in zip(given.items(), zeros, strict=True)
    ]
    return jax.tree.unflatten(structure, arrays)


def given_state(this: Layer, value: core.Value | None, shape: tuple[int, ...], dtype: Any, argument: str) -> jax.Array:
    """Return the user's initial state as an array of the given shape and dtype; zeros for None.

    Raises:
      ShapeError: the value has another shape.
    """
    if value is None:
        return jnp.zeros(shape, dtype)
    array = array_of(this, value)
    if array.shape != shape:
        sizes = ", ".join(["batch", *map(str, shape[1:])] if len(shape) == 2 else map(str, shape))
        raise errors.ShapeError(
            f"{this.name}: {argument} is {describe(array)}, expected [{sizes}], as in "
            f"{argument}=fluid.layers.fc(context, size={shape[-1]})"
        )
    return array.astype(dtype)


def array_of_shape(this: Layer, value: core.Value, *shape: int | str) -> jax.Array:
    """Return the array of a value after checking its shape; a name, such as "batch", stands for any size.

    Raises:
      ShapeError: the value has another shape, or is a sequence batch.
    """
    array = array_of(this, value)
    fits = (isinstance(want, str) or want == got for want, got in zip(shape, array.shape, strict=False))
    if array.ndim != len(shape) or not all(fits):
        sizes = ", ".join("batch" if size == this.frame.placeholder_batch else str(size) for size in shape)
        change = "flatten(x)" if isinstance(shape[-1], str) else f"fc(x, size={shape[-1]})"
        raise errors.ShapeError(
            f"{this.name} was given {describe(value)}, expected [{sizes}]; project it first: x = fluid.layers.{change}"
        )
    return array


def to_activation(act: functional.Activation) -> Callable[[Any], Any]:
    """Return the function of an activation; "identity" and None return a function that changes nothing.

    Raises:
      ArgumentError: there is no activation of this name.
    """
    if act is None or act == "identity":
        return lambda value: value
    return functional.activation(act)
