"""Long short-term memory (Hochreiter and Schmidhuber, 1997)."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, layer, parameter_dtype
from fluid.layers.checks import dtype_of
from fluid.layers.fc import fc
from fluid.layers.no_effect import Warned, no_effect
from fluid.layers.recurrent.scan import activation, checked, clipped, initial, projected, scan_rows, scan_time, width_of
from fluid.layers.tensor.concat import concat

# Whoever names another dtype than the parameters get is told.
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
    input: Any,
    size: int,
    h_0: Any = None,
    c_0: Any = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: Any = "sigmoid",
    cell_activation: Any = "tanh",
    candidate_activation: Any = "tanh",
    dtype: str = "float32",
    name: str | None = None,
) -> Any:
    """LSTM over the steps of sequences (Gers et al., 2002, for the peepholes); the input is projected already.

    With `a` the gates, `a = x + h @ weight + bias`, in the order candidate, input, forget, output:
    `c' = sigmoid(a_f + p_f c) c + sigmoid(a_i + p_i c) tanh(a_c)`, `h' = sigmoid(a_o + p_o c') tanh(c')`.

    Args:
      input: SequenceBatch `[batch, time, 4 * width]`, from `fc(x, size=4 * width)`.
      size: 4 * width.
      h_0: hidden state to start from, `[batch, width]`; zeros by default.
      c_0: cell state to start from, `[batch, width]`; zeros by default.
      param_attr: ParamAttr of the weight `[width, 4 * width]`.
      bias_attr: ParamAttr of the bias `[1, 7 * width]`: of the four gates, then the peepholes input, forget, output;
        `[1, 4 * width]` without peepholes. False, possible without peepholes, for none.
      use_peepholes: whether the gates see the cell state.
      is_reverse: whether to run each row from its last step to its first.
      gate_activation: of the three gates: "sigmoid", "tanh", "relu", "identity", any other activation, or a function.
      cell_activation: of the cell state in the output, likewise.
      candidate_activation: of the candidate, likewise.
      dtype: accepted for programs written for Fluid, but has no effect: the parameters have the dtype of the input.
      name: instead of `lstm_N`.

    Returns:
      Hidden state and cell state behind each step: two SequenceBatches `[batch, time, width]`.

    Raises:
      ShapeError: the input is no sequence of that size, or a state to start from does not fit.
      ArgumentError: `size` is not a multiple of 4, or `bias_attr=False` with peepholes.

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
    width = width_of(this, size, 4)
    x = projected(this, input, size)
    weight = this.weight(param_attr, [width, size], x.dtype)
    x, peepholes = _biased(this, x, bias_attr, use_peepholes)
    unit = _Unit(peepholes, activation(gate_activation), activation(cell_activation), activation(candidate_activation))

    def cell(states: Any, x: Any) -> Any:
        hidden, memory = states
        return unit(jnp.split(x + hidden @ weight, 4, axis=1), memory)

    start = tuple(initial(this, v, (x.shape[0], width), x.dtype, n) for v, n in ((h_0, "h_0"), (c_0, "c_0")))
    return tuple(this.output(x.with_data(v)) for v in scan_rows(cell, start, x, is_reverse))


@layer
@no_effect(dtype=_DTYPE_OF_INPUT)
def dynamic_lstmp(
    input: Any,
    size: int,
    proj_size: int,
    param_attr: Any = None,
    bias_attr: Any = None,
    use_peepholes: bool = True,
    is_reverse: bool = False,
    gate_activation: Any = "sigmoid",
    cell_activation: Any = "tanh",
    candidate_activation: Any = "tanh",
    proj_activation: Any = "tanh",
    dtype: str = "float32",
    name: str | None = None,
    h_0: Any = None,
    c_0: Any = None,
    cell_clip: float | None = None,
    proj_clip: float | None = None,
) -> Any:
    """LSTM whose hidden state is projected to fewer numbers (Sak, Senior and Beaufays, 2014).

    As `dynamic_lstm`, with `r' = proj_activation(h' @ projection)` in the place of `h` in the next step.

    Args:
      input: SequenceBatch `[batch, time, 4 * width]`, from `fc(x, size=4 * width)`.
      size: 4 * width.
      proj_size: width of the projection.
      param_attr: ParamAttr of the weight `[proj_size, 4 * width]` and the projection `[width, proj_size]`, or a list of
        two.
      bias_attr: ParamAttr of the bias, see `dynamic_lstm`.
      use_peepholes: whether the gates see the cell state.
      is_reverse: whether to run each row from its last step to its first.
      gate_activation: of the three gates, see `dynamic_lstm`.
      cell_activation: of the cell state in the output, likewise.
      candidate_activation: of the candidate, likewise.
      proj_activation: of the projection, likewise.
      dtype: accepted for programs written for Fluid, but has no effect: the parameters have the dtype of the input.
      name: instead of `lstmp_N`.
      h_0: projection to start from, `[batch, proj_size]`; zeros by default.
      c_0: cell state to start from, `[batch, width]`; zeros by default.
      cell_clip: holds the cell state between `-cell_clip` and `cell_clip`.
      proj_clip: holds the projection between `-proj_clip` and `proj_clip`.

    Returns:
      Projection `[batch, time, proj_size]` and cell state `[batch, time, width]` behind each step: two SequenceBatches.

    Raises:
      ShapeError: the input is no sequence of that size, or a state to start from does not fit.
      ArgumentError: `size` is not a multiple of 4, or `bias_attr=False` with peepholes.

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
    width = width_of(this, size, 4)
    x = projected(this, input, size)
    attrs = param_attr if isinstance(param_attr, list | tuple) else [param_attr] * 2
    if len(attrs) != 2:
        raise errors.ArgumentError(
            f"{this.name} has two weights and {len(attrs)} param_attr; give one for each: [recurrent, projection]"
        )
    weight = this.weight(attrs[0], [proj_size, size], x.dtype)
    projection = this.weight(attrs[1], [width, proj_size], x.dtype)
    x, peepholes = _biased(this, x, bias_attr, use_peepholes)
    acts = activation(gate_activation), activation(cell_activation), activation(candidate_activation)
    unit, project = _Unit(peepholes, *acts, cell_clip), activation(proj_activation)

    def cell(states: Any, x: Any) -> Any:
        before, memory = states
        hidden, memory = unit(jnp.split(x + before @ weight, 4, axis=1), memory)
        return clipped(project(hidden @ projection), proj_clip), memory

    batch = x.shape[0]
    start = (
        initial(this, h_0, (batch, proj_size), x.dtype, "h_0"),
        initial(this, c_0, (batch, width), x.dtype, "c_0"),
    )
    return tuple(this.output(x.with_data(v)) for v in scan_rows(cell, start, x, is_reverse))


@layer
def lstm_unit(
    x_t: Any,
    hidden_t_prev: Any,
    cell_t_prev: Any,
    forget_bias: float = 0.0,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> Any:
    """One step of an LSTM without peepholes (Zaremba, Sutskever and Vinyals, 2014).

    The gates are `fc([x_t, hidden_t_prev])`, in the order input, forget, output, candidate.

    Args:
      x_t: input of the step, `[batch, in]`.
      hidden_t_prev: hidden state before it, `[batch, width]`.
      cell_t_prev: cell state before it, `[batch, width]`.
      forget_bias: added to the forget gate.
      param_attr: ParamAttr of the weight `[in + width, 4 * width]`.
      bias_attr: ParamAttr of the bias `[4 * width]`; False for none.
      name: instead of `lstm_unit_N` for the results, and of `fc_N` for the parameters.

    Returns:
      Hidden state and cell state behind the step, each `[batch, width]`.

    Raises:
      ShapeError: the inputs are no matrices, or do not fit together.

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
    memory = checked(this, cell_t_prev, None, None)
    batch, width = memory.shape
    x, hidden = checked(this, x_t, batch, None), checked(this, hidden_t_prev, batch, width)
    gates = fc(concat([x, hidden], axis=1, name=name), 4 * width, param_attr=param_attr, bias_attr=bias_attr, name=name)
    into, forget, out, candidate = jnp.split(gates, 4, axis=1)
    unit = _Unit(None, jax.nn.sigmoid, jnp.tanh, jnp.tanh)
    hidden, memory = unit((candidate, into, forget + forget_bias, out), memory)
    memory = this.output(memory.astype(gates.dtype))
    return this.output(hidden.astype(gates.dtype)), memory


@layer
@no_effect(max_len="the length is that of the input")
def lstm(
    input: Any,
    init_h: Any,
    init_c: Any,
    max_len: int,
    hidden_size: int,
    num_layers: int,
    dropout_prob: float = 0.0,
    is_bidirec: bool = False,
    is_test: bool = False,
    name: str | None = None,
    default_initializer: Any = None,
    seed: int = -1,
) -> Any:
    """Several layers of LSTM without peepholes over dense data, with all weights in one vector, as cuDNN has them.

    The vector holds first the matrices, layer by layer (and in it forward, then backward): of the gates input, forget,
    candidate, output those `[hidden_size, in]` for the input, then those `[hidden_size, hidden_size]` for the hidden
    state; then, in the same order, their biases, eight of `[hidden_size]` for each layer and direction. `in` is the
    width of the input in the first layer, and `hidden_size` (twice, when bidirectional) in the others.

    Args:
      input: `[time, batch, in]`; every step of every row counts.
      init_h: hidden states to start from, `[num_layers (* 2 when bidirectional), batch, hidden_size]`.
      init_c: cell states to start from, likewise.
      max_len: accepted for programs written for Fluid, but has no effect: the length is that of the input.
      hidden_size: width of the hidden state.
      num_layers: number of layers.
      dropout_prob: probability of dropping a number between two layers, in training.
      is_bidirec: whether each layer runs in both directions, and gives both hidden states.
      is_test: True drops nothing in training either.
      name: instead of `cudnn_lstm_N`.
      default_initializer: of the weights; Xavier uniform by default.
      seed: gives the same dropout at every step; by default (-1) each step draws its own.

    Returns:
      Hidden states of the last layer `[time, batch, hidden_size (* 2 when bidirectional)]`; hidden states and cell
      states behind the last step, each as `init_h`.

    Raises:
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
    x = checked(this, input, None, None, None)
    directions = 2 if is_bidirec else 1
    sizes = [x.shape[2]] + [hidden_size * directions] * (num_layers - 1)
    shape = (num_layers * directions, x.shape[1], hidden_size)
    states = [initial(this, v, shape, x.dtype, n) for v, n in ((init_h, "init_h"), (init_c, "init_c"))]
    count = sum(4 * hidden_size * directions * (size + hidden_size + 2) for size in sizes)
    flat = this.weight(None, [count], x.dtype, default_initializer)
    weights = _unpack(flat, sizes, hidden_size, directions)
    dropping = dropout_prob and not is_test and this.frame.mode == core.TRAIN
    last: list[Any] = []
    for number in range(num_layers):
        if dropping and number:
            key = core.random_key(f"{this.name}.{number}") if seed == -1 else jax.random.key(seed + number)
            keep = jax.random.bernoulli(key, 1 - dropout_prob, x.shape)
            x = jnp.where(keep, x / (1 - dropout_prob), 0).astype(x.dtype)
        runs = []
        for way in range(directions):
            at = number * directions + way
            behind, hidden = _run(weights[at], (states[0][at], states[1][at]), x, reverse=way == 1)
            last.append(behind)
            runs.append(hidden)
        x = jnp.concatenate(runs, axis=2)
    result = this.output(x)
    return result, *(this.output(jnp.stack(v)) for v in zip(*last, strict=True))


class _Unit:
    """Gates (candidate, input, forget, output) and a cell state to a hidden state and the next cell state."""

    def __init__(
        self,
        peepholes: Any,
        gate: Callable[[Any], Any],
        cell: Callable[[Any], Any],
        candidate: Callable[[Any], Any],
        clip: float | None = None,
    ):
        self.peepholes, self.gate, self.cell, self.candidate, self.clip = peepholes, gate, cell, candidate, clip

    def __call__(self, gates: Any, memory: Any) -> tuple[Any, Any]:
        candidate, into, forget, out = gates
        if self.peepholes is not None:
            into, forget = into + self.peepholes[0] * memory, forget + self.peepholes[1] * memory
        memory = self.gate(forget) * memory + self.gate(into) * self.candidate(candidate)
        memory = clipped(memory, self.clip)
        if self.peepholes is not None:
            out = out + self.peepholes[2] * memory
        return self.gate(out) * self.cell(memory), memory


def _biased(this: Layer, x: core.SequenceBatch, attr: Any, peepholes: bool) -> tuple[core.SequenceBatch, Any]:
    """The projected input with the bias of its gates, and the peepholes `[3, width]`, which are part of the bias."""
    size = x.shape[2]
    if attr is False and peepholes:
        raise errors.ArgumentError(
            f"{this.name}: the peepholes are part of the bias, so bias_attr=False needs use_peepholes=False"
        )
    bias = this.bias(attr, [1, size // 4 * 7 if peepholes else size], x.dtype)
    if bias is None:
        return x, None
    flat = bias.reshape(-1)
    return x.with_data(x.data + flat[:size]), flat[size:].reshape(3, -1) if peepholes else None


def _unpack(flat: Any, sizes: list[int], width: int, directions: int) -> list[tuple[Any, Any, Any]]:
    """For each layer and direction: the weights `[in, 4 * width]` and `[width, 4 * width]`, and the bias."""
    found, at = [], 0

    def take(rows: int, columns: int) -> Any:
        nonlocal at
        at += rows * columns
        return flat[at - rows * columns : at].reshape(rows, columns).T

    for size in sizes:
        found += [(take(4 * width, size), take(4 * width, width)) for _ in range(directions)]
    return [(w, r, take(2, 4 * width).sum(1)) for w, r in found]


def _run(weights: tuple[Any, Any, Any], states: Any, x: Any, reverse: bool) -> tuple[Any, Any]:
    from_input, from_hidden, bias = weights
    unit = _Unit(None, jax.nn.sigmoid, jnp.tanh, jnp.tanh)

    def step(turn: Any, states: Any, gates: Any) -> tuple[Any, Any]:
        hidden, memory = states
        into, forget, candidate, out = jnp.split(gates + hidden @ from_hidden, 4, axis=1)
        new = unit((candidate, into, forget, out), memory)
        return new, new[0]

    return scan_time(step, states, x @ from_input + bias, reverse=reverse)
