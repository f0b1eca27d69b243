"""Assignment of ground-truth objects to anchors or regions, for Faster R-CNN and RetinaNet."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, describe, wide
from fluid.layers.checks import check_ids
from fluid.layers.detection.box import boxes_in_images, exact_array, image_sizes, iou
from fluid.layers.sequence.steps import sequence_batch

# Intersections over union with a smaller difference count as equal.
_SAME = 1e-5


class Objects(NamedTuple):
    """Ground-truth objects.

    Attributes:
      boxes: `[batch, objects, 4]`, in pixels of the resized images.
      there: bool `[batch, objects]`: false for padding and crowds.
      sizes: height, width and scale of the resized images, each `[batch]`.
    """

    boxes: jax.Array
    there: jax.Array
    sizes: tuple[jax.Array, jax.Array, jax.Array]


class Owners(NamedTuple):
    """The object with the largest intersection over union (IoU) for each box.

    Attributes:
      objects: the index of the object, int32 `[batch, n]`.
      overlaps: the IoU with the object, `[batch, n]`, 0 if there is no object.
      nearest: bool `[batch, n]`: whether the box has the largest IoU of all boxes for some object.
    """

    objects: jax.Array
    overlaps: jax.Array
    nearest: jax.Array


def objects_of(this: Layer, gt_boxes: core.Value, is_crowd: core.Value, im_info: core.Value) -> Objects:
    """Convert ground-truth objects from pixels of the original images to pixels of the resized images.

    Raises:
      ArgumentTypeError: the values of `is_crowd` are no integers.
      ShapeError: the shapes do not fit together.
    """
    boxes = boxes_in_images(this, gt_boxes, "gt_boxes")
    crowd = one_for_each(this, is_crowd, boxes, "is_crowd")
    sizes = image_sizes(this, im_info, boxes.shape[0])
    scaled = wide(boxes) * sizes[2][:, None, None]
    return Objects(scaled, boxes.mask & (crowd == 0), sizes)


def one_for_each(this: Layer, value: core.Value, boxes: core.SequenceBatch, argument: str) -> jax.Array:
    """Check that a value has one integer for each object, and return the integers `[batch, objects]`.

    Raises:
      ArgumentTypeError: the values are no integers.
      ShapeError: there is not one integer for each object.
    """
    numbers = check_ids(this.name, value, argument)
    if not isinstance(value, core.SequenceBatch) or numbers.shape not in (boxes.shape[:2], (*boxes.shape[:2], 1)):
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)} for boxes {describe(boxes)}; expected one number for each box, "
            f'as from layers.data("{argument}", shape=[1], dtype="int64", lod_level=1)'
        )
    return numbers.reshape(boxes.shape[:2])


def predictions_of(
    this: Layer, bbox_pred: core.Value, cls_logits: core.Value, anchor_box: core.Value, classes: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return offsets `[batch, anchors, 4]`, logits `[batch, anchors, classes]` and anchors `[anchors, 4]`, checked.

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
    """Find the object with the largest IoU for each box.

    A loop compares all boxes with one object at a time, so that the memory does not grow with the number of objects.

    Args:
      boxes: `[n, 4]` or `[batch, n, 4]`, in pixels, which include their last pixel.
      able: a mask of the usable boxes, bool `[batch, n]`.
      objects: the objects.
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
    """Return the entries of `values [batch, objects, ...]` at the object indices `found [batch, n]`."""
    if values.shape[1] == 0:
        return jnp.zeros((*found.shape, *values.shape[2:]), values.dtype)
    return jnp.take_along_axis(values, found.reshape(*found.shape, *[1] * (values.ndim - 2)), axis=1)


def some_of(able: jax.Array, most: jax.Array | int, key: jax.Array | None) -> jax.Array:
    """Choose at most `most` candidates of each row.

    Args:
      able: a mask of the candidates, bool `[batch, n]`.
      most: the largest number of candidates, one number for all rows, or `[batch, 1]`.
      key: a random key for the draw; None to choose the first candidates.

    Returns:
      bool `[batch, n]`.
    """
    turn = jnp.arange(able.shape[1]) if key is None else jax.random.uniform(key, able.shape)
    order = jnp.argsort(jnp.where(able, turn, jnp.inf), axis=1, stable=True)
    first = jnp.arange(able.shape[1]) < most
    rows = jnp.arange(able.shape[0])[:, None]
    return able & jnp.zeros_like(able).at[rows, order].set(jnp.broadcast_to(first, able.shape))


def positive_first(positive: jax.Array, negative: jax.Array, room: int | None) -> jax.Array:
    """Return the indices of positive entries, then of negative ones, then of all others.

    Args:
      positive: bool `[batch, n]`.
      negative: bool `[batch, n]`.
      room: the number of indices; None for all `n`.

    Returns:
      `[batch, room]`.
    """
    order = jnp.argsort(jnp.where(positive, 0, jnp.where(negative, 1, 2)), axis=1, stable=True)
    return order if room is None else order[:, :room]


class Chosen(NamedTuple):
    """The anchors selected for training.

    Attributes:
      positive: bool `[batch, anchors]`.
      negative: bool `[batch, anchors]`.
      room: the largest number of positive and negative anchors in total; None for all anchors.
      most: the largest number of positive anchors; None for all anchors.
    """

    positive: jax.Array
    negative: jax.Array
    room: int | None = None
    most: int | None = None

    def results(
        self, this: Layer, logits: jax.Array, offsets: jax.Array, labels: jax.Array, targets: jax.Array
    ) -> tuple[core.SequenceBatch, ...]:
        """Record the results of a target assignment, the positive anchors first.

        Args:
          this: the layer.
          logits: `[batch, anchors, classes]`.
          offsets: predicted offsets, `[batch, anchors, 4]`.
          labels: int32 `[batch, anchors]`.
          targets: targets of the offsets, `[batch, anchors, 4]`.

        Returns:
          Logits of all chosen anchors, offsets of the positive ones, labels of all chosen ones, targets of the positive
          ones, and an array of ones in the shape of the targets.
        """
        places = positive_first(self.positive, self.negative, self.room)[..., None]
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
    """Count the true entries in each row of masks `[batch, n]`, int32 `[batch]` each."""
    return [jnp.sum(mask, axis=1, dtype=jnp.int32) for mask in masks]
