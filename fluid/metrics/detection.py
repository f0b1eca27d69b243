"""Object detection metrics: DetectionMAP, the mean average precision of detected boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from fluid import core, errors
from fluid.core import fitting
from fluid.metrics.metric import MetricBase

# `Rows` is the type of detections or objects: a SequenceBatch, or a list with one array `[rows, ...]` for each image.
Rows = core.SequenceBatch | Sequence[Any]


@fitting("fluid.metrics.DetectionMAP")
class DetectionMAP(MetricBase):
    """Mean average precision of detected boxes (Everingham et al., 2010), over all classes that have objects.

    Each detection is compared with one object of its image and class: the object with the largest intersection over
    union (IoU). A detection is correct if this IoU exceeds `overlap_threshold` and no detection with a higher score
    matches the object. The average precision of a class is the area under its precision-recall curve over all score
    thresholds. The metric stores the score of each detection, so its memory grows with the number of detections.

    Args:
      name: the name of the metric in messages.
      class_num: the number of classes, including the background; None for any number.
      background_label: the class of the background, which is not evaluated.
      overlap_threshold: the minimum IoU of a correct detection (exclusive).
      evaluate_difficult: False ignores objects marked as difficult, and detections that match them.
      ap_version: "integral" for the area under the curve; or "11point" for the mean of the best precisions at recalls
        of at least 0, 0.1, ... 1.

    Raises:
      ArgumentError: `ap_version` is neither "integral" nor "11point".
      ArgumentTypeError: `name` is not a string. In PaddlePaddle Fluid, the first arguments are values of a program;
        here, `of` takes the names of values.

    Example:
      >>> metric = DetectionMAP()
      >>> found = [[[1, 0.9, 0, 0, 4, 4], [1, 0.6, 5, 5, 9, 9]]]  # an image: label, score and box of each detection
      >>> metric.update(input=found, gt_label=[[[1], [1]]], gt_box=[[[0, 0, 4, 4], [20, 20, 24, 24]]])
      >>> metric.eval()
      0.5
    """

    def __init__(
        self,
        name: str | None = None,
        class_num: int | None = None,
        background_label: int = 0,
        overlap_threshold: float = 0.5,
        evaluate_difficult: bool = True,
        ap_version: str = "integral",
    ):
        if name is not None and not isinstance(name, str):
            raise errors.ArgumentTypeError(
                "DetectionMAP takes settings, and reads values by their names: DetectionMAP(class_num=21).of("
                'input="detection_output_0.tmp_0", gt_label="label", gt_box="box")'
            )
        if ap_version not in ("integral", "11point"):
            raise errors.ArgumentError(f'DetectionMAP(ap_version={ap_version!r}): expected "integral" or "11point"')
        self._classes = class_num
        self._background = background_label
        self._overlap = overlap_threshold
        self._difficult_too = evaluate_difficult
        self._version = ap_version
        super().__init__(name)

    def reset(self) -> None:
        """Discard the detections and objects of all images that were added."""
        self._images = 0
        self._objects: dict[int, int] = {}
        self._scores: dict[int, list[float]] = {}
        self._right: dict[int, list[bool]] = {}

    def update(self, input: Rows, gt_label: Rows, gt_box: Rows, gt_difficult: Rows | None = None) -> None:
        """Add the detections and objects of a minibatch of images.

        Args:
          input: `[label, score, x1, y1, x2, y2]` of each detection, as from `layers.detection_output`: a SequenceBatch
            `[batch, detections, 6]`, or a list with one array `[detections, 6]` for each image.
          gt_label: classes of the objects: a SequenceBatch `[batch, objects, 1]`, or a list with one array for each
            image.
          gt_box: boxes of the objects: a SequenceBatch `[batch, objects, 4]`, or a list with one array for each image.
          gt_difficult: 1 for difficult objects, else 0: a SequenceBatch `[batch, objects, 1]`, or a list with one array
            for each image.
        """
        given = (input, gt_label, gt_box) if gt_difficult is None else (input, gt_label, gt_box, gt_difficult)
        images = [value.rows() if isinstance(value, core.SequenceBatch) else list(value) for value in given]
        if len({len(rows) for rows in images}) > 1:
            raise errors.ArgumentError(f"{self.name}.update: found {[len(rows) for rows in images]} images")
        for found, label, box, *difficult in zip(*images, strict=True):
            labels = np.asarray(label, np.int64).reshape(-1)
            marked = np.asarray(difficult[0] if difficult else np.zeros(len(labels)), bool).reshape(-1)
            self._add(_table(self, found, 6), labels, _table(self, box, 4), marked)

    def eval(self) -> float:
        """Return the mean average precision over all classes with objects; 0 if no class has objects.

        Raises:
          ArgumentError: no image was added.
        """
        if not self._images:
            raise errors.ArgumentError(f"{self.name}.eval(): nothing was measured yet; call update first")
        counted = [label for label, count in self._objects.items() if count]
        return float(np.mean([self._precision(label) for label in counted])) if counted else 0.0

    def _add(self, found: np.ndarray, labels: np.ndarray, boxes: np.ndarray, difficult: np.ndarray) -> None:
        if not len(labels) == len(boxes) == len(difficult):
            raise errors.ArgumentError(
                f"{self.name}.update: found {len(labels)} labels, {len(boxes)} boxes and {len(difficult)} marks of "
                f"objects in an image; expected one of each for each object"
            )
        self._check(labels)
        self._check(found[:, 0].astype(np.int64))
        self._images += 1
        for label in np.union1d(labels, found[:, 0].astype(np.int64)).tolist():
            if label == self._background:
                continue
            own = labels == label
            skipped = difficult[own] & (not self._difficult_too)
            self._objects[label] = self._objects.get(label, 0) + int(np.sum(~skipped))
            self._match(label, found[found[:, 0] == label], boxes[own], skipped)

    def _match(self, label: int, found: np.ndarray, boxes: np.ndarray, skipped: np.ndarray) -> None:
        """Record, for one image and class, the score of each detection and whether the detection is correct.

        Args:
          found: the detections of this class, `[detections, 6]`.
          boxes: the boxes of the objects of this class, `[objects, 4]`.
          skipped: bool `[objects]`, True for objects to ignore; detections that match them are ignored too.
        """
        taken = np.zeros(len(boxes), bool)
        for row in found[np.argsort(-found[:, 1], kind="stable")]:
            overlap = _overlaps(row[2:], boxes)
            best = int(np.argmax(overlap)) if len(boxes) else -1
            near = best >= 0 and overlap[best] > self._overlap
            if near and skipped[best]:
                continue
            self._scores.setdefault(label, []).append(float(row[1]))
            self._right.setdefault(label, []).append(bool(near and not taken[best]))
            if near:
                taken[best] = True

    def _precision(self, label: int) -> float:
        """Return the average precision of the class `label`, over all images."""
        scores = np.array(self._scores.get(label, []))
        right = np.array(self._right.get(label, []), bool)
        hits = np.cumsum(right[np.argsort(-scores, kind="stable")])
        precision = hits / np.arange(1, len(hits) + 1)
        recall = hits / self._objects[label]
        if self._version == "11point":
            return float(np.mean([np.max(precision[recall >= k / 10], initial=0) for k in range(11)]))
        return float(np.sum(precision * np.diff(recall, prepend=0)))

    def _check(self, labels: np.ndarray) -> None:
        if self._classes is not None and labels.size and not 0 <= labels.min() <= labels.max() < self._classes:
            raise errors.ArgumentError(
                f"{self.name}.update: found classes from {labels.min()} to {labels.max()}, expected 0 to "
                f"{self._classes - 1} for class_num={self._classes}"
            )


def _table(metric: MetricBase, rows: Any, columns: int) -> np.ndarray:
    """Convert the rows of one image to float64 `[rows, columns]`; an image without rows becomes `[0, columns]`."""
    table = np.asarray(rows, np.float64)
    if table.size % columns or table.shape[-1] not in (0, columns):
        raise errors.ArgumentError(
            f"{metric.name}.update: found {list(table.shape)} for an image; expected {columns} numbers in each row"
        )
    return table.reshape(-1, columns)


def _overlaps(box: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the intersection over union, an array `[n]`, of one box `[4]` with each box of `others` `[n, 4]`."""
    sides = np.maximum(np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2]), 0)
    shared = sides[:, 0] * sides[:, 1]
    areas = [np.prod(np.maximum(v[..., 2:] - v[..., :2], 0), axis=-1) for v in (box, others)]
    union = areas[0] + areas[1] - shared
    return shared / np.where(union > 0, union, 1)
