"""Decoding of the predictions of YOLOv3 (Redmon and Farhadi, 2018)."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, layer, wide
from fluid.layers.checks import check_ids
from fluid.layers.detection.box import CenterForm, clip_boxes, corner_form
from fluid.layers.detection.prior import positive_numbers


class Grid(NamedTuple):
    """The predictions on a feature map, for each anchor and each pixel.

    Attributes:
      cells: `[batch, anchors, 5 + classes, height, width]`: x, y, width, height, objectness and classes before sigmoid
        and exponential.
      anchors: width and height `[anchors, 2]`, in fractions of the network's input.
      scale: the factor by which the range of centres exceeds a pixel, at least 1.
    """

    cells: jax.Array
    anchors: np.ndarray
    scale: float

    def boxes(self) -> CenterForm:
        """Return predicted boxes, in fractions of the image, each array `[batch, anchors, height, width]`."""
        x, y, width, height = jnp.moveaxis(self.cells[:, :, :4], 2, 0)
        rows, columns = self.cells.shape[3:]
        across, down = self.anchors.T[..., None, None].astype(x.dtype)
        around = (1 - self.scale) / 2
        return CenterForm(
            (jax.nn.sigmoid(x) * self.scale + around + jnp.arange(columns)) / columns,
            (jax.nn.sigmoid(y) * self.scale + around + jnp.arange(rows)[:, None]) / rows,
            jnp.exp(width) * across,
            jnp.exp(height) * down,
        )


@layer
def yolo_box(
    x: core.Value,
    img_size: core.Value,
    anchors: Sequence[int],
    class_num: int,
    conf_thresh: float,
    downsample_ratio: int,
    clip_bbox: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """Decode the predictions of YOLOv3 on one feature map, as boxes and scores for `multiclass_nms`.

    Args:
      x: the predictions, `[batch, anchors * (5 + class_num), height, width]`, see `yolov3_loss`.
      img_size: height and width of each image in pixels, integers `[batch, 2]`.
      anchors: width and height of each anchor of this feature map, in pixels of the network's input, in one flat list.
      class_num: the number of classes.
      conf_thresh: the smallest objectness; zeros replace other boxes and their scores.
      downsample_ratio: the size of the network's input divided by the size of the feature map.
      clip_bbox: whether to clip boxes to the image.
      name: name of the layer; by default `yolo_box_N`.
      scale_x_y: see `yolov3_loss`.

    Returns:
      Boxes in pixels of the image, `[batch, anchors * height * width, 4]`; and their scores, objectness times the
      probability of each class, `[batch, anchors * height * width, class_num]`.

    Raises:
      ArgumentError: an anchor does not have two positive numbers, or a number is not positive.
      ArgumentTypeError: sizes are no integers.
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     features = fluid.layers.data("features", shape=[14, 4, 4])
      ...     size = fluid.layers.data("size", shape=[2], dtype="int64")
      ...     return fluid.layers.yolo_box(
      ...         features, size, anchors=[10, 13, 16, 30], class_num=2, conf_thresh=0.01, downsample_ratio=32)
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 32, 4] float32[batch, 32, 2]
    """
    this = Layer("yolo_box", name)
    everything = anchors_of(this, anchors)
    grid = grid_of(this, x, everything, list(range(len(everything))), class_num, downsample_ratio, scale_x_y)
    sizes = check_ids(this.name, array_of(this, img_size), "img_size")
    batch = grid.cells.shape[0]
    if sizes.shape != (batch, 2):
        raise errors.ShapeError(
            f"{this.name}: img_size {describe(img_size)}; expected height and width of each image, [batch, 2], as from "
            f'layers.data("size", shape=[2], dtype="int64")'
        )
    high, broad = sizes.astype(grid.cells.dtype).T[..., None, None, None]
    found = grid.boxes()
    boxes = corner_form(CenterForm(found.x * broad, found.y * high, found.width * broad, found.height * high), 0.0)
    boxes = clip_boxes(boxes, broad - 1, high - 1) if clip_bbox else boxes
    certain = jax.nn.sigmoid(grid.cells[:, :, 4])
    certain = jnp.where(certain >= conf_thresh, certain, 0)
    chances = certain[..., None] * jax.nn.sigmoid(jnp.moveaxis(grid.cells[:, :, 5:], 2, -1))
    boxes = jnp.where(certain[..., None] > 0, boxes, 0)
    return this.output(boxes.reshape(batch, -1, 4)), this.output(chances.reshape(batch, -1, chances.shape[-1]))


def anchors_of(this: Layer, anchors: Sequence[int]) -> np.ndarray:
    """Check anchors, and return width and height of each, `[anchors, 2]`, in pixels of the network's input.

    Raises:
      ArgumentError: there are no anchors, one has a single number, or a number is not positive.
    """
    sides = positive_numbers(this, "anchors", anchors)
    if len(sides) % 2:
        raise errors.ArgumentError(
            f"{this.name}: {len(sides)} numbers in anchors; expected width and height of each, as in "
            f"anchors=[10, 13, 16, 30]"
        )
    return np.array(sides).reshape(-1, 2)


def grid_of(
    this: Layer, x: core.Value, anchors: np.ndarray, numbers: list[int], classes: int, ratio: int, scale: float
) -> Grid:
    """Check the predictions on a feature map, and return them as a grid.

    Args:
      this: the layer, for messages.
      x: `[batch, anchors * (5 + classes), height, width]`.
      anchors: width and height of all anchors, in pixels of the network's input.
      numbers: the indices of the anchors of this feature map.
      classes: the number of classes.
      ratio: the size of the network's input divided by the size of the feature map.
      scale: the `scale` of the `Grid`.

    Raises:
      ArgumentError: a number is not positive.
      ShapeError: `x` has another shape.
    """
    count = core.whole_number(this.name, "class_num", classes)
    wide_x = wide(array_of(this, x))
    channels = len(numbers) * (5 + count)
    if wide_x.ndim != 4 or wide_x.shape[1] != channels:
        raise errors.ShapeError(
            f"{this.name}: x {describe(x)} for {len(numbers)} anchors and class_num={count}; expected "
            f"[batch, {channels}, height, width], as from layers.conv2d(x, num_filters={channels}, filter_size=1)"
        )
    rows, columns = wide_x.shape[2:]
    size = core.whole_number(this.name, "downsample_ratio", ratio) * np.array([columns, rows])
    return Grid(wide_x.reshape(-1, len(numbers), 5 + count, rows, columns), anchors[numbers] / size, float(scale))
