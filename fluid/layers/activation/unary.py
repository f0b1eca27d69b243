"""Functions of one value without settings: `relu`, `tanh`, `exp`, ...; each is an entry of the table of activations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core
from fluid.layers import functional
from fluid.layers.assigning import assigns
from fluid.layers.base import Layer, filled, layer, like, on_data
from fluid.layers.kernels.layout import elementwise

_DOCUMENTATION = """{title}

    Args:
      x: any shape, or a SequenceBatch.
      name: name of the layer; by default `{kind}_N`.

    Returns:
      Same shape as `x`.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.{kind}(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """

# These functions have no value or no slope at some numbers, such as 0. They read padding as 0.5.
_PARTIAL = ("log", "sqrt", "rsqrt", "reciprocal", "asin", "acos")


def _make(kind: str, title: str, function: Callable[[Any], Any] | None = None) -> Callable[..., Any]:
    """Return a layer that applies a function of arrays to each element, by default the activation named `kind`."""
    compute = function or functional.ACTIVATIONS[kind]

    def apply(x: core.Value, name: str | None = None) -> Any:
        this = Layer(kind, name)
        return this.output(like(x, elementwise(compute, filled(x, 0.5 if kind in _PARTIAL else 0))))

    apply.__name__ = apply.__qualname__ = kind
    apply.__doc__ = _DOCUMENTATION.format(title=title, kind=kind)
    return layer(apply)


sigmoid = _make("sigmoid", "`1 / (1 + exp(-x))`.")
logsigmoid = _make("logsigmoid", "Logarithm of the sigmoid, exact even where the sigmoid itself is rounded to 0.")
relu = _make("relu", "Rectifier (Nair and Hinton, 2010): `max(x, 0)`.")
tanh = _make("tanh", "Hyperbolic tangent.")
tanh_shrink = _make("tanh_shrink", "`x - tanh(x)`.")
softplus = _make("softplus", "`log(1 + exp(x))`.")
softsign = _make("softsign", "`x / (1 + abs(x))`.")
silu = _make("silu", "`x * sigmoid(x)` (Elfwing, Uchibe and Doya, 2017).")
mish = _make("mish", "`x * tanh(softplus(x))` (Misra, 2019).")
exp = _make("exp", "Exponential.")
log = _make("log", "Natural logarithm.")
sqrt = _make("sqrt", "Square root.")
rsqrt = _make("rsqrt", "`1 / sqrt(x)`.")
square = _make("square", "`x * x`.")
reciprocal = _make("reciprocal", "`1 / x`.")
abs = _make("abs", "Absolute value.")
sign = _make("sign", "-1 for negative, 0 for zero and 1 for positive `x`.", jnp.sign)
ceil = _make("ceil", "The smallest integer that is not less than `x`.")
floor = _make("floor", "The largest integer that is not greater than `x`.")
round = _make("round", "The nearest integer; halves are rounded away from 0.")
sin = _make("sin", "Sine.")
cos = _make("cos", "Cosine.")
asin = _make("asin", "Inverse sine.")
acos = _make("acos", "Inverse cosine.")
atan = _make("atan", "Inverse tangent.")
erf = _make(
    "erf",
    "Error function: twice the integral of the normal density with deviation `sqrt(1/2)` from 0 to `x`.",
    jax.lax.erf,
)


@layer
@assigns(out="y = layers.log1p(x)")
def log1p(x: core.Value, out: core.Value | None = None, name: str | None = None) -> Any:
    """Compute `log(1 + x)`, exact for `x` near 0.

    Args:
      x: any shape, or a SequenceBatch.
      out: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `log1p_N`.

    Returns:
      Same shape as `x`.

    Raises:
      ArgumentError: `out` is given.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.log1p(fluid.layers.data("x", shape=[3]))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    return Layer("log1p", name).output(on_data(jnp.log1p, x))
