"""Boxes: overlaps, clipping, and encoding as offsets from prior boxes.

A box is `[x1, y1, x2, y2]`: its left, top, right and bottom edge. Boxes are either normalized, in fractions of the
image, or in pixels. A box in pixels includes the pixels `x2` and `y2`, so that its width is `x2 - x1 + 1`. Functions
add their argument `pixel` to each width and height: 1 for boxes in pixels, and 0 for normalized boxes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, as_rows, describe, is_sequence, layer, like, valid_steps, wide
from fluid.layers.functional import activation


@layer
def iou_similarity(x: Value, y: Value, box_normalized: bool = True, name: str | None = None) -> Any:
    """Compute the intersection over union of each pair of boxes: intersection area divided by union area.

    Args:
      x: boxes `[n, 4]`, or a SequenceBatch of boxes.
      y: boxes `[m, 4]`.
      box_normalized: True for boxes in fractions of the image; False for boxes in pixels, whose width is
        `x2 - x1 + 1`.
      name: name of the layer; by default `iou_similarity_N`.

    Returns:
      `[n, m]`, or a SequenceBatch whose steps are `[m]` if `x` is a SequenceBatch. The result is 0 for a pair of boxes
      whose union has no area.

    Raises:
      ShapeError: an input is not `[..., 4]`.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.iou_similarity(x, x)
      >>> fluid.Session(program).run(program, {"x": [[0, 0, 2, 2], [1, 0, 2, 2]]})[0].tolist()
      [[1.0, 0.5], [0.5, 1.0]]
    """
    this = Layer("iou_similarity", name)
    first, second = boxes_of(this, x, "x", 2), boxes_of(this, exact_array(this, y), "y", 2)
    return this.output(like(x, iou(first[..., None, :], second, 0.0 if box_normalized else 1.0)))


@layer
def box_clip(input: Value, im_info: Value, name: str | None = None) -> Any:
    """Clip boxes to the bounds of their image.

    Args:
      input: boxes in pixels of the original image: `[batch, ..., 4]`, or a SequenceBatch with steps `[..., 4]`.
      im_info: `[batch, 3]`: height and width of the resized image, and the scale by which it was resized.
      name: name of the layer; by default `box_clip_N`.

    Returns:
      Boxes in the shape of `input`, with x between 0 and `round(width / scale) - 1`, and y between 0 and
      `round(height / scale) - 1`.

    Raises:
      ShapeError: the input is not `[..., 4]`, or `im_info` is not `[batch, 3]`.

    Example:
      >>> import fluid
      >>> def program():
      ...     boxes = fluid.layers.data("boxes", shape=[4], lod_level=1)
      ...     return fluid.layers.box_clip(boxes, fluid.layers.data("im_info", shape=[3]))
      >>> feed = {"boxes": [[[-3, 2, 40, 30], [1, 2, 3, 4]]], "im_info": [[24, 32, 2]]}
      >>> fluid.Session(program).run(program, feed)[0].rows()[0].tolist()
      [[0.0, 2.0, 15.0, 11.0], [1.0, 2.0, 3.0, 4.0]]
    """
    this = Layer("box_clip", name)
    boxes = boxes_of(this, input, "input")
    height, width, scale = image_sizes(this, im_info, boxes.shape[0])
    last = [activation("round")(side / scale) - 1 for side in (width, height)]
    spread = [edge.reshape(-1, *[1] * (boxes.ndim - 2)) for edge in last]
    return this.output(like(input, clip_boxes(boxes, *spread)))


@layer
def polygon_box_transform(input: Value, name: str | None = None) -> Any:
    """Convert predicted offsets to coordinates of the corners of quadrilaterals, as in EAST (Zhou et al., 2017).

    Args:
      input: offsets in pixels of the image, `[batch, channels, height, width]`, x in the even channels and y in the odd
        channels. Height and width of the feature map are a quarter of the height and width of the image.
      name: name of the layer; by default `polygon_box_transform_N`.

    Returns:
      Coordinates in the shape of `input`: `4 * column - x` in the even channels and `4 * row - y` in the odd channels.

    Raises:
      ShapeError: the input does not have four dimensions, or has an odd number of channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.polygon_box_transform(fluid.layers.data("geometry", shape=[8, 16, 16]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 8, 16, 16]
    """
    this = Layer("polygon_box_transform", name)
    offsets = wide(array_of(this, input))
    if offsets.ndim != 4 or offsets.shape[1] % 2:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)}; expected x and y of each corner, [batch, 2 * corners, height, "
            f"width], as from layers.conv2d(x, num_filters=8, filter_size=1)"
        )
    rows, columns = (4 * jnp.arange(n, dtype=offsets.dtype) for n in offsets.shape[2:])
    is_x = jnp.arange(offsets.shape[1])[:, None, None] % 2 == 0
    return this.output(jnp.where(is_x, columns, rows[:, None]) - offsets)


class CenterForm(NamedTuple):
    """Boxes, described by arrays of equal shape: x and y of the centres, widths and heights."""

    x: jax.Array
    y: jax.Array
    width: jax.Array
    height: jax.Array


def exact(value: Value) -> jax.Array:
    """Convert a value to an array in float32 or wider, with zeros for the padding of a sequence batch.

    In mixed precision, other layers round NumPy arrays to half precision. Detection layers use this function instead,
    because bfloat16 would round coordinates around 1000 to multiples of 4.
    """
    return wide(jnp.asarray(value) if isinstance(value, np.ndarray) else value)


def exact_array(this: Layer, value: Value) -> jax.Array:
    """Convert a value to an array in float32 or wider, but refuse sequence batches.

    Raises:
      ShapeError: the value is a sequence batch.
    """
    return exact(array_of(this, value) if is_sequence(value) else value)


def boxes_of(this: Layer, value: Value, argument: str, dims: int | None = None) -> jax.Array:
    """Check boxes, and return an array `[..., 4]` in float32 or wider, with zeros for the padding of a sequence batch.

    Raises:
      ShapeError: the last dimension is not 4, or an array has another number of dimensions.
    """
    array = exact(value)
    if array.ndim < 2 or array.shape[-1] != 4 or (dims is not None and not is_sequence(value) and array.ndim != dims):
        expected = "[..., 4]" if dims is None else f"[{', '.join(['boxes', 'boxes', 'batch'][: dims - 1][::-1])}, 4]"
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)} are no boxes; expected {expected}, x1, y1, x2, y2 of each, as "
            f'from layers.data("{argument}", shape=[4], lod_level=1)'
        )
    return array


def box_sizes(boxes: jax.Array, pixel: float) -> tuple[jax.Array, jax.Array]:
    """Compute widths and heights `[...]` of boxes `[..., 4]`; `pixel` is 1 for boxes in pixels, 0 for normalized."""
    return boxes[..., 2] - boxes[..., 0] + pixel, boxes[..., 3] - boxes[..., 1] + pixel


def areas(boxes: jax.Array, pixel: float) -> jax.Array:
    """Compute the areas `[...]` of boxes `[..., 4]`; the area is 0 for a box with a negative width or height.

    Args:
      boxes: `[..., 4]`.
    """
    width, height = (jnp.maximum(side, 0) for side in box_sizes(boxes, pixel))
    return width * height


def iou(first: jax.Array, second: jax.Array, pixel: float) -> jax.Array:
    """Compute the intersection over union of boxes; it is 0 if the union has no area.

    Args:
      first: boxes `[..., 4]`.

    Returns:
      `[...]`, between 0 and 1.
    """
    corner = jnp.maximum(first[..., :2], second[..., :2])
    intersection = areas(jnp.concatenate([corner, jnp.minimum(first[..., 2:], second[..., 2:])], axis=-1), pixel)
    union = areas(first, pixel) + areas(second, pixel) - intersection
    return jnp.where(union > 0, intersection / jnp.where(union > 0, union, 1), 0)


def center_form(boxes: jax.Array, pixel: float) -> CenterForm:
    """Convert boxes `[..., 4]` to centres and sizes; `pixel` is 1 for boxes in pixels, 0 for normalized boxes."""
    width, height = box_sizes(boxes, pixel)
    return CenterForm(boxes[..., 0] + width / 2, boxes[..., 1] + height / 2, width, height)


def corner_form(boxes: CenterForm, pixel: float) -> jax.Array:
    """Convert centres and sizes to boxes `[..., 4]`; `pixel` is 1 for boxes in pixels, 0 for normalized boxes."""
    half = boxes.width / 2, boxes.height / 2
    corners = boxes.x - half[0], boxes.y - half[1], boxes.x + half[0] - pixel, boxes.y + half[1] - pixel
    return jnp.stack(corners, axis=-1)


def clip_boxes(boxes: jax.Array, width: jax.Array, height: jax.Array) -> jax.Array:
    """Clip boxes `[..., 4]` to x from 0 to `width` and y from 0 to `height`; both broadcast with shape `[...]`."""
    most = jnp.stack(jnp.broadcast_arrays(width, height, width, height), axis=-1)
    return jnp.clip(boxes, 0, most)


def boxes_in_images(this: Layer, value: Value, argument: str) -> core.SequenceBatch:
    """Check that boxes are a SequenceBatch `[batch, boxes, 4]`, and return the SequenceBatch in float32 or wider.

    Raises:
      ShapeError: the value is not a SequenceBatch (an array has no lengths), or has another shape.
    """
    if not isinstance(value, core.SequenceBatch) or value.data.ndim != 3 or value.shape[2] != 4:
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)}; expected the boxes in each image as a sequence batch "
            f'[batch, objects, 4], as from layers.data("{argument}", shape=[4], lod_level=1)'
        )
    return value.with_data(exact(value))


def image_sizes(this: Layer, im_info: Value, batch: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return heights, widths and scales of images, each `[batch]`, from `im_info`, `[batch, 3]` or `[1, 3]`.

    Raises:
      ShapeError: `im_info` has another shape.
    """
    info = exact_array(this, im_info)
    if info.shape not in ((batch, 3), (1, 3)):
        raise errors.ShapeError(
            f"{this.name}: im_info {describe(im_info)}; expected height, width and scale of each image, [batch, 3], "
            f'as from layers.data("im_info", shape=[3])'
        )
    height, width, scale = jnp.broadcast_to(info, (batch, 3)).T
    return height, width, scale


# The type of the variances of prior boxes: an array `[priors, 4]`, four numbers for all prior boxes, or None for ones.
Variance = Value | Sequence[float] | None

_ENCODE, _DECODE = "encode_center_size", "decode_center_size"


@layer
def box_coder(
    prior_box: Value,
    prior_box_var: Variance,
    target_box: Value,
    code_type: str = _ENCODE,
    box_normalized: bool = True,
    name: str | None = None,
    axis: int = 0,
) -> Any:
    """Encode boxes as offsets from prior boxes (Girshick et al., 2014), or decode offsets to boxes.

    The first two offsets are x and y of the box centre minus x and y of the prior centre, divided by width and height
    of the prior box. The last two offsets are `log(width / prior width)` and `log(height / prior height)`. All four
    offsets are divided by the variances.

    Args:
      prior_box: `[priors, 4]`. For `axis=1`, one prior box for each row of `target_box`, as a SequenceBatch if
        `target_box` is one.
      prior_box_var: variances `[priors, 4]`, four numbers for all prior boxes, or None for ones.
      target_box: for encoding, boxes `[boxes, 4]`, or a SequenceBatch of boxes. For decoding, offsets
        `[batch, priors, 4]`; with `axis=1`, offsets `[boxes, n, 4]`, or a SequenceBatch with steps `[n, 4]`.
      code_type: "encode_center_size" or "decode_center_size".
      box_normalized: True for boxes in fractions of the image; False for boxes in pixels, whose width is
        `x2 - x1 + 1`.
      name: name of the layer; by default `box_coder_N`.
      axis: for decoding: 0 if the second dimension of `target_box` corresponds to the prior boxes, 1 for the first.

    Returns:
      For encoding, the offsets of each box from each prior box, `[boxes, priors, 4]`. For decoding, boxes in the
      shape of `target_box`. The result is a SequenceBatch if `target_box` is one.

    Raises:
      ArgumentError: `code_type` or `axis` has an unknown value.
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     prior = fluid.layers.data("prior", shape=[1, 4], append_batch_size=False)
      ...     box = fluid.layers.data("box", shape=[4], lod_level=1)
      ...     return fluid.layers.box_coder(prior, [0.1, 0.1, 0.2, 0.2], box)
      >>> feed = {"prior": [[0, 0, 2, 2]], "box": [[[1, 0, 3, 2]]]}
      >>> fluid.Session(program).run(program, feed)[0].rows()[0].tolist()
      [[[5.0, 0.0, 0.0, 0.0]]]
    """
    this = Layer("box_coder", name)
    if code_type not in (_ENCODE, _DECODE):
        raise errors.ArgumentError(f"{this.name}: code_type={code_type!r}; expected {_ENCODE!r} or {_DECODE!r}")
    if axis not in (0, 1):
        raise errors.ArgumentError(f"{this.name}: axis={axis!r}; expected 0 or 1")
    pixel = 0.0 if box_normalized else 1.0
    if code_type == _ENCODE:
        prior = boxes_of(this, exact_array(this, prior_box), "prior_box", 2)
        boxes = boxes_of(this, target_box, "target_box", 2)
        # Padding boxes are zeros, and the logarithm of their size would be infinite. Replace them by boxes of size 1.
        if is_sequence(target_box):
            boxes = jnp.where(valid_steps(target_box, boxes.ndim), boxes, jnp.asarray([0, 0, 1, 1], boxes.dtype))
        # As in Fluid, the centre of a target box in pixels is `(x1 + x2) / 2`, and the centre of a prior box in pixels
        # is `(x1 + x2 + 1) / 2`.
        boxes = boxes[..., None, :] - pixel / 2
        return this.output(like(target_box, encode(boxes, prior, variance_of(this, prior_box_var, prior), pixel)))
    prior, offsets, restore = _to_decode(this, prior_box, target_box, axis)
    variance = variance_of(this, prior_box_var, prior)
    prior, variance = (v[:, None] if axis == 1 and v.ndim == 2 else v for v in (prior, variance))
    return this.output(restore(decode(offsets, prior, variance, pixel)))


@layer
def box_decoder_and_assign(
    prior_box: Value,
    prior_box_var: Variance,
    target_box: Value,
    box_score: Value,
    box_clip: float,
    name: str | None = None,
) -> tuple[Any, Any]:
    """Decode the offsets of each class, and select for each region the box of its most probable class.

    Args:
      prior_box: regions in pixels, `[boxes, 4]`, or a SequenceBatch of regions; their width is `x2 - x1 + 1`.
      prior_box_var: variances, four numbers.
      target_box: offsets from the regions for each class, `[boxes, classes * 4]`, or a SequenceBatch.
      box_score: probabilities `[boxes, classes]`, or a SequenceBatch; class 0 is the background.
      box_clip: the upper bound of the last two offsets, the logarithms of the ratios of widths and of heights.
      name: name of the layer; by default `box_decoder_and_assign_N`.

    Returns:
      The boxes of all classes, `[boxes, classes * 4]`; and for each region the box of its most probable class except
      the background, `[boxes, 4]`. If the only class is the background, the second result is the regions. Both results
      are SequenceBatches if the inputs are.

    Raises:
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     rois = fluid.layers.data("rois", shape=[4])
      ...     offsets, scores = fluid.layers.data("offsets", shape=[12]), fluid.layers.data("scores", shape=[3])
      ...     return fluid.layers.box_decoder_and_assign(rois, [0.1, 0.1, 0.2, 0.2], offsets, scores, box_clip=4.135)
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 12] float32[batch, 4]
    """
    this = Layer("box_decoder_and_assign", name)
    (_, offsets, scores), restore = as_rows(this, prior_box, target_box, box_score)
    prior = boxes_of(this, prior_box, "prior_box", 2).reshape(-1, 4)
    count = prior.shape[0]
    classes = scores.shape[-1]
    if scores.ndim != 2 or offsets.shape != (count, classes * 4) or scores.shape[0] != count:
        raise errors.ShapeError(
            f"{this.name}: prior_box {describe(prior_box)}, target_box {describe(target_box)} and box_score "
            f"{describe(box_score)} do not fit; expected [boxes, 4], [boxes, classes * 4] and [boxes, classes]"
        )
    moves = wide(offsets).reshape(-1, classes, 4) * variance_of(this, prior_box_var, prior[:1])
    moves = jnp.concatenate([moves[..., :2], jnp.minimum(moves[..., 2:], box_clip)], axis=-1)
    boxes = decode(moves, prior[:, None], jnp.ones(4, moves.dtype), 1.0)
    if classes == 1:
        chosen = prior
    else:
        best = 1 + jnp.argmax(scores[:, 1:], axis=1)
        chosen = jnp.take_along_axis(boxes, best[:, None, None], axis=1)[:, 0]
    return this.output(restore(boxes.reshape(count, -1))), this.output(restore(chosen))


def encode(boxes: jax.Array, prior: jax.Array, variance: jax.Array, pixel: float) -> jax.Array:
    """Encode boxes as offsets `[..., 4]` from prior boxes, by the formula of `box_coder`; all arguments broadcast."""
    box, near = center_form(boxes, pixel), center_form(prior, pixel)
    place = (box.x - near.x) / near.width, (box.y - near.y) / near.height
    size = jnp.log(box.width / near.width), jnp.log(box.height / near.height)
    return jnp.stack([*place, *size], axis=-1) / variance


def decode(offsets: jax.Array, prior: jax.Array, variance: jax.Array, pixel: float) -> jax.Array:
    """Decode offsets from prior boxes to boxes `[..., 4]`, by the formula of `box_coder`; all arguments broadcast."""
    near = center_form(prior, pixel)
    (x, y, width, height) = jnp.moveaxis(offsets * variance, -1, 0)
    centre = x * near.width + near.x, y * near.height + near.y
    return corner_form(CenterForm(*centre, jnp.exp(width) * near.width, jnp.exp(height) * near.height), pixel)


def _to_decode(this: Layer, prior_box: Value, target_box: Value, axis: int) -> tuple[jax.Array, Any, Any]:
    """Check the prior boxes and the offsets that `box_coder` decodes, and return both as arrays.

    Returns:
      Prior boxes `[n, 4]`; offsets `[rows, n, 4]`, or `[n, m, 4]` for `axis=1`; and a function that converts a result
      to a SequenceBatch if `target_box` is one.
    """
    if axis == 1:
        (_, offsets), restore = as_rows(this, prior_box, target_box)
    else:
        (offsets,), restore = as_rows(this, target_box)
    prior = boxes_of(this, prior_box, "prior_box", 2)
    prior = prior.reshape(-1, 4) if is_sequence(prior_box) else prior
    count = prior.shape[0]
    wanted = (count, -1, 4) if axis == 1 else (-1, count, 4)
    if (
        prior.ndim != 2
        or offsets.ndim != 3
        or any(w not in (-1, d) for w, d in zip(wanted, offsets.shape, strict=True))
    ):
        raise errors.ShapeError(
            f"{this.name}: prior_box {describe(prior_box)} and target_box {describe(target_box)} do not fit; expected "
            f"[priors, 4] and [batch, priors, 4], or with axis=1 [boxes, 4] and [boxes, n, 4]"
        )
    return prior, wide(offsets), restore


def variance_of(this: Layer, value: Variance, prior: jax.Array) -> jax.Array:
    """Convert variances to an array: `[4]` for all prior boxes, or `[priors, 4]`; None stands for ones.

    Raises:
      ShapeError: the variances have another shape.
    """
    if value is None:
        return jnp.ones(4, prior.dtype)
    array = jnp.asarray(value, prior.dtype) if isinstance(value, Sequence) else exact(value)
    array = array.reshape(-1, 4) if is_sequence(value) and array.shape[-1] == 4 else array
    if array.shape not in ((4,), prior.shape):
        raise errors.ShapeError(
            f"{this.name}: prior_box_var {np.shape(array)} for prior boxes {list(prior.shape)}; expected four numbers, "
            f"or four for each of them, as in prior_box_var=[0.1, 0.1, 0.2, 0.2]"
        )
    return array
