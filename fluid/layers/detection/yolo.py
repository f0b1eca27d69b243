"""The object detector YOLOv3 (Redmon and Farhadi, 2018): decoding of predictions, and the loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, describe, layer, wide
from fluid.layers.checks import check_ids
from fluid.layers.detection.box import CenterForm, clip_boxes, corner_form, exact, iou
from fluid.layers.detection.prior import positive_numbers


class Grid(NamedTuple):
    """The predictions of YOLOv3 on a feature map, for each anchor and each pixel.

    Attributes:
      cells: `[batch, anchors, 5 + classes, height, width]`: x, y, width, height, objectness and classes, before
        sigmoid and exponential.
      anchors: width and height of each anchor, `[anchors, 2]`, in fractions of the network's input.
      scale: the `scale_x_y` of `yolov3_loss`: the width of the range of box centres that one pixel can predict, in
        pixels of the feature map; normally at least 1.
    """

    cells: jax.Array
    anchors: np.ndarray
    scale: float

    def boxes(self) -> CenterForm:
        """Return the predicted boxes in fractions of the image, as arrays `[batch, anchors, height, width]`."""
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
    x: Value,
    img_size: Value,
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
      x: the predictions, `[batch, anchors * (5 + class_num), height, width]`: for each anchor x, y, width, height,
        objectness and classes, before sigmoid and exponential.
      img_size: height and width of each image in pixels, integers `[batch, 2]`.
      anchors: width and height of each anchor of this feature map, in pixels of the network's input, in one flat list.
      class_num: the number of classes.
      conf_thresh: the smallest objectness; for a smaller objectness, the box and its scores are zeros.
      downsample_ratio: the size of the network's input divided by the size of the feature map.
      clip_bbox: whether to clip boxes to the image.
      name: name of the layer; by default `yolo_box_N`.
      scale_x_y: the width of the range of box centres that one pixel can predict, in pixels of the feature map.

    Returns:
      Boxes in pixels of the image, `[batch, anchors * height * width, 4]`; and their scores, which are objectness times
      class probability, `[batch, anchors * height * width, class_num]`.

    Raises:
      ArgumentError: `anchors` has an odd length, or a number is not positive.
      ArgumentTypeError: the values of `img_size` are not integers.
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
    """Check a flat list of widths and heights of anchors, and return it as an array `[anchors, 2]`.

    Raises:
      ArgumentError: the list is empty, its length is odd, or a number is not positive.
    """
    sides = positive_numbers(this, "anchors", anchors)
    if len(sides) % 2:
        raise errors.ArgumentError(
            f"{this.name}: {len(sides)} numbers in anchors; expected width and height of each, as in "
            f"anchors=[10, 13, 16, 30]"
        )
    return np.array(sides).reshape(-1, 2)


def grid_of(
    this: Layer, x: Value, anchors: np.ndarray, numbers: list[int], classes: int, ratio: int, scale: float
) -> Grid:
    """Check the predictions of YOLOv3 on a feature map, and return them as a `Grid`.

    Args:
      x: the predictions, `[batch, len(numbers) * (5 + classes), height, width]`.
      anchors: width and height of all anchors, `[anchors, 2]`, in pixels of the network's input.

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


# A ground-truth box whose width or height is below `_LEAST_SIZE` is padding.
_LEAST_SIZE = 1e-6


class _Truth(NamedTuple):
    """The ground-truth objects of a batch of images; all arrays are `[batch, objects]`.

    Attributes:
      boxes: centres and sizes of the objects, in fractions of the image.
      there: true for objects, false for padding.
      labels: the classes of the objects.
      scores: the weights of the objects in the loss.
    """

    boxes: CenterForm
    there: jax.Array
    labels: jax.Array
    scores: jax.Array


@layer
def yolov3_loss(
    x: Value,
    gt_box: Value,
    gt_label: Value,
    anchors: Sequence[int],
    anchor_mask: Sequence[int],
    class_num: int,
    ignore_thresh: float,
    downsample_ratio: int,
    gt_score: Value | None = None,
    use_label_smooth: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> jax.Array:
    """Compute the loss of YOLOv3 on one feature map, for boxes, objectness and classes.

    Each object is assigned to the pixel of its centre, and to the anchor whose shape has the largest intersection over
    union with the shape of the object. If this anchor belongs to the feature map, the object has a loss of three parts:
    box loss, class loss and objectness loss. The box loss adds the cross entropy of the centre position within the
    pixel and the absolute difference of the logarithms of the sizes. This sum is multiplied by `2 - width * height`,
    with the width and height of the object. The class loss is the sum of the binary cross entropies of all classes. The
    objectness loss is a binary cross entropy.

    A prediction without an object has only an objectness loss. This loss is 0 if the predicted box has an intersection
    over union with some object that exceeds `ignore_thresh`.

    Args:
      x: the predictions, `[batch, anchors * (5 + class_num), height, width]`: for each anchor of this feature map x, y,
        width, height, objectness and classes. The layer applies sigmoid and exponential.
      gt_box: the boxes of the objects, `[batch, objects, 4]` or a SequenceBatch: x and y of the centre, width and
        height, in fractions of the image. Boxes of width or height 0 are padding.
      gt_label: the classes of the objects, integers `[batch, objects]`, or a SequenceBatch.
      anchors: width and height of all anchors, in pixels of the network's input, in one flat list.
      anchor_mask: the indices of the anchors that belong to this feature map.
      class_num: the number of classes.
      ignore_thresh: the largest intersection over union with any object at which a prediction without an assigned
        object has a loss.
      downsample_ratio: the size of the network's input divided by the size of the feature map.
      gt_score: weights of the objects, `[batch, objects]`, or a SequenceBatch; 1 by default.
      use_label_smooth: whether the targets of classes are `1 - s` and `s` instead of 1 and 0, where `s` is the smaller
        of `1 / class_num` and `1 / 40`.
      name: name of the layer; by default `yolov3_loss_N`.
      scale_x_y: the width of the range of box centres that one pixel can predict, in pixels of the feature map. The
        loss uses it only to compute the intersection over union for `ignore_thresh`.

    Returns:
      The loss of each image, float32 `[batch]`.

    Raises:
      ArgumentError: `anchors` has an odd length, `anchor_mask` holds repeated or invalid indices, or a number is not
        positive.
      ArgumentTypeError: classes are not integers.
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     features = fluid.layers.data("features", shape=[14, 4, 4])
      ...     boxes = fluid.layers.data("boxes", shape=[6, 4])
      ...     labels = fluid.layers.data("labels", shape=[6], dtype="int64")
      ...     loss = fluid.layers.yolov3_loss(
      ...         features, boxes, labels, anchors=[10, 13, 16, 30, 33, 23], anchor_mask=[0, 1], class_num=2,
      ...         ignore_thresh=0.7, downsample_ratio=32)
      ...     return fluid.layers.mean(loss)
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("yolov3_loss", name)
    numbers = list(anchor_mask) if isinstance(anchor_mask, list | tuple) else []
    everything = anchors_of(this, anchors)
    if not numbers or len(set(numbers)) < len(numbers) or any(n not in range(len(everything)) for n in numbers):
        raise errors.ArgumentError(
            f"{this.name}: anchor_mask={anchor_mask!r}; expected different indices from 0 to {len(everything) - 1}, "
            f"as in anchor_mask=[0]"
        )
    grid = grid_of(this, x, everything, numbers, class_num, downsample_ratio, scale_x_y)
    shapes = everything / (downsample_ratio * np.array(grid.cells.shape[:2:-1]))
    truth = _truth(this, gt_box, gt_label, gt_score, class_num, grid.cells.shape[0])
    own = _owner(truth.boxes, shapes, numbers)
    mine = truth.there & (own >= 0)
    anchor, rows, columns = _places(truth.boxes, own, grid.cells.shape)
    batch = jnp.arange(grid.cells.shape[0])[:, None]
    cells = grid.cells[batch, anchor, :, rows, columns]
    weights = jnp.where(mine, truth.scores, 0)
    loss = _place_loss(cells, truth.boxes, grid, anchor) + _class_loss(cells, truth.labels, class_num, use_label_smooth)
    objectness = _objectness(_ignored(grid, truth, ignore_thresh), mine, weights, (anchor, rows, columns))
    logits = grid.cells[:, :, 4]
    certain = jnp.where(
        objectness > 0, _entropy(logits, 1.0) * objectness, jnp.where(objectness == 0, _entropy(logits, 0.0), 0)
    )
    return this.output(jnp.sum(loss * weights, axis=1) + jnp.sum(certain, axis=(1, 2, 3)))


def _truth(this: Layer, gt_box: Value, gt_label: Value, gt_score: Value | None, classes: int, batch: int) -> _Truth:
    """Check the ground-truth arguments of `yolov3_loss`, and return the objects as `_Truth`."""
    boxes = exact(gt_box)
    labels = check_ids(this.name, gt_label, "gt_label")
    scores = jnp.ones(boxes.shape[:2], boxes.dtype) if gt_score is None else exact(gt_score)
    wanted = (batch, boxes.shape[1] if boxes.ndim == 3 else 0)
    if boxes.shape != (*wanted, 4) or any(
        v.size != batch * wanted[1] or v.shape[:2] != wanted for v in (labels, scores)
    ):
        raise errors.ShapeError(
            f"{this.name}: gt_box {describe(gt_box)}, gt_label {describe(gt_label)}"
            + ("" if gt_score is None else f", gt_score {describe(gt_score)}")
            + f" for {batch} images; expected [batch, objects, 4] and [batch, objects]"
        )
    core.limit_feed(gt_label, 0, classes)
    found = CenterForm(*jnp.moveaxis(boxes, -1, 0))
    there = (found.width >= _LEAST_SIZE) & (found.height >= _LEAST_SIZE)
    there = there & gt_box.mask if isinstance(gt_box, core.SequenceBatch) else there
    # Padding boxes get the width and height 1, because the loss computes logarithms, and log(0) is infinite.
    found = CenterForm(found.x, found.y, *(jnp.where(there, side, 1) for side in (found.width, found.height)))
    return _Truth(found, there, labels.reshape(wanted), scores.reshape(wanted))


def _owner(boxes: CenterForm, shapes: np.ndarray, numbers: list[int]) -> jax.Array:
    """Find for each object the anchor whose shape has the largest intersection over union with the object's shape.

    Args:
      shapes: width and height of all anchors, `[anchors, 2]`, in fractions of the network's input.

    Returns:
      int32 `[batch, objects]`: the index of the anchor in the list `numbers`, or -1 if the anchor is not in the list.
    """
    middle = jnp.zeros_like(boxes.x)[..., None]
    alike = iou(
        corner_form(CenterForm(middle, middle, boxes.width[..., None], boxes.height[..., None]), 0.0),
        corner_form(CenterForm(*np.zeros((2, len(shapes))), *shapes.T), 0.0),
        0.0,
    )
    known = np.full(len(shapes), -1, np.int32)
    known[numbers] = np.arange(len(numbers))
    return jnp.asarray(known)[jnp.argmax(alike, axis=-1)]


def _places(boxes: CenterForm, own: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the anchor, row and column to which each object is assigned, each `[batch, objects]`.

    All indices are in range, also for padding and for objects without an anchor on this feature map.

    Args:
      own: the index of the anchor of each object, `[batch, objects]`; -1 (no anchor) becomes 0.
    """
    rows, columns = ((v * n).astype(jnp.int32) for v, n in zip((boxes.y, boxes.x), shape[3:], strict=True))
    return jnp.maximum(own, 0), jnp.clip(rows, 0, shape[3] - 1), jnp.clip(columns, 0, shape[4] - 1)


def _entropy(logits: jax.Array, target: jax.Array | float) -> jax.Array:
    return jax.nn.softplus(logits) - logits * target


def _place_loss(cells: jax.Array, boxes: CenterForm, grid: Grid, anchor: jax.Array) -> jax.Array:
    """Compute the box loss of each object, `[batch, objects]`: the loss of the predicted position and size.

    Args:
      cells: the predictions at the pixel and anchor of each object, `[batch, objects, 5 + classes]`.
      anchor: the index of the anchor of each object, `[batch, objects]`.
    """
    rows, columns = grid.cells.shape[3:]
    across, down = jnp.moveaxis(jnp.asarray(grid.anchors, cells.dtype)[anchor], -1, 0)
    x, y = boxes.x * columns, boxes.y * rows
    place = _entropy(cells[..., 0], x - jnp.trunc(x)) + _entropy(cells[..., 1], y - jnp.trunc(y))
    size = [
        jnp.abs(cells[..., 2 + i] - jnp.log(side / whole))
        for i, (side, whole) in enumerate([(boxes.width, across), (boxes.height, down)])
    ]
    return (place + sum(size)) * (2 - boxes.width * boxes.height)


def _class_loss(cells: jax.Array, labels: jax.Array, classes: int, smooth: bool) -> jax.Array:
    """Compute the class loss of each object, `[batch, objects]`.

    Args:
      cells: the predictions at the pixel and anchor of each object, `[batch, objects, 5 + classes]`.
      labels: the classes of the objects, `[batch, objects]`.
    """
    doubt = min(1 / classes, 1 / 40) if smooth else 0.0
    right = labels[..., None] == jnp.arange(classes)
    return jnp.sum(_entropy(cells[..., 5:], jnp.where(right, 1 - doubt, doubt)), axis=-1)


def _ignored(grid: Grid, truth: _Truth, threshold: float) -> jax.Array:
    """Return a mask of the predictions whose intersection over union with any object exceeds `threshold`.

    Returns:
      bool `[batch, anchors, height, width]`.
    """
    predicted = corner_form(grid.boxes(), 0.0)
    objects = corner_form(truth.boxes, 0.0)

    def compare(worst: jax.Array, truth: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        box, there = truth
        found = iou(predicted, box[:, None, None, None], 0.0)
        return jnp.maximum(worst, jnp.where(there[:, None, None, None], found, 0)), None

    nothing = jnp.zeros(predicted.shape[:-1], predicted.dtype)
    one_by_one = jnp.swapaxes(objects, 0, 1), jnp.swapaxes(truth.there, 0, 1)
    predicted = jax.lax.stop_gradient(predicted)
    return jax.lax.scan(compare, nothing, one_by_one)[0] > threshold


def _objectness(
    ignored: jax.Array, mine: jax.Array, weights: jax.Array, places: tuple[jax.Array, jax.Array, jax.Array]
) -> jax.Array:
    """Compute the weight of the object assigned to each prediction; 0 for no object, -1 if the loss is ignored.

    Args:
      ignored: a mask of predictions whose loss is ignored if they have no object, bool `[batch, anchors, height,
        width]`.
      mine: a mask of the objects assigned to this feature map, bool `[batch, objects]`.
      weights: the weights of the objects, `[batch, objects]`. If several objects are assigned to one prediction, the
        weight of the last object counts.
      places: anchor, row and column to which each object is assigned, each `[batch, objects]`.

    Returns:
      `[batch, anchors, height, width]`.
    """
    anchor, rows, columns = places
    batch = jnp.arange(mine.shape[0])

    def put(wanted: jax.Array, one: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        mine, weight, anchor, row, column = one
        # An object that is not assigned to this feature map gets an index beyond the end, which `mode="drop"` ignores.
        where = jnp.where(mine, anchor, wanted.shape[1])
        return wanted.at[batch, where, row, column].set(weight, mode="drop"), None

    one_by_one = tuple(jnp.swapaxes(v, 0, 1) for v in (mine, weights, anchor, rows, columns))
    return jax.lax.scan(put, jnp.where(ignored, -1, 0).astype(weights.dtype), one_by_one)[0]
