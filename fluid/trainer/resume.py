"""Where training is, so that it can go on exactly there: in this process after an interruption, or in another one."""

import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import NestedSequenceBatch, SequenceBatch
from fluid.reader.adapters import Minibatches
from fluid.reader.buckets import Buckets
from fluid.reader.prefetch import Prefetched, Prefetcher
from fluid.trainer.handlers import Onion

log = logging.getLogger("fluid")


class Progress:
    """How far training has come.

    The position of the reader is kept as of before the minibatch that was trained on last: whoever continues reads that
    one again, and sees from its checksum whether the data still comes in the same order.

    Attributes:
      call: which call of `train` this is, from 0; a program that is run again makes the same calls.
      epoch: from 0.
      step: minibatches trained on in this epoch.
      resuming: whether the next pass continues an interrupted one.
      last: whether the reader has nothing more in this epoch, as far as is known.

    Example:
      >>> progress = Progress()
      >>> progress.epoch, progress.step, progress.begun
      (0, 0, False)
    """

    def __init__(self) -> None:
        self.call = self.epoch = self.step = 0
        self.resuming = self.last = False
        self._finished: list[Any] = []
        self._source: Minibatches | None = None
        self._before: Any = None  # position of the reader before the last minibatch, or at the beginning of the pass
        self._behind: Any = None
        self._sizes: Any = None  # what the padding of that minibatch depended on
        self._batch: Any = None
        self._print: dict[str, Any] | None = None
        self._rings: Onion | None = None
        self._buckets: Buckets | None = None
        self._told: list[Any] = []

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> "Progress":
        """What a snapshot says."""
        progress = cls()
        progress.call, progress.epoch, progress.step = saved["call"], saved["epoch"], saved["step"]
        progress._before, progress._sizes, progress._print = saved["reader"], saved["buckets"], saved["batch"]
        progress._finished, progress._told = list(saved["finished"]), saved["handlers"]
        return progress

    @classmethod
    def done(cls, num_epochs: int) -> "Progress":
        """That of a call that has nothing left to do."""
        progress = cls()
        progress.epoch = num_epochs
        return progress

    @property
    def begun(self) -> bool:
        """Whether this call has a position that can be continued."""
        return self._before is not None

    def begin(self, source: Minibatches, rings: Onion, buckets: Buckets | None = None) -> None:
        """Begin a call of `train`, or continue it.

        Args:
          source: what the passes go over.
          rings: the handlers; they are given back what they told a checkpoint.
          buckets: what pads the sequences, if there are any.
        """
        self._source, self._rings, self._buckets = source, rings, buckets
        self.resuming, self.last = self.begun, False
        rings.restore(self._told)
        self._told = []

    def start_pass(self, convert: Callable[[Any, int], Any]) -> Prefetcher:
        """Start a pass, or continue the one that was interrupted.

        Raises:
          ReaderError: the reader has fewer minibatches than were trained on, or of another size.
        """
        assert self._source is not None
        if self.resuming:
            self._go_back(self._source)
        rows = self._source()
        if not self.resuming:
            self._note_pass()
        self._behind = self._before
        batches = Prefetcher(rows, convert, self._position, first=max(self.step - 1, 0))
        if self.resuming and self.step:
            self._compare(batches)
        self.resuming = False
        return batches

    def advance(self, batch: Prefetched) -> None:
        """Note that a minibatch was trained on."""
        assert batch.state is not None
        self._before, self._behind = self._behind, batch.state["reader"]
        self._sizes, self._batch, self._print = batch.state["buckets"], batch.feed, None
        self.step += 1

    def next_epoch(self) -> None:
        """Note that a pass has ended."""
        self.epoch, self.step, self.last = self.epoch + 1, 0, False
        self._note_pass()

    def finish(self) -> None:
        """Note that this call of `train` has ended."""
        self._finished.append(None if self._source is None else self._source.state())
        self.call, self.epoch, self.step = self.call + 1, 0, 0
        self._before, self._batch, self._print = None, None, None

    def skip(self, call: int, source: Minibatches) -> None:
        """Bring a reader to where an earlier call of `train`, which is done, had left it."""
        if self._finished[call] is not None:
            source.restore(_without_plan(self._finished[call]))

    def skip_to_end(self, source: Minibatches) -> None:
        """Bring a reader to where this call, which is done, had left it."""
        source.restore(_without_plan(self._before))

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The position as it is now, for `of`: a function that gives it as JSON, and does the slow part of the work."""
        batch, known = self._batch, self._print
        position = {"call": self.call, "epoch": self.epoch, "step": self.step, "reader": self._before}
        position |= {"buckets": self._sizes, "finished": list(self._finished)}
        position["handlers"] = self._rings.state() if self._rings else []
        return lambda: {**position, "batch": known if batch is None else fingerprint(batch)}

    def _position(self) -> dict[str, Any]:
        assert self._source is not None
        return {"reader": self._source.state(), "buckets": self._buckets.state() if self._buckets else None}

    def _note_pass(self) -> None:
        """The position at the beginning of a pass."""
        self._before, self._sizes = self._position().values()
        self._batch, self._print = None, None

    def _go_back(self, source: Minibatches) -> None:
        state = self._before
        if self._buckets is not None and self._sizes is not None:
            self._buckets.restore(self._sizes)
        if not self.step:  # between two epochs it matters which one comes next, not how the reader is built
            source.restore(_without_plan(state))
            return
        if "source" not in state and _counts_rows(state.get("reader")) and state["given"]:
            log.warning(
                "the reader keeps no position of its own, so %d minibatches of epoch %d are read and dropped",
                state["given"],
                self.epoch,
            )
        try:
            source.restore(state)
        except errors.ArgumentError as error:
            error.add_note(
                f"training continues behind minibatch {self.step - 1} of epoch {self.epoch}; to start anew instead, "
                f"give a new Trainer another checkpoint_dir"
            )
            raise

    def _compare(self, batches: Prefetcher) -> None:
        again = next(batches, None)
        if again is None:
            raise errors.ReaderError(
                f"the reader gives fewer minibatches than were trained on: {self.step} of epoch {self.epoch} are done, "
                f"found fewer; expected the reader of the interrupted run, with the same data and batch size"
            )
        if self._print is None:
            self._print = fingerprint(self._batch)
        found, expected = fingerprint(again.feed), self._print
        assert again.state is not None
        self._behind = again.state["reader"]
        if found["samples"] != expected["samples"]:
            raise errors.ReaderError(
                f"the reader gives other minibatches than those trained on: number {self.step - 1} of epoch "
                f"{self.epoch} has {found['samples']} samples, expected {expected['samples']}. Continue with the same "
                f"batch size, or start anew with another checkpoint_dir"
            )
        if found != expected:
            warnings.warn(
                f"the reader gives another order than before the interruption: minibatch {self.step - 1} of epoch "
                f"{self.epoch} is not the one that was trained on, so that in this epoch examples may be repeated or "
                f"left out. fluid.reader.shuffle(rows, buf_size, seed=0) has the same order in every run",
                errors.FluidWarning,
                stacklevel=2,
            )


def fingerprint(feed: Mapping[str, Any]) -> dict[str, Any]:
    """A checksum of a feed: names, shapes, dtypes and bytes; padding does not count.

    Args:
      feed: arrays and sequence batches by name.

    Returns:
      JSON: the number of samples and the checksum.

    Example:
      >>> fingerprint({"x": np.zeros((2, 3))}) == fingerprint({"x": np.zeros((2, 3))})
      True
      >>> fingerprint({"x": np.zeros((2, 3))})["samples"]
      2
    """
    digest, samples = hashlib.blake2b(digest_size=16), 0
    for name in sorted(feed):
        value = feed[name]
        samples = max(samples, value.shape[0] if value.shape else 0)
        for part in map(np.asarray, _valid(value)):
            digest.update(f"{name} {part.dtype} {part.shape}".encode())
            digest.update(np.ascontiguousarray(part).tobytes())
    return {"samples": samples, "digest": digest.hexdigest()}


def check_storable(source: Minibatches) -> None:
    """Raise, before the first step, when the position of a reader is nothing that JSON can hold."""
    try:
        json.dumps(source.state())
    except (TypeError, ValueError) as error:
        raise errors.ArgumentTypeError(
            f"the position of the reader cannot be stored: {error}; expected get_state() or state() to return JSON or "
            f"bytes"
        ) from error


def _valid(value: Any) -> list[Any]:
    """The arrays that a value of a feed holds beside padding."""
    if isinstance(value, SequenceBatch | NestedSequenceBatch):
        value = value.rows()
    return [part for row in value for part in _valid(row)] if isinstance(value, list) else [value]


def _without_plan(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key != "reader"}


def _counts_rows(plan: Any) -> bool:
    """Whether a plan has rows of the user's own at its bottom, which can only be counted."""
    if isinstance(plan, Mapping):
        return any(_counts_rows(v) for v in plan.values())
    return any(map(_counts_rows, plan)) if isinstance(plan, list) else plan == "rows"
