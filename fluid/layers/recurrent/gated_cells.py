"""`GRUCell` and `LSTMCell`: gated cells that project their input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fluid import core, errors
from fluid.layers.base import Layer, describe, is_sequence, layer, parameter_dtype
from fluid.layers.checks import dtype_of
from fluid.layers.functional import Activation
from fluid.layers.kernels.lookup_table import times_matrix
from fluid.layers.recurrent.cells import GRU, LSTM, GRUUnit, LSTMState, LSTMUnit, array_of_shape, to_activation
from fluid.layers.recurrent.rnn import RNNCell
from fluid.param_attr import ParamSetting, to_attr

# `Step` is a function that takes one step. Its arguments are the contribution of the input to the pre-activations,
# `[batch, n]`, and the states; it returns the outputs and the new states.
Step = Callable[[jax.Array, Any], tuple[jax.Array, Any]]


class GRUCell(RNNCell):
    """A gated recurrent unit (Cho et al., 2014) with weights for its input and its hidden state.

    With `[x, h]` the concatenation of input and hidden state:

        r  = gate([x, h] @ W_r + b_r)
        u  = gate([x, h] @ W_u + b_u)
        c  = activation([x, r * h] @ W_c + b_c)
        h' = u * h + (1 - u) * c

    The first use of the cell creates the parameters, and all uses share them. `[W_r, W_u]` is `NAME/BasicGRUUnit_0.w_0`
    `[in + hidden_size, 2 * hidden_size]`, `W_c` is `NAME/BasicGRUUnit_0.w_1` `[in + hidden_size, hidden_size]`, and the
    biases are `b_0` and `b_1`.

    Args:
      hidden_size: width of the hidden state.
      param_attr: ParamAttr of both weights. If it has a name, the weights are called `NAME_gate` and `NAME_candidate`.
      bias_attr: ParamAttr of both biases, named like the weights; False for none.
      gate_activation: the activation of the gates, a name or a function; "sigmoid" by default.
      activation: the activation of the candidate, a name or a function; "tanh" by default.
      dtype: accepted for programs written for Fluid, but has no effect: the parameters have the dtype of the input.
        Naming another one warns.
      name: the beginning of the names of the parameters.

    Returns:
      A cell for `layers.rnn` and decoders. A call with an input `[batch, in]` and the hidden state
      `[batch, hidden_size]` returns the new hidden state twice: as output and as state.

    Raises:
      ArgumentError: `hidden_size` is not a positive integer, or there is no such activation.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[8], lod_level=1)
      ...     outputs, last = fluid.layers.rnn(fluid.layers.GRUCell(hidden_size=4), words)
      ...     return last
      >>> {n: p.shape for n, p in fluid.Program(program).parameters.items() if "w_" in n}
      {'GRUCell/BasicGRUUnit_0.w_0': (12, 8), 'GRUCell/BasicGRUUnit_0.w_1': (12, 4)}
    """

    @layer
    def __init__(
        self,
        hidden_size: int,
        param_attr: ParamSetting = None,
        bias_attr: ParamSetting = None,
        gate_activation: Activation = None,
        activation: Activation = None,
        dtype: DTypeLike | None = None,
        name: str | None = "GRUCell",
    ):
        self.hidden_size = core.whole_number("GRUCell", "hidden_size", hidden_size)
        self._dtype = None if dtype is None else dtype_of("GRUCell", dtype)
        self._this = _named_layer("GRUCell" if name is None else name, "BasicGRUUnit")
        self._param_attr = param_attr
        self._bias_attr = bias_attr
        gate = to_activation("sigmoid" if gate_activation is None else gate_activation)
        candidate = to_activation("tanh" if activation is None else activation)
        self._unit = GRUUnit("ru", gate, candidate, origin_mode=True)

    @property
    def state_shape(self) -> list[int]:
        """The shape of the hidden state, without the batch."""
        return [self.hidden_size]

    def call(self, inputs: Any, states: Any) -> tuple[jax.Array, jax.Array]:
        """Take one step; return the new hidden state `[batch, hidden_size]` twice, as output and as state."""
        this = self._this.here()
        x = array_of_shape(this, inputs, "batch", "in")
        h = array_of_shape(this, states, x.shape[0], self.hidden_size)
        (gate_weight, candidate_weight), (gate_bias, candidate_bias) = self._parameters(this, x)
        gates = self._unit.gates(
            _affine(jnp.concatenate([x, h], axis=1), gate_weight, gate_bias),
            lambda reset: _affine(jnp.concatenate([x, reset], axis=1), candidate_weight, candidate_bias),
            h,
        )
        hidden = self._unit.blend(gates, h)
        return hidden, hidden

    def hoist(self, x: jax.Array) -> tuple[jax.Array, Step]:
        """Multiply the inputs of all steps by the weights of the GRU at once, before the loop over the steps.

        Args:
          x: the inputs of all steps, `[time, batch, in]`.

        Returns:
          The products plus the biases, `[time, batch, 3 * hidden_size]`, and a function that takes one step.
        """
        this = self._this.here()
        (gate_weight, candidate_weight), biases = self._parameters(this, x)
        size = x.shape[-1]
        of_input = jnp.concatenate([gate_weight[:size], candidate_weight[:size]], axis=1)
        bias = None if biases[0] is None else jnp.concatenate(biases)
        gru = GRU(gate_weight[size:], candidate_weight[size:], self._unit)

        def step(sums: jax.Array, states: Any) -> tuple[jax.Array, jax.Array]:
            return gru.step(sums, array_of_shape(this, states, sums.shape[0], self.hidden_size))

        return _affine(x, of_input, bias), step

    def _parameters(self, this: Layer, x: jax.Array) -> tuple[list[jax.Array], list[Any]]:
        """Create the weights and biases of a GRU cell, for gates and candidate; the inputs are `x`, `[..., in]`."""
        _check_dtype(this, self._dtype, x)
        rows = x.shape[-1] + self.hidden_size
        widths = [2 * self.hidden_size, self.hidden_size]
        named = list(zip(("gate", "candidate"), widths, strict=True))
        weights = [
            this.weight(_setting(this, self._param_attr, f"w_{k}", role), [rows, width], x.dtype)
            for k, (role, width) in enumerate(named)
        ]
        biases = [
            this.bias(_setting(this, self._bias_attr, f"b_{k}", role), [width], x.dtype)
            for k, (role, width) in enumerate(named)
        ]
        return weights, biases


class LSTMCell(RNNCell):
    """An LSTM without peepholes (Zaremba et al., 2014), with weights for its input and its hidden state.

    With the pre-activations `a = [x, h] @ W + b`, in the order input gate, candidate, forget gate, output gate:

        c' = gate(a_f + forget_bias) * c + gate(a_i) * activation(a_g)
        h' = gate(a_o) * activation(c')

    The first use of the cell creates the parameters, and all uses share them: the weight `NAME/BasicLSTMUnit_0.w_0`
    `[in + hidden_size, 4 * hidden_size]` and the bias `b_0`.

    Args:
      hidden_size: width of the hidden state and of the cell state.
      param_attr: ParamAttr of the weight.
      bias_attr: ParamAttr of the bias; False for none.
      gate_activation: the activation of the three gates, a name or a function; "sigmoid" by default.
      activation: the activation of the candidate, also applied to the cell state to compute the hidden state: a name
        or a function; "tanh" by default.
      forget_bias: a number added to the pre-activation of the forget gate.
      dtype: accepted for programs written for Fluid, but has no effect: the parameters have the dtype of the input.
        Naming another one warns.
      name: the beginning of the names of the parameters.

    Returns:
      A cell for `layers.rnn` and decoders. A call takes an input `[batch, in]` and the list of hidden state and cell
      state, each `[batch, hidden_size]`. It returns the new hidden state as output, and the list of both new states.

    Raises:
      ArgumentError: `hidden_size` is not a positive integer, or there is no such activation.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[8], lod_level=1)
      ...     outputs, (hidden, cell) = fluid.layers.rnn(fluid.layers.LSTMCell(hidden_size=4), words)
      ...     return hidden
      >>> {n: p.shape for n, p in fluid.Program(program).parameters.items()}
      {'LSTMCell/BasicLSTMUnit_0.w_0': (12, 16), 'LSTMCell/BasicLSTMUnit_0.b_0': (16,)}
    """

    @layer
    def __init__(
        self,
        hidden_size: int,
        param_attr: ParamSetting = None,
        bias_attr: ParamSetting = None,
        gate_activation: Activation = None,
        activation: Activation = None,
        forget_bias: float = 1.0,
        dtype: DTypeLike | None = None,
        name: str | None = "LSTMCell",
    ):
        self.hidden_size = core.whole_number("LSTMCell", "hidden_size", hidden_size)
        self._dtype = None if dtype is None else dtype_of("LSTMCell", dtype)
        self._this = _named_layer("LSTMCell" if name is None else name, "BasicLSTMUnit")
        self._param_attr = param_attr
        self._bias_attr = bias_attr
        gate = to_activation("sigmoid" if gate_activation is None else gate_activation)
        both = to_activation("tanh" if activation is None else activation)
        self._unit = LSTMUnit("igfo", gate, both, both, forget_bias=forget_bias)

    @property
    def state_shape(self) -> list[list[int]]:
        """The shapes of an LSTM's hidden state and cell state, without the batch dimension."""
        return [[self.hidden_size], [self.hidden_size]]

    def call(self, inputs: Any, states: Any) -> tuple[jax.Array, Any]:
        """Take one step of the LSTM; return the output (the new hidden state), and the new hidden and cell states."""
        this = self._this.here()
        x = array_of_shape(this, inputs, "batch", "in")
        old = self._states(this, states, x.shape[0])
        weight, bias = self._parameters(this, x)
        new = self._unit(_affine(jnp.concatenate([x, old.hidden], axis=1), weight, bias), old.cell)
        return new.hidden, _in_structure_of(states, new)

    def hoist(self, x: jax.Array) -> tuple[jax.Array, Step]:
        """Compute the contribution of the inputs of all steps to the pre-activations, before the loop.

        Args:
          x: the inputs of all steps, `[time, batch, in]`.

        Returns:
          The contributions with the bias, `[time, batch, 4 * hidden_size]`, and a function that takes one step.
        """
        this = self._this.here()
        weight, bias = self._parameters(this, x)
        size = x.shape[-1]
        lstm = LSTM(self._unit, weight[size:])

        def step(sums: jax.Array, states: Any) -> tuple[jax.Array, Any]:
            output, new = lstm.step(sums, self._states(this, states, sums.shape[0]))
            return output, _in_structure_of(states, new)

        return _affine(x, weight[:size], bias), step

    def _parameters(self, this: Layer, x: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """Create the weight and the bias of an LSTM cell with inputs `x`, `[..., in]`."""
        _check_dtype(this, self._dtype, x)
        size = 4 * self.hidden_size
        weight = this.weight(_setting(this, self._param_attr, "w_0"), [x.shape[-1] + self.hidden_size, size], x.dtype)
        return weight, this.bias(_setting(this, self._bias_attr, "b_0"), [size], x.dtype)

    def _states(self, this: Layer, states: Any, batch: int) -> LSTMState:
        """Check the shapes of the hidden state and the cell state, and return both as an LSTMState."""
        leaves = jax.tree.leaves(states, is_leaf=is_sequence)
        if len(leaves) != 2:
            found = ", ".join(map(describe, leaves))
            raise errors.ShapeError(
                f"{this.name} has two states and was given [{found}]; expected the hidden state and the cell state, "
                f"[hidden, cell], each [batch, {self.hidden_size}], as from cell.get_initial_states(x)"
            )
        return LSTMState(*(array_of_shape(this, state, batch, self.hidden_size) for state in leaves))


def _named_layer(name: Any, unit: str) -> Layer:
    """Create the layer of a recurrent cell, with a name that users know from PaddlePaddle Fluid.

    The parameters of the layer are called `NAME/UNIT_N.w_0`, such as `GRUCell/BasicGRUUnit_0.w_0`.
    """
    if not isinstance(name, str) or not name:
        raise errors.ArgumentTypeError(f"name= is a string, found {name!r}")
    return Layer(f"{name}/{unit}")


def _check_dtype(this: Layer, dtype: Any, x: jax.Array) -> None:
    """Warn if the `dtype` of a cell differs from the dtype of the parameters, which the input `x` determines."""
    if dtype is not None and dtype != parameter_dtype(x.dtype) and this.frame.discovering:
        core.warn(
            f"{this.name}: dtype={str(dtype)!r} has no effect: the parameters have the dtype of the input "
            f"{describe(x)}; cast the input, as in layers.cast(x, {str(dtype)!r})"
        )


def _setting(this: Layer, attr: ParamSetting, suffix: str, role: str | None = None) -> ParamSetting:
    """Return the ParamAttr of a parameter with a fixed full name, so that all uses of the cell share the parameter.

    Args:
      role: a word, such as "gate", that is appended to the name in `attr` if several parameters share `attr`; None if
        `attr` is for one parameter.
    """
    settings = to_attr(attr)
    if settings is None:
        return False
    own = settings.name if settings.name is None or role is None else f"{settings.name}_{role}"
    return replace(settings, name=own or f"{this.name}.{suffix}")


def _affine(x: jax.Array, weight: jax.Array, bias: jax.Array | None) -> jax.Array:
    """Compute `x @ weight + bias`, from `[..., in]` to `[..., out]`."""
    product = times_matrix(x, weight)
    return product if bias is None else product + bias


def _in_structure_of(states: Any, new: LSTMState) -> Any:
    return jax.tree.unflatten(jax.tree.structure(states), [new.hidden, new.cell])
