"""Metrics: numbers that tell how good predictions are."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, dense, describe, layer
from fluid.layers.embedding import check_ids
from fluid.layers.reduce import rows_of


@layer
def accuracy(
    input: Any, label: Any, k: int = 1, correct: Any = None, total: Any = None, name: str | None = None
) -> Any:
    """Share of rows whose class is among the `k` most probable.

    Args:
      input: probabilities or scores `[batch, classes]`, or a SequenceBatch of them.
      label: classes `[batch, 1]` of an integer dtype, or a SequenceBatch of them.
      k: how many guesses count.
      correct: has no effect.
      total: has no effect.
      name: instead of `accuracy_N`.

    Returns:
      A scalar, `[]`, float32. `trainer.test` weighs it by the number of rows.

    Raises:
      ArgumentError: there are less than `k` classes.
      ArgumentTypeError: labels are no integers.
      ShapeError: labels do not fit the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     scores = fluid.layers.data("scores", shape=[10])
      ...     label = fluid.layers.data("label", shape=[1], dtype="int64")
      ...     return fluid.layers.accuracy(scores, label, k=5)
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("accuracy", name)
    scores, classes = jax.lax.stop_gradient(dense(input)), check_ids(this.name, label)
    if scores.ndim < 2 or classes.size != scores.size // scores.shape[-1]:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} do not fit; expected one class per "
            "row, as "
            f'in layers.data("label", shape=[1], dtype="int64")'
        )
    if not isinstance(k, int) or not 1 <= k <= scores.shape[-1]:
        raise errors.ArgumentError(f"{this.name}: k={k!r}; expected 1 to {scores.shape[-1]}, the number of classes")
    best = jax.lax.top_k(scores, k)[1]
    hits = jnp.any(best == classes.reshape(*scores.shape[:-1], 1), axis=-1).astype(jnp.float32)
    if isinstance(input, core.SequenceBatch):
        result = jnp.sum(hits, where=input.mask) / jnp.maximum(jnp.sum(input.mask), 1)
    else:
        result = jnp.mean(hits)
    result = this.output(result)
    this.frame.note(result, weight=rows_of(this.frame, input))
    return result
