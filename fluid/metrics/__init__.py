"""Metrics: numbers such as accuracy that the host computes from many minibatches, mostly in bounded memory.

Each metric has `update` for one minibatch, `eval` for the result so far, and `reset`. `metric.of(...)` names the
program values that the metric reads. For a whole data set, call
`trainer.test(reader, metrics={"auc": metric.of(preds="prediction", labels="label")})`.
"""

from fluid._util.known_names import getattr_of
from fluid.metrics.average import WeightedAverage
from fluid.metrics.detection import DetectionMAP
from fluid.metrics.metric import (
    Accuracy,
    Auc,
    ChunkEvaluator,
    CompositeMetric,
    EditDistance,
    MetricBase,
    Metrics,
    Precision,
    Recall,
    names_of,
)

__all__ = [
    "Accuracy",
    "Auc",
    "ChunkEvaluator",
    "CompositeMetric",
    "DetectionMAP",
    "EditDistance",
    "MetricBase",
    "Metrics",
    "Precision",
    "Recall",
    "WeightedAverage",
    "names_of",
]

__getattr__ = getattr_of(__name__)
