"""Data on the device: data sets that stay on the device, and stacked feeds for compiled calls of several steps."""

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors


class Resident:
    """A data set whose columns are on the host, with copies on devices.

    Args:
      columns: arrays `[rows, ...]` of numbers.

    Raises:
      ArgumentTypeError: a column does not hold numbers.
      ArgumentError: a column holds integers that JAX would truncate.

    Example:
      >>> resident = Resident(["x"], [np.array([5, 6, 7])], by_name=True)
      >>> resident.minibatch(np.array([2, 0], "int32"))
      {'x': Array([7, 5], dtype=int32)}
    """

    def __init__(self, names: Sequence[Any], columns: Sequence[np.ndarray], by_name: bool):
        for name, column in zip(names, columns, strict=True):
            _check(name, column)
        self._columns = dict(zip(names, columns, strict=True))
        self._by_name = by_name
        self._tables: dict[Hashable, dict[Any, jax.Array]] = {}

    def whole(self) -> Any:
        """Return all rows of the data set as one minibatch, as NumPy arrays."""
        return dict(self._columns) if self._by_name else tuple(self._columns.values())

    def minibatch(self, rows: np.ndarray) -> Any:
        """Return the rows with the numbers `rows`, int32 `[batch]`, as a minibatch on JAX's default device."""
        columns = self.table(None, lambda: jax.device_put({n: np.array(c) for n, c in self._columns.items()}))
        found = _pick(columns, jax.device_put(rows))
        return found if self._by_name else tuple(found[name] for name in self._columns)

    def table(self, key: Hashable, make: Callable[[], dict[Any, jax.Array]]) -> dict[Any, jax.Array]:
        """Return the columns of the data set as arrays on a device; the first call with a `key` copies them."""
        if key not in self._tables:
            self._tables[key] = make()
        return self._tables[key]


class RowNumbers(NamedTuple):
    """A minibatch that holds row numbers of a data set on the device, instead of the rows.

    Attributes:
      resident: the data set.
      rows: the row numbers, int32 `[batch]`.
    """

    resident: Resident
    rows: np.ndarray

    def on_host(self) -> Any:
        """Return the rows as a minibatch of NumPy arrays."""
        return jax.tree.map(lambda column: column[self.rows], self.resident.whole())


class RowFeed(Mapping[str, Any]):
    """A feed of row numbers for columns on the device. The first read of the feed gathers the rows.

    Args:
      columns: columns by feed name, `[rows, ...]`.
      rows: row numbers, int32 `[batch]`.

    Attributes:
      columns: columns by feed name, `[rows, ...]`.
      rows: row numbers, int32 `[batch]`.

    Example:
      >>> RowFeed({"x": jnp.arange(4.0)}, np.array([3, 1], "int32"))["x"].tolist()
      [3.0, 1.0]
    """

    __slots__ = ("_arrays", "columns", "rows")

    def __init__(self, columns: dict[str, jax.Array], rows: np.ndarray):
        self.columns = columns
        self.rows = rows
        self._arrays: dict[str, jax.Array] | None = None

    def __getitem__(self, name: str) -> Any:
        return self.arrays()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def arrays(self) -> dict[str, jax.Array]:
        """Return the arrays of this minibatch, `[batch, ...]`, by feed name.

        The first call copies the rows of the minibatch from the columns, which hold the whole data set on the device.
        """
        if self._arrays is None:
            place = next((column.sharding for column in self.columns.values()), None)
            self._arrays = _pick(self.columns, jax.device_put(self.rows, place))
        return self._arrays


def picked(columns: Mapping[Any, Any], rows: Any) -> dict[Any, Any]:
    """Return the rows with the given numbers from each column.

    Args:
      columns: by name, `[rows, ...]`.
      rows: row numbers, int32 `[batch]`, all within the columns.

    Returns:
      The rows by name, `[batch, ...]`.
    """
    return {name: column.at[rows].get(mode="promise_in_bounds") for name, column in columns.items()}


_pick = jax.jit(picked)


def _check(name: Any, column: np.ndarray) -> None:
    """Refuse a column without numbers, or with integers that JAX's integer dtype cannot hold."""
    if column.dtype.kind not in "biufc" and not jnp.issubdtype(column.dtype, jnp.floating):
        raise errors.ArgumentTypeError(
            f"reader.arrays(on_device=True): the column {name!r} holds {column.dtype}, expected numbers; turn words "
            f"into ids first, for example {{word: id}}[word]"
        )
    held = jax.dtypes.canonicalize_dtype(column.dtype)
    if column.dtype.kind in "iu" and held != column.dtype:
        limits = jnp.iinfo(held)
        if column.size and not (limits.min <= column.min() and column.max() <= limits.max):
            raise errors.ArgumentError(
                f"reader.arrays(on_device=True): the column {name!r} holds {column.min()} to {column.max()}, expected "
                f"what fits into {held}: {limits.min} to {limits.max}; number ids from 0 on, or enable 64 bits: "
                f"jax.config.update('jax_enable_x64', True)"
            )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StackedFeeds:
    """The feeds of several steps, stacked along a new first axis.

    Attributes:
      feeds: by name; each array is `[capacity, batch, ...]`, of which only the first `count` entries are used.
      count: the number of steps, int32 `[]`.

    Example:
      >>> stack = StackedFeeds.of([{"x": np.ones((4, 2))}, {"x": np.zeros((4, 2))}], capacity=3)
      >>> stack.feeds["x"].shape, int(stack.count)
      ((3, 4, 2), 2)
    """

    feeds: dict[str, Any]
    count: Any

    @classmethod
    def of(cls, feeds: Sequence[Mapping[str, Any]], capacity: int) -> "StackedFeeds":
        """Stack the feeds of several steps, which have equal shapes, to arrays `[capacity, ...]`.

        `capacity` is the maximum number of steps. Arrays on the host stay on the host.
        """
        stacked = jax.tree.map(lambda *leaves: _stacked(leaves, capacity), *map(dict, feeds))
        return cls(stacked, np.int32(len(feeds)))

    def feed(self, number: Any) -> dict[str, Any]:
        """Return the feed of step `number`; called in a compiled function, where `number` is a traced value."""
        pick = lambda leaf: jax.lax.dynamic_index_in_dim(leaf, number, keepdims=False)  # noqa: E731
        picked: dict[str, Any] = jax.tree.map(pick, self.feeds)
        return picked


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Picks:
    """The feeds of several steps for one compiled call, stored as row numbers of columns on the device.

    Attributes:
      columns: by feed name, `[rows, ...]`.
      rows: the row numbers of each step, int32 `[capacity, batch]`.
      count: the number of steps, int32 `[]`.
    """

    columns: dict[str, Any]
    rows: Any
    count: Any

    def feed(self, number: Any) -> dict[str, Any]:
        """Return the feed of step `number`; called in a compiled function, where `number` is a traced value."""
        return picked(self.columns, jax.lax.dynamic_index_in_dim(self.rows, number, keepdims=False))


Fed = StackedFeeds | Picks
"""The type of the feeds of several steps in one compiled call: stacked arrays, or row numbers of data on the device."""


def stacked(feeds: Sequence[Mapping[str, Any]], capacity: int, place: Callable[[Any], Any]) -> Fed:
    """Combine the feeds of several steps for one compiled call, and copy the result to the device."""
    first = feeds[0]
    if not isinstance(first, RowFeed):
        placed: Fed = place(StackedFeeds.of(feeds, capacity))
        return placed
    rows = np.zeros((capacity, len(first.rows)), np.int32)
    for number, feed in enumerate(feeds):
        rows[number] = feed.rows  # type: ignore[attr-defined]
    return Picks(first.columns, *place((rows, np.int32(len(feeds)))))


def alike(first: Mapping[str, Any], feeds: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of feeds, from the start of `feeds`, that can run in one compiled call with `first`.

    Feeds can run in one call if they have equal names, shapes and dtypes, or are equally many rows of one data set.
    """
    form = _form_of(first)
    return sum(1 for _ in itertools.takewhile(lambda feed: _form_of(feed) == form, feeds))


def _form_of(feed: Mapping[str, Any]) -> Any:
    if isinstance(feed, RowFeed):
        return id(feed.columns), len(feed.rows)
    return jax.tree.structure(dict(feed)), [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(dict(feed))]


def _stacked(leaves: Sequence[Any], capacity: int) -> Any:
    """Stack arrays of equal shape to one array `[capacity, ...]`.

    Entries after the last given array only fill the array up to `capacity`, and are never read.
    """
    if isinstance(leaves[0], jax.Array):
        return _stacked_there((*leaves, *[leaves[-1]] * (capacity - len(leaves))))
    every = np.zeros((capacity, *leaves[0].shape), leaves[0].dtype)
    np.stack(leaves, out=every[: len(leaves)])
    return every


@jax.jit
def _stacked_there(leaves: Sequence[Any]) -> Any:
    return jnp.stack(leaves)
