"""LSTMs (Hochreiter and Schmidhuber, 1997): over sequences, with projection, and as a single step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, layer, parameter_dtype
from fluid.layers.checks import dtype_of
from fluid.layers.fc import fc
from fluid.layers.functional import Activation
from fluid.layers.kernels.lookup_table import times_matrix
from fluid.layers.no_effect import Warned, no_effect
from fluid.layers.norm.dropout import check_probability, drop
from fluid.layers.recurrent.cells import (
    LSTM,
    Cell,
    LSTMState,
    LSTMUnit,
    ProjectedLSTM,
    StateAsOutput,
    array_of_shape,
    given_state,
    projected,
    starting_state,
    to_activation,
    unroll,
    unroll_rows,
    width_of,
)
from fluid.layers.tensor.concat import concat
from fluid.param_attr import ParamSetting

# The warning for the argument `dtype` of the LSTM layers, which has no effect. The warning is issued only if `dtype`
# differs from the dtype of the parameters.
_DTYPE_OF_INPUT = Warned(
    "the parameters have the dtype of the input",
    asks=lambda value, given: (
        hasattr(given.get("input"), "dtype") and dtype_of("lstm", value) != parameter_dtype(given["input"].dtype)
    ),
    instead="cast the input, as in layers.cast(x, 'float32')",
)


@layer
@no_effect(dtype=_DTYPE_OF_INPUT)
def dynamic_lstm(
    input: Value,
    size: int,
    h_0: Value | None = None,
    c_0: Value | None = None,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: Activation = "sigmoid",
    cell_activation: Activation = "tanh",
    candidate_activation: Activation = "tanh",
    dtype: str = "float32",
    name: str | None = None,
) -> tuple[core.SequenceBatch, core.SequenceBatch]:
    """Run an LSTM with peepholes (Gers et al., 2002) over the steps of already projected sequences.

    With `a = x + h @ weight + bias` in the order candidate, input, forget, output, and the peepholes `p`:
    `i = sigmoid(a_i + p_i * c)`, `f = sigmoid(a_f + p_f * c)`, `c' = f * c + i * tanh(a_g)`,
    `o = sigmoid(a_o + p_o * c')`, `h' = o * tanh(c')`.

    Args:
      input: SequenceBatch `[batch, time, 4 * width]`, from `fc(x, size=4 * width)`.
      size: 4 * width, where `width` is the size of the hidden state: `size=8` means a width of 2. A width below 4
        causes a warning.
      h_0: the initial hidden state, `[batch, width]`; zeros by default.
      c_0: the initial cell state, `[batch, width]`; zeros by default.
      param_attr: ParamAttr of the weight `[width, 4 * width]`.
      bias_attr: ParamAttr of the bias. With peepholes the bias is `[1, 7 * width]`: the biases of the four parts of
        `a`, then the peepholes of the input, forget and output gate. Without peepholes it is `[1, 4 * width]`; False
        for none.
      use_peepholes: whether the gates also depend on the cell state, weighted by the peepholes.
      is_reverse: whether to run each row from its last step to its first.
      gate_activation: the activation of the three gates: "sigmoid", "tanh", "relu", "identity", any other activation,
        or a function.
      cell_activation: the activation that is applied to the cell state to compute the hidden state, with the choices of
        `gate_activation`.
      candidate_activation: the activation of the candidate, with the choices of `gate_activation`.
      dtype: accepted for programs written for Fluid, but has no effect: the parameters have the dtype of the input.
      name: name of the layer; by default `lstm_N`.

    Returns:
      Hidden state and cell state after each step: two SequenceBatches `[batch, time, width]`.

    Raises:
      ShapeError: the input is not a sequence batch of this size, or an initial state does not fit.
      ArgumentError: `size` is not a positive multiple of 4, or `bias_attr=False` with peepholes.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
      ...     x = fluid.layers.fc(fluid.layers.embedding(words, size=[100, 16]), size=32)
      ...     hidden, cell = fluid.layers.dynamic_lstm(x, size=32)
      ...     return hidden
      >>> fluid.Program(program).parameters["lstm_0.b_0"].shape
      (1, 56)
    """
    this = Layer("lstm", name)
    width = _width(this, size)
    x = projected(this, input, size)
    weight = this.weight(param_attr, [width, size], x.dtype)
    biases = _biases(this, x, bias_attr, use_peepholes)
    unit = _unit(gate_activation, candidate_activation, cell_activation, *biases)
    return _states(this, LSTM(unit, weight), x, h_0, c_0, is_reverse)


@layer
@no_effect(dtype=_DTYPE_OF_INPUT)
def dynamic_lstmp(
    input: Value,
    size: int,
    proj_size: int,
    param_attr: ParamSetting | Sequence[ParamSetting] = None,
    bias_attr: ParamSetting = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: Activation = "sigmoid",
    cell_activation: Activation = "tanh",
    candidate_activation: Activation = "tanh",
    proj_activation: Activation = "tanh",
    dtype: str = "float32",
    name: str | None = None,
    h_0: Value | None = None,
    c_0: Value | None = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
) -> tuple[core.SequenceBatch, core.SequenceBatch]:
    """Run an LSTM with a projected hidden state over sequences (Sak, Senior and Beaufays, 2014).

    `dynamic_lstm` has the equations. In addition, the projection `r' = proj_activation(h' @ projection)` replaces `h`
    in the next step.

    Args:
      input: SequenceBatch `[batch, time, 4 * width]`, from `fc(x, size=4 * width)`.
      size: 4 * width, where `width` is the size of the cell state.
      proj_size: the width of the projection.
      param_attr: ParamAttr of the weight `[proj_size, 4 * width]` and of the projection `[width, proj_size]`, or a list
        with a ParamAttr for each.
      bias_attr: ParamAttr of the bias, see `dynamic_lstm`.
      use_peepholes: whether the gates also depend on the cell state, weighted by the peepholes.
      is_reverse: whether to run each row from its last step to its first.
      gate_activation: the activation of the three gates, see `dynamic_lstm`.
      cell_activation: the activation that is applied to the cell state to compute the hidden state, see `dynamic_lstm`.
      candidate_activation: the activation of the candidate, see `dynamic_lstm`.
      proj_activation: the activation of the projection, with the choices of `gate_activation`.
      dtype: accepted for programs written for Fluid, but has no effect: the parameters have the dtype of the input.
      name: name of the layer; by default `lstmp_N`.
      h_0: the initial projection, `[batch, proj_size]`; zeros by default.
      c_0: the initial cell state, `[batch, width]`; zeros by default.
      cell_clip: the limit of the cell state, which is clipped to the range from `-cell_clip` to `cell_clip`; None for
        no limit.
      proj_clip: the limit of the projection, which is clipped to the range from `-proj_clip` to `proj_clip`; None for
        no limit.

    Returns:
      Projection `[batch, time, proj_size]` and cell state `[batch, time, width]` after each step: two SequenceBatches.

    Raises:
      ShapeError: the input is not a sequence batch of this size, or an initial state does not fit.
      ArgumentError: `size` is not a positive multiple of 4, `proj_size` is not a positive integer, there is not one
        `param_attr` for each weight, or `bias_attr=False` with peepholes.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[32], lod_level=1)
      ...     projection, cell = fluid.layers.dynamic_lstmp(x, size=32, proj_size=5)
      ...     return projection
      >>> {n: p.shape for n, p in fluid.Program(program).parameters.items()}
      {'lstmp_0.w_0': (5, 32), 'lstmp_0.w_1': (8, 5), 'lstmp_0.b_0': (1, 56)}
    """
    this = Layer("lstmp", name)
    width = _width(this, size)
    proj_size = core.whole_number(this.name, "proj_size", proj_size)
    x = projected(this, input, size)
    weight_attr, projection_attr = _two_settings(this, param_attr)
    weight = this.weight(weight_attr, [proj_size, size], x.dtype)
    projection = this.weight(projection_attr, [width, proj_size], x.dtype)
    biases = _biases(this, x, bias_attr, use_peepholes)
    unit = _unit(gate_activation, candidate_activation, cell_activation, *biases, cell_clip)
    cell = ProjectedLSTM(unit, weight, projection, to_activation(proj_activation), proj_clip)
    return _states(this, cell, x, h_0, c_0, is_reverse)


def _width(this: Layer, size: int) -> int:
    """Return the width, `size / 4`; warn about a width below 4: the user probably passed the width itself as `size`."""
    width = width_of(this, size, gates=4)
    if width < 4:
        core.doubt_reading(
            f"{this.name}: size={size} is 4 x the width of the hidden state, which has {width} here, not {size}; "
            f"for a width of {size}, write layers.dynamic_lstm(layers.fc(x, size={4 * size}), size={4 * size})"
        )
    return width


@layer
def lstm_unit(
    x_t: Value,
    hidden_t_prev: Value,
    cell_t_prev: Value,
    forget_bias: float = 0.0,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Take one step of an LSTM without peepholes (Zaremba, Sutskever and Vinyals, 2014).

    The pre-activations `a` of the gates are `fc([x_t, hidden_t_prev])`, in the order input, forget, output, candidate;
    `dynamic_lstm` has the equations.

    Args:
      x_t: the input of the step, `[batch, in]`.
      hidden_t_prev: the hidden state before the step, `[batch, width]`.
      cell_t_prev: the cell state before the step, `[batch, width]`.
      forget_bias: a number added to the pre-activation of the forget gate.
      param_attr: ParamAttr of the weight `[in + width, 4 * width]`.
      bias_attr: ParamAttr of the bias `[4 * width]`; False for none.
      name: name of the layer; by default `lstm_unit_N` for the results, and `fc_N` for the parameters.

    Returns:
      Hidden state and cell state after the step, each `[batch, width]`.

    Raises:
      ShapeError: the inputs are not matrices, or do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, h, c = (fluid.layers.data(n, shape=[4]) for n in "xhc")
      ...     hidden, cell = fluid.layers.lstm_unit(x, h, c, forget_bias=1.0)
      ...     return hidden
      >>> list(fluid.Program(program).parameters)
      ['fc_0.w_0', 'fc_0.b_0']
    """
    this = Layer("lstm_unit", name)
    cell = array_of_shape(this, cell_t_prev, "batch", "width")
    batch, width = cell.shape
    x = array_of_shape(this, x_t, batch, "in")
    hidden = array_of_shape(this, hidden_t_prev, batch, width)
    both = concat([x, hidden], axis=1, name=name)
    sums = fc(both, 4 * width, param_attr=param_attr, bias_attr=bias_attr, name=name)
    new = LSTMUnit("ifog", forget_bias=forget_bias)(sums, cell)
    # Do not reorder the calls of `this.output`: their order determines the automatic names of the results.
    new_cell = this.output(new.cell.astype(sums.dtype))
    return this.output(new.hidden.astype(sums.dtype)), new_cell


def _unit(
    gate: Activation,
    candidate: Activation,
    output: Activation,
    bias: jax.Array | None,
    peepholes: jax.Array | None,
    clip: float | None = None,
) -> LSTMUnit:
    return LSTMUnit(
        "gifo", to_activation(gate), to_activation(candidate), to_activation(output), bias, peepholes, clip=clip
    )


def _two_settings(this: Layer, given: ParamSetting | Sequence[ParamSetting]) -> tuple[Any, Any]:
    """Return the ParamAttr of the recurrent weight and the ParamAttr of the projection."""
    settings = list(given) if isinstance(given, list | tuple) else [given, given]
    if len(settings) != 2:
        raise errors.ArgumentError(
            f"{this.name} has two weights and {len(settings)} param_attr; give one for each: [recurrent, projection]"
        )
    return settings[0], settings[1]


def _biases(
    this: Layer, x: core.SequenceBatch, attr: ParamSetting, use_peepholes: bool
) -> tuple[jax.Array | None, jax.Array | None]:
    """Create the bias of an LSTM, which also holds the peepholes.

    Args:
      x: the projected input, `[batch, time, 4 * width]`.
      use_peepholes: True for a bias `[1, 7 * width]`, which includes the peepholes; False for a bias `[1, 4 * width]`.

    Returns:
      The bias of the pre-activations, `[4 * width]`, or None if `attr` is False; and the peepholes of the input, forget
      and output gate, `[3, width]`, or None without `use_peepholes`.
    """
    size = x.shape[2]
    if attr is False and use_peepholes:
        raise errors.ArgumentError(
            f"{this.name}: the peepholes are part of the bias, so bias_attr=False needs use_peepholes=False"
        )
    bias = this.bias(attr, [1, size // 4 * 7 if use_peepholes else size], x.dtype)
    if bias is None:
        return None, None
    flat = bias.reshape(-1)
    return flat[:size], flat[size:].reshape(3, -1) if use_peepholes else None


def _states(
    this: Layer,
    cell: Cell,
    x: core.SequenceBatch,
    h_0: Value | None,
    c_0: Value | None,
    reverse: bool,
) -> tuple[core.SequenceBatch, core.SequenceBatch]:
    """Run an LSTM over `x`, the input times its weight; return the hidden states and the cell states of all steps."""
    start = starting_state(this, cell, x, h_0=h_0, c_0=c_0)
    states = unroll_rows(StateAsOutput(cell), x, start, reverse)
    hidden = this.output(states.hidden)
    this.frame.note(hidden, reads="backwards" if reverse else "forwards")
    return hidden, this.output(states.cell)


@layer
@no_effect(max_len="the length is that of the input")
def lstm(
    input: Value,
    init_h: Value | None,
    init_c: Value | None,
    max_len: int,
    hidden_size: int,
    num_layers: int,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    is_test: bool = False,
    name: str | None = None,
    default_initializer: Any = None,
    seed: int = -1,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Run several LSTM layers without peepholes over dense data, with all weights in one vector, as in cuDNN.

    The vector holds all matrices and then all biases, layer by layer; in each layer, the forward direction comes before
    the backward one. A direction has eight matrices: four `[hidden_size, in]` for the input, and then four
    `[hidden_size, hidden_size]` for the hidden state. Both are in the order input gate, forget gate, candidate, output
    gate. A direction also has eight biases `[hidden_size]` in this order. `in` is the width of the input in the first
    layer, and `hidden_size` (`2 * hidden_size` if bidirectional) in the others.

    Args:
      input: `[time, batch, in]`; every step of every row counts.
      init_h: the initial hidden states, `[num_layers (* 2 if bidirectional), batch, hidden_size]`; None for zeros.
      init_c: the initial cell states, in the shape of `init_h`; None for zeros.
      max_len: accepted for programs written for Fluid, but has no effect: the length is that of the input.
      hidden_size: the width of the hidden state.
      num_layers: the number of layers.
      dropout_prob: the probability with which dropout sets a number between two layers to 0 in training; the remaining
        numbers are scaled up.
      is_bidirec: whether each layer runs in both directions, and returns both hidden states.
      is_test: True disables dropout in training too.
      name: name of the layer; by default `cudnn_lstm_N`.
      default_initializer: the initializer of the weights; Xavier uniform by default.
      seed: a fixed seed drops the same numbers in every training step; by default (-1) each step draws new ones.

    Returns:
      The hidden states of the last layer, `[time, batch, hidden_size (* 2 if bidirectional)]`; and the hidden states
      and the cell states of all layers after the last step, each of the shape of `init_h`.

    Raises:
      ArgumentError: `hidden_size` or `num_layers` is not a positive integer, or the probability is not between 0 and 1.
      ShapeError: an array does not have three dimensions that fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[7, 5, 4], append_batch_size=False)
      ...     start = fluid.layers.zeros([2 * 2, 5, 3], "float32")
      ...     out, h, c = fluid.layers.lstm(x, start, start, 7, hidden_size=3, num_layers=2, is_bidirec=True)
      ...     return out, h
      >>> program = fluid.Program(program)
      >>> program.outputs[0].shape, program.outputs[1].shape
      ((7, 5, 6), (4, 5, 3))
    """
    this = Layer("cudnn_lstm", name)
    width = core.whole_number(this.name, "hidden_size", hidden_size)
    depth = core.whole_number(this.name, "num_layers", num_layers)
    check_probability(this, dropout_prob)
    x = array_of_shape(this, input, "time", "batch", "in")
    directions = 2 if is_bidirec else 1
    shape = (depth * directions, x.shape[1], width)
    hidden = given_state(this, init_h, shape, x.dtype, "init_h")
    cell = given_state(this, init_c, shape, x.dtype, "init_c")
    sizes = [x.shape[2]] + [width * directions] * (depth - 1)
    count = sum(4 * width * directions * (size + width + 2) for size in sizes)
    weights = _unpack(this.weight(None, [count], x.dtype, default_initializer), sizes, width, directions)
    dropping = dropout_prob and not is_test and this.frame.mode == core.TRAIN
    last: list[LSTMState] = []
    for number in range(depth):
        if dropping and number:
            key = core.random_key(f"{this.name}.{number}") if seed == -1 else jax.random.key(seed + number)
            x = drop(x, dropout_prob, key, upscale=True)
        outputs = []
        for at in range(number * directions, (number + 1) * directions):
            steps, state = weights[at].run(x, LSTMState(hidden[at], cell[at]), reverse=at % directions == 1)
            outputs.append(steps)
            last.append(state)
        x = jnp.concatenate(outputs, axis=2)
    result = this.output(x)
    last_hidden, last_cell = (jnp.stack(arrays) for arrays in zip(*last, strict=True))
    return result, this.output(last_hidden), this.output(last_cell)


class _Direction(NamedTuple):
    """The weights `[in, 4 * width]` and `[width, 4 * width]`, and the bias, of one direction of one LSTM layer."""

    from_input: jax.Array
    from_hidden: jax.Array
    bias: jax.Array

    def run(self, x: jax.Array, start: LSTMState, reverse: bool) -> tuple[jax.Array, LSTMState]:
        """Run an LSTM over inputs `[time, batch, in]`; return the hidden states of all steps, and the last state."""
        cell = LSTM(LSTMUnit("ifgo"), self.from_hidden)
        return unroll(cell, times_matrix(x, self.from_input) + self.bias, start, reverse=reverse)


def _unpack(flat: jax.Array, sizes: list[int], width: int, directions: int) -> list[_Direction]:
    """Split the vector of all weights of an LSTM into the weights of each layer and direction.

    Args:
      flat: `[count]`, all matrices and then all biases.
    """
    place = 0

    def take(rows: int, columns: int) -> jax.Array:
        """Read the next matrix `[rows, columns]` from the vector of all weights, and return its transpose."""
        nonlocal place
        start = place
        place += rows * columns
        return flat[start:place].reshape(rows, columns).T

    pairs = [(take(4 * width, size), take(4 * width, width)) for size in sizes for _ in range(directions)]
    # Each direction of the LSTM has two biases, one for the input and one for the hidden state. Only the sum of the two
    # biases matters.
    return [_Direction(from_input, from_hidden, take(2, 4 * width).sum(1)) for from_input, from_hidden in pairs]
