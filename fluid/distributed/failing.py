"""A process that fails takes the others with it: they would wait for it at the next step."""

import atexit
import os
import sys
import threading
import time
from types import TracebackType

from fluid.distributed.group import Group

# Seconds between two looks at whether another process has failed.
_INTERVAL = 0.5
_FAILED = "failed"


def end_together(group: Group) -> None:
    """From now on end with the others: an exception that nobody catches ends them, and theirs end this process."""
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

    The usual end of an interpreter waits for them, while they wait for this one, so it is left out.

    Args:
      group: of this process.
      reason: why, for the others to say.
      status: exit status.
    """
    first = reason.strip().partition("\n")[0][:500]
    group.announce(_FAILED, f"{group!r} has failed: {first}")
    if group.is_first:  # who carries the announcement; it must be heard before
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
