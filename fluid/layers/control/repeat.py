"""The layer `repeat` compiles a stack of equal blocks once; the layer `remat` recomputes values to save memory."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, layer
from fluid.layers.control.branch import record_outputs, strongly_typed
from fluid.layers.control.pipelined import count_rows, pipeline_of, pipelined
from fluid.layers.control.while_loop import arrays_of_slices, check_carry, check_pair, count_steps, first_slice


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
    """Apply `n` blocks of equal structure one after another, `x = block(x)`, each with its own parameters.

    The block is traced and compiled only once, for any `n`. Each parameter and each moving average of the block is one
    array `[n, ...]` for all blocks, under the name scope of the layer: `repeat_0/fc_0.w_0`. Each block uses its own
    slice of the array, which is initialized from its own random key. Each block also has its own dropout masks. A
    parameter named by `ParamAttr(name=...)` is shared by all blocks, as in a Python loop.

    An optimizer updates the array of all blocks at once. This makes no difference for optimizers that update each
    element separately (SGD, Momentum, Adam, ...). Optimizers and clips that use norms of parameters or gradients (LARS,
    LAMB, Muon, clips by norm in ParamAttr) use the norm over all blocks.

    With `pipeline="stage"` and a mesh such as `fluid.Mesh(stage=4)`, the devices along the axis "stage" divide the
    blocks, their arrays and their optimizer state. The batch passes through the devices in microbatches, so that all
    devices work at once. Each device is idle in `stages - 1` of the `stages + microbatches - 1` iterations. The results
    equal the results on one device, except that each microbatch draws its own random numbers, such as dropout masks. So
    a block must compute each row separately. It must not change states, as `layers.batch_norm` does. On one device, or
    along an axis of size 1, `pipeline=` changes nothing.

    Args:
      block: `block(x) -> x`, or, with `xs`, `block(x, x_i) -> (x, y_i)`. Each of `x`, `x_i` and `y_i` is a value, None,
        or a pytree of values.
      n: the number of blocks.
      x: the input of the first block: a value, or a pytree of values. A block returns a value with the structure,
        shapes and dtypes of `x`.
      xs: a pytree of arrays `[n, ...]`, such as the caches of decoders; each block is called with its slice.
      remat: True recomputes the values inside a block for the gradient instead of keeping them, which takes less memory
        and more time.
      name: name of the layer; by default `repeat_N`.
      pipeline: the axis of the mesh over which the blocks are divided; its size must divide `n`. Every value in `x`
        then has the rows of the batch as its first dimension.
      microbatches: the number of microbatches of a batch in a pipeline. The default is the number of stages; more
        microbatches reduce the idle time. If the division leaves a remainder, rows are added that do not affect the
        result.

    Returns:
      The result of the last block; with `xs` also the `y_i` of all blocks, `[n, ...]`.

    Raises:
      ShapeError: a block returns another structure, other shapes or other dtypes than its input has; `xs` does not have
        `n` slices; or, in a pipeline, a value in `x` has no rows.
      ArgumentError: `n` is not a positive integer. For a pipeline: the mesh has no axis of this name, or the axis
        divides the batch; the size of the axis does not divide `n`; a row of the result depends on other rows; a block
        changes states; or `xs` is given.

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
    stack = core.StackedBody(block, examples, "layers.repeat", n, this.name, pipeline)
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
        # `prevent_cse=False` is safe: inside a scan, XLA cannot merge the recomputation with the first computation.
        step = jax.checkpoint(step, prevent_cse=False)

    given = (numbers, stack.arrays) if xs is None else (numbers, stack.arrays, xs)
    (result, shared), (own, ys) = jax.lax.scan(step, (x, stack.states()), given)
    stack.keep({**shared, **own})
    return record_outputs(this, result) if xs is None else (record_outputs(this, result), record_outputs(this, ys))


def _check_pipeline(this: Layer, stack: core.StackedBody, x: Any, xs: Any) -> None:
    """Check that a stack of blocks can run as a pipeline."""
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


@layer
def remat(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function, and recompute its values for the gradient instead of keeping them in memory.

    Normally, a training step keeps the results of all layers in memory for the backward pass. For a function that is
    called through `remat`, the step keeps only inputs and results. This takes less memory and more time, because the
    function is computed twice. Names, parameters, states and random numbers are equal to a call of
    `function(*args, **kwargs)`. Gradients are equal up to rounding. Values inside the function can be fetched and
    overridden by name. In test mode, the layer only calls the function.

    To save much memory, divide a net into consecutive parts that are large and have small results. Examples are the
    blocks of a deep net, or an encoder and a decoder. Wrapping the full net saves nothing, because the backward pass
    then recomputes all values at once. For blocks of equal structure use `layers.repeat(block, n, x, remat=True)`,
    which compiles the block once. The layer forbids XLA to recompute before the gradient arrives, but XLA for CPUs
    ignores this when it orders operations. So on a CPU, outside of loops, this layer saves little or no memory.

    Args:
      function: a layer such as `layers.fc`, or a custom function that calls layers. The function may open name scopes
        and use values from outside.
      args: positional arguments of `function`, of any kind.
      kwargs: keyword arguments of `function`, of any kind.

    Returns:
      The result of the function: a value, or a pytree of values.

    Raises:
      ArgumentTypeError: `function` is not callable, for example because it is the result of a call.

    References:
      Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).

    Example:
      >>> import fluid
      >>> def block(h):
      ...     return h + fluid.layers.fc(fluid.layers.fc(h, size=64, act="gelu"), size=8)
      >>> def program():
      ...     h = fluid.layers.data("x", shape=[8])
      ...     for _ in range(3):
      ...         h = fluid.layers.remat(block, h)
      ...     return fluid.layers.mean(fluid.layers.remat(fluid.layers.fc, h, size=1))
      >>> list(fluid.Program(program).parameters)[-2:]
      ['fc_6.w_0', 'fc_6.b_0']
    """
    if not callable(function):
        raise errors.ArgumentTypeError(
            f"layers.remat calls a function, found {type(function).__name__}; hand it over, and behind it its "
            f"arguments: layers.remat(layers.fc, x, size=10)"
        )
    frame = core.current_frame("layers.remat")
    # The first traced run of a program and test mode compute no gradient, so there is nothing to recompute.
    if frame.discovering or frame.mode != core.TRAIN:
        return function(*args, **kwargs)
    outside = _by_identity((args, kwargs, _seen(frame)))
    result: Any = None
    inside: dict[int, jax.Array] = {}

    def run() -> list[jax.Array]:
        # `function` calls layers, which write values into the frame, the state of the program's trace. These values
        # exist only inside `jax.checkpoint`. So return them as outputs of the checkpoint; afterwards, the outputs
        # replace the values in the frame.
        nonlocal result, inside
        result = function(*args, **kwargs)
        inside = {i: leaf for i, leaf in _by_identity((result, _seen(frame))).items() if i not in outside}
        return list(inside.values())

    handed_out = jax.checkpoint(run)()
    exchange = _Exchange(dict(zip(inside, handed_out, strict=True)))
    exchange.in_frame(frame)
    return exchange(result)


class _Exchange:
    """A callable that replaces arrays, so that code after `jax.checkpoint` reads only outputs of `jax.checkpoint`.

    Arrays that a function traces inside `jax.checkpoint` are invalid after it. Each of them is also an output, which
    replaces it.
    """

    def __init__(self, by_identity: dict[int, jax.Array]):
        self._new: dict[int, Any] = dict(by_identity)
        # This list keeps the replaced values alive, so that Python does not give their ids to new objects.
        self._old: list[Any] = []

    def __call__(self, tree: Any) -> Any:
        """Return a copy of the pytree `tree`, in which checkpoint outputs replace arrays from inside the checkpoint.

        An object that occurs several times in `tree` is replaced by the same new object each time.
        """
        return jax.tree.map(self._value, tree, is_leaf=_is_sequence)

    def in_frame(self, frame: core.Frame) -> None:
        """Replace the traced arrays in the named values, states and annotations that layers wrote into `frame`.

        The frame is the state that one traced run of a program reads and writes.
        """
        made = frame.made
        made.values.update(self(made.values))
        made.states.update(self(made.states))
        made.lookups.update(self(made.lookups))
        made.minimizations[:] = self(made.minimizations)
        noted = list(frame.annotations.values())
        frame.annotations.clear()
        for facts in noted:
            facts.update(self(facts))
            frame.annotations[id(facts["value"])] = facts

    def _value(self, value: Any) -> Any:
        if _is_sequence(value) and id(value) not in self._new:
            leaves, structure = jax.tree.flatten(value)
            changed = [self._new.get(id(leaf), leaf) for leaf in leaves]
            same = all(a is b for a, b in zip(leaves, changed, strict=True))
            self._new[id(value)] = value if same else jax.tree.unflatten(structure, changed)
            self._old.append(value)
        return self._new.get(id(value), value)


def _seen(frame: core.Frame) -> Any:
    made = frame.made
    return made.values, made.states, made.lookups, made.minimizations, list(frame.annotations.values())


def _by_identity(tree: Any) -> dict[int, jax.Array]:
    return {id(leaf): leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)}


def _is_sequence(value: Any) -> bool:
    return isinstance(value, core.SequenceBatch | core.NestedSequenceBatch)
