"""The object detector SSD (Liu et al., 2016): prediction heads, decoding of predictions, and the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, dense, describe, layer
from fluid.layers.checks import check_ids
from fluid.layers.detection.box import (
    Variance,
    boxes_in_images,
    boxes_of,
    decode,
    encode,
    exact_array,
    iou,
    variance_of,
)
from fluid.layers.detection.matching import Matches, greedy_match, threshold_of
from fluid.layers.detection.prior import prior_box
from fluid.layers.detection.suppression import candidates, count_of, detections, nms
from fluid.layers.image.conv import conv2d
from fluid.layers.image.spatial import image_of
from fluid.layers.no_effect import no_effect


@layer
def multi_box_head(
    inputs: Sequence[Value],
    image: Value,
    base_size: int,
    num_classes: int,
    aspect_ratios: Sequence[Any],
    min_ratio: int | None = None,
    max_ratio: int | None = None,
    min_sizes: Sequence[Any] | None = None,
    max_sizes: Sequence[Any] | None = None,
    steps: Sequence[float] | None = None,
    step_w: Sequence[float] | None = None,
    step_h: Sequence[float] | None = None,
    offset: float = 0.5,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    flip: bool = True,
    clip: bool = False,
    kernel_size: Any = 1,
    pad: Any = 0,
    stride: Any = 1,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Build the prediction head of SSD: prior boxes on several feature maps, with predicted offsets and classes.

    For each feature map, the layer calls `prior_box`, and applies one convolution for the offsets and one for the
    classes.

    Args:
      inputs: a list of feature maps `[batch, channels, height, width]`, the finest first.
      image: the image, `[batch, channels, height, width]`; only the size is used.
      base_size: the size of the image in pixels; `min_ratio` and `max_ratio` are percentages of this size.
      num_classes: the number of classes, including the background.
      aspect_ratios: a list with the argument `aspect_ratios` of `prior_box` for each feature map.
      min_ratio: without `min_sizes` and `max_sizes`, the size of boxes on the second feature map, in percent of
        `base_size`. The boxes on the first feature map then have sizes from 10 to 20 percent.
      max_ratio: the largest size of boxes, in percent; sizes grow in equal steps from each feature map to the next.
      min_sizes: a list with the argument `min_sizes` of `prior_box` for each feature map.
      max_sizes: a list with the argument `max_sizes` of `prior_box` for each feature map.
      steps: a list with one number for each feature map: the step of `prior_box` along width and height.
      step_w: if `steps` is not given, a list with the step along the width for each feature map.
      step_h: if `steps` is not given, a list with the step along the height for each feature map.
      offset: prior boxes around pixel `i` of a feature map are centred at `(i + offset) * step` in the image.
      variance: four variances, by which the offsets are divided.
      flip: whether to add the reciprocal of each aspect ratio.
      clip: whether to clip prior boxes to the image.
      kernel_size: the filter size of the convolutions.
      pad: the padding of the convolutions, whose results must have the height and width of the feature map.
      stride: the stride of the convolutions.
      name: the argument `name` of each convolution; by default the automatic names `conv2d_N`.
      min_max_aspect_ratios_order: whether the square from `max_sizes` is the second prior box, and not the last.

    Returns:
      Offsets `[batch, priors, 4]`, logits of the classes `[batch, priors, num_classes]`, prior boxes `[priors, 4]` and
      their variances `[priors, 4]`, each concatenated from all feature maps.

    Raises:
      ArgumentError: sizes, ratios or steps are missing, or a list does not have one entry for each feature map.
      ShapeError: a feature map does not have four dimensions, or the convolutions change its size.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 32, 32])
      ...     fine = fluid.layers.conv2d(image, num_filters=8, filter_size=3, stride=4, padding=1)
      ...     coarse = fluid.layers.conv2d(fine, num_filters=8, filter_size=3, stride=2, padding=1)
      ...     return fluid.layers.multi_box_head(
      ...         [fine, coarse], image, base_size=32, num_classes=3, aspect_ratios=[[2.0], [2.0]],
      ...         min_sizes=[6.0, 12.0], max_sizes=[12.0, 24.0])
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 320, 4] float32[batch, 320, 3] float32[320, 4] float32[320, 4]
    """
    this = Layer("multi_box_head", name)
    maps: list[Any] = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if min_sizes is None and max_sizes is None and len(maps) > 2:
        min_sizes, max_sizes = _sizes(this, len(maps), base_size, min_ratio, max_ratio)
    small, large = _for_each(this, "min_sizes", min_sizes, maps), _for_each(this, "max_sizes", max_sizes, maps, ())
    ratios = _for_each(this, "aspect_ratios", aspect_ratios, maps)
    across = _for_each(this, "step_w", step_w if steps is None else steps, maps, 0.0)
    down = _for_each(this, "step_h", step_h if steps is None else steps, maps, 0.0)
    for features in maps:
        image_of(this, features, 4, "NCHW")
    parts: list[tuple[Any, ...]] = []
    for i, features in enumerate(maps):
        boxes, variances = prior_box(
            features, image, small[i], _listed(large[i]), ratios[i], variance, flip, clip, [across[i], down[i]], offset,
            name, min_max_aspect_ratios_order,
        )  # fmt: skip
        predicted = [
            _predicted(this, features, boxes, conv2d(features, boxes.shape[2] * k, kernel_size, stride, pad, name=name))
            for k in (4, num_classes)
        ]
        parts.append((*predicted, boxes.reshape(-1, 4), variances.reshape(-1, 4)))
    joined = [jnp.concatenate(same, axis=-2) for same in zip(*parts, strict=True)]
    offsets, logits, boxes, variances = (this.output(value) for value in joined)
    return offsets, logits, boxes, variances


@layer
def detection_output(
    loc: Value,
    scores: Value,
    prior_box: Value,
    prior_box_var: Variance,
    background_label: int = 0,
    nms_threshold: float = 0.3,
    nms_top_k: int = 400,
    keep_top_k: int = 200,
    score_threshold: float = 0.01,
    nms_eta: float = 1.0,
    return_index: bool = False,
    name: str | None = None,
) -> Any:
    """Detect objects from SSD's predictions: decode offsets, apply softmax to logits, and apply `multiclass_nms`.

    Args:
      loc: predicted offsets from the prior boxes, `[batch, priors, 4]`.
      scores: logits of the classes, `[batch, priors, classes]`.
      prior_box: normalized prior boxes `[priors, 4]`.
      prior_box_var: variances `[priors, 4]`, four numbers for all prior boxes, or None for ones.
      background_label: the class of the background, which is ignored; -1 if there is none.
      nms_threshold: the largest allowed intersection over union of two boxes of a class.
      nms_top_k: for each class, the number of most probable boxes to use; -1 for all.
      keep_top_k: the largest number of boxes to return for each image, over all classes; -1 for no limit.
      score_threshold: only boxes with a higher probability are used.
      nms_eta: if below 1, the threshold is multiplied by `nms_eta` after each selected box, as long as it is above 0.5.
      return_index: whether to return the index of the prior box of each returned box too.
      name: name of the layer; by default `detection_output_N`.

    Returns:
      A SequenceBatch `[batch, keep_top_k, 6]` with one step `[label, probability, x1, y1, x2, y2]` for each object,
      ordered by class and then by probability. With `return_index` also a SequenceBatch of int32
      `[batch, keep_top_k, 1]`: the index of the prior box, plus the number of prior boxes times the index of the image.
      The results have no gradient.

    Raises:
      ArgumentError: `nms_top_k` or `keep_top_k` is neither positive nor -1.
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     offsets, logits = fluid.layers.data("offsets", shape=[80, 4]), fluid.layers.data("logits", shape=[80, 3])
      ...     prior = fluid.layers.data("prior", shape=[80, 4], append_batch_size=False)
      ...     return fluid.layers.detection_output(offsets, logits, prior, [0.1, 0.1, 0.2, 0.2], keep_top_k=20)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 20, 6]
    """
    this = Layer("detection_output", name)
    core.expect("logits", "layers.detection_output", scores, "leave out that activation, the layer computes a softmax")
    prior = boxes_of(this, exact_array(this, prior_box), "prior_box", 2)
    offsets = exact_array(this, loc)
    if offsets.ndim != 3 or offsets.shape[1:] != prior.shape:
        raise errors.ShapeError(
            f"{this.name}: loc {describe(loc)} for {len(prior)} prior boxes; expected [batch, {len(prior)}, 4], as "
            f"from layers.multi_box_head"
        )
    boxes = decode(offsets, prior, variance_of(this, prior_box_var, prior), 0.0)
    chances = jnp.swapaxes(jax.nn.softmax(exact_array(this, scores), axis=-1), 1, 2)
    keep = count_of(this, "keep_top_k", keep_top_k)
    found = candidates(this, boxes, chances, score_threshold, nms_top_k, background_label)
    left = nms(found.boxes, found.scores > -jnp.inf, keep, nms_threshold, nms_eta, 0.0)
    rows, places = detections(found, jnp.where(left, found.scores, -jnp.inf), keep)
    rows = this.output(rows)
    if not return_index:
        return rows
    first = boxes.shape[1] * jnp.arange(boxes.shape[0], dtype=jnp.int32)[:, None, None]
    return rows, this.output(places.with_data(jnp.where(places.mask[..., None], places.data + first, 0)))


def _predicted(this: Layer, features: Value, boxes: jax.Array, result: jax.Array) -> jax.Array:
    """Reshape the result of a convolution from `[batch, n * k, height, width]` to `[batch, height * width * n, k]`.

    Args:
      boxes: the prior boxes, `[height, width, n, 4]`.
    """
    if result.shape[2:] != boxes.shape[:2]:
        raise errors.ShapeError(
            f"{this.name}: the convolutions turn {describe(features)} into {list(result.shape[2:])} pixels, and there "
            f"are prior boxes for each pixel of the input; use stride=1, and pad=1 for kernel_size=3"
        )
    count = math.prod(boxes.shape[:3])
    return jnp.moveaxis(result, 1, -1).reshape(result.shape[0], count, -1)


def _sizes(this: Layer, count: int, base: int, least: int | None, most: int | None) -> tuple[list[float], list[float]]:
    """Compute the `min_sizes` and `max_sizes` of `count` feature maps from two percentages of the image size."""
    if least is None or most is None or not most - least >= count - 2:
        raise errors.ArgumentError(
            f"{this.name}: min_ratio={least!r}, max_ratio={most!r} for {count} feature maps without sizes; expected "
            f"two percentages, as in min_ratio=20, max_ratio=90, or min_sizes= and max_sizes="
        )
    step = int(math.floor((most - least) / (count - 2)))
    ratios = [10, *range(least, most + 1, step)][: count + 1]
    return [base * r / 100 for r in ratios], [base * 0.2, *(base * (r + step) / 100 for r in ratios[1:])]


def _for_each(this: Layer, argument: str, value: Any, maps: list[Any], default: Any = None) -> list[Any]:
    """Check that a value is a list with at least one entry for each feature map, and return the list."""
    if value is None and default is not None:
        return [default] * len(maps)
    if not isinstance(value, list | tuple) or len(value) < len(maps):
        raise errors.ArgumentError(
            f"{this.name}: {argument}={value!r}; expected a list of {len(maps)}, one for each feature map"
        )
    return list(value)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | np.ndarray) else [value]


class _Objects(NamedTuple):
    """The ground-truth objects of a batch of images, and the predicted logits of the prior boxes.

    Attributes:
      boxes: the boxes of the objects, `[batch, objects, 4]`, zeros for padding.
      labels: the classes of the objects, `[batch, objects]`.
      logits: the predicted logits, `[batch, priors, classes]`.
      background: the class of the background.
    """

    boxes: jax.Array
    labels: jax.Array
    logits: jax.Array
    background: int

    def targets(self, found: Matches, prior: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the target box and target class of each prior box, taken from the object matched with the prior box.

        A prior box without an object has itself as target box, and the background as target class.

        Args:
          prior: the prior boxes, `[priors, 4]`.

        Returns:
          Boxes `[batch, priors, 4]`, and classes `[batch, priors]`.
        """
        positive = found.rows >= 0
        if self.boxes.shape[1] == 0:
            return jnp.broadcast_to(prior, (*positive.shape, 4)), jnp.full(positive.shape, self.background)
        rows = jnp.maximum(found.rows, 0)
        boxes = jnp.take_along_axis(self.boxes, rows[..., None], axis=1)
        labels = jnp.take_along_axis(self.labels, rows, axis=1)
        return jnp.where(positive[..., None], boxes, prior), jnp.where(positive, labels, self.background)


@layer
@no_effect(sample_size="only negatives are mined, of which `neg_pos_ratio` says how many")
def ssd_loss(
    location: Value,
    confidence: Value,
    gt_box: Value,
    gt_label: Value,
    prior_box: Value,
    prior_box_var: Variance = None,
    background_label: int = 0,
    overlap_threshold: float = 0.5,
    neg_pos_ratio: float = 3.0,
    neg_overlap: float = 0.5,
    loc_loss_weight: float = 1.0,
    conf_loss_weight: float = 1.0,
    match_type: str = "per_prediction",
    mining_type: str = "max_negative",
    normalize: bool = True,
    sample_size: int | None = None,
    name: str | None = None,
) -> jax.Array:
    """Compute the loss of SSD for the offsets and classes of prior boxes (Liu et al., 2016).

    The layer matches ground-truth objects with prior boxes by intersection over union, as `bipartite_match` does. The
    positives are the matched prior boxes. The negatives are those unmatched prior boxes that have the largest cross
    entropy. The loss is the smooth L1 loss of the offsets of positives, plus the cross entropy of positives and
    negatives.

    Args:
      location: predicted offsets from the prior boxes, `[batch, priors, 4]`.
      confidence: logits of the classes, `[batch, priors, classes]`.
      gt_box: the normalized boxes of the objects, a SequenceBatch `[batch, objects, 4]`.
      gt_label: the classes of the objects, a SequenceBatch of integers `[batch, objects, 1]`.
      prior_box: normalized prior boxes `[priors, 4]`.
      prior_box_var: variances `[priors, 4]`, four numbers for all prior boxes, or None for ones.
      background_label: the class of the background.
      overlap_threshold: the `dist_threshold` of `bipartite_match`.
      neg_pos_ratio: the largest number of negatives for each positive of an image.
      neg_overlap: the exclusive upper bound of the intersection over union of a negative with any object.
      loc_loss_weight: the weight of the loss of the offsets.
      conf_loss_weight: the weight of the loss of the classes.
      match_type: "per_prediction" or "bipartite", see `bipartite_match`.
      mining_type: "max_negative", the only supported value.
      normalize: whether to divide the loss by the number of positives in the batch.
      sample_size: accepted for programs written for Fluid, but has no effect: only negatives are mined, of which
        `neg_pos_ratio` says how many.
      name: name of the layer; by default `ssd_loss_N`.

    Returns:
      The loss of each image, float32 `[batch, 1]`; 0 for an image without objects.

    Raises:
      ArgumentError: `match_type` or `mining_type` has an unknown value.
      ArgumentTypeError: classes are not integers.
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     offsets, logits = fluid.layers.data("offsets", shape=[80, 4]), fluid.layers.data("logits", shape=[80, 3])
      ...     boxes = fluid.layers.data("boxes", shape=[4], lod_level=1)
      ...     labels = fluid.layers.data("labels", shape=[1], dtype="int64", lod_level=1)
      ...     prior = fluid.layers.data("prior", shape=[80, 4], append_batch_size=False)
      ...     loss = fluid.layers.ssd_loss(offsets, logits, boxes, labels, prior, [0.1, 0.1, 0.2, 0.2])
      ...     return fluid.layers.mean(loss)
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("ssd_loss", name)
    core.expect("logits", "layers.ssd_loss", confidence, "leave out that activation, as layers.multi_box_head does")
    if mining_type != "max_negative":
        raise errors.ArgumentError(f'{this.name}: mining_type={mining_type!r}; expected "max_negative"')
    threshold = threshold_of(this, match_type, overlap_threshold)
    prior = boxes_of(this, exact_array(this, prior_box), "prior_box", 2)
    variance = variance_of(this, prior_box_var, prior)
    objects = _objects(this, gt_box, gt_label, exact_array(this, confidence), background_label)
    offsets = exact_array(this, location)
    _check_predictions(this, location, confidence, objects, prior)
    overlap = iou(objects.boxes[:, :, None], prior, 0.0)
    found = greedy_match(overlap, threshold)
    positive = found.rows >= 0
    boxes, labels = objects.targets(found, prior)
    wrong = _cross_entropy(objects.logits, labels)
    apart = jnp.max(overlap, axis=1, initial=0) < neg_overlap
    counted = positive | _hardest(wrong, ~positive & apart, positive, neg_pos_ratio)
    moved = _smooth_l1(offsets - encode(boxes, prior, variance, 0.0))
    loss = conf_loss_weight * jnp.where(counted, wrong, 0) + loc_loss_weight * jnp.where(positive, moved, 0)
    total = jnp.sum(loss, axis=1, keepdims=True)
    return this.output(total / jnp.maximum(jnp.sum(positive), 1).astype(total.dtype) if normalize else total)


def _objects(this: Layer, gt_box: Value, gt_label: Value, logits: jax.Array, background: int) -> _Objects:
    boxes = boxes_in_images(this, gt_box, "gt_box")
    labels = check_ids(this.name, gt_label, "gt_label")
    if not isinstance(gt_label, core.SequenceBatch) or labels.shape not in (boxes.shape[:2], (*boxes.shape[:2], 1)):
        raise errors.ShapeError(
            f"{this.name}: gt_label {describe(gt_label)} for gt_box {describe(gt_box)}; expected one class for each "
            f'box, as from layers.data("gt_label", shape=[1], dtype="int64", lod_level=1)'
        )
    core.limit_feed(gt_label, 0, logits.shape[-1])
    return _Objects(dense(boxes), labels.reshape(boxes.shape[:2]), logits, background)


def _check_predictions(this: Layer, location: Value, confidence: Value, objects: _Objects, prior: jax.Array) -> None:
    wanted = (objects.boxes.shape[0], prior.shape[0])
    if location.shape != (*wanted, 4) or objects.logits.ndim != 3 or objects.logits.shape[:2] != wanted:
        raise errors.ShapeError(
            f"{this.name}: location {describe(location)} and confidence {describe(confidence)} for {prior.shape[0]} "
            f"prior boxes; expected [batch, {prior.shape[0]}, 4] and [batch, {prior.shape[0]}, classes], as from "
            f"layers.multi_box_head"
        )


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Compute the cross entropy of each prior box, `[batch, priors]`; it is NaN if the class is out of range.

    Args:
      logits: `[batch, priors, classes]`.
      labels: the target classes, integers `[batch, priors]`.
    """
    inside = (labels >= 0) & (labels < logits.shape[-1])
    own = jnp.take_along_axis(logits, jnp.where(inside, labels, 0)[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.where(inside, own, jnp.nan)


def _smooth_l1(difference: jax.Array) -> jax.Array:
    away = jnp.abs(difference)
    return jnp.sum(jnp.where(away < 1, 0.5 * difference * difference, away - 0.5), axis=-1)


def _hardest(loss: jax.Array, able: jax.Array, positive: jax.Array, ratio: float) -> jax.Array:
    """Select the prior boxes with the largest losses as negatives (hard negative mining).

    Args:
      loss: the loss of each prior box, `[batch, priors]`.
      able: a mask of the prior boxes that can be negatives, bool `[batch, priors]`.
      positive: a mask of the positives, bool `[batch, priors]`.

    Returns:
      A mask of the negatives, bool `[batch, priors]`.
    """
    order = jnp.argsort(jnp.where(able, -jax.lax.stop_gradient(loss), jnp.inf), axis=1, stable=True)
    most = (jnp.sum(positive, axis=1, keepdims=True) * ratio).astype(jnp.int32)
    first = jnp.arange(loss.shape[1]) < most
    return jnp.zeros_like(able).at[jnp.arange(loss.shape[0])[:, None], order].set(first) & able
