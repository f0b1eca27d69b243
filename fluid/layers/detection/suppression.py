"""Non-maximum suppression (NMS): keep only the best of overlapping boxes."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, describe, is_sequence, layer
from fluid.layers.detection.box import exact, iou
from fluid.layers.sequence.steps import sequence_batch


class Candidates(NamedTuple):
    """The boxes of each class with the highest scores, in descending order of the scores.

    Attributes:
      boxes: `[batch, classes, n, 4]`.
      scores: `[batch, classes, n]`, minus infinity for entries without box.
      places: int32 `[batch, classes, n]`: the index of each box in its image.
      labels: the class of each entry along the dimension `classes`, integers `[classes]`.
    """

    boxes: jax.Array
    scores: jax.Array
    places: jax.Array
    labels: np.ndarray


@layer
def multiclass_nms(
    bboxes: core.Value,
    scores: core.Value,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    name: str | None = None,
) -> core.SequenceBatch:
    """Apply non-maximum suppression to each class separately.

    The layer visits the boxes of a class in descending order of their scores. It keeps a box unless the intersection
    over union with an already kept box exceeds `nms_threshold`.

    Args:
      bboxes: `[batch, boxes, 4]`, one set of boxes for all classes; or a SequenceBatch of `[classes, 4]`.
      scores: `[batch, classes, boxes]`; or a SequenceBatch of `[classes]` if `bboxes` is a SequenceBatch.
      score_threshold: only boxes with a higher score are used.
      nms_top_k: the number of boxes with the highest scores to use of each class; -1 for all.
      keep_top_k: the largest number of boxes to keep in each image, over all classes; -1 for no limit.
      nms_threshold: the largest intersection over union with an already kept box.
      normalized: True for boxes in fractions of the image; False for boxes in pixels, which include their last pixel.
      nms_eta: if below 1, a factor for `nms_threshold` after each kept box, as long as the threshold is above 0.5.
      background_label: the class of the background, which is ignored; -1 if there is none.
      name: name of the layer; by default `multiclass_nms_N`.

    Returns:
      `[label, score, x1, y1, x2, y2]` of the kept boxes, as a SequenceBatch `[batch, keep_top_k, 6]` whose lengths
      count the kept boxes, ordered by class and then by score. The result has no gradient.

    Raises:
      ArgumentError: `nms_top_k` or `keep_top_k` is neither positive nor -1.
      ShapeError: boxes and scores do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     boxes = fluid.layers.data("boxes", shape=[80, 4])
      ...     scores = fluid.layers.softmax(fluid.layers.data("scores", shape=[80, 3]))
      ...     scores = fluid.layers.transpose(scores, [0, 2, 1])
      ...     return fluid.layers.multiclass_nms(boxes, scores, score_threshold=0.1, nms_top_k=40, keep_top_k=20)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 20, 6]
    """
    this = Layer("multiclass_nms", name)
    keep = count_of(this, "keep_top_k", keep_top_k)
    core.expect("probabilities", "layers.multiclass_nms", scores, "write layers.softmax(logits) before the transpose")
    found = candidates(this, bboxes, scores, score_threshold, nms_top_k, background_label)
    pixel = 0.0 if normalized else 1.0
    left = nms(found.boxes, found.scores > -jnp.inf, keep, nms_threshold, nms_eta, pixel)
    return this.output(detections(found, jnp.where(left, found.scores, -jnp.inf), keep)[0])


@layer
def matrix_nms(
    bboxes: core.Value,
    scores: core.Value,
    score_threshold: float,
    post_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    use_gaussian: bool = False,
    gaussian_sigma: float = 2.0,
    background_label: int = 0,
    normalized: bool = True,
    name: str | None = None,
) -> core.SequenceBatch:
    """Lower the scores of boxes that overlap boxes with higher scores: matrix NMS (Wang et al., 2020).

    Each other box of the class with a higher score yields a factor `(1 - iou) / (1 - most)`, or
    `exp(sigma * (most ** 2 - iou ** 2))`. Here `iou` is the intersection over union of both boxes. `most` is the
    largest intersection over union of the other box with boxes of still higher scores. The new score is the score times
    the smallest factor.

    Args:
      bboxes: `[batch, boxes, 4]`.
      scores: `[batch, classes, boxes]`.
      score_threshold: only boxes with a higher score are used.
      post_threshold: only boxes with a higher new score are kept.
      nms_top_k: the number of boxes with the highest scores to use of each class; -1 for all.
      keep_top_k: the largest number of boxes to keep in each image, over all classes; -1 for no limit.
      use_gaussian: whether to use the second formula.
      gaussian_sigma: the `sigma` of the second formula.
      background_label: the class of the background, which is ignored; -1 if there is none.
      normalized: True for boxes in fractions of the image; False for boxes in pixels, which include their last pixel.
      name: name of the layer; by default `matrix_nms_N`.

    Returns:
      `[label, score, x1, y1, x2, y2]` of the kept boxes, as a SequenceBatch `[batch, keep_top_k, 6]` whose lengths
      count the kept boxes, ordered by score. The result has no gradient.

    Raises:
      ArgumentError: `nms_top_k` or `keep_top_k` is neither positive nor -1.
      ShapeError: boxes and scores do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     boxes = fluid.layers.data("boxes", shape=[80, 4])
      ...     scores = fluid.layers.data("scores", shape=[3, 80])
      ...     return fluid.layers.matrix_nms(boxes, scores, 0.1, 0.05, nms_top_k=40, keep_top_k=20)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 20, 6]
    """
    this = Layer("matrix_nms", name)
    keep = count_of(this, "keep_top_k", keep_top_k)
    found = candidates(this, bboxes, scores, score_threshold, nms_top_k, background_label)

    def factor(overlap: Any, most: Any) -> Any:
        if use_gaussian:
            return jnp.exp((most**2 - overlap**2) * gaussian_sigma)
        # If `most` is 1, the other box equals a box with a higher score, whose factor is already included.
        return jnp.where(most < 1, (1 - overlap) / jnp.where(most < 1, 1 - most, 1), jnp.inf)

    decayed = found.scores * _decay(found.boxes, factor, 0.0 if normalized else 1.0)
    decayed = jnp.where((found.scores > -jnp.inf) & (decayed > post_threshold), decayed, -jnp.inf)
    return this.output(detections(found, decayed, keep, by_class=False)[0])


def candidates(
    this: Layer, bboxes: core.Value, scores: core.Value, threshold: float, nms_top_k: int, background: int
) -> Candidates:
    """Select the boxes of each class, without the background, whose scores are above a threshold.

    Args:
      this: the layer, for messages.
      bboxes: see `multiclass_nms`.
      scores: see `multiclass_nms`.
      threshold: the exclusive lower bound of the scores.
      nms_top_k: the largest number of boxes of each class; -1 for no limit.
      background: the class of the background, -1 if there is none.
    """
    boxes, chances = _by_class(this, bboxes, scores)
    labels = np.array([label for label in range(chances.shape[1]) if label != background], np.int32)
    if not labels.size:
        raise errors.ShapeError(
            f"{this.name}: scores {describe(scores)} hold no class but the background, background_label={background}; "
            f"say background_label=-1 if there is none"
        )
    boxes, chances = (jax.lax.stop_gradient(v) for v in (boxes, chances[:, labels]))
    best, places = top_k(jnp.where(chances > threshold, chances, -jnp.inf), count_of(this, "nms_top_k", nms_top_k))
    images = jnp.arange(boxes.shape[0])[:, None, None]
    columns = jnp.zeros_like(labels) if boxes.shape[1] == 1 else labels
    return Candidates(boxes[images, columns[:, None], places], best, places, labels)


def _by_class(this: Layer, bboxes: core.Value, scores: core.Value) -> tuple[jax.Array, jax.Array]:
    """Return boxes `[batch, 1 or classes, boxes, 4]` and scores `[batch, classes, boxes]`, -infinity for padding."""
    boxes = exact(bboxes)
    chances = exact(scores)
    if isinstance(bboxes, core.SequenceBatch) and isinstance(scores, core.SequenceBatch):
        if boxes.ndim == 4 and boxes.shape[:-1] == chances.shape and boxes.shape[-1] == 4:
            chances = jnp.where(scores.mask[..., None], chances, -jnp.inf)
            return jnp.swapaxes(boxes, 1, 2), jnp.swapaxes(chances, 1, 2)
    elif not is_sequence(bboxes) and not is_sequence(scores) and chances.ndim == 3:
        if boxes.shape == (chances.shape[0], chances.shape[2], 4):
            return boxes[:, None], chances
    raise errors.ShapeError(
        f"{this.name}: bboxes {describe(bboxes)} and scores {describe(scores)} do not fit; expected [batch, boxes, 4] "
        f"and [batch, classes, boxes], or sequence batches of [classes, 4] and of [classes]"
    )


def nms(boxes: jax.Array, there: jax.Array, limit: int | None, threshold: float, eta: float, pixel: float) -> jax.Array:
    """Apply greedy non-maximum suppression to several lists of boxes at once.

    Args:
      boxes: `[..., n, 4]`, each list in descending order of its scores.
      there: bool `[..., n]`: false for padding.
      limit: the largest number of boxes to keep of each list; None for no limit.
      threshold: the largest intersection over union with an already kept box.
      eta: if below 1, the threshold is multiplied by `eta` after each kept box, as long as it is above 0.5.
      pixel: 1 for boxes in pixels, 0 for normalized boxes.

    Returns:
      A mask of the kept boxes, bool `[..., n]`.
    """
    *lead, count = there.shape
    turns = count if limit is None else limit

    def goes_on(now: _Nms) -> jax.Array:
        return (now.turn < turns) & jnp.any(now.able())

    def keep_next(now: _Nms) -> _Nms:
        able = now.able()
        first = jnp.argmax(able, axis=-1)[..., None]
        new = able & (jnp.arange(count) == first)
        found = jnp.any(new, axis=-1)
        row = iou(jnp.take_along_axis(boxes, first[..., None], axis=-2), boxes, pixel)
        shrinks = found & (eta < 1) & (now.threshold > 0.5)
        return _Nms(
            now.turn + 1,
            now.waiting & ~new,
            now.kept | new,
            jnp.where(found[..., None], jnp.maximum(now.overlap, row), now.overlap),
            jnp.where(shrinks, now.threshold * eta, now.threshold),
        )

    none = jnp.zeros_like(there)
    overlap = jnp.full(there.shape, -jnp.inf, boxes.dtype)
    start = _Nms(jnp.int32(0), there, none, overlap, jnp.full(lead, threshold, boxes.dtype))
    return jax.lax.while_loop(goes_on, keep_next, start).kept


class _Nms(NamedTuple):
    """The state of a greedy suppression.

    Attributes:
      turn: int32 `[]`: the number of finished rounds. Each round keeps at most one box of each list.
      waiting: bool `[..., n]`: the boxes that are not kept yet.
      kept: bool `[..., n]`: the kept boxes.
      overlap: `[..., n]`: the largest intersection over union of each box with a kept one.
      threshold: `[...]`: the largest allowed `overlap`.
    """

    turn: jax.Array
    waiting: jax.Array
    kept: jax.Array
    overlap: jax.Array
    threshold: jax.Array

    def able(self) -> jax.Array:
        """Return a mask of the boxes that may still be kept, bool `[..., n]`."""
        return self.waiting & (self.overlap <= self.threshold[..., None])


def _decay(boxes: jax.Array, factor: Any, pixel: float) -> jax.Array:
    """Compute the factors of `matrix_nms`, `[..., n]`, for boxes `[..., n, 4]` in descending order of scores."""
    count = boxes.shape[-2]
    order = jnp.arange(count)

    def compare(i: Any, decay: jax.Array) -> jax.Array:
        row = iou(jax.lax.dynamic_slice_in_dim(boxes, i, 1, axis=-2), boxes, pixel)
        most = jnp.max(jnp.where(order < i, row, 0), axis=-1, keepdims=True)
        return jnp.where(order > i, jnp.minimum(decay, factor(row, most)), decay)

    return jax.lax.fori_loop(0, count, compare, jnp.ones(boxes.shape[:-1], boxes.dtype))


def detections(
    found: Candidates, scores: jax.Array, keep: int | None, by_class: bool = True
) -> tuple[core.SequenceBatch, core.SequenceBatch]:
    """Return the kept candidates, as rows `[label, score, x1, y1, x2, y2]`, and their indices in the image.

    Args:
      found: the candidates.
      scores: the scores of the candidates, `[batch, classes, n]`, minus infinity for suppressed ones.
      keep: the largest number of rows of an image; None for no limit.
      by_class: whether to order rows by class and then like the candidates; otherwise rows are ordered by score.

    Returns:
      SequenceBatches `[batch, keep, 6]` and int32 `[batch, keep, 1]`.
    """
    batch, _, many = scores.shape
    everything = scores.reshape(batch, -1)
    best, chosen = top_k(everything, keep)
    lengths = jnp.sum(best > -jnp.inf, axis=1, dtype=jnp.int32)
    if by_class:
        last = everything.shape[1] - 1
        chosen = jnp.minimum(jnp.sort(jnp.where(best > -jnp.inf, chosen, last + 1), axis=1), last)
    values = jnp.concatenate([everything[..., None], found.boxes.reshape(batch, -1, 4)], axis=-1)
    rows = jnp.take_along_axis(values, chosen[..., None], axis=1)
    labels = jnp.asarray(found.labels)[chosen // many].astype(rows.dtype)
    places = jnp.take_along_axis(found.places.reshape(batch, -1), chosen, axis=1)
    rows = jnp.concatenate([labels[..., None], rows], axis=-1)
    return sequence_batch(rows, lengths), sequence_batch(places[..., None], lengths)


def top_k(values: jax.Array, most: int | None) -> tuple[jax.Array, jax.Array]:
    """Return the largest values along the last dimension, and their int32 indices; equal values keep their order.

    Args:
      values: `[..., n]`.
      most: the number of values; None for all `n`.

    Returns:
      Two arrays `[..., min(most, n)]`. If `n` is unknown, as in an exported program, the arrays are `[..., most]`, with
      minus infinity after the `n` values.
    """
    count = values.shape[-1]
    if most is None:
        places = jnp.argsort(-values, axis=-1, stable=True)
        return jnp.take_along_axis(values, places, axis=-1), places.astype(jnp.int32)
    if not isinstance(count, int):
        room = jnp.full((*values.shape[:-1], most), -jnp.inf, values.dtype)
        best, places = jax.lax.top_k(jnp.concatenate([values, room], axis=-1), most)
        return best, jnp.minimum(places, count - 1).astype(jnp.int32)
    best, places = jax.lax.top_k(values, min(most, count))
    return best, places.astype(jnp.int32)


def count_of(this: Layer, argument: str, value: int) -> int | None:
    """Check the largest number of boxes that the user gave, and return it, or None for -1, which means no limit.

    Raises:
      ArgumentError: the value is neither positive nor -1.
    """
    return None if value == -1 else core.whole_number(this.name, argument, value)
