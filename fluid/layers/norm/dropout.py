"""The layer `dropout`, which sets random elements to zero in training."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, dense, layer, like


@layer
def dropout(
    x: Value,
    dropout_prob: float | jax.Array,
    is_test: bool = False,
    seed: int | None = None,
    name: str | None = None,
    dropout_implementation: str = "downgrade_in_infer",
) -> Any:
    """Set each element to 0 with probability `dropout_prob` in training (Srivastava et al., 2014).

    Args:
      x: any shape, or a SequenceBatch.
      dropout_prob: the probability, from 0 to 1; or a float scalar computed by the program.
      is_test: True makes training behave like test mode.
      seed: if given, every step drops the same elements; by default each step draws new ones.
      name: name of the layer; by default `dropout_N`; which elements are dropped depends on the name.
      dropout_implementation: "downgrade_in_infer" multiplies by `1 - dropout_prob` in test mode; "upscale_in_train"
        divides the kept elements by `1 - dropout_prob` in training, and does nothing in test mode.

    Returns:
      A value of the same type and shape as `x`.

    Raises:
      ArgumentError: the probability is not between 0 and 1, or there is no such implementation.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.dropout(x, dropout_prob=0.5, dropout_implementation="upscale_in_train")
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    this = Layer("dropout", name)
    check_probability(this, dropout_prob)
    if dropout_implementation not in ("downgrade_in_infer", "upscale_in_train"):
        raise errors.ArgumentError(
            f"{this.name}: dropout_implementation={dropout_implementation!r}; "
            f"expected 'downgrade_in_infer' or 'upscale_in_train'"
        )
    array = dense(x)
    upscale = dropout_implementation == "upscale_in_train"
    if is_test or this.frame.mode == core.TEST:
        return this.output(like(x, array if upscale else (array * (1.0 - dropout_prob)).astype(array.dtype)))
    if seed is not None:
        core.doubt(
            f"{this.name}: with seed={seed!r} every step of a training drops the same elements, so that their weights "
            f"are never trained; leave out seed=, and each step draws anew from fluid.Trainer(..., seed={seed!r})",
            training=True,
        )
    key = core.random_key(this.name) if seed is None else jax.random.key(seed)
    result = this.output(like(x, drop(array, dropout_prob, key, upscale)))
    this.frame.note(result, made="dropout")
    return result


def drop(array: jax.Array, probability: float | jax.Array, key: jax.Array, upscale: bool) -> jax.Array:
    """Set each element of an array to 0 with a given probability."""
    keep = 1.0 - probability
    mask = jax.random.bernoulli(key, keep, array.shape)
    # If dropout keeps no element, `keep` is 0. Then divide by 1 instead, so that the gradient stays finite.
    divisor = jnp.where(keep > 0, keep, 1.0) if isinstance(keep, jax.Array) else keep or 1.0
    kept = array / divisor if upscale else array
    return jnp.where(mask, kept, 0).astype(array.dtype)


def check_probability(this: Layer, dropout_prob: Any) -> None:
    """Check that a probability is a number from 0 to 1; accept a traced float scalar unchecked.

    Raises:
      ArgumentError: the probability is not a number from 0 to 1.
    """
    if (
        isinstance(dropout_prob, jax.Array)
        and jnp.issubdtype(dropout_prob.dtype, jnp.floating)
        and not dropout_prob.ndim
    ):
        return
    is_number = isinstance(dropout_prob, int | float | np.floating) and not isinstance(dropout_prob, bool)
    if not is_number or not 0 <= dropout_prob <= 1:
        raise errors.ArgumentError(
            f"{this.name}: dropout_prob={dropout_prob!r}; expected 0 to 1, as in dropout_prob=0.5"
        )
    if dropout_prob == 1:
        core.doubt(
            f"{this.name}: dropout_prob=1 drops every number in training, so that nothing before it is trained; it is "
            f"the share that is dropped, as in dropout_prob=0.1"
        )
