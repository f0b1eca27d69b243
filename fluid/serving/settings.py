"""Settings: how a server batches requests, and its limits for clients."""

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
      max_batch: most rows of a batch, and of a request.
      max_delay_ms: most milliseconds that a request waits for others. A batch waits until it has as many requests as
        the last batch had: after a batch of one request the next request runs at once.
      batch_sizes: numbers of rows to which batches are padded, each a compilation; None for powers of two.
      buckets: numbers of steps to which sequences are padded, each a compilation. Longer sequences are refused.
      outer_buckets: numbers of sequences to which rows of nested sequences are padded, one for each of `buckets`.
      max_shapes: most shapes of rows that are compiled after the start, each for all numbers of rows. They occur if
        feeds have open sizes besides the rows and the steps.
      max_queue: most requests that wait for a model; more get status 503.
      timeout: seconds from a complete request to its response; after them, status 504.
      read_timeout: seconds that a client has to send a request; after them, status 408.
      write_timeout: seconds that a client has to read a response; after them, its connection is closed.
      max_body: most bytes of a request.
      max_json: most bytes of JSON in a request; numbers take about ten times as many bytes of memory while they are
        parsed.
      max_pending: most bytes of all requests in memory, and of all responses that clients do not read. More requests
        get status 503, and more unread responses close their connections.
      max_header: most bytes of the head of a request.
      max_inputs: most input tensors of a request.
      max_connections: most open connections; more get status 503. The limit of open files of the process, less a
        reserve of 128, bounds the number too.
      drain: seconds that requests in flight have for their responses after SIGTERM.

    Raises:
      ArgumentError: a value makes no sense.

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
        """Return the numbers of sequences to which rows of nested sequences are padded, one for each of `buckets`."""
        if self.outer_buckets is not None:
            return tuple(self.outer_buckets)
        return tuple(max(4, size // 4) for size in self.buckets)
