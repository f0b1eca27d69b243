"""Recurrences over any function: `rnn`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, array_of, dense, describe, is_sequence, layer
from fluid.layers.recurrent.scan import scan_time


@layer
def rnn(
    cell: Callable[..., Any],
    inputs: Any,
    initial_states: Any,
    sequence_length: Any = None,
    time_major: bool = False,
    is_reverse: bool = False,
    name: str | None = None,
    **kwargs: Any,
) -> Any:
    """Run a function over the steps of sequences: one loop on the device, whatever the number of steps.

    Args:
      cell: `cell(x, states, **kwargs)` returns the outputs of a step and the new states; it may call layers. Parameters
        that it creates serve all steps.
      inputs: a SequenceBatch, of which `cell` gets `[batch, ...]`; an array `[batch, time, ...]`; or a list, tuple or
        dict of several.
      initial_states: array `[batch, ...]`, or a list, tuple or dict of several; the states keep shapes and dtypes.
      sequence_length: integers `[batch]` for arrays: steps behind a row's length leave its states alone.
      time_major: whether arrays are `[time, batch, ...]`, the outputs too.
      is_reverse: whether to run each row from its last step to its first.
      name: instead of `rnn_N`.
      kwargs: handed on to `cell`.

    Returns:
      The outputs of all steps, SequenceBatches where the inputs are; and the states behind the last step.

    Raises:
      ShapeError: inputs do not have the same rows and steps, or new states other shapes than the old ones.
      ProgramError: `cell` changes a state such as the moving averages of batch_norm.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[8], lod_level=1)
      ...     start = fluid.layers.fill_constant_batch_size_like(words, [-1, 4], "float32", 0.0)
      ...     def cell(x, h):
      ...         h = fluid.layers.fc([x, h], size=4, act="tanh")
      ...         return h, h
      ...     outputs, last = fluid.layers.rnn(cell, words, start)
      ...     return last
      >>> list(fluid.Program(program).parameters)
      ['fc_0.w_0', 'fc_0.w_1', 'fc_0.b_0']
    """
    this = Layer("rnn", name)
    x, lengths = _steps_of(this, inputs, sequence_length, time_major)
    states = jax.tree.map(lambda v: jnp.asarray(array_of(this, v)), initial_states, is_leaf=is_sequence)
    if not jax.tree.leaves(states):
        raise errors.ArgumentError(
            f"{this.name} needs initial_states, found {initial_states!r}; start with zeros: initial_states="
            f'fluid.layers.fill_constant_batch_size_like(x, [-1, size], "float32", 0.0)'
        )
    one = jax.tree.map(lambda v: jnp.zeros(v.shape[1:], v.dtype), x)
    body = core.Body(lambda x, states: _called(this, cell, x, states, kwargs), [one, states], "layers.rnn")
    refuse_changes(this.name, body.written)

    def step(turn: Any, states: Any, x: Any) -> tuple[Any, Any]:
        outputs, new = body({}, turn, x, states)[0]
        return new, outputs

    last, outputs = scan_time(step, states, x, lengths, is_reverse)
    ragged = any(map(is_sequence, jax.tree.leaves(inputs, is_leaf=is_sequence)))
    if ragged or not time_major:
        outputs = jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), outputs)
    if ragged:
        outputs = jax.tree.map(lambda v: core.SequenceBatch(v, lengths), outputs)
    outputs = jax.tree.map(this.output, outputs, is_leaf=is_sequence)
    return outputs, jax.tree.map(this.output, last)


def time_first(value: Any) -> Any:
    """A sequence batch as what a scan goes over: `[time, batch, ...]`, of nested sequences a batch of the inner ones.

    Behind the end of a row its last step is repeated, so that a step of the user's makes nothing of padding that it
    could not make of data: no division by 0 whose gradient would be no number.
    """
    if isinstance(value, core.NestedSequenceBatch):
        each = core.SequenceBatch(value.flat().data.reshape(value.shape), value.inner_lengths)
    else:
        each = value.data
    return jax.tree.map(lambda v: _hold(jnp.swapaxes(v, 0, 1), value.lengths), each)


def refuse_changes(name: str, written: Any) -> None:
    """Refuse a step that changes states of the program.

    Raises:
      ProgramError: it does.
    """
    if written:
        raise errors.ProgramError(
            f"{name}: a layer inside changes {', '.join(map(repr, sorted(written)))} in every step, also in those "
            f"behind the end of a row; normalise before the recurrence, or inside with fluid.layers.layer_norm"
        )


def next_state(name: str, which: str, old: Any, new: Any) -> Any:
    """The new value of a state, which keeps shape and dtype of the old one.

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


def check_together(name: str, first: Any, other: Any) -> None:
    """Refuse sequences that do not have the same rows and padded length as the first ones.

    Raises:
      ShapeError: they do not.
    """
    if first.shape[:2] != other.shape[:2]:
        raise errors.ShapeError(
            f"{name} steps over {describe(first)} and {describe(other)} at once; the sequences must have the same "
            f"lengths. What is the same in every step needs no stepping: use it inside as it is"
        )


def _hold(data: Any, lengths: Any) -> Any:
    rows = jnp.arange(data.shape[1])
    spread = [1] * (data.ndim - 2)
    last = data[jnp.maximum(lengths - 1, 0), rows]
    # A row without steps gets one of another row, and where no row has any, zeros.
    longest = jnp.argmax(lengths)
    other = jnp.where(lengths[longest] > 0, data[0, longest], jnp.zeros((), data.dtype))
    last = jnp.where((lengths > 0).reshape(-1, *spread), last, other)
    mask = jnp.arange(data.shape[0])[:, None] < lengths
    return jnp.where(mask.reshape(*mask.shape, *spread), data, last)


def _steps_of(this: Layer, inputs: Any, sequence_length: Any, time_major: bool) -> tuple[Any, Any]:
    """The inputs with time first, and the lengths of the rows if they have any."""
    leaves, shape = jax.tree.flatten(inputs, is_leaf=is_sequence)
    if not leaves or len({is_sequence(v) for v in leaves}) != 1:
        raise errors.ShapeError(f"{this.name} takes sequence batches or arrays to step over, all of one kind")
    if not is_sequence(leaves[0]):
        leaves = [dense(v) for v in leaves]
        if any(v.ndim < 2 for v in leaves):
            raise errors.ShapeError(f"{this.name} takes arrays [batch, time, ...], found {describe(leaves[0])}")
    for other in leaves[1:]:
        check_together(this.name, leaves[0], other)
    if is_sequence(leaves[0]):
        return jax.tree.unflatten(shape, [time_first(v) for v in leaves]), leaves[0].lengths
    if not time_major:
        leaves = [jnp.swapaxes(v, 0, 1) for v in leaves]
    lengths = None if sequence_length is None else dense(sequence_length).reshape(-1)
    if lengths is not None:
        if lengths.shape[0] != leaves[0].shape[1]:
            raise errors.ShapeError(
                f"{this.name}: sequence_length is {describe(sequence_length)} and the inputs have {leaves[0].shape[1]} "
                f"rows; give one length for each row"
            )
        leaves = [_hold(v, lengths) for v in leaves]
    return jax.tree.unflatten(shape, leaves), lengths


def _called(this: Layer, cell: Callable[..., Any], x: Any, states: Any, kwargs: Any) -> tuple[Any, Any]:
    result = cell(x, states, **kwargs)
    if not isinstance(result, list | tuple) or len(result) != 2:
        raise errors.ProgramError(f"{this.name}: cell(x, states) returns two things: outputs, new_states")
    outputs, new = result
    given: Any = jax.tree.structure(states)
    returned: Any = jax.tree.structure(new, is_leaf=is_sequence)
    if given != returned:
        raise errors.ShapeError(
            f"{this.name}: cell was given {given} as states and returned {returned}; return as many new states as "
            f"there are old ones"
        )
    if any(map(is_sequence, jax.tree.leaves(outputs, is_leaf=is_sequence))):
        raise errors.ShapeError(
            f"{this.name}: an output of a step is a sequence batch; make one row of each sequence first, as in "
            f"layers.sequence_pool(x, 'average')"
        )
    new = jax.tree.map(lambda old, v: next_state(this.name, "a state", old, v), states, new, is_leaf=is_sequence)
    return jax.tree.map(jnp.asarray, outputs), new
