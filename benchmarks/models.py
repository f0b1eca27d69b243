"""Models of the benchmarks: each in fluid and by hand in plain JAX, with generated data for training.

The hand-written functions use fluid's names of parameters, so both forms can start from equal values. The hand-written
functions use the layout that is fastest for them: images and filters have the channels last.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from by_fluid import digits_program, lenet_program, loss_of
from by_hand import convolution, digits_forward, lenet_forward

import fluid

Arrays = dict[str, Any]


class Model(NamedTuple):
    """A model: a program function of fluid, and a hand-written function.

    Attributes:
      shape: the shape of one input.
      inference_program: fluid's program function.
      forward: the hand-written function `(parameters, states, x, training) -> (logits, new states)`.
      layout: the layout of fluid's images, "NCHW" or "NHWC"; None for a model without images.
      flattened: channels, height and width of the images that fluid's first `fc` flattens; None without such an `fc`.
    """

    shape: tuple[int, ...]
    inference_program: Callable[[], Any]
    forward: Callable[[Arrays, Arrays, Any, bool], tuple[Any, Arrays]]
    layout: str | None = None
    flattened: tuple[int, int, int] | None = None

    def arrays_by_hand(self, arrays: Arrays) -> Arrays:
        """Convert fluid's parameters and states to the layout of the hand-written function."""
        found = {n: np.transpose(v, (2, 3, 1, 0)) if np.ndim(v) == 4 else np.array(v) for n, v in arrays.items()}
        if self.layout == "NCHW" and self.flattened and "fc_0.w_0" in found:
            rows = found["fc_0.w_0"]
            found["fc_0.w_0"] = rows.reshape(*self.flattened, -1).transpose(1, 2, 0, 3).reshape(rows.shape)
        return found

    def images_by_hand(self, x: np.ndarray) -> np.ndarray:
        """Convert fluid's inputs to the layout of the hand-written function."""
        return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if self.layout == "NCHW" else x

    def train_program(self) -> Any:
        """Return the loss of the model, computed by layers of fluid."""
        return loss_of(self.inference_program)

    def data(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Generate `count` inputs and labels: each input is the random pattern of its class, plus noise."""
        random = np.random.default_rng(0)
        labels = random.integers(0, 10, count)
        patterns = random.normal(size=(10, *self.shape)).astype("float32")
        noise = random.normal(size=(count, *self.shape)).astype("float32")
        return patterns[labels] + 2 * noise, labels.astype("int32")


def mlp_program() -> Any:
    """Return the probabilities of a perceptron 64-200-200-10."""
    x = fluid.layers.data(name="x", shape=[64])
    hidden = fluid.layers.fc(x, size=200, act="relu")
    hidden = fluid.layers.fc(hidden, size=200, act="relu")
    return fluid.layers.fc(hidden, size=10, act="softmax")


def mlp_forward(p: Arrays, states: Arrays, x: Any, training: bool) -> tuple[Any, Arrays]:
    """Compute the perceptron by hand, and return the logits and the unchanged states."""
    hidden = jax.nn.relu(x @ p["fc_0.w_0"] + p["fc_0.b_0"])
    hidden = jax.nn.relu(hidden @ p["fc_1.w_0"] + p["fc_1.b_0"])
    return hidden @ p["fc_2.w_0"] + p["fc_2.b_0"], states


def resnet_program(layout: str) -> Any:
    """Return the probabilities of ResNet-32 (He et al., 2015): three stages of five blocks of two convolutions."""

    def conv_bn(x: Any, filters: int, size: int, stride: int, act: str | None = "relu") -> Any:
        padding = (size - 1) // 2
        x = fluid.layers.conv2d(x, filters, size, stride, padding, bias_attr=False, data_format=layout)
        return fluid.layers.batch_norm(x, act=act, data_layout=layout)

    hidden = conv_bn(fluid.layers.data(name="x", shape=image_shape(layout)), 16, 3, 1)
    for filters, stride in RESNET_BLOCKS:
        shortcut = conv_bn(hidden, filters, 1, stride, None) if stride == 2 else hidden
        hidden = conv_bn(conv_bn(hidden, filters, 3, stride), filters, 3, 1, None)
        hidden = fluid.layers.relu(hidden + shortcut)
    hidden = fluid.layers.pool2d(hidden, pool_type="avg", global_pooling=True, data_format=layout)
    return fluid.layers.fc(hidden, size=10, act="softmax")


def resnet_forward(p: Arrays, states: Arrays, x: Any, training: bool) -> tuple[Any, Arrays]:
    """Compute ResNet-32 by hand, and return the logits and the new states."""
    new_states = {}
    number = 0

    def conv_bn(x: Any, stride: int) -> Any:
        nonlocal number
        filters = p[f"conv2d_{number}.w_0"]
        x = convolution(x, filters, stride, padding=(len(filters) - 1) // 2)
        norm = f"batch_norm_{number}"
        number += 1
        mean, variance = states[f"{norm}.w_1"], states[f"{norm}.w_2"]
        if training:
            old_mean, old_variance = mean, variance
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
            new_states[f"{norm}.w_1"] = 0.9 * old_mean + 0.1 * mean
            new_states[f"{norm}.w_2"] = 0.9 * old_variance + 0.1 * variance
        factor = p[f"{norm}.w_0"] * jax.lax.rsqrt(variance + 1e-5)
        return (x - mean) * factor + p[f"{norm}.b_0"]

    x = jax.nn.relu(conv_bn(x, 1))
    for _, stride in RESNET_BLOCKS:
        shortcut = conv_bn(x, stride) if stride == 2 else x
        x = jax.nn.relu(conv_bn(jax.nn.relu(conv_bn(x, stride)), 1) + shortcut)
    return x.mean((1, 2)) @ p["fc_0.w_0"] + p["fc_0.b_0"], new_states


def image_shape(layout: str) -> tuple[int, ...]:
    """Return the shape of an image of 32 x 32 pixels in three colours, in the given layout."""
    return (3, 32, 32) if layout == "NCHW" else (32, 32, 3)


def resnet(layout: str) -> Model:
    """Return ResNet-32 in fluid and by hand; `layout`, "NCHW" or "NHWC", is the layout of the images in fluid."""
    return Model(image_shape(layout), functools.partial(resnet_program, layout), resnet_forward, layout)


def lenet(layout: str) -> Model:
    """Return the model of LeNet; fluid's images have the given layout."""
    shape = (1, 28, 28) if layout == "NCHW" else (28, 28, 1)
    return Model(shape, functools.partial(lenet_program, layout), lenet_forward, layout, flattened=(50, 4, 4))


def grouped_program(groups: int) -> Any:
    """Return probabilities of 10 classes: three convolutions in `groups` groups, a mean over the pixels and an `fc`."""
    x = fluid.layers.data(name="x", shape=[128, 14, 14])
    for _ in range(3):
        x = fluid.layers.conv2d(x, 128, 3, padding=1, groups=groups, act="relu")
    return fluid.layers.fc(fluid.layers.pool2d(x, pool_type="avg", global_pooling=True), size=10, act="softmax")


def grouped_forward(groups: int, p: Arrays, states: Arrays, x: Any, training: bool) -> tuple[Any, Arrays]:
    """Compute the net of `grouped_program` in plain JAX; return the logits, and `states`, which no layer changes."""
    for i in range(3):
        x = jax.nn.relu(convolution(x, p[f"conv2d_{i}.w_0"], 1, 1, groups) + p[f"conv2d_{i}.b_0"])
    return x.mean((1, 2)) @ p["fc_0.w_0"] + p["fc_0.b_0"], states


def grouped(groups: int) -> Model:
    """Return the model with three convolutions in `groups` groups."""
    program, forward = (functools.partial(function, groups) for function in (grouped_program, grouped_forward))
    return Model((128, 14, 14), program, forward, "NCHW")


class Lookups(Model):
    """A model whose input is four ids of rows of a table; `shape` is the shape of the table."""

    def data(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Generate ids `[count, 4]` and labels `[count]`."""
        random = np.random.default_rng(0)
        ids = random.integers(0, self.shape[0], (count, 4), dtype="int32")
        return ids, random.integers(0, 10, count, dtype="int32")


def table_program(rows: int) -> Any:
    """Return the probabilities of a net: four rows of a table `[rows, 32]`, a layer of 256, and 10 classes."""
    ids = fluid.layers.data(name="x", shape=[4, 1], dtype="int64")
    found = fluid.layers.embedding(ids, size=[rows, 32], is_sparse=True)
    return fluid.layers.fc(fluid.layers.fc(found, size=256, num_flatten_dims=1, act="relu"), size=10, act="softmax")


def table_forward(p: Arrays, states: Arrays, x: Any, training: bool) -> tuple[Any, Arrays]:
    """Compute a net that reads rows of a table, in JAX without fluid; return the logits and the unchanged states."""
    hidden = p["embedding_0.w_0"][x].reshape(len(x), -1)
    hidden = jax.nn.relu(hidden @ p["fc_0.w_0"] + p["fc_0.b_0"])
    return hidden @ p["fc_1.w_0"] + p["fc_1.b_0"], states


def lookups(rows: int) -> Lookups:
    """Return a model with four look-ups in a table of `rows` rows."""
    return Lookups((rows, 32), functools.partial(table_program, rows), table_forward)


RESNET_BLOCKS = [(filters, 2 if filters > 16 and block == 0 else 1) for filters in (16, 32, 64) for block in range(5)]

MLP = Model((64,), mlp_program, mlp_forward)
DIGITS = Model((1, 8, 8), digits_program, digits_forward, "NCHW", flattened=(20, 3, 3))
LENET = lenet("NCHW")
LENET_NHWC = lenet("NHWC")
RESNET = resnet("NCHW")
RESNET_NHWC = resnet("NHWC")
GROUPED = grouped(4)
