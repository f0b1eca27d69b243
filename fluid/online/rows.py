"""The class RowFormat, which converts training rows to messages of the Open Inference Protocol and back."""

import math
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fluid import errors
from fluid.core import FeedSpec, NestedSequenceBatch, SequenceBatch
from fluid.reader.buckets import Buckets
from fluid.reader.columns import batch_size
from fluid.reader.feeder import Feeder, FeedOrder
from fluid.reader.ragged import Ragged, sizes_of
from fluid.serving import protocol

Columns = dict[str, Any]
"""The feeds of several rows by name: arrays `[rows, ...]`; for sequences, a list with one sequence per row."""


class Packed(NamedTuple):
    """Rows packed into a message.

    Attributes:
      body: the bytes of the message.
      head: the number of bytes of JSON at the start of the body.
      rows: the number of rows.
    """

    body: bytes
    head: int
    rows: int


class RowFormat:
    """The format of the rows of a program, which checks rows and converts them to messages and back.

    Attributes:
      specs: the feeds by name.
      most_numbers: the maximum number of elements in all feeds of a row; None without `max_steps`.

    Raises:
      ProgramError: a feed does not consist of rows of one shape, so that separate rows cannot form a minibatch.

    Example:
      >>> rows = RowFormat({"x": FeedSpec("x", (None, 1), "float32"), "y": FeedSpec("y", (None, 1), "int64")})
      >>> packed = rows.pack([(0.5, 1), (1.5, 2)])
      >>> packed.rows, {name: column.tolist() for name, column in rows.unpack(packed.body, packed.head).items()}
      (2, {'x': [[0.5], [1.5]], 'y': [[1], [2]]})
    """

    def __init__(self, specs: Mapping[str, FeedSpec], feed_order: FeedOrder = None, max_steps: int | None = None):
        for spec in specs.values():
            if spec.shape[:1] != (None,) or None in spec.shape[1:]:
                raise errors.ProgramError(
                    f"the feed {spec.name!r} has the shape {list(spec.shape)}, expected rows of one shape, since rows "
                    f'that come apart are put together into minibatches: layers.data("x", shape=[4])'
                )
        if not specs:
            raise errors.ProgramError('the program has no feeds, so there are no rows to send: layers.data("x", ...)')
        self.specs = dict(specs)
        self._levels = {name: spec.lod_level for name, spec in specs.items()}
        self._sizes = {name: jax.dtypes.canonicalize_dtype(spec.dtype).itemsize for name, spec in specs.items()}
        self._bounded = _Bounded(specs, max_steps)
        self._feeder = Feeder(specs, feed_order, buckets=self._bounded)
        self.most_numbers: int | None = None
        if max_steps is not None:
            sizes = (math.prod(size or 1 for size in s.shape[1:]) * max_steps**s.lod_level for s in specs.values())
            self.most_numbers = sum(sizes)
        # The lock lets only one thread at a time use the Feeder, which converts rows to arrays, because the Feeder
        # counts the padding.
        self._lock = threading.Lock()

    def pack(self, minibatch: Any, most_bytes: int | None = None) -> Packed:
        """Check rows, and convert them to a message.

        Args:
          most_bytes: the maximum size of the arrays with padded sequences, in bytes; None for no limit.

        Raises:
          FeedError: the rows do not fit the feeds; the message names the field and the row.
          UnknownNameError: the rows have a field that the program does not declare.
        """
        with self._lock:
            self._bounded.most_bytes = most_bytes
            feed = self._feeder.feed(minibatch)
        rows = batch_size(feed)
        for name, value in feed.items():
            self._check(name, value)
        body, head = protocol.write_request(protocol.InferRequest(protocol.to_tensors(feed)))
        return Packed(body, head, rows)

    def unpack(
        self,
        body: bytes,
        head: int | None,
        most_tensors: int = 1024,
        most_rows: int | None = None,
        most_bytes: int | None = None,
    ) -> Columns:
        """Return the columns of a message, without a check of their names and shapes; `pack` checks both.

        Raises:
          ProtocolError: the message is damaged, or holds no rows.
          FeedError: there are more than `most_rows` rows, or more than `most_bytes` bytes in the dtypes of the program.
        """
        found = protocol.read_request(body, head, most_tensors)
        if most_rows is not None:
            check_count(max((_count(tensor.data) for tensor in found.inputs), default=0), most_rows)
        arrays = {each.name: each.data for each in found.inputs if isinstance(each.data, np.ndarray)}
        _check_size(sum(arrays[name].size * self._sizes[name] for name in {*arrays} & {*self.specs}), most_bytes)
        values = protocol.from_tensors(found.inputs, self._levels)
        for name, value in values.items():
            _check_lengths(name, value)
        sequences = (SequenceBatch, NestedSequenceBatch)
        return {name: value.rows() if isinstance(value, sequences) else value for name, value in values.items()}

    def _check(self, name: str, value: Any) -> None:
        """Raise FeedError for NaN or infinity, which could ruin the parameters, unless the feed allows NaN."""
        is_sequence = isinstance(value, SequenceBatch | NestedSequenceBatch)
        data = np.asarray(value.data if is_sequence else value)
        if self.specs[name].allow_nan or data.dtype.kind in "biu" or np.isfinite(data.astype(np.float64)).all():
            return
        raise errors.FeedError(
            f"feed {name!r}: found NaN or an infinity, expected numbers. What is missing needs a value of its own; "
            f"layers.data({name!r}, ..., allow_nan=True) says that the program expects it"
        )


def check_count(rows: int, most: int) -> None:
    """Check that there are at most `most` rows. The check comes first, because converting rows takes time and memory.

    Raises:
      FeedError: there are more than `most` rows.
    """
    if rows > most:
        raise errors.FeedError(f"found {rows} rows at once, expected at most {most}; send them in parts")


def _count(data: Any) -> int:
    return len(data) if isinstance(data, list) or data.ndim else 0


def _check_lengths(name: str, value: Any) -> None:
    """Check that sequence lengths fit the padded data; do nothing for an array, which has no lengths."""
    if isinstance(value, np.ndarray):
        return
    sizes = np.shape(getattr(value, "data", value))
    for level, attribute in enumerate(("lengths", "inner_lengths"), start=1):
        lengths = getattr(value, attribute, None)
        if lengths is None:
            continue
        if lengths.shape != sizes[:level] or len(sizes) <= level or np.any((lengths < 0) | (lengths > sizes[level])):
            expected = f"numbers from 0 to {sizes[level]}" if len(sizes) > level else "padded data of more dimensions"
            raise errors.ProtocolError(
                f"the tensor {name + '.' + attribute!r} has the shape {list(lengths.shape)} beside data of the shape "
                f"{list(sizes)}; expected the shape {list(sizes[:level])}, and {expected}"
            )


class _Bounded(Buckets):
    """Padding sizes (Buckets) that refuse too long sequences and too large minibatches before padding them.

    Attributes:
      most_bytes: the maximum size of a padded minibatch, in bytes; None for no limit.
    """

    most_bytes: int | None = None

    def __init__(self, specs: Mapping[str, FeedSpec], max_steps: int | None):
        super().__init__(specs, max_compilations=None)
        self._max_steps = max_steps

    def pad(self, values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
        """Pad the sequences of a minibatch."""
        for name, value in values.items():
            longest = max(sizes_of(value) or (0,))
            if self._max_steps is not None and longest > self._max_steps:
                raise errors.FeedError(
                    f"feed {name!r}: found a sequence of {longest} steps, expected at most {self._max_steps}"
                )
        if self.most_bytes is not None:
            _check_size(sum(map(_padded_size, values.values())), self.most_bytes)
        return super().pad(values, where)


def _check_size(size: int, most: int | None) -> None:
    if most is not None and size > most:
        raise errors.FeedError(
            f"found rows that have {size} bytes when sequences are padded to the longest, expected at most {most}; "
            f"send them in parts, and long ones apart"
        )


def _padded_size(value: Any) -> int:
    """Return the size in bytes of an array, or of sequences that are padded to the longest one."""
    sizes = sizes_of(value)
    if sizes is None:
        return int(value.nbytes)
    steps = value.steps if isinstance(value, Ragged) else value.data.reshape(-1, *value.data.shape[1 + len(sizes) :])
    return math.prod((*value.shape[:1], *sizes)) * int(steps.nbytes) // max(len(steps), 1)
