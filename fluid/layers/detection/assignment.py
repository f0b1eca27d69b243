"""Which anchors or regions stand for which object: what two-stage detectors and RetinaNet are trained with."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, describe, wide
from fluid.layers.checks import check_ids
from fluid.layers.detection.box import exact_array, ground_truth, image_sizes, overlaps

# So far two overlaps may be apart to count as equally large.
_SAME = 1e-5


class Objects(NamedTuple):
    """The objects in images that are looked for.

    Attributes:
      boxes: `[batch, objects, 4]`, in pixels of the images that the net gets.
      there: which of them are some: neither padding nor crowds; `[batch, objects]`.
      sizes: height, width and scale of each image, each `[batch]`.
    """

    boxes: jax.Array
    there: jax.Array
    sizes: tuple[jax.Array, jax.Array, jax.Array]


class Owners(NamedTuple):
    """The object that each box overlaps most.

    Attributes:
      objects: int32 `[batch, n]`.
      overlaps: `[batch, n]`; 0 where there is no object.
      nearest: whether no other box overlaps some object more, `[batch, n]`.
    """

    objects: jax.Array
    overlaps: jax.Array
    nearest: jax.Array


def objects_of(this: Layer, gt_boxes: core.Value, is_crowd: core.Value, im_info: core.Value) -> Objects:
    """Read the objects in images, in pixels of the images before they were resized.

    Raises:
      ArgumentTypeError: `is_crowd` are no integers.
      ShapeError: the inputs do not fit together.
    """
    boxes = ground_truth(this, gt_boxes, "gt_boxes")
    crowd = one_for_each(this, is_crowd, boxes, "is_crowd")
    sizes = image_sizes(this, im_info, boxes.shape[0])
    scaled = wide(boxes) * sizes[2][:, None, None]
    return Objects(scaled, boxes.mask & (crowd == 0), sizes)


def one_for_each(this: Layer, value: core.Value, boxes: core.SequenceBatch, argument: str) -> jax.Array:
    """One integer for each object, `[batch, objects]`.

    Raises:
      ArgumentTypeError: they are no integers.
      ShapeError: there is not one for each object.
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
    """Offsets `[batch, anchors, 4]`, logits `[batch, anchors, classes]` and anchors `[anchors, 4]`.

    Raises:
      ShapeError: they do not fit together.
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
    """Find the object that each box overlaps most, one object after the other, so that memory stays small.

    Args:
      boxes: `[n, 4]`, or `[batch, n, 4]`, in pixels, of which the last is inside.
      able: which boxes may stand for an object, `[batch, n]`.
      objects: the objects.
    """

    def compare(found: Owners, one: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Owners, None]:
        number, box, there = one
        overlap = jnp.where(able & there[:, None], overlaps(boxes, box[:, None], 1.0), 0)
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
    """What belongs to the object of each box, `[batch, n, ...]`, of `values [batch, objects, ...]`; zeros for none."""
    if values.shape[1] == 0:
        return jnp.zeros((*found.shape, *values.shape[2:]), values.dtype)
    return jnp.take_along_axis(values, found.reshape(*found.shape, *[1] * (values.ndim - 2)), axis=1)


def some_of(able: jax.Array, most: jax.Array | int, key: jax.Array | None) -> jax.Array:
    """At most so many of those that are able, `[batch, n]`: any, or without a key the first.

    Args:
      able: bool `[batch, n]`.
      most: how many of each row, a number or `[batch, 1]`.
      key: to draw with.
    """
    turn = jnp.arange(able.shape[1]) if key is None else jax.random.uniform(key, able.shape)
    order = jnp.argsort(jnp.where(able, turn, jnp.inf), axis=1, stable=True)
    first = jnp.arange(able.shape[1]) < most
    rows = jnp.arange(able.shape[0])[:, None]
    return able & jnp.zeros_like(able).at[rows, order].set(jnp.broadcast_to(first, able.shape))


def foreground_first(chosen: jax.Array, behind: jax.Array, room: int | None) -> jax.Array:
    """Places `[batch, room]` of those that are chosen, then of those behind them; without room for all of them."""
    order = jnp.argsort(jnp.where(chosen, 0, jnp.where(behind, 1, 2)), axis=1, stable=True)
    return order if room is None else order[:, :room]


def counts(*masks: jax.Array) -> list[jax.Array]:
    """How many there are in each row, `[batch]`."""
    return [jnp.sum(mask, axis=1, dtype=jnp.int32) for mask in masks]
