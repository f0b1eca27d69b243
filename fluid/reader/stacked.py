"""Stacked feeds: the feeds of several steps, which one compiled call runs."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.reader.on_device import RowFeed, picked


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stack:
    """The feeds of several steps, stacked along a new first axis.

    Attributes:
      feeds: by name; each array is `[capacity, batch, ...]`, of which only the first `count` entries are used.
      count: the number of steps, int32 `[]`.

    Example:
      >>> stack = Stack.of([{"x": np.ones((4, 2))}, {"x": np.zeros((4, 2))}], capacity=3)
      >>> stack.feeds["x"].shape, int(stack.count)
      ((3, 4, 2), 2)
    """

    feeds: dict[str, Any]
    count: Any

    @classmethod
    def of(cls, feeds: Sequence[Mapping[str, Any]], capacity: int) -> "Stack":
        """Stack feeds of equal shapes to arrays `[capacity, ...]`; arrays on the host stay on the host."""
        stacked = jax.tree.map(lambda *leaves: _stacked(leaves, capacity), *map(dict, feeds))
        return cls(stacked, np.int32(len(feeds)))

    def feed(self, number: Any) -> dict[str, Any]:
        """Return the feed of one step; inside a compiled function."""
        pick = lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False)  # noqa: E731
        picked: dict[str, Any] = jax.tree.map(pick, self.feeds)
        return picked


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Picks:
    """The feeds of several steps, as row numbers of columns on the device.

    Attributes:
      columns: by name of feed, `[rows, ...]`.
      rows: the row numbers of each step, int32 `[capacity, batch]`.
      count: the number of steps, int32 `[]`.
    """

    columns: dict[str, Any]
    rows: Any
    count: Any

    def feed(self, number: Any) -> dict[str, Any]:
        """Return the feed of one step; inside a compiled function."""
        return picked(self.columns, jax.lax.dynamic_index_in_dim(self.rows, number, keepdims=False))


Fed = Stack | Picks
"""The feeds of several steps."""


def stacked(feeds: Sequence[Mapping[str, Any]], capacity: int, place: Callable[[Any], Any]) -> Fed:
    """Return the feeds of several steps on the device.

    Args:
      feeds: one for each step, which `alike` has counted as feeds of one form.
      capacity: the number of steps for which the arrays have space, see `Batches.take`.
      place: copies a tree of arrays to the device.
    """
    first = feeds[0]
    if not isinstance(first, RowFeed):
        placed: Fed = place(Stack.of(feeds, capacity))
        return placed
    rows = np.zeros((capacity, len(first.rows)), np.int32)
    for number, feed in enumerate(feeds):
        rows[number] = feed.rows  # type: ignore[attr-defined]
    return Picks(first.columns, place(rows), np.int32(len(feeds)))


def alike(first: Mapping[str, Any], feeds: Iterable[Mapping[str, Any]]) -> int:
    """Return how many of `feeds` can run in one compiled call with `first`: all before the first of another form.

    Feeds of one form have equal names, shapes and dtypes, or are rows of one data set.
    """
    form = _form_of(first)
    return sum(1 for _ in itertools.takewhile(lambda feed: _form_of(feed) == form, feeds))


def _form_of(feed: Mapping[str, Any]) -> Any:
    if isinstance(feed, RowFeed):
        return id(feed.columns), len(feed.rows)
    return jax.tree.structure(dict(feed)), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(dict(feed))]


def _stacked(leaves: Sequence[Any], capacity: int) -> Any:
    """Stack arrays of one shape to `[capacity, ...]`; the entries after the last array are filler and never read."""
    if isinstance(leaves[0], jax.Array):
        return _stacked_there((*leaves, *[leaves[-1]] * (capacity - len(leaves))))
    every = np.zeros((capacity, *leaves[0].shape), leaves[0].dtype)
    np.stack(leaves, out=every[: len(leaves)])
    return every


@jax.jit
def _stacked_there(leaves: Sequence[Any]) -> Any:
    return jnp.stack(leaves)
