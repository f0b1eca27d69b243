"""The loss of YOLOv3 (Redmon and Farhadi, 2018)."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, describe, layer
from fluid.layers.checks import check_ids
from fluid.layers.detection.box import Centred, cornered, exact, overlaps
from fluid.layers.detection.yolo import Grid, anchors_of, grid_of

# Boxes that are less wide or high than this are none.
_NOTHING = 1e-6


class _Truth(NamedTuple):
    """The objects in images, `[batch, objects]` of them.

    Attributes:
      boxes: centre and size, in shares of the image.
      there: which of them are some.
      labels: their classes.
      scores: how much each counts.
    """

    boxes: Centred
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
    """The loss of YOLOv3 on one feature map: how far off boxes, objectness and classes are.

    Each object belongs to the anchor whose shape is most like its own, and to the pixel that its centre lies in. If
    that anchor is one of this feature map, the loss has the cross entropy of its place in the pixel, the distance of
    the logarithms of its size, both the heavier the smaller it is, the cross entropy of each class, and that of the
    objectness. Predictions without an object have the cross entropy of the objectness alone, unless they overlap an
    object by more than `ignore_thresh`.

    Args:
      x: what the net predicts, `[batch, anchors * (5 + class_num), height, width]`, for each anchor of this feature map
        x, y, width, height, objectness and classes, as logits.
      gt_box: objects, `[batch, objects, 4]` or a SequenceBatch of them: centre x, centre y, width, height, in shares of
        the image. Boxes without an area are none.
      gt_label: their classes, of an integer dtype, `[batch, objects]`, or a SequenceBatch.
      anchors: width and height of all anchors, in pixels of the network's input, one after the other.
      anchor_mask: the numbers of those of this feature map.
      class_num: how many classes there are.
      ignore_thresh: from which overlap with an object on a prediction without one does not count.
      downsample_ratio: pixels of the network's input for each pixel of the feature map.
      gt_score: how much each object counts, `[batch, objects]`, or a SequenceBatch; 1 by default.
      use_label_smooth: whether the classes shall be predicted a little less surely.
      name: instead of `yolov3_loss_N`.
      scale_x_y: how far from its pixel a centre may lie; 1 for within it.

    Returns:
      The loss of each image, `[batch]`, float32.

    Raises:
      ArgumentError: anchors or their numbers make no sense.
      ArgumentTypeError: classes are no integers.
      ShapeError: the inputs do not fit together.

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
            f"{this.name}: anchor_mask={anchor_mask!r}; expected different numbers from 0 to {len(everything) - 1}, "
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
    """Read the objects in images."""
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
    found = Centred(*jnp.moveaxis(boxes, -1, 0))
    there = (found.width >= _NOTHING) & (found.height >= _NOTHING)
    there = there & gt_box.mask if isinstance(gt_box, core.SequenceBatch) else there
    # What is no object shall not come to a logarithm of 0.
    found = Centred(found.x, found.y, *(jnp.where(there, side, 1) for side in (found.width, found.height)))
    return _Truth(found, there, labels.reshape(wanted), scores.reshape(wanted))


def _owner(boxes: Centred, shapes: np.ndarray, numbers: list[int]) -> jax.Array:
    """Which anchor of this feature map each object belongs to, `[batch, objects]`; -1 for none."""
    middle = jnp.zeros_like(boxes.x)[..., None]
    alike = overlaps(
        cornered(Centred(middle, middle, boxes.width[..., None], boxes.height[..., None]), 0.0),
        cornered(Centred(*np.zeros((2, len(shapes))), *shapes.T), 0.0),
        0.0,
    )
    known = np.full(len(shapes), -1, np.int32)
    known[numbers] = np.arange(len(numbers))
    return jnp.asarray(known)[jnp.argmax(alike, axis=-1)]


def _places(boxes: Centred, own: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Anchor, row and column of each object, `[batch, objects]`; those of others lie within the feature map too."""
    rows, columns = ((v * n).astype(jnp.int32) for v, n in zip((boxes.y, boxes.x), shape[3:], strict=True))
    return jnp.maximum(own, 0), jnp.clip(rows, 0, shape[3] - 1), jnp.clip(columns, 0, shape[4] - 1)


def _entropy(logits: jax.Array, target: jax.Array | float) -> jax.Array:
    """Cross entropy of the sigmoid of logits."""
    return jax.nn.softplus(logits) - logits * target


def _place_loss(cells: jax.Array, boxes: Centred, grid: Grid, anchor: jax.Array) -> jax.Array:
    """How far off the boxes `cells [batch, objects, 5 + classes]` of objects are, `[batch, objects]`."""
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
    """How far off the classes of objects are, `[batch, objects]`."""
    doubt = min(1 / classes, 1 / 40) if smooth else 0.0
    right = labels[..., None] == jnp.arange(classes)
    return jnp.sum(_entropy(cells[..., 5:], jnp.where(right, 1 - doubt, doubt)), axis=-1)


def _ignored(grid: Grid, truth: _Truth, threshold: float) -> jax.Array:
    """Which predictions `[batch, anchors, height, width]` overlap an object by more than a threshold."""
    predicted = cornered(grid.boxes(), 0.0)
    objects = cornered(truth.boxes, 0.0)

    def compare(worst: jax.Array, truth: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        box, there = truth
        found = overlaps(predicted, box[:, None, None, None], 0.0)
        return jnp.maximum(worst, jnp.where(there[:, None, None, None], found, 0)), None

    nothing = jnp.zeros(predicted.shape[:-1], predicted.dtype)
    one_by_one = jnp.swapaxes(objects, 0, 1), jnp.swapaxes(truth.there, 0, 1)
    predicted = jax.lax.stop_gradient(predicted)
    return jax.lax.scan(compare, nothing, one_by_one)[0] > threshold


def _objectness(
    ignored: jax.Array, mine: jax.Array, weights: jax.Array, places: tuple[jax.Array, jax.Array, jax.Array]
) -> jax.Array:
    """What the objectness of each prediction shall be: the score of its object, 0 for none, -1 for what does not count.

    Args:
      ignored: bool `[batch, anchors, height, width]`.
      mine: which objects belong to this feature map, bool `[batch, objects]`.
      weights: their scores; where several have one prediction, that of the last counts.
      places: anchor, row and column of each.
    """
    anchor, rows, columns = places
    batch = jnp.arange(mine.shape[0])

    def put(wanted: jax.Array, one: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
        mine, weight, anchor, row, column = one
        where = jnp.where(mine, anchor, wanted.shape[1])  # beyond the end, where nothing is set
        return wanted.at[batch, where, row, column].set(weight, mode="drop"), None

    one_by_one = tuple(jnp.swapaxes(v, 0, 1) for v in (mine, weights, anchor, rows, columns))
    return jax.lax.scan(put, jnp.where(ignored, -1, 0).astype(weights.dtype), one_by_one)[0]
