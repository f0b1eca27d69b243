"""Cells: one step of a recurrence each, as pure functions of the inputs of that step and of the state before it."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

ArrayFunction = Callable[[jax.Array], jax.Array]


class Cell(abc.ABC):
    """One step of a recurrence, and the state in which the recurrence starts.

    A cell holds its weights and creates none, so that a loop on the device may trace it. `scan.unroll` runs it over
    time.
    """

    @abc.abstractmethod
    def initial_state(self, batch_ref: Any) -> Any:
        """The state before the first step.

        Args:
          batch_ref: an array `[batch, ...]`, whose batch size and dtype the state has.

        Returns:
          An array `[batch, ...]`, or a pytree of several.
        """

    @abc.abstractmethod
    def step(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """Take one step.

        Args:
          inputs: an array `[batch, ...]`, or a pytree of several.
          state: what `initial_state` or the step before returned.

        Returns:
          The outputs of the step, and the state after it, of the same structure, shapes and dtypes as the one before.
        """


@dataclass(frozen=True, eq=False)
class StateAsOutput(Cell):
    """Another cell whose outputs are replaced by its whole state, for layers that return the state of every step."""

    cell: Cell

    def initial_state(self, batch_ref: Any) -> Any:
        """The state of the other cell."""
        return self.cell.initial_state(batch_ref)

    def step(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """A step of the other cell; its new state twice."""
        _, new = self.cell.step(inputs, state)
        return new, new


class LSTMState(NamedTuple):
    """What one step of an LSTM hands to the next.

    Attributes:
      hidden: `[batch, width]`; of an LSTM with projection, the projected hidden state `[batch, proj_size]`.
      cell: `[batch, width]`.
    """

    hidden: jax.Array
    cell: jax.Array


@dataclass(frozen=True, eq=False)
class LSTMUnit:
    """The memory cell of an LSTM (Hochreiter and Schmidhuber, 1997) with forget gate and peepholes (Gers et al., 2002).

    With `a` the sums of what the input and the hidden state contribute, and `c` the cell state:

        i  = gate(a_i + p_i * c)
        f  = gate(a_f + forget_bias + p_f * c)
        c' = f * c + i * candidate(a_g)
        o  = gate(a_o + p_o * c')
        h' = o * output(c')

    Attributes:
      order: in which order the sums come: "i", "f" and "o" stand for the input, forget and output gate, "g" for the
        candidate.
      gate: the activation of the three gates.
      candidate: the activation of the candidate.
      output: the activation of the cell state in the hidden state.
      bias: is added to the sums, `[4 * width]`; None for no bias.
      peepholes: `p_i`, `p_f` and `p_o`, `[3, width]`; None for an LSTM without peepholes.
      forget_bias: a number.
      clip: the cell state is held between `-clip` and `clip`; None for no limit.
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
        """The state after a step.

        Args:
          sums: `[batch, 4 * width]`.
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
    """Long short-term memory whose input is projected already.

    Attributes:
      unit: the equations from the sums to the state.
      weight: `[width, 4 * width]`, for the hidden state.
    """

    unit: LSTMUnit
    weight: jax.Array

    def initial_state(self, batch_ref: jax.Array) -> LSTMState:
        """Zeros, twice `[batch, width]`."""
        zeros = jnp.zeros((batch_ref.shape[0], self.weight.shape[0]), batch_ref.dtype)
        return LSTMState(zeros, zeros)

    def step(self, inputs: jax.Array, state: LSTMState) -> tuple[jax.Array, LSTMState]:
        """From the projected input `[batch, 4 * width]` to the hidden state `[batch, width]`."""
        new = self.unit(inputs + state.hidden @ self.weight, state.cell)
        return new.hidden, new


@dataclass(frozen=True, eq=False)
class ProjectedLSTM(Cell):
    """An LSTM whose hidden state is projected to fewer numbers, `r' = activation(h' @ projection)` (Sak et al., 2014).

    Attributes:
      unit: the equations from the sums to the state.
      weight: `[proj_size, 4 * width]`, for the projected hidden state.
      projection: `[width, proj_size]`.
      activation: of the projection.
      clip: the projection is held between `-clip` and `clip`; None for no limit.
    """

    unit: LSTMUnit
    weight: jax.Array
    projection: jax.Array
    activation: ArrayFunction
    clip: float | None = None

    def initial_state(self, batch_ref: jax.Array) -> LSTMState:
        """Zeros, `[batch, proj_size]` and `[batch, width]`."""
        width, proj_size = self.projection.shape
        batch = batch_ref.shape[0]
        return LSTMState(jnp.zeros((batch, proj_size), batch_ref.dtype), jnp.zeros((batch, width), batch_ref.dtype))

    def step(self, inputs: jax.Array, state: LSTMState) -> tuple[jax.Array, LSTMState]:
        """From the projected input `[batch, 4 * width]` to the projected hidden state `[batch, proj_size]`."""
        h, c = self.unit(inputs + state.hidden @ self.weight, state.cell)
        r = clipped(self.activation(h @ self.projection), self.clip)
        return r, LSTMState(r, c)


class GRUGates(NamedTuple):
    """What a GRU computes before its new hidden state; each `[batch, width]`."""

    update: jax.Array
    reset: jax.Array
    candidate: jax.Array
    reset_hidden: jax.Array


@dataclass(frozen=True, eq=False)
class GRUUnit:
    """The equations of a gated recurrent unit (Cho et al., 2014), whose state is the hidden state `h`.

    With `a` the sums of what the input and the hidden state contribute:

        u  = gate(a_u)
        r  = gate(a_r)
        c  = candidate(a_c), where r * h contributes to a_c instead of h
        h' = (1 - u) * h + u * c

    Attributes:
      order: in which order the sums of the gates come: "u" stands for the update gate, "r" for the reset gate.
      gate: the activation of both gates.
      candidate: the activation of the candidate.
      origin_mode: True for `h' = u * h + (1 - u) * c`, which is how the paper has it.
    """

    order: str = "ur"
    gate: ArrayFunction = jax.nn.sigmoid
    candidate: ArrayFunction = jnp.tanh
    origin_mode: bool = False

    def gates(self, gate_sums: jax.Array, candidate_sums: ArrayFunction, h: jax.Array) -> GRUGates:
        """Both gates and the candidate of a step.

        Args:
          gate_sums: `[batch, 2 * width]`.
          candidate_sums: from `r * h` to the sums of the candidate, both `[batch, width]`.
          h: the hidden state before the step, `[batch, width]`.
        """
        gates = dict(zip(self.order, jnp.split(self.gate(gate_sums), 2, axis=1), strict=True))
        reset_hidden = gates["r"] * h
        return GRUGates(gates["u"], gates["r"], self.candidate(candidate_sums(reset_hidden)), reset_hidden)

    def blend(self, gates: GRUGates, h: jax.Array) -> jax.Array:
        """The hidden state after a step: a mean of the one before it and the candidate, weighted by the update gate."""
        u = gates.update
        c = gates.candidate
        if self.origin_mode:
            return u * h + (1 - u) * c
        return (1 - u) * h + u * c


@dataclass(frozen=True, eq=False)
class GRU(Cell):
    """Gated recurrent unit whose input is projected already.

    Attributes:
      gate_weight: `[width, 2 * width]`, for the hidden state in the sums of the gates.
      candidate_weight: `[width, width]`, for the reset hidden state in the sums of the candidate.
      unit: the equations from the sums to the hidden state.
    """

    gate_weight: jax.Array
    candidate_weight: jax.Array
    unit: GRUUnit = GRUUnit()

    def initial_state(self, batch_ref: jax.Array) -> jax.Array:
        """Zeros, `[batch, width]`."""
        return jnp.zeros((batch_ref.shape[0], self.candidate_weight.shape[0]), batch_ref.dtype)

    def step(self, inputs: jax.Array, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        """From the projected input `[batch, 3 * width]` to the hidden state `[batch, width]`."""
        hidden = self.unit.blend(self.gates(inputs, state), state)
        return hidden, hidden

    def gates(self, inputs: jax.Array, h: jax.Array) -> GRUGates:
        """Both gates and the candidate of a step, from `[batch, 3 * width]` and the hidden state before it."""
        a_gates, a_c = jnp.split(inputs, [self.gate_weight.shape[1]], axis=1)
        return self.unit.gates(a_gates + h @ self.gate_weight, lambda reset: a_c + reset @ self.candidate_weight, h)


def _peep(sums: jax.Array, weight: jax.Array | None, c: jax.Array) -> jax.Array:
    """The sums `[batch, width]` of a gate with what it sees of the cell state through its peephole, if it has one."""
    return sums if weight is None else sums + weight * c


def clipped(value: jax.Array, limit: float | None) -> jax.Array:
    """A value held between `-limit` and `limit`; as it is where there is no limit."""
    return jnp.clip(value, -limit, limit) if limit else value
