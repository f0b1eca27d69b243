"""YOLOv3 (Redmon and Farhadi, 2018): what a feature map predicts, and what is found on it."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, layer, wide
from fluid.layers.checks import check_ids
from fluid.layers.detection.box import Centred, clipped, cornered
from fluid.layers.detection.prior import positive_numbers


class Grid(NamedTuple):
    """What a feature map predicts: for each anchor and each of its pixels a box, whether it is one, and its class.

    Attributes:
      cells: `[batch, anchors, 5 + classes, height, width]`: x, y, width, height, objectness, classes, all as logits.
      anchors: width and height `[anchors, 2]`, in shares of the network's input.
      scale: how far from its pixel a centre may lie; 1 for within it.
    """

    cells: jax.Array
    anchors: np.ndarray
    scale: float

    def boxes(self) -> Centred:
        """The boxes, in shares of the image, each `[batch, anchors, height, width]`."""
        x, y, width, height = jnp.moveaxis(self.cells[:, :, :4], 2, 0)
        rows, columns = self.cells.shape[3:]
        across, down = self.anchors.T[..., None, None].astype(x.dtype)
        around = (1 - self.scale) / 2
        return Centred(
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
    """What YOLOv3 has found on one feature map: boxes, and probabilities of the classes, for `multiclass_nms`.

    Args:
      x: what the net predicts, `[batch, anchors * (5 + class_num), height, width]`, see `yolov3_loss`.
      img_size: height and width of each image in pixels, integers `[batch, 2]`.
      anchors: width and height of the anchors of this feature map, in pixels of the network's input.
      class_num: how many classes there are.
      conf_thresh: boxes whose objectness is less are all zeros, and so are their probabilities.
      downsample_ratio: pixels of the network's input for each pixel of the feature map.
      clip_bbox: whether boxes are cut off at the edges of the image.
      name: instead of `yolo_box_N`.
      scale_x_y: see `yolov3_loss`.

    Returns:
      Boxes in pixels of the image, `[batch, anchors * height * width, 4]`, and objectness times probability of each
      class, `[batch, anchors * height * width, class_num]`.

    Raises:
      ArgumentError: anchors make no sense.
      ArgumentTypeError: sizes are no integers.
      ShapeError: the inputs do not fit together.

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
    boxes = cornered(Centred(found.x * broad, found.y * high, found.width * broad, found.height * high), 0.0)
    boxes = clipped(boxes, broad - 1, high - 1) if clip_bbox else boxes
    certain = jax.nn.sigmoid(grid.cells[:, :, 4])
    certain = jnp.where(certain >= conf_thresh, certain, 0)
    chances = certain[..., None] * jax.nn.sigmoid(jnp.moveaxis(grid.cells[:, :, 5:], 2, -1))
    boxes = jnp.where(certain[..., None] > 0, boxes, 0)
    return this.output(boxes.reshape(batch, -1, 4)), this.output(chances.reshape(batch, -1, chances.shape[-1]))


def anchors_of(this: Layer, anchors: Sequence[int]) -> np.ndarray:
    """Width and height of each anchor, `[anchors, 2]`, in pixels of the network's input."""
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
    """Read what the net predicts for the anchors of these numbers."""
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
