"""The object detector RetinaNet (Lin et al., 2017): training targets of anchors, and decoding of predictions."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, describe, layer
from fluid.layers.detection.box import boxes_in_images, clip_boxes, decode, encode, exact_array, image_sizes
from fluid.layers.detection.matching import SelectedAnchors, objects_of, of_owner, one_for_each, owners, predictions_of
from fluid.layers.detection.suppression import Candidates, count_of, detections, nms, top_k
from fluid.layers.functional import activation
from fluid.layers.no_effect import no_effect


@layer
@no_effect(anchor_var="the offsets of anchors are not divided")
def retinanet_target_assign(
    bbox_pred: Value,
    cls_logits: Value,
    anchor_box: Value,
    anchor_var: Value,
    gt_boxes: Value,
    gt_labels: Value,
    is_crowd: Value,
    im_info: Value,
    num_classes: int = 1,
    positive_overlap: float = 0.5,
    negative_overlap: float = 0.4,
    name: str | None = None,
) -> tuple[core.SequenceBatch | jax.Array, ...]:
    """Select anchors for the training of RetinaNet, and compute their targets.

    An anchor is positive if its intersection over union (IoU) with an object is at least `positive_overlap`. An anchor
    is also positive if it has the largest IoU of all anchors with one of the objects. Other anchors are negative if
    their IoU with all objects is below `negative_overlap`. The remaining anchors are ignored.

    Args:
      bbox_pred: predicted offsets from the anchors, `[batch, anchors, 4]`.
      cls_logits: logits of the classes without the background, `[batch, anchors, num_classes]`.
      anchor_box: anchors in pixels, `[..., 4]`, such as the result of `anchor_generator`.
      anchor_var: accepted for programs written for Fluid, but has no effect: the offsets of anchors are not divided.
      gt_boxes: boxes of the objects in pixels of the original image, a SequenceBatch `[batch, objects, 4]`.
      gt_labels: classes of the objects from 1 to `num_classes`, a SequenceBatch `[batch, objects, 1]`.
      is_crowd: 1 for crowds, which are ignored, and 0 for other objects, a SequenceBatch `[batch, objects, 1]`.
      im_info: `[batch, 3]`: height and width of each resized image, and the scale by which it was resized.
      num_classes: the number of classes without the background.
      positive_overlap: the smallest IoU of a positive anchor with its object.
      negative_overlap: the exclusive upper bound of the IoU of negative anchors with all objects.
      name: name of the layer; by default `retinanet_target_assign_N`.

    Returns:
      Six values. The first five are SequenceBatches, in which positive anchors come first: logits of the selected
      anchors `[batch, n, num_classes]`; predicted offsets of the positive anchors `[batch, positives, 4]`; classes of
      the selected anchors, 0 for negative anchors, int32 `[batch, n, 1]`; targets of the offsets
      `[batch, positives, 4]`; and ones in the shape of the targets, for `smooth_l1(inside_weight=)`. The sixth is the
      number of positive anchors in each image plus 1, int32 `[batch, 1]`.

    Raises:
      ArgumentError: `num_classes` is not positive.
      ArgumentTypeError: classes or values of `is_crowd` are not integers.
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     offsets, logits = fluid.layers.data("offsets", shape=[90, 4]), fluid.layers.data("logits", shape=[90, 3])
      ...     anchors = fluid.layers.data("anchors", shape=[90, 4], append_batch_size=False)
      ...     info = fluid.layers.data("info", shape=[3])
      ...     boxes = fluid.layers.data("boxes", shape=[4], lod_level=1)
      ...     labels, crowd = (fluid.layers.data(n, [1], "int64", lod_level=1) for n in ("labels", "crowd"))
      ...     return fluid.layers.retinanet_target_assign(
      ...         offsets, logits, anchors, None, boxes, labels, crowd, info, num_classes=3)
      >>> print(*fluid.Program(program).outputs[:2])
      float32[batch, 90, 3] float32[batch, 90, 4]
    """
    this = Layer("retinanet_target_assign", name)
    classes = core.whole_number(this.name, "num_classes", num_classes)
    offsets, logits, anchors = predictions_of(this, bbox_pred, cls_logits, anchor_box, classes)
    objects = objects_of(this, gt_boxes, is_crowd, im_info)
    labels = one_for_each(this, gt_labels, boxes_in_images(this, gt_boxes, "gt_boxes"), "gt_labels")
    core.limit_feed(gt_labels, 1, classes + 1)
    found = owners(anchors, jnp.ones(offsets.shape[:2], bool), objects)
    positive = found.nearest | (found.overlaps >= positive_overlap)
    negative = ~positive & (found.overlaps < negative_overlap)
    own = jnp.where(positive, of_owner(labels, found.objects), 0).astype(jnp.int32)
    targets = encode(of_owner(objects.boxes, found.objects), anchors, jnp.ones(4, anchors.dtype), 1.0)
    targets = jnp.where(positive[..., None], targets, 0)
    results = SelectedAnchors(positive, negative).results(this, logits, offsets, own, targets)
    return *results, this.output(results[1].lengths[:, None] + 1)


@layer
def retinanet_detection_output(
    bboxes: Sequence[Value],
    scores: Sequence[Value],
    anchors: Sequence[Value],
    im_info: Value,
    score_threshold: float = 0.05,
    nms_top_k: int = 1000,
    keep_top_k: int = 100,
    nms_threshold: float = 0.3,
    nms_eta: float = 1.0,
    name: str | None = None,
) -> core.SequenceBatch:
    """Decode the most probable predictions of RetinaNet on all feature levels, and suppress overlapping boxes.

    Args:
      bboxes: predicted offsets from the anchors, a list of one array `[batch, anchors, 4]` for each level.
      scores: probabilities of the classes without the background, a list of one array `[batch, anchors, classes]` for
        each level.
      anchors: anchors in pixels, a list of one array `[..., 4]` for each level.
      im_info: `[batch, 3]`: height and width of each resized image, and the scale by which it was resized.
      score_threshold: on all levels except the last, only predictions with a higher probability are used.
      nms_top_k: the number of most probable predictions to use on each level.
      keep_top_k: the largest number of boxes to return for each image; -1 for no limit.
      nms_threshold: the largest allowed intersection over union of two boxes of a class, see `multiclass_nms`.
      nms_eta: the factor by which the threshold decreases, see `multiclass_nms`.
      name: name of the layer; by default `retinanet_detection_output_N`.

    Returns:
      `[label, probability, x1, y1, x2, y2]` of each object, with labels from 1 on, and boxes in pixels of the original
      image, clipped to the image: a SequenceBatch `[batch, keep_top_k, 6]` without gradient, ordered by probability.

    Raises:
      ArgumentError: `nms_top_k` is not positive, or `keep_top_k` is neither positive nor -1.
      ShapeError: the shapes do not fit together, or a list does not have one entry for each level.

    Example:
      >>> import fluid
      >>> def program():
      ...     levels = [(fluid.layers.data(f"offsets{n}", [n, 4]), fluid.layers.data(f"scores{n}", [n, 3]),
      ...                fluid.layers.data(f"anchors{n}", [n, 4], append_batch_size=False)) for n in (72, 18)]
      ...     offsets, scores, anchors = (list(v) for v in zip(*levels))
      ...     info = fluid.layers.data("info", shape=[3])
      ...     return fluid.layers.retinanet_detection_output(offsets, scores, anchors, info, keep_top_k=20)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 20, 6]
    """
    this = Layer("retinanet_detection_output", name)
    if not len(bboxes) == len(scores) == len(anchors) > 0:
        raise errors.ShapeError(
            f"{this.name}: {len(bboxes)} bboxes, {len(scores)} scores and {len(anchors)} anchors; expected a list of "
            f"one for each level"
        )
    most = core.whole_number(this.name, "nms_top_k", nms_top_k)
    keep = count_of(this, "keep_top_k", keep_top_k)
    levels = [
        _best(this, *level, -jnp.inf if i == len(bboxes) - 1 else score_threshold, most)
        for i, level in enumerate(zip(bboxes, scores, anchors, strict=True))
    ]
    boxes, chances, labels = (jnp.concatenate(v, axis=1) for v in zip(*levels, strict=True))
    classes = exact_array(this, scores[0]).shape[2]
    height, width, scale = (v[:, None] for v in image_sizes(this, im_info, boxes.shape[0]))
    last = [activation("round")(side / scale) - 1 for side in (width, height)]
    boxes = clip_boxes(boxes / scale[..., None], *last)
    order = jnp.argsort(-chances, axis=1, stable=True)
    boxes, chances, labels = (
        jnp.take_along_axis(v, order.reshape(*order.shape, *[1] * (v.ndim - 2)), axis=1)
        for v in (boxes, chances, labels)
    )
    own = (labels[:, None] == jnp.arange(classes)[:, None]) & (chances > -jnp.inf)[:, None]
    spread = jnp.broadcast_to(boxes[:, None], (*own.shape, 4))
    left = nms(spread, own, keep, nms_threshold, nms_eta, 1.0)
    left = jnp.where(left, chances[:, None], -jnp.inf)
    places = jnp.broadcast_to(order[:, None].astype(jnp.int32), own.shape)
    found = Candidates(spread, left, places, np.arange(1, classes + 1))
    return this.output(detections(found, left, keep, by_class=False)[0])


def _best(
    this: Layer, bboxes: Value, scores: Value, anchors: Value, threshold: float, most: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Decode the most probable predictions of one level of the feature pyramid.

    Args:
      bboxes: predicted offsets from the anchors, `[batch, anchors, 4]`.
      scores: probabilities `[batch, anchors, classes]`.
      anchors: anchors in pixels, `[..., 4]`.

    Returns:
      Boxes `[batch, n, 4]`, probabilities `[batch, n]` (minus infinity for missing predictions), and classes
      `[batch, n]`.
    """
    offsets, chances, around = (jax.lax.stop_gradient(exact_array(this, v)) for v in (bboxes, scores, anchors))
    around = around.reshape(-1, 4)
    wanted = (offsets.shape[0], around.shape[0])
    if offsets.shape != (*wanted, 4) or chances.ndim != 3 or chances.shape[:2] != wanted:
        raise errors.ShapeError(
            f"{this.name}: bboxes {describe(bboxes)} and scores {describe(scores)} for {around.shape[0]} anchors of a "
            f"level; expected [batch, anchors, 4] and [batch, anchors, classes]"
        )
    classes = chances.shape[2]
    everything = chances.reshape(chances.shape[0], -1)
    best, places = top_k(jnp.where(everything > threshold, everything, -jnp.inf), most)
    own = places // classes
    moves = jnp.take_along_axis(offsets, own[..., None], axis=1)
    boxes = decode(moves, around[own], jnp.ones(4, moves.dtype), 1.0)
    return boxes, best, places % classes
