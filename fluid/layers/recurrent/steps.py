"""What `rnn` and the blocks share: sequences as inputs of a scan, and checks of what a user's step does."""

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import describe, is_sequence


def time_first(value: core.SequenceBatch | core.NestedSequenceBatch) -> Any:
    """A sequence batch as the input of a scan, with the padding of each row replaced by its last step.

    Args:
      value: a SequenceBatch `[batch, time, ...]`, or a NestedSequenceBatch `[batch, time, inner, ...]`.

    Returns:
      An array `[time, batch, ...]`; of nested sequences a SequenceBatch `[time, batch, inner, ...]`, whose lengths are
      `[time, batch]`.
    """
    if isinstance(value, core.NestedSequenceBatch):
        steps: Any = core.SequenceBatch(value.flat().data.reshape(value.shape), value.inner_lengths)
    else:
        steps = value.data
    return jax.tree.map(lambda v: hold_last_step(jnp.swapaxes(v, 0, 1), value.lengths), steps)


def hold_last_step(data: jax.Array, lengths: jax.Array) -> jax.Array:
    """Replace the padding of each row by its last step.

    A user's step is computed on the padding too. On zeros it may divide by 0, and the gradient of that is NaN even when
    no result depends on it. On the last step it computes only what it computes on data anyway.

    Args:
      data: `[time, batch, ...]`.
      lengths: integers `[batch]`.

    Returns:
      An array of the same shape. A row without steps has the first step of the longest row; when no row has any, all
      rows are zeros.
    """
    rows = jnp.arange(data.shape[1])
    feature_dims = [1] * (data.ndim - 2)
    last = data[jnp.maximum(lengths - 1, 0), rows]
    longest = jnp.argmax(lengths)
    of_another = jnp.where(lengths[longest] > 0, data[0, longest], jnp.zeros((), data.dtype))
    last = jnp.where((lengths > 0).reshape(-1, *feature_dims), last, of_another)
    mask = jnp.arange(data.shape[0])[:, None] < lengths
    return jnp.where(mask.reshape(*mask.shape, *feature_dims), data, last)


def check_same_steps(name: str, first: Any, other: Any) -> None:
    """Refuse to step at once over two values that do not have the same number of rows and the same padded length.

    Raises:
      ShapeError: they do not.
    """
    if first.shape[:2] != other.shape[:2]:
        raise errors.ShapeError(
            f"{name} steps over {describe(first)} and {describe(other)} at once; the sequences must have the same "
            f"lengths. What is the same in every step needs no stepping: use it inside as it is"
        )


def check_no_state_written(name: str, written: Collection[str]) -> None:
    """Refuse a step in which a layer changes a state of the program, such as a moving average.

    Raises:
      ProgramError: there are such states.
    """
    if written:
        raise errors.ProgramError(
            f"{name}: a layer inside changes {', '.join(map(repr, sorted(written)))} in every step, also in those "
            f"after the end of a row; normalise before the recurrence, or inside with fluid.layers.layer_norm"
        )


def next_state(name: str, which: str, old: jax.Array, new: Any) -> jax.Array:
    """The new value of a state, in the dtype of the old one.

    Args:
      name: of the layer, for messages.
      which: the state, for messages.
      old: the array before the step.
      new: what the user's step made of it.

    Raises:
      ShapeError: it has another shape, or is an integer where the old one is a float.
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
