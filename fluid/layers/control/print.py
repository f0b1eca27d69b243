"""`Print`: see values while a program runs."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.layers.base import Layer, is_sequence, layer

_PHASES = ("forward", "backward", "both")


@layer
def Print(  # noqa: N802
    input: Any,
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
    """The value itself, printed whenever a step computes it, and its gradient likewise.

    Args:
      input: any shape, or a SequenceBatch.
      first_n: prints so many times, for each compilation; -1 for always.
      message: printed first.
      summarize: how many elements are shown; -1 for all.
      print_tensor_name: whether to show the name.
      print_tensor_type: whether to show the dtype.
      print_tensor_shape: whether to show the shape.
      print_tensor_lod: whether to show the lengths of a SequenceBatch.
      print_phase: "forward", "backward" for the gradient, or "both".
      name: instead of `print_N`.

    Returns:
      The input. What is printed is what flows through it, so go on with what is returned.

    Raises:
      ArgumentError: there is no such phase.

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
    if print_phase not in _PHASES:
        raise errors.ArgumentError(f"{this.name}: print_phase={print_phase!r}; expected one of {', '.join(_PHASES)}")
    shows = print_tensor_name, print_tensor_type, print_tensor_shape, print_tensor_lod

    def printer(suffix: str) -> Callable[..., None]:
        turns = itertools.count()

        def show(*arrays: Any) -> None:
            if first_n < 0 or next(turns) < first_n:
                print(_line(message, this.name + suffix, summarize, shows, *arrays), flush=True)

        return show

    forward = printer("") if print_phase != "backward" else None
    backward = printer("@GRAD") if print_phase != "forward" else None
    if not is_sequence(input):
        return this.output(_seen(forward, backward, jax.numpy.asarray(input)))
    lengths = [value for value in jax.tree.leaves(input) if value is not input.data]
    return this.output(input.with_data(_seen(forward, backward, input.data, *lengths)))


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _seen(forward: Any, backward: Any, data: Any, *lengths: Any) -> Any:
    if forward is not None:
        jax.debug.callback(forward, data, *lengths)
    return data


def _seen_forward(forward: Any, backward: Any, data: Any, *lengths: Any) -> Any:
    return _seen(forward, backward, data, *lengths), lengths


def _seen_backward(forward: Any, backward: Any, lengths: Any, gradient: Any) -> Any:
    if backward is not None and gradient.dtype != jax.dtypes.float0:
        jax.debug.callback(backward, gradient, *lengths)
    return (gradient, *[np.zeros(v.shape, jax.dtypes.float0) for v in lengths])


_seen.defvjp(_seen_forward, _seen_backward)


def _line(message: str | None, name: str, summarize: int, shows: tuple[bool, ...], data: Any, *lengths: Any) -> str:
    data = np.asarray(data)
    named, typed, shaped, with_lengths = shows
    kind = str(data.dtype) * typed + str(list(data.shape)) * shaped
    sizes = f"lengths {np.asarray(lengths[0]).tolist()}" if lengths and with_lengths else ""
    shown = data.reshape(-1)[: None if summarize < 0 else summarize]
    return " ".join(part for part in (message, name * named, kind, sizes, str(shown)) if part)
