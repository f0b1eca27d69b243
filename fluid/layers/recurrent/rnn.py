"""`rnn`, which runs a function or an `RNNCell` over the steps of sequences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, dense, is_sequence, layer
from fluid.layers.checks import dtype_of
from fluid.layers.recurrent.cells import Cell, numbered, unroll
from fluid.layers.recurrent.steps import (
    call_cell,
    check_cell,
    check_no_sequences,
    check_no_state_written,
    next_states,
    steps_of,
)


class RNNCell:
    """One step of a recurrence: the base class of `GRUCell`, `LSTMCell` and custom cells.

    A subclass defines `call`, which may call layers. If the subclass also defines `state_shape`, `layers.rnn` and the
    decoders can create the initial states. Each loop creates the parameters of the layers in `call` once. To share
    parameters between two loops, such as one for training and one for decoding, name them with ParamAttr.

    Args:
      The base class has none; a subclass may define its own.

    Returns:
      A cell. `cell(inputs, states)`, with the inputs of a step and the states before the step, runs `call`.

    Example:
      >>> import fluid
      >>> class Elman(fluid.layers.RNNCell):
      ...     def call(self, inputs, states):
      ...         hidden = fluid.layers.fc([inputs, states], size=4, act="tanh")
      ...         return hidden, hidden
      ...     @property
      ...     def state_shape(self):
      ...         return [4]
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[8], lod_level=1)
      ...     outputs, last = fluid.layers.rnn(Elman(), x)
      ...     return last
      >>> list(fluid.Program(program).parameters)
      ['fc_0.w_0', 'fc_0.w_1', 'fc_0.b_0']
    """

    @layer
    def __init__(self) -> None:
        pass  # The decorator `@layer` raises an error if a cell is created outside a program function.

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Run one step of the cell: call the method `call`, and return the outputs and the new states."""
        return self.call(inputs, states, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Take one step; a subclass defines `call(self, inputs, states)`, with more arguments if needed.

        Args:
          args: the inputs, and the states before the step; each an array `[batch, ...]` or a pytree of arrays.
          kwargs: further arguments of `layers.rnn` or `layers.dynamic_decode`.

        Returns:
          The outputs of the step; and the new states, with the structure and shapes of the old ones.

        Raises:
          ProgramError: the subclass does not define `call`.
        """
        raise errors.ProgramError(
            f"{type(self).__name__} does not say what a step does; define it: def call(self, inputs, states): "
            f"... return outputs, new_states"
        )

    def get_initial_states(
        self,
        batch_ref: Any,
        shape: Any = None,
        dtype: Any = None,
        init_value: float = 0.0,
        batch_dim_idx: int = 0,
    ) -> Any:
        """Create initial states filled with one value.

        Args:
          batch_ref: a value, or a pytree of values, with the batch size of the states.
          shape: the sizes of the state without the batch (-1 may stand for the batch at the front), or a pytree of
            lists of sizes; `state_shape` by default.
          dtype: the dtype of the states, or a pytree with a dtype for each state; `state_dtype` by default. If
            `state_dtype` is None, the dtype of `batch_ref`, or float32 if `batch_ref` holds no floats.
          init_value: the number that fills the states.
          batch_dim_idx: the batch dimension of an array `batch_ref`; for a sequence batch it is always the first.

        Returns:
          Arrays `[batch, *shape]` in the structure of `shape`.

        Raises:
          ArgumentError: a shape is not a list of positive integers, or `batch_ref` holds no value.
          ProgramError: there is no shape.

        Example:
          >>> import fluid
          >>> def program():
          ...     x = fluid.layers.data("x", shape=[5, 8])
          ...     return fluid.layers.LSTMCell(hidden_size=4).get_initial_states(x)
          >>> print(*fluid.Program(program).outputs)
          float32[batch, 4] float32[batch, 4]
        """
        frame = core.current_frame("layers.RNNCell")
        first = _first_value(batch_ref)
        batch = first.shape[0 if is_sequence(first) else batch_dim_idx]
        dtype = self.state_dtype if dtype is None else dtype
        if dtype is None:
            dtype = first.dtype if jnp.issubdtype(first.dtype, jnp.floating) else "float32"

        def state(sizes: Sequence[int], of: Any) -> jax.Array:
            return frame.compute(jnp.full([batch, *_without_batch(sizes)], init_value, dtype_of("RNNCell", of)))

        shapes = self.state_shape if shape is None else shape
        if not jax.tree_util.all_leaves([dtype]):
            return jax.tree.map(state, shapes, dtype, is_leaf=_is_shape)
        return jax.tree.map(lambda sizes: state(sizes, dtype), shapes, is_leaf=_is_shape)

    @property
    def state_shape(self) -> Any:
        """The sizes of the state without the batch, such as `[4]`, or a pytree of lists of sizes, such as `[[4], [4]]`.

        Raises:
          ProgramError: the subclass does not define `state_shape`.
        """
        name = type(self).__name__
        raise errors.ProgramError(
            f"{name} has no state_shape, so that its initial states are not known; define it, as in state_shape = [4], "
            f"or give them: layers.rnn(cell, x, initial_states=h), cell.get_initial_states(x, shape=[4])"
        )

    @property
    def state_dtype(self) -> Any:
        """The dtype of the states, or a pytree with a dtype for each state; None for the dtype of the inputs."""
        return None


def _first_value(batch_ref: Any) -> Any:
    """Return the first array or sequence batch of a pytree."""
    values = jax.tree.leaves(batch_ref, is_leaf=is_sequence)
    if not values:
        raise errors.ArgumentError(
            f"get_initial_states was given batch_ref={batch_ref!r}, which has no batch size; give it a value of the "
            f"program: cell.get_initial_states(x)"
        )
    return values[0] if is_sequence(values[0]) else dense(values[0])


def _is_shape(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(size, int | np.integer) for size in value)


def _without_batch(sizes: Any) -> list[int]:
    """Return the sizes of a state, without the -1 that may stand for the batch at the front."""
    if not _is_shape(sizes):
        raise errors.ArgumentError(
            f"a state of an RNNCell has the shape {sizes!r}; expected a list of integers, as in state_shape = [4]"
        )
    rest = list(sizes[1:] if sizes and sizes[0] == -1 else sizes)
    return [core.whole_number("RNNCell", "shape", size) for size in rest]


@layer
def rnn(
    cell: RNNCell | Callable[..., Any],
    inputs: Any,
    initial_states: Any = None,
    sequence_length: Value | None = None,
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
        tuple or dict of these.
      initial_states: an array `[batch, ...]`, or a list, tuple or dict of arrays; all steps keep their shapes and
        dtypes. An RNNCell starts from zeros by default.
      sequence_length: the number of steps of each row, integers `[batch]`, for arrays only. After its end, a row keeps
        its states, but the cell still computes outputs. A SequenceBatch has its own lengths.
      time_major: whether input and output arrays are `[time, batch, ...]`.
      is_reverse: whether to run each row from its last step to its first.
      name: name of the layer; by default `rnn_N`.
      kwargs: passed to `cell`.

    Returns:
      The outputs of all steps, which are SequenceBatches if the inputs are; and the states after the last step.

    Raises:
      ShapeError: inputs differ in their numbers of rows or steps, or a new state has another shape than the old one.
      ArgumentError: there are no initial states, or `sequence_length` is given for a SequenceBatch.
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
    """Compute the part of a recurrence that depends only on the inputs for all steps at once, before the loop.

    The method `hoist` of a cell computes this part. A cell without this method stays unchanged.

    Args:
      x: the inputs of all steps, a pytree of `[time, batch, ...]`.

    Returns:
      The result of `hoist`: new inputs of all steps, and a function that takes one step with these inputs. The
      function returns `x` and `cell` unchanged if the class of the cell itself defines no `hoist`, if there are
      `kwargs`, or if `x` is not one array `[time, batch, in]`.
    """
    # The method `hoist` must fit the method `call` of the same class. A subclass with another `call` may inherit a
    # `hoist` that does not fit. So use only a `hoist` that the class itself defines.
    hoist = vars(type(cell)).get("hoist")
    if hoist is not None and not kwargs and isinstance(x, jax.Array) and x.ndim == 3:
        return hoist(cell, x)
    return x, cell


@dataclass(frozen=True, eq=False)
class FunctionCell(Cell):
    """A cell whose step is a function that calls layers. The input of a step is a pair: step number and step inputs.

    Attributes:
      body: the function, which takes the step inputs and the state, and returns the outputs and the new state.
      start: the state before the first step.
    """

    body: core.Body
    start: Any

    def initial_state(self, batch_ref: Any) -> Any:
        """Return `start`, the state before the first step."""
        return self.start

    def step(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Run the user's function for one step of the recurrence; dropout draws new random numbers in each step."""
        number, x = inputs
        (outputs, new), _ = self.body({}, number, x, state)
        return outputs, new


def _checked_step(this: Layer, cell: Callable[..., Any], x: Any, states: Any, kwargs: Any) -> tuple[Any, Any]:
    """Call the user's function for one step, and check its results.

    Args:
      x: the inputs of the step, a pytree of `[batch, ...]`.
      states: a pytree of arrays `[batch, ...]`.
    """
    outputs, new = call_cell(this.name, cell, x, states, kwargs)
    new = next_states(this.name, "states", states, new)
    check_no_sequences(this.name, outputs)
    return jax.tree.map(jnp.asarray, outputs), new
