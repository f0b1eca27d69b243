"""The class Settings: the batching of requests in a server, and the limits for its clients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from fluid import errors

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Settings:
    """Settings of a server: batching and limits. The defaults suit a model that takes some milliseconds for a batch.

    Args:
      max_delay_ms: the maximum time, in milliseconds, that a request waits for other requests. A batch waits until it
        has as many requests as the last batch. After a batch of one request, the next request runs immediately.
      buckets: the numbers of time steps to which sequences are padded, each a compilation. Longer sequences are
        refused.
      max_shapes: the maximum number of row shapes that are compiled after the start, each for all numbers of rows. Only
        feeds with unknown sizes, besides the rows and the time steps, need these compilations.
      timeout: the maximum time, in seconds, from a complete request to its response; afterwards, status 504.
      read_timeout: the time, in seconds, in which a client must send a request; afterwards, status 408.
      write_timeout: the time, in seconds, in which a client must read a response; afterwards, its connection is closed.
      max_body: the maximum size of a request, in bytes.
      max_json: the maximum size of the JSON in a request, in bytes; numbers take about ten times as much memory while
        they are parsed.
      max_pending: the maximum size, in bytes, of all requests in memory and of all responses that clients have not
        read. Above the limit, requests get status 503, and connections with unread responses are closed.
      max_answers: the maximum size, in bytes, of all responses that are computed or written, as they are sent; a number
        in JSON counts with its longest text, 25 bytes for FP32. It is known before a response is computed. Above the
        limit, requests get status 503, and a single response above the limit gets status 413.
      max_header: the maximum size of the head of a request, in bytes; also of its trailers, and of a chunk frame.
        The head and the trailers have at most 100 headers together.
      max_connections: the maximum number of open connections; more connections get status 503. The process's
        limit of open files, less a reserve of 128, limits the number too.
      drain: the time, in seconds, that requests in flight have for their responses after SIGTERM.

    Raises:
      ArgumentError: the value of a setting is invalid.

    Example:
      >>> Settings(max_batch=8).sizes()
      (1, 2, 4, 8)
    """

    max_batch: int = 32
    max_delay_ms: float = 2.0
    batch_sizes: Sequence[int] | None = None
    buckets: Sequence[int] = (16, 64, 256)
    outer_buckets: Sequence[int] | None = None
    max_shapes: int = 8
    max_queue: int = 256
    timeout: float = 30.0
    read_timeout: float = 20.0
    write_timeout: float = 30.0
    max_body: int = 64 * MEGABYTE
    max_json: int = 16 * MEGABYTE
    max_pending: int = 256 * MEGABYTE
    max_answers: int = 512 * MEGABYTE
    max_header: int = 32 << 10
    max_inputs: int = 64
    max_connections: int = 1024
    drain: float = 30.0

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None or isinstance(value, Sequence):
                continue
            least = 0 if each.name in ("max_delay_ms", "max_shapes") else 1e-9
            if not isinstance(value, int | float) or not math.isfinite(value) or value < least:
                raise errors.ArgumentError(f"{each.name}={value!r}: expected a positive number")
        for name in ("batch_sizes", "buckets", "outer_buckets"):
            sizes = getattr(self, name)
            if sizes is not None and (not sizes or list(sizes) != sorted({int(s) for s in sizes}) or sizes[0] < 1):
                raise errors.ArgumentError(
                    f"{name}={sizes!r}: expected increasing sizes from 1 on, as in {name}=(1, 8)"
                )
        if len(self.outer()) != len(self.buckets):
            raise errors.ArgumentError(
                f"outer_buckets={self.outer_buckets!r}: expected as many as buckets={self.buckets!r}"
            )

    def sizes(self) -> tuple[int, ...]:
        """Return the numbers of rows to which batches are padded, in increasing order."""
        if self.batch_sizes is not None:
            return tuple(self.batch_sizes)
        powers = [1 << n for n in range(self.max_batch.bit_length())]
        return (*[size for size in powers if size < self.max_batch], self.max_batch)

    def outer(self) -> tuple[int, ...]:
        """Return the numbers of sequences to which rows of nested sequences are padded.

        There is one number for each entry of `buckets`, the numbers of time steps to which sequences are padded.
        """
        if self.outer_buckets is not None:
            return tuple(self.outer_buckets)
        return tuple(max(4, size // 4) for size in self.buckets)
