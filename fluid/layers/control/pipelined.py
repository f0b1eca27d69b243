"""Pipeline parallelism: devices divide the blocks of `layers.repeat`, and compute different microbatches at once."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from fluid import core, errors
from fluid.core.equations import inner_jaxprs, is_literal, user_line
from fluid.core.rows import mixed_rows
from fluid.layers.base import Layer
from fluid.layers.control.branch import describe_tree

# The type of one function in a stack of equal functions: `block(index, arrays, x)`, where `arrays` is a dict from names
# to arrays, returns a value with the structure, shapes and dtypes of `x`.
Block = Callable[[Any, Any, Any], Any]

_DRAWS = ("random_bits", "random_split", "random_gamma")


class Rowwise(NamedTuple):
    """A block of a net, converted to a function that gets the values of its closure as arguments.

    `jax.shard_map` can run this function on a part of the rows of a batch.

    Attributes:
      function: `function(constants, first, *arguments)`, where `first` is the index in the batch of the first row, and
        `arguments` are the arguments of the block. Random numbers depend on the key of the training step and on
        `first`, so each part of the batch draws other numbers.
      constants: a pytree of arrays: the values that the block reads from outside, and the data of the block's
        random key.
    """

    function: Callable[..., Any]
    constants: Any


def count_rows(this: Layer, x: Any) -> int:
    """Return the number of rows, which is the size of the first dimension of every array in a pytree.

    Raises:
      ShapeError: the arrays have different numbers of rows, or an array has no dimensions.
    """
    counts = [leaf.shape[0] if leaf.ndim else -1 for leaf in jax.tree.leaves(x)]
    if len(set(counts)) != 1 or -1 in counts:
        raise errors.ShapeError(
            f"{this.name}: x is {describe_tree(x)}; with pipeline= every value in it has the rows of the batch as its "
            f"first dimension; what is the same for all rows is used within the block, from outside"
        )
    return int(counts[0])


def rowwise(this: Layer, block: Block, own: Any, x: Any, rows: int, axes: set[str]) -> Rowwise:
    """Convert a block of `layers.repeat` to a function that computes only `rows` rows of a batch.

    The results equal the corresponding rows of the result for the full batch. Random numbers are an exception: each
    part of the batch draws other numbers. `rowwise` traces the block to find the values that the block reads from
    outside, and to check that no row depends on other rows.

    Args:
      x: the full batch, a pytree of arrays `[batch, ...]`.

    Raises:
      ArgumentError: a row of the result depends on other rows of the input; the block would draw equal random numbers
        for all parts of the batch; or a loop in the block reads values from outside, for which JAX has no gradient.
    """
    given = this.frame.given
    key = jax.random.key(0) if given.key is None else given.key
    words, impl = jax.random.key_data(key), jax.random.key_impl(key)
    number = jnp.int32(0)

    def work(words: Any, first: Any, *rest: Any) -> Any:
        own_key = jax.random.fold_in(jax.random.wrap_key_data(words, impl=impl), first)
        with _drawing(given, None if given.key is None else own_key):
            return block(*rest)

    with core.manual_axes(axes):
        _check_apart(this, block, number, own, x)
        with _about_rows(this, x, rows):
            part = jax.make_jaxpr(work)(words, jnp.uint32(0), number, own, _of_rows(x, rows))
    if line := _fixed_draw(part.jaxpr, set(part.jaxpr.invars[:2])):
        raise errors.ArgumentError(
            f"{this.name}: {line} draws random numbers with a key of its own; leave seed= out there. With pipeline= a "
            f"block is given a part of the rows at a time, and would draw the same numbers for each part; or draw "
            f"outside, and give it through x"
        )
    if this.frame.mode == core.TRAIN:
        _check_loops(this, part.jaxpr)

    def function(constants: Any, first: Any, *rest: Any) -> Any:
        read, words = constants
        found = jax.core.eval_jaxpr(part.jaxpr, read, words, first, *jax.tree.leaves(rest))
        return jax.tree.unflatten(jax.tree.structure(x), found)

    return Rowwise(function, (part.consts, words))


def _check_apart(this: Layer, block: Block, number: Any, own: Any, x: Any) -> None:
    """Check that a block computes each row of its result only from the same row of its input."""
    rows = max(count_rows(this, x), 2)
    traces = []
    for count in (rows, rows + 1):
        with _about_rows(this, x, count):
            traces.append((count, jax.make_jaxpr(block)(number, own, _of_rows(x, count))))
    line = mixed_rows(traces, len(jax.tree.leaves(x)))
    if line is not None:
        raise errors.ArgumentError(
            f"{this.name}: a row of what the block returns depends on other rows of the batch, at {line}. With "
            f"pipeline= a block is given a part of the rows at a time; compute each row by itself, as "
            f"layers.feature_norm does, or leave pipeline= out"
        )


def _check_loops(this: Layer, jaxpr: Any) -> None:
    """Check that loops and branches in a block read no float values from outside the block.

    JAX would compute the gradient of these values on the outer mesh, which is not visible inside `jax.shard_map`.
    """
    for equation in jaxpr.eqns:
        for inner in inner_jaxprs(equation):
            if equation.primitive.name in ("scan", "cond") and any(map(_is_from_outside, inner.invars)):
                raise errors.ArgumentError(
                    f"{this.name}: a loop or branch in the block, at {user_line(equation)}, reads a value from "
                    f"outside, which has no gradient with pipeline=; make it a parameter of the block or, if it has "
                    f"rows, give it through x"
                )
            _check_loops(this, inner)


def _fixed_draw(jaxpr: Any, fresh: set[Any], line: str = "its block") -> str | None:
    """Return the source line of a random draw that would be equal for all microbatches; None if there is none.

    Microbatches are the parts into which a pipeline divides a batch. An equal draw depends on no variable in `fresh`.
    """
    for equation in jaxpr.eqns:
        moves = [not is_literal(v) and v in fresh for v in equation.invars]
        # JAX records no source line inside a function that it has traced before; use the line of the outer equation.
        here = user_line(equation)
        here = line if here == "unknown line" else here
        if equation.primitive.name in _DRAWS and not any(moves):
            return here
        for inner in inner_jaxprs(equation):
            # Match inner and outer inputs from the last to the first, because the first input of a `cond` equation is
            # the index of the branch, which the branches do not take.
            same = zip(reversed(inner.invars), reversed(moves), strict=False)
            if found := _fixed_draw(inner, {v for v, moving in same if moving}, here):
                return found
        if any(moves):
            fresh |= set(equation.outvars)
    return None


def _is_from_outside(variable: Any) -> bool:
    mesh = variable.aval.sharding.mesh if hasattr(variable.aval, "sharding") else None
    moving = jnp.issubdtype(variable.aval.dtype, jnp.inexact)
    return moving and mesh is not None and not mesh.empty and not mesh.manual_axes


def _of_rows(x: Any, count: int) -> Any:
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct((count, *array.shape[1:]), array.dtype), x)


@contextlib.contextmanager
def _drawing(given: Any, key: Any) -> Iterator[None]:
    """Make layers draw random numbers from `key` inside a `with` block.

    `given` holds the inputs of the traced run; its attribute `key` is replaced, and restored at the end of the block.
    """
    before = given.key
    given.key = key
    try:
        yield
    finally:
        given.key = before


@contextlib.contextmanager
def _about_rows(this: Layer, x: Any, count: int) -> Iterator[None]:
    """Add a note to errors inside a `with` block, unless `count` is the number of rows of the batch `x`.

    The note explains that a block of a pipeline was traced with `count` rows, and must accept any number of rows.
    """
    try:
        yield
    except Exception as error:
        if count != count_rows(this, x):
            error.add_note(
                f"{this.name}: with pipeline= the block must take any number of rows, and was given {count} here; "
                f"values from outside that have rows go through x: repeat(lambda v: (f(*v), v[1]), n, (h, memory))"
            )
        raise


class Pipeline(NamedTuple):
    """A pipeline: the devices along a mesh axis, each of which computes an equal number of blocks of `layers.repeat`.

    Attributes:
      axis: the name of the mesh axis.
      size: the number of devices along the axis; each device is one stage.
      microbatches: the requested number of microbatches, which pass through the stages one after another.
      shards: the number of shards into which the mesh axis "data" divides a batch.
      groups: the number of groups into which the mesh axis "fsdp" divides the rows of each shard.
    """

    axis: str
    size: int
    microbatches: int
    shards: int
    groups: int

    def split(self, rows: int) -> "MicrobatchSplit":
        """Return a division of a batch of `rows` rows into equal microbatches, with extra rows for a remainder."""
        places = self.shards * self.groups
        each = -(-rows // (places * self.microbatches))
        return MicrobatchSplit(self.shards, self.groups, -(-rows // (places * each)), each)


class MicrobatchSplit(NamedTuple):
    """A division of the rows of a batch into shards, groups and microbatches.

    A shard consists of consecutive rows of the batch. A group consists of consecutive rows of its shard, and all groups
    have equal size. Microbatch `m` of a shard consists of part `m` of each group, so that no row moves to another
    device.

    Attributes:
      shards: the number of shards into which the mesh axis "data" divides the batch.
      groups: the number of groups into which the mesh axis "fsdp" divides the rows of each shard.
      microbatches: the number of microbatches.
      each: the number of rows that one group contributes to one microbatch.
    """

    shards: int
    groups: int
    microbatches: int
    each: int

    @property
    def rows(self) -> int:
        """The number of rows that one shard (part of the batch) contributes to each microbatch."""
        return self.groups * self.each

    @property
    def total(self) -> int:
        """The number of rows of the batch, including extra rows for the division into equal microbatches."""
        return self.shards * self.microbatches * self.rows

    def first(self, shard: Any, microbatch: Any) -> Any:
        """Return the index in the batch of the first row of microbatch number `microbatch` in shard number `shard`."""
        return (shard * self.groups * self.microbatches + microbatch) * self.each

    def parts(self, array: Any) -> Any:
        """Divide the rows of one shard of a batch into microbatches, which pass through the pipeline one by one.

        Returns:
          `[microbatches, rows of a microbatch, ...]`, from an array `[rows of the shard, ...]`.
        """
        grouped = array.reshape(self.groups, self.microbatches, self.each, *array.shape[1:])
        return grouped.swapaxes(0, 1).reshape(self.microbatches, self.rows, *array.shape[1:])

    def together(self, array: Any) -> Any:
        """Join microbatches, `[microbatches, rows of a microbatch, ...]`, to a shard, `[rows of the shard, ...]`."""
        grouped = array.reshape(self.microbatches, self.groups, self.each, *array.shape[2:])
        return grouped.swapaxes(0, 1).reshape(self.microbatches * self.rows, *array.shape[2:])


def pipeline_of(owner: str, axis: str | None, n: int, microbatches: int | None) -> Pipeline | None:
    """Return the pipeline along an axis of the current mesh, or None if each device computes all blocks.

    Raises:
      ArgumentError: `axis` is not a string, or is an axis that divides the batch; the mesh has no axis of this name;
        the number of devices along the axis does not divide `n`; or the call is inside a block of a pipeline.
    """
    if axis is None:
        if microbatches is not None:
            raise errors.ArgumentError(
                f'{owner}: microbatches={microbatches!r} are those of a pipeline; name its axis, as in pipeline="stage"'
            )
        return None
    if axis in (core.DATA, core.FSDP):
        raise errors.ArgumentError(
            f'{owner}: pipeline={axis!r}, which is an axis of the batch; name another one, as in pipeline="stage" and '
            f"parallel=fluid.Mesh({axis}=2, stage=4)"
        )
    here = core.axes_here()
    named = core.axes_of(f"{owner}: pipeline", (axis,), here)[0]
    if microbatches is not None:
        core.whole_number(owner, "microbatches", microbatches)
    if not named or here[axis] == 1:
        return None
    size = here[axis]
    if core.manual_axes_here():
        raise errors.ArgumentError(
            f"{owner}: this is a block of a pipeline, which has none itself; leave pipeline= out"
        )
    core.check_stages(owner, axis, n, size)
    return Pipeline(axis, size, microbatches or size, here.get(core.DATA, 1), here.get(core.FSDP, 1))


def pipelined(
    this: Layer, pipeline: Pipeline, block: Block, numbers: Any, arrays: Any, x: Any, remat: bool = False
) -> Any:
    """Compute a stack of blocks as a pipeline of stages, each of which computes some of the blocks on one device.

    In each iteration, a stage computes one microbatch and passes the result to the next stage. There are
    `microbatches + stages - 1` iterations. In `stages - 1` of them, a stage has no microbatch, and computes an unused
    result. The gradient passes backwards through the stages.

    Args:
      numbers: the indices of the blocks, int32 `[n]`.
      arrays: the arrays of the blocks, each `[n, ...]`, by name.
      x: the input of the first block, a pytree of arrays `[batch, ...]`.

    Raises:
      ArgumentError: the block cannot compute a part of the rows of a batch separately; see `rowwise`.

    References:
      Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (2019).
    """
    rows = count_rows(this, x)
    split = pipeline.split(rows)
    axes = {pipeline.axis, core.DATA} & core.axes_here().keys()
    own = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype), arrays)
    work = rowwise(this, block, own, x, split.rows, axes)
    stage = PartitionSpec(pipeline.axis)
    batch = PartitionSpec(core.DATA if core.DATA in axes else None)
    mapped = jax.shard_map(
        partial(_on_stage, pipeline, split, _through(work, remat)),
        in_specs=(PartitionSpec(), stage, stage, batch),
        out_specs=PartitionSpec(*stage, *batch),
        axis_names=axes,
        check_vma=False,
    )
    padded = jax.tree.map(partial(_with_rows, count=split.total), x)
    found = mapped(work.constants, numbers, arrays, padded)
    return jax.tree.map(lambda array: _last(array)[:rows], found)


def _through(work: Rowwise, remat: bool) -> Callable[..., Any]:
    """Return a function that runs several blocks of a net one after another, on one device of a pipeline.

    The argument `work` is the block, converted by `rowwise`. If `remat` is True, the values inside a block are
    recomputed for the gradient. The arguments of the returned function are the constants of `work`, the index in the
    batch of the first row, the stacked indices of the blocks, their stacked arrays, and the input of the first block.
    """

    def run(constants: Any, first: Any, numbers: Any, arrays: Any, x: Any) -> Any:
        def step(value: Any, given: Any) -> tuple[Any, None]:
            return work.function(constants, first, *given, value), None

        # `prevent_cse=False` is safe: inside a scan, XLA cannot merge the recomputation with the first computation.
        again = jax.checkpoint(step, prevent_cse=False) if remat else step
        return jax.lax.scan(again, x, (numbers, arrays))[0]

    return run


def _on_stage(
    pipeline: Pipeline,
    split: MicrobatchSplit,
    run: Callable[..., Any],
    constants: Any,
    numbers: Any,
    arrays: Any,
    x: Any,
) -> Any:
    """Run one stage of the pipeline for all iterations; `jax.shard_map` calls this function on each device.

    Returns:
      A pytree of arrays `[1, rows of the shard, ...]`: the results of the iterations in which the last stage has a
      microbatch. On the last stage, they are the result of the pipeline; on other stages, they are unused.
    """
    stage = jax.lax.axis_index(pipeline.axis)
    shard = jax.lax.axis_index(core.DATA) if core.DATA in core.axes_here() else 0
    last = pipeline.size - 1
    following = [(i, i + 1) for i in range(last)]

    def turn(before: Any, given: Any) -> Any:
        time, fresh = given
        arrived = jax.lax.ppermute(before, pipeline.axis, following)
        mine = jax.tree.map(partial(jnp.where, stage == 0), fresh, arrived)
        microbatch = jnp.clip(time - stage, 0, split.microbatches - 1)
        first = split.first(shard, microbatch).astype(jnp.uint32)
        done = run(constants, first, numbers, arrays, mine)
        return done, done

    parts = jax.tree.map(split.parts, x)
    # A stage of the pipeline that has no microbatch yet computes copies of real rows. For arbitrary numbers, the unused
    # results could be NaN, and the gradient would be NaN times zero, which is NaN.
    queue = jax.tree.map(lambda array: jnp.concatenate([array, jnp.repeat(array[-1:], last, axis=0)]), parts)
    begin = jax.tree.map(lambda array: array[0], parts)
    _, done = jax.lax.scan(turn, begin, (jnp.arange(split.microbatches + last), queue))
    return jax.tree.map(lambda array: split.together(array[last:])[None], done)


def _last(array: Any) -> Any:
    """Return the slice of a pipeline's last stage from an array `[stages, ...]`, replicated on all devices."""
    # Compute `array[-1]` as a masked sum, because for the slice XLA would send the array twice between devices. XLA
    # computes the sum across the devices of the stages. The gradient of the sum needs no communication.
    size = array.shape[0]
    chosen = (jnp.arange(size) == size - 1).reshape(size, *[1] * (array.ndim - 1))
    return jnp.sum(jnp.where(chosen, array, 0), axis=0, dtype=array.dtype)


def _with_rows(array: Any, count: int) -> Any:
    return array if array.shape[0] == count else jnp.take(array, jnp.arange(count), axis=0, mode="clip")
