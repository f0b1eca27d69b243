"""The training loop: training runs epochs, an epoch runs device calls, and a device call runs one or several steps.

Nothing interrupts a device call. Stopping, pausing, Ctrl-C and SIGTERM take effect only after the call, when handlers
were notified and policies (hooks such as checkpoints) have run. A signal may interrupt two operations,
because they can be repeated: opening a pass over the data, and reading minibatches ahead.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluid.core import TRAIN
from fluid.reader.buckets import padding_of
from fluid.reader.converter import examples_in
from fluid.reader.pipeline import Batch, Batches
from fluid.runtime import CompiledStep, Request, Results, Session, bind
from fluid.runtime.in_flight import IN_FLIGHT
from fluid.trainer.agreement import Agreement
from fluid.trainer.checkpoint import NoCheckpoints
from fluid.trainer.device_calls import DeviceCall, Policy, StepRequest
from fluid.trainer.events import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
)
from fluid.trainer.handlers import Dispatcher
from fluid.trainer.losses import Losses
from fluid.trainer.programs import ProgramInput
from fluid.trainer.resume import Progress
from fluid.trainer.signals import Signals

# If reading the last minibatch took longer than this time, in seconds, handlers of EndStepEvent run before the next
# minibatch is read.
_SLOW = 0.02

log = logging.getLogger("fluid")


@dataclass(frozen=True, slots=True)
class TrainedProgram:
    """A program that the training loop trains, with its compiled training step.

    Attributes:
      input: the program, with the description of the minibatches that it reads.
      step: the compiled training step of the program.
    """

    input: ProgramInput
    step: CompiledStep


@dataclass(frozen=True)
class Training:
    """The objects that work together in one call of `train`.

    Attributes:
      programs: the trained programs: one program, or several programs in turn.
      progress: the position of training, which the loop advances.
      handlers: the Dispatcher that delivers every event.
      stopping: returns whether training ends now; called after each device call.
      pausing: returns whether the open pass over the data is kept, so that a later call in this process can continue
        with the next minibatch of the pass.
      losses: limits the number of steps in flight by waiting for their losses.
      agreement: makes all processes take the same steps.
      checkpoints: saves checkpoints; a plain NoCheckpoints saves nothing.
      signals: delays Ctrl-C and SIGTERM until training is between two steps.
      steps_per_dispatch: the maximum number of steps in one device call.
      epoch_metrics: returns the scalars of the epoch so far, without waiting for the device.
    """

    programs: Sequence[TrainedProgram]
    progress: Progress
    handlers: Dispatcher
    stopping: Callable[[], bool]
    pausing: Callable[[], bool]
    losses: Losses
    agreement: Agreement
    checkpoints: NoCheckpoints
    signals: Signals
    steps_per_dispatch: int
    epoch_metrics: Callable[[], Results]

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The policies: hooks that run between two device calls, for example to save checkpoints, in their order."""
        return (self.agreement, self.checkpoints, self.signals, self.losses)

    @property
    def compiled(self) -> int:
        """The number of compilations of training steps so far."""
        return self.programs[0].step.engine.compilations.of_training


def trained_programs(inputs: Sequence[ProgramInput], session: Session, handlers: Dispatcher) -> list[TrainedProgram]:
    """Return each program with its compiled training step, which also returns the values that handlers fetch.

    Raises:
      UnknownNameError: a handler fetches a value that no program has.
    """
    fetched = handlers.fetches([input.program for input in inputs])
    runs = []
    for input, also in zip(inputs, fetched, strict=True):
        feeds = input.program.feeds
        request = Request(TRAIN, None, tuple(feeds), parts=input.program.has_rests, also=also)
        step = bind(session.engine, input.program, request)
        runs.append(TrainedProgram(input, step))
    return runs


def train(training: Training, num_epochs: int) -> bool:
    """Train for some epochs, notify handlers, and save checkpoints."""
    progress, handlers = training.progress, training.handlers
    error: BaseException | None = None
    try:
        with training.checkpoints:
            handlers.enter(BeginTrainEvent(num_epochs, progress.resuming))
            while progress.epoch < num_epochs and not training.stopping():
                handlers(BeginEpochEvent(progress.epoch, progress.step))
                event = _epoch(training)
                if event.feeding:
                    log.info("epoch %d: %s", event.epoch, event.feeding)
                handlers(event)
                if event.completed:
                    progress.next_epoch()
                    training.checkpoints.after_epoch()
                training.signals.check()
            training.losses.wait_for_all()
    except BaseException as raised:
        error = raised
        if "RESOURCE_EXHAUSTED" in str(raised):
            raised.add_note("the device has no memory left for this step; feed smaller minibatches: batch_size=...")
        raise
    finally:
        handlers.leave(EndTrainEvent(progress.epoch, stopped=training.stopping(), error=error))
    return not training.losses.lost


def _epoch(training: Training) -> EndEpochEvent:
    """Run the steps of one epoch, or the rest of an interrupted epoch; return the EndEpochEvent of the epoch."""
    progress, waits, policies = training.progress, training.handlers.waits, training.policies
    begun, waited_before, compiled_before = time.perf_counter(), waits.data, training.compiled
    with training.signals.at_once:
        batches = progress.start_pass()
    try:
        with training.signals.at_once:
            waits.begin_pass(batches.seconds)
            batches.read_ahead()
            waits.look(batches.seconds, training.losses.idle)
        ended = training.agreement.before_epoch(batches)
        while not ended and (first := batches.peek()):
            call = _device_call(training, first, batches)
            for policy in policies:
                policy.after_steps(call)
            # end the epoch if the training stops, or if this step is the last one of this or another process
            ended = training.stopping() or progress.last
    finally:
        if training.pausing():
            progress.keep_pass(batches)
        else:
            batches.close()
    return EndEpochEvent(
        progress.epoch,
        progress.step,
        # after a pause, the next call of `train` continues the epoch, to which a stream may then add minibatches
        completed=not training.stopping() or (progress.last and not training.pausing()),
        compiled=training.compiled - compiled_before,
        seconds=time.perf_counter() - begun,
        data_wait=waits.data - waited_before,
        padding=padding_of([program.step.buckets for program in training.programs]),
        metrics=training.epoch_metrics(),
    )


def _device_call(training: Training, first: Batch, batches: Batches) -> DeviceCall:
    """Run one device call with one or several training steps, and notify handlers of each step.

    A device call ends where the interval of a handler or of the checkpoints ends. Handlers receive the BeginStepEvent
    of the first step before the call. They receive the other events after the call has started, while the device may
    still compute.
    """
    progress, handlers, program = training.progress, training.handlers, training.programs[first.program]
    name, chain = program.input.name, program.input.chain
    # if other programs compute feeds of this program, `chain` adds these feeds to the minibatch
    feed = first.feed if chain is None else chain(first.feed)
    request = StepRequest(program.input.program)
    capacity = training.steps_per_dispatch
    limit = 1
    if capacity > 1:
        limit = int(max(1, min(capacity, handlers.steps_left(), training.checkpoints.steps_left())))
    # the steps of two device calls may be in flight: one call runs, the next one waits
    handlers.in_flight = IN_FLIGHT if capacity == 1 else max(IN_FLIGHT, 2 * capacity)
    if handlers.hear(BeginStepEvent):
        handlers(BeginStepEvent(progress.epoch, progress.step, feed, first.seconds, request, name))

    # A handler that requests values gets them of one step.
    count = limit if request.is_empty else 1
    if count > 1:
        _read_ahead(training, batches, count)
    # Handlers have received the BeginStepEvent of this step, so the step runs even if a handler has stopped the
    # training.
    batch = batches.take(1 if training.stopping() else count, capacity)
    results = request.run(program.step, batch.feed if chain is None else feed, batch.count)
    place = program.input.program.loss_output
    training.losses.add([outputs[place] for outputs, _, _ in results], progress.epoch, progress.step)
    progress.advance(batch)

    quick = batch.seconds < _SLOW and not progress.reads_once
    if quick:  # while the device computes this call, read the next minibatches
        _read_ahead(training, batches, limit)
    examples = batch.examples if chain is None else examples_in(program.input.program.feeds, feed)
    call = DeviceCall(name, results, examples, batches)
    _notify(training, call, program, feed, batch)
    # If the reader is slow or cannot restart, read the next minibatches only now, after handlers have received the
    # EndStepEvent.
    if not quick:
        _read_ahead(training, batches, limit)
        handlers.waits.look(batches.seconds, training.losses.idle)
    return call


def _notify(
    training: Training, call: DeviceCall, program: TrainedProgram, feed: Mapping[str, Any], batch: Batch
) -> None:
    """Notify handlers of the steps of one device call, except of the start of its first step.

    Handlers were notified of the start of the first step before the call.
    """
    epoch, handlers = training.progress.epoch, training.handlers
    first_step = training.progress.step - batch.count
    name = program.input.name
    begins = batch.count > 1 and handlers.hear(BeginStepEvent)
    for number, (minibatch, (metrics, fetched, parts)) in enumerate(zip(batch.each, call.results, strict=True)):
        if number > 0 and begins:
            request = StepRequest(program.input.program, in_call=True)
            handlers(BeginStepEvent(epoch, first_step + number, minibatch.feed, minibatch.seconds, request, name))
        handlers(EndStepEvent(epoch, first_step + number, metrics, fetched, call.examples, name, parts))


def _read_ahead(training: Training, batches: Batches, count: int) -> None:
    """Read minibatches ahead until `count` of them wait to be trained on, or until reading has to stop.

    After a stop, at most one minibatch is read, to know whether the epoch is complete; and none of a reader that is an
    iterator, which cannot return the minibatch to the next training. Reading also ends with a pause, and when the
    reader has no minibatch ready, unless all processes must know whether the epoch ends.
    """
    progress = training.progress
    with training.signals.reading_ahead:
        for number in range(batches.waiting + 1, count + 1):
            if training.signals.arrived is not None:
                return
            if training.stopping() and (number > 1 or progress.reads_once or training.pausing()):
                return
            if not (progress.ready or training.agreement.needs_end):
                return
            batches.read_ahead(number)
            if batches.waiting < number:
                return
