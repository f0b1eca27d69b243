"""Region proposals of Faster R-CNN (Ren et al., 2015): the first stage's regions for the second stage."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, dense, describe, layer
from fluid.layers.detection.box import (
    areas,
    box_sizes,
    boxes_in_images,
    clip_boxes,
    decode,
    exact,
    exact_array,
    image_sizes,
)
from fluid.layers.detection.suppression import nms, top_k
from fluid.layers.sequence.steps import packed, sequence_batch

# The upper bound of a predicted logarithm of box size divided by anchor size: 1000 pixels for an anchor of 16.
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
    """Decode the predictions of a region proposal network, and keep the most probable regions.

    The layer clips regions to the image, removes small regions and regions outside of the image, and then removes
    regions that overlap more probable ones.

    Args:
      scores: the probability of an object, `[batch, anchors, height, width]`.
      bbox_deltas: offsets from the anchors, `[batch, anchors * 4, height, width]`.
      im_info: `[batch, 3]`: height and width of each resized image, and the scale by which it was resized.
      anchors: `[height, width, anchors, 4]` in pixels, as from `anchor_generator`.
      variances: the variances of the anchors, in the shape of `anchors`.
      pre_nms_top_n: the number of most probable regions to use; 0 for all.
      post_nms_top_n: the largest number of regions to keep; 0 for no limit.
      nms_thresh: the largest intersection over union of a region with a more probable one. For 0, all regions are kept,
        and `post_nms_top_n` is ignored.
      min_size: the least width and height in pixels of the original image, at least 1.
      eta: if below 1, a factor for `nms_thresh` after each kept region, as long as the threshold is above 0.5.
      name: name of the layer; by default `generate_proposals_N`.
      return_rois_num: whether to return the number of regions too.

    Returns:
      The regions, a SequenceBatch `[batch, post_nms_top_n, 4]` ordered by score; their scores, a SequenceBatch
      `[batch, post_nms_top_n, 1]`; and, with `return_rois_num`, the number of regions in each image, int32 `[batch]`.
      The results have no gradient.

    Raises:
      ArgumentError: a number of regions is negative.
      ShapeError: the shapes do not fit together.

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
    best, places = top_k(chances, limits[0] or None)
    count = best.shape[1]
    offsets = jnp.take_along_axis(offsets, places[..., None], axis=1) * factors[places]
    moves = jnp.concatenate([offsets[..., :2], jnp.minimum(offsets[..., 2:], _LARGEST)], axis=-1)
    boxes = decode(moves, around[places], jnp.ones(4, moves.dtype), 1.0)
    height, width, scale = (v[:, None] for v in image_sizes(this, im_info, boxes.shape[0]))
    boxes = jax.lax.stop_gradient(clip_boxes(boxes, width - 1, height - 1))
    large = _large(boxes, (width, height), scale, max(float(min_size), 1.0))
    if nms_thresh > 0:
        large = nms(boxes, large, limits[1] or None, nms_thresh, eta, 1.0)
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
    """Distribute regions over the levels of a feature pyramid (Lin et al., 2017) by their size.

    A region of the area `s * s` belongs to the level `refer_level + log2(s / refer_scale)`, rounded down.

    Args:
      fpn_rois: regions in pixels, which include their last pixel: a SequenceBatch `[batch, regions, 4]`.
      min_level: the level of the finest feature map.
      max_level: the level of the coarsest feature map.
      refer_level: the level of regions with the size `refer_scale`.
      refer_scale: the square root of the area of regions of the level `refer_level`.
      name: name of the layer; by default `distribute_fpn_proposals_N`.

    Returns:
      The regions of each level, a list of SequenceBatches `[batch, regions, 4]`; and the index of each given region in
      the concatenation of all levels, a SequenceBatch of int32 `[batch, regions, 1]`. With this index,
      `gather(concat(results, axis=0), restore)` reorders the results of all levels to the order of `fpn_rois`.

    Raises:
      ArgumentError: the levels are no whole numbers in ascending order, or `refer_scale` is not positive.
      ShapeError: the regions are no SequenceBatch.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     maps = [fluid.layers.data("fine", shape=[1, 16, 16]), fluid.layers.data("coarse", shape=[1, 8, 8])]
      ...     rois = fluid.layers.data("rois", shape=[4], lod_level=1)
      ...     levels, restore = fluid.layers.distribute_fpn_proposals(rois, 2, 3, refer_level=3, refer_scale=16)
      ...     pooled = [fluid.layers.roi_align(features, level, spatial_scale=scale)
      ...               for features, level, scale in zip(maps, levels, [1 / 2, 1 / 4])]
      ...     return fluid.layers.gather(fluid.layers.concat(pooled, axis=0), restore)
      >>> feed = {"fine": np.full((1, 1, 16, 16), 2.0), "coarse": np.full((1, 1, 8, 8), 3.0)}
      >>> feed["rois"] = [[[0, 0, 30, 30], [4, 4, 10, 10], [8, 8, 30, 30]]]
      >>> fluid.Session(program).run(program, feed)[0].rows()[0].ravel().tolist()
      [3.0, 2.0, 3.0]
    """
    this = Layer("distribute_fpn_proposals", name)
    rois = boxes_in_images(this, fpn_rois, "fpn_rois")
    count = _count_levels(this, min_level, max_level)
    if not core.is_positive(refer_scale):
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
    """Collect the most probable regions from all levels of a feature pyramid (Lin et al., 2017).

    Args:
      multi_rois: the regions of each level, a list of SequenceBatches `[batch, regions, 4]`, as from
        `generate_proposals`.
      multi_scores: the scores of these regions, a list of SequenceBatches `[batch, regions, 1]`.
      min_level: the level of the finest feature map.
      max_level: the level of the coarsest feature map.
      post_nms_top_n: the largest number of regions to keep in each image.
      name: name of the layer; by default `collect_fpn_proposals_N`.

    Returns:
      A SequenceBatch `[batch, post_nms_top_n, 4]` without gradient, ordered by score.

    Raises:
      ArgumentError: the levels are no whole numbers in ascending order, or `post_nms_top_n` is not positive.
      ShapeError: regions or scores of a level are missing, or do not fit together.

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
    rois = [boxes_in_images(this, v, "multi_rois") for v in list(multi_rois)[:count]]
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
    best, places = top_k(jax.lax.stop_gradient(chances), most)
    own = jnp.take_along_axis(jax.lax.stop_gradient(boxes), places[..., None], axis=1)
    return this.output(sequence_batch(own, jnp.sum(best > -jnp.inf, axis=1)))


def _predictions(
    this: Layer, scores: core.Value, bbox_deltas: core.Value, anchors: core.Value, variances: core.Value
) -> tuple[jax.Array, ...]:
    """Flatten pixels and anchors to scores `[batch, n]`, offsets `[batch, n, 4]`, anchors and variances `[n, 4]`.

    Raises:
      ShapeError: the shapes do not fit together.
    """
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


def _large(boxes: jax.Array, image: tuple[jax.Array, jax.Array], scale: jax.Array, least: float) -> jax.Array:
    """Return a mask of the boxes whose width and height are at least `least` and whose centre is in the image.

    Args:
      boxes: `[batch, n, 4]` in pixels of the resized image.
      image: width and height of the resized images, each `[batch, 1]`.
      scale: the scale by which the images were resized, `[batch, 1]`.
      least: the least width and height in pixels of the original image.
    """
    result = jnp.ones(boxes.shape[:-1], bool)
    for first, size, most in zip((boxes[..., 0], boxes[..., 1]), box_sizes(boxes, 0.0), image, strict=True):
        result &= (size / scale + 1 >= least) & (first + (size + 1) / 2 <= most)
    return result


def _count_levels(this: Layer, min_level: int, max_level: int) -> int:
    """Check the levels of a feature pyramid, and return their number.

    Raises:
      ArgumentError: a level is no whole number, or `max_level` is less than `min_level`.
    """
    lowest = core.whole_number(this.name, "min_level", min_level, least=0)
    return core.whole_number(this.name, "max_level", max_level, least=lowest) - lowest + 1
