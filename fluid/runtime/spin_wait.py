"""Soon: the results of short calls on a CPU, without the time in which a sleeping thread wakes up."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any

_SHORT = 5e-4  # seconds that a call takes at most whose results are asked for again and again
_APART = 0.1  # seconds in which nobody asks so after two threads called at the same time

# To other threads, of Python too; not every system has it. On one core, asking only keeps it from computing.
_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
_give_way: Callable[[], None] | None = None if _CORES == 1 else getattr(os, "sched_yield", None)


class Threads:
    """Which threads wait for results at the same time.

    Attributes:
      first: held by the thread that came first.
      met: when the last one came beside it, in seconds of the clock.
    """

    def __init__(self) -> None:
        self.first = threading.Lock()
        self.met = float("-inf")


_THREADS = Threads()  # those of all models share the cores


def soon(
    run: Callable[..., Any],
    fetch: Callable[[Any], Any],
    clock: Callable[[], float] = time.perf_counter,
    give_way: Callable[[], None] | None = _give_way,
    threads: Threads = _THREADS,
) -> Callable[..., Any]:
    """A function that starts work on a CPU and fetches its results, in little more time than the work takes.

    A thread that sleeps until the device is done wakes up late, by about as long as a small net computes. One that asks
    again and again has the results at once, but takes a core, which a larger net or another thread can use. So results
    are asked for only if the call before was short, and if no two threads called at the same time within the last tenth
    of a second.

    Args:
      run: starts one call on the device, and does not wait for it; returns an object with an attribute `values`, the
        arrays that the call computes.
      fetch: takes that object, and waits for the arrays where they are not there; what it returns is returned.
      clock: seconds.
      give_way: lets other threads run; None where a system has no way to, or one core: then nothing is asked for.
      threads: those that wait.

    Example:
      >>> import jax, types
      >>> compiled = jax.jit(lambda x: 2 * x)
      >>> double = soon(lambda x: types.SimpleNamespace(values=[compiled(x)]), lambda found: found.values[0].item())
      >>> double(1.5)
      3.0
    """
    if give_way is None:
        return lambda *arguments: fetch(run(*arguments))
    short = False

    def call(*arguments: Any) -> Any:
        nonlocal short
        found = run(*arguments)
        begin = clock()
        end = begin + _SHORT
        alone = threads.first.acquire(blocking=False)
        try:
            if not alone:
                threads.met = begin
            if short and begin - threads.met > _APART:
                is_ready = found.values[0].is_ready
                while not is_ready() and clock() < end:
                    give_way()
            results = fetch(found)
        finally:
            if alone:
                threads.first.release()
        short = clock() < end
        return results

    return call
