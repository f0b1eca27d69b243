"""Layers on boxes themselves."""

from typing import Any

import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, layer, like, wide
from fluid.layers.detection.geometry import boxes_of, clipped, exact_array, image_sizes, overlaps
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
