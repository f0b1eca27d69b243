"""`spectral_norm`: divide a weight by its largest singular value."""

import math

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.initializer import Normal
from fluid.layers.base import Layer, array_of, axis_of, describe, layer, wide


@layer
def spectral_norm(
    weight: core.Value, dim: int = 0, power_iters: int = 1, eps: float = 1e-12, name: str | None = None
) -> jax.Array:
    """Divide a weight by its largest singular value (Miyato et al., 2018), as in discriminators of GANs.

    Power iteration estimates the singular value. The singular vectors are states, and each training step refines the
    vectors of the previous step. No gradient flows through them.

    Args:
      weight: a parameter of two dimensions or more, read as a matrix whose rows are dimension `dim`.
      dim: the dimension of the outputs: 0 for filters of `conv2d`, 1 for weights of `fc`.
      power_iters: the number of iterations in each call.
      eps: added to each norm of a vector before dividing by the norm.
      name: name of the layer; by default `spectral_norm_N`.

    Returns:
      The same shape as the weight.

    Raises:
      ArgumentError: there is no such dimension, or `power_iters` is no integer of at least 0.
      ShapeError: the weight has less than two dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     weight = fluid.layers.create_parameter([4, 3], name="w")
      ...     return fluid.layers.matmul(x, fluid.layers.spectral_norm(weight, dim=1))
      >>> list(fluid.Program(program).states)
      ['spectral_norm_0.w_0', 'spectral_norm_0.w_1']
    """
    this = Layer("spectral_norm", name)
    array = wide(array_of(this, weight))
    if array.ndim < 2:
        raise errors.ShapeError(
            f"{this.name}: weight {describe(weight)} is no matrix; expected two dimensions or more, as from "
            f"layers.create_parameter([4, 3])"
        )
    place = axis_of(weight, dim, "dim")
    matrix = jnp.moveaxis(array, place, 0).reshape(array.shape[place], -1)
    left_name, left = this.state(None, "w", [matrix.shape[0]], array.dtype, Normal(0.0, 1.0))
    right_name, right = this.state(None, "w", [math.prod(matrix.shape[1:])], array.dtype, Normal(0.0, 1.0))
    fixed = jax.lax.stop_gradient(matrix)
    for _ in range(core.whole_number(this.name, "power_iters", power_iters, least=0)):
        right = fixed.T @ left
        right = right / (jnp.linalg.norm(right) + eps)
        left = fixed @ right
        left = left / (jnp.linalg.norm(left) + eps)
    core.set_state(left_name, left)
    core.set_state(right_name, right)
    return this.output((array / (left @ matrix @ right)).astype(array_of(this, weight).dtype))
