"""Reader: a source of rows that can be read in several passes, and whose position can be saved and restored.

The rows of a pass depend only on the number of the pass (the epoch). A position therefore consists of two numbers: the
epoch and the number of rows yielded so far. A reader built again with equal arguments continues exactly after a
position. Readers may be nested: a decorator such as `batch` wraps another reader, and calls its function
`iterate(epoch, start)`. Only the outermost reader counts rows. If the reader is a user's function, it is called once
for each pass. To continue exactly, the function must yield equal rows when it is called in another process.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import itertools
import operator
import types
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec

import numpy as np

from fluid import errors
from fluid.core import warn
from fluid.reader import reader_misuse

Rows = Generator[Any, None, None]
Iterate = Callable[[int, int], Rows]
"""The type of `iterate(epoch, start)`, which yields the rows of pass number `epoch` from row number `start` on."""

Wanted = Callable[[int], Collection[int]]
"""The type of a function that selects the rows of a minibatch that this process needs in a multi-process training.

The argument is the number of rows of the minibatch; the result has the indices of the needed rows.
"""

ELSEWHERE = object()
"""A placeholder in a minibatch for a row that this process does not need, because another process uses the row."""

# Objects of these types never change, so they are not copied when a row is copied. Most lists hold only objects of
# these types, so the copy of a list tests for these types first.
_CONSTANT = frozenset((int, float, str, bool, bytes))

P = ParamSpec("P")
Position = tuple[int, int]
ReaderLike = Callable[[], Iterable[Any]] | Iterable[Any]
"""The type of every `reader=`: a Reader, a function that returns an iterable, or an iterable."""


class Reader:
    """A source of rows that can be read repeatedly: each call starts the next pass and returns an iterator of its rows.

    Decorators and `arrays` create readers; call `Reader` itself to write a custom decorator.

    Args:
      iterate: a generator function of `(epoch, start)`: yields the rows of a pass from row number `start` on.
      plan: nested JSON with the arguments, such as the seed, on which the order of the rows depends. A reader restores
        only positions of readers with an equal plan.
      in_blocks: for readers of rows in multi-process training: a function of `(size, wanted)` that returns another
        `iterate`. `size` is the number of rows of a minibatch, and `wanted` a function that returns which rows of a
        minibatch this process needs. For all other rows, the returned `iterate` may yield the placeholder ELSEWHERE.
      divided: for readers of minibatches in multi-process training: a function of `wanted` that returns another
        `iterate`. Rows of a minibatch that this process does not need may be replaced by any rows.
      numbers: another `iterate`, which yields `on_device.RowNumbers` instead of minibatches, for data on the device.
      parts: another `iterate`, which yields `adapters.JointMinibatch` instead of minibatches, if several minibatches
        are copied at once.

    Attributes:
      table: the Table that encoded the rows, if `fluid.reader.frame` created the reader; else None.

    Example:
      >>> from fluid.reader import batch
      >>> batches = batch([1, 2, 3, 4, 5], batch_size=2)
      >>> rows = batches()
      >>> next(rows)
      [1, 2]
      >>> position = batches.state()
      >>> again = batch([1, 2, 3, 4, 5], batch_size=2)
      >>> again.restore(position)
      >>> list(again()), list(again())
      ([[3, 4], [5]], [[1, 2], [3, 4], [5]])
    """

    table: Any = None

    def __init__(
        self,
        iterate: Iterate,
        plan: Any,
        in_blocks: Callable[[int, Wanted], Iterate] | None = None,
        divided: Callable[[Wanted], Iterate] | None = None,
        numbers: Iterate | None = None,
        parts: Iterate | None = None,
    ):
        self.iterate = iterate
        self.plan = plan
        self.in_blocks = in_blocks or (lambda size, wanted: iterate)
        self.divided = divided or (lambda wanted: iterate)
        self.numbers = numbers
        self.parts = parts
        self._next: Position = (0, 0)
        self._position: Position = (0, 0)
        self._latest: object = None

    def __call__(self) -> Pass:
        """Start the next pass: epoch 0, 1, 2, ...; after `restore`, the rest of the interrupted pass."""
        return self.start(self.iterate)

    def start(self, iterate: Iterate) -> Pass:
        """Start the next pass over the rows that the generator function `iterate` yields."""
        epoch, start = self._next
        self._next = (epoch + 1, 0)
        self._position = (epoch, start)
        return Pass(self, epoch, start, iterate)

    def __iter__(self) -> Pass:
        return self()

    def __len__(self) -> int:
        """Raise an error: most readers know their number of rows only after a pass."""
        raise errors.ArgumentTypeError(
            "a reader has no length: its number of items is known when a pass has ended; sum(1 for _ in reader()) "
            "reads a pass to count them, and arrays have -(-len(x) // batch_size) minibatches"
        )

    def __bool__(self) -> bool:
        return True

    @property
    def ready(self) -> bool:
        """Return whether the next row can be read now; while the result is False, training reads no rows ahead."""
        return True

    def state(self) -> dict[str, Any]:
        """Return the position: the number of the pass, and the number of rows that the consumer has received.

        Returns:
          A dict for JSON and `restore`, for the pass that was started last. Rows that are read ahead do not count.
        """
        epoch, given = self._position
        return {"epoch": epoch, "given": given, "reader": self.plan}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Make the next pass over the reader continue exactly after a saved position.

        Args:
          state: the result of `state()` of a reader with an equal plan (the JSON of its decorators).

        Raises:
          ArgumentError: `state` is not a position, or is a position of another reader.
        """
        try:
            epoch = operator.index(state["epoch"])
            given = operator.index(state["given"])
        except (TypeError, KeyError) as error:
            raise errors.ArgumentError(
                f"restore needs what reader.state() returned, found {state!r}: reader.restore(saved_state)"
            ) from error
        if changed := _changed_files(state.get("reader", self.plan), self.plan):
            raise errors.ArgumentError(
                f"the files are not those of this position: {changed[0]!r} is new, gone, or has another size, version "
                f"or date{f', and {len(changed) - 1} more' * (len(changed) > 1)}; expected the same files, or copies "
                f"that keep their dates (cp -p, rsync -t). Bring them back, or start anew without restore"
            )
        if epoch < 0 or given < 0 or state.get("reader", self.plan) != self.plan:
            raise errors.ArgumentError(
                f"this position was taken from another reader: found epoch {epoch}, {given} items given by "
                f"{_brief(state.get('reader'))}; expected {_brief(self.plan)}. Build the reader with the same "
                f"decorators, sizes and seeds as when the position was saved, or start anew without restore"
            )
        self._next = (epoch, given)
        self._position = (epoch, given)
        self._latest = None


class Pass(Iterator[Any]):
    """One pass over a reader; counts the rows that the consumer receives.

    Attributes:
      epoch: the number of the pass.
      given: the number of rows yielded, including the rows before a restored position.

    Example:
      >>> from fluid.reader import firstn
      >>> rows = firstn("abc".split, 1)()
      >>> next(rows), rows.epoch, rows.given
      ('abc', 0, 1)
      >>> rows.close()
    """

    def __init__(self, reader: Reader, epoch: int, start: int, iterate: Iterate):
        self.epoch = epoch
        self.given = start
        self._reader = reader
        self._rows = iterate(epoch, start)
        self._failed = False
        # Only the latest pass moves the position of the reader. The reader recognizes this pass by a token: a reference
        # to the Pass would keep the Pass and its threads alive after the user has dropped the Pass.
        self._token = object()
        reader._latest = self._token

    def __next__(self) -> Any:
        try:
            item = next(self._rows)
        except StopIteration:
            if not self._failed:
                self._tell((self.epoch + 1, 0))
            raise
        except BaseException:
            self._failed = True
            raise
        self.given += 1
        self._tell((self.epoch, self.given))
        return item

    def close(self) -> None:
        """End this pass over the rows: run `finally` blocks of the reader, and end threads that read ahead."""
        self._failed = True
        self._rows.close()

    def _tell(self, position: Position) -> None:
        if self._reader._latest is self._token:
            self._reader._position = position


class Source(Reader):
    """A user's own reader: a callable that returns an iterable, or an iterable.

    The position is a count of rows, unless the source has its own position: an iterator with `get_state` and
    `set_state` (Grain), or a reader with `state` and `restore`.

    Args:
      kept: True if rows are still in use when the next row is read. Rows of an iterator are then copied, because the
        iterator may refill their arrays. Lists, tuples and arrays hold all rows at once, and are not copied.
    """

    def __init__(self, source: Any, kept: bool = True):
        super().__init__(self._read, "rows")
        self.source = source
        self._kept = kept
        self._iterator: Any = None
        # the iterator of the current pass over the data, if it reports its position by `get_state`; else None
        self._keeper: Any = None
        self._resume: tuple[Position, Any] | None = None

    def state(self) -> dict[str, Any]:
        """Return the position of the reader; if the source itself reports a position, the result includes it."""
        state = super().state()
        if self._resume is not None and self._resume[0] == self._position:
            state["source"] = self._resume[1]
        elif self._keeper is not None and state["given"]:
            inner = self._keeper.get_state()
            as_text = isinstance(inner, bytes)
            state["source"] = {"bytes": inner.decode("latin-1")} if as_text else {"iterator": inner}
        elif hasattr(self.source, "state") and hasattr(self.source, "restore"):
            state["source"] = {"reader": self.source.state()}
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Make the next pass over the reader continue exactly after the position `state`."""
        super().restore(state)
        self._keeper = None
        self._resume = (self._next, state["source"]) if state.get("source") else None

    def _read(self, epoch: int, start: int) -> Rows:
        resume = self._resume
        self._resume = None
        inner = resume[1] if resume is not None and resume[0] == (epoch, start) else {}
        if "reader" in inner:
            self.source.restore(inner["reader"])
        rows, iterator, again = self._open()
        own = copied if self._kept and not isinstance(rows, list | tuple | np.ndarray) else _unchanged
        try:
            if "bytes" in inner or "iterator" in inner:
                iterator.set_state(inner["bytes"].encode("latin-1") if "bytes" in inner else inner["iterator"])
            # `yield from` is not used: it would call `__iter__` again, which may restart the iterator.
            for number in itertools.count():
                try:
                    row = next(iterator)
                except StopIteration:
                    if again and number == 0:
                        raise exhausted(self.source) from None
                    return
                if number >= start or inner:
                    yield own(row)
        finally:
            # An iterator that the user passed as reader stays open, because the user may read on from it. All other
            # iterators were created for this pass.
            if hasattr(iterator, "close") and iterator is not self.source:
                iterator.close()

    def _open(self) -> tuple[Any, Any, bool]:
        """Return the rows of the source, an iterator over them, and True if the previous pass used this iterator."""
        rows = self.source() if callable(self.source) else self.source
        if not hasattr(rows, "__iter__") and not hasattr(rows, "__getitem__"):
            found = "another function; call it first: reader()" if callable(rows) else f"{rows!r}; yield or return rows"
            raise errors.ReaderError(
                f"the reader {named(self.source)} must return something that can be iterated, it returned {found}"
            )
        iterator = iter(rows)
        again = iterator is rows and iterator is self._iterator
        # If `__iter__` is written in Python, it may have restarted the iterator. Generators and built-in iterators
        # never restart, so a second pass over one of them is an error.
        if again and not isinstance(getattr(type(rows), "__iter__", None), types.FunctionType):
            raise exhausted(self.source)
        self._iterator = iterator
        self._keeper = iterator if hasattr(iterator, "get_state") and hasattr(iterator, "set_state") else None
        return rows, iterator, again


def copied(value: Any) -> Any:
    """Copy the arrays, lists and dicts of a row; objects of other types are returned unchanged.

    A user's code may use its arrays again: a generator may refill one buffer for every row, and a function of `map` may
    change its row in place. So every row that is kept, for example in a minibatch, is a copy.

    Example:
      >>> row = {"x": np.zeros(2), "name": "a"}
      >>> other = copied(row)
      >>> other["x"] += 1
      >>> row["x"].tolist(), other["name"] is row["name"]
      ([0.0, 0.0], True)
    """
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, dict):
        fields = copy.copy(value)
        fields.update((key, copied(part)) for key, part in value.items())
        return fields
    if isinstance(value, list):
        items = copy.copy(value)  # `copy.copy` keeps the class and the attributes of a subclass of list
        items[:] = [part if type(part) in _CONSTANT else copied(part) for part in value]
        return items
    if type(value) is tuple:
        return tuple([copied(part) for part in value])
    if isinstance(value, tuple) and hasattr(value, "_make"):
        return value._make([copied(part) for part in value])
    if hasattr(value, "detach") and hasattr(value, "clone"):  # this finds torch tensors without importing torch
        return value.clone()
    return value


def seed_with_shuffle(function: Callable[P, Reader]) -> Callable[P, Reader]:
    """Decorate a reader function to warn of `seed=` without `shuffle=`, because the seed then has no effect."""
    before = list(inspect.signature(function).parameters).index("shuffle")

    @functools.wraps(function)
    def checked(*arguments: P.args, **options: P.kwargs) -> Reader:
        if "seed" in options and "shuffle" not in options and len(arguments) <= before:
            warn(
                f"reader.{function.__name__}(seed={options['seed']!r}) has no effect: rows come in the order of the "
                f"data, since shuffle=True is not given. Write shuffle=True, seed={options['seed']!r}; or shuffle=False"
            )
        return function(*arguments, **options)

    return checked


def as_reader(caller: str, source: ReaderLike, kept: bool = True) -> Reader:
    """Convert a user's reader to a Reader.

    Raises:
      ArgumentTypeError: `source` is none of these.
    """
    if isinstance(source, Reader):
        return source
    reader_misuse.refuse(caller, source, rows=True)
    if isinstance(source, str | bytes) or not (
        callable(source) or hasattr(source, "__iter__") or hasattr(source, "__getitem__")
    ):
        example = "def rows(): yield image, label"
        if isinstance(source, str):
            example = f"fluid.reader.batch(fluid.reader.files({source!r}), batch_size=32)"
        raise errors.ArgumentTypeError(
            f"{caller} needs a reader, that is a function which returns an iterable, or an iterable; found "
            f"{type(source).__name__} {source!r}. For example: {example}"
        )
    return Source(source, kept)


def is_reader(value: Any) -> bool:
    """Return whether a value is certainly a reader: a Reader, a function, an iterator or a torch `DataLoader`.

    Lists and arrays return False, because they may also be data of another kind.
    """
    is_loader = hasattr(value, "batch_sampler") and hasattr(value, "__iter__")
    return isinstance(value, Reader | Iterator | types.FunctionType) or is_loader


def as_readers(caller: str, sources: Sequence[ReaderLike]) -> list[Reader]:
    """Convert a user's readers to Readers; at least one is required.

    Raises:
      ArgumentError: `sources` is empty.
      ArgumentTypeError: one of the sources is not a reader.
    """
    if not sources:
        raise errors.ArgumentError(f"{caller} needs at least one reader, found none; for example {caller}(..., rows)")
    return [as_reader(caller, source) for source in sources]


def exhausted(source: Any) -> errors.ReaderError:
    """Return the error for an iterator that was passed as reader and is exhausted."""
    return errors.ReaderError(
        f"the reader is exhausted: found that {named(source)} can be iterated once only, expected one that "
        f"starts anew for every pass; hand over a function that returns a new iterator: def rows(): yield ..."
    )


def function(caller: str, value: Any) -> Callable[..., Any]:
    """Check that an argument is callable, and return the argument.

    Raises:
      ArgumentTypeError: the argument cannot be called.
    """
    if not callable(value):
        raise errors.ArgumentTypeError(
            f"{caller} needs a function of a row, found {type(value).__name__} {value!r}; for example "
            f"{caller}(lambda row: row, rows)"
        )
    return value


@contextlib.contextmanager
def opened(readers: list[Reader], epoch: int, start: int) -> Iterator[list[Rows]]:
    """Open a generator of the rows of each reader, and close the generators at the end of the `with` block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(r.iterate(epoch, start))) for r in readers]


def skip(rows: Iterator[Any], count: int) -> None:
    """Read and drop `count` rows."""
    next(itertools.islice(rows, count, count), None)


def increasing(numbers: Any) -> list[int]:
    """Return increasing integers as a list; an empty list if the numbers are not integers, or do not increase.

    Example:
      >>> increasing([2, 5]), increasing([5, 2]), increasing("ab")
      ([2, 5], [], [])
    """
    try:
        found = [operator.index(number) for number in numbers]
    except TypeError:
        return []
    return found if all(a < b for a, b in itertools.pairwise(found)) else []


def marked(rows: Iterator[Any], size: int, wanted: Wanted) -> Rows:
    """Yield rows, but the placeholder ELSEWHERE in place of each row that this process does not need.

    Args:
      wanted: returns the indices in a minibatch of the rows that this process needs; called with the number of rows of
        the minibatch, which is smaller for a short last minibatch.

    Example:
      >>> [row is ELSEWHERE for row in marked(iter("abcde"), 2, lambda count: [0])]
      [False, True, False, True, False]
    """
    while block := list(itertools.islice(rows, size)):
        mine = wanted(len(block))
        yield from (row if i in mine else ELSEWHERE for i, row in enumerate(block))


def stages(plan: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the arguments of each decorator of a reader, one dict for each decorator; the outermost one comes first.

    Example:
      >>> list(stages({"batch": 2, "of": {"shuffle": 10, "of": "rows"}}))
      [{'batch': 2, 'of': {'shuffle': 10, 'of': 'rows'}}, {'shuffle': 10, 'of': 'rows'}]
    """
    if isinstance(plan, Mapping):
        yield plan
    parts = [part for key, part in plan.items() if key != "files"] if isinstance(plan, Mapping) else plan
    for part in parts if isinstance(parts, list) else ():
        yield from stages(part)


def seeded_maps(plan: Any) -> int:
    """Return the number of `map` and `xmap` decorators with a seed in `plan`, the JSON of a reader's decorators."""
    return sum("map" in stage and "seed" in stage for stage in stages(plan))


def _changed_files(saved: Any, plan: Any) -> list[str]:
    """Return the names of files that were added, removed or changed since a position of the reader was saved.

    Both arguments are plans: JSON that describes a reader and, for each of its files, the size and version or date.
    """
    if isinstance(saved, Mapping) and isinstance(plan, Mapping) and saved.keys() == plan.keys():
        pairs = [(saved[key], plan[key]) for key in plan]
        before, now = saved.get("files"), plan.get("files")
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    elif isinstance(saved, list) and isinstance(plan, list) and len(saved) == len(plan):
        pairs = list(zip(saved, plan, strict=True))
    else:
        return []
    return [name for pair in pairs for name in _changed_files(*pair)]


def _brief(plan: Any) -> Any:
    """Return the plan of a reader (JSON that describes the reader), shortened for messages.

    In the result, the number of files replaces the names of the files.
    """
    if isinstance(plan, list):
        return [_brief(part) for part in plan]
    if not isinstance(plan, Mapping):
        return plan
    return {
        key: f"{len(part)} files" if key == "files" and isinstance(part, Mapping) else _brief(part)
        for key, part in plan.items()
    }


def _unchanged(row: Any) -> Any:
    return row


def named(source: Any) -> str:
    """Return the name of a user's reader for error messages: its qualified name, or else the name of its class."""
    return getattr(source, "__qualname__", None) or f"a {type(source).__name__}"
