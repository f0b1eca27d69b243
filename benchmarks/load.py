"""Clients for `serving.py`: each connection repeats one request, and sends it again after the response.

The clients share the cores with the server, so the CPU time of a client affects the result. To save CPU time, all
clients run in one thread without an event loop, and send one prepared request. The clients check only the first line
and the length of each response.
"""

import multiprocessing
import selectors
import socket
import time
from typing import NamedTuple

import numpy as np

_STATUS = b"HTTP/1.1 200 "


class Figures(NamedTuple):
    """The measurements of a server in one round of requests.

    Attributes:
      rate: responses per second.
      p50: the median of the milliseconds from a request to the end of its response.
      p99: the 99th percentile of these milliseconds.
      cpu: the CPU microseconds of the clients for each response.
    """

    rate: float
    p50: float
    p99: float
    cpu: float


UNITS = {
    "rate": "requests/s (higher is better)",
    "p50": "p50, ms (lower is better)",
    "p99": "p99, ms (lower is better)",
    "cpu": "us of a core for an answer, in the clients",
}


def exchange(address: tuple[str, int], request: bytes) -> bytes:
    """Send a request, and return the response, which must have a content length."""
    with socket.create_connection(address) as connection:
        connection.sendall(request)
        answer = b""
        while (head := answer.partition(b"\r\n\r\n"))[1] == b"" or len(head[2]) < _length(head[0]):
            chunk = connection.recv(1 << 16)
            if not chunk:
                raise ConnectionError(f"the server closed the connection after {answer!r}")
            answer += chunk
    return answer


def clients(address: tuple[str, int], request: bytes, connections: int, seconds: float) -> Figures:
    """Send requests from a separate process; every response must have status 200 and the length of the first."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: Figures = pool.apply(_ask, (address, request, connections, seconds))
    return found


def _ask(address: tuple[str, int], request: bytes, connections: int, seconds: float) -> Figures:
    length = len(exchange(address, request))
    took: list[float] = []
    now = time.perf_counter
    with selectors.DefaultSelector() as selector:
        opened = [socket.create_connection(address) for _ in range(connections)]
        worked = time.process_time()
        start = now()
        for connection in opened:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # The state of a connection: the number of missing bytes of the response, and the time of the request.
            state = [length, now()]
            selector.register(connection, selectors.EVENT_READ, (connection, state))
            connection.sendall(request)
        while now() - start < seconds:
            for key, _ in selector.select():
                connection, state = key.data
                data = connection.recv(1 << 16)
                is_first = state[0] == length
                state[0] -= len(data)
                if not data or state[0] < 0 or (is_first and not data.startswith(_STATUS)):
                    raise ConnectionError(f"expected {length} bytes with status 200, found {data[:200]!r}")
                if state[0] == 0:
                    end = now()
                    took.append(end - state[1])
                    state[:] = length, end
                    connection.sendall(request)
        lasted = now() - start
        worked = time.process_time() - worked
        for connection in opened:
            connection.close()
    p50, p99 = np.percentile(took, [50, 99]) * 1000
    return Figures(len(took) / lasted, float(p50), float(p99), worked / len(took) * 1e6)


def _length(head: bytes) -> int:
    """Return the content length in the head of a response."""
    return int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
