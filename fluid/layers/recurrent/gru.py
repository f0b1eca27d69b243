"""Gated recurrent units (Cho et al., 2014): over sequences, and as a single step."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core
from fluid.core import Value
from fluid.layers.base import Layer, layer
from fluid.layers.functional import Activation
from fluid.layers.recurrent.cells import (
    GRU,
    GRUUnit,
    array_of_shape,
    projected,
    starting_state,
    to_activation,
    unroll_rows,
    width_of,
    with_bias,
)
from fluid.param_attr import ParamSetting


@layer
def dynamic_gru(
    input: Value,
    size: int,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    is_reverse: bool = False,
    gate_activation: Activation = "sigmoid",
    candidate_activation: Activation = "tanh",
    h_0: Value | None = None,
    origin_mode: bool = False,
    name: str | None = None,
) -> core.SequenceBatch:
    """Run a GRU (Cho et al., 2014) over the steps of already projected sequences.

    With `a = x + bias` in the order update, reset, candidate: `u = sigmoid(a_u + h @ W_u)`,
    `r = sigmoid(a_r + h @ W_r)`, `c = tanh(a_c + (r * h) @ W_c)`, `h' = (1 - u) * h + u * c`.

    Args:
      input: SequenceBatch `[batch, time, 3 * size]`, from `fc(x, size=3 * size)`.
      size: the width of the hidden state.
      param_attr: ParamAttr of the weight `[size, 3 * size]`. In memory, the first `2 * size * size` numbers
        are the matrix `[size, 2 * size]` of both gates; the others are the matrix `[size, size]` of the candidate.
      bias_attr: ParamAttr of the bias `[1, 3 * size]`; False for none.
      is_reverse: whether to run each row from its last step to its first.
      gate_activation: the activation of the gates: "sigmoid", "tanh", "relu", "identity", any other activation, or a
        function.
      candidate_activation: the activation of the candidate, with the choices of `gate_activation`.
      h_0: the initial hidden state, `[batch, size]`; zeros by default.
      origin_mode: True computes `h' = u * h + (1 - u) * c`, as the paper does.
      name: name of the layer; by default `gru_N`.

    Returns:
      The hidden state after each step: a SequenceBatch `[batch, time, size]`.

    Raises:
      ArgumentError: `size` is not a positive integer.
      ShapeError: the input is not a sequence batch of this size, or the initial state does not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[12], lod_level=1)
      ...     return fluid.layers.dynamic_gru(x, size=4, is_reverse=True)
      >>> {n: p.shape for n, p in fluid.Program(program).parameters.items()}
      {'gru_0.w_0': (4, 12), 'gru_0.b_0': (1, 12)}
    """
    this = Layer("gru", name)
    width = width_of(this, size, gates=1)
    x = projected(this, input, 3 * width)
    cell = _cell(this, width, param_attr, gate_activation, candidate_activation, origin_mode, x.dtype)
    bias = this.bias(bias_attr, [1, 3 * width], x.dtype)
    start = starting_state(this, cell, x, h_0=h_0)
    if bias is not None:
        x = with_bias(x, bias)
    result = this.output(unroll_rows(cell, x, start, is_reverse))
    this.frame.note(result, reads="backwards" if is_reverse else "forwards")
    return result


@layer
def gru_unit(
    input: Value,
    hidden: Value,
    size: int,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    activation: Activation = "tanh",
    gate_activation: Activation = "sigmoid",
    origin_mode: bool = False,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Take one step of a GRU (Cho et al., 2014) on an already projected input; `dynamic_gru` has the equations.

    Args:
      input: `[batch, 3 * width]`, from `fc(x, size=3 * width)`.
      hidden: the hidden state before the step, `[batch, width]`.
      size: 3 * width.
      param_attr: ParamAttr of the weight `[width, 3 * width]`, laid out like the weight of `dynamic_gru`.
      bias_attr: ParamAttr of the bias `[1, 3 * width]`; False for none.
      activation: the activation of the candidate: "sigmoid", "tanh", "relu", "identity", any other activation, or a
        function.
      gate_activation: the activation of the gates, with the choices of `activation`.
      origin_mode: True computes `h' = u * h + (1 - u) * c`, as the paper does.
      name: name of the layer; by default `gru_unit_N`.

    Returns:
      The new hidden state, `[batch, width]`; the old hidden state times the reset gate, `[batch, width]`; and the
      concatenation of update gate, reset gate and candidate, `[batch, 3 * width]`.

    Raises:
      ArgumentError: `size` is not a positive multiple of 3.
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
    width = width_of(this, size, gates=3)
    x = array_of_shape(this, input, "batch", 3 * width)
    before = array_of_shape(this, hidden, "batch", width).astype(x.dtype)
    cell = _cell(this, width, param_attr, gate_activation, activation, origin_mode, x.dtype)
    bias = this.bias(bias_attr, [1, 3 * width], x.dtype)
    gates = cell.gates(x if bias is None else x + bias, before)
    # Do not reorder the calls of `this.output`: their order determines the automatic names of the results.
    side_by_side = this.output(jnp.concatenate([gates.update, gates.reset, gates.candidate], axis=1))
    reset_hidden = this.output(gates.reset_hidden)
    return this.output(cell.unit.blend(gates, before)), reset_hidden, side_by_side


def _cell(
    this: Layer,
    width: int,
    attr: ParamSetting,
    gate: Activation,
    candidate: Activation,
    origin_mode: bool,
    dtype: Any,
) -> GRU:
    """Create a GRU cell from one parameter `[width, 3 * width]`, which holds the weights of gates and candidate."""
    flat = this.weight(attr, [width, 3 * width], dtype).reshape(-1)
    gate_weight = flat[: 2 * width * width].reshape(width, 2 * width)
    candidate_weight = flat[2 * width * width :].reshape(width, width)
    unit = GRUUnit("ur", to_activation(gate), to_activation(candidate), origin_mode)
    return GRU(gate_weight, candidate_weight, unit)
