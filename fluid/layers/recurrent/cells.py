"""Recurrent cells that create no parameters, the loop over time that runs a cell, and checks of arguments."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers import functional
from fluid.layers.base import Layer, array_of, describe
from fluid.layers.kernels.data_format import on_cpu
from fluid.layers.kernels.lookup_table import plus
from fluid.layers.kernels.lstm import lstm_scan

ArrayFunction = Callable[[jax.Array], jax.Array]


class Cell(abc.ABC):
    """One step of a recurrence, with its initial state.

    A cell holds existing weights and creates none, so that JAX can trace `step` inside a loop. `unroll` runs a cell
    over the steps of sequences.
    """

    @abc.abstractmethod
    def initial_state(self, batch_ref: Any) -> Any:
        """Return the state before the first step.

        Args:
          batch_ref: an array `[batch, ...]` with the batch size and the dtype of the state.

        Returns:
          An array `[batch, ...]`, or a pytree of arrays.
        """

    @abc.abstractmethod
    def step(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Take one step of the recurrence.

        Args:
          inputs: an array `[batch, ...]`, or a pytree of arrays.
        """


@dataclass(frozen=True, eq=False)
class StateAsOutput(Cell):
    """A wrapper that outputs the whole state of a cell, for layers that return the state of every step."""

    cell: Cell

    def initial_state(self, batch_ref: Any) -> Any:
        """Return the initial state of the wrapped cell."""
        return self.cell.initial_state(batch_ref)

    def step(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Take one step of the wrapped cell, and return the new state as both output and state."""
        _, new = self.cell.step(inputs, state)
        return new, new


class LSTMState(NamedTuple):
    """The state of an LSTM.

    Attributes:
      hidden: `[batch, width]`; for an LSTM with projection, the projected hidden state `[batch, proj_size]`.
      cell: `[batch, width]`.
    """

    hidden: jax.Array
    cell: jax.Array


@dataclass(frozen=True, eq=False)
class LSTMUnit:
    """The memory cell of an LSTM (Hochreiter and Schmidhuber, 1997) with forget gate and peepholes (Gers et al., 2002).

    The pre-activations `a` are sums of the contributions of input and hidden state. With `c` the cell state:

        i  = gate(a_i + p_i * c)
        f  = gate(a_f + forget_bias + p_f * c)
        c' = f * c + i * candidate(a_g)
        o  = gate(a_o + p_o * c')
        h' = o * output(c')

    Attributes:
      order: the order of the pre-activations: "i", "f" and "o" stand for the input, forget and output gate, "g" for the
        candidate.
      gate: the activation of the three gates.
      candidate: the activation of the candidate.
      output: the activation that is applied to the cell state to compute the hidden state.
      bias: added to the pre-activations, `[4 * width]`; None for no bias.
      peepholes: `p_i`, `p_f` and `p_o`, `[3, width]`; None for an LSTM without peepholes.
      forget_bias: a number, added to the pre-activation of the forget gate.
      clip: the limit of the cell state, which is clipped to the range from `-clip` to `clip`; None for no limit.
    """

    order: str
    gate: ArrayFunction = jax.nn.sigmoid
    candidate: ArrayFunction = jnp.tanh
    output: ArrayFunction = jnp.tanh
    bias: jax.Array | None = None
    peepholes: jax.Array | None = None
    forget_bias: float = 0.0
    clip: float | None = None

    def __call__(self, sums: jax.Array, c: jax.Array) -> LSTMState:
        """Compute the hidden state and the cell state of an LSTM after a step.

        Args:
          sums: the inputs of the activations, without bias and peepholes, `[batch, 4 * width]`, in the order `order`.
          c: the cell state before the step, `[batch, width]`.
        """
        sums = sums if self.bias is None else sums + self.bias
        a = dict(zip(self.order, jnp.split(sums, 4, axis=1), strict=True))
        p_i, p_f, p_o = (None, None, None) if self.peepholes is None else self.peepholes
        if self.forget_bias:
            a["f"] = a["f"] + self.forget_bias
        i = self.gate(_peep(a["i"], p_i, c))
        f = self.gate(_peep(a["f"], p_f, c))
        c = clipped(f * c + i * self.candidate(a["g"]), self.clip)
        o = self.gate(_peep(a["o"], p_o, c))
        return LSTMState(o * self.output(c), c)


@dataclass(frozen=True, eq=False)
class LSTM(Cell):
    """An LSTM cell whose input is already multiplied by its weight.

    Attributes:
      unit: computes the new hidden and cell state from the four pre-activations.
      weight: `[width, 4 * width]`, multiplies the hidden state.
    """

    unit: LSTMUnit
    weight: jax.Array

    def initial_state(self, batch_ref: jax.Array) -> LSTMState:
        """Return a state of zeros: hidden state and cell state, each `[batch, width]`."""
        zeros = jnp.zeros((batch_ref.shape[0], self.weight.shape[0]), batch_ref.dtype)
        return LSTMState(zeros, zeros)

    def step(self, inputs: jax.Array, state: LSTMState) -> tuple[jax.Array, LSTMState]:
        """Take one step of the LSTM, and output the hidden state.

        `inputs`, `[batch, 4 * width]`, is the input times its weight.
        """
        new = self.unit(inputs + state.hidden @ self.weight, state.cell)
        return new.hidden, new


@dataclass(frozen=True, eq=False)
class ProjectedLSTM(Cell):
    """An LSTM cell with a projected hidden state, `r' = activation(h' @ projection)` (Sak et al., 2014).

    Attributes:
      unit: computes the new hidden and cell state from the four pre-activations.
      weight: `[proj_size, 4 * width]`, multiplies the projected hidden state. The input is already multiplied by its
        weight.
      projection: `[width, proj_size]`.
      activation: the activation of the projection.
      clip: the limit of the projection, which is clipped to the range from `-clip` to `clip`; None for no limit.
    """

    unit: LSTMUnit
    weight: jax.Array
    projection: jax.Array
    activation: ArrayFunction
    clip: float | None = None

    def initial_state(self, batch_ref: jax.Array) -> LSTMState:
        """Return zeros for an LSTM: projected hidden state `[batch, proj_size]` and cell state `[batch, width]`."""
        width, proj_size = self.projection.shape
        batch = batch_ref.shape[0]
        return LSTMState(jnp.zeros((batch, proj_size), batch_ref.dtype), jnp.zeros((batch, width), batch_ref.dtype))

    def step(self, inputs: jax.Array, state: LSTMState) -> tuple[jax.Array, LSTMState]:
        """Take one step of the LSTM, and output the projected hidden state.

        `inputs`, `[batch, 4 * width]`, is the input times its weight.
        """
        h, c = self.unit(inputs + state.hidden @ self.weight, state.cell)
        r = clipped(self.activation(h @ self.projection), self.clip)
        return r, LSTMState(r, c)


class GRUGates(NamedTuple):
    """The intermediate values of a GRU step, each `[batch, width]`; `reset_hidden` is reset gate times hidden state."""

    update: jax.Array
    reset: jax.Array
    candidate: jax.Array
    reset_hidden: jax.Array


@dataclass(frozen=True, eq=False)
class GRUUnit:
    """The equations of a gated recurrent unit (Cho et al., 2014), whose state is the hidden state `h`.

    With `a` the pre-activations, the sums of the contributions of input and hidden state:

        u  = gate(a_u)
        r  = gate(a_r)
        c  = candidate(a_c), where r * h contributes to a_c instead of h
        h' = (1 - u) * h + u * c

    Attributes:
      order: the order of the gates in the pre-activations: "u" stands for the update gate, "r" for the reset gate.
      gate: the activation of both gates.
      candidate: the activation of the candidate.
      origin_mode: True for `h' = u * h + (1 - u) * c`, as in the paper.
    """

    order: str = "ur"
    gate: ArrayFunction = jax.nn.sigmoid
    candidate: ArrayFunction = jnp.tanh
    origin_mode: bool = False

    def gates(self, gate_sums: jax.Array, candidate_sums: ArrayFunction, h: jax.Array) -> GRUGates:
        """Compute the two gates of a GRU, update `u` and reset `r`, and the candidate state of one step.

        Args:
          gate_sums: the pre-activations of the gates, `[batch, 2 * width]`, in the order `order`.
          candidate_sums: a function from `r * h` to the pre-activation of the candidate, both `[batch, width]`.
          h: the hidden state before the step, `[batch, width]`.
        """
        gates = dict(zip(self.order, jnp.split(self.gate(gate_sums), 2, axis=1), strict=True))
        reset_hidden = gates["r"] * h
        return GRUGates(gates["u"], gates["r"], self.candidate(candidate_sums(reset_hidden)), reset_hidden)

    def blend(self, gates: GRUGates, h: jax.Array) -> jax.Array:
        """Compute the new hidden state of a GRU: the mean of old state and candidate, weighted by the update gate."""
        u = gates.update
        c = gates.candidate
        if self.origin_mode:
            return u * h + (1 - u) * c
        return (1 - u) * h + u * c


@dataclass(frozen=True, eq=False)
class GRU(Cell):
    """A GRU cell whose input is already multiplied by its weight.

    Attributes:
      gate_weight: `[width, 2 * width]`, multiplies the hidden state for the gates.
      candidate_weight: `[width, width]`, multiplies the reset hidden state for the candidate.
      unit: computes the new hidden state from the pre-activations.
    """

    gate_weight: jax.Array
    candidate_weight: jax.Array
    unit: GRUUnit = GRUUnit()

    def initial_state(self, batch_ref: jax.Array) -> jax.Array:
        """Return a hidden state of zeros, `[batch, width]`."""
        return jnp.zeros((batch_ref.shape[0], self.candidate_weight.shape[0]), batch_ref.dtype)

    def step(self, inputs: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Take one step of the GRU; return the new hidden state twice, as output and as state.

        Args:
          inputs: the input times its weight, `[batch, 3 * width]`.
          state: the old hidden state, `[batch, width]`.
        """
        hidden = self.unit.blend(self.gates(inputs, state), state)
        return hidden, hidden

    def gates(self, inputs: jax.Array, h: jax.Array) -> GRUGates:
        """Compute gates and candidate of a GRU from inputs `[batch, 3 * width]` and the old hidden state `h`."""
        a_gates, a_c = jnp.split(inputs, [self.gate_weight.shape[1]], axis=1)
        return self.unit.gates(a_gates + h @ self.gate_weight, lambda reset: a_c + reset @ self.candidate_weight, h)


def _peep(sums: jax.Array, weight: jax.Array | None, c: jax.Array) -> jax.Array:
    """Add the peephole term of an LSTM, `weight * c`, to the pre-activations `sums` of a gate, `[batch, width]`.

    If `weight` is None, the LSTM has no peepholes, and `sums` stays unchanged.
    """
    return sums if weight is None else sums + weight * c


def clipped(value: jax.Array, limit: float | None) -> jax.Array:
    """Clip a value to the range from `-limit` to `limit`; return the value unchanged if there is no limit."""
    return jnp.clip(value, -limit, limit) if limit else value


def unroll(
    cell: Cell, inputs: Any, state: Any, lengths: jax.Array | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Run a cell over the first axis of its inputs, in one loop on the device for any number of steps.

    Args:
      inputs: an array `[time, batch, ...]`, or a pytree of arrays; the cell gets one step `[batch, ...]` at a time.
      state: the state before the first step, a pytree of arrays `[batch, ...]`.
      lengths: the number of steps of each row, integers `[batch]`; after its end, a row keeps its state. None if all
        steps count.

    Returns:
      The outputs of all steps, `[time, batch, ...]`, and the state after the last step.
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
    """Run a recurrent cell over all steps of a batch of sequences; values in the padding have no effect.

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
    """Return the LSTM inside `cell` if the faster function `lstm_scan` can run this LSTM; else None.

    `lstm_scan` is used only in training on a CPU. It can run only an LSTM with the usual activations (sigmoid for the
    gates, else tanh), and without a limit of the cell state.
    """
    found = cell.cell if isinstance(cell, StateAsOutput) else None
    if not isinstance(found, LSTM) or not on_cpu() or core.current_frame("layers").mode != core.TRAIN:
        return None
    unit = found.unit
    usual = unit.gate is jax.nn.sigmoid and unit.candidate is jnp.tanh and unit.output is jnp.tanh
    dtypes = {array.dtype for array in jax.tree.leaves((batch.data, state, found.weight))}
    plain = not unit.forget_bias and unit.clip is None and len(dtypes) == 1
    return found if usual and plain and batch.data.shape[1] else None


def numbered(inputs: Any) -> tuple[Any, Any]:
    """Pair step numbers `[time]` with the inputs of all steps, for cells that draw new random numbers in each step."""
    time = jax.tree.leaves(inputs)[0].shape[0]
    return jnp.arange(time, dtype=jnp.int32), inputs


def kept(rows: jax.Array, old: Any, new: Any) -> Any:
    """Return the state after a step, but keep the old state for rows that have ended.

    Args:
      rows: bool `[batch]` or `[batch, beam]`: the rows that keep the old state.
    """

    def choose(before: jax.Array, after: jax.Array) -> jax.Array:
        if before.shape[: rows.ndim] != rows.shape:
            return after
        return jnp.where(rows.reshape(*rows.shape, *[1] * (before.ndim - rows.ndim)), before, after)

    return jax.tree.map(choose, old, new)


def width_of(this: Layer, size: Any, gates: int) -> int:
    """Return the width of the hidden state, which is `size` divided by the number of gates.

    Raises:
      ArgumentError: the size is not a positive multiple of the number of gates.
    """
    size = core.whole_number(this.name, "size", size, least=gates)
    if size % gates:
        raise errors.ArgumentError(
            f"{this.name}(size={size}): expected {gates} times the width of the hidden state, as in "
            f"size={(size // gates + 1) * gates}"
        )
    return size // gates


def projected(this: Layer, value: Value, size: int) -> core.SequenceBatch:
    """Check that the input of a recurrence is a sequence batch `[batch, time, size]`, and return it.

    Raises:
      ShapeError: the input is not a sequence batch of this size.
    """
    if not isinstance(value, core.SequenceBatch) or value.data.ndim != 3 or value.shape[2] != size:
        found = "a sequence batch" if isinstance(value, core.SequenceBatch) else "an array"
        raise errors.ShapeError(
            f"{this.name} takes a sequence batch [batch, time, {size}], found {found} {describe(value)}; project it "
            f"first: x = fluid.layers.fc(x, size={size})"
        )
    core.check_not_changed(this.frame, value)
    return value


def with_bias(x: core.SequenceBatch, bias: jax.Array) -> core.SequenceBatch:
    """Add a bias to the projected input of a recurrence, `[batch, time, size]`; the bias has `size` numbers."""
    return x.with_data(plus(x.data, bias.reshape(-1)))


def starting_state(this: Layer, cell: Cell, batch: core.SequenceBatch, **given: Value | None) -> Any:
    """Return the initial state of a recurrence over sequences: the user's arrays, or zeros by default.

    Args:
      batch: the projected input, `[batch, time, ...]`.
      given: the user's initial values by argument name, such as `h_0`, in the order of the arrays of the state; None
        stands for zeros.

    Raises:
      ShapeError: a given value has the wrong shape.
    """
    zeros, structure = jax.tree.flatten(cell.initial_state(batch.data))
    arrays = [
        zero if value is None else given_state(this, value, zero.shape, zero.dtype, argument)
        for (argument, value), zero in zip(given.items(), zeros, strict=True)
    ]
    return jax.tree.unflatten(structure, arrays)


def given_state(this: Layer, value: Value | None, shape: tuple[int, ...], dtype: Any, argument: str) -> jax.Array:
    """Return the initial state that the user passed, as an array of the given shape and dtype; zeros for None.

    Raises:
      ShapeError: the value has another shape.
    """
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


def array_of_shape(this: Layer, value: Value, *shape: int | str) -> jax.Array:
    """Return the array of a value after checking its shape; a name in `shape`, such as "batch", allows any size.

    Raises:
      ShapeError: the value has another shape, or is a sequence batch.
    """
    array = array_of(this, value)
    fits = (isinstance(want, str) or want == got for want, got in zip(shape, array.shape, strict=False))
    if array.ndim != len(shape) or not all(fits):
        sizes = ", ".join("batch" if size == this.frame.placeholder_batch else str(size) for size in shape)
        change = "flatten(x)" if isinstance(shape[-1], str) else f"fc(x, size={shape[-1]})"
        raise errors.ShapeError(
            f"{this.name} was given {describe(value)}, expected [{sizes}]; project it first: x = fluid.layers.{change}"
        )
    return array


def to_activation(act: functional.Activation) -> Callable[[Any], Any]:
    """Return the function of an activation; "identity" and None return a function that changes nothing.

    Raises:
      ArgumentError: there is no activation of this name.
    """
    if act is None or act == "identity":
        return lambda value: value
    return functional.activation(act)
