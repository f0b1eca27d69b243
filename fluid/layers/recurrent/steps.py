"""Helpers for recurrences with a step function of the user: conversion of inputs for a scan, and checks."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core.rows import harmless
from fluid.layers.base import dense, describe, is_sequence


def check_cell(name: str, cell: Any) -> None:
    """Check that `cell` is a cell or a function.

    Raises:
      ArgumentTypeError: `cell` is neither, for example the class of a cell instead of an instance.
    """
    if not callable(cell) or isinstance(cell, type):
        raise errors.ArgumentTypeError(
            f"{name}: cell={cell!r}; expected an RNNCell, or a function of inputs and states, as in "
            f"cell=layers.GRUCell(hidden_size=64)"
        )


def call_cell(name: str, cell: Callable[..., Any], inputs: Any, states: Any, kwargs: Mapping[str, Any]) -> Any:
    """Call a cell, and check that it returns a pair of outputs and new states.

    Raises:
      ProgramError: the cell does not return a pair.
    """
    result = cell(inputs, states, **kwargs)
    if not isinstance(result, list | tuple) or len(result) != 2:
        raise errors.ProgramError(
            f"{name}: cell(x, states) returned {type(result).__name__}; it returns two things: outputs, new_states"
        )
    return result


def steps_of(name: str, inputs: Any, sequence_length: Any, time_major: bool) -> tuple[Any, Any]:
    """Convert the inputs of a recurrence to arrays with time first.

    Args:
      inputs: a pytree of sequence batches, or of arrays `[batch, time, ...]`.
      sequence_length: for arrays, the number of steps of each row, integers `[batch]`; or None.
      time_major: whether arrays are `[time, batch, ...]`.

    Returns:
      The pytree with arrays `[time, batch, ...]`, or with SequenceBatches of inner sequences if the inputs are nested;
      and the lengths of the rows, `[batch]`, or None if all steps count.

    Raises:
      ShapeError: the inputs mix arrays and sequence batches, or differ in their numbers of rows or steps.
      ArgumentError: `sequence_length` is given for sequence batches.
    """
    leaves, structure = jax.tree.flatten(inputs, is_leaf=is_sequence)
    if not leaves or len({is_sequence(v) for v in leaves}) != 1:
        raise errors.ShapeError(f"{name} takes sequence batches or arrays to step over, all of one kind")
    if not is_sequence(leaves[0]):
        leaves = [dense(v) for v in leaves]
        if any(v.ndim < 2 for v in leaves):
            raise errors.ShapeError(f"{name} takes arrays [batch, time, ...], found {describe(leaves[0])}")
    for other in leaves[1:]:
        check_same_steps(name, leaves[0], other)
    if is_sequence(leaves[0]):
        if sequence_length is not None:
            raise errors.ArgumentError(
                f"{name}: sequence_length={describe(sequence_length)} beside sequence batches, which have lengths of "
                f"their own; leave it out, or cut the sequences: layers.sequence_unpad(x.data, lengths)"
            )
        return jax.tree.unflatten(structure, [time_first(v) for v in leaves]), leaves[0].lengths
    if not time_major:
        leaves = [jnp.swapaxes(v, 0, 1) for v in leaves]
    lengths = None if sequence_length is None else dense(sequence_length).reshape(-1)
    if lengths is not None and lengths.shape[0] != leaves[0].shape[1]:
        raise errors.ShapeError(
            f"{name}: sequence_length is {describe(sequence_length)} and the inputs have {leaves[0].shape[1]} rows; "
            f"give one length for each row"
        )
    return jax.tree.unflatten(structure, leaves), lengths


def time_first(value: core.SequenceBatch | core.NestedSequenceBatch) -> Any:
    """Convert a sequence batch to the input of a scan, with the padding of each row replaced by its last step.

    Args:
      value: a SequenceBatch `[batch, time, ...]`, or a NestedSequenceBatch `[batch, time, inner, ...]`.

    Returns:
      An array `[time, batch, ...]`; for nested sequences a SequenceBatch `[time, batch, inner, ...]` with lengths
      `[time, batch]`.
    """
    if isinstance(value, core.NestedSequenceBatch):
        steps: Any = core.SequenceBatch(value.flat().data.reshape(value.shape), value.inner_lengths)
    else:
        steps = value.data
    return jax.tree.map(lambda v: hold_last_step(jnp.swapaxes(v, 0, 1), value.lengths), steps)


def hold_last_step(data: jax.Array, lengths: jax.Array) -> jax.Array:
    """Replace the padding of each row by its last step.

    The user's step function also runs on the padding. If the padding is zeros, the step may divide by 0. Then the
    gradient is NaN even if no result depends on the padding. A copy of the last step avoids this: the step function
    then repeats a computation on real data.

    Args:
      data: `[time, batch, ...]`.
      lengths: integers `[batch]`.
    """
    lengths = jnp.asarray(lengths)
    rows = jnp.arange(data.shape[1])
    feature_dims = [1] * (data.ndim - 2)
    last = data[jnp.maximum(lengths - 1, 0), rows]
    longest = jnp.argmax(lengths)
    of_another = harmless(jnp.where(lengths[longest] > 0, data[0, longest], jnp.zeros((), data.dtype)))
    last = jnp.where((lengths > 0).reshape(-1, *feature_dims), last, of_another)
    mask = jnp.arange(data.shape[0])[:, None] < lengths
    return jnp.where(mask.reshape(*mask.shape, *feature_dims), data, last)


def check_same_steps(name: str, first: Any, other: Any) -> None:
    """Check that two step inputs have equal numbers of rows and equal padded lengths.

    Raises:
      ShapeError: the numbers of rows or the padded lengths differ.
    """
    if first.shape[:2] != other.shape[:2]:
        raise errors.ShapeError(
            f"{name} steps over {describe(first)} and {describe(other)} at once; the sequences must have the same "
            f"lengths. What is the same in every step needs no stepping: use it inside as it is"
        )


def check_no_state_written(name: str, written: Collection[str]) -> None:
    """Check that no layer in a step changes a state of the program, such as a moving average.

    Raises:
      ProgramError: a layer changes a state.
    """
    if written:
        raise errors.ProgramError(
            f"{name}: a layer inside changes {', '.join(map(repr, sorted(written)))} in every step, also in those "
            f"after the end of a row; normalise before the recurrence, or inside with fluid.layers.feature_norm"
        )


def next_states(name: str, which: str, old: Any, new: Any) -> Any:
    """Check the states that a step returned, and return them in the dtypes of the old states.

    Raises:
      ShapeError: the new states have another structure, or one has another shape.
    """
    given: Any = jax.tree.structure(old)
    returned: Any = jax.tree.structure(new)
    if given != returned:
        found, expected = (str(jax.tree.map(describe, v, is_leaf=is_sequence)).replace("'", "") for v in (new, old))
        raise errors.ShapeError(
            f"{name}: a step was given the {which} {expected} and returned {found}; return as many new {which} as "
            f"there are old ones, in lists, tuples or dicts of the same kind"
        )
    return jax.tree.map(lambda before, after: next_state(name, f"one of the {which}", before, after), old, new)


def check_no_sequences(name: str, outputs: Any) -> None:
    """Check that no output of a step is a sequence batch.

    Raises:
      ShapeError: an output is a sequence batch.
    """
    if any(map(is_sequence, jax.tree.leaves(outputs, is_leaf=is_sequence))):
        raise errors.ShapeError(
            f"{name}: an output of a step is a sequence batch; make one row of each sequence first, as in "
            f"layers.sequence_pool(x, 'average')"
        )


def next_state(name: str, which: str, old: jax.Array, new: Any) -> jax.Array:
    """Check the new value of one state that a step returned, and return it in the dtype of the old value.

    Raises:
      ShapeError: the new value has another shape, or is an integer while the old one is a float, or the reverse.
    """
    if is_sequence(new):
        raise errors.ShapeError(f"{name}: {which} became a sequence batch {describe(new)}, expected {describe(old)}")
    new = jnp.asarray(new)
    same_kind = jnp.issubdtype(new.dtype, jnp.floating) == jnp.issubdtype(old.dtype, jnp.floating)
    if new.shape != old.shape or not same_kind:
        raise errors.ShapeError(
            f"{name}: {which} starts as {describe(old)} and became {describe(new)}; it must keep its shape, as in "
            f"fluid.layers.fc([x, h], size={old.shape[-1] if old.shape else 1})"
        )
    return new.astype(old.dtype)
