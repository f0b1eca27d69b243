"""`repeat`: identical blocks, one after another, compiled once."""

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
    """Apply `n` blocks of one structure one after another, `x = block(x)`, each with its own parameters.

    The block is traced and compiled once for any `n`. Each parameter and each moving average that the block creates is
    one array for all blocks, `[n, ...]`, under the name scope of the layer: `repeat_0/fc_0.w_0`. Every block has its
    own slice of that array, which is initialized from its own random key, and its own dropout masks. All blocks share
    an array that is named by `ParamAttr(name=...)`, as in a Python loop.

    An optimizer sees the array of all blocks. This makes no difference for rules that look at each element alone (SGD,
    Momentum, Adam, ...). Rules that take norms of parameters or gradients (LARS, LAMB, Muon, clips by norm in
    ParamAttr) take the norm of all blocks together.

    With `pipeline="stage"` and a mesh such as `fluid.Mesh(stage=4)` each device along that axis has its share of the
    blocks, of their arrays and of the optimizer state. The batch passes through the devices in parts, so that all
    devices work at once. Each device is idle in `stages - 1` of the `stages + microbatches - 1` turns. The numbers
    equal the numbers on one device; dropout masks are equal to the bit. So a block must compute each row separately,
    and must not change states, as `layers.batch_norm` does. On one device, or along an axis of size 1, this is an
    ordinary stack.

    Args:
      block: `block(x) -> x`, or, with `xs`, `block(x, x_i) -> (x, y_i)`; each is a value, None, or a pytree of values.
      n: number of blocks.
      x: the input of the first block: a value, or a pytree of values. A block returns a value with the structure,
        shapes and dtypes of `x`.
      xs: a pytree of arrays `[n, ...]`, such as the caches of decoders; each block is called with its slice.
      remat: True recomputes the values inside a block for the gradient instead of keeping them, which takes less memory
        and more time.
      name: name of the layer; by default `repeat_N`.
      pipeline: the axis of the mesh over which the blocks are divided; its size must divide `n`. Every value in `x`
        then has the rows of the batch as its first dimension.
      microbatches: the number of parts of a batch in a pipeline. The default is the number of stages; more parts reduce
        the idle time. If the division leaves a remainder, rows are added that do not affect the result.

    Returns:
      The result of the last block; with `xs` also the `y_i` of all blocks, `[n, ...]`.

    Raises:
      ShapeError: a block returns another structure, other shapes or other dtypes than its input has; `xs` do not have
        `n` slices; or a value in the `x` of a pipeline has no rows.
      ArgumentError: `n` is no positive integer. For a pipeline: the mesh has no such axis, or the axis divides the
        batch; the axis does not divide `n`; a row depends on other rows; states change; or there are `xs`.

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
        # Inside a scan the compiler cannot merge the recomputation with the first computation.
        step = jax.checkpoint(step, prevent_cse=False)

    given = (numbers, stack.arrays) if xs is None else (numbers, stack.arrays, xs)
    (result, shared), (own, ys) = jax.lax.scan(step, (x, stack.states()), given)
    stack.keep({**shared, **own})
    return record_outputs(this, result) if xs is None else (record_outputs(this, result), record_outputs(this, ys))


def _check_pipeline(this: Layer, stack: core.Stack, x: Any, xs: Any) -> None:
    """Check that a stack can run as a pipeline.

    Raises:
      ArgumentError: the blocks change states, or there are `xs`.
      ShapeError: a value in the input of the first block has no rows.
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
