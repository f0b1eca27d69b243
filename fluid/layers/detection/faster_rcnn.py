"""Faster R-CNN (Ren et al., 2015): region proposals, and sampling of training targets for both stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, dense, describe, layer
from fluid.layers.detection.box import (
    areas,
    box_sizes,
    boxes_in_images,
    clip_boxes,
    decode,
    encode,
    exact,
    exact_array,
    image_sizes,
)
from fluid.layers.detection.matching import (
    SelectedAnchors,
    counts,
    objects_of,
    of_owner,
    one_for_each,
    owners,
    positive_first,
    predictions_of,
    some_of,
)
from fluid.layers.detection.prior import positive_numbers
from fluid.layers.detection.suppression import nms, top_k
from fluid.layers.no_effect import no_effect
from fluid.layers.sequence.step_selection import packed, sequence_batch

# The upper bound of the predicted offset `log(box size / anchor size)`, so that an anchor with a side of 16 pixels
# yields a box with a side of at most 1000 pixels.
_LARGEST = math.log(1000 / 16)


@layer
def generate_proposals(
    scores: Value,
    bbox_deltas: Value,
    im_info: Value,
    anchors: Value,
    variances: Value,
    pre_nms_top_n: int = 6000,
    post_nms_top_n: int = 1000,
    nms_thresh: float = 0.5,
    min_size: float = 0.1,
    eta: float = 1.0,
    name: str | None = None,
    return_rois_num: bool = False,
) -> tuple[Any, ...]:
    """Decode the predictions of a region proposal network, and select the most probable regions.

    The layer clips regions to the image, and removes small regions and regions outside of the image. Then non-maximum
    suppression removes each region that overlaps a more probable region too much.

    Args:
      scores: the probability of an object, `[batch, anchors, height, width]`.
      bbox_deltas: offsets from the anchors, `[batch, anchors * 4, height, width]`.
      im_info: `[batch, 3]`: height and width of each resized image, and the scale by which it was resized.
      anchors: `[height, width, anchors, 4]` in pixels, such as the result of `anchor_generator`.
      variances: the variances of the anchors, in the shape of `anchors`.
      pre_nms_top_n: the number of most probable regions to use for non-maximum suppression; 0 for all.
      post_nms_top_n: the largest number of regions to return; 0 for no limit.
      nms_thresh: the largest allowed intersection over union of a region with a more probable region. If it is 0, no
        region is removed because of overlap, and `post_nms_top_n` is ignored.
      min_size: the smallest width and height of a region, in pixels of the original image. Values below 1 mean 1.
      eta: if below 1, the threshold is multiplied by `eta` after each selected region, as long as it is above 0.5.
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
    fpn_rois: Value, min_level: int, max_level: int, refer_level: int, refer_scale: int, name: str | None = None
) -> tuple[list[core.SequenceBatch], core.SequenceBatch]:
    """Distribute regions over the levels of a feature pyramid (Lin et al., 2017) by their size.

    A region of the area `s * s` belongs to the level `refer_level + log2(s / refer_scale)`, rounded down.

    Args:
      fpn_rois: regions in pixels, whose width is `x2 - x1 + 1`: a SequenceBatch `[batch, regions, 4]`.
      min_level: the level of the finest feature map; smaller levels are clipped to it.
      max_level: the level of the coarsest feature map; larger levels are clipped to it.
      refer_level: the level of a region with the area `refer_scale * refer_scale`.
      refer_scale: the square root of the area of a region on level `refer_level`.
      name: name of the layer; by default `distribute_fpn_proposals_N`.

    Returns:
      The regions of each level, a list of SequenceBatches `[batch, regions, 4]`; and `restore`, the index of each
      region of `fpn_rois` in the concatenation of all levels, a SequenceBatch of int32 `[batch, regions, 1]`. Then
      `gather(concat(results, axis=0), restore)` reorders the results of all levels to the order of `fpn_rois`.

    Raises:
      ArgumentError: the levels are not integers in ascending order, or `refer_scale` is not positive.
      ShapeError: the regions are not a SequenceBatch `[batch, regions, 4]`.

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
    multi_rois: Sequence[Value],
    multi_scores: Sequence[Value],
    min_level: int,
    max_level: int,
    post_nms_top_n: int,
    name: str | None = None,
) -> core.SequenceBatch:
    """Collect the most probable regions from all levels of a feature pyramid (Lin et al., 2017).

    Args:
      multi_rois: the regions of each level, a list of SequenceBatches `[batch, regions, 4]`, such as results of
        `generate_proposals`.
      multi_scores: the scores of these regions, a list of SequenceBatches `[batch, regions, 1]`.
      min_level: the level of the finest feature map.
      max_level: the level of the coarsest feature map.
      post_nms_top_n: the largest number of regions to return for each image.
      name: name of the layer; by default `collect_fpn_proposals_N`.

    Returns:
      A SequenceBatch of regions `[batch, post_nms_top_n, 4]`, in descending order of their scores. It has no gradient.

    Raises:
      ArgumentError: the levels are not integers in ascending order, or `post_nms_top_n` is not positive.
      ShapeError: regions or scores of a level are missing, or their shapes do not fit together.

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
    this: Layer, scores: Value, bbox_deltas: Value, anchors: Value, variances: Value
) -> tuple[jax.Array, ...]:
    """Flatten the arguments of `generate_proposals` so that one dimension `n` counts all anchors at all pixels.

    Returns:
      Scores `[batch, n]`, offsets `[batch, n, 4]`, anchors `[n, 4]` and variances `[n, 4]`.
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
    """Return a mask of the boxes that are large enough, and whose centre is inside the image.

    Args:
      boxes: `[batch, n, 4]` in pixels of the resized image.
      image: width and height of the resized images, each `[batch, 1]`.
      scale: the scale by which the images were resized, `[batch, 1]`.

    Returns:
      bool `[batch, n]`.
    """
    result = jnp.ones(boxes.shape[:-1], bool)
    for first, size, most in zip((boxes[..., 0], boxes[..., 1]), box_sizes(boxes, 0.0), image, strict=True):
        result &= (size / scale + 1 >= least) & (first + (size + 1) / 2 <= most)
    return result


def _count_levels(this: Layer, min_level: int, max_level: int) -> int:
    """Return the number of levels of a feature pyramid, after a check of its lowest and highest level."""
    lowest = core.whole_number(this.name, "min_level", min_level, least=0)
    return core.whole_number(this.name, "max_level", max_level, least=lowest) - lowest + 1


@layer
@no_effect(anchor_var="the offsets of anchors are not divided")
def rpn_target_assign(
    bbox_pred: Value,
    cls_logits: Value,
    anchor_box: Value,
    anchor_var: Value,
    gt_boxes: Value,
    is_crowd: Value,
    im_info: Value,
    rpn_batch_size_per_im: int = 256,
    rpn_straddle_thresh: float = 0.0,
    rpn_fg_fraction: float = 0.5,
    rpn_positive_overlap: float = 0.7,
    rpn_negative_overlap: float = 0.3,
    use_random: bool = True,
    name: str | None = None,
) -> tuple[core.SequenceBatch, ...]:
    """Sample anchors to train the region proposal network of Faster R-CNN, and compute their targets.

    An anchor is positive if its intersection over union (IoU) with an object is at least `rpn_positive_overlap`. An
    anchor is also positive if it has the largest IoU of all anchors with one of the objects. Other anchors are negative
    if their IoU with all objects is below `rpn_negative_overlap`.

    Args:
      bbox_pred: predicted offsets from the anchors, `[batch, anchors, 4]`.
      cls_logits: logits of the probability of an object, `[batch, anchors, 1]`.
      anchor_box: anchors in pixels, `[..., 4]`, such as the result of `anchor_generator`.
      anchor_var: accepted for programs written for Fluid, but has no effect: the offsets of anchors are not divided.
      gt_boxes: boxes of the objects in pixels of the original image, a SequenceBatch `[batch, objects, 4]`.
      is_crowd: 1 for crowds, which are ignored, and 0 for other objects, a SequenceBatch `[batch, objects, 1]`.
      im_info: `[batch, 3]`: height and width of each resized image, and the scale by which it was resized.
      rpn_batch_size_per_im: the largest number of sampled anchors in each image.
      rpn_straddle_thresh: anchors that extend beyond the image by more than this number of pixels are not used. A
        negative number uses all anchors.
      rpn_fg_fraction: the largest number of positive anchors, as a fraction of `rpn_batch_size_per_im`.
      rpn_positive_overlap: the smallest IoU of a positive anchor with its object.
      rpn_negative_overlap: the exclusive upper bound of the IoU of negative anchors with all objects.
      use_random: whether to sample anchors at random; otherwise the first positive and negative anchors are used.
      name: name of the layer; by default `rpn_target_assign_N`.

    Returns:
      Five SequenceBatches, in which positive anchors come first: logits of the sampled anchors `[batch, n, 1]`;
      predicted offsets of the positive anchors `[batch, positives, 4]`; labels of the sampled anchors, 1 for positive
      and 0 for negative, int32 `[batch, n, 1]`; targets of the offsets `[batch, positives, 4]`; and ones in the shape
      of the targets, for `smooth_l1(inside_weight=)`.

    Raises:
      ArgumentError: `rpn_batch_size_per_im` is not positive.
      ArgumentTypeError: the values of `is_crowd` are not integers.
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     features, info = fluid.layers.data("features", shape=[8, 4, 4]), fluid.layers.data("info", shape=[3])
      ...     anchors, variances = fluid.layers.anchor_generator(features, [24.0], [1.0, 2.0], stride=[16.0, 16.0])
      ...     offsets, logits = (fluid.layers.conv2d(features, num_filters=n, filter_size=1) for n in (8, 2))
      ...     offsets = fluid.layers.reshape(fluid.layers.transpose(offsets, [0, 2, 3, 1]), [0, -1, 4])
      ...     logits = fluid.layers.reshape(fluid.layers.transpose(logits, [0, 2, 3, 1]), [0, -1, 1])
      ...     boxes = fluid.layers.data("boxes", shape=[4], lod_level=1)
      ...     crowd = fluid.layers.data("crowd", shape=[1], dtype="int64", lod_level=1)
      ...     chosen, moved, labels, targets, weights = fluid.layers.rpn_target_assign(
      ...         offsets, logits, anchors, variances, boxes, crowd, info, rpn_batch_size_per_im=16)
      ...     labels = fluid.layers.cast(labels, "float32")
      ...     loss = fluid.layers.mean(fluid.layers.sigmoid_cross_entropy_with_logits(chosen, labels))
      ...     return loss + fluid.layers.mean(fluid.layers.smooth_l1(moved, targets, weights)), chosen, moved
      >>> print(*fluid.Program(program).outputs)
      float32[] float32[batch, 16, 1] float32[batch, 8, 4]
    """
    this = Layer("rpn_target_assign", name)
    offsets, logits, anchors = predictions_of(this, bbox_pred, cls_logits, anchor_box, 1)
    objects = objects_of(this, gt_boxes, is_crowd, im_info)
    count = core.whole_number(this.name, "rpn_batch_size_per_im", rpn_batch_size_per_im)
    height, width, _ = (v[:, None] for v in objects.sizes)
    far = rpn_straddle_thresh if rpn_straddle_thresh >= 0 else jnp.inf
    x1, y1, x2, y2 = anchors.T
    inside = (x1 >= -far) & (y1 >= -far) & (x2 < width + far) & (y2 < height + far)
    found = owners(anchors, inside, objects)
    positive = inside & (found.nearest | (found.overlaps >= rpn_positive_overlap))
    negative = inside & ~positive & (found.overlaps < rpn_negative_overlap)
    keys = jax.random.split(core.random_key(this.name)) if use_random else (None, None)
    most = int(count * rpn_fg_fraction)
    chosen = some_of(positive, most, keys[0])
    others = some_of(negative, count - jnp.sum(chosen, axis=1, keepdims=True), keys[1])
    targets = encode(of_owner(objects.boxes, found.objects), anchors, jnp.ones(4, anchors.dtype), 1.0)
    labels = chosen.astype(jnp.int32)
    return SelectedAnchors(chosen, others, count, most).results(this, logits, offsets, labels, targets)


@layer
def generate_proposal_labels(
    rpn_rois: Value,
    gt_classes: Value,
    is_crowd: Value,
    gt_boxes: Value,
    im_info: Value,
    batch_size_per_im: int = 256,
    fg_fraction: float = 0.25,
    fg_thresh: float = 0.25,
    bg_thresh_hi: float = 0.5,
    bg_thresh_lo: float = 0.0,
    bbox_reg_weights: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    class_nums: int | None = None,
    use_random: bool = True,
    is_cls_agnostic: bool = False,
    is_cascade_rcnn: bool = False,
    name: str | None = None,
) -> tuple[core.SequenceBatch, ...]:
    """Sample regions to train the second stage of Faster R-CNN, and compute their targets.

    The layer adds the boxes of the objects to the regions. For each region, it computes the largest intersection over
    union (IoU) with an object. If this IoU is at least `fg_thresh`, the region gets the class of the object. Otherwise,
    the region is background if the IoU is at least `bg_thresh_lo` and below `bg_thresh_hi`. Other regions are not used.

    Args:
      rpn_rois: regions in pixels of the resized image, a SequenceBatch `[batch, regions, 4]`.
      gt_classes: classes of the objects from 1 on, a SequenceBatch `[batch, objects, 1]`.
      is_crowd: 1 for crowds, which are ignored, and 0 for other objects, a SequenceBatch `[batch, objects, 1]`.
      gt_boxes: boxes of the objects in pixels of the original image, a SequenceBatch `[batch, objects, 4]`.
      im_info: `[batch, 3]`: height and width of each resized image, and the scale by which it was resized.
      batch_size_per_im: the largest number of sampled regions in each image.
      fg_fraction: the largest number of regions with the class of an object, as a fraction of `batch_size_per_im`.
      fg_thresh: the smallest IoU of a region with the class of an object.
      bg_thresh_hi: the exclusive upper bound of the IoU of background.
      bg_thresh_lo: the inclusive lower bound of the IoU of background.
      bbox_reg_weights: variances of the regions, the divisors of the four offsets.
      class_nums: the number of classes, including the background.
      use_random: whether to sample regions at random; otherwise the first regions are used.
      is_cls_agnostic: whether all classes share the offsets of class 1, as if there were two classes.
      is_cascade_rcnn: not supported; only False is accepted.
      name: name of the layer; by default `generate_proposal_labels_N`.

    Returns:
      Five SequenceBatches, in which regions of objects come first: the sampled regions `[batch, n, 4]`; their classes,
      int32 `[batch, n, 1]`; targets of the offsets of all classes `[batch, n, 4 * classes]`; and, two times, the
      weights of these targets, for `smooth_l1(inside_weight=, outside_weight=)`. A weight is 1 for the class of the
      region, and 0 for other classes and for background.

    Raises:
      ArgumentError: `class_nums` is missing, or `is_cascade_rcnn` is True.
      ArgumentTypeError: classes or values of `is_crowd` are not integers.
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     rois, boxes = (fluid.layers.data(n, shape=[4], lod_level=1) for n in ("rois", "boxes"))
      ...     kinds, crowd = (fluid.layers.data(n, [1], "int64", lod_level=1) for n in ("kinds", "crowd"))
      ...     info = fluid.layers.data("info", shape=[3])
      ...     return fluid.layers.generate_proposal_labels(
      ...         rois, kinds, crowd, boxes, info, batch_size_per_im=4, class_nums=3, use_random=False)[:2]
      >>> feed = {"rois": [[[40, 40, 59, 59], [10, 0, 29, 19]]], "boxes": [[[10, 0, 29, 19]]]}
      >>> feed |= {"kinds": [[2]], "crowd": [[0]], "info": [[64, 64, 1]]}
      >>> [v.rows()[0].tolist() for v in fluid.Session(program).run(program, feed)]
      [[[10.0, 0.0, 29.0, 19.0], [40.0, 40.0, 59.0, 59.0]], [[2], [0]]]
    """
    this = Layer("generate_proposal_labels", name)
    if is_cascade_rcnn:
        raise errors.ArgumentError(f"{this.name}: is_cascade_rcnn=True is not supported; leave it out")
    classes = core.whole_number(this.name, "class_nums", class_nums, least=2)
    count = core.whole_number(this.name, "batch_size_per_im", batch_size_per_im)
    objects = objects_of(this, gt_boxes, is_crowd, im_info)
    truth = boxes_in_images(this, gt_boxes, "gt_boxes")
    labels = one_for_each(this, gt_classes, truth, "gt_classes")
    core.limit_feed(gt_classes, 0, classes)
    rois = boxes_in_images(this, rpn_rois, "rpn_rois")
    boxes = jnp.concatenate([objects.boxes, jax.lax.stop_gradient(rois.data)], axis=1)
    able = jnp.concatenate([objects.there, rois.mask], axis=1)
    found = owners(boxes, able, objects)
    positive = able & (found.overlaps >= fg_thresh)
    negative = able & ~positive & (found.overlaps >= bg_thresh_lo) & (found.overlaps < bg_thresh_hi)
    keys = jax.random.split(core.random_key(this.name)) if use_random else (None, None)
    chosen = some_of(positive, int(count * fg_fraction), keys[0])
    others = some_of(negative, count - jnp.sum(chosen, axis=1, keepdims=True), keys[1])
    places = positive_first(chosen, others, count)[..., None]
    lengths = counts(chosen | others)[0]
    weights = jnp.asarray(positive_numbers(this, "bbox_reg_weights", bbox_reg_weights, 4), boxes.dtype)
    safe = jnp.where(chosen[..., None], boxes, jnp.asarray([0, 0, 1, 1], boxes.dtype))
    offsets = encode(of_owner(objects.boxes, found.objects), safe, weights, 1.0)
    own = jnp.where(chosen, of_owner(labels, found.objects), 0).astype(jnp.int32)
    taken = [jnp.take_along_axis(v, places, axis=1) for v in (boxes, own[..., None], offsets)]
    slot = jnp.minimum(taken[1], 1) if is_cls_agnostic else taken[1]
    here = (jnp.arange(2 if is_cls_agnostic else classes) == slot) & (slot > 0)
    inside = jnp.repeat(here, 4, axis=2).astype(boxes.dtype)
    targets = jnp.where(here[..., None], taken[2][:, :, None], 0).reshape(inside.shape)
    results = (taken[0], taken[1], targets, inside, inside)
    return tuple(this.output(sequence_batch(v, lengths)) for v in results)
