"""Nets in plain JAX and optax: a separate module, because a measured process must not import anything else.

The nets use the layout that is fastest on a CPU: images have the channels last, and filters are
`[kh, kw, channels, filters]`. Parameters and states have the same names as in fluid. A process that runs only inference
does not import optax.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

if TYPE_CHECKING:
    import optax

Arrays = dict[str, Any]


def lenet_forward(p: Arrays, states: Arrays, x: Any, training: bool) -> tuple[Any, Arrays]:
    """Compute LeNet with batch normalisation, and return the logits and the new states."""
    new_states: Arrays = {}
    for i in range(2):
        x = convolution(x, p[f"conv2d_{i}.w_0"]) + p[f"conv2d_{i}.b_0"]
        x, changed = batch_norm(f"batch_norm_{i}", p, states, x, training)
        new_states |= changed
        x = halved(jax.nn.relu(x), training)
    x = jax.nn.relu(x.reshape(len(x), -1) @ p["fc_0.w_0"] + p["fc_0.b_0"])
    return x @ p["fc_1.w_0"] + p["fc_1.b_0"], new_states


def digits_forward(p: Arrays, states: Arrays, x: Any, training: bool) -> tuple[Any, Arrays]:
    """Compute the README's net, and return the logits and the new states."""
    x = halved(jax.nn.relu(convolution(x, p["conv2d_0.w_0"]) + p["conv2d_0.b_0"]), training)
    x, new_states = batch_norm("batch_norm_0", p, states, x, training)
    return x.reshape(len(x), -1) @ p["fc_0.w_0"] + p["fc_0.b_0"], new_states


def convolution(x: Any, filters: Any, stride: int = 1, padding: int = 0, groups: int = 1) -> Any:
    """Convolve images `[batch, height, width, channels]` with filters `[kh, kw, channels / groups, filters]`."""
    return jax.lax.conv_general_dilated(
        x,
        filters,
        (stride, stride),
        ((padding, padding), (padding, padding)),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        feature_group_count=groups,
    )


def halved(x: Any, training: bool) -> Any:
    """Return the maximum of each window of 2 x 2 pixels of images `[batch, height, width, channels]`."""
    if not training:  # without a gradient, `reduce_window` is the fastest way to compute the maxima
        return jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
    # A net cannot use `max` after a reshape here. The gradient of `max` goes to the pixels that equal the maximum.
    # But XLA may round the pixels and the maximum differently, so that no pixel is equal.
    cells = [x[:, i::2, j::2] for i in range(2) for j in range(2)]
    return functools.reduce(lambda a, b: jax.numpy.where(a >= b, a, b), cells)


def batch_norm(name: str, p: Arrays, states: Arrays, x: Any, training: bool) -> tuple[Any, Arrays]:
    """Normalise the channels of images `[batch, height, width, channels]`; also return the new moving statistics."""
    mean, variance = states[f"{name}.w_1"], states[f"{name}.w_2"]
    new_states = {}
    if training:
        old_mean, old_variance = mean, variance
        mean = x.mean((0, 1, 2))
        variance = jax.numpy.square(x).mean((0, 1, 2)) - jax.numpy.square(mean)
        new_states = {
            f"{name}.w_1": 0.9 * old_mean + 0.1 * mean,
            f"{name}.w_2": 0.9 * old_variance + 0.1 * variance,
        }
    scale = p[f"{name}.w_0"] * jax.lax.rsqrt(variance + 1e-5)
    return x * scale + (p[f"{name}.b_0"] - mean * scale), new_states


class Net(NamedTuple):
    """A hand-written net, which can create its initial values.

    Attributes:
      shape: the shape of one input.
      forward: a function `(parameters, states, x, training) -> (logits, new states)`.
      weights: the shape of each weight, by name; the shapes of biases and batch norm follow from these shapes.
    """

    shape: tuple[int, ...]
    forward: Callable[[Arrays, Arrays, Any, bool], tuple[Any, Arrays]]
    weights: dict[str, tuple[int, ...]]

    def init(self) -> tuple[Arrays, Arrays]:
        """Return the initial parameters and states, drawn by NumPy, which needs no compilation."""
        random = np.random.default_rng(0)
        parameters: Arrays = {}
        states: Arrays = {}
        for name, shape in self.weights.items():
            kind, number = name.partition(".")[0].rsplit("_", 1)
            width = shape[-1]
            limit = np.sqrt(6 * width / np.prod(shape))
            parameters[name] = random.uniform(-limit, limit, shape).astype("float32")
            parameters[f"{kind}_{number}.b_0"] = np.zeros(width, "float32")
            if kind == "conv2d":
                parameters[f"batch_norm_{number}.w_0"] = np.ones(width, "float32")
                parameters[f"batch_norm_{number}.b_0"] = np.zeros(width, "float32")
                states[f"batch_norm_{number}.w_1"] = np.zeros(width, "float32")
                states[f"batch_norm_{number}.w_2"] = np.ones(width, "float32")
        return parameters, states


NETS = {
    "digits": Net((8, 8, 1), digits_forward, {"conv2d_0.w_0": (3, 3, 1, 20), "fc_0.w_0": (180, 10)}),
    "lenet": Net(
        (28, 28, 1),
        lenet_forward,
        {
            "conv2d_0.w_0": (5, 5, 1, 20),
            "conv2d_1.w_0": (5, 5, 20, 50),
            "fc_0.w_0": (800, 500),
            "fc_1.w_0": (500, 10),
        },
    ),
}


def plain_step(loss_of: Callable[..., Any], optimizer: optax.GradientTransformation) -> Callable[..., tuple[Any, Any]]:
    """Return the jitted training step `(state, *batch) -> (state, loss)`; `state` is (parameters, optimizer state)."""
    import optax

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: tuple[Arrays, Any], *batch: Any) -> tuple[Any, Any]:
        parameters, slots = state
        loss, gradients = jax.value_and_grad(loss_of)(parameters, *batch)
        updates, slots = optimizer.update(gradients, slots, parameters)
        return (optax.apply_updates(parameters, updates), slots), loss

    return step


def make_step(
    forward: Callable[[Arrays, Arrays, Any, bool], tuple[Any, Arrays]], optimizer: optax.GradientTransformation
) -> Callable[..., tuple[Any, Any]]:
    """Return the jitted training step `(state, x, labels) -> (state, loss)`, which donates the state.

    The state is (parameters, states of the net, optimizer state).
    """
    import optax

    def loss_function(parameters: Arrays, states: Arrays, x: Any, labels: Any) -> tuple[Any, Arrays]:
        logits, states = forward(parameters, states, x, True)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), states

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: tuple[Arrays, Arrays, Any], x: Any, labels: Any) -> tuple[Any, Any]:
        parameters, states, slots = state
        gradient = jax.value_and_grad(loss_function, has_aux=True)
        (loss, states), gradients = gradient(parameters, states, x, labels)
        updates, slots = optimizer.update(gradients, slots, parameters)
        return (optax.apply_updates(parameters, updates), states, slots), loss

    return step
