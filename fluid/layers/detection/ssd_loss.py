"""`ssd_loss`: the loss of SSD (Liu et al., 2016)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, dense, describe, layer
from fluid.layers.checks import check_ids
from fluid.layers.detection.box import boxes_in_images, boxes_of, exact_array, iou
from fluid.layers.detection.coder import Variance, encode, variance_of
from fluid.layers.detection.matching import Matches, greedy_match, threshold_of
from fluid.layers.no_effect import no_effect


class _Objects(NamedTuple):
    """Ground-truth objects, and the predicted classes.

    Attributes:
      boxes: `[batch, objects, 4]`, zeros for padding.
      labels: `[batch, objects]`.
      logits: `[batch, priors, classes]`.
      background: the class of the background.
    """

    boxes: jax.Array
    labels: jax.Array
    logits: jax.Array
    background: int

    def targets(self, found: Matches, prior: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return box `[batch, priors, 4]` and class `[batch, priors]` of the object of each prior box.

        A prior box without object gets itself and the background.
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
    location: core.Value,
    confidence: core.Value,
    gt_box: core.Value,
    gt_label: core.Value,
    prior_box: core.Value,
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

    Like `bipartite_match`, the layer matches ground-truth objects and prior boxes by their intersection over union. The
    positives are the matched prior boxes; the negatives are the other prior boxes with the largest losses. The loss is
    the smooth L1 loss of the offsets of positives, plus the cross entropy of positives and negatives.

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
      neg_overlap: the exclusive upper bound of the intersection over union of negatives with all objects.
      loc_loss_weight: the weight of the loss of the offsets.
      conf_loss_weight: the weight of the loss of the classes.
      match_type: "per_prediction" or "bipartite", see `bipartite_match`.
      mining_type: "max_negative", the only one.
      normalize: whether to divide the loss by the number of positives in the batch.
      sample_size: accepted for programs written for Fluid, but has no effect: only negatives are mined, of which
        `neg_pos_ratio` says how many.
      name: name of the layer; by default `ssd_loss_N`.

    Returns:
      The loss of each image, float32 `[batch, 1]`; 0 for an image without objects.

    Raises:
      ArgumentError: `match_type` or `mining_type` has another value.
      ArgumentTypeError: classes are no integers.
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


def _objects(this: Layer, gt_box: core.Value, gt_label: core.Value, logits: jax.Array, background: int) -> _Objects:
    boxes = boxes_in_images(this, gt_box, "gt_box")
    labels = check_ids(this.name, gt_label, "gt_label")
    if not isinstance(gt_label, core.SequenceBatch) or labels.shape not in (boxes.shape[:2], (*boxes.shape[:2], 1)):
        raise errors.ShapeError(
            f"{this.name}: gt_label {describe(gt_label)} for gt_box {describe(gt_box)}; expected one class for each "
            f'box, as from layers.data("gt_label", shape=[1], dtype="int64", lod_level=1)'
        )
    core.limit_feed(gt_label, 0, logits.shape[-1])
    return _Objects(dense(boxes), labels.reshape(boxes.shape[:2]), logits, background)


def _check_predictions(
    this: Layer, location: core.Value, confidence: core.Value, objects: _Objects, prior: jax.Array
) -> None:
    wanted = (objects.boxes.shape[0], prior.shape[0])
    if location.shape != (*wanted, 4) or objects.logits.ndim != 3 or objects.logits.shape[:2] != wanted:
        raise errors.ShapeError(
            f"{this.name}: location {describe(location)} and confidence {describe(confidence)} for {prior.shape[0]} "
            f"prior boxes; expected [batch, {prior.shape[0]}, 4] and [batch, {prior.shape[0]}, classes], as from "
            f"layers.multi_box_head"
        )


def _cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Compute the cross entropy of each prior box, `[batch, priors]`, NaN for an invalid class."""
    inside = (labels >= 0) & (labels < logits.shape[-1])
    own = jnp.take_along_axis(logits, jnp.where(inside, labels, 0)[..., None], axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - jnp.where(inside, own, jnp.nan)


def _smooth_l1(difference: jax.Array) -> jax.Array:
    away = jnp.abs(difference)
    return jnp.sum(jnp.where(away < 1, 0.5 * difference * difference, away - 0.5), axis=-1)


def _hardest(loss: jax.Array, able: jax.Array, positive: jax.Array, ratio: float) -> jax.Array:
    """Return a mask of the candidates with the largest losses, at most `ratio` for each positive of an image.

    Args:
      loss: `[batch, priors]`.
      able: a mask of the candidates, bool `[batch, priors]`.
      positive: bool `[batch, priors]`.
      ratio: the largest number of negatives for each positive.
    """
    order = jnp.argsort(jnp.where(able, -jax.lax.stop_gradient(loss), jnp.inf), axis=1, stable=True)
    most = (jnp.sum(positive, axis=1, keepdims=True) * ratio).astype(jnp.int32)
    first = jnp.arange(loss.shape[1]) < most
    return jnp.zeros_like(able).at[jnp.arange(loss.shape[0])[:, None], order].set(first) & able
