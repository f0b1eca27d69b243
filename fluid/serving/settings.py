"""Settings: how a server batches, and how much of everything a client may ask for."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from fluid import errors

MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Settings:
    """How a server batches, and its limits. The defaults suit a model of some milliseconds.

    Args:
      max_batch: how many rows run together, and how many a request may have.
      max_delay_ms: how long a request waits for others, in milliseconds. It waits only while others are coming, for as
        many as were in the batch before: after a batch of a single request the next one runs at once.
      batch_sizes: to which numbers of rows batches are padded, each a compilation; None for powers of two.
      buckets: to how many steps sequences are padded, each a compilation. The last is the longest that is accepted.
      outer_buckets: the same for the sequences in a row of nested sequences, one for each of `buckets`.
      max_shapes: how many shapes of rows may be compiled later, each for every number of rows, for feeds with other
        sizes that are not fixed.
      max_queue: how many requests may wait for a model; more are answered with 503.
      timeout: seconds from a whole request to its answer; then it is answered with 504.
      read_timeout: seconds that a client has for sending a request; then it is answered with 408.
      write_timeout: seconds that a client has for reading an answer; then its connection is closed.
      max_body: bytes of a request.
      max_json: bytes of JSON in a request; numbers need some ten times that in memory while they are read.
      max_pending: bytes of all requests that are being read or waiting, and of all answers that clients do not read;
        more requests are answered with 503, and more unread answers close their connections.
      max_header: bytes of the head of a request.
      max_inputs: tensors of a request.
      max_connections: open connections; more are answered with 503. At most so many as the process may have open
        files, less a reserve of 128.
      drain: seconds that requests under way have for their answers after SIGTERM.

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
        """To which numbers of rows batches are padded; the last is `max_batch`."""
        if self.batch_sizes is not None:
            return tuple(self.batch_sizes)
        powers = [1 << n for n in range(self.max_batch.bit_length())]
        return (*[size for size in powers if size < self.max_batch], self.max_batch)

    def outer(self) -> tuple[int, ...]:
        """To how many sequences in a row nested sequences are padded, one for each of `buckets`."""
        if self.outer_buckets is not None:
            return tuple(self.outer_buckets)
        return tuple(max(4, size // 4) for size in self.buckets)
