"""Non-maximum suppression (NMS): of several overlapping boxes, keep only the box with the highest score."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.core.rows import harmless
from fluid.layers.base import Layer, describe, is_sequence, layer
from fluid.layers.detection.box import exact, iou
from fluid.layers.sequence.step_selection import sequence_batch


class Candidates(NamedTuple):
    """The boxes with the highest scores in each class, in descending order of their scores.

    Attributes:
      boxes: `[batch, classes, n, 4]`.
      scores: `[batch, classes, n]`; minus infinity marks a missing box.
      places: int32 `[batch, classes, n]`: the index of each box among all boxes of its image.
      labels: the class numbers along the dimension `classes`, integers `[classes]`.
    """

    boxes: jax.Array
    scores: jax.Array
    places: jax.Array
    labels: np.ndarray


@layer
def multiclass_nms(
    bboxes: Value,
    scores: Value,
    score_threshold: float,
    nms_top_k: int,
    keep_top_k: int,
    nms_threshold: float = 0.3,
    normalized: bool = True,
    nms_eta: float = 1.0,
    background_label: int = 0,
    name: str | None = None,
) -> core.SequenceBatch:
    """Apply non-maximum suppression to the boxes of each class separately.

    The layer visits the boxes of a class in descending order of their scores. It selects a box unless the intersection
    over union with a previously selected box exceeds `nms_threshold`.

    Args:
      bboxes: `[batch, boxes, 4]`, one set of boxes for all classes; or a SequenceBatch with one box for each class,
        whose steps are `[classes, 4]`.
      scores: `[batch, classes, boxes]`; or a SequenceBatch with steps `[classes]` if `bboxes` is a SequenceBatch.
      score_threshold: only boxes with a higher score are used.
      nms_top_k: for each class, the number of boxes with the highest scores to use; -1 for all.
      keep_top_k: the largest number of boxes to return for each image, over all classes; -1 for no limit.
      nms_threshold: the largest allowed intersection over union with a previously selected box.
      normalized: True for boxes in fractions of the image; False for boxes in pixels, whose width is `x2 - x1 + 1`.
      nms_eta: if below 1, the threshold is multiplied by `nms_eta` after each selected box, as long as it is above 0.5.
      background_label: the class of the background, which is ignored; -1 if there is none.
      name: name of the layer; by default `multiclass_nms_N`.

    Returns:
      A SequenceBatch `[batch, keep_top_k, 6]` with one step `[label, score, x1, y1, x2, y2]` for each selected box,
      ordered by class and then by score. The result has no gradient.

    Raises:
      ArgumentError: `nms_top_k` or `keep_top_k` is neither positive nor -1.
      ShapeError: the shapes of boxes and scores do not fit together.

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
    bboxes: Value,
    scores: Value,
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
    """Apply matrix NMS (Wang et al., 2020): lower the scores of boxes that overlap boxes with higher scores.

    The layer compares each box B with each box A of the same class that has a higher score. Each comparison yields a
    factor: `(1 - iou) / (1 - most)`, or `exp(sigma * (most ** 2 - iou ** 2))` with `use_gaussian`. Here `iou` is the
    intersection over union of A and B, and `most` is the largest intersection over union of A with boxes of higher
    scores than A. The new score of B is its score times the smallest factor.

    Args:
      bboxes: `[batch, boxes, 4]`.
      scores: `[batch, classes, boxes]`.
      score_threshold: only boxes with a higher score are used.
      post_threshold: only boxes with a higher new score are returned.
      nms_top_k: for each class, the number of boxes with the highest scores to use; -1 for all.
      keep_top_k: the largest number of boxes to return for each image, over all classes; -1 for no limit.
      use_gaussian: whether to use the formula with `exp`.
      gaussian_sigma: the `sigma` of the formula with `exp`.
      background_label: the class of the background, which is ignored; -1 if there is none.
      normalized: True for boxes in fractions of the image; False for boxes in pixels, whose width is `x2 - x1 + 1`.
      name: name of the layer; by default `matrix_nms_N`.

    Returns:
      A SequenceBatch `[batch, keep_top_k, 6]` with one step `[label, new score, x1, y1, x2, y2]` for each returned box,
      ordered by score. The result has no gradient.

    Raises:
      ArgumentError: `nms_top_k` or `keep_top_k` is neither positive nor -1.
      ShapeError: the shapes of boxes and scores do not fit together.

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
        # In matrix NMS, box A lowers the score of each box B by this factor. `most` is the largest intersection over
        # union of A with boxes of higher scores than A. If `most` is 1, A equals such a box C. Then A and C overlap B
        # equally, so the factor of C suffices. The smallest factor counts, so infinity excludes the factor of A.
        return jnp.where(most < 1, (1 - overlap) / jnp.where(most < 1, 1 - most, 1), jnp.inf)

    decayed = found.scores * _decay(found.boxes, factor, 0.0 if normalized else 1.0)
    decayed = jnp.where((found.scores > -jnp.inf) & (decayed > post_threshold), decayed, -jnp.inf)
    return this.output(detections(found, decayed, keep, by_class=False)[0])


def candidates(
    this: Layer, bboxes: Value, scores: Value, threshold: float, nms_top_k: int, background: int
) -> Candidates:
    """Select for each class except the background the boxes whose scores are above a threshold."""
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


def _by_class(this: Layer, bboxes: Value, scores: Value) -> tuple[jax.Array, jax.Array]:
    """Convert the `bboxes` and `scores` of `multiclass_nms` to arrays with the classes as second dimension.

    Returns:
      Boxes `[batch, 1 or classes, boxes, 4]`, and scores `[batch, classes, boxes]`, minus infinity for padding.
    """
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
      boxes: lists of `n` boxes in descending order of their scores, `[..., n, 4]`.
      there: bool `[..., n]`: true for boxes, false for padding.

    Returns:
      A mask of the selected boxes, bool `[..., n]`.
    """
    *lead, count = there.shape
    turns = count if limit is None else limit

    def goes_on(now: _Nms) -> jax.Array:
        return (now.turn < turns) & harmless(jnp.any(now.able()))

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
    """The loop state of greedy non-maximum suppression on several lists of boxes.

    Attributes:
      turn: int32 `[]`: the number of finished iterations. Each iteration selects at most one box from each list.
      waiting: bool `[..., n]`: true for boxes that are not selected yet, false for padding.
      kept: bool `[..., n]`: true for selected boxes.
      overlap: `[..., n]`: the largest intersection over union of each box with a selected box.
      threshold: `[...]`: the largest `overlap` at which a box can be selected.
    """

    turn: jax.Array
    waiting: jax.Array
    kept: jax.Array
    overlap: jax.Array
    threshold: jax.Array

    def able(self) -> jax.Array:
        """Return a mask of the boxes that later iterations of the suppression can still select, bool `[..., n]`."""
        return self.waiting & (self.overlap <= self.threshold[..., None])


def _decay(boxes: jax.Array, factor: Any, pixel: float) -> jax.Array:
    """Compute for each box the smallest factor of `matrix_nms`, by which its score is multiplied.

    Args:
      boxes: `[..., n, 4]`, in descending order of their scores.

    Returns:
      The factors, `[..., n]`.
    """
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
    """Return the candidates that are not suppressed, as rows `[label, score, x1, y1, x2, y2]`, and their box indices.

    Args:
      scores: the scores of the candidates, `[batch, classes, n]`; minus infinity for suppressed candidates.

    Returns:
      The rows, a SequenceBatch `[batch, keep, 6]`; and the index of each box in its image, a SequenceBatch of int32
      `[batch, keep, 1]`.
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

    Returns:
      Two arrays `[..., min(most, n)]`. If `n` is unknown, as in an exported program, the arrays are `[..., most]`, with
      minus infinity after the `n` values.
    """
    count = values.shape[-1]
    if most is None:
        places = jnp.argsort(-values, axis=-1, stable=True)
        return jnp.take_along_axis(values, places, axis=-1), places.astype(jnp.int32)
    if not isinstance(count, int):
        filler = jnp.full((*values.shape[:-1], most), -jnp.inf, values.dtype)
        best, places = jax.lax.top_k(jnp.concatenate([values, filler], axis=-1), most)
        return best, jnp.minimum(places, count - 1).astype(jnp.int32)
    best, places = jax.lax.top_k(values, min(most, count))
    return best, places.astype(jnp.int32)


def count_of(this: Layer, argument: str, value: int) -> int | None:
    """Check the user's limit for a number of boxes, and return the limit, or None for -1, which means no limit.

    Raises:
      ArgumentError: the value is neither positive nor -1.
    """
    return None if value == -1 else core.whole_number(this.name, argument, value)
