"""`lstm`: several LSTM layers over dense data, with all weights in one vector."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core
from fluid.layers.base import Layer, layer
from fluid.layers.no_effect import no_effect
from fluid.layers.norm.dropout import check_probability, drop
from fluid.layers.recurrent.arguments import array_of_shape, given_state
from fluid.layers.recurrent.cells import LSTM, LSTMState, LSTMUnit
from fluid.layers.recurrent.scan import unroll


@layer
@no_effect(max_len="the length is that of the input")
def lstm(
    input: core.Value,
    init_h: core.Value | None,
    init_c: core.Value | None,
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
      dropout_prob: the probability with which dropout sets a number between two layers to 0 in training; kept numbers
        are scaled up.
      is_bidirec: whether each layer runs in both directions, and returns both hidden states.
      is_test: True disables dropout in training too.
      name: name of the layer; by default `cudnn_lstm_N`.
      default_initializer: the initializer of the weights; Xavier uniform by default.
      seed: a fixed seed drops the same numbers in every training step; by default (-1) each step draws new ones.

    Returns:
      The hidden states of the last layer, `[time, batch, hidden_size (* 2 if bidirectional)]`; and the hidden states
      and the cell states of all layers after the last step, each of the shape of `init_h`.

    Raises:
      ArgumentError: `hidden_size` or `num_layers` is no positive integer, or the probability is not between 0 and 1.
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
    """The weights of one direction of one layer: `[in, 4 * width]`, `[width, 4 * width]` and `[4 * width]`."""

    from_input: jax.Array
    from_hidden: jax.Array
    bias: jax.Array

    def run(self, x: jax.Array, start: LSTMState, reverse: bool) -> tuple[jax.Array, LSTMState]:
        """Return the hidden states `[time, batch, width]` for inputs `[time, batch, in]`, and the last state."""
        cell = LSTM(LSTMUnit("ifgo"), self.from_hidden)
        return unroll(cell, x @ self.from_input + self.bias, start, reverse=reverse)


def _unpack(flat: jax.Array, sizes: list[int], width: int, directions: int) -> list[_Direction]:
    """Split the vector of all weights into the weights of each layer and direction.

    Args:
      flat: `[count]`, all matrices and then all biases.
      sizes: the width of the input of each layer.
      width: the width of the hidden state.
      directions: 1 or 2.
    """
    place = 0

    def take(rows: int, columns: int) -> jax.Array:
        """Read the next matrix of the given size from the vector, transposed."""
        nonlocal place
        start = place
        place += rows * columns
        return flat[start:place].reshape(rows, columns).T

    pairs = [(take(4 * width, size), take(4 * width, width)) for size in sizes for _ in range(directions)]
    # A direction has one bias for the input and one for the hidden state; only their sum matters.
    return [_Direction(from_input, from_hidden, take(2, 4 * width).sum(1)) for from_input, from_hidden in pairs]
