"""The layer `Print`, which prints values and their gradients while a program runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, layer

_PHASES = ("forward", "backward", "both")


@layer
def Print(  # noqa: N802
    input: Value,
    first_n: int = -1,
    message: str | None = None,
    summarize: int = 20,
    print_tensor_name: bool = True,
    print_tensor_type: bool = True,
    print_tensor_shape: bool = True,
    print_tensor_lod: bool = True,
    print_phase: str = "both",
    name: str | None = None,
) -> Any:
    """Return `input` unchanged, and print its value and its gradient whenever a step computes them.

    Args:
      input: the value to print: an array of any shape, or a SequenceBatch.
      first_n: the number of times to print, counted separately for each compilation; -1 for always.
      message: the beginning of each line.
      summarize: the number of elements to show; -1 for all.
      print_tensor_name: whether to show the name.
      print_tensor_type: whether to show the dtype.
      print_tensor_shape: whether to show the shape.
      print_tensor_lod: whether to show the lengths of a SequenceBatch.
      print_phase: "forward" to print values, "backward" to print gradients, or "both".
      name: name of the layer; by default `print_N`.

    Returns:
      The input. Use the returned value instead of `input` in later layers, because only the returned value prints.

    Raises:
      ArgumentError: `print_phase` is not "forward", "backward" or "both".

    Example:
      >>> import fluid, jax, numpy
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     return fluid.layers.reduce_sum(fluid.layers.Print(x, message="now:", name="x_seen"))
      >>> def show(session):
      ...     session.run(program, {"x": numpy.ones([2, 3], "float32")})
      ...     jax.effects_barrier()
      >>> show(fluid.Session(program))
      now: x_seen float32[2, 3] [1. 1. 1. 1. 1. 1.]
    """
    this = Layer("print", name)
    core.refuse_mesh(this.name, "fetch the value and print it behind the step: session.run(feed, fetch=[name])")
    if print_phase not in _PHASES:
        raise errors.ArgumentError(f"{this.name}: print_phase={print_phase!r}; expected one of {', '.join(_PHASES)}")
    line = _Line(message, summarize, print_tensor_name, print_tensor_type, print_tensor_shape, print_tensor_lod)
    forward = _printer(line, this.name, first_n) if print_phase != "backward" else None
    backward = _printer(line, f"{this.name}@GRAD", first_n) if print_phase != "forward" else None
    if not isinstance(input, core.SequenceBatch | core.NestedSequenceBatch):
        return this.output(_printed(forward, backward, jnp.asarray(input)))
    lengths = [value for value in jax.tree.leaves(input) if value is not input.data]
    return this.output(input.with_data(_printed(forward, backward, input.data, *lengths)))


@dataclass(frozen=True)
class _Line:
    """The format of the lines that the layer `Print` prints; each attribute holds one argument of `Print`."""

    message: str | None
    summarize: int
    with_name: bool
    with_dtype: bool
    with_shape: bool
    with_lengths: bool

    def format(self, name: str, data: Any, *lengths: Any) -> str:
        """Return the text to print for an array and, if the array belongs to a SequenceBatch, for its lengths."""
        data = np.asarray(data)
        parts = [
            self.message,
            name if self.with_name else None,
            (str(data.dtype) if self.with_dtype else "") + (str(list(data.shape)) if self.with_shape else ""),
            f"lengths {np.asarray(lengths[0]).tolist()}" if lengths and self.with_lengths else None,
            str(data.reshape(-1)[: None if self.summarize < 0 else self.summarize]),
        ]
        return " ".join(part for part in parts if part)


def _printer(line: _Line, name: str, first_n: int) -> Callable[..., None]:
    """Return a function that prints its arguments as one line, only in the first `first_n` calls; -1 for all calls."""
    calls = itertools.count()

    def show(*arrays: Any) -> None:
        if first_n < 0 or next(calls) < first_n:
            print(line.format(name, *arrays), flush=True)

    return show


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _printed(forward: Any, backward: Any, data: Any, *lengths: Any) -> Any:
    """Return `data` unchanged, and print it and its gradient by callbacks.

    Args:
      backward: the backward pass calls this function with the gradient of `data` and with `lengths`; None prints
        nothing.
    """
    if forward is not None:
        jax.debug.callback(forward, data, *lengths)
    return data


def _printed_forward(forward: Any, backward: Any, data: Any, *lengths: Any) -> Any:
    return _printed(forward, backward, data, *lengths), lengths


def _printed_backward(forward: Any, backward: Any, lengths: Any, gradient: Any) -> Any:
    if backward is not None and gradient.dtype != jax.dtypes.float0:
        jax.debug.callback(backward, gradient, *lengths)
    return (gradient, *[np.zeros(v.shape, jax.dtypes.float0) for v in lengths])


_printed.defvjp(_printed_forward, _printed_backward)
