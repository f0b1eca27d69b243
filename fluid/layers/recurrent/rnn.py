"""`rnn`: a recurrence whose step is a cell or any function that calls layers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, array_of, is_sequence, layer
from fluid.layers.recurrent.cells import Cell
from fluid.layers.recurrent.rnn_cell import RNNCell
from fluid.layers.recurrent.scan import numbered, unroll
from fluid.layers.recurrent.steps import (
    call_cell,
    check_cell,
    check_no_sequences,
    check_no_state_written,
    next_states,
    steps_of,
)


@layer
def rnn(
    cell: RNNCell | Callable[..., Any],
    inputs: Any,
    initial_states: Any = None,
    sequence_length: core.Value | None = None,
    time_major: bool = False,
    is_reverse: bool = False,
    name: str | None = None,
    **kwargs: Any,
) -> tuple[Any, Any]:
    """Run a cell over the steps of sequences, in one loop on the device for any number of steps.

    Args:
      cell: an `RNNCell`, or a function: `cell(x, states, **kwargs)` returns the outputs of a step and the new states.
        The function may call layers, and all steps share the parameters that it creates.
      inputs: a SequenceBatch or an array `[batch, time, ...]`, of which `cell` gets one step `[batch, ...]`; or a list,
        tuple or dict of several.
      initial_states: an array `[batch, ...]`, or a list, tuple or dict of several; the states keep shapes and dtypes.
        An RNNCell starts from zeros by default.
      sequence_length: integers `[batch]`, for arrays only: in the steps after its end a row keeps its states, but its
        outputs go on. A SequenceBatch has its own lengths.
      time_major: whether input and output arrays are `[time, batch, ...]`.
      is_reverse: whether to run each row from its last step to its first.
      name: name of the layer; by default `rnn_N`.
      kwargs: passed to `cell`.

    Returns:
      The outputs of all steps, SequenceBatches where the inputs are; and the states after the last step.

    Raises:
      ShapeError: inputs do not have the same rows and steps, or new states other shapes than the old ones.
      ArgumentError: there are no initial states, or there are lengths beside a SequenceBatch.
      ArgumentTypeError: `cell` is neither a cell nor a function.
      ProgramError: `cell` does not return a pair, or changes a state such as the moving averages of batch_norm.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[8], lod_level=1)
      ...     outputs, (hidden, state) = fluid.layers.rnn(fluid.layers.LSTMCell(hidden_size=4), words)
      ...     def cell(x, h):
      ...         h = fluid.layers.fc([x, h], size=4, act="tanh")
      ...         return h, h
      ...     outputs, last = fluid.layers.rnn(cell, outputs, initial_states=hidden)
      ...     return last
      >>> list(fluid.Program(program).parameters)
      ['LSTMCell/BasicLSTMUnit_0.w_0', 'LSTMCell/BasicLSTMUnit_0.b_0', 'fc_0.w_0', 'fc_0.w_1', 'fc_0.b_0']
    """
    this = Layer("rnn", name)
    check_cell(this.name, cell)
    x, lengths = steps_of(this.name, inputs, sequence_length, time_major)
    if initial_states is None and isinstance(cell, RNNCell):
        initial_states = cell.get_initial_states(inputs, batch_dim_idx=1 if time_major else 0)
    states = jax.tree.map(lambda v: jnp.asarray(array_of(this, v)), initial_states, is_leaf=is_sequence)
    if not jax.tree.leaves(states):
        raise errors.ArgumentError(
            f"{this.name} needs initial_states, found {initial_states!r}; start with zeros: initial_states="
            f'fluid.layers.fill_constant_batch_size_like(x, [-1, size], "float32", 0.0)'
        )
    x, step = _hoisted(cell, x, kwargs)
    example = jax.tree.map(lambda v: jnp.zeros(v.shape[1:], v.dtype), x)
    body = core.Body(lambda x, states: _checked_step(this, step, x, states, kwargs), [example, states], "layers.rnn")
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


def _hoisted(cell: Callable[..., Any], x: Any, kwargs: Any) -> tuple[Any, Callable[..., Any]]:
    """Compute the part of a cell that depends on the inputs alone for all steps at once, if the cell has a `hoist`.

    Args:
      cell: the user's cell.
      x: the inputs of all steps, a pytree of `[time, batch, ...]`.
      kwargs: further arguments of the cell.

    Returns:
      The new inputs of all steps, and the function that takes a step from them.
    """
    # Ignore an inherited `hoist`: the subclass may compute more than its base class.
    hoist = vars(type(cell)).get("hoist")
    if hoist is not None and not kwargs and isinstance(x, jax.Array) and x.ndim == 3:
        return hoist(cell, x)
    return x, cell


@dataclass(frozen=True, eq=False)
class FunctionCell(Cell):
    """A cell around a function that calls layers; the inputs are pairs of step number and step inputs.

    Attributes:
      body: the function, which takes the step inputs and the state, and returns the outputs and the new state.
      start: the state before the first step.
    """

    body: core.Body
    start: Any

    def initial_state(self, batch_ref: Any) -> Any:
        """Return the state `start`."""
        return self.start

    def step(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Run the function once; random layers inside depend on the step number."""
        number, x = inputs
        (outputs, new), _ = self.body({}, number, x, state)
        return outputs, new


def _checked_step(this: Layer, cell: Callable[..., Any], x: Any, states: Any, kwargs: Any) -> tuple[Any, Any]:
    """Call the user's function for one step.

    Args:
      this: the layer, for messages.
      cell: the function.
      x: the inputs of the step, a pytree of `[batch, ...]`.
      states: a pytree of arrays `[batch, ...]`.
      kwargs: further arguments of the function.

    Returns:
      The outputs as arrays, and the new states in the dtypes of the old ones.
    """
    outputs, new = call_cell(this.name, cell, x, states, kwargs)
    new = next_states(this.name, "states", states, new)
    check_no_sequences(this.name, outputs)
    return jax.tree.map(jnp.asarray, outputs), new
