"""The function `initialize`, with which a process joins the other processes of a training.

If a process is absent or has a wrong index, JAX's coordination service kills the others by a signal. So all processes
first connect to process 0 at the address of the service, and wait for its answer; a problem then raises an exception.
When one process fails later, all processes end, instead of waiting for that process at the next step.
"""

import atexit
import contextlib
import json
import logging
import os
import platform
import socket
import sys
import threading
import time
import warnings
from types import TracebackType
from typing import Any

import jax
import jaxlib.version
import numpy as np

from fluid import errors
from fluid.distributed.cluster import TIMEOUT, Membership, membership
from fluid.distributed.group import Group, group, join

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
    """End this process at once, and make all other processes of the training end.

    The normal exit of Python is skipped, because it would wait for the other processes, which wait for this one.
    """
    first = reason.strip().partition("\n")[0][:500]
    group.announce(_FAILED, f"{group!r} has failed: {first}")
    # The coordination service ends with process 0, so process 0 waits until the other processes have read the reason.
    if group.is_first:
        time.sleep(3 * _INTERVAL)
    _end_now(status)


def _watch(group: Group, done: threading.Event) -> None:
    while not done.wait(_INTERVAL):
        reason = group.announced(_FAILED)
        if reason is not None and not reason.startswith(f"{group!r} "):
            print(f"fluid: {reason}; so {group!r} ends as well", file=sys.stderr)
            _end_now(1)


def _end_now(status: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


_LONGEST = 4096  # maximum number of bytes of a process's first message to process 0
# number of seconds by which the other processes wait longer than process 0, so that process 0 can report absent
# processes
_LONGER = 5.0


def meet(place: Membership, described: dict[str, Any], timeout: float) -> None:
    """Wait until all processes have connected to process 0, and check that they have equal settings.

    Args:
      timeout: seconds for which this process waits for the others.

    Raises:
      DistributedError: a process is absent, two processes have one index, or the processes differ.
    """
    host, _, port = place.coordinator.rpartition(":")
    greeting = {"processes": place.processes, **described}
    deadline = time.monotonic() + timeout
    if place.process == 0:
        _receive_all(place, greeting, int(port), deadline)
    else:
        _greet(place, greeting, (host, int(port)), deadline)


def loopback(coordinator: str) -> bool:
    """Return True if an address is reachable only from this machine."""
    return coordinator.rpartition(":")[0] in ("127.0.0.1", "localhost", "[::1]")


def _receive_all(place: Membership, greeting: dict[str, Any], port: int, deadline: float) -> None:
    """Receive and check, as process 0, the first message of each other process; then answer all of them."""
    address = ("127.0.0.1" if loopback(place.coordinator) else "", port)
    try:
        listener = socket.create_server(address, backlog=place.processes)
    except OSError as error:
        raise errors.DistributedError(
            f"process 0 cannot listen at {place.coordinator}: {error.strerror}; another program uses that port, choose "
            f"a free one"
        ) from error
    heard: dict[int, Any] = {}
    problem: str | None = None
    with listener, contextlib.ExitStack() as open_until_answered:
        while len(heard) < place.processes - 1 and problem is None:
            listener.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                absent = [str(i) for i in range(1, place.processes) if i not in heard]
                problem = f"process {', '.join(absent)} of {place.processes} did not come in time"
                break
            open_until_answered.enter_context(connection)
            found = _read(connection)
            if found is None:  # the sender is not fluid, for example a port scanner
                continue
            process, theirs = found
            problem = _flaw(process, theirs, greeting, heard)
            heard[process] = connection
        for connection in heard.values():
            _send(connection, problem)
    if problem is not None:
        raise errors.DistributedError(problem)


def _flaw(process: int, theirs: dict[str, Any], ours: dict[str, Any], heard: dict[int, Any]) -> str | None:
    """Check the first message of a process that joins a training; return an error text, or None.

    The settings must equal the settings of process 0, and no other process may have the same index.
    """
    for name in {**ours, **theirs}:
        if theirs.get(name) != ours.get(name):
            return (
                f"the processes do not belong together: {name} is {ours.get(name)!r} in process 0, and "
                f"{theirs.get(name)!r} in process {process}"
            )
    if process in heard or process == 0:
        return (
            f"two processes say that they are process {process} of {ours['processes']}; each needs a number of its own"
        )
    return None


def _greet(place: Membership, greeting: dict[str, Any], address: tuple[str, int], deadline: float) -> None:
    """Send the index and the settings of this process to process 0, and wait for the answer."""
    reason = "nothing listens there"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection(address, timeout=left) as connection:
                _send(connection, [place.process, greeting])
                connection.settimeout(max(deadline - time.monotonic(), 0) + _LONGER)
                answer = _line(connection)
        except OSError as error:
            reason = error.strerror or str(error)
            time.sleep(0.05)
            continue
        if answer == b"":  # process 0 has ended, or another program listens at its address
            reason = "it does not answer"
            time.sleep(0.05)
            continue
        if (problem := json.loads(answer)) is not None:
            raise errors.DistributedError(problem)
        return
    raise errors.DistributedError(
        f"process {place.process} of {place.processes} did not find process 0 at {place.coordinator} in time: "
        f"{reason}; expected the address at which process 0 can be reached, and that it is started as well"
    )


def _read(connection: socket.socket) -> tuple[int, dict[str, Any]] | None:
    """Read the index and the settings of a process from a connection; None if no valid message arrives."""
    connection.settimeout(5)
    try:
        process, theirs = json.loads(_line(connection))
        return int(process), dict(theirs)
    except (OSError, ValueError, TypeError):
        return None


def _send(connection: socket.socket, message: Any) -> None:
    # An OSError means that the receiving process has ended. The other processes will report its end.
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")


def _line(connection: socket.socket) -> bytes:
    """Read one line from a connection, without its line end; empty if the connection closes before the line ends."""
    found = b""
    while len(found) < _LONGEST and (more := connection.recv(_LONGEST)):
        found += more
        if found.endswith(b"\n"):
            return found[:-1]
    return b""


log = logging.getLogger("fluid")


def initialize(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    timeout: float | None = None,
    heartbeat: int = 30,
) -> Group:
    """Join the other processes of this training. Call it before JAX computes anything.

    `python -m fluid launch` has already called this function. Otherwise, a script calls it in its first lines, in each
    process. Without arguments, it reads the variables `FLUID_COORDINATOR`, `FLUID_PROCESSES` and `FLUID_PROCESS`, or
    the variables of SLURM, Open MPI, Kubernetes or a Cloud TPU. Without these variables there is one process, and the
    function does nothing; so any script may call it.

    After this call, the devices of all processes form one mesh: `fluid.Trainer(..., parallel=True)`. When one process
    fails, all processes end. Only process 0 logs.

    Args:
      timeout: seconds for which a process waits for the others, here and in each later exchange; by default the
        variable `FLUID_TIMEOUT`, or 600.
      heartbeat: seconds without a heartbeat message after which a process counts as dead, and all others end.

    Raises:
      ArgumentError: only some of `coordinator`, `processes` and `process` are given, or one is invalid.
      DistributedError: a process does not arrive in time, two processes have one index, the port is in use, the
        processes have different versions, or JAX has already computed something.

    Example:
      >>> import fluid
      >>> fluid.distributed.initialize()  # in `python train.py`
      process 0 of 1
    """
    timeout = float(os.environ.get(TIMEOUT, 600)) if timeout is None else timeout
    place = membership(coordinator, processes, process)
    known = group()
    if known.size > 1:
        if place is not None and (place.process, place.processes) != (known.index, known.size):
            raise errors.DistributedError(f"this is {known!r} already, and cannot become another one")
        return known
    if place is None or place.processes == 1:
        return known
    _configure(place)
    meet(place, _versions(), timeout)
    found = join(Group(place.process, place.processes, _connect(place, timeout, heartbeat), timeout))
    end_together(found)
    if not found.is_first:
        _be_quiet()
    log.info("%r: all have come", found)
    return found


def _configure(place: Membership) -> None:
    """Set the options that JAX reads before it looks for devices."""
    if jax.distributed.is_initialized():
        raise errors.DistributedError(
            "jax.distributed.initialize() was called before; call fluid.distributed.initialize() instead of it"
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # JAX's preemption service would intercept SIGTERM. The Trainer handles SIGTERM itself, and ends between two steps.
    jax.config.update("jax_enable_preemption_service", False)
    if place.devices is not None:
        jax.config.update("jax_num_cpu_devices", len(place.devices))


def _connect(place: Membership, timeout: float, heartbeat: int) -> Any:
    """Connect this process to JAX's coordination service, and return the client; process 0 starts the service."""
    from jax._src import distributed

    try:
        jax.distributed.initialize(
            place.coordinator,
            place.processes,
            place.process,
            list(place.devices) if place.devices is not None else None,
            cluster_detection_method="deactivate",
            initialization_timeout=int(timeout),
            heartbeat_timeout_seconds=heartbeat,
            shutdown_timeout_seconds=int(timeout),
            coordinator_bind_address=place.coordinator if loopback(place.coordinator) else None,
        )
    except RuntimeError as error:
        raise errors.DistributedError(
            f"process {place.process} cannot join the others: {error}; call fluid.distributed.initialize() before "
            f"anything is computed, and before a Trainer or a Session is made"
        ) from error
    return distributed.global_state.client


def _versions() -> dict[str, str]:
    """Return the versions that must be equal in all processes, so that they compile equal steps."""
    return {
        "the version of Python": ".".join(platform.python_version_tuple()[:2]),
        "the version of jax": jax.__version__,
        "the version of jaxlib": jaxlib.version.__version__,
        "the version of numpy": np.__version__,
    }


def _be_quiet() -> None:
    log.setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=errors.FluidWarning)
