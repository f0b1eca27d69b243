"""Dynamic batching: a bounded queue of inference requests, whose thread runs requests of equal shapes as one batch."""

import asyncio
import collections
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.core import TEST, FeedSpec, NestedSequenceBatch, Program, SequenceBatch
from fluid.reader.columns import batch_size, read_feed
from fluid.reader.ragged import Sizes, padded, sizes_of
from fluid.runtime import Request, Session
from fluid.runtime.compiled_step import bind
from fluid.runtime.prediction import mixing_text
from fluid.runtime.seeds import Draw, Seeds
from fluid.serving.protocol import MessageTensor, ModelOutput, Signature, count_numbers, json_size
from fluid.serving.settings import Settings

Values = dict[str, Any]


@dataclass(eq=False)
class Job:
    """One inference request for a model, in the queue of a Batcher.

    Attributes:
      values: checked and padded feeds, by name.
      rows: the number of rows in the feeds.
      shape: jobs of equal shapes may run as one batch; a job of shape None runs alone.
      deadline: the time at which the request stops waiting for results, in seconds of `time.monotonic`.
      seed: the seed of random numbers; with None, the numbers differ from the numbers of all earlier jobs.
      key: the key of the padded shapes of the feeds, which `max_shapes` counts when the job runs.
      future: a Future of the results of this job by name.
      arrived: the time at which this job was created, in seconds of `time.monotonic`.
      ended: an event for which the request waits; the event loop sets the events of all jobs of a batch in one call.
    """

    values: Mapping[str, Any]
    rows: int
    shape: Hashable
    deadline: float
    seed: int | None = None
    key: Hashable = None
    future: Future[Values] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class QueueFull(errors.FluidError):
    """An error of `Batcher.submit`: the queue already has its maximum number of jobs."""


class Closed(errors.FluidError):
    """An error of `Batcher.submit`: the Batcher is closed and accepts no more jobs."""


class Batcher:
    """A bounded queue of jobs, and a thread that runs jobs of equal shapes as one batch.

    While a batch runs, new jobs wait for the next batch. An idle Batcher runs a job immediately, unless the last batch
    had several jobs. Then an equal number of jobs will probably come again, and the Batcher waits for them, for at most
    `max_delay` seconds.

    Args:
      max_delay: the maximum time, in seconds, that a job waits for other jobs.
      choose: a function of a shape, and of the number of waiting rows with this shape (at most `max_rows`); it returns
        the number of these rows to run next.

    Example:
      >>> batcher = Batcher(lambda jobs: [{"y": job.values["x"] + 1} for job in jobs], max_rows=8)
      >>> job = Job({"x": 1}, rows=1, shape="any", deadline=time.monotonic() + 10)
      >>> batcher.submit(job)
      >>> job.future.result()
      {'y': 2}
      >>> batcher.close()
    """

    def __init__(
        self,
        run: Callable[[Sequence[Job]], list[Values]],
        max_rows: int,
        max_delay: float = 0.0,
        max_jobs: int = 256,
        failed: Callable[[Exception], None] = lambda error: None,
        choose: Callable[[Hashable, int], int] = lambda shape, rows: rows,
        finished: Callable[[Sequence[Job]], object] = lambda jobs: None,
    ):
        self._run, self._failed, self._choose, self._finished = run, failed, choose, finished
        self._max_rows = max_rows
        self._max_delay = max_delay
        self._max_jobs = max_jobs
        self._jobs: collections.deque[Job] = collections.deque()
        self._changed = threading.Condition()
        self._rows = 0  # the total number of rows in all waiting jobs (inference requests)
        self._last = 1  # the number of jobs (inference requests) in the last batch
        self._closed = False
        self._thread: threading.Thread | None = None  # starts with the first job: a Batcher without jobs needs no close

    @property
    def waiting(self) -> int:
        """The number of jobs that wait in the queue."""
        return len(self._jobs)

    def submit(self, job: Job) -> None:
        """Add a job to the queue.

        Raises:
          QueueFull: the queue already has `max_jobs` jobs.
          Closed: this Batcher is closed.
        """
        with self._changed:
            if self._closed:
                raise Closed("the model is not served any more")
            if len(self._jobs) >= self._max_jobs:
                raise QueueFull("too many requests are waiting")
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="fluid-batcher", daemon=True)
                thread.start()
                self._thread = thread
            self._jobs.append(job)
            self._rows += job.rows
            # Notify the thread of the Batcher only if it can stop waiting: for the first job, or for a full batch.
            if len(self._jobs) == 1 or self._is_full():
                self._changed.notify()

    def cancel(self, job: Job) -> None:
        """Remove a job from the queue and cancel its future; a job that already runs continues."""
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
                self._rows -= job.rows
        job.future.cancel()

    def close(self) -> None:
        """Run all waiting jobs, and end the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            running = [job for job in batch if job.future.set_running_or_notify_cancel()]
            self._last = max(len(running), 1)
            if running:
                self._answer(running)

    def _answer(self, jobs: Sequence[Job]) -> None:
        try:
            results = self._run(jobs)
            for job, values in zip(jobs, results, strict=True):
                job.future.set_result(values)
        # Only the jobs of this batch get the exception. The thread goes on, because the model may succeed on the next
        # batch.
        except Exception as error:
            self._failed(error)
            for job in jobs:
                if not job.future.done():
                    job.future.set_exception(error)
        self._finished(jobs)

    def _next(self) -> list[Job] | None:
        """Wait for the next batch and return its jobs.

        Return an empty list if all waiting jobs were cancelled, and None if the Batcher is closed and the queue is
        empty.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return None
            if self._last > 1 and self._max_delay:
                seconds = self._jobs[0].arrived + self._max_delay - time.monotonic()
                self._changed.wait_for(lambda: self._closed or self._is_full(), max(seconds, 0))
            return self._take()

    def _is_full(self) -> bool:
        """Return whether the next batch can start without waiting for more jobs.

        This is the case if the queue has as many jobs as the last batch, or `max_rows` rows, or no jobs because all
        were cancelled.
        """
        return not self._jobs or len(self._jobs) >= self._last or self._rows >= self._max_rows

    def _take(self) -> list[Job]:
        """Remove the jobs (inference requests) of the next batch from the queue, and return these jobs.

        They are the first job, and later jobs of its shape as long as their rows fit into the batch. The other jobs
        keep their order. Jobs after their deadline are cancelled.
        """
        now = time.monotonic()
        for job in self._jobs:
            if job.deadline <= now:
                job.future.cancel()
        waiting = [job for job in self._jobs if not job.future.cancelled()]
        taken, left = waiting[:1], []
        rows = self._batch_rows(waiting) - sum(job.rows for job in taken)
        for job in waiting[1:]:
            if job.shape is not None and job.shape == taken[0].shape and job.rows <= rows:
                taken.append(job)
                rows -= job.rows
            else:
                left.append(job)
        self._jobs = collections.deque(left)
        self._rows = sum(job.rows for job in left)
        return taken

    def _batch_rows(self, waiting: Sequence[Job]) -> int:
        """Return the maximum number of rows of the batch that begins with the first waiting job (inference request).

        The result is 0 if no job waits, or if the first job runs alone.
        """
        if not waiting or waiting[0].shape is None:
            return 0
        rows = sum(job.rows for job in waiting if job.shape == waiting[0].shape)
        return self._choose(waiting[0].shape, min(rows, self._max_rows))


LOG = logging.getLogger("fluid.serving")
Rung = Mapping[str, Sizes]
"""The number of time steps to which sequences are padded, for each feed; two numbers for nested sequences."""
_LEVELS = {SequenceBatch: 1, NestedSequenceBatch: 2}


class CompiledSizes:
    """The sizes for which a model is compiled: numbers of rows, and padded lengths of sequences, called rungs.

    A rung holds, for each feed, the number of time steps to which the sequences of one batch are padded.

    Attributes:
      rows: numbers of rows, in increasing order.
      rungs: the rungs, in increasing order of time steps.
    """

    def __init__(self, program: Program, settings: Settings):
        self._specs = {name: spec for name, spec in program.feeds.items() if spec.lod_level}
        self.rows = _exported_rows(program, settings) or settings.sizes()
        self.rungs = _rungs(self._specs, program.buckets or {}, settings)
        self._open = [n for n, s in program.feeds.items() if None in s.shape[1:] or s.shape[:1] != (None,)]

    def rung(self, values: Mapping[str, Any]) -> int:
        """Return the index in `rungs` (lists of padded lengths) of the shortest lengths that hold all sequences.

        Raises:
          FeedError: a sequence is longer than the largest padded length.
        """
        needs = {name: found for name in self._specs if (found := sizes_of(values[name])) is not None}
        for index, rung in enumerate(self.rungs):
            if all(need <= most for name in needs for need, most in zip(needs[name], rung[name], strict=True)):
                return index
        last = self.rungs[-1]
        name = next(n for n in needs if any(need > most for need, most in zip(needs[n], last[n], strict=True)))
        raise errors.FeedError(
            f"feed {name!r}: found a row of {' x '.join(map(str, needs[name]))} steps, expected at most "
            f"{' x '.join(map(str, last[name]))}; cut longer ones, or serve the model with larger buckets: --buckets"
        )

    def key(self, rung: int, values: Mapping[str, Any]) -> Hashable:
        """Return a key for the padded feeds of a request; requests with equal keys may run as one batch."""
        return (rung, *(values[name].shape[1:] for name in self._open))

    def padded_rows(self, rows: int) -> int:
        """Return the compiled number of rows to which a batch of `rows` rows is padded."""
        return next((size for size in self.rows if size >= rows), rows)

    def padded(self, rung: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Pad the sequences in the feeds `values` to the compiled lengths `rungs[rung]`, and return the feeds."""
        return {n: padded(v, self.rungs[rung][n]) if n in self._specs else v for n, v in values.items()}


class Runner:
    """A compiled model that runs the rows of several requests as one batch.

    Attributes:
      signature: the feeds and outputs of the model; the outputs are known after `warm_up`.
      together: True if a batch may have rows of several requests.
    """

    def __init__(self, session: Session, program: Program, settings: Settings, name: str, seeds: Seeds | None = None):
        self.session = session
        self._seeds = seeds or Seeds("serve")
        self._step = bind(session.engine, program, Request(TEST, None, tuple(program.feeds)))
        site = f"the model {name}"
        # The declarations of the feeds. `site`, a source line in error messages, is replaced by the name of the model:
        # clients must not see paths of the server.
        self._specs = {
            n: FeedSpec(n, s.shape, s.dtype, s.lod_level, limits=s.limits, bounds=s.bounds, site=site)
            for n, s in program.feeds.items()
        }
        self._program, self._settings = program, settings
        self._shapes = CompiledSizes(program, settings)
        self._names = _names_of(program)
        # for each key that runs: the rows and the result sizes of its first batch; None until this batch has run
        self._keys: dict[Any, tuple[int, dict[str, tuple[int, int]]] | None] = {}
        self._warm = 0
        self._seconds: dict[tuple[Any, int], float] = {}
        named = program.output_names is not None
        self.signature = Signature(self._specs, (), named, program.draws, program.table)
        line = program.mixing() if self._has_rows() else None
        if line is not None:
            LOG.warning("%s", mixing_text(program, line))
        has_rows = all(output.shape[:1] == (None,) for output in program.outputs)
        self._padded = self._has_rows() and has_rows and line is None
        # a model that draws random numbers runs each request alone, because all rows of a batch share one random key
        self.together = self._padded and not program.draws
        self._name = name
        self._warned = False  # True after a warning about a seed for a model that draws no random numbers

    @property
    def max_rows(self) -> int:
        """The maximum number of rows in a batch."""
        return self._shapes.rows[-1]

    @property
    def compilations(self) -> int:
        """The number of compilations of the model so far."""
        return self._step.compiled

    def warm_up(self) -> None:
        """Compile the model for every size and time it, on random feeds; then set `signature`."""
        random = np.random.default_rng(0)
        sizes = self._shapes.rows if self._has_rows() else (1,)
        for index, rung in enumerate(self._shapes.rungs):
            for size in sizes:
                feeds = random_feeds(self._specs, size, rung, random)
                key = self._key(index, feeds, size)
                values = self._run(feeds)
                self._keys[key] = size, answer_sizes(dict(zip(self._names, values, strict=True)))
                self._seconds[key, size] = min(self._timed(feeds) for _ in range(3))
        self.signature = replace(self.signature, outputs=self._outputs(values))
        self._warm = len(self._keys)

    def job(self, values: Mapping[str, Any], timeout: float, seed: int | None = None) -> Job:
        """Check the feeds of a request, pad their sequences to a compiled size, and return a job with these feeds.

        Args:
          timeout: the number of seconds until the deadline of the job.

        Raises:
          FeedError: a feed is missing, does not fit its declaration, or has too many rows or time steps.
        """
        missing = [name for name in self._specs if name not in values]
        if missing:
            raise errors.FeedError(
                f"the inputs {', '.join(map(repr, missing))} are missing; expected {', '.join(map(repr, self._specs))}"
            )
        if seed is not None and not self._program.draws and not self._warned:
            self._warned = True
            LOG.warning("a request for the model %s has a seed, and its answers are the same with any", self._name)
        if self._has_rows():
            # check the number of rows before `read_feed`, which takes time for each row
            self._check_most(max(map(_count, values.values())))
        checked = {name: read_feed(spec, values[name]) for name, spec in self._specs.items()}
        rung = self._shapes.rung(checked)
        rows = batch_size(checked) if self._has_rows() else 1
        self._check_rows(rows)
        checked = self._shapes.padded(rung, checked)
        key = self._key(rung, checked, rows)
        self._check_key(key)
        return Job(checked, rows, key if self.together else None, time.monotonic() + timeout, seed, key)

    def answer_sizes(self, job: Job) -> dict[str, tuple[int, int]] | None:
        """Return the sizes of the results of a job, see the function `answer_sizes`; None if its shape never ran."""
        if (found := self._keys.get(job.key)) is None:
            return None
        rows, sizes = found
        return {name: (binary * job.rows // rows, text * job.rows // rows) for name, (binary, text) in sizes.items()}

    def encoded(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Convert the raw rows of a request to feeds, by the table of the model.

        Raises:
          FeedError: the model has no table, there are too many rows, or a row lacks a column or has an invalid value.
        """
        table = self.signature.table
        if table is None:
            raise errors.FeedError(
                f'found "rows", but this model has no table of raw rows; send tensors of '
                f'{", ".join(map(repr, self._specs))} as "inputs"'
            )
        self._check_most(len(rows))
        names = (*table.numbers, *table.categories)
        for number, row in enumerate(rows):
            if lacking := [name for name in names if name not in row]:
                raise errors.FeedError(
                    f"row {number} has no {lacking[0]!r}, expected {', '.join(map(repr, names))}; null stands for a "
                    f"missing value"
                )
        feeds = table({name: [row[name] for row in rows] for name in names})
        return {name: array for name, array in feeds.items() if name in self._specs}

    def check_sizes(self, tensors: Sequence[MessageTensor]) -> None:
        """Check that tensors in the form of nested lists have no more numbers than the largest batch.

        This check comes before the conversion of lists to arrays, during which no other thread runs.

        Raises:
          FeedError: a list has more numbers than the largest batch.
        """
        for tensor in tensors:
            spec = self._specs.get(tensor.name)
            if spec is None or not isinstance(tensor.data, list) or None in spec.shape[1:]:
                continue
            most = (
                self.max_rows
                * math.prod(self._shapes.rungs[-1].get(spec.name, ()))
                * math.prod(size or 1 for size in spec.shape[1:])
            )
            if (found := count_numbers(tensor.data)) > most:
                raise errors.FeedError(
                    f"feed {spec.name!r}: found {found} numbers, expected at most {most}, {self.max_rows} rows of the "
                    f"longest; send them in several requests, or serve the model with larger buckets: --buckets"
                )

    def choose(self, key: Hashable, rows: int) -> int:
        """Return the number of waiting rows to run next: all `rows` with padding, or fewer rows without padding.

        The result is the number with the least time per row, as measured for each size after its compilation. If
        arithmetic dominates the time of the model, padding takes as long as other rows. If reading the parameters
        dominates, padding takes no time.
        """
        more = self._shapes.padded_rows(rows)
        fewer = max((size for size in self._shapes.rows if size <= rows), default=more)
        if more == fewer or (key, more) not in self._seconds:
            return rows
        return rows if self._seconds[key, more] / rows <= self._seconds[key, fewer] / fewer else fewer

    def run(self, jobs: Sequence[Job]) -> list[Values]:
        """Run jobs of equal shapes as one batch; return the results of each job by name.

        Raises:
          FeedError: the shapes are new, and other jobs have used up `max_shapes` since `job` has checked it.
        """
        self._check_key(jobs[0].key)
        self._keys.setdefault(jobs[0].key, None)
        draw = self._draw(jobs[0].seed) if self._program.draws else None
        rows = sum(job.rows for job in jobs)
        size = self._shapes.padded_rows(rows)
        alone = not self._padded or (len(jobs) == 1 and rows == size)
        found = self._run(jobs[0].values if alone else joined([job.values for job in jobs], size), draw)
        values = dict(zip(self._names, found, strict=True))
        if self._keys[jobs[0].key] is None:
            self._keys[jobs[0].key] = rows if alone else size, answer_sizes(values)
        if alone:
            return [values]
        ends = itertools.accumulate(job.rows for job in jobs)
        return [
            {name: rows_of(value, end - job.rows, end) for name, value in values.items()}
            for job, end in zip(jobs, ends, strict=True)
        ]

    def _run(self, feeds: Mapping[str, Any], draw: Draw | None = None) -> list[Any]:
        # `jax.tree.map` is not used for a single array, because it takes longer than copying a small array.
        return [
            np.asarray(value) if isinstance(value, jax.Array) else jax.tree.map(np.asarray, value)
            for value in self._step(feeds, draw=draw).values
        ]

    def _draw(self, seed: int | None) -> Draw | None:
        return self.session.engine.draw(self._seeds.next() if seed is None else seed)

    def _timed(self, feeds: Mapping[str, Any]) -> float:
        start = time.perf_counter()
        self._run(feeds)
        return time.perf_counter() - start

    def _has_rows(self) -> bool:
        specs = self._specs.values()
        return bool(specs) and all(spec.shape[:1] == (None,) for spec in specs)

    def _check_most(self, rows: int) -> None:
        if rows > self.max_rows:
            raise errors.FeedError(
                f"found {rows} rows, expected at most {self.max_rows}; send them in several requests"
            )

    def _check_rows(self, rows: int) -> None:
        self._check_most(rows)
        sizes = self._program.batch_sizes
        if not self._padded and sizes is not None and rows not in sizes:
            raise errors.FeedError(
                f"found {rows} rows, expected one of {', '.join(map(str, sizes))}: this model was exported for these "
                f"numbers, and its rows depend on each other, so that none can be added"
            )

    def _key(self, rung: int, values: Mapping[str, Any], rows: int) -> Hashable:
        key = self._shapes.key(rung, values)
        return key if self._padded else (key, rows)

    def _check_key(self, key: Any) -> None:
        """Raise FeedError if the feed shapes `key` need more compilations than `max_shapes` allows.

        Only `run` adds a key, because a request may still be refused after this check. A Batcher runs one batch at a
        time, so `run` needs no lock.
        """
        if key not in self._keys and len(self._keys) - self._warm >= self._settings.max_shapes:
            raise errors.FeedError(
                f"no more than {self._settings.max_shapes} shapes are compiled for inputs whose sizes are not "
                f"fixed, and this would be another one; pad the inputs, or serve the model with a larger max_shapes"
            )

    def _outputs(self, values: Sequence[Any]) -> list[ModelOutput]:
        found = []
        for name, array, value in zip(self._names, self._program.outputs, values, strict=True):
            level = _LEVELS.get(type(value), 0)
            shape = (*array.shape[:1], *array.shape[1 + level :])
            found.append(ModelOutput(name, shape, str(np.dtype(value.dtype)), level))
        return found


def answer_sizes(values: Values) -> dict[str, tuple[int, int]]:
    """Return the sizes of results by name: the bytes of their numbers, and the maximum bytes of these in JSON.

    Example:
      >>> answer_sizes({"y": np.ones((2, 3), "float32")})
      {'y': (24, 150)}
    """
    leaves = {name: jax.tree.leaves(value) for name, value in values.items()}
    return {
        name: (sum(a.nbytes for a in arrays), sum(a.size * json_size(a.dtype) for a in arrays))
        for name, arrays in leaves.items()
    }


def _count(value: Any) -> int:
    data = value.data if isinstance(value, SequenceBatch | NestedSequenceBatch) else value
    return len(data) if isinstance(data, list) or np.ndim(data) else 0


def _names_of(program: Program) -> list[str]:
    if program.output_names is not None:
        return list(program.output_names)
    return [f"output_{i}" for i in range(len(program.outputs))]


def joined(parts: Sequence[Mapping[str, Any]], rows: int) -> dict[str, Any]:
    """Concatenate the feeds of several requests, and pad them to `rows` rows with copies of the last row.

    Padding with zeros is not used, because zeros could be invalid values for the model.
    """
    return {name: _joined([part[name] for part in parts], rows) for name in parts[0]}


def rows_of(value: Any, start: int, end: int) -> Any:
    """Return the rows of one request, `start` to `end - 1`, from the result (array or sequences) of a batch."""
    if isinstance(value, SequenceBatch):
        return SequenceBatch(value.data[start:end], value.lengths[start:end])
    if isinstance(value, NestedSequenceBatch):
        return NestedSequenceBatch(value.data[start:end], value.lengths[start:end], value.inner_lengths[start:end])
    return value[start:end]


def random_feeds(specs: Mapping[str, FeedSpec], rows: int, rung: Rung, random: np.random.Generator) -> dict[str, Any]:
    """Return random feeds of `rows` rows for the feeds of a model.

    Each unknown size in `specs`, the declarations of the feeds, becomes 1. All sequences of a feed have the length that
    `rung` holds under its name.
    """
    return {name: _random_feed(spec, rows, rung.get(name, ()), random) for name, spec in specs.items()}


def _random_feed(spec: FeedSpec, rows: int, steps: Sizes, random: np.random.Generator) -> Any:
    sizes = [1 if size is None else size for size in spec.shape]
    shape = (rows, *steps, *sizes[1:]) if spec.shape[:1] == (None,) else tuple(sizes)
    if spec.held.kind in "iub":
        low, high, _ = spec.limits_for(rows) or (0, 2, None)
        data = random.integers(low, high, shape).astype(spec.held)
    else:
        data = random.normal(size=shape).astype(spec.held)
    if not steps:
        return data
    lengths = np.full(rows, steps[0], np.int32)
    if len(steps) == 1:
        return SequenceBatch(data, lengths)
    return NestedSequenceBatch(data, lengths, np.full((rows, steps[0]), steps[1], np.int32))


def _joined(values: Sequence[Any], rows: int) -> Any:
    first = values[0]
    if isinstance(first, SequenceBatch):
        return SequenceBatch(_joined([v.data for v in values], rows), _joined([v.lengths for v in values], rows))
    if isinstance(first, NestedSequenceBatch):
        parts = ([v.data for v in values], [v.lengths for v in values], [v.inner_lengths for v in values])
        return NestedSequenceBatch(*(_joined(part, rows) for part in parts))
    missing = rows - sum(len(value) for value in values)
    if missing:
        values = [*values, np.repeat(values[-1][-1:], missing, axis=0)]
    return values[0] if len(values) == 1 else np.concatenate(values)


def _exported_rows(program: Program, settings: Settings) -> tuple[int, ...]:
    """Return the numbers of rows for which a model was exported, without numbers above the setting `max_batch`.

    If all numbers are above `max_batch`, return the smallest. Return an empty tuple for a model that accepts any number
    of rows.
    """
    found = program.batch_sizes or ()
    return tuple(size for size in found if size <= settings.sizes()[-1]) or tuple(found[:1])


def _rungs(specs: Mapping[str, FeedSpec], exported: Mapping[str, Any], settings: Settings) -> list[Rung]:
    if not specs:
        return [{}]
    ladders = {name: list(_ladder(spec, exported.get(name), settings)) for name, spec in specs.items()}
    count = max(map(len, ladders.values()))
    return [{name: ladder[min(i, len(ladder) - 1)] for name, ladder in ladders.items()} for i in range(count)]


def _ladder(spec: FeedSpec, exported: Any, settings: Settings) -> Iterator[Sizes]:
    if spec.lod_level == 1:
        yield from ((size,) for size in exported or settings.buckets)
        return
    outer, inner = exported or (settings.outer(), settings.buckets)
    for i in range(max(len(outer), len(inner))):
        yield outer[min(i, len(outer) - 1)], inner[min(i, len(inner) - 1)]
