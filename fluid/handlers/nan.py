"""TerminateOnNaN: a handler that ends training at the first non-finite value, and restores the values before it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import TRAIN, fitting
from fluid.handlers.nan_report import investigate
from fluid.runtime import Request, bind
from fluid.runtime.finite import Health
from fluid.runtime.state_io import live_state
from fluid.runtime.step import TrainingState
from fluid.trainer import BeginStepEvent, BeginTrainEvent, EndEpochEvent, EndStepEvent, EndTrainEvent, Handler
from fluid.trainer.device_calls import StepRequest
from fluid.trainer.evaluation.means import number, on_host
from fluid.trainer.every import Every, Interval


class _Batch(NamedTuple):
    """A record of one training step, with the minibatch and the settings that a repetition of the step needs.

    `rates` are the learning rates that the user or a handler has set, one for each `minimize` call of the program; None
    for a rate that was not set. `request` has the values that handlers fetch or override, or is None.
    """

    program: str
    epoch: int
    step: int
    feed: Any
    rates: list[float | None]
    request: StepRequest | None

    @property
    def replaced(self) -> dict[str, Any]:
        return {} if self.request is None else self.request.values


class _State(NamedTuple):
    """The values that training steps change: parameters, states, optimizer states and the step counter.

    `arrays` are the parameters and states by name. `slots` are the optimizer states by program name. `step` is the
    number of completed training steps.
    """

    arrays: dict[str, Any]
    slots: dict[str, Any]
    step: Any


@fitting("fluid.handlers.TerminateOnNaN")
class TerminateOnNaN(Handler):
    """A handler that ends training with an error if the loss, a parameter, a state or optimizer state is non-finite.

    It then restores the values before the failing step, so that the user can save finite parameters. With
    `report=True`, it also repeats the step with all named values. The error then names the first non-finite value, its
    line in the program, and the rows of the minibatch that cause it.

    Each check waits for the device, and copies the parameters and the optimizer state on the device. `every=100` checks
    once in a hundred steps: the handler stores the minibatches since the last check, and repeats their steps to find
    the failing step. Put this handler last in the list: the end of a step reaches handlers in reverse order, so the
    check runs before other handlers are notified of the step.

    Args:
      report: True repeats the failing step for a report; False, the default, does not.
      every: the number of steps between two checks, 1 by default.

    Raises:
      NonFiniteError: raised by `train`, if a check finds a non-finite value.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     logs = fluid.layers.log(fluid.layers.data("x", shape=[2]))
      ...     return fluid.layers.mean(fluid.layers.fc(logs, size=1))
      >>> reader = fluid.reader.arrays((np.array([[1, 2], [3, 0]], "float32"),), batch_size=2)
      >>> fluid.train(program, reader, handlers=[fluid.handlers.TerminateOnNaN(report=True)])
      Traceback (most recent call last):
        ...
      fluid.errors.NonFiniteError: step 0 of epoch 0 is not finite. The first such value is 'log_0.tmp_0' ...
    """

    for_members = False

    def __init__(self, report: bool = False, every: Interval = 1):
        self._report = report
        self._every = Every(every, "TerminateOnNaN")
        self._batches: list[_Batch] = []
        self._losses: list[Any] = []
        self._good: _State | None = None
        self._slot_names: list[str] = []
        self._health = Health()

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Copy the parameters, states and optimizer states, to restore them after a step with a non-finite value.

        Raises:
          NonFiniteError: a parameter is non-finite before the first step.
        """
        state = self._state()
        self._slot_names = [name for name in live_state(self.trainer.session) if name.startswith("@slots/")]
        # Arrays that are non-finite before the first step are not checked later: a state of the program or the
        # optimizer may start with an infinity. But a parameter that is non-finite before the first step is an error.
        self._health = Health.at_start(self._by_name(state))
        bad = self._health.exempt & {name for program in self.trainer.programs.values() for name in program.parameters}
        if complaint := Health().complaint({name: state.arrays[name] for name in bad if name in state.arrays}):
            raise errors.NonFiniteError(
                f"{complaint} before the first step; load good parameters: fluid.Trainer(..., param_path=...)"
            )
        self._keep(state)

    def begin_step(self, event: BeginStepEvent) -> None:
        """Store the minibatch and the settings of this step; if a later check finds NaN, it repeats the step."""
        rates = self.trainer.session.engine.rates.given(event.program)
        self._batches.append(_Batch(event.program, event.epoch, event.step, event.feed, rates, event.request))

    def end_step(self, event: EndStepEvent) -> None:
        """Check the steps since the last check for non-finite values, if a check is due."""
        self._losses.append(event.metrics[self.trainer.programs[event.program].loss_output])
        if self._every.at_step(self.done):
            self._check()

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Check the steps since the last check for NaN and infinity.

        Tests and checkpoints after an epoch need finite parameters.
        """
        if self._batches:
            self._check()

    def end_train(self, event: EndTrainEvent) -> None:
        """Release the memory of the arrays that this handler copied, and of the minibatches since the last check."""
        self._good = None
        self._batches = []
        self._losses = []

    def _check(self) -> None:
        state = self._state()
        if self._complaint(state, self._losses):
            self._find()
        self._keep(state)

    def _complaint(self, state: _State, losses: list[Any]) -> str | None:
        """Describe the first non-finite loss, or else the first non-finite array; return None if all are finite."""
        found = self._health.complaint(self._by_name(state))
        lost = [loss for loss in map(number, on_host(losses)) if not np.isfinite(loss)]
        if lost:
            return f"the loss is {lost[0]:.6g}"
        return f"the loss is finite, but {found}" if found else None

    def _find(self) -> None:
        """Repeat the steps since the last check, to find the first step that computes a non-finite value."""
        session = self.trainer.session
        programs = self.trainer.programs
        assert self._good is not None
        rates = {name: session.engine.rates.given(name) for name in programs}
        self._put(self._good)
        for batch in self._batches:
            program = programs[batch.program]
            step = bind(session.engine, program, Request(TRAIN, None, tuple(program.feeds)))
            session.engine.rates.put(program.name, batch.rates)
            before = _copy(self._state())
            request = StepRequest(program)
            request.override(batch.replaced)
            feed = dict(batch.feed)
            ((outputs, *_),) = request.run(step, feed)
            loss = outputs[program.loss_output]
            complaint = self._complaint(self._state(), [loss])
            if complaint is None:
                continue
            report = None
            if self._report and not batch.replaced:
                its = TrainingState(before.arrays, before.slots[program.name], before.step)
                report = investigate(session, program, its, feed, batch.epoch, batch.step)
            self._put(before)
            raise errors.NonFiniteError(_short(batch, complaint) if report is None else str(report), report)
        self._put(self._good)
        for name, given in rates.items():
            session.engine.rates.put(name, given)
        first = self._batches[0]
        last = self._batches[-1]
        raise errors.NonFiniteError(
            f"the loss or a parameter was not finite after the steps {first.step} to {last.step} of epoch "
            f"{last.epoch}, and is finite when these are done again: the device does not compute the same twice"
        )

    def _state(self) -> _State:
        """Return the arrays, optimizer states and step counter that training steps change, without copying them."""
        scope = self.trainer.session.scope
        programs = self.trainer.programs.values()
        names = dict.fromkeys(n for p in programs for n in (*(n for m in p.minimizes for n in m.parameters), *p.states))
        return _State({n: scope.arrays[n] for n in names}, dict(scope.slots), scope.step)

    def _by_name(self, state: _State) -> dict[str, Any]:
        return {**state.arrays, **dict(zip(self._slot_names, jax.tree.leaves(state.slots), strict=True))}

    def _keep(self, state: _State) -> None:
        # Release the old copy of the arrays before making the new copy, because both together would need twice the
        # memory.
        self._good = None
        self._good = _copy(state)
        self._batches = []
        self._losses = []

    def _put(self, state: _State) -> None:
        """Replace the Session's arrays by a copy of `state`.

        A copy is necessary, because the next training step donates (reuses) the buffers of the Session's arrays.
        """
        scope = self.trainer.session.scope
        copied = _copy(state)
        scope.arrays.update(copied.arrays)
        scope.slots.update(copied.slots)
        scope.step = copied.step


@jax.jit
def _copy(state: _State) -> _State:
    return jax.tree.map(jnp.copy, state)


def _short(batch: _Batch, complaint: str) -> str:
    where = f"step {batch.step} of epoch {batch.epoch}: {complaint}. The parameters are those before it. "
    if batch.replaced:
        names = ", ".join(map(repr, batch.replaced))
        return f"{where}In this step, event.override had replaced {names}, so that there is no report of the cause"
    return f"{where}To find the cause, use handlers=[fluid.handlers.TerminateOnNaN(report=True)]"
