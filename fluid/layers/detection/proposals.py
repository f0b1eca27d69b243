"""Regions that may hold objects, which the first stage of Faster R-CNN (Ren et al., 2015) hands on to the second."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, dense, describe, layer
from fluid.layers.detection.box import areas, clipped, exact, exact_array, ground_truth, image_sizes, sides
from fluid.layers.detection.coder import decoded
from fluid.layers.detection.suppression import largest, suppressed
from fluid.layers.sequence.steps import packed, sequence_batch

# A box is at most this many times as wide or high as its anchor: from 16 pixels to 1000.
_LARGEST = math.log(1000 / 16)


@layer
def generate_proposals(
    scores: core.Value,
    bbox_deltas: core.Value,
    im_info: core.Value,
    anchors: core.Value,
    variances: core.Value,
    pre_nms_top_n: int = 6000,
    post_nms_top_n: int = 1000,
    nms_thresh: float = 0.5,
    min_size: float = 0.1,
    eta: float = 1.0,
    name: str | None = None,
    return_rois_num: bool = False,
) -> tuple[Any, ...]:
    """Regions that may hold an object: anchors moved as predicted, of which the most probable are left.

    Regions are cut off at the edges of the image; small ones are left out, and those that overlap better ones.

    Args:
      scores: how probable it is that an anchor holds an object, `[batch, anchors, height, width]`.
      bbox_deltas: offsets from the anchors, `[batch, anchors * 4, height, width]`.
      im_info: `[batch, 3]`: height and width of each image, and the factor by which it was resized to them.
      anchors: `[height, width, anchors, 4]`, in pixels, of which the last is inside.
      variances: what offsets are multiplied by, of the same shape.
      pre_nms_top_n: how many regions are looked at, the most probable; 0 for all.
      post_nms_top_n: how many are left at most; 0 for any number.
      nms_thresh: a region is left out when its intersection with a better one is a larger part of their union; 0 to
        leave all, whatever `post_nms_top_n` is.
      min_size: least width and height in pixels of the image before it was resized; 1 where it is less.
      eta: below 1, the threshold is multiplied by it after each region that is left, while it is above 0.5.
      name: instead of `generate_proposals_N`.
      return_rois_num: whether to return the number of regions too.

    Returns:
      Regions, a SequenceBatch `[batch, post_nms_top_n, 4]`, the best first, and their scores, one of
      `[batch, post_nms_top_n, 1]`; with `return_rois_num` also how many there are in each image, int32 `[batch]`. They
      carry no gradient.

    Raises:
      ArgumentError: a number of regions is negative.
      ShapeError: the inputs do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     features = fluid.layers.data("features", shape=[8, 4, 4])
      ...     anchors, variances = fluid.layers.anchor_generator(features, [32.0], [0.5, 1.0, 2.0], stride=[16.0, 16.0])
      ...     scores = fluid.layers.sigmoid(fluid.layers.conv2d(features, num_filters=3, filter_size=1))
      ...     deltas = fluid.layers.conv2d(features, num_filters=12, filter_size=1)
      ...     info = fluid.layers.data("info", shape=[3])
      ...     return fluid.layers.generate_proposals(scores, deltas, info, anchors, variances, post_nms_top_n=10)
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 10, 4] float32[batch, 10, 1]
    """
    this = Layer("generate_proposals", name)
    limits = [core.whole_number(this.name, argument, value, least=0) for argument, value in
              (("pre_nms_top_n", pre_nms_top_n), ("post_nms_top_n", post_nms_top_n))]  # fmt: skip
    chances, offsets, around, factors = _predictions(this, scores, bbox_deltas, anchors, variances)
    best, places = largest(chances, limits[0] or None)
    count = best.shape[1]
    offsets = jnp.take_along_axis(offsets, places[..., None], axis=1) * factors[places]
    moves = jnp.concatenate([offsets[..., :2], jnp.minimum(offsets[..., 2:], _LARGEST)], axis=-1)
    boxes = decoded(moves, around[places], jnp.ones(4, moves.dtype), 1.0)
    height, width, scale = (v[:, None] for v in image_sizes(this, im_info, boxes.shape[0]))
    boxes = jax.lax.stop_gradient(clipped(boxes, width - 1, height - 1))
    large = _large(boxes, (width, height), scale, max(float(min_size), 1.0))
    if nms_thresh > 0:
        large = suppressed(boxes, large, limits[1] or None, nms_thresh, eta, 1.0)
        count = min(limits[1] or count, count)
    lengths = jnp.sum(large, axis=1, dtype=jnp.int32)
    order = jnp.argsort(~large, axis=1, stable=True)[:, :count, None]
    left = (jnp.take_along_axis(v, order, axis=1) for v in (boxes, best[..., None]))
    results = tuple(this.output(sequence_batch(v, lengths)) for v in left)
    return (*results, this.output(lengths)) if return_rois_num else results


@layer
def distribute_fpn_proposals(
    fpn_rois: core.Value, min_level: int, max_level: int, refer_level: int, refer_scale: int, name: str | None = None
) -> tuple[list[core.SequenceBatch], core.SequenceBatch]:
    """Deal regions out to the levels of a feature pyramid (Lin et al., 2017): the larger, the coarser.

    A region whose area has the square root `s` belongs to level `refer_level + log2(s / refer_scale)`, rounded down.

    Args:
      fpn_rois: regions in pixels, of which the last is inside: a SequenceBatch `[batch, regions, 4]`.
      min_level: the finest level.
      max_level: the coarsest level.
      refer_level: the level of regions of the size `refer_scale`.
      refer_scale: square root of their area.
      name: instead of `distribute_fpn_proposals_N`.

    Returns:
      The regions of each level, a list of SequenceBatches `[batch, regions, 4]` from the finest to the coarsest; and
      where each of the given regions is among the rows of all levels, one after the other, int32: a SequenceBatch
      `[batch, regions, 1]`. `gather(concat(levels), restore)` has the regions in their old order, and so it is with
      what was computed from them.

    Raises:
      ArgumentError: there is no level, or the scale is not positive.
      ShapeError: the regions are no sequence batch.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     maps = [fluid.layers.data("fine", shape=[1, 16, 16]), fluid.layers.data("coarse", shape=[1, 8, 8])]
      ...     rois = fluid.layers.data("rois", shape=[4], lod_level=1)
      ...     levels, restore = fluid.layers.distribute_fpn_proposals(rois, 2, 3, refer_level=3, refer_scale=16)
      ...     pooled = [fluid.layers.roi_align(features, level, spatial_scale=scale)
      ...               for features, level, scale in zip(maps, levels, [1 / 2, 1 / 4])]
      ...     return fluid.layers.gather(fluid.layers.concat(pooled), restore)
      >>> feed = {"fine": np.full((1, 1, 16, 16), 2.0), "coarse": np.full((1, 1, 8, 8), 3.0)}
      >>> feed["rois"] = [[[0, 0, 30, 30], [4, 4, 10, 10], [8, 8, 30, 30]]]
      >>> fluid.Session(program).run(program, feed)[0].rows()[0].ravel().tolist()
      [3.0, 2.0, 3.0]
    """
    this = Layer("distribute_fpn_proposals", name)
    rois = ground_truth(this, fpn_rois, "fpn_rois")
    count = _count_levels(this, min_level, max_level)
    if not refer_scale > 0:
        raise errors.ArgumentError(f"{this.name}: refer_scale={refer_scale!r}; expected a positive number, as in 224")
    size = jnp.sqrt(areas(jax.lax.stop_gradient(dense(rois)), 1.0))
    level = jnp.floor(jnp.log2(size / refer_scale + 1e-6) + refer_level) - min_level
    level = jnp.where(rois.mask, jnp.clip(level, 0, count - 1), -1)
    members = jnp.stack([level == i for i in range(count)])
    place = jnp.cumsum(members.reshape(-1), dtype=jnp.int32).reshape(members.shape) - 1
    restore = jnp.sum(jnp.where(members, place, 0), axis=0)[..., None]
    return [this.output(packed(rois, own)) for own in members], this.output(rois.with_data(restore))


@layer
def collect_fpn_proposals(
    multi_rois: Sequence[core.Value],
    multi_scores: Sequence[core.Value],
    min_level: int,
    max_level: int,
    post_nms_top_n: int,
    name: str | None = None,
) -> core.SequenceBatch:
    """The most probable of the regions that were proposed on all levels of a feature pyramid (Lin et al., 2017).

    Args:
      multi_rois: for each level its regions, a SequenceBatch `[batch, regions, 4]`, as from `generate_proposals`.
      multi_scores: for each level their scores, a SequenceBatch `[batch, regions, 1]`.
      min_level: the finest level.
      max_level: the coarsest level.
      post_nms_top_n: how many regions are left of each image, at most.
      name: instead of `collect_fpn_proposals_N`.

    Returns:
      A SequenceBatch `[batch, post_nms_top_n, 4]`, the best of each image first. It carries no gradient.

    Raises:
      ArgumentError: there is no level, or the number of regions is not positive.
      ShapeError: there are not regions and scores for each level, or they do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     rois = [fluid.layers.data(f"rois{i}", shape=[4], lod_level=1) for i in range(2)]
      ...     scores = [fluid.layers.data(f"scores{i}", shape=[1], lod_level=1) for i in range(2)]
      ...     return fluid.layers.collect_fpn_proposals(rois, scores, min_level=2, max_level=3, post_nms_top_n=2)
      >>> feed = {"rois0": [[[0, 0, 5, 5], [1, 1, 9, 9]]], "scores0": [[0.2, 0.9]]}
      >>> feed |= {"rois1": [[[2, 2, 30, 30]]], "scores1": [[0.5]]}
      >>> fluid.Session(program).run(program, feed)[0].rows()[0].tolist()
      [[1.0, 1.0, 9.0, 9.0], [2.0, 2.0, 30.0, 30.0]]
    """
    this = Layer("collect_fpn_proposals", name)
    count = _count_levels(this, min_level, max_level)
    rois = [ground_truth(this, v, "multi_rois") for v in list(multi_rois)[:count]]
    scores = list(multi_scores)[:count]
    shapes = [(*v.shape[:2], 1) for v in rois]
    if len(rois) < count or [v.shape for v in scores] != shapes:
        raise errors.ShapeError(
            f"{this.name}: multi_rois {[describe(v) for v in rois]} and multi_scores {[describe(v) for v in scores]} "
            f"for {count} levels; expected sequence batches [batch, regions, 4] and [batch, regions, 1] for each"
        )
    there = jnp.concatenate([v.mask for v in rois], axis=1)
    chances = jnp.where(there, jnp.concatenate([exact(v)[..., 0] for v in scores], axis=1), -jnp.inf)
    boxes = jnp.concatenate([dense(v) for v in rois], axis=1)
    most = core.whole_number(this.name, "post_nms_top_n", post_nms_top_n)
    best, places = largest(jax.lax.stop_gradient(chances), most)
    own = jnp.take_along_axis(jax.lax.stop_gradient(boxes), places[..., None], axis=1)
    return this.output(sequence_batch(own, jnp.sum(best > -jnp.inf, axis=1)))


def _predictions(
    this: Layer, scores: core.Value, bbox_deltas: core.Value, anchors: core.Value, variances: core.Value
) -> tuple[jax.Array, ...]:
    """Scores `[batch, n]`, offsets `[batch, n, 4]`, anchors and variances `[n, 4]`, pixel by pixel."""
    chances, offsets, around, factors = (exact_array(this, v) for v in (scores, bbox_deltas, anchors, variances))
    wanted = chances.shape if chances.ndim == 4 else (0, 0, 0, 0)
    batch, count, rows, columns = wanted
    fits = offsets.shape == (batch, count * 4, rows, columns) and around.shape == (rows, columns, count, 4)
    if not fits or factors.shape != around.shape:
        raise errors.ShapeError(
            f"{this.name}: scores {describe(scores)}, bbox_deltas {describe(bbox_deltas)}, anchors {describe(anchors)} "
            f"and variances {describe(variances)} do not fit; expected [batch, anchors, height, width], [batch, "
            f"anchors * 4, height, width], and [height, width, anchors, 4] twice, as from layers.anchor_generator"
        )
    chances, offsets = (jnp.moveaxis(jax.lax.stop_gradient(v), 1, -1) for v in (chances, offsets))
    return chances.reshape(batch, -1), offsets.reshape(batch, -1, 4), around.reshape(-1, 4), factors.reshape(-1, 4)


def _large(boxes: jax.Array, whole: tuple[jax.Array, jax.Array], scale: jax.Array, least: float) -> jax.Array:
    """Which boxes `[batch, n, 4]` are large enough, and have their middle in an image of such width and height."""
    result = jnp.ones(boxes.shape[:-1], bool)
    for first, size, most in zip((boxes[..., 0], boxes[..., 1]), sides(boxes, 0.0), whole, strict=True):
        result &= (size / scale + 1 >= least) & (first + (size + 1) / 2 <= most)
    return result


def _count_levels(this: Layer, min_level: int, max_level: int) -> int:
    """The number of levels.

    Raises:
      ArgumentError: a level is no whole number, or `max_level` is less than `min_level`.
    """
    lowest = core.whole_number(this.name, "min_level", min_level, least=0)
    return core.whole_number(this.name, "max_level", max_level, least=lowest) - lowest + 1
