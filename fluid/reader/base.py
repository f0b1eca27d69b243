"""Reader: rows that can be read again and again, and that know how far the consumer has come.

The rows of a pass depend on the number of the pass (the epoch) alone. So a position is two numbers, and a reader that
is built again from the same parts continues exactly after it. A decorator only needs `iterate(epoch, start)` of the
reader that it wraps; rows are counted once, by the outermost reader. A function that a user gives as reader is called
once for each pass; to be continued exactly, it must give the same rows again when it is called in another process.
"""

import contextlib
import functools
import inspect
import itertools
import operator
import types
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, ParamSpec

from fluid import errors
from fluid.core import warn
from fluid.reader import data_sets

Rows = Generator[Any, None, None]
Iterate = Callable[[int, int], Rows]
"""What gives the rows of a pass: called with `(epoch, start)`."""

Wanted = Callable[[int], Collection[int]]
"""Which rows of a minibatch a process needs, by how many rows that has."""

ELSEWHERE = object()
"""Stands for a row that another process reads."""

P = ParamSpec("P")
Position = tuple[int, int]
ReaderLike = Callable[[], Iterable[Any]] | Iterable[Any]
"""What every `reader=` takes: a Reader, a function that returns an iterable, or an iterable."""


class Reader:
    """Rows in passes: each call starts the next pass and returns its iterator.

    Decorators and `arrays` make readers; `Reader` itself is for those who write a decorator of their own.

    Args:
      iterate: a generator function of `(epoch, start)`: it gives the rows of that pass from number `start` on.
      plan: what the order of the rows depends on, as JSON; a reader restores only positions of readers with this plan.
      in_blocks: of `(size, wanted)`, gives another `iterate`, which leaves out work on rows that are not wanted of each
        `size` rows: ELSEWHERE may stand for them.
      divided: of `wanted`, gives another `iterate` of minibatches, in which any rows may stand for those not wanted.
      numbers: another `iterate`, which gives `resident.Rows` instead of minibatches: where the data is on the device.
      parts: another `iterate`, which gives `adapters.Part` instead of minibatches: where several are read together.
      batch_size: how many rows each minibatch has, a shorter last one excepted; None where that is not known.

    Attributes:
      batch_size: the same.

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

    def __init__(
        self,
        iterate: Iterate,
        plan: Any,
        in_blocks: Callable[[int, Wanted], Iterate] | None = None,
        divided: Callable[[Wanted], Iterate] | None = None,
        numbers: Iterate | None = None,
        parts: Iterate | None = None,
        batch_size: int | None = None,
    ):
        self.iterate = iterate
        self.plan = plan
        self.in_blocks = in_blocks or (lambda size, wanted: iterate)
        self.divided = divided or (lambda wanted: iterate)
        self.numbers = numbers
        self.parts = parts
        self.batch_size = batch_size
        self._next: Position = (0, 0)
        self._position: Position = (0, 0)
        self._latest: object = None

    def __call__(self) -> "Pass":
        """Start the next pass: epoch 0, 1, 2, ...; after `restore`, the rest of the pass that was interrupted."""
        return self.start(self.iterate)

    def start(self, iterate: Iterate) -> "Pass":
        """Start the next pass with what gives its rows: `iterate`, or what `divided` returned."""
        epoch, start = self._next
        self._next = (epoch + 1, 0)
        self._position = (epoch, start)
        return Pass(self, epoch, start, iterate)

    def __iter__(self) -> "Pass":
        return self()

    def __len__(self) -> int:
        """Raise an error: most readers do not know their number of rows before a pass ends."""
        raise errors.ArgumentTypeError(
            "a reader has no length: its number of items is known when a pass has ended; sum(1 for _ in reader()) "
            "reads a pass to count them, and arrays have -(-len(x) // batch_size) minibatches"
        )

    def __bool__(self) -> bool:
        return True

    @property
    def ready(self) -> bool:
        """Whether the next row can be read now; a training does not read ahead while a reader waits for its rows."""
        return True

    def state(self) -> dict[str, Any]:
        """The position: how many rows of which pass the consumer has received, however many were read ahead.

        Returns:
          A dict that JSON can hold, for `restore`. It follows the pass that was started last.
        """
        epoch, given = self._position
        return {"epoch": epoch, "given": given, "reader": self.plan}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Make the next call continue exactly after a position.

        Args:
          state: what `state()` of a reader with the same plan returned.

        Raises:
          ArgumentError: that is no position, or the position in another reader.
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
      epoch: number of the pass.
      given: how many rows have been given, those before a restored position included.

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
        # Only the latest pass moves the position. The reader knows it by a token and not by the pass itself, since it
        # must not keep an abandoned pass, and its threads, alive.
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
        """End the pass here: `finally` blocks of readers run, threads end."""
        self._failed = True
        self._rows.close()

    def _tell(self, position: Position) -> None:
        if self._reader._latest is self._token:
            self._reader._position = position


class Source(Reader):
    """A user's own reader: a callable that returns an iterable, or an iterable.

    A position is kept by counting, unless the source keeps one itself: an iterator with `get_state` and `set_state`
    (Grain), or a reader with `state` and `restore`.
    """

    def __init__(self, source: Any):
        super().__init__(self._read, "rows")
        self.source = source
        self._iterator: Any = None
        self._keeper: Any = None  # the iterator, when it keeps the position
        self._resume: tuple[Position, Any] | None = None

    def state(self) -> dict[str, Any]:
        """The position, together with the source's own account of it, if it keeps one."""
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
        """Make the next call continue exactly after a position."""
        super().restore(state)
        self._keeper = None
        self._resume = (self._next, state["source"]) if state.get("source") else None

    def _read(self, epoch: int, start: int) -> Rows:
        resume = self._resume
        self._resume = None
        inner = resume[1] if resume is not None and resume[0] == (epoch, start) else {}
        if "reader" in inner:
            self.source.restore(inner["reader"])
        iterator, again = self._open()
        try:
            if "bytes" in inner or "iterator" in inner:
                iterator.set_state(inner["bytes"].encode("latin-1") if "bytes" in inner else inner["iterator"])
            # Iterated by hand: `yield from` would call `__iter__` again, which may start anew.
            for number in itertools.count():
                try:
                    row = next(iterator)
                except StopIteration:
                    if again and number == 0:
                        raise exhausted(self.source) from None
                    return
                if number >= start or inner:
                    yield row
        finally:
            # What the user handed over is the user's, who may read on; other iterators were made for this pass.
            if hasattr(iterator, "close") and iterator is not self.source:
                iterator.close()

    def _open(self) -> tuple[Any, bool]:
        """An iterator of the source, and whether it is the same object as in the pass before."""
        rows = self.source() if callable(self.source) else self.source
        if not hasattr(rows, "__iter__") and not hasattr(rows, "__getitem__"):
            found = "another function; call it first: reader()" if callable(rows) else f"{rows!r}; yield or return rows"
            raise errors.ReaderError(
                f"the reader {named(self.source)} must return something that can be iterated, it returned {found}"
            )
        iterator = iter(rows)
        again = iterator is rows and iterator is self._iterator
        # An `__iter__` written in Python may start anew; that of generators and of built-in iterators never does.
        if again and not isinstance(getattr(type(rows), "__iter__", None), types.FunctionType):
            raise exhausted(self.source)
        self._iterator = iterator
        self._keeper = iterator if hasattr(iterator, "get_state") and hasattr(iterator, "set_state") else None
        return iterator, again


def seed_with_shuffle(function: Callable[P, Reader]) -> Callable[P, Reader]:
    """Decorate a reader function to warn of a seed without `shuffle`, which alone makes the seed count."""
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


def as_reader(caller: str, source: ReaderLike) -> Reader:
    """Make a Reader of what a user gives as one.

    Args:
      caller: the public function that was called, for the message.
      source: a Reader, a callable that returns an iterable, or an iterable.

    Raises:
      ArgumentTypeError: it is none of these.
    """
    if isinstance(source, Reader):
        return source
    data_sets.refuse(caller, source, rows=True)
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
    return Source(source)


def is_reader(value: Any) -> bool:
    """Return whether a value can only be meant as a reader: a Reader, a function, an iterator or a loader of torch."""
    is_loader = hasattr(value, "batch_sampler") and hasattr(value, "__iter__")
    return isinstance(value, Reader | Iterator | types.FunctionType) or is_loader


def as_readers(caller: str, sources: Sequence[ReaderLike]) -> list[Reader]:
    """Make Readers of all that a user gives, which must be something.

    Args:
      caller: the public function that was called, for the message.
      sources: what it was given.

    Raises:
      ArgumentError: there is none.
      ArgumentTypeError: one of them is no reader.
    """
    if not sources:
        raise errors.ArgumentError(f"{caller} needs at least one reader, found none; for example {caller}(..., rows)")
    return [as_reader(caller, source) for source in sources]


def exhausted(source: Any) -> errors.ReaderError:
    """The error for an iterator that was handed over as reader and has nothing more to give."""
    return errors.ReaderError(
        f"the reader is exhausted: found that {named(source)} can be iterated once only, expected one that "
        f"starts anew for every pass; hand over a function that returns a new iterator: def rows(): yield ..."
    )


def function(caller: str, value: Any) -> Callable[..., Any]:
    """Check that an argument is a function.

    Args:
      caller: the public function that was called, for the message.
      value: what was given.

    Raises:
      ArgumentTypeError: it cannot be called.
    """
    if not callable(value):
        raise errors.ArgumentTypeError(
            f"{caller} needs a function of a row, found {type(value).__name__} {value!r}; for example "
            f"{caller}(lambda row: row, rows)"
        )
    return value


@contextlib.contextmanager
def opened(readers: list[Reader], epoch: int, start: int) -> Iterator[list[Rows]]:
    """Open the rows of several readers, and close them at the end of the block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(r.iterate(epoch, start))) for r in readers]


def skip(rows: Iterator[Any], count: int) -> None:
    """Read and drop `count` rows."""
    next(itertools.islice(rows, count, count), None)


def increasing(numbers: Any) -> list[int]:
    """Return whole numbers as ints; none if one of them is no whole number, or not larger than the one before it.

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
    """Rows, with ELSEWHERE for those of each `size` rows that are not wanted.

    Example:
      >>> [row is ELSEWHERE for row in marked(iter("abcde"), 2, lambda count: [0])]
      [False, True, False, True, False]
    """
    while block := list(itertools.islice(rows, size)):
        mine = wanted(len(block))
        yield from (row if i in mine else ELSEWHERE for i, row in enumerate(block))


def stages(plan: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the dicts in the plan of a reader, the outermost first. Most readers inside it have one each.

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
    """Return the number of seeded maps in the plan of a reader."""
    return sum("map" in stage and "seed" in stage for stage in stages(plan))


def _changed_files(saved: Any, plan: Any) -> list[str]:
    """The names of the files, as plans of `reader.files` have them, in which two plans differ."""
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
    """A plan for a message: of files, of which there may be thousands, how many there are."""
    if isinstance(plan, list):
        return [_brief(part) for part in plan]
    if not isinstance(plan, Mapping):
        return plan
    return {
        key: f"{len(part)} files" if key == "files" and isinstance(part, Mapping) else _brief(part)
        for key, part in plan.items()
    }


def named(source: Any) -> str:
    """Return a name for an object that a user passed as reader, for messages."""
    return getattr(source, "__qualname__", None) or f"a {type(source).__name__}"
