"""PaddlePaddle's DataFeeder, PyReader and DataLoader, which convert the user's rows or minibatches to feeds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from fluid import core, errors
from fluid.reader import batch
from fluid.reader.feeder import Feeder
from fluid.static.executor import as_fed, name_of
from fluid.static.tape.program import Program, default_main_program
from fluid.static.tape.variable import Variable, dense_of

# The type of a reader's data source: an iterable, or a function that returns an iterable.
Source = Callable[[], Iterable[Any]] | Iterable[Any]


class DataFeeder:
    """A converter of minibatches, which are lists of rows, to feeds, which are arrays by name.

    Args:
      feed_list: variables or names of feeds, in the order of the fields of a row.
      place: accepted for programs written for Fluid, but has no effect: the Executor chooses the device.
      program: the program that declares the feeds; by default the default main program.

    Raises:
      UnknownNameError: the program declares no feed of a name in `feed_list`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[2])
      ...     y = fluid.layers.data("y", shape=[1], dtype="int64")
      ...     feeder = fluid.DataFeeder(feed_list=[x, y], place=fluid.CPUPlace())
      >>> feeder.feed([([1, 2], 0), ([3, 4], 1)])["y"].tolist()
      [[0], [1]]
    """

    def __init__(self, feed_list: Sequence[Variable | str], place: Any = None, program: Program | None = None):
        del place
        first = next((item for item in feed_list if isinstance(item, Variable)), None)
        found = program or (first.program if first is not None else default_main_program())
        names = [name_of(item) for item in feed_list]
        self._feeder = Feeder({name: _spec(found, name) for name in names}, names)

    def feed(self, iterable: Iterable[Any]) -> dict[str, Any]:
        """Convert a minibatch, which is a list of rows, to a feed: a dict of arrays by name."""
        return self._feeder.feed(list(iterable))

    def feed_parallel(self, iterable: Iterable[Any], num_places: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield a feed for each minibatch in `iterable`; `num_places` has no effect."""
        del num_places
        for minibatch in iterable:
            yield self.feed(minibatch)

    def decorate_reader(
        self,
        reader: Callable[[], Iterable[Any]],
        multi_devices: bool,
        num_places: int | None = None,
        drop_last: bool = True,
    ) -> Callable[[], Iterator[dict[str, Any]]]:
        """Convert a reader of minibatches, which are lists of rows, to a reader of feeds, which are dicts of arrays."""
        del multi_devices, num_places, drop_last
        return lambda: (self.feed(minibatch) for minibatch in reader())


class PyReader:
    """A reader of minibatches, which feeds a program itself, or yields feeds (dicts of arrays) for `Executor.run`.

    Args:
      feed_list: the variables to feed, from `layers.data`.
      capacity: accepted for programs written for Fluid, but has no effect: batches are read while the device works.
      use_double_buffer: accepted for programs written for Fluid, but has no effect, as `capacity`.
      iterable: True for `for feed in reader(): exe.run(feed=feed)`; False for `start` and `reset`.
      return_list: True yields each feed as a list of arrays. False yields a list that contains one dict of arrays.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[1])
      ...     reader = fluid.io.PyReader(feed_list=[x], capacity=4)
      >>> reader.decorate_sample_list_generator(lambda: [[(1.0,), (2.0,)]])
      >>> [feed[0]["x"].tolist() for feed in reader()]
      [[[1.0], [2.0]]]
    """

    def __init__(
        self,
        feed_list: Sequence[Variable],
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ):
        del capacity, use_double_buffer
        self.variables = list(feed_list)
        self.names = [v.name for v in feed_list]
        self._iterable = iterable
        self._return_list = return_list
        rows = {dense_of(v.structs[0]).shape[:1] for v in feed_list if v.follows_batch}
        specs = {v.name: _spec(v.program, v.name) for v in feed_list}
        self._feeder = Feeder(specs, self.names, aligned=len(rows) < 2)
        self._source: Source | None = None
        self._running: Iterator[dict[str, Any]] | None = None
        if not iterable:
            for program in dict.fromkeys(v.program for v in feed_list):
                program.readers.append(self)

    def __call__(self) -> Iterator[Any]:
        """Return an iterator over the minibatches; each minibatch is a feed for `Executor.run`."""
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        for feed in self._feeds():
            yield [feed[name] for name in self.names] if self._return_list else [feed]

    def decorate_sample_list_generator(self, reader: Source, places: Any = None) -> None:
        """Set the data source: an iterable of minibatches (lists of rows), or a function that returns an iterable."""
        del places
        self._source = reader

    def decorate_sample_generator(
        self, sample_generator: Callable[[], Iterable[Any]], batch_size: int, drop_last: bool = True, places: Any = None
    ) -> None:
        """Set the data source: a function that returns an iterable of rows; `batch_size` rows form a minibatch."""
        del places
        self._source = batch(sample_generator, batch_size, drop_last=drop_last)

    def decorate_batch_generator(self, reader: Source, places: Any = None) -> None:
        """Set the data source: an iterable of minibatches (tuples of columns), or a function that returns it."""
        del places

        def columns() -> Iterator[Any]:
            for minibatch in _opened(reader):
                yield minibatch if isinstance(minibatch, dict) else tuple(minibatch)

        self._source = columns

    decorate_paddle_reader = decorate_sample_list_generator
    decorate_tensor_provider = decorate_batch_generator
    set_sample_list_generator = decorate_sample_list_generator
    set_sample_generator = decorate_sample_generator
    set_batch_generator = decorate_batch_generator

    def start(self) -> None:
        """Start feeding the program from the beginning of the data source.

        Raises:
          ProgramError: the reader is running already.
        """
        if self._running is not None:
            raise errors.ProgramError("this reader feeds already; reader.reset() lets it begin again")
        self._running = self._feeds()

    @property
    def queue(self) -> "PyReader":
        """Return the reader itself in place of a queue, for programs that print `reader.queue.size()`."""
        return self

    def size(self) -> int:
        """Return 1 while the reader feeds the program, else 0; in PaddlePaddle, the number of queued minibatches."""
        return int(self._running is not None)

    def reset(self) -> None:
        """Stop feeding the program, so that `start` can begin again."""
        self._running = None

    def read(self) -> dict[str, Any]:
        """Return the feed of the next minibatch.

        Raises:
          EOFException: the data source has no more minibatches.
          ProgramError: `start` was not called.
        """
        if self._running is None:
            raise errors.ProgramError("the program is fed by a reader that was not started; first reader.start()")
        feed = next(self._running, None)
        if feed is None:
            raise errors.EOFException(
                "the reader that feeds the program is at its end; catch fluid.core.EOFException, and reader.reset()"
            )
        return feed

    def _feeds(self) -> Iterator[dict[str, Any]]:
        if self._source is None:
            raise errors.ProgramError("this reader has no data; first reader.decorate_sample_list_generator(rows)")
        for number, minibatch in enumerate(_opened(self._source)):
            yield self._in_other_shapes(minibatch) or self._feeder.feed(minibatch, number)

    def _in_other_shapes(self, minibatch: Any) -> dict[str, Any] | None:
        """Return a minibatch as a dict of columns, if a column differs in shape from the declared feed; else None."""
        if not isinstance(minibatch, tuple) or len(minibatch) != len(self.names):
            return None
        columns = dict(zip(self.names, minibatch, strict=True))
        return columns if any(as_fed(s, columns[n]) is not s for n, s in self._feeder.specs.items()) else None


class DataLoader:
    """A namespace for `DataLoader.from_generator`, which returns a PyReader.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[1])
      ...     loader = fluid.io.DataLoader.from_generator(feed_list=[x], capacity=4)
      >>> loader.set_sample_generator(lambda: [(1.0,), (2.0,), (3.0,)], batch_size=2)
      >>> [feed[0]["x"].tolist() for feed in loader]
      [[[1.0], [2.0]]]
    """

    @staticmethod
    def from_generator(
        feed_list: Sequence[Variable],
        capacity: int | None = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> PyReader:
        """Return a PyReader; arguments as for `PyReader`. `use_multiprocess` and `drop_last` have no effect."""
        del use_multiprocess, drop_last
        return PyReader(feed_list, capacity, use_double_buffer, iterable, return_list)


def _opened(source: Source) -> Iterable[Any]:
    return source() if callable(source) else source


def _spec(program: Program, name: str) -> core.FeedSpec:
    if name not in program.feeds:
        raise errors.UnknownNameError(
            f"no feed is called {name!r}, expected one that layers.data declares. {errors.nearest(name, program.feeds)}"
        )
    return program.feeds[name]
