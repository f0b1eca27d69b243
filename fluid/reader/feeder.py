"""Feeder: convert minibatches to checked arrays by feed name. A minibatch is a list of rows, or a dict of columns."""

import contextlib
import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import FeedSpec, Program, warn_once
from fluid.reader import reader_misuse
from fluid.reader.buckets import Buckets
from fluid.reader.columns import is_sample, read_feed
from fluid.reader.decorators import Grouped
from fluid.reader.feed_checks import NO_ROW, SortedClasses, complaint, warn_of_labels

FeedOrder = Sequence[str] | Mapping[str, int] | None
"""The type of `feed_order=`, which assigns the fields of a row to feeds: feed names in the order of the fields, or a
dict from feed name to position.

None means the order in which the program declares its feeds."""

# If a program has at most `_MOST_PERMUTED` feeds, an error message suggests an order of the feeds that fits the data.
# To find it, all orders are tested: 24 orders for 4 feeds.
_MOST_PERMUTED = 4


class _ByOrder(dict[str, Any]):
    """A dict of the columns of a minibatch by feed name, for fields without names: the position determines the feed."""

    def __init__(self, positions: Mapping[str, int], field: Callable[[int], Any], count: int):
        super().__init__({name: field(position) for name, position in positions.items()})
        self.field = field
        self.count = count


class Feeder:
    """A converter of minibatches to feeds, as a program declares them.

    Args:
      feed_order: the feed of each field of a row: names in the order of the fields, or positions by name. By default
        the order of declaration, except for feeds with `layers.data(column=...)`. Columns of dicts that `feed_order`
        does not name are ignored; without `feed_order` they are an error.

    Attributes:
      batched: the names of the feeds to read that have one row for each example.

    Raises:
      ArgumentError: the order is empty, a feed is absent from the order, or two feeds share a position.
      UnknownNameError: the order contains a name that is not declared.

    Example:
      >>> from fluid.core import FeedSpec
      >>> specs = {"x": FeedSpec("x", (None, 2), "float32"), "y": FeedSpec("y", (None, 1), "int64")}
      >>> feed = Feeder(specs).feed([([0.5, 1], 7), ([2, 3], 8)])
      >>> feed["x"].tolist(), feed["y"].tolist()
      ([[0.5, 1.0], [2.0, 3.0]], [[7], [8]])
    """

    def __init__(
        self,
        specs: Mapping[str, FeedSpec],
        feed_order: FeedOrder = None,
        aligned: bool = True,
        buckets: Buckets | None = None,
        only: Collection[str] | None = None,
        trains: bool = False,
    ):
        self.specs = dict(specs)
        self.buckets = Buckets(specs, max_compilations=None) if buckets is None else buckets
        self.positions = _positions(self.specs, feed_order, self.specs if only is None else only)
        self._read = {name: spec for name, spec in self.specs.items() if only is None or name in only}
        self._aligned = aligned and len(self._read) > 1
        self._selects = feed_order is not None
        # Rows may have fields that belong to no feed only if the user gave positions, in `feed_order` or in
        # `layers.data(column=...)`. A `feed_order` of names must list every field.
        self._exact = not isinstance(feed_order, Mapping) and (
            feed_order is not None or all(spec.column is None for spec in self.specs.values())
        )
        self._least = max((self.positions[name] for name in self._read), default=-1) + 1
        self._most = max(self.positions.values(), default=-1) + 1
        # The longest row among the rows that `bucket_by_length` has last grouped by length.
        self._longest: Any = None
        self._order = feed_order
        self._alike = self._like_feeds() if feed_order is None else []
        self.sorted = SortedClasses(self._read.values() if trains else ())
        self._labels = [spec for spec in self._read.values() if spec.labels]
        self.batched = [name for name, spec in self._read.items() if spec.shape[:1] == (None,)]

    def feed(self, minibatch: Any, batch_index: int | None = None) -> dict[str, Any]:
        """Check a minibatch and return its columns by name.

        Args:
          minibatch: a list of rows (tuples, dicts, or values when there is one field), a tuple of columns, a dict of
            columns, or a DataFrame.

        Returns:
          `{name: array or SequenceBatch}`, arrays as declared: `[batch, ...]`.

        Raises:
          FeedError: the minibatch does not fit; the message names the field, the sample and the batch.
          UnknownNameError: a dict holds a name that is not declared.
        """
        if not self._read:
            return {}
        where = "" if batch_index is None else f"batch {batch_index}"
        columns = self._columns(minibatch, where)
        try:
            fed = self._checked(columns, where)
        except errors.FeedError as error:
            # An error with a `__cause__` comes from `_check_minibatch`: the user passed one row in place of a
            # minibatch, and another order of the feeds does not help.
            if isinstance(columns, _ByOrder) and error.__cause__ is None:
                error.args = (f"{str(error).rstrip('.')}. {self._order_told(columns)}",)
            raise
        # Check only a single minibatch for rows that are sorted by class. Without `batch_index`, `minibatch` may hold
        # the rows of several minibatches.
        if batch_index is not None:
            self.sorted.look(fed)
        while self._labels:
            spec = self._labels.pop()
            if isinstance(fed[spec.name], np.ndarray):
                warn_of_labels(spec, fed[spec.name])
        if self._alike and isinstance(columns, _ByOrder) and columns.count > 1:
            self._warn_of_order()
        if isinstance(minibatch, Grouped) and minibatch.longest is not self._longest:
            self._longest = minibatch.longest
            self._expect(minibatch)
        return self.buckets.pad(fed, where)

    def _expect(self, minibatch: Grouped) -> None:
        """Announce the longest row in the buffer of `bucket_by_length`, so that the padded shape is large enough."""
        # Errors are ignored here, because an invalid row raises an error when its minibatch is checked.
        with contextlib.suppress(errors.FluidError):
            columns = self._columns([minibatch.longest], "")
            fed = {name: read_feed(spec, columns[name]) for name, spec in self._read.items() if spec.lod_level}
            self.buckets.expect(fed, minibatch.together)

    def _checked(self, columns: Mapping[str, Any], where: str) -> dict[str, Any]:
        """Return the columns of a minibatch for this Feeder's feeds, after checks, as `read_feed` returns them.

        Sequences are not padded yet.
        """
        try:
            fed = {name: read_feed(spec, columns[name], where) for name, spec in self._read.items()}
        except errors.FeedError as error:
            self._check_minibatch(columns, where, error)
            raise
        if self._aligned:
            self._check_aligned(fed, where)
        return fed

    def _like_feeds(self) -> list[str]:
        """Return the names of feeds with equal shapes and dtypes: a wrong order of these feeds causes no error.

        If there are several groups of such feeds, only the first group with a feed that this Feeder reads is returned.
        The list is empty if there is no such group.
        """
        alike: dict[Any, list[str]] = {}
        for name, spec in self.specs.items():
            if spec.column is None:
                alike.setdefault((spec.shape, spec.held, spec.lod_level), []).append(name)
        return next((names for names in alike.values() if len(names) > 1 and set(names) & self._read.keys()), [])

    def _warn_of_order(self) -> None:
        """Warn, once for each program, that two fields of a row could be exchanged without an error."""
        first, second = (self.specs[name] for name in self._alike[:2])
        names = sorted(self.positions, key=self.positions.__getitem__)
        in_a_row = [self.positions[name] for name in names] == list(range(len(names)))

        def message() -> str:
            sites = f" (declared at {first.site} and {second.site})" if first.site else ""
            return (
                f"the feeds {first.name!r} and {second.name!r} are alike{sites}, and a minibatch does not name its "
                f"fields: field {self.positions[first.name]} is read as {first.name!r} and field "
                f"{self.positions[second.name]} as {second.name!r}, because the program declares them in this order. "
                f"If that is right, say so: feed_order={names if in_a_row else self.positions}. Columns by name "
                f"cannot be swapped: {reader_misuse.spelled(self.specs)}"
            )

        warn_once(first, "order", message)
        self._alike = []

    def _order_told(self, columns: _ByOrder) -> str:
        """Return a sentence for an error message, with the feed of each field of a row, and a better `feed_order`."""
        names = sorted(self.positions, key=self.positions.__getitem__)
        if self._order is None and all(spec.column is None for spec in self.specs.values()):
            told = f"Field 0 of the tuple is read as {names[0]!r}, because the program declares it first"
        else:
            fields = ", ".join(f"field {self.positions[name]} as {name!r}" for name in names[:4])
            told = f"Of the tuple, {'column' if self._order is None else 'feed_order'}= says to read {fields}"
        if fitting := self._fitting_order(columns, names):
            return f"{told}; the fields fit so: feed_order={fitting}"
        return f"{told}; another order is said by name: feed_order={names[::-1] if len(names) == 2 else names}"

    def _fitting_order(self, columns: _ByOrder, names: list[str]) -> list[str]:
        """Return an order of the feeds in which the columns fit their declarations, as a list of feed names.

        The list is empty if no order fits. It is also empty without a search if there are more than 4 feeds, or if a
        field belongs to no feed.
        """
        if list(map(self.positions.__getitem__, names)) != list(range(columns.count)) or len(names) > _MOST_PERMUTED:
            return []
        # Skip the first permutation: it is the order of `names`, in which the fields did not fit the feeds.
        for order in itertools.islice(itertools.permutations(names), 1, None):
            with contextlib.suppress(errors.FluidError):
                for position, name in enumerate(order):
                    read_feed(self.specs[name], columns.field(position))
                return list(order)
        return []

    def _columns(self, minibatch: Any, where: str) -> Mapping[str, Any]:
        if isinstance(minibatch, tuple):
            return self._picked(minibatch, where)
        if type(minibatch) is dict or isinstance(minibatch, Mapping):
            self._check_names(minibatch, None, where)
            return minibatch
        if not isinstance(minibatch, list):
            if reader_misuse.is_frame(minibatch):
                return self._columns(reader_misuse.columns_of(minibatch), where)
            if hasattr(minibatch, "dtype") and len(self.positions) == 1:
                return {name: minibatch for name in self.positions}
            if hasattr(minibatch, "dtype") or not hasattr(minibatch, "__iter__"):
                raise self._unusable(minibatch, where)
            minibatch = list(minibatch)
        if not minibatch:
            raise errors.FeedError(_at(where) + "found an empty minibatch, expected at least one sample. Leave it out")
        if self._holds_columns(minibatch):
            return self._picked(tuple(minibatch), where)
        return self._transposed(minibatch, where)

    def _holds_columns(self, minibatch: list[Any]) -> bool:
        """Return whether a list holds columns instead of rows, as in minibatches of a torch DataLoader."""
        if not all(hasattr(item, "dtype") and getattr(item, "ndim", 0) for item in minibatch):
            return False
        # With several fields, a row would be a tuple, not an array. So each array in the list is a column.
        if len(self.positions) > 1:
            return self._least <= len(minibatch) and (len(minibatch) <= self._most or not self._exact)
        spec = self.specs[next(iter(self.positions))]
        shape = tuple(minibatch[0].shape)
        return (
            len(minibatch) == 1 and shape[1 + spec.lod_level :] == spec.shape[1:] and len(shape) > len(spec.shape) - 1
        )

    def _transposed(self, rows: list[Any], where: str) -> Mapping[str, Any]:
        if isinstance(rows[0], Mapping):
            for sample, row in enumerate(rows):
                if not isinstance(row, Mapping):
                    raise self._unusable(row, where, sample)
                self._check_names(row, sample, where)
            return {name: [row[name] for row in rows] for name in self._read}
        if len(self.positions) == 1:
            # If there is one feed, a tuple is a row, and a list is a value of the feed. If `feed_order` or the
            # declaration has a position for this feed, a list is a row, too.
            fields: Any = tuple if self._exact else (tuple, list)
            (name,) = self.positions
            position = self.positions[name]
            return {name: [self._only(row, fields, position, i, where) for i, row in enumerate(rows)]}
        for sample, row in enumerate(rows):
            if not isinstance(row, tuple | list):
                raise self._unusable(row, where, sample)
            if len(row) != self._least:
                self._check_count(row, "fields", sample, where)
        return self._by_order(lambda position: [row[position] for row in rows], len(rows[0]))

    def _only(self, row: Any, fields: Any, position: int, sample: int, where: str) -> Any:
        if not isinstance(row, fields):
            return row
        self._check_count(row, "fields", sample, where)
        return row[position]

    def _picked(self, fields: Sequence[Any], where: str) -> _ByOrder:
        self._check_count(fields, "columns", None, where)
        return self._by_order(fields.__getitem__, len(fields))

    def _by_order(self, field: Callable[[int], Any], count: int) -> _ByOrder:
        return _ByOrder({name: self.positions[name] for name in self._read}, field, count)

    def _check_count(self, fields: Sequence[Any], what: str, sample: int | None, where: str) -> None:
        if len(fields) < self._least or (self._exact and len(fields) > self._most):
            order = ", ".join(repr(n) for n, _ in sorted(self.positions.items(), key=operator.itemgetter(1)))
            least = "" if self._exact and self._least == self._most else "at least "
            positions = ", ".join(f"{n!r}: {i}" for n, i in self.positions.items())
            raise errors.FeedError(
                f"{_at(where, sample)}found {len(fields)} {what}, expected {least}{self._least}: {order}. Give one for "
                f"each feed, or say at which positions they are: feed_order={{{positions}}}"
            )

    def _check_names(self, given: Mapping[str, Any], sample: int | None, where: str) -> None:
        if given.keys() == self.specs.keys():
            return
        for name in () if self._selects else given:
            if name not in self.specs:
                raise errors.UnknownNameError(
                    f"{_at(where, sample)}found {name!r}, which the program does not declare, expected "
                    f"{', '.join(map(repr, self.specs))}. {errors.nearest(str(name), self.specs)} To ignore other "
                    f"columns, name those that are read: {_example(self.specs)}"
                )
        for name, spec in self._read.items():
            if name not in given:
                raise complaint(spec, where, sample, f"only {', '.join(map(repr, given))}", f"Add {{{name!r}: array}}")

    def _check_minibatch(self, columns: Mapping[str, Any], where: str, error: errors.FeedError) -> None:
        """Raise an error if the minibatch is a single row; the error shows the call that makes minibatches of rows."""
        samples = [is_sample(spec, columns[name]) for name, spec in self._read.items()]
        if any(samples) and False not in samples:
            raise errors.FeedError(
                f"{_at(where)}found one row, {', '.join(map(repr, self._read))} without a batch dimension, expected a "
                f"minibatch. Say how many rows make one: reader=fluid.reader.batch(reader, batch_size=32). If it is a "
                f"minibatch, its size does not belong to the declared shapes: layers.data(name, shape) is for one row"
            ) from error

    def _check_aligned(self, fed: Mapping[str, Any], where: str) -> None:
        if len({fed[name].shape[0] for name in self.batched}) > 1:
            shown = ", ".join(f"{name!r}: {fed[name].shape[0]}" for name in self.batched)
            raise errors.FeedError(
                f"{_at(where)}found columns with different numbers of samples, {shown}, expected the same number in "
                f"each. Row i of every column belongs to sample i: check how the columns are sliced"
            )

    def _unusable(self, found: Any, where: str, sample: int | None = None) -> errors.FeedError:
        names = ", ".join(self.specs)
        nothing = f" {NO_ROW}." if found is None else ""
        return errors.FeedError(
            f"{_at(where, sample)}found {type(found).__name__}, expected the fields {names}.{nothing} A minibatch is a "
            f"list of row tuples [({names}), ...], a tuple of columns ({names}), or a dict of columns by name; "
            f"reader=fluid.reader.batch(reader, batch_size=32) makes minibatches of rows"
        )


class DataFeeder:
    """A converter of minibatches to feeds, with Fluid's name and arguments.

    Args:
      feed_list: names of feeds, in the order of the fields of a row.
      place: accepted for programs written for Fluid and not used: a Session copies feeds to its own device.
      program: the Program, or program function, that declares the feeds.

    Raises:
      ArgumentTypeError: `program` is absent.
      UnknownNameError: the program declares no such feed.

    Example:
      >>> import fluid
      >>> program = fluid.Program(lambda: fluid.layers.data("x", shape=[2]))
      >>> DataFeeder(feed_list=["x"], program=program).feed([([1, 2],), ([3, 4],)])
      {'x': array([[1., 2.],
             [3., 4.]], dtype=float32)}
    """

    def __init__(
        self,
        feed_list: Sequence[str],
        place: Any = None,
        program: Program | Callable[[], Any] | None = None,
    ):
        del place
        if program is None:
            raise errors.ArgumentTypeError(
                "DataFeeder needs the program that declares the feeds, found program=None; there is no default one: "
                f"DataFeeder(feed_list={feed_list!r}, program=train_program)"
            )
        feeds = (program if isinstance(program, Program) else Program(program)).feeds
        names = _names(feed_list)
        for name in names:
            _check_known(name, feeds)
        self._feeder = Feeder({name: feeds[name] for name in names}, names)

    def feed(self, minibatch: Any) -> dict[str, Any]:
        """Check a minibatch and return its columns by name; see `Feeder.feed`."""
        return self._feeder.feed(minibatch)


def _positions(specs: Mapping[str, FeedSpec], feed_order: FeedOrder, needed: Collection[str]) -> dict[str, int]:
    """Return the position of each feed in a row, by name; `feed_order` may omit feeds that are not in `needed`."""
    if feed_order is None:
        positions = _declared_positions(specs)
    elif isinstance(feed_order, Mapping):
        positions = {str(name): _position(name, index) for name, index in feed_order.items()}
    else:
        positions = {name: index for index, name in enumerate(_names(feed_order))}
        if len(positions) < len(feed_order):
            raise errors.ArgumentError(f"feed_order names a feed twice, found {list(feed_order)}, expected each once")
    if feed_order is not None and not positions:
        raise errors.ArgumentError(f"feed_order names nothing, expected the order of {list(specs)}: {_example(specs)}")
    for name in positions:
        _check_known(name, specs)
    if missing := [name for name in specs if name in needed and name not in positions]:
        raise errors.ArgumentError(
            f"feed_order misses {', '.join(map(repr, missing))}, found {feed_order!r}, expected every feed that "
            f"{'the program declares' if len(needed) >= len(specs) else 'is needed'}: "
            f"{_example([name for name in specs if name in needed])}"
        )
    if len(set(positions.values())) < len(positions):
        raise errors.ArgumentError(
            f"two feeds share a position in the row, found {positions}; give each its own column"
        )
    return {name: positions[name] for name in specs if name in positions}


def _declared_positions(specs: Mapping[str, FeedSpec]) -> dict[str, int]:
    """Return the position of each feed in a row, by name, for a user who gives no `feed_order`.

    A feed that is declared with `layers.data(column=...)` has this position. The other feeds take the free positions,
    in the order of declaration.
    """
    taken = {spec.column for spec in specs.values() if spec.column is not None}
    free = (i for i in range(2 * len(specs)) if i not in taken)
    return {name: next(free) if spec.column is None else spec.column for name, spec in specs.items()}


def _position(name: str, index: Any) -> int:
    try:
        position = operator.index(index)
    except TypeError:
        position = -1
    if position < 0:
        raise errors.ArgumentError(
            f"feed_order gives {name!r} the position {index!r}, expected 0, 1, 2, ...: feed_order={{{name!r}: 0}}"
        )
    return position


def _names(names: Any) -> list[str]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise errors.ArgumentTypeError(f'feeds are named in a list of strings, found {names!r}: ["image", "label"]')
    return list(names)


def _check_known(name: str, feeds: Mapping[str, FeedSpec]) -> None:
    if name not in feeds:
        raise errors.UnknownNameError(
            f"no feed is called {name!r}, expected one of those the program declares. {errors.nearest(name, feeds)}"
        )


def _example(specs: Collection[str]) -> str:
    return f"feed_order={list(specs)}"


def _at(where: str, sample: int | None = None) -> str:
    place = ", ".join(filter(None, ("" if sample is None else f"sample {sample}", where)))
    return f"{place}: " if place else "minibatch: "
