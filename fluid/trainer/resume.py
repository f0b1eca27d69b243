"""The position of training, from which this process or another one continues exactly after an interruption."""

import hashlib
import json
import logging
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import NestedSequenceBatch, SequenceBatch
from fluid.distributed.arrays import whole
from fluid.formatting import counted
from fluid.reader.base import stages
from fluid.reader.pipeline import Batch, Batches, InputPipeline
from fluid.trainer.handlers import Dispatcher
from fluid.trainer.programs import Source, Turns

log = logging.getLogger("fluid")


class Progress:
    """The position of training: which call of `train`, epoch and step, and where the reader is.

    The reader's position is the one before the minibatch that was trained on last. A training that continues reads that
    minibatch again, and sees from its checksum whether the data still comes in the same order.

    Attributes:
      call: which call of `train` this is, from 0; a program that is run again makes the same calls.
      epoch: from 0 within the call.
      step: minibatches trained on in this epoch.
      resuming: whether the next pass continues an interrupted one.
      reads_once: whether the reader is an iterator of the user's, which nobody can start anew.
      last: whether the minibatch that was trained on last is the last one of its epoch, as far as is known.
      frozen: what was frozen when the checkpoint that is continued was written; None where none is continued.
      finished_epochs: the `num_epochs` of each earlier call of `train`; None where it was given up, or where
        an earlier version did not record it.

    Example:
      >>> progress = Progress()
      >>> progress.epoch, progress.step, progress.begun
      (0, 0, False)
    """

    def __init__(self) -> None:
        self.call = 0
        self.epoch = 0
        self.step = 0
        self.resuming = False
        self.reads_once = False
        self.last = False
        self.frozen: frozenset[str] | None = None
        self.finished_epochs: list[int | None] = []
        self._pipeline: InputPipeline | None = None
        self._handlers: Dispatcher | None = None
        # The position of the reader before the last minibatch, or at the beginning of the pass.
        self._before: Any = None
        # The last minibatch, what its padding depended on, and its checksum, if that is known already.
        self._batch: Any = None
        self._sizes: Any = None
        self._print: dict[str, Any] | None = None
        self._finished: list[Any] = []  # the position of the reader after each earlier call of `train`
        self._live: Batches | None = None  # the pass of a call that was paused
        self._handler_states: list[Any] = []  # what handlers have told a checkpoint, until it is handed back

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> "Progress":
        """Return the position that a snapshot holds."""
        progress = cls()
        progress.call = saved["call"]
        progress.epoch = saved["epoch"]
        progress.step = saved["step"]
        progress._before = saved.get("reader")
        progress._sizes = saved.get("buckets")
        progress._print = saved.get("batch")
        progress._finished = list(saved["finished"])
        progress.finished_epochs = list(saved.get("finished_epochs") or [None] * len(progress._finished))
        progress._handler_states = saved["handlers"]
        return progress

    @classmethod
    def done(cls, num_epochs: int) -> "Progress":
        """Return the position of a call of `train` that has nothing left to do."""
        progress = cls()
        progress.epoch = num_epochs
        return progress

    @property
    def begun(self) -> bool:
        """Return whether this call has a position that can be continued."""
        return self._before is not None

    @property
    def ready(self) -> bool:
        """Return whether the reader has the next minibatch now."""
        return self._pipeline is None or self._pipeline.source.ready

    @property
    def place(self) -> str:
        """Return the position in words: the epochs and steps that are done."""
        done = [counted(number, what) for number, what in ((self.epoch, "epoch"), (self.step, "step")) if number]
        return f"after {' and '.join(done)}" if done else "before the first step"

    def begin(self, pipeline: InputPipeline, handlers: Dispatcher) -> None:
        """Begin a call of `train`, or continue it.

        Args:
          pipeline: what is trained on.
          handlers: they get back what they have told a checkpoint.
        """
        if self._live is None:
            self._pipeline = pipeline
        assert self._pipeline is not None
        self.reads_once = self._pipeline.source.reads_once
        self._handlers = handlers
        self.resuming = self.begun
        self.last = False
        handlers.restore(self._handler_states)
        self._handler_states = []

    def start_pass(self) -> Batches:
        """Start a pass, or continue the one that was interrupted.

        Raises:
          ReaderError: the reader has fewer minibatches than were trained on, or of another size.
        """
        assert self._pipeline is not None
        if self._live is not None:
            batches = self._live
            self._live = None
            self.resuming = False
            return batches
        if self.resuming:
            self._go_back(self._pipeline)
        batches = self._pipeline.start()
        if not self.resuming:
            self._note_pass()
        if self.resuming and self.step:
            self._compare(batches)
        self.resuming = False
        return batches

    def advance(self, batch: Batch) -> None:
        """Note that the minibatches of a Batch were trained on."""
        assert batch.before is not None
        self._before, self._sizes = batch.before
        self._batch = batch.each[-1].feed
        self._print = None
        self.step += batch.count

    def next_epoch(self) -> None:
        """Note that a pass has ended."""
        self.epoch += 1
        self.step = 0
        self.last = False
        self._note_pass()

    def keep_pass(self, batches: Batches) -> None:
        """Keep a paused pass, with the minibatch that was read ahead, for the next call in this process."""
        self._live = batches

    def drop_live_pass(self) -> None:
        """Close a pass that was paused; a call that continues with another reader starts its own."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def finish(self, num_epochs: int | None) -> None:
        """End this call of `train`; `num_epochs` is the requested number, None for a call that was given up."""
        self.drop_live_pass()
        source = None if self._pipeline is None else self._pipeline.source
        _end_passes(source)
        self._finished.append(None if source is None else source.state())
        self.finished_epochs.append(num_epochs)
        self.call += 1
        self.epoch = 0
        self.step = 0
        self._before = None
        self._batch = None
        self._print = None

    def skip(self, call: int, source: Source) -> None:
        """Bring a reader to the position in which a call of `train`, this one or an earlier one, left it."""
        state = self._before if call == self.call else self._finished[call]
        if state is not None:
            source.restore(_without_plan(state))
            _end_passes(source)

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Return a function that returns the present position as JSON, for `of`.

        The slow part, the checksum of the last minibatch, is left to that function.
        """
        batch = whole(self._batch)
        known = self._print
        position = {
            "call": self.call,
            "epoch": self.epoch,
            "step": self.step,
            "reader": self._before,
            "buckets": self._sizes,
            "finished": list(self._finished),
            "finished_epochs": list(self.finished_epochs),
            "handlers": self._handlers.state() if self._handlers else [],
        }
        return lambda: {**position, "batch": known if batch is None else fingerprint(batch)}

    def _note_pass(self) -> None:
        """Note the position at the beginning of a pass."""
        assert self._pipeline is not None
        self._before, self._sizes = self._pipeline.position()
        self._batch = None
        self._print = None

    def _go_back(self, pipeline: InputPipeline) -> None:
        """Bring the reader, and the padding of its sequences, to the position before the last minibatch."""
        state = self._before
        source = pipeline.source
        pipeline.restore_padding(self._sizes)
        if not self.step:  # between two epochs only the number of the next one counts, so the reader may be another
            if (before := _sizes(state)) != (now := _sizes(source.state())):
                log.warning(
                    "the reader gives %s and gave %s before the interruption; training goes on with the reader of now",
                    now,
                    before,
                )
            source.restore(_without_plan(state))
            return
        for reader in state.get("readers", [state]):
            if "source" not in reader and _counts_rows(reader.get("reader")) and reader["given"]:
                log.warning(
                    "the reader keeps no position of its own, so %d minibatches of epoch %d are read and dropped",
                    reader["given"] if "readers" in state else self.step,  # the last of them is compared first
                    self.epoch,
                )
        try:
            source.restore(state)
        except errors.ArgumentError as error:
            error.add_note(
                f"training continues after minibatch {self.step - 1} of epoch {self.epoch}; to start anew instead, "
                f"give a new Trainer another checkpoint_dir"
            )
            raise

    def _compare(self, batches: Batches) -> None:
        """Read the minibatch again that was trained on last, and compare its checksum."""
        again = next(batches, None)
        if again is None:
            raise errors.ReaderError(
                f"the reader gives fewer minibatches than were trained on: {self.step} of epoch {self.epoch} are done, "
                f"found fewer; expected the reader of the interrupted run, with the same data and batch size"
            )
        if self._print is None:
            self._print = fingerprint(whole(self._batch))
        found = fingerprint(whole(again.feed))
        expected = self._print
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
                f"left out. fluid.reader.shuffle(rows, buf_size, seed=0) has the same order in every run, and "
                f"fluid.reader.map(f, rows, seed=0) hands f(row, rng) the same random numbers",
                errors.FluidWarning,
                stacklevel=2,
            )


def fingerprint(feed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checksum of a feed: names, shapes, dtypes and bytes; padding does not count.

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
    digest = hashlib.blake2b(digest_size=16)
    samples = 0
    for name in sorted(feed):
        value = feed[name]
        samples = max(samples, value.shape[0] if value.shape else 0)
        for part in map(np.asarray, _valid(value)):
            digest.update(f"{name} {part.dtype} {part.shape}".encode())
            digest.update(np.ascontiguousarray(part).tobytes())
    return {"samples": samples, "digest": digest.hexdigest()}


def check_storable(source: Source) -> None:
    """Refuse a reader whose position JSON cannot hold, before the first step.

    Raises:
      ArgumentTypeError: it is such a reader.
    """
    try:
        json.dumps(source.state())
    except (TypeError, ValueError) as error:
        raise errors.ArgumentTypeError(
            f"the position of the reader cannot be stored: {error}; expected get_state() or state() to return JSON or "
            f"bytes"
        ) from error


def _valid(value: Any) -> list[Any]:
    """Return the arrays of a value of a feed, without its padding."""
    if isinstance(value, SequenceBatch | NestedSequenceBatch):
        value = value.rows()
    return [part for row in value for part in _valid(row)] if isinstance(value, list) else [value]


def _sizes(state: Mapping[str, Any]) -> str:
    """Return the number of rows and the batch sizes of readers in words, as far as their plans tell."""
    plans = [reader.get("reader") for reader in state.get("readers", [state])]
    told = [stage for plan in plans for stage in stages(plan)]
    rows = [f"{stage['arrays']} rows" for stage in told if "arrays" in stage]
    return ", ".join([*rows, *(f"minibatches of {stage['batch']}" for stage in told if "batch" in stage)])


def _without_plan(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the position between two passes without the plan of the reader, which may be another one."""
    position = {key: value for key, value in state.items() if key != "reader"}
    if "readers" in state:  # one of which may be within a pass
        position["readers"] = [reader if reader["given"] else _without_plan(reader) for reader in state["readers"]]
    return position


def _end_passes(source: Any) -> None:
    """Let the next call of `train` begin with new passes over all readers, where there are several."""
    if isinstance(source, Turns):
        source.close()


def _counts_rows(plan: Any) -> bool:
    """Return whether rows come from a function or an iterable of the user, which can only be counted."""
    if isinstance(plan, Mapping):
        return any(_counts_rows(v) for v in plan.values())
    return any(map(_counts_rows, plan)) if isinstance(plan, list) else plan == "rows"
