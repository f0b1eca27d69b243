"""Ending a training whose numbers have gone, at the last step at which they were good."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import TRAIN
from fluid.handlers.nan_report import State, investigate
from fluid.handlers.values import Every, Interval
from fluid.session import Request
from fluid.trainer import BeginStepEvent, BeginTrainEvent, EndEpochEvent, EndStepEvent, EndTrainEvent, Handler


class _Batch(NamedTuple):
    """A minibatch that was trained on since the last check."""

    epoch: int
    step: int
    feed: Any


class TerminateOnNaN(Handler):
    """Ends training with an error when the loss, a parameter, a state or an optimizer slot is infinite or no number.

    The scope is then as it was before the step that did it, so that nothing is lost, and what is saved is finite. With
    `report=True` that step is looked into with every named value: the error says which value was the first, where in
    the program it was made, and which rows of the minibatch did it.

    It costs a copy of the parameters and slots on the device, and a wait for the device at each check. With
    `every=100` both come once in a hundred steps; the steps since the last check, whose minibatches are kept, are then
    done again to find the one that did it. Put this handler last, so that the others are told of a step after it.

    Args:
      report: whether to look into the step.
      every: a number of steps.

    Raises:
      NonFiniteError: from `train`.

    Example:
      >>> import fluid
      >>> handlers = [fluid.ProgressBar(show=False), fluid.handlers.TerminateOnNaN(report=True)]
    """

    def __init__(self, report: bool = False, every: Interval = 1):
        self._report = report
        self._every = Every(every, "TerminateOnNaN")
        self._batches: list[_Batch] = []
        self._losses: list[Any] = []
        self._good: State | None = None
        self._exempt: set[str] = set()
        self._spoilt_slots = 0

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Keep the state to go back to."""
        state = self._state()
        # A state of the program, and the slots of some rules, may begin with an infinity.
        self._exempt = spoilt(state.arrays)
        self._spoilt_slots = int(_counts({}, state.slots)[1])
        found = sorted(self._exempt & set(self.trainer.program.parameters))
        if found:
            raise errors.NonFiniteError(
                f"{', '.join(found[:5])} {'are' if len(found) > 1 else 'is'} not finite before the first step; "
                f"load good parameters: fluid.Trainer(..., param_path=...)"
            )
        self._keep(state)

    def begin_step(self, event: BeginStepEvent) -> None:
        """Remember the minibatch."""
        self._batches.append(_Batch(event.epoch, event.step, event.feed))

    def end_step(self, event: EndStepEvent) -> None:
        """Check, if it is due."""
        self._losses.append(event.metrics[0])
        if self._every.at_step(self.done):
            self._check()

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Check what is left, so that tests and files of the epoch's end see good parameters."""
        if self._batches:
            self._check()

    def end_train(self, event: EndTrainEvent) -> None:
        """Let go of the copy."""
        self._good = None
        self._batches, self._losses = [], []

    def _check(self) -> None:
        state = self._state()
        if self._bad(state, self._losses):
            self._find()
        self._keep(state)

    def _bad(self, state: State, losses: list[Any]) -> bool:
        checked = {name: value for name, value in state.arrays.items() if name not in self._exempt}
        found, lost = jax.device_get((_counts(checked, state.slots), losses))
        return bool(found[0] or found[1] > self._spoilt_slots or not np.isfinite(lost).all())

    def _find(self) -> None:
        """Do the steps since the last check again, one by one; raise where it goes wrong, with the state before."""
        session, program = self.trainer.session, self.trainer.program
        step = session.step(program, Request(TRAIN, None, tuple(program.feeds)))
        assert self._good is not None
        self._put(self._good)
        for batch in self._batches:
            before = _copy(self._state())
            loss = step(batch.feed)[0]
            after = self._state()
            if not self._bad(after, [loss]):
                continue
            report = None
            if self._report:
                report = investigate(session, program, before, batch.feed, batch.epoch, batch.step)
            told = _short(batch, loss, spoilt(after.arrays) - self._exempt) if report is None else str(report)
            self._put(before)
            raise errors.NonFiniteError(told, report)
        self._put(self._good)
        first, last = self._batches[0], self._batches[-1]
        raise errors.NonFiniteError(
            f"the loss or a parameter was not finite after the steps {first.step} to {last.step} of epoch "
            f"{last.epoch}, and is when these are done again: the device does not compute the same twice"
        )

    def _state(self) -> State:
        """The arrays that a step changes, as they are."""
        scope, program = self.trainer.session.scope, self.trainer.program
        names = dict.fromkeys((*(n for m in program.minimizes for n in m.parameters), *program.states))
        return State({n: scope.arrays[n] for n in names}, scope.slots[program.name], scope.step)

    def _keep(self, state: State) -> None:
        self._good = None  # before there is another
        self._good = _copy(state)
        self._batches, self._losses = [], []

    def _put(self, state: State) -> None:
        """Put a copy into the scope; a step takes over what is there."""
        scope, copied = self.trainer.session.scope, _copy(state)
        scope.arrays.update(copied.arrays)
        scope.slots[self.trainer.program.name] = copied.slots
        scope.step = copied.step


def spoilt(arrays: Mapping[str, Any]) -> set[str]:
    """Which arrays hold something infinite or no number; waits for them."""
    return {name for name, finite in jax.device_get(_finite(dict(arrays))).items() if not finite}


@jax.jit
def _finite(arrays: dict[str, Any]) -> dict[str, Any]:
    return {n: jnp.isfinite(v).all() for n, v in arrays.items() if jnp.issubdtype(v.dtype, jnp.inexact)}


@jax.jit
def _counts(arrays: dict[str, Any], slots: Any) -> Any:
    """How many arrays, and how many optimizer slots, hold something infinite or no number: one array `[2]`."""
    return jnp.stack([_count(arrays), _count(slots)])


def _count(tree: Any) -> Any:
    leaves = [v for v in jax.tree.leaves(tree) if jnp.issubdtype(v.dtype, jnp.inexact)]
    return sum((~jnp.isfinite(v).all() for v in leaves), start=jnp.int32(0))


@jax.jit
def _copy(state: State) -> State:
    return jax.tree.map(jnp.copy, state)


def _short(batch: _Batch, loss: Any, names: set[str]) -> str:
    wrong = f"the loss is {float(loss):.6g}"
    if np.isfinite(float(loss)):
        wrong = f"the loss is finite, but not {', '.join(sorted(names)[:5]) or 'an optimizer slot'}"
    return (
        f"step {batch.step} of epoch {batch.epoch}: {wrong}. The parameters are those before it. What did it is said "
        f"by handlers=[fluid.handlers.TerminateOnNaN(report=True)]"
    )
