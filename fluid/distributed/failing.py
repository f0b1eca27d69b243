"""Failures: when one process fails, all processes end, instead of waiting for that process at the next step."""

import atexit
import os
import sys
import threading
import time
from types import TracebackType

from fluid.distributed.group import Group

# Seconds between two checks for a failure of another process.
_INTERVAL = 0.5
_FAILED = "failed"


def end_together(group: Group) -> None:
    """Make processes fail together: an uncaught exception in one process terminates all of them."""
    done = threading.Event()
    atexit.register(done.set)
    threading.Thread(target=_watch, args=(group, done), name="fluid-failures", daemon=True).start()
    usual = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        usual(kind, error, traceback)
        if issubclass(kind, Exception):
            fail(group, f"{kind.__name__}: {error}", 1)

    sys.excepthook = tell


def fail(group: Group, reason: str, status: int) -> None:
    """End this process and all others.

    The normal exit of the interpreter is skipped: it waits for the other processes, which wait for this one.

    Args:
      group: the group of this process.
      reason: the reason, which the other processes print.
      status: exit status.
    """
    first = reason.strip().partition("\n")[0][:500]
    group.announce(_FAILED, f"{group!r} has failed: {first}")
    # The coordination service ends with process 0, so process 0 waits until the others have read the announcement.
    if group.is_first:
        time.sleep(3 * _INTERVAL)
    _end_now(status)


def _watch(group: Group, done: threading.Event) -> None:
    while not done.wait(_INTERVAL):
        reason = group.told(_FAILED)
        if reason is not None and not reason.startswith(f"{group!r} "):
            print(f"fluid: {reason}; so {group!r} ends as well", file=sys.stderr)
            _end_now(1)


def _end_now(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
