"""Nets in fluid: a separate module, because a measured process must not import anything else."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import fluid


def digits_program() -> Any:
    """Return the probabilities of the README's net for images of 1 x 8 x 8."""
    x = fluid.layers.data(name="x", shape=[1, 8, 8])
    hidden = fluid.nets.simple_img_conv_pool(x, 20, 3, pool_size=2, pool_stride=2, act="relu")
    return fluid.layers.fc(fluid.layers.batch_norm(hidden), size=10, act="softmax")


def lenet_program(layout: str) -> Any:
    """Return the probabilities of LeNet for 28 x 28 images, with batch normalisation after each convolution."""
    hidden = fluid.layers.data(name="x", shape=[1, 28, 28] if layout == "NCHW" else [28, 28, 1])
    for num_filters in (20, 50):
        hidden = fluid.layers.conv2d(hidden, num_filters=num_filters, filter_size=5, data_format=layout)
        hidden = fluid.layers.batch_norm(hidden, act="relu", data_layout=layout)
        hidden = fluid.layers.pool2d(hidden, pool_size=2, pool_stride=2, pool_type="max", data_format=layout)
    hidden = fluid.layers.fc(hidden, size=500, act="relu")
    return fluid.layers.fc(hidden, size=10, act="softmax")


def loss_of(inference_program: Callable[[], Any]) -> Any:
    """Return the mean cross entropy of the probabilities and the feed `label`."""
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    return fluid.layers.mean(fluid.layers.cross_entropy(inference_program(), label))


class Net(NamedTuple):
    """A net: the shape of its input, and its program function.

    Attributes:
      shape: the shape of one input.
      inference_program: the program function, which returns probabilities.
    """

    shape: tuple[int, ...]
    inference_program: Callable[[], Any]

    def train_program(self) -> Any:
        """Return the mean cross entropy of the class scores that `inference_program` returns."""
        return loss_of(self.inference_program)


NETS = {
    "digits": Net((1, 8, 8), digits_program),
    "lenet": Net((1, 28, 28), functools.partial(lenet_program, "NCHW")),
}
