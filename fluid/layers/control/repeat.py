"""`repeat`: identical blocks, one after the other, compiled once."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, layer
from fluid.layers.control.loop import arrays_of_slices, check_carry, check_pair, count_steps, first_slice
from fluid.layers.control.pipeline import pipeline_of, pipelined
from fluid.layers.control.pytrees import record_outputs, strongly_typed
from fluid.layers.control.rowwise import count_rows


@layer
def repeat(
    block: Callable[..., Any],
    n: int,
    x: Any,
    xs: Any = None,
    remat: bool = False,
    name: str | None = None,
    pipeline: str | None = None,
    microbatches: int | None = None,
) -> Any:
    """Blocks of the same structure, one after the other, each with parameters of its own: `x = block(x)`, `n` times.

    The block is traced and compiled once, however many there are. Each parameter and each moving average that it
    creates is one array for all blocks, `[n, ...]`, under the name scope of the layer: `repeat_0/fc_0.w_0`. Every block
    has its own slice of that array, which is initialised from a random key of its own, and its own dropout masks. An
    array that is named by `ParamAttr(name=...)` is shared by all blocks, as it would be in a loop of Python.

    An optimizer sees the array of all blocks. Rules that look at each element alone (SGD, Momentum, Adam, ...) do the
    same as for single parameters. Rules that take norms of parameters or gradients (LARS, LAMB, Muon, clips by norm in
    ParamAttr) take the norm of all blocks together.

    With `pipeline="stage"` and a mesh such as `fluid.Mesh(stage=4)` each device along that axis has its share of the
    blocks, of their arrays and of the optimizer's slots. The batch passes through them in parts, so that all devices
    work at the same time; of `stages + microbatches - 1` turns each of them has nothing to do in `stages - 1`. The
    numbers are those of one device, dropout masks to the bit. So a block must compute each row by itself, and must not
    change states, as `layers.batch_norm` does. On one device, or along an axis of one, this is an ordinary stack.

    Args:
      block: `block(x) -> x`, or, with `xs`, `block(x, x_i) -> (x, y_i)`; each is a value, None, or a pytree of values.
      n: number of blocks.
      x: what the first block is given: a value, or a pytree of values. A block returns a value of the same structure,
        shapes and dtypes.
      xs: a pytree of arrays `[n, ...]`, of which each block is given its slice, such as the caches of decoders.
      remat: True computes what happens within the blocks again for the gradient instead of keeping it, which takes less
        memory and more time.
      name: instead of `repeat_N`.
      pipeline: the axis of the mesh over which the blocks are divided; its size must divide `n`. Every value in `x`
        then has the rows of the batch as its first dimension.
      microbatches: into how many parts the batch is divided there; as many as there are stages by default, more for
        less waiting. What does not come out even is filled up with rows that count for nothing.

    Returns:
      What the last block returned; with `xs` also the `y_i` of all blocks, `[n, ...]`.

    Raises:
      ShapeError: a block returns another structure, other shapes or other dtypes than it was given, or `xs` do not hold
        `n` slices; or something in the `x` of a pipeline has no rows.
      ArgumentError: `n` is no positive integer; or a pipeline is asked for what it cannot do: its axis is not there or
        divides the batch, `n` cannot be divided over it, a row depends on other rows, states change, or there are `xs`.

    References:
      Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (2019).

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
    x = strongly_typed(x)
    xs = arrays_of_slices(this, xs)
    n = count_steps(this, xs, n, "n")
    examples = [x] if xs is None else [x, first_slice(xs)]
    stages = pipeline_of(this.name, pipeline, n, microbatches)
    stack = core.Stack(block, examples, "layers.repeat", n, this.name, pipeline)
    if pipeline is not None:
        _check_pipeline(this, stack, x, xs)

    def step(carried: Any, given: Any) -> Any:
        value, shared = carried
        number, own, *x_i = given
        result, changed = stack({**own, **shared}, number, value, *x_i)
        y = None
        if x_i:
            result, y = check_pair(this, result, "repeat", "lambda x, x_i: (x + x_i, None)")
        new_value = check_carry(this, "block", result, value)
        new_shared = {name: changed[name] for name in shared}
        new_own = {name: changed[name] for name in changed.keys() & own.keys()}
        return (new_value, new_shared), (new_own, strongly_typed(y))

    numbers = jnp.arange(n, dtype=jnp.int32)
    if stages is not None and count_rows(this, x):

        def one(number: Any, own: Any, value: Any) -> Any:
            return step((value, {}), (number, own))[0][0]

        return record_outputs(this, pipelined(this, stages, one, numbers, stack.arrays, x, remat))
    if remat:
        # Inside a scan the compiler cannot merge what is computed again with what was computed before.
        step = jax.checkpoint(step, prevent_cse=False)

    given = (numbers, stack.arrays) if xs is None else (numbers, stack.arrays, xs)
    (result, shared), (own, ys) = jax.lax.scan(step, (x, stack.states()), given)
    stack.keep({**shared, **own})
    return record_outputs(this, result) if xs is None else (record_outputs(this, result), record_outputs(this, ys))


def _check_pipeline(this: Layer, stack: core.Stack, x: Any, xs: Any) -> None:
    """Find out whether a stack may be a pipeline.

    Raises:
      ArgumentError: its blocks change states, or are given arrays of their own.
      ShapeError: something that the first block is given has no rows.
    """
    count_rows(this, x)
    if xs is not None:
        raise errors.ArgumentError(
            f"{this.name}: the blocks of a pipeline are given no xs; make them parameters of the block, as in "
            f"layers.create_parameter, or leave pipeline= out"
        )
    if stack.written:
        raise errors.ArgumentError(
            f"{this.name}: the block changes {', '.join(map(repr, stack.written))}, and in a pipeline it is given a "
            f"part of the rows at a time, whose statistics differ from those of the batch; use layers.feature_norm "
            f"or layers.group_norm, or leave pipeline= out"
        )
