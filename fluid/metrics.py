"""Metrics that are accumulated over minibatches on the host, exactly and in bounded memory.

Each has `update` for one minibatch, `eval` for the result so far and `reset`. `metric.of(...)` says which values of a
program it reads, so that `trainer.test(reader, metrics={"auc": metric.of(preds="prediction", labels="label")})` streams
over a whole data set.
"""

import copy
from collections.abc import Mapping
from typing import Any

import numpy as np

from fluid import errors


class MetricBase:
    """What all metrics have in common. A subclass starts its counts in `reset`.

    Args:
      name: only to print.

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

    def __init__(self, name: str | None = None):
        self.name = name or type(self).__name__
        self.inputs: dict[str, str] = {}
        self.reset()

    def __repr__(self) -> str:
        return f"{self.name}({self.eval()})"

    def of(self, **inputs: str) -> "MetricBase":
        """A fresh metric that reads values of a program.

        Args:
          inputs: for each argument of `update`, the name of an output, a feed or any named value.

        Example:
          >>> Precision().of(preds="fc_0.tmp_2", labels="label").inputs
          {'preds': 'fc_0.tmp_2', 'labels': 'label'}
        """
        bound = copy.copy(self)
        bound.inputs = inputs
        bound.reset()
        return bound

    def reset(self) -> None:
        """Forget everything."""
        raise NotImplementedError

    def update(self, **values: Any) -> None:
        """Take one minibatch into account."""
        raise NotImplementedError

    def eval(self) -> Any:
        """The result so far."""
        raise NotImplementedError


class Accuracy(MetricBase):
    """Mean of accuracies, weighed by how many examples each was measured on.

    Example:
      >>> accuracy = Accuracy()
      >>> accuracy.update(value=1.0, weight=3); accuracy.update(value=0.0, weight=1)
      >>> accuracy.eval()
      0.75
    """

    def reset(self) -> None:
        """See MetricBase."""
        self._value = self._weight = 0.0

    def update(self, value: Any, weight: Any) -> None:  # type: ignore[override]
        """Add one accuracy and the number of examples behind it."""
        weight = float(np.asarray(weight).reshape(()))
        if not weight >= 0:
            raise errors.ArgumentError(f"Accuracy.update(weight={weight}): expected a number of examples")
        self._value += float(np.asarray(value).reshape(())) * weight
        self._weight += weight

    def eval(self) -> float:
        """The weighed mean; an error when there was nothing."""
        return self._value / _some(self, self._weight)


class Precision(MetricBase):
    """Of the examples predicted to be positive, the share that is.

    Example:
      >>> precision = Precision()
      >>> precision.update(preds=[0.9, 0.8, 0.1], labels=[1, 0, 1])
      >>> precision.eval()
      0.5
    """

    def reset(self) -> None:
        """See MetricBase."""
        self._true = self._predicted = 0

    def update(self, preds: Any, labels: Any) -> None:  # type: ignore[override]
        """Add probabilities `[batch, 1]` or `[batch]`, positive from 0.5 on, and labels of 0 and 1."""
        positive, labels = _binary(self, preds, labels)
        self._true += int((positive & labels).sum())
        self._predicted += int(positive.sum())

    def eval(self) -> float:
        """The share, 0 when nothing was predicted to be positive."""
        return self._true / self._predicted if self._predicted else 0.0


class Recall(MetricBase):
    """Of the examples that are positive, the share predicted to be.

    Example:
      >>> recall = Recall()
      >>> recall.update(preds=[0.9, 0.8, 0.1, 0.2], labels=[1, 0, 1, 1])
      >>> round(recall.eval(), 3)
      0.333
    """

    def reset(self) -> None:
        """See MetricBase."""
        self._true = self._positive = 0

    def update(self, preds: Any, labels: Any) -> None:  # type: ignore[override]
        """Add probabilities `[batch, 1]` or `[batch]`, positive from 0.5 on, and labels of 0 and 1."""
        positive, labels = _binary(self, preds, labels)
        self._true += int((positive & labels).sum())
        self._positive += int(labels.sum())

    def eval(self) -> float:
        """The share, 0 when nothing is positive."""
        return self._true / self._positive if self._positive else 0.0


class Auc(MetricBase):
    """Area under the receiver operating characteristic, from a histogram of the predictions.

    Args:
      name: only to print.
      curve: "ROC".
      num_thresholds: bins of the histogram; the area is exact for predictions that differ by more than one bin.

    Example:
      >>> auc = Auc()
      >>> auc.update(preds=[0.1, 0.4, 0.35, 0.8], labels=[0, 0, 1, 1])
      >>> auc.eval()
      0.75
    """

    def __init__(self, name: str | None = None, curve: str = "ROC", num_thresholds: int = 4095):
        if curve != "ROC":
            raise errors.ArgumentError(f'Auc(curve={curve!r}): "ROC" is possible')
        self._bins = num_thresholds + 1
        super().__init__(name)

    def reset(self) -> None:
        """See MetricBase."""
        self._positive, self._negative = np.zeros(self._bins, np.int64), np.zeros(self._bins, np.int64)

    def update(self, preds: Any, labels: Any) -> None:  # type: ignore[override]
        """Add probabilities of class 1, `[batch]` or `[batch, 1]`, or of both, `[batch, 2]`; and labels of 0 and 1."""
        preds = np.asarray(preds)
        preds = preds[:, 1] if preds.ndim == 2 and preds.shape[1] == 2 else preds.reshape(-1)
        labels = _labels(self, labels, len(preds))
        if preds.size and not (preds.min() >= 0 and preds.max() <= 1):
            raise errors.ArgumentError(f"Auc.update: preds are probabilities, found {preds.min()} to {preds.max()}")
        places = (preds.astype(np.float64) * (self._bins - 1)).astype(np.int64)
        self._positive += np.bincount(places[labels], minlength=self._bins)
        self._negative += np.bincount(places[~labels], minlength=self._bins)

    def eval(self) -> float:
        """The area; 0 when one of the classes is missing."""
        true = np.concatenate([[0], np.cumsum(self._positive[::-1])]).astype(np.float64)
        false = np.concatenate([[0], np.cumsum(self._negative[::-1])]).astype(np.float64)
        area = np.sum((false[1:] - false[:-1]) * (true[1:] + true[:-1]) / 2)
        total = true[-1] * false[-1]
        return float(area / total) if total else 0.0


class ChunkEvaluator(MetricBase):
    """Precision, recall and F1 of chunks, from the counts that `layers.chunk_eval` gives.

    Example:
      >>> chunks = ChunkEvaluator()
      >>> chunks.update(num_infer_chunks=3, num_label_chunks=2, num_correct_chunks=1)
      >>> chunks.update(num_infer_chunks=1, num_label_chunks=2, num_correct_chunks=1)
      >>> chunks.eval()
      (0.5, 0.5, 0.5)
    """

    def reset(self) -> None:
        """See MetricBase."""
        self._found = self._labelled = self._right = 0

    def update(self, num_infer_chunks: Any, num_label_chunks: Any, num_correct_chunks: Any) -> None:  # type: ignore[override]
        """Add how many chunks were found, how many there are, and how many were found as they are."""
        self._found += int(np.sum(num_infer_chunks))
        self._labelled += int(np.sum(num_label_chunks))
        self._right += int(np.sum(num_correct_chunks))

    def eval(self) -> tuple[float, float, float]:
        """Precision, recall and F1, each 0 when there is nothing to share."""
        parts = (
            (self._right, self._found),
            (self._right, self._labelled),
            (2 * self._right, self._found + self._labelled),
        )
        precision, recall, f1 = (hits / count if count else 0.0 for hits, count in parts)
        return precision, recall, f1


class EditDistance(MetricBase):
    """Mean edit distance, and the share of sequences that have a mistake, from what `layers.edit_distance` gives.

    Example:
      >>> distance = EditDistance()
      >>> distance.update(distances=[[0.0], [0.5]], seq_num=2); distance.update(distances=[[0.0], [1.5]], seq_num=2)
      >>> distance.eval()
      (0.5, 0.5)
    """

    def reset(self) -> None:
        """See MetricBase."""
        self._total, self._wrong, self._count = 0.0, 0, 0

    def update(self, distances: Any, seq_num: Any) -> None:  # type: ignore[override]
        """Add the distances of some sequences, `[batch, 1]`, and how many they are."""
        distances = np.asarray(distances, np.float64)
        if distances.size != int(np.sum(seq_num)):
            raise errors.ArgumentError(
                f"{self.name}.update: found {distances.size} distances of seq_num={int(np.sum(seq_num))} sequences; "
                f"give it both results of layers.edit_distance"
            )
        self._total += float(distances.sum())
        self._wrong += int(np.count_nonzero(distances))
        self._count += distances.size

    def eval(self) -> tuple[float, float]:
        """The mean, and the share of distances above 0; an error when there was nothing."""
        count = _some(self, self._count)
        return self._total / count, self._wrong / count


class CompositeMetric(MetricBase):
    """Several metrics of the same predictions and labels.

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
        """Add one more."""
        if not isinstance(metric, MetricBase):
            raise errors.ArgumentTypeError(
                f"add_metric takes a metric such as fluid.metrics.Recall(), found {metric!r}"
            )
        self._metrics.append(metric)

    def reset(self) -> None:
        """See MetricBase."""
        self._metrics = [copy.copy(metric) for metric in self._metrics]
        for metric in self._metrics:
            metric.reset()

    def update(self, preds: Any, labels: Any) -> None:  # type: ignore[override]
        """Update all of them."""
        for metric in self._metrics:
            metric.update(preds=preds, labels=labels)

    def eval(self) -> list[Any]:
        """One result each, in the order in which they were added."""
        return [metric.eval() for metric in self._metrics]


def names_of(metrics: Mapping[str, MetricBase]) -> list[str]:
    """The values of a program that metrics read, each once.

    Raises:
      ArgumentTypeError: something is no metric, or was not told what to read.

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


def _some(metric: MetricBase, count: float) -> float:
    if not count:
        raise errors.ArgumentError(f"{metric.name}.eval(): nothing was measured yet; call update first")
    return count


def _binary(metric: MetricBase, preds: Any, labels: Any) -> tuple[np.ndarray, np.ndarray]:
    preds = np.asarray(preds).reshape(-1)
    return preds >= 0.5, _labels(metric, labels, len(preds))


def _labels(metric: MetricBase, labels: Any, count: int) -> np.ndarray:
    labels = np.asarray(labels).reshape(-1)
    if len(labels) != count or not np.isin(labels, (0, 1)).all():
        raise errors.ArgumentError(
            f"{metric.name}.update: found {len(labels)} labels from {labels.min(initial=0)} to {labels.max(initial=0)} "
            f"for {count} predictions, expected a label of 0 or 1 for each"
        )
    return labels == 1
