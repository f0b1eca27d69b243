"""The class Progress: the training position, from which a process continues exactly after an interruption.

The position is the call of `train`, the epoch, the step, and the position of the reader before the last trained
minibatch. A resumed training reads this minibatch again, and its checksum shows whether the order of the data is the
same. A training that was killed and resumed ends with identical bits.
"""

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluid import errors
from fluid._util.text import counted
from fluid.core import NestedSequenceBatch, SequenceBatch, warn
from fluid.distributed.group import whole
from fluid.reader.base import stages
from fluid.reader.pipeline import Batch, Batches, InputPipeline
from fluid.trainer.handlers import Dispatcher
from fluid.trainer.programs import Source, Turns

log = logging.getLogger("fluid")


class Progress:
    """The position of training: the call of `train`, the epoch, the step, and the position of the reader.

    The position of the reader is before the last trained minibatch. A resumed training reads this minibatch again, and
    compares its checksum to detect another order of the data.

    Attributes:
      call: the index of the call of `train`, from 0; a script that is run again repeats its calls.
      epoch: the index of the epoch within the call, from 0.
      step: the number of minibatches trained on in this epoch.
      resuming: True if the next pass continues an interrupted pass.
      reads_once: True if the reader is an iterator of the user, which cannot restart.
      last: True if the last trained minibatch is known to be the last one of its epoch.
      frozen: the names of frozen parameters in the checkpoint from which training continues; None without a checkpoint.
      finished_epochs: the `num_epochs` of each earlier call of `train`; None for an abandoned call, or if an earlier
        version did not record the number.

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
        # The position of the reader before the last trained minibatch; at the start of a pass over the data if no
        # minibatch was trained; None before the first pass.
        self._before: Any = None
        # The last trained minibatch, the padding sizes in use before this minibatch was read, and the checksum of this
        # minibatch; the checksum is None until it is computed.
        self._batch: Any = None
        self._sizes: Any = None
        self._print: dict[str, Any] | None = None
        self._finished: list[Any] = []  # the positions of the reader after each earlier call of `train`
        # the unfinished pass over the data of a call of `train` that was paused in this process
        self._live: Batches | None = None
        # the states of handlers that were read from a checkpoint; `begin` copies the states to the handlers
        self._handler_states: list[Any] = []

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> "Progress":
        """Create a Progress (a training position) from `saved`, the JSON that the method `snapshot` has returned."""
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
        """Return the training position at the end of a call of `train` with `num_epochs` epochs."""
        progress = cls()
        progress.epoch = num_epochs
        return progress

    @property
    def begun(self) -> bool:
        """True if this call of `train` has begun a pass over the data, which a later call can continue."""
        return self._before is not None

    @property
    def ready(self) -> bool:
        """True if the reader can return the next minibatch now."""
        return self._pipeline is None or self._pipeline.source.ready

    @property
    def place(self) -> str:
        """The training position as text, such as "after 2 epochs and 1 step"."""
        done = [counted(number, what) for number, what in ((self.epoch, "epoch"), (self.step, "step")) if number]
        return f"after {' and '.join(done)}" if done else "before the first step"

    def begin(self, pipeline: InputPipeline, handlers: Dispatcher) -> None:
        """Begin a call of `train`, or continue an interrupted one."""
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
        """Start a pass over the minibatches, or continue the interrupted pass.

        Raises:
          ReaderError: the reader has fewer minibatches than were trained on, or the last trained minibatch now has
            another number of samples.
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
            try:
                self._compare(batches)
            except BaseException:
                batches.close()
                raise
        self.resuming = False
        return batches

    def advance(self, batch: Batch) -> None:
        """Record that all minibatches in `batch` were trained on; a Batch holds one or several minibatches."""
        assert batch.before is not None
        self._before, self._sizes = batch.before
        self._batch = batch.each[-1].feed
        self._print = None
        self.step += batch.count

    def next_epoch(self) -> None:
        """Record the end of an epoch, and the position of the reader at the start of the next epoch."""
        self.epoch += 1
        self.step = 0
        self.last = False
        self._note_pass()

    def keep_pass(self, batches: Batches) -> None:
        """Store the unfinished pass over the data of a paused training for the next `train`.

        The pass includes minibatches that are read ahead.
        """
        self._live = batches

    def drop_live_pass(self) -> None:
        """Close the pass over the data that a paused training has left open, if there is one."""
        if self._live is not None:
            self._live.close()
            self._live = None

    def finish(self, num_epochs: int | None) -> None:
        """Record the end of this call of `train`; `num_epochs` is the requested number, None for an abandoned call."""
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
        """Restore the reader to its position after the call of `train` with the index `call`."""
        state = self._before if call == self.call else self._finished[call]
        if state is not None:
            source.restore(_without_plan(state))
            _end_passes(source)

    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """Copy the current training position; return a function that returns the copy as JSON for `Progress.of`.

        The returned function is slow, because it computes the checksum of the last minibatch. So a separate thread may
        call this function.
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
        """Record the reader's position at the start of a pass over the data, before training on a minibatch."""
        assert self._pipeline is not None
        self._before, self._sizes = self._pipeline.position()
        self._batch = None
        self._print = None

    def _go_back(self, pipeline: InputPipeline) -> None:
        """Restore the reader and the padding sizes to the position before the last trained minibatch.

        If training stopped between two epochs, the reader moves to the start of the next epoch, which may use another
        reader.
        """
        state = self._before
        source = pipeline.source
        pipeline.restore_padding(self._sizes)
        if not self.step:  # training stopped between two epochs: restore only the index of the next epoch
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
                    # The last trained minibatch is included: it is read again, because its checksum must equal the
                    # checksum in the checkpoint.
                    reader["given"] if "readers" in state else self.step,
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
        """Read the last trained minibatch again, and warn if its checksum has changed."""
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
            warn(
                f"the reader gives another order than before the interruption: minibatch {self.step - 1} of epoch "
                f"{self.epoch} is not the one that was trained on, so that in this epoch examples may be repeated or "
                f"left out. fluid.reader.shuffle(rows, buf_size, seed=0) has the same order in every run, and "
                f"fluid.reader.map(f, rows, seed=0) hands f(row, rng) the same random numbers"
            )


def fingerprint(feed: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checksum of the names, shapes, dtypes and bytes of a feed, without the padding of sequences.

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
    """Check, before the first step, that the position of a reader can be stored in a checkpoint as JSON.

    Raises:
      ArgumentTypeError: the position cannot be stored as JSON.
    """
    try:
        json.dumps(source.state())
    except (TypeError, ValueError) as error:
        raise errors.ArgumentTypeError(
            f"the position of the reader cannot be stored: {error}; expected get_state() or state() to return JSON or "
            f"bytes"
        ) from error


def _valid(value: Any) -> list[Any]:
    if isinstance(value, SequenceBatch | NestedSequenceBatch):
        value = value.rows()
    return [part for row in value for part in _valid(row)] if isinstance(value, list) else [value]


def _sizes(state: Mapping[str, Any]) -> str:
    """Return a text with the numbers of rows and the batch sizes of the readers in a saved training position."""
    plans = [reader.get("reader") for reader in state.get("readers", [state])]
    described = [stage for plan in plans for stage in stages(plan)]
    rows = [f"{stage['arrays']} rows" for stage in described if "arrays" in stage]
    return ", ".join([*rows, *(f"minibatches of {stage['batch']}" for stage in described if "batch" in stage)])


def _without_plan(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a saved reader position without the description of its reader, so that another reader accepts it.

    Between two passes over the data, the user may change the reader. The description of a reader within a pass stays.
    """
    position = {key: value for key, value in state.items() if key != "reader"}
    # A reader in the middle of a pass over its data keeps its description. Then only an equal reader accepts the
    # position.
    if "readers" in state:
        position["readers"] = [reader if reader["given"] else _without_plan(reader) for reader in state["readers"]]
    return position


def _end_passes(source: Any) -> None:
    if isinstance(source, Turns):
        source.close()


def _counts_rows(plan: Any) -> bool:
    """Return whether the rows of a reader come from a function or an iterable of the user.

    The position of such a reader is only the number of its minibatches, so a resume reads and drops them.
    """
    if isinstance(plan, Mapping):
        return any(_counts_rows(v) for v in plan.values())
    return any(map(_counts_rows, plan)) if isinstance(plan, list) else plan == "rows"
