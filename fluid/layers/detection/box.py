"""Boxes: how they are read, their sides and centres, what two of them have in common; and the layers that say so.

A box is four numbers, `[x1, y1, x2, y2]`: its left, top, right and bottom. Where boxes count pixels, `x2` is the last
pixel inside, so that a box is one wider than `x2 - x1`; `pixel` is that 1, and 0 for boxes in shares of the image.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, is_sequence, layer, like, wide
from fluid.layers.functional import activation


@layer
def iou_similarity(x: core.Value, y: core.Value, box_normalized: bool = True, name: str | None = None) -> Any:
    """How much of two boxes is common: the area of their intersection divided by that of their union.

    Args:
      x: boxes `[n, 4]`, or a SequenceBatch of them.
      y: boxes `[m, 4]`.
      box_normalized: True for boxes in shares of the image; False for pixels, of which the last is inside.
      name: instead of `iou_similarity_N`.

    Returns:
      `[n, m]`, each box with each: a SequenceBatch where `x` is one. 0 for boxes without an area.

    Raises:
      ShapeError: the inputs are no boxes.

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
    return this.output(like(x, overlaps(first[..., None, :], second, 0.0 if box_normalized else 1.0)))


@layer
def box_clip(input: core.Value, im_info: core.Value, name: str | None = None) -> Any:
    """Boxes cut off at the edges of the image that they lie in.

    Args:
      input: boxes in pixels of the image before it was resized: a SequenceBatch of them, or `[batch, ..., 4]`.
      im_info: `[batch, 3]`: height and width of each image, and the factor by which it was resized to them.
      name: instead of `box_clip_N`.

    Returns:
      Boxes of the same shape, which end with the last pixel: `round(width / scale) - 1`, `round(height / scale) - 1`.

    Raises:
      ShapeError: the input are no boxes, or `im_info` has another shape.

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
    return this.output(like(input, clipped(boxes, *spread)))


@layer
def polygon_box_transform(input: core.Value, name: str | None = None) -> Any:
    """Corners of quadrilaterals from their distances to the pixel that predicts them, as in EAST (Zhou et al., 2017).

    Args:
      input: distances in pixels of the image, `[batch, channels, height, width]`: x in even channels, y in odd ones. A
        pixel of the map is four pixels of the image.
      name: instead of `polygon_box_transform_N`.

    Returns:
      Coordinates of the same shape: `4 * column - x` and `4 * row - y`.

    Raises:
      ShapeError: the input is no batch of images with an even number of channels.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.polygon_box_transform(fluid.layers.data("geometry", shape=[8, 16, 16]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 8, 16, 16]
    """
    this = Layer("polygon_box_transform", name)
    distances = wide(array_of(this, input))
    if distances.ndim != 4 or distances.shape[1] % 2:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)}; expected x and y of each corner, [batch, 2 * corners, height, "
            f"width], as from layers.conv2d(x, num_filters=8, filter_size=1)"
        )
    rows, columns = (4 * jnp.arange(n, dtype=distances.dtype) for n in distances.shape[2:])
    across = jnp.arange(distances.shape[1])[:, None, None] % 2 == 0
    return this.output(jnp.where(across, columns, rows[:, None]) - distances)


class Centred(NamedTuple):
    """Boxes by their centre and their size, each `[...]`."""

    x: jax.Array
    y: jax.Array
    width: jax.Array
    height: jax.Array


def exact(value: core.Value) -> jax.Array:
    """The array of a value, in float32 or wider; zeros for the padding of a sequence batch.

    What a user wrote down is not rounded first to the half precision that a program may compute in: of an image of 1000
    pixels that leaves every fourth.
    """
    return wide(jnp.asarray(value) if isinstance(value, np.ndarray) else value)


def exact_array(this: Layer, value: core.Value) -> jax.Array:
    """The same of a value that must not be a sequence.

    Raises:
      ShapeError: it is a sequence batch.
    """
    return exact(array_of(this, value) if is_sequence(value) else value)


def boxes_of(this: Layer, value: core.Value, argument: str, dims: int | None = None) -> jax.Array:
    """The array of boxes `[..., 4]`, in float32 or wider; zeros for the padding of a sequence batch.

    Args:
      this: the layer, for messages.
      value: boxes; how many dimensions there are is checked only of arrays.
      argument: what the layer calls them.
      dims: how many dimensions an array of them has; None for any.

    Raises:
      ShapeError: a box is not four numbers, or an array has another number of dimensions.
    """
    array = exact(value)
    if array.ndim < 2 or array.shape[-1] != 4 or (dims is not None and not is_sequence(value) and array.ndim != dims):
        expected = "[..., 4]" if dims is None else f"[{', '.join(['boxes', 'boxes', 'batch'][: dims - 1][::-1])}, 4]"
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)} are no boxes; expected {expected}, x1, y1, x2, y2 of each, as "
            f'from layers.data("{argument}", shape=[4], lod_level=1)'
        )
    return array


def sides(boxes: jax.Array, pixel: float) -> tuple[jax.Array, jax.Array]:
    """Width and height `[...]` of boxes `[..., 4]`."""
    return boxes[..., 2] - boxes[..., 0] + pixel, boxes[..., 3] - boxes[..., 1] + pixel


def areas(boxes: jax.Array, pixel: float) -> jax.Array:
    """Areas `[...]` of boxes `[..., 4]`; 0 where the left lies right of the right."""
    width, height = (jnp.maximum(side, 0) for side in sides(boxes, pixel))
    return width * height


def overlaps(first: jax.Array, second: jax.Array, pixel: float) -> jax.Array:
    """The area that two boxes share, as a part of the area that they cover together; 0 where they cover none.

    Args:
      first: boxes `[..., 4]`.
      second: boxes of a shape that is broadcast with it: `overlaps(a[:, None], b[None], 0)` compares each with each.
      pixel: 1 for boxes of pixels, else 0.

    Returns:
      `[...]`, between 0 and 1.
    """
    corner = jnp.maximum(first[..., :2], second[..., :2])
    shared = areas(jnp.concatenate([corner, jnp.minimum(first[..., 2:], second[..., 2:])], axis=-1), pixel)
    covered = areas(first, pixel) + areas(second, pixel) - shared
    return jnp.where(covered > 0, shared / jnp.where(covered > 0, covered, 1), 0)


def centred(boxes: jax.Array, pixel: float) -> Centred:
    """Centres and sizes of boxes `[..., 4]`."""
    width, height = sides(boxes, pixel)
    return Centred(boxes[..., 0] + width / 2, boxes[..., 1] + height / 2, width, height)


def cornered(boxes: Centred, pixel: float) -> jax.Array:
    """Boxes `[..., 4]` that have these centres and sizes."""
    half = boxes.width / 2, boxes.height / 2
    corners = boxes.x - half[0], boxes.y - half[1], boxes.x + half[0] - pixel, boxes.y + half[1] - pixel
    return jnp.stack(corners, axis=-1)


def clipped(boxes: jax.Array, width: jax.Array, height: jax.Array) -> jax.Array:
    """Boxes `[..., 4]` held within `0 ... width` and `0 ... height`, which are broadcast with `[...]`."""
    most = jnp.stack(jnp.broadcast_arrays(width, height, width, height), axis=-1)
    return jnp.clip(boxes, 0, most)


def ground_truth(this: Layer, value: core.Value, argument: str) -> core.SequenceBatch:
    """Boxes of some objects in each image, as a SequenceBatch `[batch, objects, 4]`.

    Raises:
      ShapeError: it is none; an array does not say how many objects there are in each image.
    """
    if not isinstance(value, core.SequenceBatch) or value.data.ndim != 3 or value.shape[2] != 4:
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)}; expected the boxes in each image as a sequence batch "
            f'[batch, objects, 4], as from layers.data("{argument}", shape=[4], lod_level=1)'
        )
    return value.with_data(exact(value))


def image_sizes(this: Layer, im_info: core.Value, batch: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Height, width and scale `[batch]` of images, from `[batch, 3]`.

    Raises:
      ShapeError: it has another shape.
    """
    info = exact_array(this, im_info)
    if info.shape not in ((batch, 3), (1, 3)):
        raise errors.ShapeError(
            f"{this.name}: im_info {describe(im_info)}; expected height, width and scale of each image, [batch, 3], "
            f'as from layers.data("im_info", shape=[3])'
        )
    height, width, scale = jnp.broadcast_to(info, (batch, 3)).T
    return height, width, scale
