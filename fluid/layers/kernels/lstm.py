"""Time loop of an LSTM with the default activations and a hand-written gradient, for training on a CPU.

JAX's gradient of a loop updates the gradient of the weight in every step, and stores many arrays per step. The
hand-written gradient stores only gates and states, and computes the gradient of the weight by one matrix product after
the loop. In this module, sums are the pre-activations of the gates. One buffer first holds the sums of all steps, then
the gates, then the gradients of the sums. One buffer is faster than three, because a CPU waits longest for memory
outside its caches. `benchmarks/KERNELS.md` has the figures: an LSTM of width 128 takes 77 ms with `jax.lax.scan`, and
42 ms with this loop.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero


def lstm_scan(
    order: str,
    sums: jax.Array,
    lengths: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    peepholes: jax.Array | None,
    hidden: jax.Array,
    cell: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Compute the hidden states and cell states of an LSTM after each step.

    Args:
      order: the order of the four parts of `sums`: "i", "f" and "o" stand for the input, forget and output gate, "g"
        for the candidate.
      sums: the projected input, `[batch, time, 4 * width]`, to which each step adds the projected hidden state and the
        bias; its padding is ignored.
      lengths: the number of steps of each row, integers `[batch]`.
      weight: the projection of the hidden state, `[width, 4 * width]`.
      bias: the bias of the sums, `[4 * width]`, or None.
      peepholes: weights of the cell state in the input, forget and output gate, `[3, width]`, or None.
      hidden: the hidden state before the first step, `[batch, width]`.
      cell: the cell state before the first step, `[batch, width]`.

    Returns:
      Hidden states and cell states, `[batch, time, width]` each. The states after the end of a row are finite; no layer
      reads them, so their gradients are 0.
    """
    given_bias = jnp.zeros(sums.shape[2], sums.dtype) if bias is None else bias
    given_peepholes = jnp.zeros((3, weight.shape[0]), sums.dtype) if peepholes is None else peepholes
    states = functools.partial(_states, order, peepholes is not None)
    return states(sums, lengths, weight, given_bias, given_peepholes, hidden, cell)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _states(order: str, peeps: bool, *given: Any) -> Any:
    """Compute the hidden and cell states of an LSTM, `[batch, time, width]` each, with a hand-written gradient.

    `peeps` is True if the LSTM has peepholes. `given` holds the array arguments of `lstm_scan`, in their order.
    """
    hidden, cells, _ = _run(order, peeps, *given)
    return hidden[:, 1:], cells[:, 1:]


def _run(
    order: str, peeps: bool, sums: Any, lengths: Any, weight: Any, bias: Any, peepholes: Any, h_0: Any, c_0: Any
) -> Any:
    """Compute the hidden states, the cell states and the gates of all steps of an LSTM.

    Hidden and cell states are `[batch, time + 1, width]`: the initial state, and then the state after each step. The
    gates and the candidate are one array `[batch, time, 4 * width]`; `order` gives the order of the four parts.
    """
    p_i, p_f, p_o = peepholes

    def step(number: Any, now: Any) -> Any:
        h, c, hidden, cells, rows = now
        given = jnp.where((number < lengths)[:, None], _at(rows, number), 0)
        a = dict(zip(order, jnp.split(given + h @ weight + bias, 4, axis=1), strict=True))
        i = jax.nn.sigmoid(a["i"] + p_i * c if peeps else a["i"])
        f = jax.nn.sigmoid(a["f"] + p_f * c if peeps else a["f"])
        g = jnp.tanh(a["g"])
        c = f * c + i * g
        o = jax.nn.sigmoid(a["o"] + p_o * c if peeps else a["o"])
        h = o * jnp.tanh(c)
        gates = {"i": i, "f": f, "g": g, "o": o}
        rows = _put(rows, jnp.concatenate([gates[name] for name in order], axis=1), number)
        return h, c, _put(hidden, h, number + 1), _put(cells, c, number + 1), rows

    batch, time, _ = sums.shape
    hidden, cells = (
        jnp.zeros((batch, time + 1, start.shape[1]), start.dtype).at[:, 0].set(start) for start in (h_0, c_0)
    )
    return jax.lax.fori_loop(0, time, step, (h_0, c_0, hidden, cells, sums))[2:]


def _forward(order: str, peeps: bool, *primals: Any) -> Any:
    given = [primal.value for primal in primals]
    hidden, cells, gates = _run(order, peeps, *given)
    _, _, weight, _, peepholes, _, _ = given
    return (hidden[:, 1:], cells[:, 1:]), (hidden, cells, gates, weight, peepholes)


def _backward(order: str, peeps: bool, saved: Any, slopes: Any) -> Any:
    hidden, cells, gates, weight, peepholes = saved
    p_i, p_f, p_o = peepholes
    time = gates.shape[1]
    given = [None if isinstance(slope, SymbolicZero) else slope for slope in slopes]

    def step(done: Any, now: Any) -> Any:
        dh, dc, gates_here, rows = now
        number = time - 1 - done
        c_before, c = _at(cells, number), _at(cells, number + 1)
        dh_here, dc_here = (None if slope is None else _at(slope, number) for slope in given)
        i, f, g, o = (dict(zip(order, jnp.split(gates_here, 4, axis=1), strict=True))[name] for name in "ifgo")
        squashed = jnp.tanh(c)
        dh = dh if dh_here is None else dh + dh_here
        dc = dc if dc_here is None else dc + dc_here
        d_o = dh * squashed * o * (1 - o)
        dc = dc + dh * o * (1 - squashed * squashed) + (d_o * p_o if peeps else 0)
        d = {"i": dc * g * i * (1 - i), "f": dc * c_before * f * (1 - f), "g": dc * i * (1 - g * g), "o": d_o}
        d_sums = jnp.concatenate([d[name] for name in order], axis=1)
        dc = dc * f + (d["i"] * p_i + d["f"] * p_f if peeps else 0)
        rows = _put(rows, d_sums, number)
        # Each iteration reads the gates for the next iteration. If an iteration read its own gates and then wrote into
        # the same buffer, XLA would copy the whole buffer first.
        return d_sums @ weight.T, dc, _at(rows, number - 1), rows

    zeros = jnp.zeros_like(cells[:, 0])
    dh, dc, _, d_sums = jax.lax.fori_loop(0, time, step, (zeros, zeros, gates[:, -1], gates))
    flat = d_sums.reshape(-1, d_sums.shape[-1])
    d_weight = hidden[:, :-1].reshape(-1, weight.shape[0]).T @ flat
    d_bias = jnp.sum(d_sums, axis=(0, 1))
    if not peeps:
        return d_sums, None, d_weight, d_bias, jnp.zeros_like(peepholes), dh, dc
    parts = dict(zip(order, jnp.split(d_sums, 4, axis=2), strict=True))
    seen = {"i": cells[:, :-1], "f": cells[:, :-1], "o": cells[:, 1:]}
    d_peepholes = jnp.stack([jnp.sum(parts[name] * seen[name], axis=(0, 1)) for name in "ifo"])
    return d_sums, None, d_weight, d_bias, d_peepholes, dh, dc


_states.defvjp(_forward, _backward, symbolic_zeros=True)


def _at(steps: jax.Array, number: Any) -> jax.Array:
    """Return step `number`, `[batch, ...]`, of an array of all steps, `[batch, time, ...]`."""
    return jax.lax.dynamic_index_in_dim(steps, number, axis=1, keepdims=False)


def _put(steps: jax.Array, step: jax.Array, number: Any) -> jax.Array:
    """Return the array of all steps, `[batch, time, ...]`, with step `number` replaced by `step`."""
    return jax.lax.dynamic_update_index_in_dim(steps, step, number, axis=1)
