"""The time loop of all recurrent layers, in which rows that have ended keep their state."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core
from fluid.layers.kernels.lstm import lstm_scan
from fluid.layers.kernels.platform import on_cpu
from fluid.layers.recurrent.cells import LSTM, Cell, LSTMState, StateAsOutput


def unroll(
    cell: Cell, inputs: Any, state: Any, lengths: jax.Array | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Run a cell over the first axis of its inputs, in one loop on the device for any number of steps.

    Args:
      cell: the cell of each step.
      inputs: an array `[time, batch, ...]`, or a pytree of several; the cell gets one slice at a time.
      state: the state before the first step, of arrays `[batch, ...]`.
      lengths: integers `[batch]`: a row keeps its state in the steps after its end. None if all steps count.
      reverse: whether to run from the last step to the first; each row then starts at its own last step.

    Returns:
      The outputs of all steps, `[time, batch, ...]`, and the state after the last one.
    """
    time = jax.tree.leaves(inputs)[0].shape[0]

    def step(state: Any, now: tuple[Any, Any]) -> tuple[Any, Any]:
        number, x = now
        outputs, new = cell.step(x, state)
        if lengths is not None:
            new = kept(number >= lengths, state, new)
        return new, outputs

    last, outputs = jax.lax.scan(step, state, (jnp.arange(time, dtype=jnp.int32), inputs), reverse=reverse)
    return outputs, last


def unroll_rows(cell: Cell, batch: core.SequenceBatch, state: Any, reverse: bool = False) -> Any:
    """Run a cell over the steps of sequences `[batch, time, ...]`, ignoring the values in their padding.

    Returns:
      The outputs of all steps, as SequenceBatches `[batch, time, ...]`.
    """
    lstm = None if reverse else _usual_lstm(cell, batch, state)
    if lstm is not None:
        unit = lstm.unit
        states = lstm_scan(unit.order, batch.data, batch.lengths, lstm.weight, unit.bias, unit.peepholes, *state)
        return jax.tree.map(batch.with_data, LSTMState(*states))
    outputs, _ = unroll(cell, jnp.swapaxes(core.filled(batch, 0), 0, 1), state, batch.lengths, reverse)
    return jax.tree.map(lambda steps: batch.with_data(jnp.swapaxes(steps, 0, 1)), outputs)


def _usual_lstm(cell: Cell, batch: core.SequenceBatch, state: Any) -> LSTM | None:
    """Return the LSTM inside `cell` if `lstm_scan` computes it, in training on a CPU; else None."""
    found = cell.cell if isinstance(cell, StateAsOutput) else None
    if not isinstance(found, LSTM) or not on_cpu() or core.current_frame("layers").mode != core.TRAIN:
        return None
    unit = found.unit
    usual = unit.gate is jax.nn.sigmoid and unit.candidate is jnp.tanh and unit.output is jnp.tanh
    dtypes = {array.dtype for array in jax.tree.leaves((batch.data, state, found.weight))}
    plain = not unit.forget_bias and unit.clip is None and len(dtypes) == 1
    return found if usual and plain and batch.data.shape[1] else None


def numbered(inputs: Any) -> tuple[Any, Any]:
    """Pair inputs `[time, ...]` with the number of each step, for cells that draw new random numbers in each step."""
    time = jax.tree.leaves(inputs)[0].shape[0]
    return jnp.arange(time, dtype=jnp.int32), inputs


def kept(rows: jax.Array, old: Any, new: Any) -> Any:
    """Return the state after a step, with the old state for the rows that have ended.

    Args:
      rows: bool `[batch]` or `[batch, beam]`: the rows that keep the old state.
      old: a pytree of arrays.
      new: the same pytree after the step.

    Returns:
      The pytree of states. Arrays that do not begin with the dimensions of `rows`, such as a step count, are new.
    """

    def choose(before: jax.Array, after: jax.Array) -> jax.Array:
        if before.shape[: rows.ndim] != rows.shape:
            return after
        return jnp.where(rows.reshape(*rows.shape, *[1] * (before.ndim - rows.ndim)), before, after)

    return jax.tree.map(choose, old, new)
