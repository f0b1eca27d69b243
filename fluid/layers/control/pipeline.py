"""Pipelines: blocks of a stack that lie on several devices, and the parts of a batch that pass through them."""

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from fluid import core, errors
from fluid.core.reduction import mixed_rows
from fluid.layers.base import Layer
from fluid.layers.control.pytrees import describe_tree
from fluid.layers.control.row_keys import RowKeys

# Blocks of a stack, one after the other: called with their numbers, their arrays, and what the first is given.
Blocks = Callable[[Any, Any, Any], Any]


class Pipeline(NamedTuple):
    """The devices along an axis of the mesh, each of which has as many blocks of a stack as the others.

    Attributes:
      axis: its name.
      size: how many devices it has, which are the stages.
      microbatches: into how many parts a batch is divided.
      shards: into how many parts the axis of the batch divides it, of which each device has one.
      groups: into how many parts "fsdp" divides the rows of each shard.
    """

    axis: str
    size: int
    microbatches: int
    shards: int
    groups: int

    def split(self, rows: int) -> "Split":
        """How a batch of so many rows is divided: evenly, with a few rows more where that does not come out even."""
        places = self.shards * self.groups
        each = -(-rows // (places * self.microbatches))
        return Split(self.shards, self.groups, -(-rows // (places * each)), each)


class Split(NamedTuple):
    """How the rows of a batch are divided.

    Each shard has its rows one after the other. Each of its groups has as many of them, and the microbatch with number
    `m` is made of the m-th part of each group, so that no row has to go to another device.

    Attributes:
      shards: as in Pipeline.
      groups: as in Pipeline.
      microbatches: how many there are.
      each: how many rows of a group one has.
    """

    shards: int
    groups: int
    microbatches: int
    each: int

    @property
    def rows(self) -> int:
        """How many rows a stage works on at a time."""
        return self.groups * self.each

    @property
    def total(self) -> int:
        """How many rows there are, with those that were added to divide evenly."""
        return self.shards * self.microbatches * self.rows

    def first(self, shard: Any, microbatch: Any) -> Any:
        """The number of the first row of a microbatch, in the batch."""
        return (shard * self.groups * self.microbatches + microbatch) * self.each

    def row(self, first: Any, number: Any) -> Any:
        """The number in the batch of a row that has this number in its microbatch, of which this row is the first."""
        return first + number // self.each * (self.microbatches * self.each) + number % self.each

    def parts(self, array: Any) -> Any:
        """The rows of a shard, `[rows of the shard, ...]`, as `[microbatches, rows, ...]`."""
        grouped = array.reshape(self.groups, self.microbatches, self.each, *array.shape[1:])
        return grouped.swapaxes(0, 1).reshape(self.microbatches, self.rows, *array.shape[1:])

    def together(self, array: Any) -> Any:
        """The reverse of `parts`."""
        grouped = array.reshape(self.microbatches, self.groups, self.each, *array.shape[2:])
        return grouped.swapaxes(0, 1).reshape(self.microbatches * self.rows, *array.shape[2:])


def pipeline_of(owner: str, axis: str | None, n: int, microbatches: int | None) -> Pipeline | None:
    """The pipeline along an axis of the mesh that the traced step is for; None where each device has all blocks.

    Args:
      owner: whose it is, for messages.
      axis: its name, or None.
      n: number of blocks.
      microbatches: into how many parts a batch is divided; None for as many as there are stages.

    Raises:
      ArgumentError: it is no name, or that of an axis of the batch; the mesh has other axes, and not this one; the
        blocks cannot be divided evenly; or this is the inside of a pipeline.
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


def count_rows(this: Layer, x: Any) -> int:
    """How many rows the values of a pytree have.

    Raises:
      ShapeError: they do not all have as many.
    """
    counts = [leaf.shape[0] if leaf.ndim else -1 for leaf in jax.tree.leaves(x)]
    if len(set(counts)) != 1 or -1 in counts:
        raise errors.ShapeError(
            f"{this.name}: x is {describe_tree(x)}; with pipeline= every value in it has the rows of the batch as its "
            f"first dimension; what is the same for all rows is used within the block, from outside"
        )
    return int(counts[0])


def pipelined(this: Layer, pipeline: Pipeline, blocks: Blocks, numbers: Any, arrays: Any, x: Any) -> Any:
    """What the blocks compute, each of them on the device of the pipeline on which its arrays lie.

    A stage has some of the blocks. It works on one part of the batch at a time, and hands what it has computed on to
    the next stage, while it goes on with the next part. All parts take a turn each, and one more for each stage but the
    first; so in some turns a stage has no part to work on, and computes something that nobody reads. The gradient takes
    the same way back.

    Args:
      this: the layer.
      pipeline: the devices.
      blocks: what is computed; each row of its result follows from this row of `x` alone.
      numbers: of the blocks, int32 `[n]`.
      arrays: of the blocks, each `[n, ...]`, by name.
      x: what the first block is given, a pytree of arrays `[batch, ...]`.

    Returns:
      What the last block returns, of the same structure, shapes and dtypes.

    Raises:
      ArgumentError: a row of the result follows from several rows, or random numbers are drawn for a row in a way that
        depends on the others.

    References:
      Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (2019).
    """
    rows = count_rows(this, x)
    split = pipeline.split(rows)
    _check_apart(this, blocks, numbers, arrays, x)
    part = _one_part(this, pipeline, split, blocks, numbers, arrays, x)
    padded = jax.tree.map(partial(_with_rows, count=split.total), x)
    batch = PartitionSpec(core.DATA if core.DATA in core.axes_here() else None)
    stage = PartitionSpec(pipeline.axis)
    mapped = jax.shard_map(
        partial(_on_stage, pipeline, split, part.function),
        in_specs=(PartitionSpec(), stage, stage, batch),
        out_specs=PartitionSpec(*stage, *batch),
        axis_names=_manual_axes(pipeline),
        check_vma=False,
    )
    found = mapped(part.constants, numbers, arrays, padded)
    return jax.tree.map(lambda array: _last(array)[:rows], found)


class _Part(NamedTuple):
    """What a stage does in one turn.

    Attributes:
      function: called with the constants, the number of the first row, and what Blocks are called with.
      constants: the arrays from outside that it reads, and the words of the random key.
    """

    function: Callable[..., Any]
    constants: Any


def _on_stage(
    pipeline: Pipeline, split: Split, function: Callable[..., Any], constants: Any, numbers: Any, arrays: Any, x: Any
) -> Any:
    """What one device does: the turns, and what it has computed in those in which the last stage has a part.

    Args:
      pipeline: the devices.
      split: how the rows of the batch are divided.
      function: see `_Part`.
      constants: the same.
      numbers: of this stage's blocks.
      arrays: of these blocks.
      x: the rows of this shard.

    Returns:
      Arrays `[1, rows of the shard, ...]`, of which those of the last stage are the result.
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
        done = function(constants, split.first(shard, microbatch), numbers, arrays, mine)
        return done, done

    parts = jax.tree.map(split.parts, x)
    # Who has nothing to do computes with real numbers all the same: of others, the gradient could be NaN times zero.
    queue = jax.tree.map(lambda array: jnp.concatenate([array, jnp.repeat(array[-1:], last, axis=0)]), parts)
    begin = jax.tree.map(lambda array: array[0], parts)
    _, done = jax.lax.scan(turn, begin, (jnp.arange(split.microbatches + last), queue))
    return jax.tree.map(lambda array: split.together(array[last:])[None], done)


def _last(array: Any) -> Any:
    """What the last stage has computed, on all devices, of an array `[stages, ...]`."""
    # XLA would send a slice of it twice; a sum over the stages it takes where they lie, and its gradient sends nothing.
    size = array.shape[0]
    chosen = (jnp.arange(size) == size - 1).reshape(size, *[1] * (array.ndim - 1))
    return jnp.sum(jnp.where(chosen, array, 0), axis=0, dtype=array.dtype)


def _check_apart(this: Layer, blocks: Blocks, numbers: Any, arrays: Any, x: Any) -> None:
    """Find out whether the blocks compute each row by itself.

    Raises:
      ArgumentError: they do not.
    """
    rows = max(count_rows(this, x), 2)
    traces = []
    for count in (rows, rows + 1):
        with _about_rows(this, count):
            traces.append((count, jax.make_jaxpr(blocks)(numbers, arrays, _of_rows(x, count)).jaxpr))
    line = mixed_rows(traces, len(jax.tree.leaves(x)))
    if line is not None:
        raise errors.ArgumentError(
            f"{this.name}: a row of what the block returns depends on other rows of the batch, at {line}. With "
            f"pipeline= a block is given a part of the rows at a time; compute each row by itself, as "
            f"layers.layer_norm does, or leave pipeline= out"
        )


def _one_part(
    this: Layer, pipeline: Pipeline, split: Split, blocks: Blocks, numbers: Any, arrays: Any, x: Any
) -> _Part:
    """What a stage does in one turn, traced for its share of the blocks and of the rows.

    The trace shows what is read from outside, so that all of it can be handed to each device, and what is drawn.
    """
    given = this.frame.given
    batch = count_rows(this, x)
    keys = RowKeys(this.name, jax.random.key(0) if given.key is None else given.key, batch, split.row)

    def work(words: Any, first: Any, *rest: Any) -> Any:
        with _drawing(given, None if given.key is None else keys.key(words, first)):
            return blocks(*rest)

    own = jax.tree.map(lambda a: _shape(a.shape[0] // pipeline.size, a), (numbers, arrays))
    with _about_rows(this, split.rows), core.manual_axes(_manual_axes(pipeline)):
        part = jax.make_jaxpr(work)(keys.words, jnp.uint32(0), *own, _of_rows(x, split.rows))
    keys.learn(jax.make_jaxpr(blocks)(numbers, arrays, x).jaxpr, part.jaxpr, split.rows)

    def function(constants: Any, first: Any, *rest: Any) -> Any:
        read, words = constants
        found = jax.core.eval_jaxpr(part.jaxpr, read, words, first.astype(jnp.uint32), *jax.tree.leaves(rest))
        return jax.tree.unflatten(jax.tree.structure(x), found)

    return _Part(function, (part.consts, keys.words))


def _with_rows(array: Any, count: int) -> Any:
    """An array with its last row once more behind it, as often as it takes to have so many rows."""
    return array if array.shape[0] == count else jnp.take(array, jnp.arange(count), axis=0, mode="clip")


def _of_rows(x: Any, count: int) -> Any:
    """The shapes of the same values with so many rows."""
    return jax.tree.map(partial(_shape, count), x)


def _shape(count: int, array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count, *array.shape[1:]), array.dtype)


def _manual_axes(pipeline: Pipeline) -> set[str]:
    """The axes along which it is written here what lies on which device."""
    return {pipeline.axis, core.DATA} & core.axes_here().keys()


@contextlib.contextmanager
def _drawing(given: Any, key: Any) -> Iterator[None]:
    """Let layers draw from another key."""
    before = given.key
    given.key = key
    try:
        yield
    finally:
        given.key = before


@contextlib.contextmanager
def _about_rows(this: Layer, count: int) -> Iterator[None]:
    """Say in errors of a block that it was not given the batch as it is."""
    try:
        yield
    except Exception as error:
        error.add_note(
            f"{this.name}: with pipeline= the block must take any number of rows, and was given {count} here; values "
            f"from outside that have rows go through x, as in repeat(lambda v: (f(*v), v[1]), n, (h, memory), ...)"
        )
        raise
