"""Recurrent layers of PaddlePaddle's `contrib.layers`: stacks of `LSTMCell` and `GRUCell`, in one direction or two."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp

from fluid import layers
from fluid.param_attr import ParamSetting, to_attr
from fluid.static.tape.program import recorded

__all__ = ["BasicGRUUnit", "BasicLSTMUnit", "basic_gru", "basic_lstm"]


class _Unit:
    """The base class of BasicLSTMUnit and BasicGRUUnit: one recurrent step; all calls of a unit share parameters."""

    kind: Any

    def __init__(self, name_scope: str, hidden_size: int, **settings: Any):
        self._settings = {"hidden_size": hidden_size, "name": name_scope, **settings}
        self._cell: Any = None

    def _step(self, x: Any, states: Any) -> Any:
        if self._cell is None:
            self._cell = self.kind(**self._settings)
        return self._cell.call(x, states)[1]


class BasicLSTMUnit(_Unit):
    """One time step of an LSTM; see `fluid.layers.LSTMCell`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     x, h, c = (fluid.layers.data(name, shape=[4]) for name in "xhc")
      ...     unit = fluid.contrib.layers.BasicLSTMUnit("lstm", hidden_size=4)
      ...     hidden, cell = unit(x, h, c)
      ...     hidden.shape, [v.name for v in fluid.default_main_program().all_parameters()]
      ((-1, 4), ['lstm/BasicLSTMUnit_0.w_0', 'lstm/BasicLSTMUnit_0.b_0'])
    """

    kind = layers.LSTMCell

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: ParamSetting = None,
        bias_attr: ParamSetting = None,
        gate_activation: Any = None,
        activation: Any = None,
        forget_bias: float = 1.0,
        dtype: Any = "float32",
    ):
        del dtype
        attrs = {"param_attr": param_attr, "bias_attr": bias_attr, "forget_bias": forget_bias}
        acts = {"gate_activation": gate_activation, "activation": activation}
        super().__init__(name_scope, hidden_size, **attrs, **acts)

    def __call__(self, input: Any, pre_hidden: Any, pre_cell: Any) -> tuple[Any, Any]:
        """Return the hidden state and the cell state after an input `[batch, in]`."""
        hidden, cell = recorded(self._step)(input, [pre_hidden, pre_cell])
        return hidden, cell


class BasicGRUUnit(_Unit):
    """One time step of a gated recurrent unit; see `fluid.layers.GRUCell`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     x, h = (fluid.layers.data(name, shape=[4]) for name in "xh")
      ...     fluid.contrib.layers.BasicGRUUnit("gru", hidden_size=4)(x, h).shape
      (-1, 4)
    """

    kind = layers.GRUCell

    def __init__(
        self,
        name_scope: str,
        hidden_size: int,
        param_attr: ParamSetting = None,
        bias_attr: ParamSetting = None,
        gate_activation: Any = None,
        activation: Any = None,
        dtype: Any = "float32",
    ):
        del dtype
        attrs = {"param_attr": param_attr, "bias_attr": bias_attr}
        super().__init__(name_scope, hidden_size, gate_activation=gate_activation, activation=activation, **attrs)

    def __call__(self, input: Any, pre_hidden: Any) -> Any:
        """Take one step of the cell: return the new hidden state for the input `[batch, in]` and the old one."""
        return recorded(self._step)(input, pre_hidden)


def basic_lstm(
    input: Any,
    init_hidden: Any,
    init_cell: Any,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Any = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    gate_activation: Any = None,
    activation: Any = None,
    forget_bias: float = 1.0,
    dtype: Any = "float32",
    name: str = "basic_lstm",
) -> tuple[Any, Any, Any]:
    """Run a stack of LSTM layers over the time steps of an array.

    Args:
      input: `[batch, time, in]`, or `[time, batch, in]` with `batch_first=False`.
      init_hidden: `[num_layers * directions, batch, hidden_size]`, sorted by layer, then by direction; None for zeros.
      sequence_length: integers `[batch]`, the lengths of the rows; after its end a row keeps its last states. None if
        all rows have full length.

    Returns:
      The outputs, `[batch, time, directions * hidden_size]` or with the time first; and the last hidden states and
      cell states, `[num_layers * directions, batch, hidden_size]`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[7, 3])
      ...     out, hidden, cell = fluid.contrib.layers.basic_lstm(x, None, None, 4, num_layers=2, bidirectional=True)
      ...     out.shape, hidden.shape
      ((-1, 7, 8), (4, -1, 4))
    """
    del dtype
    acts = {"gate_activation": gate_activation, "activation": activation, "forget_bias": forget_bias}
    units = _units(layers.LSTMCell, hidden_size, num_layers, bidirectional, param_attr, bias_attr, name, acts)
    states = None if init_hidden is None else [init_hidden, init_cell]
    dropout = (dropout_prob, "upscale_in_train")
    out, (hidden, cell) = recorded(_stacked)(units, input, states, sequence_length, dropout, batch_first)
    return out, hidden, cell


def basic_gru(
    input: Any,
    init_hidden: Any,
    hidden_size: int,
    num_layers: int = 1,
    sequence_length: Any = None,
    dropout_prob: float = 0.0,
    bidirectional: bool = False,
    batch_first: bool = True,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    gate_activation: Any = None,
    activation: Any = None,
    dtype: Any = "float32",
    name: str = "basic_gru",
) -> tuple[Any, Any]:
    """Run a stack of GRU layers over the time steps of an array; arguments as for `basic_lstm`.

    Returns:
      The outputs, `[batch, time, directions * hidden_size]` or with the time first; and the last hidden states,
      `[num_layers * directions, batch, hidden_size]`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[7, 3])
      ...     out, hidden = fluid.contrib.layers.basic_gru(x, None, hidden_size=4, num_layers=2)
      ...     out.shape, hidden.shape
      ((-1, 7, 4), (2, -1, 4))
    """
    del dtype
    acts = {"gate_activation": gate_activation, "activation": activation}
    units = _units(layers.GRUCell, hidden_size, num_layers, bidirectional, param_attr, bias_attr, name, acts)
    states = None if init_hidden is None else [init_hidden]
    dropout = (dropout_prob, "downgrade_in_infer")
    out, (hidden,) = recorded(_stacked)(units, input, states, sequence_length, dropout, batch_first)
    return out, hidden


def _units(
    kind: Any,
    hidden_size: int,
    num_layers: int,
    bidirectional: bool,
    param_attr: ParamSetting,
    bias_attr: ParamSetting,
    name: str,
    acts: dict[str, Any],
) -> "_Units":
    """Return the arguments of the recurrent cells of each direction, with parameter names as in PaddlePaddle Fluid."""

    def attr(given: ParamSetting, end: str) -> ParamSetting:
        settings = to_attr(given)
        named = settings is not None and settings.name is not None
        return replace(settings, name=f"{settings.name}{end}") if settings is not None and named else given

    def direction(middle: str, way: str) -> list[dict[str, Any]]:
        return [
            {
                "hidden_size": hidden_size,
                "name": f"{name}{middle}_layers_{i}",
                "param_attr": attr(param_attr, f"_{way}_w_{i}"),
                "bias_attr": attr(bias_attr, f"_{way}_b_{i}"),
                **acts,
            }
            for i in range(num_layers)
        ]

    return _Units(kind, [direction("", "fw"), *([direction("_reverse", "bw")] if bidirectional else [])])


class _Units:
    """A container for the arguments of the recurrent cells of each direction; JAX treats it as one pytree leaf."""

    def __init__(self, kind: Any, directions: Sequence[Sequence[dict[str, Any]]]):
        self.directions = directions
        self._kind = kind

    def cells(self, direction: int) -> list[Any]:
        return [self._kind(**arguments) for arguments in self.directions[direction]]


def _stacked(
    units: _Units, input: Any, init: Any, lengths: Any, dropout: tuple[float, str], batch_first: bool
) -> tuple[Any, list[Any]]:
    """Run a stack of recurrent layers in each direction.

    Return the outputs of the last layer, and the final states of all layers, sorted by layer, then by direction."""
    x = jnp.swapaxes(input, 0, 1) if batch_first else input
    inside = jnp.full((*x.shape[:2], 1), True)
    if lengths is not None:
        inside = (jnp.arange(x.shape[0])[:, None] < jnp.reshape(lengths, (1, -1)))[..., None]
    outputs, last = [], []
    for way in range(len(units.directions)):
        cells = units.cells(way)
        states = [_first(cell, x, init, len(units.directions) * i + way) for i, cell in enumerate(cells)]
        step = _step(cells, dropout)
        out, new = layers.rnn(step, [x, inside], states, time_major=True, is_reverse=way == 1)
        outputs.append(out)
        last.append(new)
    out = jnp.concatenate(outputs, axis=-1)
    in_order = [states for of_layer in zip(*last, strict=True) for states in of_layer]
    joined = [jnp.stack(kind) for kind in zip(*map(jax.tree.leaves, in_order), strict=True)]
    return jnp.swapaxes(out, 0, 1) if batch_first else out, joined


def _first(cell: Any, x: Any, init: Any, index: int) -> Any:
    """Return the initial states of a recurrent cell, whose index among all cells is `index`.

    `init` is a list of arrays with the initial states of all cells; if it is None, return the defaults of the cell."""
    states = cell.get_initial_states(x, batch_dim_idx=1)
    if init is None:
        return states
    return jax.tree.unflatten(jax.tree.structure(states), [given[index] for given in init])


def _step(cells: Sequence[Any], dropout: tuple[float, str]) -> Callable[[Any, Any], tuple[Any, Any]]:
    """Return a function that computes one time step of a stack of recurrent cells, with dropout after each cell."""
    share, implementation = dropout

    def step(inputs: Any, states: Any) -> tuple[Any, Any]:
        x, inside = inputs
        after = []
        for cell, before in zip(cells, states, strict=True):
            new = jax.tree.map(lambda a, b: jnp.where(inside, a, b), cell.call(x, before)[1], before)
            after.append(new)
            x = jax.tree.leaves(new)[0]
            if share:
                x = layers.dropout(x, share, dropout_implementation=implementation)
        return x, after

    return step
