"""Pipelines: blocks of a stack that lie on several devices, and the parts of a batch that pass through them."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from fluid import core, errors
from fluid.layers.base import Layer
from fluid.layers.control.rowwise import Block, Rowwise, count_rows, rowwise


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


def pipelined(
    this: Layer, pipeline: Pipeline, block: Block, numbers: Any, arrays: Any, x: Any, remat: bool = False
) -> Any:
    """What blocks compute one after the other, each on the device of the pipeline on which its arrays lie.

    A stage has some of the blocks. It works on one part of the batch at a time, and hands what it has computed on to
    the next stage, while it goes on with the next part. All parts take a turn each, and one more for each stage but the
    first; so in some turns a stage has no part to work on, and computes something that nobody reads. The gradient takes
    the same way back.

    Args:
      this: the layer.
      pipeline: the devices.
      block: of which each row of the result follows from this row of `x` alone.
      numbers: of the blocks, int32 `[n]`.
      arrays: of the blocks, each `[n, ...]`, by name.
      x: what the first block is given, a pytree of arrays `[batch, ...]`.
      remat: whether what happens within a block is computed again for the gradient.

    Returns:
      What the last block returns, of the same structure, shapes and dtypes.

    Raises:
      ArgumentError: the block cannot compute some rows of a batch alone, see `rowwise`.

    References:
      Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (2019).
    """
    rows = count_rows(this, x)
    split = pipeline.split(rows)
    axes = {pipeline.axis, core.DATA} & core.axes_here().keys()
    own = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape[1:], array.dtype), arrays)
    work = rowwise(this, block, own, x, split.rows, split.row, axes)
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
    """A function that runs blocks one after the other, called with the arguments of `work.function` for all of them."""

    def run(constants: Any, first: Any, numbers: Any, arrays: Any, x: Any) -> Any:
        def step(value: Any, given: Any) -> tuple[Any, None]:
            return work.function(constants, first, *given, value), None

        # Inside a scan the compiler cannot merge what is computed again with what was computed before.
        again = jax.checkpoint(step, prevent_cse=False) if remat else step
        return jax.lax.scan(again, x, (numbers, arrays))[0]

    return run


def _on_stage(
    pipeline: Pipeline, split: Split, run: Callable[..., Any], constants: Any, numbers: Any, arrays: Any, x: Any
) -> Any:
    """What one device does: the turns, and what it has computed in those in which the last stage has a part.

    Args:
      pipeline: the devices.
      split: how the rows of the batch are divided.
      run: see `_through`.
      constants: what blocks read from outside.
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
        first = split.first(shard, microbatch).astype(jnp.uint32)
        done = run(constants, first, numbers, arrays, mine)
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


def _with_rows(array: Any, count: int) -> Any:
    """An array with its last row once more behind it, as often as it takes to have so many rows."""
    return array if array.shape[0] == count else jnp.take(array, jnp.arange(count), axis=0, mode="clip")
