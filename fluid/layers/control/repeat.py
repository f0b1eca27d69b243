"""`repeat`: identical blocks, one behind the other, compiled once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, layer
from fluid.layers.control.carry import recorded, settled
from fluid.layers.control.loop import check_carry, count_steps, first_slice, pair_of, settled_slices


@layer
def repeat(
    block: Callable[..., Any],
    n: int,
    x: Any,
    xs: Any = None,
    remat: bool = False,
    name: str | None = None,
) -> Any:
    """Blocks of the same structure, one behind the other, each with parameters of its own: `x = block(x)`, `n` times.

    The block is traced and compiled once, however many there are. Each parameter and each moving average that it
    creates is one array for all blocks, `[n, ...]`, under the name scope of the layer: `repeat_0/fc_0.w_0`. Every block
    has its own slice of it, initialised by itself, and its own dropout. An array named by `ParamAttr(name=...)` is one
    for all blocks, as it would be in a loop of Python.

    An optimizer sees the array of all blocks. Rules that look at each element alone (SGD, Momentum, Adam, ...) do the
    same as for single parameters; those that take norms of parameters or gradients (LARS, LAMB, Muon, clips by norm in
    ParamAttr) take that of all blocks together.

    Args:
      block: `block(x) -> x`, or, with `xs`, `block(x, x_i) -> (x, y_i)`; each is a value, None, or a pytree of values.
      n: how many blocks.
      x: what the first block is given: a value, or a pytree of values. Blocks keep structure, shapes and dtypes.
      xs: arrays `[n, ...]`, of which each block is given its slice, such as the caches of decoders.
      remat: True keeps nothing within the blocks for the way back but computes it again: less memory, more time.
      name: instead of `repeat_N`.

    Returns:
      What the last block returned; with `xs` also the `y_i` of all blocks, `[n, ...]`.

    Raises:
      ShapeError: a block returns something else than it was given, or `xs` are not of `n` blocks.
      ArgumentError: `n` is no positive integer.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[8])
      ...     return fluid.layers.repeat(lambda h: h + fluid.layers.fc(h, size=8, act="relu"), 12, x)
      >>> p = fluid.Program(program)
      >>> {name: spec.shape for name, spec in p.parameters.items()}
      {'repeat_0/fc_0.w_0': (12, 8, 8), 'repeat_0/fc_0.b_0': (12, 8)}
    """
    this = Layer("repeat", name)
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise errors.ArgumentError(
            f"{this.name}: n={n!r}; expected a positive integer, as in layers.repeat(block, 12, x)"
        )
    x, xs = settled(x), settled_slices(this, xs)
    count_steps(this, xs, n, "n")
    extra = () if xs is None else (first_slice(xs),)
    stack = core.Stack(block, [x, *extra], "layers.repeat", n, this.name)

    def step(carried: Any, given: Any) -> Any:
        value, states = carried
        turn, slices, *extra = given
        result, changed = stack({**slices, **states}, turn, value, *extra)
        y = None
        if extra:
            result, y = pair_of(this, result, "repeat", "lambda x, x_i: (x + x_i, None)")
        apart = {name: changed[name] for name in changed.keys() & slices.keys()}
        carried = check_carry(this, "block", result, value), {name: changed[name] for name in states}
        return carried, (apart, settled(y))

    step = jax.checkpoint(step, prevent_cse=False) if remat else step  # a scan keeps what it repeats apart by itself
    given = (jnp.arange(n, dtype=jnp.int32), stack.arrays, *(() if xs is None else (xs,)))
    (result, states), (apart, ys) = jax.lax.scan(step, (x, stack.states()), given)
    stack.keep({**states, **apart})
    return recorded(this, result) if xs is None else (recorded(this, result), recorded(this, ys))
