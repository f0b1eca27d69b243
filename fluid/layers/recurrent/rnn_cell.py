"""`RNNCell`: one step of a recurrence as an object, which `rnn` and decoders run."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import dense, is_sequence, layer
from fluid.layers.checks import dtype_of


class RNNCell:
    """One step of a recurrence: the base class of `GRUCell`, `LSTMCell` and of your own cells.

    A subclass defines `call`, which may call layers. If it also defines `state_shape`, `layers.rnn` and the decoders
    can make the states that it starts with. The parameters of layers that `call` calls are created once for each loop.
    To share them between two loops, such as one that trains and one that decodes, name them with ParamAttr.

    Args:
      The base class has none; a subclass takes what it needs.

    Returns:
      A cell. Called with the inputs of a step and the states before it, `cell(inputs, states)` is `call`.

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
        pass  # the decorator sees to it that cells are made in a program function

    def __call__(self, inputs: Any, states: Any, **kwargs: Any) -> tuple[Any, Any]:
        """One step, see `call`."""
        return self.call(inputs, states, **kwargs)

    def call(self, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
        """One step; a subclass defines it as `call(self, inputs, states)`, with more arguments if it needs them.

        Args:
          args: the inputs, an array `[batch, ...]` or a pytree of several; and the states before the step, likewise.
          kwargs: what else `layers.rnn` or `layers.dynamic_decode` was given.

        Returns:
          The outputs of the step; and the new states, of the same structure and shapes as the old ones.

        Raises:
          ProgramError: the subclass does not define it.
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
        """States to start with, all of one value.

        Args:
          batch_ref: a value, or a pytree of values, whose batch size the states have.
          shape: the sizes of the state without the batch (-1 may stand for it at the front), or a pytree of such lists;
            `state_shape` by default.
          dtype: of the states, or a pytree of one for each; `state_dtype` by default, and without that the dtype of
            `batch_ref`, or float32 if that holds no floats.
          init_value: what the states are filled with.
          batch_dim_idx: which dimension of an array `batch_ref` is the batch; of a sequence batch it is the first.

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
        """The sizes of the state without the batch, or a pytree of such lists, such as `[[4], [4]]`.

        Raises:
          ProgramError: the subclass does not define it.
        """
        name = type(self).__name__
        raise errors.ProgramError(
            f"{name} has no state_shape, so that its initial states are not known; define it, as in state_shape = [4], "
            f"or give them: layers.rnn(cell, x, initial_states=h), cell.get_initial_states(x, shape=[4])"
        )

    @property
    def state_dtype(self) -> Any:
        """The dtype of the states, or a pytree of one for each; None for that of the inputs."""
        return None


def _first_value(batch_ref: Any) -> Any:
    """The first array or sequence batch of a pytree.

    Raises:
      ArgumentError: there is none.
    """
    values = jax.tree.leaves(batch_ref, is_leaf=is_sequence)
    if not values:
        raise errors.ArgumentError(
            f"get_initial_states was given batch_ref={batch_ref!r}, which has no batch size; give it a value of the "
            f"program: cell.get_initial_states(x)"
        )
    return values[0] if is_sequence(values[0]) else dense(values[0])


def _is_shape(value: Any) -> bool:
    """Whether a value is the shape of one state, rather than a pytree of several."""
    return isinstance(value, list | tuple) and all(isinstance(size, int | np.integer) for size in value)


def _without_batch(sizes: Any) -> list[int]:
    """The sizes of a state that follow the batch.

    Raises:
      ArgumentError: they are no positive integers.
    """
    if not _is_shape(sizes):
        raise errors.ArgumentError(
            f"a state of an RNNCell has the shape {sizes!r}; expected a list of integers, as in state_shape = [4]"
        )
    rest = list(sizes[1:] if sizes and sizes[0] == -1 else sizes)
    return [core.whole_number("RNNCell", "shape", size) for size in rest]
