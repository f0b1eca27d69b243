"""The loop over training steps that is compiled as a whole."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid.reader.stacked import Fed, Picks


def scanned(train: Callable[..., tuple[Any, Any]]) -> Callable[[Any, Any, Fed], tuple[Any, Any]]:
    """Return a function of several training steps, one after the other, for `jax.jit`.

    The number of steps is an input of the loop and no part of its shape, so that one compilation does for any number
    up to the capacity that there is.

    Args:
      train: one step: from what changes, what does not, feeds and overrides to what has changed, and results.

    Returns:
      A function of what changes, what does not, and the feeds. It returns what has changed after the last step, and the
      results of all steps, stacked: each leaf is `[capacity, ...]`, of which the first `count` are meant.
    """

    def several(carry: Any, kept: Any, fed: Fed) -> tuple[Any, Any]:
        capacity = jax.tree.leaves(fed.rows if isinstance(fed, Picks) else fed.feeds)[0].shape[0]
        shapes = jax.eval_shape(lambda: train(carry, kept, fed.feed(0), {})[1])
        empty = jax.tree.map(lambda shape: jnp.zeros((capacity, *shape.shape), shape.dtype), shapes)

        def step(number: Any, so_far: tuple[Any, Any]) -> tuple[Any, Any]:
            before, stacked = so_far
            after, results = train(before, kept, fed.feed(number), {})
            write = lambda every, one: jax.lax.dynamic_update_index_in_dim(every, one, number, 0)  # noqa: E731
            return after, jax.tree.map(write, stacked, results)

        done: tuple[Any, Any] = jax.lax.fori_loop(0, fed.count, step, (carry, empty))
        return done

    return several
