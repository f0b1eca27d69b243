"""Activations as pure functions of arrays, and the table of activation names for the argument `act=` of layers."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors

# `Activation` is the type of the argument `act=` of layers: a name in `ACTIVATIONS`, or a function of one array; None
# for no activation.
Activation = str | Callable[[Any], Any] | None


def leaky_relu(x: Any, alpha: float = 0.02) -> Any:
    """Return `x` where positive, else `alpha * x`."""
    return jnp.where(x > 0, x, alpha * x)


def elu(x: Any, alpha: float = 1.0) -> Any:
    """Return `x` where positive, else `alpha * (exp(x) - 1)`."""
    return jax.nn.elu(x, alpha)


def relu6(x: Any, threshold: float = 6.0) -> Any:
    """Limit `x` to the range from 0 to `threshold`."""
    return jnp.clip(x, 0, threshold)


def brelu(x: Any, t_min: float = 0.0, t_max: float = 24.0) -> Any:
    """Limit `x` to the range from `t_min` to `t_max`."""
    return jnp.clip(x, t_min, t_max)


def soft_relu(x: Any, threshold: float = 40.0) -> Any:
    """Compute `log(1 + exp(x))`, with `x` limited to the range from `-threshold` to `threshold`."""
    return jax.nn.softplus(jnp.clip(x, -threshold, threshold))


def stanh(x: Any, scale_a: float = 0.67, scale_b: float = 1.7159) -> Any:
    """Compute `scale_b * tanh(scale_a * x)`."""
    return scale_b * jnp.tanh(scale_a * x)


def hard_sigmoid(x: Any, slope: float = 0.2, offset: float = 0.5) -> Any:
    """Compute `slope * x + offset`, limited to the range from 0 to 1."""
    return jnp.clip(slope * x + offset, 0, 1)


def swish(x: Any, beta: float = 1.0) -> Any:
    """Compute `x * sigmoid(beta * x)`."""
    return x * jax.nn.sigmoid(beta * x)


def hard_swish(x: Any, threshold: float = 6.0, scale: float = 6.0, offset: float = 3.0) -> Any:
    """Compute `x * min(max(0, x + offset), threshold) / scale`."""
    return x * jnp.clip(x + offset, 0, threshold) / scale


def gelu(x: Any, approximate: bool = False) -> Any:
    """Compute `x` times the normal cumulative distribution function of `x`."""
    return jax.nn.gelu(x, approximate=approximate)


def softshrink(x: Any, alpha: float = 0.5) -> Any:
    """Shrink the absolute value of `x` by `alpha`; values between `-alpha` and `alpha` become 0."""
    return jnp.where(x > alpha, x - alpha, jnp.where(x < -alpha, x + alpha, 0.0))


def hard_shrink(x: Any, threshold: float = 0.5) -> Any:
    """Return `x` where its absolute value is above `threshold`, else 0."""
    return jnp.where(jnp.abs(x) > threshold, x, 0.0)


def thresholded_relu(x: Any, threshold: float = 1.0) -> Any:
    """Return `x` where it is above `threshold`, else 0."""
    return jnp.where(x > threshold, x, 0.0)


def selu(x: Any, scale: float = 1.0507009873554805, alpha: float = 1.6732632423543772) -> Any:
    """Compute `scale * elu(x, alpha)`."""
    return scale * jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0)))


def softmax(x: Any, axis: int = -1) -> Any:
    """Compute `exp(x) / sum(exp(x))` along an axis; half precision is computed in float32."""
    return jax.nn.softmax(_wide(x), axis=axis).astype(x.dtype)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """Compute the logarithm of the softmax along an axis; half precision is computed in float32."""
    return jax.nn.log_softmax(_wide(x), axis=axis).astype(x.dtype)


def _wide(x: Any) -> Any:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "sigmoid": jax.nn.sigmoid,
    "logsigmoid": jax.nn.log_sigmoid,
    "exp": jnp.exp,
    "tanh": jnp.tanh,
    "atan": jnp.arctan,
    "tanh_shrink": lambda x: x - jnp.tanh(x),
    "sqrt": jnp.sqrt,
    "rsqrt": lambda x: jax.lax.rsqrt(x),
    # In Fluid, the gradient of `abs` at 0 is 0. This formula has the same gradient, but `jnp.abs` has the gradient 1 at
    # 0 (JAX 0.10).
    "abs": lambda x: x * jnp.sign(x),
    "ceil": jnp.ceil,
    "floor": jnp.floor,
    "cos": jnp.cos,
    "acos": jnp.arccos,
    "asin": jnp.arcsin,
    "sin": jnp.sin,
    "round": lambda x: jnp.sign(x) * jnp.floor(jnp.abs(x) + 0.5),
    "reciprocal": lambda x: 1 / x,
    "square": jnp.square,
    "softplus": jax.nn.softplus,
    "softsign": jax.nn.soft_sign,
    "relu": jax.nn.relu,
    "softmax": softmax,
    "log_softmax": log_softmax,
    "leaky_relu": leaky_relu,
    "elu": elu,
    "relu6": relu6,
    "brelu": brelu,
    "soft_relu": soft_relu,
    "stanh": stanh,
    "hard_sigmoid": hard_sigmoid,
    "swish": swish,
    "hard_swish": hard_swish,
    "gelu": gelu,
    "softshrink": softshrink,
    "hard_shrink": hard_shrink,
    "thresholded_relu": thresholded_relu,
    "selu": selu,
    "log": jnp.log,
    "silu": jax.nn.silu,
    "mish": jax.nn.mish,
}

# `ELEMENTWISE` holds the names of the activations that map each element separately.
ELEMENTWISE = ACTIVATIONS.keys() - {"softmax", "log_softmax"}


def activation(act: str | Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the activation function for `act`: for a name, the function of this name; for a function, `act` itself.

    Raises:
      ArgumentError: `act` is not the name of an activation.
    """
    if callable(act):
        return act
    if act not in ACTIVATIONS:
        raise errors.ArgumentError(
            f"there is no activation {act!r}. {errors.nearest(str(act), ACTIVATIONS)} "
            f"Any function of one array is accepted too: act=jax.nn.relu"
        )
    return ACTIVATIONS[act]
