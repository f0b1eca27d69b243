"""Matching of ground-truth objects with prior boxes, anchors or regions, and sampling of training targets."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.core.rows import harmless
from fluid.layers.base import Layer, array_of, dense, describe, layer, wide
from fluid.layers.checks import check_ids
from fluid.layers.detection.box import boxes_in_images, exact, exact_array, image_sizes, iou
from fluid.layers.sequence.step_selection import sequence_batch

# `bipartite_match` never matches a pair whose "distance" (a similarity) is below `_LEAST_DISTANCE`.
_LEAST_DISTANCE = 1e-6


class Matches(NamedTuple):
    """The row that is matched with each column of a matrix of distances; larger distances mean greater similarity.

    Attributes:
      rows: the index of the matched row, int32 `[batch, columns]`; -1 for unmatched columns.
      distances: the distance between row and column, `[batch, columns]`; 0 for unmatched columns.
    """

    rows: jax.Array
    distances: jax.Array


@layer
def bipartite_match(
    dist_matrix: Value, match_type: str | None = None, dist_threshold: float | None = None, name: str | None = None
) -> tuple[jax.Array, jax.Array]:
    """Match the rows of a matrix with its columns greedily, in descending order of the distances in the matrix.

    In Fluid, "distance" means a similarity, so that larger is better. An example is the intersection over union of
    ground-truth boxes (rows) and prior boxes (columns).

    Args:
      dist_matrix: a SequenceBatch `[batch, rows, columns]`, such as the result of `iou_similarity`, or an array
        `[rows, columns]` for a batch of one image.
      match_type: "bipartite" (the default) matches each row with at most one column. "per_prediction" also matches each
        remaining column with the row of the largest distance, if this distance is at least `dist_threshold`.
      dist_threshold: the smallest distance for the additional matches of "per_prediction"; 0.5 by default.
      name: name of the layer; by default `bipartite_match_N`.

    Returns:
      The row that is matched with each column, int32 `[batch, columns]`, -1 for unmatched columns; and the distance of
      each matched pair, `[batch, columns]`, 0 for unmatched columns. Both results have no gradient. Pairs with a
      distance below 0.000001 are not matched.

    Raises:
      ArgumentError: `match_type` has an unknown value.
      ShapeError: the input has another number of dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     truth = fluid.layers.data("truth", shape=[4], lod_level=1)
      ...     prior = fluid.layers.data("prior", shape=[80, 4], append_batch_size=False)
      ...     return fluid.layers.bipartite_match(fluid.layers.iou_similarity(truth, prior), "per_prediction", 0.5)
      >>> print(*fluid.Program(program).outputs)
      int32[batch, 80] float32[batch, 80]
    """
    this = Layer("bipartite_match", name)
    threshold = threshold_of(this, match_type or "bipartite", 0.5 if dist_threshold is None else dist_threshold)
    sequence = isinstance(dist_matrix, core.SequenceBatch)
    distances = exact(dist_matrix) if sequence else exact_array(this, dist_matrix)[None]
    if distances.ndim != 3:
        raise errors.ShapeError(
            f"{this.name}: dist_matrix {describe(dist_matrix)}; expected a sequence batch [batch, rows, columns] or a "
            f"matrix [rows, columns], as from layers.iou_similarity(truth, prior)"
        )
    found = greedy_match(distances, threshold)
    return this.output(found.rows), this.output(found.distances)


@layer
def target_assign(
    input: Value,
    matched_indices: Value,
    negative_indices: Value | None = None,
    mismatch_value: float | None = None,
    name: str | None = None,
) -> tuple[Any, jax.Array]:
    """Assign a target to each prediction: the values of the ground-truth object that is matched with the prediction.

    Args:
      input: values of the objects: a SequenceBatch `[batch, objects, predictions, k]`, or `[batch, objects, 1, k]` if
        the values of an object are equal for all predictions.
      matched_indices: the index of the object of each prediction, integers `[batch, predictions]`; -1 for no object.
      negative_indices: the indices of predictions that have weight 1 although they have no object, a SequenceBatch of
        integers `[batch, n, 1]`.
      mismatch_value: the target of predictions without an object; 0 by default.
      name: name of the layer; by default `target_assign_N`.

    Returns:
      The targets, `[batch, predictions, k]`; and their weights in the loss, 0 or 1, float32 `[batch, predictions, 1]`.

    Raises:
      ArgumentTypeError: indices are not integers.
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     kinds = fluid.layers.data("kinds", shape=[1, 1], dtype="int64", lod_level=1)
      ...     matched = fluid.layers.data("matched", shape=[80], dtype="int32")
      ...     return fluid.layers.target_assign(kinds, matched, mismatch_value=0)
      >>> print(*fluid.Program(program).outputs)
      int32[batch, 80, 1] float32[batch, 80, 1]
    """
    this = Layer("target_assign", name)
    rows = check_ids(this.name, array_of(this, matched_indices), "matched_indices")
    values = dense(input)
    fits = isinstance(input, core.SequenceBatch) and values.ndim == 4 and rows.ndim == 2
    if not fits or values.shape[0] != rows.shape[0] or values.shape[2] not in (1, rows.shape[1]):
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and matched_indices {describe(matched_indices)} do not fit; "
            f"expected a sequence batch [batch, objects, 1 or predictions, k] and [batch, predictions]"
        )
    batch, predictions = rows.shape
    images = jnp.arange(batch)[:, None]
    places = jnp.arange(predictions) % values.shape[2]
    # An array without objects cannot be indexed, so add a dummy object of zeros.
    if values.shape[1] == 0:
        values = jnp.zeros((batch, 1, *values.shape[2:]), values.dtype)
    taken = values.at[images, jnp.maximum(rows, 0), places].get(mode="fill", wrap_negative_indices=False)
    counts = rows >= 0
    result = jnp.where(counts[..., None], taken, jnp.asarray(mismatch_value or 0, values.dtype))
    if negative_indices is not None:
        counts |= _among(this, negative_indices, batch, predictions)
    return this.output(result), this.output(counts.astype(jnp.float32)[..., None])


def _among(this: Layer, indices: Value, batch: int, count: int) -> jax.Array:
    """Return a bool mask `[batch, count]`, which is true for the predictions whose index is in `indices`."""
    ids = check_ids(this.name, indices, "negative_indices")
    if not isinstance(indices, core.SequenceBatch) or ids.shape[0] != batch or ids.shape[2:] not in ((), (1,)):
        raise errors.ShapeError(
            f"{this.name}: negative_indices {describe(indices)}; expected the predictions of each image as a sequence "
            f'batch, as from layers.data("negative", shape=[1], dtype="int32", lod_level=1)'
        )
    places = jnp.where(indices.mask, ids.reshape(ids.shape[:2]), count)
    nowhere = jnp.zeros((batch, count), bool)
    return nowhere.at[jnp.arange(batch)[:, None], places].set(True, mode="drop", wrap_negative_indices=False)


def threshold_of(this: Layer, match_type: str, threshold: float) -> float | None:
    """Check the `match_type` of `bipartite_match`; return `threshold` for "per_prediction", and None for "bipartite".

    Raises:
      ArgumentError: `match_type` has an unknown value.
    """
    if match_type not in ("bipartite", "per_prediction"):
        raise errors.ArgumentError(f'{this.name}: match_type={match_type!r}; expected "bipartite" or "per_prediction"')
    return float(threshold) if match_type == "per_prediction" else None


def greedy_match(distances: jax.Array, threshold: float | None) -> Matches:
    """Match the rows of each matrix of a batch with its columns, by the rules of `bipartite_match`.

    Args:
      distances: `[batch, rows, columns]`, 0 for padding rows; larger is better.
      threshold: a column that remains after the bipartite match is matched with its best row if their distance is at
        least `threshold`; None leaves remaining columns unmatched.
    """
    near = jnp.swapaxes(jax.lax.stop_gradient(distances), 1, 2)
    near = jnp.where(near >= _LEAST_DISTANCE, near, -1)
    batch, columns, rows = near.shape
    chosen = jnp.full((batch, columns), -1, jnp.int32)
    if rows == 0 or columns == 0:
        return Matches(chosen, jnp.zeros((batch, columns), near.dtype))
    images = jnp.arange(batch)

    def take(carry: Any) -> Any:
        chosen, free, _ = carry
        left = jnp.where((chosen < 0)[:, :, None] & free[:, None], near, -1).reshape(batch, -1)
        best = jnp.argmax(left, axis=1)
        # An image without another pair to match gets indices beyond the end, which `mode="drop"` ignores.
        some = left[images, best] > 0
        column, row = jnp.where(some, best // rows, columns), jnp.where(some, best % rows, rows)
        chosen = chosen.at[images, column].set(row.astype(jnp.int32), mode="drop")
        return chosen, free.at[images, row].set(False, mode="drop"), harmless(jnp.any(some))

    start = chosen, jnp.ones((batch, rows), bool), jnp.bool_(True)
    chosen = jax.lax.while_loop(lambda carry: carry[2], take, start)[0]
    if threshold is not None:
        enough = jnp.where(near >= threshold, near, -1)
        nearest = jnp.where(jnp.max(enough, axis=2) > 0, jnp.argmax(enough, axis=2).astype(jnp.int32), -1)
        chosen = jnp.where(chosen >= 0, chosen, nearest)
    own = jnp.take_along_axis(near, jnp.maximum(chosen, 0)[..., None], axis=2)[..., 0]
    return Matches(chosen, jnp.where(chosen >= 0, own, 0))


# Two values of intersection over union count as equal if their difference is at most `_SAME`.
_SAME = 1e-5


class Objects(NamedTuple):
    """The ground-truth objects of a batch of images.

    Attributes:
      boxes: `[batch, objects, 4]`, in pixels of the resized images.
      there: bool `[batch, objects]`: true for objects, false for padding and crowds.
      sizes: height, width and scale of the resized images, each `[batch]`.
    """

    boxes: jax.Array
    there: jax.Array
    sizes: tuple[jax.Array, jax.Array, jax.Array]


class Owners(NamedTuple):
    """The owner of each box: the object with which the box has the largest intersection over union (IoU).

    Attributes:
      objects: the index of the owner of each box, int32 `[batch, n]`.
      overlaps: the IoU of each box with its owner, `[batch, n]`; 0 if the box overlaps no object.
      nearest: bool `[batch, n]`: true if the box has the largest IoU of all boxes with one of the objects.
    """

    objects: jax.Array
    overlaps: jax.Array
    nearest: jax.Array


def objects_of(this: Layer, gt_boxes: Value, is_crowd: Value, im_info: Value) -> Objects:
    """Return ground-truth objects, converted from pixels of the original images to pixels of the resized images.

    Raises:
      ArgumentTypeError: the values of `is_crowd` are not integers.
      ShapeError: the shapes do not fit together.
    """
    boxes = boxes_in_images(this, gt_boxes, "gt_boxes")
    crowd = one_for_each(this, is_crowd, boxes, "is_crowd")
    sizes = image_sizes(this, im_info, boxes.shape[0])
    scaled = wide(boxes) * sizes[2][:, None, None]
    return Objects(scaled, boxes.mask & (crowd == 0), sizes)


def one_for_each(this: Layer, value: Value, boxes: core.SequenceBatch, argument: str) -> jax.Array:
    """Check that `value` has one integer for each box of `boxes`, and return the integers `[batch, boxes]`.

    Raises:
      ArgumentTypeError: the elements of `value` are not integers.
      ShapeError: `value` does not have exactly one integer for each box.
    """
    numbers = check_ids(this.name, value, argument)
    if not isinstance(value, core.SequenceBatch) or numbers.shape not in (boxes.shape[:2], (*boxes.shape[:2], 1)):
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)} for boxes {describe(boxes)}; expected one number for each box, "
            f'as from layers.data("{argument}", shape=[1], dtype="int64", lod_level=1)'
        )
    return numbers.reshape(boxes.shape[:2])


def predictions_of(
    this: Layer, bbox_pred: Value, cls_logits: Value, anchor_box: Value, classes: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Check the shapes of offsets, logits and anchors, and return all three as arrays in float32 or wider.

    Returns:
      Offsets `[batch, anchors, 4]`, logits `[batch, anchors, classes]`, and anchors `[anchors, 4]`.

    Raises:
      ShapeError: the shapes do not fit together.
    """
    offsets, logits, anchors = (exact_array(this, v) for v in (bbox_pred, cls_logits, anchor_box))
    anchors = anchors.reshape(-1, 4)
    count = anchors.shape[0]
    if offsets.shape[1:] != (count, 4) or logits.shape != (*offsets.shape[:2], classes):
        raise errors.ShapeError(
            f"{this.name}: bbox_pred {describe(bbox_pred)}, cls_logits {describe(cls_logits)} and {count} anchors do "
            f"not fit; expected [batch, {count}, 4] and [batch, {count}, {classes}]"
        )
    return offsets, logits, anchors


def owners(boxes: jax.Array, able: jax.Array, objects: Objects) -> Owners:
    """Find for each box the object with which the box has the largest intersection over union (IoU).

    A loop compares all boxes with one object at a time, so that the memory does not grow with the number of objects.

    Args:
      boxes: `[n, 4]` or `[batch, n, 4]`, in pixels; the width of a box is `x2 - x1 + 1`.
      able: bool `[batch, n]`: true for boxes to compare; the IoU of other boxes counts as 0.
    """

    def compare(found: Owners, one: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Owners, None]:
        number, box, there = one
        overlap = jnp.where(able & there[:, None], iou(boxes, box[:, None], 1.0), 0)
        most = jnp.max(overlap, axis=1, keepdims=True)
        more = overlap > found.overlaps
        return Owners(
            jnp.where(more, number, found.objects),
            jnp.where(more, overlap, found.overlaps),
            found.nearest | ((overlap >= most - _SAME) & (overlap > 0)),
        ), None

    boxes, objects = jax.lax.stop_gradient((boxes, objects))
    kinds = (jnp.int32, jnp.result_type(boxes, objects.boxes), bool)
    nothing = Owners(*(jnp.zeros(able.shape, kind) for kind in kinds))
    numbers = jnp.arange(objects.boxes.shape[1], dtype=jnp.int32)
    return jax.lax.scan(compare, nothing, (numbers, jnp.swapaxes(objects.boxes, 0, 1), objects.there.T))[0]


def of_owner(values: jax.Array, found: jax.Array) -> jax.Array:
    """Return for each box the values of the object with which the box overlaps most.

    Args:
      values: the values of the objects, `[batch, objects, ...]`.
      found: the index of the object for each box, `[batch, n]`.

    Returns:
      `[batch, n, ...]`; zeros if there are no objects.
    """
    if values.shape[1] == 0:
        return jnp.zeros((*found.shape, *values.shape[2:]), values.dtype)
    return jnp.take_along_axis(values, found.reshape(*found.shape, *[1] * (values.ndim - 2)), axis=1)


def some_of(able: jax.Array, most: jax.Array | int, key: jax.Array | None) -> jax.Array:
    """Select at most `most` candidates from each row: random candidates, or the first candidates if `key` is None.

    Args:
      able: a mask of the candidates, bool `[batch, n]`.
      most: the largest number of candidates to select: one number for all rows, or `[batch, 1]`.

    Returns:
      A mask of the selected candidates, bool `[batch, n]`.
    """
    turn = jnp.arange(able.shape[1]) if key is None else jax.random.uniform(key, able.shape)
    order = jnp.argsort(jnp.where(able, turn, jnp.inf), axis=1, stable=True)
    first = jnp.arange(able.shape[1]) < most
    rows = jnp.arange(able.shape[0])[:, None]
    return able & jnp.zeros_like(able).at[rows, order].set(jnp.broadcast_to(first, able.shape))


def positive_first(positive: jax.Array, negative: jax.Array, capacity: int | None) -> jax.Array:
    """Return for each row the indices of positive elements, then of negative elements, then of all other elements.

    Args:
      positive: a mask of the positive elements, bool `[batch, n]`.
      negative: a mask of the negative elements, bool `[batch, n]`.

    Returns:
      Integers `[batch, capacity]`.
    """
    order = jnp.argsort(jnp.where(positive, 0, jnp.where(negative, 1, 2)), axis=1, stable=True)
    return order if capacity is None else order[:, :capacity]


class SelectedAnchors(NamedTuple):
    """The anchors of an object detector that are selected for training, divided into positive and negative anchors.

    Attributes:
      positive: a mask of the selected positive anchors, bool `[batch, anchors]`.
      negative: a mask of the selected negative anchors, bool `[batch, anchors]`.
      capacity: the largest number of positive and negative anchors in total; None for the number of all anchors.
      most: the largest number of positive anchors; None for the number of all anchors.
    """

    positive: jax.Array
    negative: jax.Array
    capacity: int | None = None
    most: int | None = None

    def results(
        self, this: Layer, logits: jax.Array, offsets: jax.Array, labels: jax.Array, targets: jax.Array
    ) -> tuple[core.SequenceBatch, ...]:
        """Record predictions and targets of the selected anchors as outputs of the layer, the positive anchors first.

        Args:
          logits: `[batch, anchors, classes]`.
          offsets: predicted offsets, `[batch, anchors, 4]`.
          labels: int32 `[batch, anchors]`.
          targets: targets of the offsets, `[batch, anchors, 4]`.
        """
        places = positive_first(self.positive, self.negative, self.capacity)[..., None]
        first = places[:, : self.most]
        count, everything = counts(self.positive, self.positive | self.negative)
        results = [
            (jnp.take_along_axis(logits, places, axis=1), everything),
            (jnp.take_along_axis(offsets, first, axis=1), count),
            (jnp.take_along_axis(labels[..., None], places, axis=1), everything),
            (jnp.take_along_axis(targets, first, axis=1), count),
            (jnp.ones((*first.shape[:2], 4), targets.dtype), count),
        ]
        return tuple(this.output(sequence_batch(*result)) for result in results)


def counts(*masks: jax.Array) -> list[jax.Array]:
    """Return for each mask, bool `[batch, n]`, the number of true elements in each row, int32 `[batch]`."""
    return [jnp.sum(mask, axis=1, dtype=jnp.int32) for mask in masks]
