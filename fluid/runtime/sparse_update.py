"""Row-sparse updates: gradients, optimizer state and updates of embedding tables, for the looked-up rows only.

The looked-up rows of the table, and of every optimizer state with as many rows, are gathered, updated and scattered
back. The optax transformation of the other parameters updates these rows too. The cost depends on the number of
looked-up rows, and not on the size of the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid._util.lazy import optax
from fluid.core import Gathering


class RowGradients(NamedTuple):
    """The gradients of some rows of an embedding table.

    Attributes:
      ids: row numbers `[n]`, ascending and unique; unused entries hold the number of rows of the table.
      values: `[n, width]`, zeros in unused entries.
    """

    ids: Any
    values: Any


def merge(ids: Sequence[Any], values: Sequence[Any], count: int, gathering: Gathering | None = None) -> RowGradients:
    """Sum the gradients of several look-ups in an embedding table, so that each row has one gradient.

    Args:
      ids: for each look-up, row numbers, integers `[...]`; the number `count` marks padding.
      values: for each look-up, gradients `[..., width]`.

    Example:
      >>> rows = merge([jnp.array([3, 1, 3])], [jnp.array([[1.0], [2.0], [4.0]])], count=5)
      >>> rows.ids.tolist(), rows.values.tolist()
      ([1, 3, 5], [[2.0], [5.0], [0.0]])
    """
    flat = jnp.concatenate([i.reshape(-1) for i in ids])
    if gathering is not None:
        flat = gathering.replicate(flat)  # jnp.unique sorts all ids, so each device needs all ids
    width = values[0].shape[-1]
    gradients = jnp.concatenate([v.reshape(-1, width) for v in values])
    unique, places = jnp.unique(flat, return_inverse=True, size=flat.size, fill_value=count)
    total = jnp.zeros_like(gradients).at[places.reshape(-1)].add(gradients)
    return RowGradients(unique, jnp.where((unique < count)[:, None], total, 0))


def update(
    transformation: optax.GradientTransformation,
    gradients: Mapping[str, Any],
    rows: Mapping[str, RowGradients],
    slots: Any,
    params: Mapping[str, Any],
    gathering: Gathering | None = None,
) -> tuple[dict[str, Any], Any]:
    """Update parameters with an optax transformation; in embedding tables update only the looked-up rows."""
    if not rows:
        updates, slots = transformation.update(dict(gradients), slots, dict(params))
        return optax.apply_updates(dict(params), updates), slots
    tables = {n: (None if gathering is None else gathering.table(n)) or _WholeTable() for n in rows}

    def read(name: str, array: Any) -> Any:
        return tables[name].read(array, rows[name].ids)

    def write(name: str, array: Any, new: Any) -> Any:
        return tables[name].write(array, rows[name].ids, new)

    part = {n: read(n, p) if n in rows else p for n, p in params.items()}
    part_slots = _map_slots(read, rows, params, slots)
    grads = {**gradients, **{n: tables[n].beside(r.values.astype(params[n].dtype)) for n, r in rows.items()}}
    updates, new_slots = transformation.update(grads, part_slots, part)
    changed = optax.apply_updates(part, updates)
    new = {n: write(n, p, changed[n]) if n in rows else changed[n] for n, p in params.items()}
    return new, _map_slots(write, rows, params, slots, new_slots)


def keeps_other_rows(transformation: optax.GradientTransformation) -> bool:
    """Return True if an optimizer computes equal results for updates of all table rows and of looked-up rows only.

    The results are equal if a zero gradient leaves a row and its optimizer state unchanged, and if rows are
    independent. The function compares both kinds of update on a small table over a few steps.

    Example:
      >>> keeps_other_rows(optax.sgd(0.1)), keeps_other_rows(optax.sgd(0.1, momentum=0.9))
      (True, False)
    """
    try:
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            return _compare(transformation)
    # an error means that the transformation needs more than gradients, or full tables, and cannot be compared
    except (TypeError, ValueError):
        return False


def _compare(transformation: optax.GradientTransformation) -> bool:
    random = np.random.default_rng(0)
    start = {"table": jnp.asarray(random.normal(size=(5, 3)), jnp.float32)}
    whole = part = (start, transformation.init(start))
    for touched in ([0, 2], [2, 3], [0, 3], [2, 4]):
        values = jnp.asarray(random.normal(size=(len(touched), 3)), jnp.float32)
        dense = jnp.zeros((5, 3)).at[jnp.array(touched)].set(values)
        whole = update(transformation, {"table": dense}, {}, whole[1], whole[0])
        part = update(transformation, {}, {"table": RowGradients(jnp.array(touched), values)}, part[1], part[0])
    pairs = zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True)
    return all(np.allclose(a, b, rtol=1e-6, atol=1e-7) for a, b in pairs)


class _WholeTable:
    """A reader and writer of rows of an embedding table that one device holds, see `fluid.core.layout.TableRows`."""

    def read(self, array: Any, ids: Any) -> Any:
        return array.at[ids].get(mode="fill", fill_value=0, indices_are_sorted=True, unique_indices=True)

    def beside(self, values: Any) -> Any:
        return values

    def write(self, array: Any, ids: Any, rows: Any) -> Any:
        return array.at[ids].set(rows, mode="drop", indices_are_sorted=True, unique_indices=True)


def _map_slots(
    function: Callable[..., Any], rows: Mapping[str, RowGradients], params: Mapping[str, Any], slots: Any, *more: Any
) -> Any:
    """Map a function over those arrays of an optimizer state that have one row per row of an embedding table.

    Args:
      more: further optimizer states of equal structure. Arrays that belong to no table come unchanged from the last of
        these states.
    """

    def visit(path: Any, *found: Any) -> Any:
        name = _table_of(path, found[0], rows, params)
        return found[-1] if name is None else function(name, *found)

    return jax.tree_util.tree_map_with_path(visit, slots, *more)


def _table_of(path: Any, slot: Any, rows: Mapping[str, RowGradients], params: Mapping[str, Any]) -> str | None:
    """Return the name of the embedding table to which an optimizer state belongs; None if it belongs to none.

    Optax stores arrays that belong to a parameter under the name of the parameter.
    """
    for entry in path:
        name = getattr(entry, "key", "")
        if name in rows and np.shape(slot)[:1] == params[name].shape[:1]:
            return str(name)
    return None
