"""`yolov3_loss`: the loss of YOLOv3 (Redmon and Farhadi, 2018)."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, describe, layer
from fluid.layers.checks import check_ids
from fluid.layers.detection.box import CenterForm, corner_form, exact, iou
from fluid.layers.detection.yolo import Grid, anchors_of, grid_of

# Boxes with a smaller width or height are padding.
_LEAST_SIZE = 1e-6


class _Truth(NamedTuple):
    """Ground-truth objects; all arrays are `[batch, objects]`.

    Attributes:
      boxes: centres and sizes, in fractions of the image.
      there: false for padding.
      labels: the classes of the objects.
      scores: the weights of the objects in the loss.
    """

    boxes: CenterForm
    there: jax.Array
    labels: jax.Array
    scores: jax.Array


@layer
def yolov3_loss(
    x: core.Value,
    gt_box: core.Value,
    gt_label: core.Value,
    anchors: Sequence[int],
    anchor_mask: Sequence[int],
    class_num: int,
    ignore_thresh: float,
    downsample_ratio: int,
    gt_score: core.Value | None = None,
    use_label_smooth: bool = True,
    name: str | None = None,
    scale_x_y: float = 1.0,
) -> jax.Array:
    """Compute the loss of YOLOv3 on one feature map, for boxes, objectness and classes.

    Each object is assigned to the pixel of its centre, and to the anchor whose shape has the largest intersection over
    union with its shape. If this anchor belongs to the feature map, the loss is the sum of three parts: box loss, class
    loss and objectness loss. The box loss adds the cross entropy of the position within the pixel and the absolute
    difference of the logarithms of the sizes; `2 - width * height` of the object multiplies both. The other parts are
    the cross entropies of each class and of the objectness. The loss of predictions without an object is only the cross
    entropy of the objectness. It is 0 if their intersection over union with an object exceeds `ignore_thresh`.

    Args:
      x: the predictions, `[batch, anchors * (5 + class_num), height, width]`: for each anchor of this feature map x, y,
        width, height, objectness and classes. The layer applies sigmoid and exponential.
      gt_box: the objects, `[batch, objects, 4]`, or a SequenceBatch of them: x and y of the centre, width and height,
        in fractions of the image. Boxes of width or height 0 are padding.
      gt_label: the classes of the objects, integers `[batch, objects]`, or a SequenceBatch.
      anchors: width and height of all anchors, in pixels of the network's input, in one flat list.
      anchor_mask: the indices of the anchors that belong to this feature map.
      class_num: the number of classes.
      ignore_thresh: the largest intersection over union with an object at which a prediction without object has a loss.
      downsample_ratio: the size of the network's input divided by the size of the feature map.
      gt_score: weights of the objects, `[batch, objects]`, or a SequenceBatch; 1 by default.
      use_label_smooth: whether the targets of classes are `1 - s` and `s` instead of 1 and 0, where `s` is the smaller
        of `1 / class_num` and `1 / 40`.
      name: name of the layer; by default `yolov3_loss_N`.
      scale_x_y: the factor by which the range of predicted centres exceeds a pixel, for `ignore_thresh`.

    Returns:
      The loss of each image, float32 `[batch]`.

    Raises:
      ArgumentError: `anchors` has an odd length, `anchor_mask` holds repeated or invalid indices, or a number is not
        positive.
      ArgumentTypeError: classes are no integers.
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


def _truth(
    this: Layer, gt_box: core.Value, gt_label: core.Value, gt_score: core.Value | None, classes: int, batch: int
) -> _Truth:
    """Check ground-truth objects, and return them with a mask of padding.

    Raises:
      ArgumentTypeError: classes are no integers.
      ShapeError: the shapes do not fit together.
    """
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
    # Padding gets the size 1, because 0 has no logarithm.
    found = CenterForm(found.x, found.y, *(jnp.where(there, side, 1) for side in (found.width, found.height)))
    return _Truth(found, there, labels.reshape(wanted), scores.reshape(wanted))


def _owner(boxes: CenterForm, shapes: np.ndarray, numbers: list[int]) -> jax.Array:
    """Return the assigned anchor of each object, `[batch, objects]`, -1 for an anchor of another feature map.

    Args:
      boxes: the objects.
      shapes: width and height of all anchors, `[anchors, 2]`, in fractions of the network's input.
      numbers: the indices of the anchors of this feature map.
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
    """Return anchor, row and column of each object, `[batch, objects]`, clipped to valid indices."""
    rows, columns = ((v * n).astype(jnp.int32) for v, n in zip((boxes.y, boxes.x), shape[3:], strict=True))
    return jnp.maximum(own, 0), jnp.clip(rows, 0, shape[3] - 1), jnp.clip(columns, 0, shape[4] - 1)


def _entropy(logits: jax.Array, target: jax.Array | float) -> jax.Array:
    """Compute the cross entropy of the sigmoid of logits."""
    return jax.nn.softplus(logits) - logits * target


def _place_loss(cells: jax.Array, boxes: CenterForm, grid: Grid, anchor: jax.Array) -> jax.Array:
    """Compute the loss `[batch, objects]` of the boxes in `cells [batch, objects, 5 + classes]`."""
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
    """Compute the loss `[batch, objects]` of the classes in `cells [batch, objects, 5 + classes]`."""
    doubt = min(1 / classes, 1 / 40) if smooth else 0.0
    right = labels[..., None] == jnp.arange(classes)
    return jnp.sum(_entropy(cells[..., 5:], jnp.where(right, 1 - doubt, doubt)), axis=-1)


def _ignored(grid: Grid, truth: _Truth, threshold: float) -> jax.Array:
    """Return a mask of the predictions whose intersection over union with an object exceeds a threshold.

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
    """Compute the objectness weight of each prediction: its object's weight, 0 without object, -1 if ignored.

    Args:
      ignored: bool `[batch, anchors, height, width]`.
      mine: a mask of the objects assigned to this feature map, bool `[batch, objects]`.
      weights: the weights of the objects; if several objects share a prediction, the last weight counts.
      places: anchor, row and column of each object.

    Returns:
      `[batch, anchors, height, width]`.
    """
    anchor, rows, columns = places
    batch = jnp.arange(mine.shape[0])

    def put(wanted: jax.Array, one: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        mine, weight, anchor, row, column = one
        where = jnp.where(mine, anchor, wanted.shape[1])  # an index beyond the end is dropped
        return wanted.at[batch, where, row, column].set(weight, mode="drop"), None

    one_by_one = tuple(jnp.swapaxes(v, 0, 1) for v in (mine, weights, anchor, rows, columns))
    return jax.lax.scan(put, jnp.where(ignored, -1, 0).astype(weights.dtype), one_by_one)[0]
