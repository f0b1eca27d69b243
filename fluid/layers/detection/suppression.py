"""Non-maximum suppression: of boxes that lie over each other, the best is left."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, describe, is_sequence, layer
from fluid.layers.detection.box import exact, overlaps
from fluid.layers.sequence.steps import sequence_batch


class Candidates(NamedTuple):
    """The best boxes of each class, best first.

    Attributes:
      boxes: `[batch, classes, n, 4]`.
      scores: `[batch, classes, n]`; minus infinity where there is none.
      places: int32 `[batch, classes, n]`: which box of its image each is.
      labels: the class that each of the `classes` stands for.
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
    """Of the boxes of each class keep the best, and leave out those that overlap one that is kept.

    Args:
      bboxes: `[batch, boxes, 4]`, the same for all classes; or for each class its own, a SequenceBatch of
        `[classes, 4]`.
      scores: `[batch, classes, boxes]`; or a SequenceBatch of `[classes]`.
      score_threshold: boxes with this score or less are left out.
      nms_top_k: how many boxes of each class are looked at, the best ones; -1 for all.
      keep_top_k: how many boxes of each image are kept at most, the best ones of all classes; -1 for all.
      nms_threshold: a box is left out when its intersection with one that is kept is a larger part of their union.
      normalized: True for boxes in shares of the image; False for pixels, of which the last is inside.
      nms_eta: below 1, the threshold is multiplied by it after each box that is kept, while it is above 0.5.
      background_label: the class that is no object; -1 for none.
      name: instead of `multiclass_nms_N`.

    Returns:
      `[label, score, x1, y1, x2, y2]` of each box that is kept: a SequenceBatch `[batch, keep_top_k, 6]`, whose lengths
      say how many there are in each image; class by class, the best of each first. It carries no gradient.

    Raises:
      ArgumentError: a number of boxes is neither positive nor -1.
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
    found = candidates(this, bboxes, scores, score_threshold, nms_top_k, background_label)
    pixel = 0.0 if normalized else 1.0
    left = suppressed(found.boxes, found.scores > -jnp.inf, keep, nms_threshold, nms_eta, pixel)
    return this.output(listed(found, jnp.where(left, found.scores, -jnp.inf), keep)[0])


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
    """Matrix NMS (Wang et al., 2020): boxes that overlap better ones lose a part of their score.

    Each better box of its class gives a factor, and the least of them multiplies the score: with the overlap `o` of
    both, and the largest overlap `m` of the better one with those that are better still, `(1 - o) / (1 - m)`, or
    `exp(sigma * (m ** 2 - o ** 2))`.

    Args:
      bboxes: `[batch, boxes, 4]`.
      scores: `[batch, classes, boxes]`.
      score_threshold: boxes with this score or less are left out.
      post_threshold: boxes whose score is then this or less are left out.
      nms_top_k: how many boxes of each class are looked at, the best ones; -1 for all.
      keep_top_k: how many boxes of each image are kept at most, the best ones of all classes; -1 for all.
      use_gaussian: whether to use the second of the formulas.
      gaussian_sigma: its `sigma`.
      background_label: the class that is no object; -1 for none.
      normalized: True for boxes in shares of the image; False for pixels, of which the last is inside.
      name: instead of `matrix_nms_N`.

    Returns:
      `[label, score, x1, y1, x2, y2]` of each box that is kept: a SequenceBatch `[batch, keep_top_k, 6]`, the best of
      each image first. It carries no gradient.

    Raises:
      ArgumentError: a number of boxes is neither positive nor -1.
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

    def factor(overlap: Any, worst: Any) -> Any:
        if use_gaussian:
            return jnp.exp((worst**2 - overlap**2) * gaussian_sigma)
        # Of a box that is a better one over again every overlap has been counted.
        return jnp.where(worst < 1, (1 - overlap) / jnp.where(worst < 1, 1 - worst, 1), jnp.inf)

    decayed = found.scores * _decay(found.boxes, factor, 0.0 if normalized else 1.0)
    decayed = jnp.where((found.scores > -jnp.inf) & (decayed > post_threshold), decayed, -jnp.inf)
    return this.output(listed(found, decayed, keep, by_class=False)[0])


def candidates(
    this: Layer, bboxes: core.Value, scores: core.Value, threshold: float, top_k: int, background: int
) -> Candidates:
    """The boxes of each class but the background whose score is above a threshold, at most `top_k` of them."""
    boxes, chances = _by_class(this, bboxes, scores)
    labels = np.array([label for label in range(chances.shape[1]) if label != background], np.int32)
    if not labels.size:
        raise errors.ShapeError(
            f"{this.name}: scores {describe(scores)} hold no class but the background, background_label={background}; "
            f"say background_label=-1 if there is none"
        )
    boxes, chances = (jax.lax.stop_gradient(v) for v in (boxes, chances[:, labels]))
    best, places = largest(jnp.where(chances > threshold, chances, -jnp.inf), count_of(this, "nms_top_k", top_k))
    images = jnp.arange(boxes.shape[0])[:, None, None]
    own = jnp.zeros_like(labels) if boxes.shape[1] == 1 else labels
    return Candidates(boxes[images, own[:, None], places], best, places, labels)


def _by_class(this: Layer, bboxes: core.Value, scores: core.Value) -> tuple[jax.Array, jax.Array]:
    """Boxes `[batch, 1 or classes, boxes, 4]` and scores `[batch, classes, boxes]`; minus infinity for padding."""
    boxes, chances = exact(bboxes), exact(scores)
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


def suppressed(
    boxes: jax.Array, there: jax.Array, limit: int | None, threshold: float, eta: float, pixel: float
) -> jax.Array:
    """Which boxes are left, of several lists of them, each best first.

    Args:
      boxes: `[..., n, 4]`.
      there: which of them are some, `[..., n]`.
      limit: how many are left of each list at most; None for any number.
      threshold: how much a box may overlap those that are left before it.
      eta: below 1, the threshold is multiplied by it after each of them, while it is above 0.5.
      pixel: 1 for boxes of pixels, else 0.

    Returns:
      bool `[..., n]`.
    """
    lead, count = there.shape[:-1], there.shape[-1]
    turns = count if limit is None else limit

    def free(carry: Any) -> jax.Array:
        _, waiting, _, worst, most = carry
        return waiting & (worst <= most[..., None])

    def goes_on(carry: Any) -> jax.Array:
        return (carry[0] < turns) & jnp.any(free(carry))

    def take_next(carry: Any) -> Any:
        turn, waiting, left, worst, most = carry
        able = free(carry)
        first = jnp.argmax(able, axis=-1)[..., None]
        taken = able & (jnp.arange(count) == first)
        own = jnp.take_along_axis(boxes, first[..., None], axis=-2)
        some = jnp.any(taken, axis=-1)
        worst = jnp.where(some[..., None], jnp.maximum(worst, overlaps(own, boxes, pixel)), worst)
        most = jnp.where(some & (eta < 1) & (most > 0.5), most * eta, most)
        return turn + 1, waiting & ~taken, left | taken, worst, most

    nothing = jnp.full((*lead, count), -jnp.inf, boxes.dtype)
    start = jnp.int32(0), there, jnp.zeros_like(there), nothing, jnp.full(lead, threshold, boxes.dtype)
    return jax.lax.while_loop(goes_on, take_next, start)[2]


def _decay(boxes: jax.Array, factor: Any, pixel: float) -> jax.Array:
    """What each of the boxes `[..., n, 4]`, best first, has its score multiplied by, `[..., n]`; see `matrix_nms`."""
    count = boxes.shape[-2]
    order = jnp.arange(count)

    def compare(i: Any, decay: jax.Array) -> jax.Array:
        row = overlaps(jax.lax.dynamic_slice_in_dim(boxes, i, 1, axis=-2), boxes, pixel)
        worst = jnp.max(jnp.where(order < i, row, 0), axis=-1, keepdims=True)
        return jnp.where(order > i, jnp.minimum(decay, factor(row, worst)), decay)

    return jax.lax.fori_loop(0, count, compare, jnp.ones(boxes.shape[:-1], boxes.dtype))


def listed(
    found: Candidates, scores: jax.Array, keep: int | None, by_class: bool = True
) -> tuple[core.SequenceBatch, core.SequenceBatch]:
    """The candidates that are left, as rows `[label, score, x1, y1, x2, y2]`, and which boxes of the image they are.

    Args:
      found: the candidates.
      scores: their scores `[batch, classes, n]`; minus infinity for those that are not left.
      keep: how many of each image there are at most; None for any number.
      by_class: whether they are listed class by class, in the order of the candidates; else the best first.

    Returns:
      SequenceBatches `[batch, keep, 6]` and int32 `[batch, keep, 1]`.
    """
    batch, _, many = scores.shape
    everything = scores.reshape(batch, -1)
    best, chosen = largest(everything, keep)
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


def largest(values: jax.Array, most: int | None) -> tuple[jax.Array, jax.Array]:
    """The largest of `values [..., n]`, at most so many, the first of equal ones first; and where they are, int32.

    Where `n` is a symbol there are `most` of them in any case, and minus infinity behind those that there are.
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
    """Read a number of boxes; None for -1, all of them.

    Raises:
      ArgumentError: it is neither positive nor -1.
    """
    return None if value == -1 else core.whole_number(this.name, argument, value)
