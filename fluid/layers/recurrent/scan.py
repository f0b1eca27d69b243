"""What all recurrent layers share: one scan over time that leaves ended rows alone."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers import functional
from fluid.layers.base import Layer, array_of, dense, describe

# step(turn, states, inputs of one step) -> (new states, outputs of this step)
Step = Callable[[Any, Any, Any], tuple[Any, Any]]


def scan_time(step: Step, states: Any, inputs: Any, lengths: Any = None, reverse: bool = False) -> tuple[Any, Any]:
    """Run a recurrence over the first axis of its inputs.

    Args:
      step: called with the number of the step, the states and the inputs at that step.
      states: initial states, each `[batch, ...]` when there are lengths.
      inputs: arrays `[time, ...]`.
      lengths: `[batch]`: a row keeps its states in steps behind its length; None when all steps count.
      reverse: from the last step to the first; each row then starts at its own last step.

    Returns:
      The last states, and the outputs `[time, ...]`.
    """
    time = jax.tree.leaves(inputs)[0].shape[0]

    def turn(states: Any, at: tuple[Any, Any]) -> tuple[Any, Any]:
        number, x = at
        new, outputs = step(number, states, x)
        if lengths is not None:
            new = jax.tree.map(lambda n, old: jnp.where(_spread(number < lengths, n), n, old), new, states)
        return new, outputs

    return jax.lax.scan(turn, states, (jnp.arange(time, dtype=jnp.int32), inputs), reverse=reverse)


def _spread(flags: Any, like: Any) -> Any:
    return flags.reshape(*flags.shape, *[1] * (like.ndim - flags.ndim))


def scan_rows(cell: Callable[[Any, Any], Any], states: Any, x: core.SequenceBatch, reverse: bool) -> Any:
    """The states behind each step, as `[batch, time, ...]`, of a cell that maps states and inputs to new states."""

    def step(turn: Any, states: Any, inputs: Any) -> tuple[Any, Any]:
        new = cell(states, inputs)
        return new, new

    data = jnp.swapaxes(x.data, 0, 1)
    outputs = scan_time(step, states, data, x.lengths, reverse)[1]
    return jax.tree.map(lambda v: jnp.swapaxes(v, 0, 1), outputs)


def width_of(this: Layer, size: Any, gates: int) -> int:
    """Check a size that counts all gates; returns the width of the hidden state.

    Raises:
      ArgumentError: it is not a multiple of the number of gates.
    """
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or size % gates:
        times = f"{gates} times the width of the hidden state" if gates > 1 else "the width of the hidden state"
        raise errors.ArgumentError(f"{this.name}: size={size!r}; expected {times}, as in size={gates * 32}")
    return size // gates


def projected(this: Layer, value: Any, size: int) -> core.SequenceBatch:
    """Check the input of a recurrence; returns it with zeros for its padding.

    Raises:
      ShapeError: it is no SequenceBatch `[batch, time, size]`.
    """
    if not isinstance(value, core.SequenceBatch) or value.data.ndim != 3 or value.shape[2] != size:
        found = "a sequence batch" if isinstance(value, core.SequenceBatch) else "an array"
        raise errors.ShapeError(
            f"{this.name} takes a sequence batch [batch, time, {size}], found {found} {describe(value)}; project it "
            f"first: x = fluid.layers.fc(x, size={size})"
        )
    return value.with_data(dense(value))


def initial(this: Layer, value: Any, shape: tuple[int, ...], dtype: Any, argument: str) -> Any:
    """The initial state that was given, or zeros."""
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


def checked(this: Layer, value: Any, *shape: int | None) -> Any:
    """The array of a value that must have this shape; None stands for any size."""
    array = array_of(this, value)
    if array.ndim != len(shape) or any(want not in (None, got) for want, got in zip(shape, array.shape, strict=True)):
        sizes = ", ".join("batch" if d in (None, this.frame.placeholder_batch) else str(d) for d in shape)
        raise errors.ShapeError(
            f"{this.name} was given {describe(value)}, expected [{sizes}]; project it first: "
            f"x = fluid.layers.fc(x, size={shape[-1]})"
        )
    return array


def activation(act: Any) -> Callable[[Any], Any]:
    """The function behind the name of an activation; "identity" and None leave values as they are."""
    return dense if act in (None, "identity") else functional.activation(act)


def clipped(value: Any, limit: float | None) -> Any:
    """A value held between -limit and limit; as it is where there is no limit."""
    return jnp.clip(value, -limit, limit) if limit else value
