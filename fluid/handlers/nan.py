"""A handler that ends a training with infinities or NaNs, in the state before the step that made them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import TRAIN, fitting
from fluid.handlers.nan_report import State, investigate
from fluid.runtime import Request, bind
from fluid.runtime.finite import Health
from fluid.trainer import BeginStepEvent, BeginTrainEvent, EndEpochEvent, EndStepEvent, EndTrainEvent, Handler
from fluid.trainer.evaluation.means import on_host
from fluid.trainer.evaluation.values import Every, Interval, number
from fluid.trainer.step_request import StepRequest


class _Batch(NamedTuple):
    """A minibatch that a program was trained on since the last check.

    The learning rates are those that were set then; `asked` is what handlers have asked of its step, or None.
    """

    program: str
    epoch: int
    step: int
    feed: Any
    rates: list[float | None]
    request: StepRequest | None

    @property
    def replaced(self) -> dict[str, Any]:
        """What handlers have put in the place of values."""
        return {} if self.request is None else self.request.values


@fitting("fluid.handlers.TerminateOnNaN")
class TerminateOnNaN(Handler):
    """Ends training with an error when the loss, a parameter, a state or an optimizer slot is infinite or NaN.

    The scope is then as it was before the step that made it so: nothing is lost, and what is saved is finite. With
    `report=True` that step is computed again with every named value, and the error says which value was the first that
    is not finite, where in the program it was made, and which rows of the minibatch are the cause.

    Each check waits for the device, and copies the parameters and slots there. With `every=100` both happen once in a
    hundred steps; the minibatches since the last check are kept, and their steps are done again to find the one that
    failed. Put this handler last, so that the others are told of a step only after it was checked.

    Args:
      report: whether to compute the step again.
      every: a number of steps.

    Raises:
      NonFiniteError: from `train`.

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
        self._good: State | None = None
        self._slot_names: list[str] = []
        self._health = Health()

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Keep the state to go back to."""
        state = self._state()
        self._slot_names = [name for name in self.trainer.session.state() if name.startswith("@slots/")]
        # A state of the program, and a slot of some optimizers, may begin with an infinity. Parameters may not.
        self._health = Health.at_start(self._by_name(state))
        bad = self._health.exempt & {name for program in self.trainer.programs.values() for name in program.parameters}
        if complaint := Health().complaint({name: state.arrays[name] for name in bad if name in state.arrays}):
            raise errors.NonFiniteError(
                f"{complaint} before the first step; load good parameters: fluid.Trainer(..., param_path=...)"
            )
        self._keep(state)

    def steps_ahead(self) -> float:
        """Up to the next check."""
        return self._every.steps_left(self.done)

    def begin_step(self, event: BeginStepEvent) -> None:
        """Keep the minibatch until its step is checked."""
        rates = self.trainer.session.engine.rates.given(event.program)
        self._batches.append(_Batch(event.program, event.epoch, event.step, event.feed, rates, event.request))

    def end_step(self, event: EndStepEvent) -> None:
        """Check the steps since the last check, if it is due."""
        self._losses.append(event.metrics.unread(self.trainer.programs[event.program].loss_output))
        if self._every.at_step(self.done):
            self._check()

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Check the steps that are left, so that tests and files at the end of an epoch get good parameters."""
        if self._batches:
            self._check()

    def end_train(self, event: EndTrainEvent) -> None:
        """Let go of the copy."""
        self._good = None
        self._batches = []
        self._losses = []

    def _check(self) -> None:
        state = self._state()
        if self._complaint(state, self._losses):
            self._find()
        self._keep(state)

    def _complaint(self, state: State, losses: list[Any]) -> str | None:
        """What is wrong after some steps with these losses, or None."""
        found = self._health.complaint(self._by_name(state))
        lost = [loss for loss in map(number, on_host(losses)) if not np.isfinite(loss)]
        if lost:
            return f"the loss is {lost[0]:.6g}"
        return f"the loss is finite, but {found}" if found else None

    def _find(self) -> None:
        """Do the steps since the last check again, one by one; raise at the one that fails, in the state before it."""
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
            ((outputs, _),) = request.run(step, feed)
            loss = outputs[program.loss_output]
            complaint = self._complaint(self._state(), [loss])
            if complaint is None:
                continue
            report = None
            if self._report and not batch.replaced:
                its = before._replace(slots=before.slots[program.name])
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

    def _state(self) -> State:
        """The arrays and slots that the steps of all programs change, as they are."""
        scope = self.trainer.session.scope
        programs = self.trainer.programs.values()
        names = dict.fromkeys(n for p in programs for n in (*(n for m in p.minimizes for n in m.parameters), *p.states))
        return State({n: scope.arrays[n] for n in names}, dict(scope.slots), scope.step)

    def _by_name(self, state: State) -> dict[str, Any]:
        """The arrays and slots of a state, called as in `Session.state`."""
        return {**state.arrays, **dict(zip(self._slot_names, jax.tree.leaves(state.slots), strict=True))}

    def _keep(self, state: State) -> None:
        self._good = None  # first, so that there are never two copies
        self._good = _copy(state)
        self._batches = []
        self._losses = []

    def _put(self, state: State) -> None:
        """Put a copy into the scope: a step takes over the buffers that are there."""
        scope = self.trainer.session.scope
        copied = _copy(state)
        scope.arrays.update(copied.arrays)
        scope.slots.update(copied.slots)
        scope.step = copied.step


@jax.jit
def _copy(state: State) -> State:
    return jax.tree.map(jnp.copy, state)


def _short(batch: _Batch, complaint: str) -> str:
    where = f"step {batch.step} of epoch {batch.epoch}: {complaint}. The parameters are those before it. "
    if batch.replaced:
        names = ", ".join(map(repr, batch.replaced))
        return f"{where}In this step, event.override had replaced {names}, so that there is no report of the cause"
    return f"{where}To find the cause, use handlers=[fluid.handlers.TerminateOnNaN(report=True)]"
