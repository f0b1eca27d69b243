"""The two models, each once for fluid and once by hand in plain JAX, and the generated data that they train on.

The hand-written functions take parameters by the names that fluid gives them, so that both start from the same values.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import fluid

Arrays = dict[str, Any]


class Model(NamedTuple):
    """A model twice.

    Attributes:
      shape: of one input.
      inference_program: fluid's function.
      forward: the hand-written one: `(parameters, states, x, training) -> (logits, new states)`.
    """

    shape: tuple[int, ...]
    inference_program: Callable[[], Any]
    forward: Callable[[Arrays, Arrays, Any, bool], tuple[Any, Arrays]]

    def train_program(self) -> Any:
        """Fluid's loss."""
        label = fluid.layers.data(name="label", shape=[1], dtype="int64")
        return fluid.layers.mean(fluid.layers.cross_entropy(self.inference_program(), label))

    def data(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Generated inputs and labels: noise around one random pattern per class."""
        random = np.random.default_rng(0)
        labels = random.integers(0, 10, count)
        patterns = random.normal(size=(10, *self.shape)).astype("float32")
        noise = random.normal(size=(count, *self.shape)).astype("float32")
        return patterns[labels] + 2 * noise, labels.astype("int32")


def mlp_program() -> Any:
    """64-200-200-10."""
    x = fluid.layers.data(name="x", shape=[64])
    hidden = fluid.layers.fc(x, size=200, act="relu")
    hidden = fluid.layers.fc(hidden, size=200, act="relu")
    return fluid.layers.fc(hidden, size=10, act="softmax")


def mlp_forward(p: Arrays, states: Arrays, x: Any, training: bool) -> tuple[Any, Arrays]:
    """The same by hand."""
    hidden = jax.nn.relu(x @ p["fc_0.w_0"] + p["fc_0.b_0"])
    hidden = jax.nn.relu(hidden @ p["fc_1.w_0"] + p["fc_1.b_0"])
    return hidden @ p["fc_2.w_0"] + p["fc_2.b_0"], states


def lenet_program() -> Any:
    """LeNet on 1 x 28 x 28, batch normalisation after each convolution."""
    hidden = fluid.layers.data(name="x", shape=[1, 28, 28])
    for num_filters in (20, 50):
        hidden = fluid.layers.conv2d(hidden, num_filters=num_filters, filter_size=5)
        hidden = fluid.layers.batch_norm(hidden, act="relu")
        hidden = fluid.layers.pool2d(hidden, pool_size=2, pool_stride=2, pool_type="max")
    hidden = fluid.layers.fc(hidden, size=500, act="relu")
    return fluid.layers.fc(hidden, size=10, act="softmax")


def lenet_forward(p: Arrays, states: Arrays, x: Any, training: bool) -> tuple[Any, Arrays]:
    """The same by hand."""
    new_states = {}
    for i in range(2):
        x = jax.lax.conv_general_dilated(x, p[f"conv2d_{i}.w_0"], (1, 1), "VALID")
        x = x + p[f"conv2d_{i}.b_0"][:, None, None]
        mean, variance = states[f"batch_norm_{i}.w_1"], states[f"batch_norm_{i}.w_2"]
        if training:
            old_mean, old_variance = mean, variance
            mean = x.mean((0, 2, 3))
            variance = jnp.square(x).mean((0, 2, 3)) - jnp.square(mean)
            new_states[f"batch_norm_{i}.w_1"] = 0.9 * old_mean + 0.1 * mean
            new_states[f"batch_norm_{i}.w_2"] = 0.9 * old_variance + 0.1 * variance
        scale = p[f"batch_norm_{i}.w_0"] * jax.lax.rsqrt(variance + 1e-5)
        x = x * scale[:, None, None] + (p[f"batch_norm_{i}.b_0"] - mean * scale)[:, None, None]
        x = jax.nn.relu(x)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    x = jax.nn.relu(x.reshape(len(x), -1) @ p["fc_0.w_0"] + p["fc_0.b_0"])
    return x @ p["fc_1.w_0"] + p["fc_1.b_0"], new_states


MLP = Model((64,), mlp_program, mlp_forward)
LENET = Model((1, 28, 28), lenet_program, lenet_forward)
