"""`rnn`: a recurrence whose step is any function that calls layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, array_of, dense, describe, is_sequence, layer
from fluid.layers.recurrent.cells import Cell
from fluid.layers.recurrent.scan import numbered, unroll
from fluid.layers.recurrent.steps import (
    check_no_state_written,
    check_same_steps,
    hold_last_step,
    next_state,
    time_first,
)


@layer
def rnn(
    cell: Callable[..., Any],
    inputs: Any,
    initial_states: Any,
    sequence_length: core.Value | None = None,
    time_major: bool = False,
    is_reverse: bool = False,
    name: str | None = None,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """Run a function over the steps of sequences: one loop on the device, whatever the number of steps.

    Args:
      cell: `cell(x, states, **kwargs)` returns the outputs of a step and the new states; it may call layers. Parameters
        that it creates serve all steps.
      inputs: a SequenceBatch, of which `cell` gets `[batch, ...]`; an array `[batch, time, ...]`; or a list, tuple or
        dict of several.
      initial_states: array `[batch, ...]`, or a list, tuple or dict of several; the states keep shapes and dtypes.
      sequence_length: integers `[batch]` for arrays: in the steps after its end a row keeps its states.
      time_major: whether arrays are `[time, batch, ...]`, the outputs too.
      is_reverse: whether to run each row from its last step to its first.
      name: instead of `rnn_N`.
      kwargs: handed on to `cell`.

    Returns:
      The outputs of all steps, SequenceBatches where the inputs are; and the states after the last step.

    Raises:
      ShapeError: inputs do not have the same rows and steps, or new states other shapes than the old ones.
      ArgumentError: there are no initial states.
      ProgramError: `cell` does not return a pair, or changes a state such as the moving averages of batch_norm.

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
    example = jax.tree.map(lambda v: jnp.zeros(v.shape[1:], v.dtype), x)
    body = core.Body(lambda x, states: _checked_step(this, cell, x, states, kwargs), [example, states], "layers.rnn")
    check_no_state_written(this.name, body.written)
    function = FunctionCell(body, states)
    outputs, last = unroll(function, numbered(x), function.initial_state(x), lengths, is_reverse)
    ragged = any(map(is_sequence, jax.tree.leaves(inputs, is_leaf=is_sequence)))
    if ragged or not time_major:
        outputs = jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), outputs)
    if ragged:
        outputs = jax.tree.map(lambda v: core.SequenceBatch(v, lengths), outputs)
    outputs = jax.tree.map(this.output, outputs, is_leaf=is_sequence)
    return outputs, jax.tree.map(this.output, last)


@dataclass(frozen=True, eq=False)
class FunctionCell(Cell):
    """A function that calls layers, as a cell. Its inputs are pairs: the number of the step, and what it steps over.

    Attributes:
      body: the function, which takes what it steps over and the state, and returns outputs and the new state.
      start: the state before the first step.
    """

    body: core.Body
    start: Any

    def initial_state(self, batch_ref: Any) -> Any:
        """The state that the cell was made with."""
        return self.start

    def step(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Run the function once; layers in it that draw random numbers depend on the number of the step."""
        number, x = inputs
        (outputs, new), _ = self.body({}, number, x, state)
        return outputs, new


def _steps_of(this: Layer, inputs: Any, sequence_length: Any, time_major: bool) -> tuple[Any, Any]:
    """Read what `rnn` steps over.

    Args:
      this: the layer, for messages.
      inputs: a pytree of sequence batches, or of arrays `[batch, time, ...]`.
      sequence_length: integers `[batch]` beside arrays, or None.
      time_major: whether arrays are `[time, batch, ...]`.

    Returns:
      The same pytree with arrays `[time, batch, ...]` (of nested sequences, with batches of the inner ones), and the
      lengths of the rows, `[batch]`, or None when all steps count.
    """
    leaves, structure = jax.tree.flatten(inputs, is_leaf=is_sequence)
    if not leaves or len({is_sequence(v) for v in leaves}) != 1:
        raise errors.ShapeError(f"{this.name} takes sequence batches or arrays to step over, all of one kind")
    if not is_sequence(leaves[0]):
        leaves = [dense(v) for v in leaves]
        if any(v.ndim < 2 for v in leaves):
            raise errors.ShapeError(f"{this.name} takes arrays [batch, time, ...], found {describe(leaves[0])}")
    for other in leaves[1:]:
        check_same_steps(this.name, leaves[0], other)
    if is_sequence(leaves[0]):
        return jax.tree.unflatten(structure, [time_first(v) for v in leaves]), leaves[0].lengths
    if not time_major:
        leaves = [jnp.swapaxes(v, 0, 1) for v in leaves]
    lengths = None if sequence_length is None else dense(sequence_length).reshape(-1)
    if lengths is not None:
        if lengths.shape[0] != leaves[0].shape[1]:
            raise errors.ShapeError(
                f"{this.name}: sequence_length is {describe(sequence_length)} and the inputs have {leaves[0].shape[1]} "
                f"rows; give one length for each row"
            )
        leaves = [hold_last_step(v, lengths) for v in leaves]
    return jax.tree.unflatten(structure, leaves), lengths


def _checked_step(this: Layer, cell: Callable[..., Any], x: Any, states: Any, kwargs: Any) -> tuple[Any, Any]:
    """Call the user's function for one step.

    Args:
      this: the layer, for messages.
      cell: the function.
      x: what it steps over, a pytree of `[batch, ...]`.
      states: a pytree of arrays `[batch, ...]`.
      kwargs: further arguments of the function.

    Returns:
      Its outputs as arrays, and its new states in the dtypes of the old ones.
    """
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
