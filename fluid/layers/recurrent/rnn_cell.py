"""`RNNCell`: one step of a recurrence as an object, run by `rnn` and decoders."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import dense, is_sequence, layer
from fluid.layers.checks import dtype_of


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
        pass  # the decorator checks that cells are created in a program function

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Take one step with `call`."""
        return self.call(inputs, states, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """Take one step; a subclass defines `call(self, inputs, states)`, with more arguments if needed.

        Args:
          args: the inputs, and the states before the step; each an array `[batch, ...]` or a pytree of several.
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
          dtype: the dtype of the states, or a pytree of one for each; `state_dtype` by default. If
            `state_dtype` is None, the dtype of `batch_ref`, or float32 if `batch_ref` holds no floats.
          init_value: the number that fills the states.
          batch_dim_idx: the batch dimension of an array `batch_ref`; for a sequence batch it is always the first.

        Returns:
          Arrays `[batch, *shape]` in the structure of `shape`.

        Raises:
          ArgumentError: a shape is no list of positive integers, or `batch_ref` holds no value.
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
        """The dtype of the states, or a pytree of one for each; None for the dtype of the inputs."""
        return None


def _first_value(batch_ref: Any) -> Any:
    """Return the first array or sequence batch of a pytree.

    Raises:
      ArgumentError: the pytree is empty.
    """
    values = jax.tree.leaves(batch_ref, is_leaf=is_sequence)
    if not values:
        raise errors.ArgumentError(
            f"get_initial_states was given batch_ref={batch_ref!r}, which has no batch size; give it a value of the "
            f"program: cell.get_initial_states(x)"
        )
    return values[0] if is_sequence(values[0]) else dense(values[0])


def _is_shape(value: Any) -> bool:
    """Return whether a value is the shape of one state, rather than a pytree of several shapes."""
    return isinstance(value, list | tuple) and all(isinstance(size, int | np.integer) for size in value)


def _without_batch(sizes: Any) -> list[int]:
    """Return the sizes of a state without the batch.

    Raises:
      ArgumentError: the sizes are no positive integers.
    """
    if not _is_shape(sizes):
        raise errors.ArgumentError(
            f"a state of an RNNCell has the shape {sizes!r}; expected a list of integers, as in state_shape = [4]"
        )
    rest = list(sizes[1:] if sizes and sizes[0] == -1 else sizes)
    return [core.whole_number("RNNCell", "shape", size) for size in rest]
