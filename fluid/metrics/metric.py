"""Metrics: the base class MetricBase, and metrics for classification and for sequences."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid._util.known_names import KnownAttributes
from fluid.core import fitting, whole_number


class MetricBase(KnownAttributes):
    """The base class of metrics.

    A subclass initialises its counts in `reset`, adds to the counts in `update`, and computes the result in `eval`.

    Args:
      name: the name of the metric in messages; the name of the class by default.

    Attributes:
      inputs: for each argument of `update`, the name of the program value that is passed to it; set by `of`.
      parts: the names of the numbers that `eval` returns, if there are several; empty for a single number.

    Example:
      >>> class Count(MetricBase):
      ...     def reset(self):
      ...         self.rows = 0
      ...     def update(self, values):
      ...         self.rows += len(values)
      ...     def eval(self):
      ...         return self.rows
      >>> count = Count()
      >>> count.update([1, 2]); count.update([3]); count.eval()
      3
    """

    parts: Sequence[str] = ()

    def __init__(self, name: str | None = None):
        self.name = name or type(self).__name__
        self.inputs: dict[str, str] = {}
        self.reset()

    def __repr__(self) -> str:
        # Leave the result of `eval` out of the repr, because `eval` may raise an error before the first `update`.
        inputs = ", ".join(f"{argument}={name!r}" for argument, name in self.inputs.items())
        return f"{self.name}()" + (f".of({inputs})" if inputs else "")

    def of(self, **inputs: str) -> "MetricBase":
        """Return an empty copy of this metric that reads the arguments of `update` from values of a program.

        Args:
          inputs: for each argument of `update`, the name of an output, a feed or any named value.

        Example:
          >>> Precision().of(preds="fc_0.tmp_2", labels="label").inputs
          {'preds': 'fc_0.tmp_2', 'labels': 'label'}
        """
        bound = copy.deepcopy(self)  # `reset` of the copy may empty a list or another object in place
        bound.inputs = inputs
        bound.reset()
        return bound

    def reset(self) -> None:
        """Discard the counts of all minibatches that were added."""
        raise NotImplementedError

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Add one minibatch to the metric; each subclass defines the arguments, such as predictions and labels."""
        raise NotImplementedError

    def eval(self) -> Any:
        """Return the result over all minibatches since the last `reset`: a number, or several numbers.

        The attribute `parts` has the names of the numbers; it is empty for a single number. Without data, the metrics
        of fluid do as in PaddlePaddle Fluid 1.8: a share, such as a precision, is 0, and a mean raises ArgumentError.
        """
        raise NotImplementedError


Metrics = Mapping[str, MetricBase]
"""The type of the argument `metrics` of `Trainer.test`: metrics from `MetricBase.of`, by name."""


@fitting("fluid.metrics.Accuracy")
class Accuracy(MetricBase):
    """The fraction of examples whose predicted class equals the label.

    Example:
      >>> accuracy = Accuracy()
      >>> accuracy.update(preds=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]], labels=[0, 1, 1])
      >>> round(accuracy.eval(), 3)
      0.667
      >>> accuracy.update(value=0.0, weight=1)  # the accuracy of one more example
      >>> accuracy.eval()
      0.5
    """

    def reset(self) -> None:
        """Reset all counts to zero."""
        self._total = 0.0
        self._weight = 0.0

    def update(self, value: Any = None, weight: Any = None, *, preds: Any = None, labels: Any = None) -> None:
        """Add a minibatch: its predictions and labels, or its accuracy and number of examples.

        Args:
          value: the accuracy of the minibatch, a scalar.
          weight: the number of examples in the minibatch, a scalar.
          preds: scores of the classes, `[batch, classes]`, where the largest score is the predicted class; or
            probabilities of class 1, `[batch]` or `[batch, 1]`, where 0.5 or more predicts class 1.
          labels: the correct classes, whole numbers `[batch]` or `[batch, 1]`.

        Raises:
          ArgumentError: an argument is missing, `preds` has another shape, the numbers of labels and predictions
            differ, or a label is not a class.
        """
        if preds is not None and labels is not None and value is None and weight is None:
            predicted, classes = _predicted_classes(self, preds)
            right = predicted == _labels(self, labels, len(predicted), classes)
            self._total += int(right.sum())
            self._weight += right.size
            return
        if preds is not None or labels is not None or value is None or weight is None:
            raise errors.ArgumentError(
                "Accuracy.update takes predictions and labels, or an accuracy and its number of examples: "
                "update(preds=prediction, labels=label) or update(value=0.75, weight=32)"
            )
        value, weight = (float(np.asarray(number).reshape(())) for number in (value, weight))
        if not weight >= 0:
            raise errors.ArgumentError(f"Accuracy.update(weight={weight}): expected a number of examples")
        self._total += value * weight
        self._weight += weight

    def eval(self) -> float:
        """Return the accuracy over all examples; raise ArgumentError before the first `update`."""
        return self._total / _measured(self, self._weight)


@fitting("fluid.metrics.Precision")
class Precision(MetricBase):
    """The fraction of truly positive examples among all examples that are predicted as positive.

    Example:
      >>> precision = Precision()
      >>> precision.update(preds=[0.9, 0.8, 0.1], labels=[1, 0, 1])
      >>> precision.eval()
      0.5
    """

    def reset(self) -> None:
        """Reset all counts to zero."""
        self._true = 0
        self._predicted = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Add probabilities `[batch]` or `[batch, 1]`, where at least 0.5 predicts positive, and labels 0 or 1."""
        predicted = _binary(self, preds)
        positive = _labels(self, labels, len(predicted)) == 1
        self._true += int((predicted & positive).sum())
        self._predicted += int(predicted.sum())

    def eval(self) -> float:
        """Return the precision; 0 if no example was predicted as positive."""
        return _share(self._true, self._predicted)


@fitting("fluid.metrics.Recall")
class Recall(MetricBase):
    """The fraction of positive examples that are predicted as positive.

    Example:
      >>> recall = Recall()
      >>> recall.update(preds=[0.9, 0.8, 0.1, 0.2], labels=[1, 0, 1, 1])
      >>> round(recall.eval(), 3)
      0.333
    """

    def reset(self) -> None:
        """Reset all counts to zero."""
        self._true = 0
        self._positive = 0

    def update(self, preds: Any, labels: Any) -> None:
        """Add probabilities `[batch]` or `[batch, 1]`, where at least 0.5 predicts positive, and labels 0 or 1."""
        predicted = _binary(self, preds)
        positive = _labels(self, labels, len(predicted)) == 1
        self._true += int((predicted & positive).sum())
        self._positive += int(positive.sum())

    def eval(self) -> float:
        """Return the recall; 0 if no example is positive."""
        return _share(self._true, self._positive)


@fitting("fluid.metrics.Auc")
class Auc(MetricBase):
    """The area under the receiver operating characteristic (ROC) curve, from a histogram of the predictions.

    Args:
      name: the name of the metric in messages.
      curve: "ROC", the only supported curve.
      num_thresholds: the number of bins minus 1; bin i starts at `i / num_thresholds`, as in `layers.auc`. The area is
        exact if no bin contains both positive and negative examples; a positive and a negative example in one bin
        count as half a correct pair. More thresholds make the area more precise.

    Raises:
      ArgumentError: the curve is not "ROC", or the number of thresholds is below 1.

    Example:
      >>> auc = Auc()
      >>> auc.update(preds=[0.1, 0.4, 0.35, 0.8], labels=[0, 0, 1, 1])
      >>> auc.eval()
      0.75
    """

    def __init__(self, name: str | None = None, curve: str = "ROC", num_thresholds: int = 4095):
        if curve != "ROC":
            raise errors.ArgumentError(f'Auc(curve={curve!r}): expected curve="ROC"')
        self._thresholds = whole_number("Auc", "num_thresholds", num_thresholds)
        super().__init__(name)

    def reset(self) -> None:
        """Reset all counts to zero."""
        self._positive = np.zeros(self._thresholds + 1, np.int64)
        self._negative = np.zeros(self._thresholds + 1, np.int64)

    def update(self, preds: Any, labels: Any) -> None:
        """Add the predictions and labels of a minibatch to the counts of this metric.

        Args:
          preds: probabilities of class 1, `[batch]` or `[batch, 1]`, or of both classes, `[batch, 2]`.
          labels: 0 or 1, `[batch]` or `[batch, 1]`.
        """
        preds = np.asarray(preds)
        both = preds.ndim == 2 and preds.shape[1] == 2
        preds = _probabilities(self, preds[:, 1] if both else preds, "probabilities [batch], [batch, 1] or [batch, 2]")
        positive = _labels(self, labels, len(preds)) == 1
        bins = (preds.astype(np.float64) * self._thresholds).astype(np.int64)
        # The time of `np.add.at` grows with the number of examples, and not with the number of bins, which is larger.
        np.add.at(self._positive, bins[positive], 1)
        np.add.at(self._negative, bins[~positive], 1)

    def eval(self) -> float:
        """Return the area under the curve; 0 if one of the two classes has no examples."""
        true = np.concatenate([[0], np.cumsum(self._positive[::-1])]).astype(np.float64)
        false = np.concatenate([[0], np.cumsum(self._negative[::-1])]).astype(np.float64)
        area = np.sum((false[1:] - false[:-1]) * (true[1:] + true[:-1]) / 2)
        total = true[-1] * false[-1]
        return float(area / total) if total else 0.0


@fitting("fluid.metrics.ChunkEvaluator")
class ChunkEvaluator(MetricBase):
    """Precision, recall and F1 score of chunks in tagged sequences, from the counts that `layers.chunk_eval` returns.

    Example:
      >>> chunks = ChunkEvaluator()
      >>> chunks.update(num_infer_chunks=3, num_label_chunks=2, num_correct_chunks=1)
      >>> chunks.update(num_infer_chunks=1, num_label_chunks=2, num_correct_chunks=1)
      >>> chunks.eval()
      (0.5, 0.5, 0.5)
    """

    parts = ("precision", "recall", "f1")

    def reset(self) -> None:
        """Reset all counts to zero."""
        self._found = 0
        self._labelled = 0
        self._right = 0

    def update(self, num_infer_chunks: Any, num_label_chunks: Any, num_correct_chunks: Any) -> None:
        """Add the numbers of predicted chunks, of labelled chunks, and of correctly predicted chunks."""
        self._found += int(np.sum(num_infer_chunks))
        self._labelled += int(np.sum(num_label_chunks))
        self._right += int(np.sum(num_correct_chunks))

    def eval(self) -> tuple[float, float, float]:
        """Return precision, recall and F1 score; each is 0 if its divisor is 0."""
        precision = _share(self._right, self._found)
        recall = _share(self._right, self._labelled)
        return precision, recall, _share(2 * self._right, self._found + self._labelled)


@fitting("fluid.metrics.EditDistance")
class EditDistance(MetricBase):
    """The mean edit distance, and the fraction of sequences with an error, from the results of `layers.edit_distance`.

    Example:
      >>> distance = EditDistance()
      >>> distance.update(distances=[[0.0], [0.5]], seq_num=2); distance.update(distances=[[0.0], [1.5]], seq_num=2)
      >>> distance.eval()
      (0.5, 0.5)
    """

    parts = ("distance", "error")

    def reset(self) -> None:
        """Reset all counts to zero."""
        self._total = 0.0
        self._wrong = 0
        self._count = 0

    def update(self, distances: Any, seq_num: Any) -> None:
        """Add a minibatch: the edit distance of each sequence, `[batch, 1]`, and the number of sequences."""
        distances = _column(self, "distances", distances, "distances [batch] or [batch, 1]").astype(np.float64)
        if distances.size != int(np.sum(seq_num)):
            raise errors.ArgumentError(
                f"{self.name}.update: found {distances.size} distances of seq_num={int(np.sum(seq_num))} sequences; "
                f"give it both results of layers.edit_distance"
            )
        self._total += float(distances.sum())
        self._wrong += int(np.count_nonzero(distances))
        self._count += distances.size

    def eval(self) -> tuple[float, float]:
        """Return the mean edit distance of the sequences, and the fraction of sequences whose distance is above 0.

        Raises:
          ArgumentError: `update` has added no distances yet.
        """
        count = _measured(self, self._count)
        return self._total / count, self._wrong / count


class CompositeMetric(MetricBase):
    """A group of metrics that all read the same predictions and labels.

    Example:
      >>> both = CompositeMetric()
      >>> both.add_metric(Precision()); both.add_metric(Recall())
      >>> both.update(preds=[0.9, 0.8, 0.1], labels=[1, 0, 0])
      >>> both.eval()
      [0.5, 1.0]
    """

    def __init__(self, name: str | None = None):
        self._metrics: list[MetricBase] = []
        super().__init__(name)

    def add_metric(self, metric: MetricBase) -> None:
        """Add a metric to the group.

        The name of the metric becomes one of the `parts`. A metric with `parts` adds one entry, "name_part", for each.

        Raises:
          ArgumentTypeError: `metric` is not a metric, or its `update` does not take `preds` and `labels`.
        """
        if not isinstance(metric, MetricBase):
            raise errors.ArgumentTypeError(
                f"add_metric takes a metric such as fluid.metrics.Recall(), found {metric!r}"
            )
        signature = inspect.signature(metric.update)
        try:
            signature.bind(preds=None, labels=None)
        except TypeError as error:
            raise errors.ArgumentTypeError(
                f"add_metric takes a metric whose update takes preds and labels, found {metric!r} with "
                f"update{signature}; write add_metric(fluid.metrics.Recall())"
            ) from error
        self._metrics.append(metric)
        self.parts = [*self.parts, *([f"{metric.name}_{part}" for part in metric.parts] or [metric.name])]

    def reset(self) -> None:
        """Reset all metrics of the group."""
        for metric in self._metrics:
            metric.reset()

    def update(self, preds: Any, labels: Any) -> None:
        """Update all metrics of the group with the predictions and labels of one minibatch."""
        for metric in self._metrics:
            metric.update(preds=preds, labels=labels)

    def eval(self) -> list[Any]:
        """Return the result of each metric, in the order of `add_metric`."""
        return [metric.eval() for metric in self._metrics]


def names_of(metrics: Metrics) -> list[str]:
    """Return the names of the program values that metrics read, without duplicates.

    Raises:
      ArgumentTypeError: an entry is not a metric, or `MetricBase.of` has not set its inputs.

    Example:
      >>> names_of({"p": Precision().of(preds="p", labels="y"), "r": Recall().of(preds="p", labels="y")})
      ['p', 'y']
    """
    for key, metric in metrics.items():
        if not isinstance(metric, MetricBase) or not metric.inputs:
            raise errors.ArgumentTypeError(
                f"metrics[{key!r}] is {metric!r}; expected a metric and what it reads: "
                f'fluid.metrics.Auc().of(preds="prediction", labels="label")'
            )
    return list(dict.fromkeys(name for metric in metrics.values() for name in metric.inputs.values()))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _measured(metric: MetricBase, count: float) -> float:
    if not count:
        raise errors.ArgumentError(f"{metric.name}.eval(): nothing was measured yet; call update first")
    return count


def _predicted_classes(metric: MetricBase, preds: Any) -> tuple[np.ndarray, int]:
    """Return the predicted class of each example, `[batch]`, and the number of classes.

    For scores `[batch, classes]`, the predicted class is the class with the largest score. For probabilities of class
    1, `[batch]` or `[batch, 1]`, it is class 1 if the probability is at least 0.5, else class 0.
    """
    preds = np.asarray(preds)
    if preds.ndim == 2 and preds.shape[1] > 1:
        return preds.argmax(axis=1), preds.shape[1]
    expected = "scores [batch, classes], or probabilities [batch] or [batch, 1]"
    return (_probabilities(metric, preds, expected) >= 0.5).astype(np.int64), 2


def _binary(metric: MetricBase, preds: Any) -> np.ndarray:
    """Return a bool array `[batch]`, True for probabilities of at least 0.5, which predict class 1."""
    return _probabilities(metric, preds, "probabilities of class 1, [batch] or [batch, 1]") >= 0.5


def _probabilities(metric: MetricBase, preds: Any, expected: str) -> np.ndarray:
    """Return probabilities `[batch]` or `[batch, 1]` as an array `[batch]`; raise ArgumentError if they are not."""
    preds = _column(metric, "preds", preds, expected)
    if preds.size and not (preds.min() >= 0 and preds.max() <= 1):
        raise errors.ArgumentError(
            f"{metric.name}.update: preds are probabilities, found {preds.min()} to {preds.max()}"
        )
    return preds


def _column(metric: MetricBase, argument: str, value: Any, expected: str) -> np.ndarray:
    """Return an array `[batch]` or `[batch, 1]` as an array `[batch]`; raise ArgumentError for another shape."""
    array = np.asarray(value)
    if array.ndim == 0 or array.shape[1:] not in ((), (1,)):
        raise errors.ArgumentError(
            f"{metric.name}.update: found {argument} of shape {list(array.shape)}, expected {expected}; one number for "
            f"each example, as in {argument}=[0, 1, 1]"
        )
    return array.reshape(-1)


def _labels(metric: MetricBase, labels: Any, count: int, classes: int = 2) -> np.ndarray:
    """Return the labels as an array `[batch]`; raise ArgumentError unless it has `count` labels in `[0, classes)`."""
    labels = _column(metric, "labels", labels, "labels [batch] or [batch, 1]")
    if len(labels) != count or not np.isin(labels, range(classes)).all():
        expected = "of 0 or 1" if classes == 2 else f"from 0 to {classes - 1}"
        raise errors.ArgumentError(
            f"{metric.name}.update: found {len(labels)} labels from {labels.min(initial=0)} to {labels.max(initial=0)} "
            f"for {count} predictions of {classes} classes, expected a label {expected} for each"
        )
    return labels
