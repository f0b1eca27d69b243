"""Gated recurrent units (Cho et al., 2014)."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fluid.layers.base import Layer, layer
from fluid.layers.recurrent.scan import activation, checked, initial, projected, scan_rows, width_of


@layer
def dynamic_gru(
    input: Any,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    is_reverse: bool = False,
    gate_activation: Any = "sigmoid",
    candidate_activation: Any = "tanh",
    h_0: Any = None,
    origin_mode: bool = False,
    name: str | None = None,
) -> Any:
    """GRU over the steps of sequences; the input is projected already.

    With `a` the input in the order update, reset, candidate: `u, r = sigmoid(a_ur + h @ W_ur)`,
    `c = tanh(a_c + (r h) @ W_c)`, `h' = (1 - u) h + u c`.

    Args:
      input: SequenceBatch `[batch, time, 3 * size]`, from `fc(x, size=3 * size)`.
      size: width of the hidden state.
      param_attr: ParamAttr of the weight `[size, 3 * size]`; in memory its first `2 * size * size` numbers are the
        matrix `[size, 2 * size]` of both gates, the others the matrix `[size, size]` of the candidate.
      bias_attr: ParamAttr of the bias `[1, 3 * size]`; False for none.
      is_reverse: whether to run each row from its last step to its first.
      gate_activation: of the gates: "sigmoid", "tanh", "relu", "identity", any other activation, or a function.
      candidate_activation: of the candidate, likewise.
      h_0: hidden state to start from, `[batch, size]`; zeros by default.
      origin_mode: True gives `h' = u h + (1 - u) c`, as in the paper.
      name: instead of `gru_N`.

    Returns:
      Hidden state behind each step: a SequenceBatch `[batch, time, size]`.

    Raises:
      ShapeError: the input is no sequence of that size, or the state to start from does not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[12], lod_level=1)
      ...     return fluid.layers.dynamic_gru(x, size=4, is_reverse=True)
      >>> {n: p.shape for n, p in fluid.Program(program).parameters.items()}
      {'gru_0.w_0': (4, 12), 'gru_0.b_0': (1, 12)}
    """
    this = Layer("gru", name)
    x = projected(this, input, 3 * width_of(this, size, 1))
    unit = _unit(this, size, param_attr, gate_activation, candidate_activation, origin_mode, x.dtype)
    bias = this.bias(bias_attr, [1, 3 * size], x.dtype)
    start = initial(this, h_0, (x.shape[0], size), x.dtype, "h_0")
    x = x if bias is None else x.with_data(x.data + bias)
    hidden = scan_rows(lambda before, x: unit(x, before)[0], start, x, is_reverse)
    return this.output(x.with_data(hidden))


@layer
def gru_unit(
    input: Any,
    hidden: Any,
    size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    activation: Any = "tanh",
    gate_activation: Any = "sigmoid",
    origin_mode: bool = False,
    name: str | None = None,
) -> Any:
    """One step of a GRU, see `dynamic_gru`; the input is projected already.

    Args:
      input: `[batch, 3 * width]`, from `fc(x, size=3 * width)`.
      hidden: hidden state before the step, `[batch, width]`.
      size: 3 * width.
      param_attr: ParamAttr of the weight `[width, 3 * width]`, laid out as that of `dynamic_gru`.
      bias_attr: ParamAttr of the bias `[1, 3 * width]`; False for none.
      activation: of the candidate: "sigmoid", "tanh", "relu", "identity", any other activation, or a function.
      gate_activation: of the gates, likewise.
      origin_mode: True gives `h' = u h + (1 - u) c`, as in the paper.
      name: instead of `gru_unit_N`.

    Returns:
      Hidden state behind the step `[batch, width]`, the hidden state as the candidate saw it, after the reset gate
      `[batch, width]`, and update gate, reset gate and candidate `[batch, 3 * width]`.

    Raises:
      ShapeError: the arrays do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, h = fluid.layers.data("x", shape=[12]), fluid.layers.data("h", shape=[4])
      ...     hidden, reset, gates = fluid.layers.gru_unit(x, h, size=12)
      ...     return hidden
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    this = Layer("gru_unit", name)
    width = width_of(this, size, 3)
    x, before = checked(this, input, None, 3 * width), checked(this, hidden, None, width)
    unit = _unit(this, width, param_attr, gate_activation, activation, origin_mode, x.dtype)
    bias = this.bias(bias_attr, [1, 3 * width], x.dtype)
    new, reset, gates = unit(x if bias is None else x + bias, before.astype(x.dtype))
    gates, reset = this.output(gates), this.output(reset)
    return this.output(new), reset, gates


def _unit(
    this: Layer, width: int, attr: Any, gate_act: Any, candidate_act: Any, origin_mode: bool, dtype: Any
) -> Callable[[Any, Any], tuple[Any, Any, Any]]:
    """A function of projected input and hidden state; returns the new state, what reset leaves, and all gates."""
    flat = this.weight(attr, [width, 3 * width], dtype).reshape(-1)
    for_gates = flat[: 2 * width * width].reshape(width, 2 * width)
    for_candidate = flat[2 * width * width :].reshape(width, width)
    gate, candidate = activation(gate_act), activation(candidate_act)

    def unit(x: Any, before: Any) -> tuple[Any, Any, Any]:
        update, reset = jnp.split(gate(x[:, : 2 * width] + before @ for_gates), 2, axis=1)
        kept = reset * before
        new = candidate(x[:, 2 * width :] + kept @ for_candidate)
        share = 1 - update if origin_mode else update
        return (1 - share) * before + share * new, kept, jnp.concatenate([update, reset, new], axis=1)

    return unit
