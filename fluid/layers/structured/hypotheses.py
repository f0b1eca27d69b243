"""Hypotheses of a beam search: functions that extend them, move them within the beam, and trace them back."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, layer
from fluid.layers.checks import check_ids


@layer
def gather_tree(ids: core.Value, parents: core.Value, name: str | None = None) -> jax.Array:
    """Return the sequences of a beam search, from the ids of each step and the indices of the extended hypotheses.

    Args:
      ids: integers `[time, batch, beam]`: the id that extends each hypothesis in each step.
      parents: integers `[time, batch, beam]`: the index, in the beam of the previous step, of the extended hypothesis.
        The indices of the first step are not used.
      name: name of the layer; by default `gather_tree_N`.

    Returns:
      `[time, batch, beam]`: along the first dimension, the ids of the hypotheses of the last step.

    Raises:
      ShapeError: the arrays have other numbers of dimensions, or differ in shape.
      ArgumentTypeError: the arrays are no integers.

    Example:
      >>> import fluid
      >>> def program():
      ...     ids = fluid.layers.assign([[[2, 3]], [[4, 5]]])
      ...     parents = fluid.layers.assign([[[0, 0]], [[1, 0]]])
      ...     return fluid.layers.gather_tree(ids, parents)
      >>> fluid.Session(program).run(program)[0].tolist()
      [[[3, 2]], [[4, 5]]]
    """
    this = Layer("gather_tree", name)
    tokens = check_ids(this.name, array_of(this, ids))
    places = check_ids(this.name, array_of(this, parents), "parents")
    if tokens.ndim != 3 or tokens.shape != places.shape:
        raise errors.ShapeError(
            f"{this.name}: ids {describe(ids)} and parents {describe(parents)}; expected both [time, batch, beam], as "
            f"from layers.stack(steps)"
        )
    return this.output(trace_back(tokens, places))


class Extensions(NamedTuple):
    """The best extensions of the hypotheses of a beam, the best first.

    Attributes:
      totals: float32 `[batch, beam]`: the log-probabilities of the extended hypotheses.
      parents: int32 `[batch, beam]`: the indices in the beam of the hypotheses before extension.
      tokens: int32 `[batch, beam]`: the ids of the extension.
    """

    totals: jax.Array
    parents: jax.Array
    tokens: jax.Array


def best_extensions(totals: jax.Array) -> Extensions:
    """Return the best extensions of all hypotheses, `beam` for each row.

    Args:
      totals: `[batch, beam, ids]`: log-probabilities of each hypothesis extended by each id.
    """
    batch, beam, ids = totals.shape
    best, places = jax.lax.top_k(totals.reshape(batch, -1), beam)
    return Extensions(best, places // ids, places % ids)


def of_parents(values: jax.Array, parents: jax.Array) -> jax.Array:
    """Select the values `[batch, beam, ...]` at the indices `parents [batch, beam]` from values `[batch, n, ...]`."""
    return jnp.take_along_axis(values, parents.reshape(*parents.shape, *[1] * (values.ndim - 2)), axis=1)


def trace_back(tokens: jax.Array, parents: jax.Array) -> jax.Array:
    """Return the ids of the last hypotheses, traced from their ends to their beginnings; shapes as in `gather_tree`."""

    def step(places: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        tokens, parents = now
        return of_parents(parents, places), of_parents(tokens, places)

    last = jnp.broadcast_to(jnp.arange(tokens.shape[2], dtype=parents.dtype), tokens.shape[1:])
    return jax.lax.scan(step, last, (tokens, parents), reverse=True)[1]
