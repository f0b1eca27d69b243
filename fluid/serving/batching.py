"""Batcher: a bounded queue of requests, and a thread that runs those together that may run together."""

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
    """One request for a model.

    Attributes:
      values: what is fed, by name, checked.
      rows: how many rows it has.
      shape: jobs of the same shape may run together; None for one that runs alone.
      deadline: when nobody waits for it any more, in seconds of `time.monotonic`.
      seed: of its random numbers; None for other numbers than in all jobs before.
      future: its results by name.
      arrived: when it came.
    """

    values: Mapping[str, Any]
    rows: int
    shape: Hashable
    deadline: float
    seed: int | None = None
    future: Future[Values] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class QueueFull(errors.FluidError):
    """There are as many requests waiting as may wait."""


class Closed(errors.FluidError):
    """Nothing runs here any more."""


class Batcher:
    """Runs jobs in a thread of its own, those of one shape together.

    While a batch runs, the next one gathers. An idle model runs a request at once, unless the batch before had several:
    then as many are likely to come again, and it waits for them, `max_delay` at most.

    Args:
      run: computes the results of jobs of one shape, in order.
      max_rows: how many rows run together.
      max_delay: how long a job waits for others, in seconds.
      max_jobs: how many may wait.
      failed: called with an exception of `run`, which the jobs get too.
      choose: called with a shape and how many rows of it wait, `max_rows` at most: how many of them to run next.

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
    ):
        self._run, self._failed, self._choose = run, failed, choose
        self._max_rows = max_rows
        self._max_delay = max_delay
        self._max_jobs = max_jobs
        self._jobs: collections.deque[Job] = collections.deque()
        self._changed = threading.Condition()
        self._rows = 0  # of the jobs that wait
        self._last = 1  # how many jobs ran together last
        self._closed = False
        self._running = threading.Lock()
        self._thread = threading.Thread(target=self._work, name="fluid-batcher", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many jobs wait."""
        return len(self._jobs)

    def submit(self, job: Job) -> None:
        """Let a job wait for its turn.

        Raises:
          QueueFull: there are too many.
          Closed: the batcher is closed.
        """
        with self._changed:
            if self._closed:
                raise Closed("the model is not served any more")
            if len(self._jobs) >= self._max_jobs:
                raise QueueFull("too many requests are waiting")
            self._jobs.append(job)
            self._rows += job.rows
            if len(self._jobs) == 1 or self._is_full():  # nothing else makes a difference to the thread
                self._changed.notify()

    def run_now(self, job: Job) -> bool:
        """Run a job in the calling thread, which saves two switches of threads; whether the model was idle, so that it
        has been run.

        Raises:
          Exception: what `run` raised.
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
        """Forget a job that nobody waits for; one that runs already goes on."""
        with self._changed:
            if job in self._jobs:
                self._jobs.remove(job)
                self._rows -= job.rows
        job.future.cancel()

    def close(self) -> None:
        """Run what waits, and end the thread."""
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
        except Exception as error:  # of the model; whoever asked is told, and the next batch is tried
            self._failed(error)
            for job in jobs:
                if not job.future.done():
                    job.future.set_exception(error)

    def _next(self) -> list[Job] | None:
        """Wait for the next batch, which is empty when nobody waits for it any more; None when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            if not self._jobs:
                return None
            if self._last > 1 and self._max_delay:
                room = self._jobs[0].arrived + self._max_delay - time.monotonic()
                self._changed.wait_for(lambda: self._closed or self._is_full(), max(room, 0))
            return self._take()

    def _is_full(self) -> bool:
        """Whether nobody else is waited for: as many have come as ran together last, or as may run together."""
        return not self._jobs or len(self._jobs) >= self._last or self._rows >= self._max_rows

    def _take(self) -> list[Job]:
        """The first job, and those behind it that may run with it; the others keep their order."""
        now = time.monotonic()
        for job in self._jobs:
            if job.deadline <= now:
                job.future.cancel()
        waiting = [job for job in self._jobs if not job.future.cancelled()]
        taken = waiting[:1]
        left: list[Job] = []
        room = self._room(waiting)
        for job in waiting[1:]:
            fits = job.shape is not None and job.shape == taken[0].shape and job.rows <= room
            (taken if fits else left).append(job)
            room -= job.rows if fits else 0
        self._jobs = collections.deque(left)
        self._rows = sum(job.rows for job in left)
        return taken

    def _room(self, waiting: Sequence[Job]) -> int:
        """How many rows may run with the first job."""
        if not waiting or waiting[0].shape is None:
            return 0
        first = waiting[0]
        rows = sum(job.rows for job in waiting if job.shape == first.shape)
        return self._choose(first.shape, min(rows, self._max_rows)) - first.rows
