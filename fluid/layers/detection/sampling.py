"""Sampling of anchors and regions, with targets, for training both stages of Faster R-CNN (Ren et al., 2015)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, layer
from fluid.layers.detection.box import boxes_in_images, encode
from fluid.layers.detection.matching import (
    Chosen,
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
from fluid.layers.no_effect import no_effect
from fluid.layers.sequence.steps import sequence_batch


@layer
@no_effect(anchor_var="the offsets of anchors are not divided")
def rpn_target_assign(
    bbox_pred: core.Value,
    cls_logits: core.Value,
    anchor_box: core.Value,
    anchor_var: core.Value,
    gt_boxes: core.Value,
    is_crowd: core.Value,
    im_info: core.Value,
    rpn_batch_size_per_im: int = 256,
    rpn_straddle_thresh: float = 0.0,
    rpn_fg_fraction: float = 0.5,
    rpn_positive_overlap: float = 0.7,
    rpn_negative_overlap: float = 0.3,
    use_random: bool = True,
    name: str | None = None,
) -> tuple[core.SequenceBatch, ...]:
    """Sample anchors to train the region proposal network of Faster R-CNN, and compute their targets.

    An anchor is positive if its intersection over union (IoU) with an object is at least `rpn_positive_overlap`, or is
    the largest of all anchors for an object. It is negative if its IoU with all objects is below
    `rpn_negative_overlap`.

    Args:
      bbox_pred: predicted offsets from the anchors, `[batch, anchors, 4]`.
      cls_logits: logits of the probability of an object, `[batch, anchors, 1]`.
      anchor_box: anchors in pixels, `[..., 4]`, as from `anchor_generator`.
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
      use_random: whether to draw anchors at random; otherwise the first ones are sampled.
      name: name of the layer; by default `rpn_target_assign_N`.

    Returns:
      Five SequenceBatches, the positive anchors first: logits of the sampled anchors `[batch, n, 1]`; predicted offsets
      of the positive ones `[batch, positives, 4]`; labels of the sampled anchors, 1 or 0, int32 `[batch, n, 1]`;
      targets of the offsets `[batch, positives, 4]`; and ones of this shape, for `smooth_l1(inside_weight=)`.

    Raises:
      ArgumentError: `rpn_batch_size_per_im` is not positive.
      ArgumentTypeError: the values of `is_crowd` are no integers.
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
    return Chosen(chosen, others, count, most).results(this, logits, offsets, labels, targets)


@layer
def generate_proposal_labels(
    rpn_rois: core.Value,
    gt_classes: core.Value,
    is_crowd: core.Value,
    gt_boxes: core.Value,
    im_info: core.Value,
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

    The layer adds the boxes of the objects to the regions. A region gets the class of the object with the largest
    intersection over union (IoU) if this IoU is at least `fg_thresh`. It is background if this IoU is at least
    `bg_thresh_lo` and below `bg_thresh_hi`. Other regions are not used.

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
      use_random: whether to draw regions at random; otherwise the first ones are sampled.
      is_cls_agnostic: whether all classes share the offsets of class 1, as if there were two classes.
      is_cascade_rcnn: not supported.
      name: name of the layer; by default `generate_proposal_labels_N`.

    Returns:
      Five SequenceBatches, the regions of objects first: the sampled regions `[batch, n, 4]`; their classes, int32
      `[batch, n, 1]`; targets of the offsets of all classes `[batch, n, 4 * classes]`; and twice the weights of these
      targets, 1 for the class of the region and 0 for others, for `smooth_l1(inside_weight=, outside_weight=)`.

    Raises:
      ArgumentError: `class_nums` is missing, or `is_cascade_rcnn` is True.
      ArgumentTypeError: classes or values of `is_crowd` are no integers.
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
