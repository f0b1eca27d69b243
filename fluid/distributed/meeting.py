"""Meeting: the processes find each other before JAX's coordination service starts.

The service kills a process by a signal when a process is absent or has a wrong index. So all processes first connect
to process 0 at the address of the service, and wait for its answer. Any problem is then an exception.
"""

import contextlib
import json
import socket
import time
from typing import Any

from fluid import errors
from fluid.distributed.cluster import Membership

_LONGEST = 4096  # the largest number of bytes of a greeting
_LONGER = 5.0  # seconds that others wait longer than process 0, so that process 0 can report who is absent


def meet(place: Membership, described: dict[str, Any], timeout: float) -> None:
    """Wait until all processes have connected, and check that they belong together.

    Args:
      place: membership of this process.
      described: versions and settings by name, which must be equal in all processes.
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
    """Act as process 0: receive the greetings of all others, then answer all of them."""
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
            if found is None:  # no process of fluid, for example a port scanner
                continue
            process, theirs = found
            problem = _flaw(process, theirs, greeting, heard)
            heard[process] = connection
        for connection in heard.values():
            _send(connection, problem)
    if problem is not None:
        raise errors.DistributedError(problem)


def _flaw(process: int, theirs: dict[str, Any], ours: dict[str, Any], heard: dict[int, Any]) -> str | None:
    """Return the problem with a process that has sent a greeting; None if it belongs to this training."""
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
    """Act as a process other than process 0: send a greeting to process 0, and wait for its answer."""
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
        if answer == b"":  # process 0 has ended, or another program listens there
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
    """Return the index of a process and its settings; None if the message is no greeting."""
    connection.settimeout(5)
    try:
        process, theirs = json.loads(_line(connection))
        return int(process), dict(theirs)
    except (OSError, ValueError, TypeError):
        return None


def _send(connection: socket.socket, message: Any) -> None:
    with contextlib.suppress(OSError):  # the other side has ended; processes that wait for it report that
        connection.sendall(json.dumps(message).encode() + b"\n")


def _line(connection: socket.socket) -> bytes:
    """Return a line without its end; no bytes if the connection closes before the line ends."""
    found = b""
    while len(found) < _LONGEST and (more := connection.recv(_LONGEST)):
        found += more
        if found.endswith(b"\n"):
            return found[:-1]
    return b""
