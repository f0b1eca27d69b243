"""Batcher: a bounded queue of jobs, and a thread that runs jobs of equal shapes as one batch."""

import asyncio
import collections
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from fluid import errors

Values = dict[str, Any]


@dataclass(eq=False)
class Job:
    """One inference request for a model, in the queue of a Batcher.

    Attributes:
      values: checked and padded feeds, by name.
      rows: number of rows.
      shape: jobs of equal shapes may run as one batch; a job of shape None runs alone.
      deadline: the time at which the request gives up waiting for results, in seconds of `time.monotonic`.
      seed: of random numbers; with None, they differ from the numbers of all jobs before.
      future: the results of this job by name, once it has run.
      arrived: the time at which this job was made, in seconds of `time.monotonic`.
      ended: an event for the request that waits; the event loop sets the events of all jobs of a batch in one call.
    """

    values: Mapping[str, Any]
    rows: int
    shape: Hashable
    deadline: float
    seed: int | None = None
    future: Future[Values] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class QueueFull(errors.FluidError):
    """An error of `Batcher.submit`: the limit of waiting jobs is reached."""


class Closed(errors.FluidError):
    """An error of `Batcher.submit`: the Batcher is closed, and runs no more jobs."""


class Batcher:
    """A bounded queue of jobs, and a thread that runs jobs of equal shapes as one batch.

    While a batch runs, new jobs gather for the next batch. An idle Batcher runs a job at once, unless the last batch
    had several jobs. Then the same number is likely to come again, and the Batcher waits for them, at most `max_delay`
    seconds.

    Args:
      run: called with jobs of equal shapes; returns the results of each job, in the order of the jobs.
      max_rows: most rows of a batch.
      max_delay: most seconds that a job waits for other jobs.
      max_jobs: most jobs that wait in the queue.
      failed: called with an exception that `run` raises; the futures of its jobs get the exception too.
      choose: called with a shape and the number of its waiting rows, `max_rows` at most; returns how many of these
        rows to run next.
      finished: called with the jobs of a batch that has ended.

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
        self._rows = 0  # number of rows of all waiting jobs
        self._last = 1  # number of jobs in the last batch
        self._closed = False
        self._running = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="fluid-batcher", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Number of jobs that wait in the queue."""
        return len(self._jobs)

    def submit(self, job: Job) -> None:
        """Add a job to the queue.

        Raises:
          QueueFull: the queue has `max_jobs` jobs.
          Closed: this Batcher is closed.
        """
        with self._changed:
            if self._closed:
                raise Closed("the model is not served any more")
            if len(self._jobs) >= self._max_jobs:
                raise QueueFull("too many requests are waiting")
            self._jobs.append(job)
            self._rows += job.rows
            if len(self._jobs) == 1 or self._is_full():  # any other job would not end the wait of the thread
                self._changed.notify()

    def run_now(self, job: Job) -> bool:
        """Run a job in the calling thread if the Batcher is idle; this saves two switches between threads.

        Returns:
          Whether the job has run.

        Raises:
          Exception: the exception of `run`.
        """
        if self._jobs or self._last > 1 or self._closed or not self._running.acquire(blocking=False):
            return False
        try:
            job.future.set_result(self._run([job])[0])
            return True
        except Exception as error:
            self._failed(error)
            raise
        finally:
            self._running.release()

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
        self._thread.join()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            running = [job for job in batch if job.future.set_running_or_notify_cancel()]
            self._last = max(len(running), 1)
            if running:
                self._answer(running)

    def _answer(self, jobs: Sequence[Job]) -> None:
        try:
            with self._running:
                results = self._run(jobs)
            for job, values in zip(jobs, results, strict=True):
                job.future.set_result(values)
        except Exception as error:  # the model failed on this batch, and the next batch may succeed
            self._failed(error)
            for job in jobs:
                if not job.future.done():
                    job.future.set_exception(error)
        self._finished(jobs)

    def _next(self) -> list[Job] | None:
        """Wait for the next batch and return its jobs, or an empty list when all were cancelled.

        Return None when the Batcher is closed and no job waits.
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
        """Return whether the next batch need not wait for more jobs.

        It has as many jobs as the last batch, or `max_rows` rows, or all jobs were cancelled.
        """
        return not self._jobs or len(self._jobs) >= self._last or self._rows >= self._max_rows

    def _take(self) -> list[Job]:
        """Remove and return the first job and the jobs of its shape that fit into one batch; others keep their order.

        Jobs beyond their deadline are cancelled.
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
        """Return the most rows for a batch that begins with the first of the waiting jobs; 0 if that job runs alone."""
        if not waiting or waiting[0].shape is None:
            return 0
        rows = sum(job.rows for job in waiting if job.shape == waiting[0].shape)
        return self._choose(waiting[0].shape, min(rows, self._max_rows))
