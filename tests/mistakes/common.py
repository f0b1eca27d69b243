"""The names that the code of each mistake may use: some data, and programs without a mistake."""

import jax
import jax.numpy as jnp
import numpy as np

import fluid
from fluid import layers

rng = np.random.default_rng(0)
X = rng.normal(size=(16, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)
LABELS = np.arange(16) % 3


def regression():
    x = layers.data("x", shape=[4])
    y = layers.data("y", shape=[1])
    return layers.mean(layers.square_error_cost(layers.fc(x, size=1), y))


def classifier():
    x = layers.data("x", shape=[4])
    return layers.fc(x, size=3, act="softmax")


def classification():
    label = layers.data("label", shape=[1], dtype="int64")
    prediction = classifier()
    loss = layers.mean(layers.cross_entropy(prediction, label))
    return {"loss": loss, "accuracy": layers.accuracy(prediction, label)}


def sentiment():
    words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
    embedded = layers.embedding(words, size=[100, 8])
    return layers.fc(layers.sequence_pool(embedded, "average"), size=2, act="softmax")


SGD = fluid.optimizer.SGD(0.1)
READER = fluid.reader.arrays({"x": X, "y": Y}, batch_size=8)
LABELED = fluid.reader.arrays({"x": X, "label": LABELS}, batch_size=8)

__all__ = [
    "LABELED",
    "LABELS",
    "READER",
    "SGD",
    "X",
    "Y",
    "classification",
    "classifier",
    "fluid",
    "jax",
    "jnp",
    "layers",
    "np",
    "regression",
    "rng",
    "sentiment",
]
