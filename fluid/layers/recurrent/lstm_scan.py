"""The loop over time of an LSTM with the usual activations, whose gradient is written out: for training on a CPU.

JAX's gradient of a loop adds to that of the weight in every step, and keeps many arrays of every step. This one keeps
the gates and the states, and gets the gradient of the weight from one matrix product behind the loop.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from fluid import core
from fluid.layers.recurrent.cells import LSTM, Cell, LSTMState, StateAsOutput


def usual_lstm(cell: Cell, inputs: Any, state: Any) -> LSTM | None:
    """The LSTM of which all states are asked for, if `lstm_scan` computes it; else None.

    Args:
      cell: what each step does.
      inputs: its inputs, of all steps.
      state: in which it starts.
    """
    found = cell.cell if isinstance(cell, StateAsOutput) else None
    if not isinstance(found, LSTM) or jax.default_backend() != "cpu":
        return None
    unit = found.unit
    usual = unit.gate is jax.nn.sigmoid and unit.candidate is jnp.tanh and unit.output is jnp.tanh
    dtypes = {array.dtype for array in jax.tree.leaves((inputs, state, found.weight))}
    training = core.current_frame("layers").mode == core.TRAIN
    return found if usual and training and not unit.forget_bias and unit.clip is None and len(dtypes) == 1 else None


def lstm_scan(cell: LSTM, sums: jax.Array, start: LSTMState) -> LSTMState:
    """The states of an LSTM after each step.

    Args:
      cell: with the usual activations, see `usual_lstm`.
      sums: the projected input, `[time, batch, 4 * width]`.
      start: the state before the first step, `[batch, width]` each.

    Returns:
      Hidden states and cell states, `[time, batch, width]` each.
    """
    unit = cell.unit
    peepholes = jnp.zeros((3, cell.weight.shape[0]), sums.dtype) if unit.peepholes is None else unit.peepholes
    steps = functools.partial(_states, unit.order, unit.peepholes is not None)
    return LSTMState(*steps(sums, cell.weight, peepholes, *start))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _states(order: str, peeps: bool, sums: Any, weight: Any, peepholes: Any, h_0: Any, c_0: Any) -> Any:
    """Hidden and cell states; see `lstm_scan`."""
    return _run(order, peeps, sums, weight, peepholes, h_0, c_0)[:2]


def _run(order: str, peeps: bool, sums: Any, weight: Any, peepholes: Any, h_0: Any, c_0: Any) -> Any:
    """Hidden states, cell states, and gates `[time, batch, 4 * width]` with the candidate in the order of the sums."""
    p_i, p_f, p_o = peepholes

    def step(state: Any, now: Any) -> Any:
        h, c = state
        a = dict(zip(order, jnp.split(now + h @ weight, 4, axis=1), strict=True))
        i = jax.nn.sigmoid(a["i"] + p_i * c if peeps else a["i"])
        f = jax.nn.sigmoid(a["f"] + p_f * c if peeps else a["f"])
        g = jnp.tanh(a["g"])
        c = f * c + i * g
        o = jax.nn.sigmoid(a["o"] + p_o * c if peeps else a["o"])
        h = o * jnp.tanh(c)
        gates = {"i": i, "f": f, "g": g, "o": o}
        return (h, c), (h, c, jnp.concatenate([gates[name] for name in order], axis=1))

    return jax.lax.scan(step, (h_0, c_0), sums)[1]


def _forward(order: str, peeps: bool, *primals: Any) -> Any:
    sums, weight, peepholes, h_0, c_0 = (primal.value for primal in primals)
    hidden, cells, gates = _run(order, peeps, sums, weight, peepholes, h_0, c_0)
    return (hidden, cells), (hidden, cells, gates, weight, peepholes, h_0, c_0)


def _backward(order: str, peeps: bool, saved: Any, slopes: Any) -> Any:
    hidden, cells, gates, weight, peepholes, h_0, c_0 = saved
    p_i, p_f, p_o = peepholes
    previous = _before(cells, c_0)
    given = [None if isinstance(slope, SymbolicZero) else slope for slope in slopes]

    def step(state: Any, now: Any) -> Any:
        dh, dc = state
        (dh_here, dc_here), gates, c, c_before = now
        i, f, g, o = (dict(zip(order, jnp.split(gates, 4, axis=1), strict=True))[name] for name in "ifgo")
        squashed = jnp.tanh(c)
        dh = dh if dh_here is None else dh + dh_here
        dc = dc if dc_here is None else dc + dc_here
        d_o = dh * squashed * o * (1 - o)
        dc = dc + dh * o * (1 - squashed * squashed) + (d_o * p_o if peeps else 0)
        d = {"i": dc * g * i * (1 - i), "f": dc * c_before * f * (1 - f), "g": dc * i * (1 - g * g), "o": d_o}
        d_sums = jnp.concatenate([d[name] for name in order], axis=1)
        dc = dc * f + (d["i"] * p_i + d["f"] * p_f if peeps else 0)
        return (d_sums @ weight.T, dc), d_sums

    zeros = (jnp.zeros_like(h_0), jnp.zeros_like(c_0))
    (dh, dc), d_sums = jax.lax.scan(step, zeros, (given, gates, cells, previous), reverse=True)
    flat = d_sums.reshape(-1, d_sums.shape[-1])
    d_weight = _before(hidden, h_0).reshape(-1, weight.shape[0]).T @ flat
    if not peeps:
        return d_sums, d_weight, jnp.zeros_like(peepholes), dh, dc
    parts = dict(zip(order, jnp.split(d_sums, 4, axis=2), strict=True))
    seen = {"i": previous, "f": previous, "o": cells}
    d_peepholes = jnp.stack([jnp.sum(parts[name] * seen[name], axis=(0, 1)) for name in "ifo"])
    return d_sums, d_weight, d_peepholes, dh, dc


_states.defvjp(_forward, _backward, symbolic_zeros=True)


def _before(states: jax.Array, start: jax.Array) -> jax.Array:
    """The state before each step, of the states after each step `[time, batch, width]`."""
    return jnp.concatenate([start[None], states[:-1]])
