"""Matching of ground-truth boxes with prior boxes, and the resulting targets."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, array_of, dense, describe, layer
from fluid.layers.checks import check_ids
from fluid.layers.detection.box import exact, exact_array

# Pairs with a smaller distance are never matched.
_LEAST_DISTANCE = 1e-6


class Matches(NamedTuple):
    """The matched row of each column of a matrix of distances.

    Attributes:
      rows: int32 `[batch, columns]`, -1 for unmatched columns.
      distances: `[batch, columns]`, 0 for unmatched columns.
    """

    rows: jax.Array
    distances: jax.Array


@layer
def bipartite_match(
    dist_matrix: core.Value, match_type: str | None = None, dist_threshold: float | None = None, name: str | None = None
) -> tuple[jax.Array, jax.Array]:
    """Match rows with columns greedily, in descending order of the distances of the pairs.

    "Distance" is Fluid's word for a similarity, such as the intersection over union of ground-truth boxes (rows) and
    prior boxes (columns): a larger one is better.

    Args:
      dist_matrix: a SequenceBatch `[batch, rows, columns]`, as from `iou_similarity`, or `[rows, columns]` for a batch
        of one image.
      match_type: "bipartite" (the default) matches each row with at most one column. "per_prediction" also matches each
        remaining column with the row of the largest distance, if this distance is at least `dist_threshold`.
      dist_threshold: 0.5 by default.
      name: name of the layer; by default `bipartite_match_N`.

    Returns:
      The row of each column, int32 `[batch, columns]`, -1 for unmatched columns; and the distance of the pair, 0 for
      unmatched columns. Both have no gradient. Pairs with a distance below 0.000001 are not matched.

    Raises:
      ArgumentError: `match_type` has another value.
      ShapeError: the input has another number of dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     truth = fluid.layers.data("truth", shape=[4], lod_level=1)
      ...     prior = fluid.layers.data("prior", shape=[80, 4], append_batch_size=False)
      ...     return fluid.layers.bipartite_match(fluid.layers.iou_similarity(truth, prior), "per_prediction", 0.5)
      >>> print(*fluid.Program(program).outputs)
      int32[batch, 80] float32[batch, 80]
    """
    this = Layer("bipartite_match", name)
    threshold = threshold_of(this, match_type or "bipartite", 0.5 if dist_threshold is None else dist_threshold)
    sequence = isinstance(dist_matrix, core.SequenceBatch)
    distances = exact(dist_matrix) if sequence else exact_array(this, dist_matrix)[None]
    if distances.ndim != 3:
        raise errors.ShapeError(
            f"{this.name}: dist_matrix {describe(dist_matrix)}; expected a sequence batch [batch, rows, columns] or a "
            f"matrix [rows, columns], as from layers.iou_similarity(truth, prior)"
        )
    found = greedy_match(distances, threshold)
    return this.output(found.rows), this.output(found.distances)


@layer
def target_assign(
    input: core.Value,
    matched_indices: core.Value,
    negative_indices: core.Value | None = None,
    mismatch_value: float | None = None,
    name: str | None = None,
) -> tuple[Any, jax.Array]:
    """Assign to each prediction a target: the values of its matched ground-truth object.

    Args:
      input: values of the objects: a SequenceBatch `[batch, objects, predictions, k]`, or `[batch, objects, 1, k]` for
        equal values for all predictions.
      matched_indices: the object of each prediction, integers `[batch, predictions]`, -1 for no object.
      negative_indices: predictions without an object that have weight 1 too, as a SequenceBatch of integers
        `[batch, n, 1]`.
      mismatch_value: the target of predictions without an object; 0 by default.
      name: name of the layer; by default `target_assign_N`.

    Returns:
      The targets, `[batch, predictions, k]`; and their weights in the loss, 0 or 1, float32 `[batch, predictions, 1]`.

    Raises:
      ArgumentTypeError: indices are no integers.
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     kinds = fluid.layers.data("kinds", shape=[1, 1], dtype="int64", lod_level=1)
      ...     matched = fluid.layers.data("matched", shape=[80], dtype="int32")
      ...     return fluid.layers.target_assign(kinds, matched, mismatch_value=0)
      >>> print(*fluid.Program(program).outputs)
      int32[batch, 80, 1] float32[batch, 80, 1]
    """
    this = Layer("target_assign", name)
    rows = check_ids(this.name, array_of(this, matched_indices), "matched_indices")
    values = dense(input)
    fits = isinstance(input, core.SequenceBatch) and values.ndim == 4 and rows.ndim == 2
    if not fits or values.shape[0] != rows.shape[0] or values.shape[2] not in (1, rows.shape[1]):
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and matched_indices {describe(matched_indices)} do not fit; "
            f"expected a sequence batch [batch, objects, 1 or predictions, k] and [batch, predictions]"
        )
    batch, predictions = rows.shape
    images = jnp.arange(batch)[:, None]
    places = jnp.arange(predictions) % values.shape[2]
    if values.shape[1] == 0:  # without objects nothing is matched; the zeros keep the gather below valid
        values = jnp.zeros((batch, 1, *values.shape[2:]), values.dtype)
    taken = values.at[images, jnp.maximum(rows, 0), places].get(mode="fill", wrap_negative_indices=False)
    counts = rows >= 0
    result = jnp.where(counts[..., None], taken, jnp.asarray(mismatch_value or 0, values.dtype))
    if negative_indices is not None:
        counts |= _among(this, negative_indices, batch, predictions)
    return this.output(result), this.output(counts.astype(jnp.float32)[..., None])


def _among(this: Layer, indices: core.Value, batch: int, count: int) -> jax.Array:
    """Return a mask `[batch, count]` of the predictions at the indices.

    Raises:
      ArgumentTypeError: indices are no integers.
      ShapeError: indices are no sequence batch of one integer in each step.
    """
    ids = check_ids(this.name, indices, "negative_indices")
    if not isinstance(indices, core.SequenceBatch) or ids.shape[0] != batch or ids.shape[2:] not in ((), (1,)):
        raise errors.ShapeError(
            f"{this.name}: negative_indices {describe(indices)}; expected the predictions of each image as a sequence "
            f'batch, as from layers.data("negative", shape=[1], dtype="int32", lod_level=1)'
        )
    places = jnp.where(indices.mask, ids.reshape(ids.shape[:2]), count)
    nowhere = jnp.zeros((batch, count), bool)
    return nowhere.at[jnp.arange(batch)[:, None], places].set(True, mode="drop", wrap_negative_indices=False)


def threshold_of(this: Layer, match_type: str, threshold: float) -> float | None:
    """Return the smallest distance at which columns may share a row, or None if they never may.

    Raises:
      ArgumentError: `match_type` has another value.
    """
    if match_type not in ("bipartite", "per_prediction"):
        raise errors.ArgumentError(f'{this.name}: match_type={match_type!r}; expected "bipartite" or "per_prediction"')
    return float(threshold) if match_type == "per_prediction" else None


def greedy_match(distances: jax.Array, threshold: float | None) -> Matches:
    """Match rows with columns like `bipartite_match`.

    Args:
      distances: `[batch, rows, columns]`, 0 for padding rows.
      threshold: the smallest distance at which remaining columns are matched too; None to leave them unmatched.
    """
    near = jnp.swapaxes(jax.lax.stop_gradient(distances), 1, 2)
    near = jnp.where(near >= _LEAST_DISTANCE, near, -1)
    batch, columns, rows = near.shape
    chosen = jnp.full((batch, columns), -1, jnp.int32)
    if rows == 0 or columns == 0:
        return Matches(chosen, jnp.zeros((batch, columns), near.dtype))
    images = jnp.arange(batch)

    def take(carry: Any) -> Any:
        chosen, free, _ = carry
        left = jnp.where((chosen < 0)[:, :, None] & free[:, None], near, -1).reshape(batch, -1)
        best = jnp.argmax(left, axis=1)
        # An index beyond the end is dropped, so that images without remaining pairs do not change.
        some = left[images, best] > 0
        column, row = jnp.where(some, best // rows, columns), jnp.where(some, best % rows, rows)
        chosen = chosen.at[images, column].set(row.astype(jnp.int32), mode="drop")
        return chosen, free.at[images, row].set(False, mode="drop"), jnp.any(some)

    start = chosen, jnp.ones((batch, rows), bool), jnp.bool_(True)
    chosen = jax.lax.while_loop(lambda carry: carry[2], take, start)[0]
    if threshold is not None:
        enough = jnp.where(near >= threshold, near, -1)
        nearest = jnp.where(jnp.max(enough, axis=2) > 0, jnp.argmax(enough, axis=2).astype(jnp.int32), -1)
        chosen = jnp.where(chosen >= 0, chosen, nearest)
    own = jnp.take_along_axis(near, jnp.maximum(chosen, 0)[..., None], axis=2)[..., 0]
    return Matches(chosen, jnp.where(chosen >= 0, own, 0))
