"""Averages of parameters over the course of training: ExponentialMovingAverage, ModelAverage.

An average is kept among the optimizer's slots and follows each change of the parameters. It is saved and restored with
the slots; `save_params` does not write it, and it is not among the parameters of the program.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import whole_number
from fluid.lazy import optax
from fluid.optimizer.base import Minimizer, OptimizerLike
from fluid.optimizer.loss_scale import Scaled
from fluid.optimizer.parts import Accumulated
from fluid.optimizer.wrapper import Wrapped, Wrapper


@dataclass(frozen=True)
class Average:
    """What averages of parameters have in common.

    Averages with equal settings are the same average; the setting `name` tells two of them apart. The objects hold no
    state: averaged values lie in the slots, and what `apply` has replaced lies in the Session.
    """

    def start(self, params: Any) -> Any:
        """The average's state before the first update."""
        raise NotImplementedError

    def step(self, state: Any, params: Any) -> Any:
        """The average's next state, after an update has given the parameters these values."""
        raise NotImplementedError

    def value(self, state: Any, params: Any) -> dict[str, Any]:
        """The averaged parameters; the parameters themselves before the first update."""
        raise NotImplementedError

    def update(self) -> None:
        """Inside a program function, after `minimize`: keep this average of all parameters that are minimised there.

        Raises:
          OutsideProgramError: no program function is running.
          ProgramError: nothing is minimised yet.

        Example:
          >>> import fluid
          >>> ema = fluid.optimizer.ExponentialMovingAverage(0.999)
          >>> def program():
          ...     x = fluid.layers.data("x", shape=[4])
          ...     loss = fluid.layers.mean(fluid.layers.fc(x, size=1))
          ...     fluid.optimizer.SGD(0.1).minimize(loss)
          ...     ema.update()
          ...     return loss
          >>> sorted(ema.values(fluid.Session(program)))
          ['fc_0.b_0', 'fc_0.w_0']
        """
        frame = core.current_frame(f"optimizer.{type(self).__name__}.update")
        if not frame.made.minimizations:
            raise errors.ProgramError(
                f"{type(self).__name__}.update() was called before anything is minimised; call it after "
                f"optimizer.minimize(loss), or wrap the optimizer: fluid.Trainer(program, average.track(optimizer))"
            )
        frame.made.minimizations[:] = [m._replace(optimizer=self.track(m.optimizer)) for m in frame.made.minimizations]

    def track(self, optimizer: OptimizerLike) -> Minimizer:
        """An optimizer that updates like the given one, and keeps this average of its parameters.

        Args:
          optimizer: a fluid optimizer or an optax transformation.
        """
        return Averaged(optimizer, self)

    def values(self, target: Any) -> dict[str, Any]:
        """The averaged parameters by name.

        Args:
          target: a Session, or a Trainer.

        Raises:
          ArgumentError: no program of it keeps this average.
        """
        session = _session(target)
        value = self.value if session.engine.members is None else jax.vmap(self.value)
        found: dict[str, Any] = {}
        for program in session.programs.values():
            for minimize, slots in zip(program.minimizes, session.scope.slots[program.name], strict=True):
                state = _find(minimize.optimizer, slots, self)
                if state is not None:
                    # Where two optimizers update one parameter, the later one sees the value at the end of the step.
                    found |= value(state, {n: session.scope.arrays[n] for n in minimize.parameters})
        if not found:
            raise errors.ArgumentError(
                f"no program here keeps {self}; call its update() after minimize, or train with "
                f"fluid.Trainer(program, average.track(optimizer))"
            )
        return found

    @contextlib.contextmanager
    def apply(self, target: Any, need_restore: bool = True) -> Iterator[None]:
        """Replace the parameters by their averages while a block runs, which may test, infer and save.

        Training steps that would change these parameters are refused meanwhile: putting the parameters back would undo
        them.

        Args:
          target: a Session, or a Trainer.
          need_restore: False leaves the averages in place after the block, until `restore` is called.

        Raises:
          ArgumentError: no program of it keeps this average.
        """
        session = _session(target)
        values = self.values(session)
        first = self not in session.engine.replaced  # applied twice, the first time has replaced the parameters
        if first:
            session.engine.replaced[self] = {n: session.scope.arrays[n] for n in values}
        session.scope.arrays.update(values)
        try:
            yield
        finally:
            if need_restore and first and self in session.engine.replaced:
                self.restore(session)

    def restore(self, target: Any) -> None:
        """Put back the parameters that `apply(target, need_restore=False)` of this average, or an equal one, replaced.

        Args:
          target: a Session, or a Trainer.

        Raises:
          ArgumentError: nothing is replaced.
        """
        session = _session(target)
        if self not in session.engine.replaced:
            raise errors.ArgumentError(
                "there is nothing to restore: `with average.apply(trainer):` restores at its end; restore() belongs to "
                "average.apply(trainer, need_restore=False)"
            )
        session.scope.arrays.update(session.engine.replaced.pop(self))


class ExponentialState(NamedTuple):
    """State of an exponential moving average.

    Attributes:
      count: updates done.
      weight: the sum of the weights of all updates.
      total: for each parameter the weighted sum of its values.
    """

    count: Any
    weight: Any
    total: Any


@dataclass(frozen=True)
class ExponentialMovingAverage(Average):
    """The exponential moving average of parameters, corrected for its start at 0.

    `total = d * total + (1 - d) * p`, and the average is the total divided by the sum of the weights in it, which is
    `1 - d ** n` after n updates with one d.

    Args:
      decay: d, at least 0 and below 1.
      thres_steps: limits d to at most `(1 + n) / (10 + n)`, so that the average forgets the beginning quickly. True
        takes the number of updates, with this one, for n; a function computes n from that number; None sets no limit.
      name: tells averages with equal settings apart.

    Raises:
      ArgumentError: the decay is below 0, or not below 1.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[2])
      ...     return fluid.layers.mean(fluid.layers.fc(x, size=1, bias_attr=False))
      >>> ema = fluid.optimizer.ExponentialMovingAverage(0.9)
      >>> trainer = fluid.Trainer(program, ema.track(fluid.optimizer.SGD(0.1)))
      >>> history = trainer.train([[(np.ones(2, "float32"),)]], num_epochs=3)
      >>> last = trainer.params["fc_0.w_0"]
      >>> with ema.apply(trainer):  # test, or trainer.save_params(path)
      ...     averaged = trainer.params["fc_0.w_0"]
      >>> bool((averaged > last).all()), bool((trainer.params["fc_0.w_0"] == last).all())
      (True, True)
    """

    decay: float = 0.999
    thres_steps: bool | Callable[[Any], Any] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.decay < 1:
            raise errors.ArgumentError(
                f"ExponentialMovingAverage(decay={self.decay!r}): expected a number from 0 up to 1, as in decay=0.999"
            )
        if isinstance(self.decay, Real) and 0 < self.decay < 0.5:
            core.warn(
                f"ExponentialMovingAverage(decay={self.decay!r}) keeps {self.decay:g} of the average in each step, so "
                f"that it is hardly more than the parameters of the last step; decay={1 - self.decay:g} if "
                f"{self.decay:g} is the share of the new parameters"
            )

    def start(self, params: Any) -> ExponentialState:
        """No updates, and sums of zero."""
        return ExponentialState(jnp.zeros([], jnp.int32), jnp.zeros([], jnp.float32), optax.tree.zeros_like(params))

    def step(self, state: ExponentialState, params: Any) -> ExponentialState:
        """Add the parameters to the sums, after these were multiplied by the decay."""
        count = state.count + 1
        decay = jnp.float32(self.decay)
        if self.thres_steps:
            n = self.thres_steps(count) if callable(self.thres_steps) else count
            decay = jnp.minimum(decay, jnp.asarray((1 + n) / (10 + n), jnp.float32))
        # The weights are summed like the parameters, so that the division cancels the rounding of both.
        weight = decay * state.weight + (1 - decay)
        total = jax.tree.map(lambda t, p: (decay * t + (1 - decay) * p).astype(t.dtype), state.total, params)
        return ExponentialState(count, weight, total)

    def value(self, state: ExponentialState, params: Any) -> dict[str, Any]:
        """The sums divided by the sum of the weights."""
        begun = state.count > 0
        weight = jnp.where(begun, state.weight, 1)
        return {n: jnp.where(begun, state.total[n] / weight, p).astype(p.dtype) for n, p in params.items()}


class WindowState(NamedTuple):
    """State of an average over windows.

    Attributes:
      count: updates done.
      size: updates in the current window.
      mean: for each parameter the mean of its values in the current window; 0 while that is empty.
      old_size: updates in the window before.
      old_mean: for each parameter the mean of its values in the window before; 0 while there is none.
    """

    count: Any
    size: Any
    mean: Any
    old_size: Any
    old_mean: Any


@dataclass(frozen=True)
class ModelAverage(Average):
    """The plain average of parameters over a window at the end of training (Polyak and Juditsky, 1992).

    A window ends, and the next one begins, when it holds at least `min_average_window` updates, and at least
    `average_window_rate` times all updates so far or `max_average_window`, whichever is smaller. The average is over
    the current window and the one before. `update()` after `minimize`, or `track`, chooses the parameters.

    Args:
      average_window_rate: share of all updates that a window shall hold.
      min_average_window: a window holds at least so many updates.
      max_average_window: a window with so many updates need not hold the share.
      name: tells averages with equal settings apart.
      regularization: accepted for programs written for Fluid, but has no effect: an average has no gradient.

    Raises:
      ArgumentError: the rate is below 0, or a window below 1.

    Example:
      >>> import fluid
      >>> average = fluid.optimizer.ModelAverage(0.15, min_average_window=100, max_average_window=1000)
      >>> average.track(fluid.optimizer.SGD(0.1)).inner_optimizer.learning_rate
      0.1
    """

    average_window_rate: float = 0.15
    min_average_window: int = 10000
    max_average_window: int = 10000
    name: str | None = None
    regularization: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("min_average_window", "max_average_window"):
            whole_number("ModelAverage", name, getattr(self, name))
        if not self.average_window_rate >= 0:
            raise errors.ArgumentError(
                f"ModelAverage(average_window_rate={self.average_window_rate!r}): expected a share of all updates, "
                f"from 0 on, as in average_window_rate=0.15"
            )

    def start(self, params: Any) -> WindowState:
        """Two empty windows."""
        # No array is in two places: a step takes the buffers of its slots over.
        return WindowState(
            count=jnp.zeros([], jnp.int32),
            size=jnp.zeros([], jnp.int32),
            mean=optax.tree.zeros_like(params),
            old_size=jnp.zeros([], jnp.int32),
            old_mean=optax.tree.zeros_like(params),
        )

    def step(self, state: WindowState, params: Any) -> WindowState:
        """Add the parameters to the mean of the current window; if that is full now, begin the next one."""
        count = state.count + 1
        size = state.size + 1
        mean = jax.tree.map(lambda m, p: (m + (p - m) / size).astype(m.dtype), state.mean, params)
        wanted = jnp.minimum(self.max_average_window, jnp.floor(count * self.average_window_rate))
        full = (size >= self.min_average_window) & (size >= wanted)
        # An empty window has the mean 0 and not that of the window before: a NaN in it would never go away.
        ended = WindowState(count, jnp.zeros_like(size), optax.tree.zeros_like(mean), size, mean)
        continued = WindowState(count, size, mean, state.old_size, state.old_mean)
        return jax.tree.map(lambda a, b: jnp.where(full, a, b), ended, continued)

    def value(self, state: WindowState, params: Any) -> dict[str, Any]:
        """The mean over both windows."""
        total = jnp.maximum(state.size + state.old_size, 1)
        share = state.size / total

        def average(name: str, value: Any) -> Any:
            both = share * state.mean[name] + (1 - share) * state.old_mean[name]
            return jnp.where(state.count > 0, both, value).astype(value.dtype)

        return {n: average(n, p) for n, p in params.items()}


@dataclass(frozen=True)
class Averaged(Wrapper):
    """An optimizer, and an average of the parameters that it changes; made by `Average.track`."""

    average: Average

    def start(self, params: Any) -> Any:
        """The average's state before the first update."""
        return self.average.start(params)

    def after(self, own: Any, before: Any, params: Any) -> tuple[Any, Any]:
        """The parameters as they are, and the average's next state."""
        return params, self.average.step(own, params)


def _find(optimizer: Minimizer, slots: Any, average: Average) -> Any:
    """The state of an average among the slots of an optimizer, or None."""
    # The slots of all wrappers lie inside those of loss scaling, and with accumulate_steps > 1 of gathering gradients.
    if isinstance(slots, Scaled):
        slots = slots.inner
    if isinstance(slots, Accumulated):
        slots = slots.inner
    while isinstance(optimizer, Wrapper) and isinstance(slots, Wrapped):
        if isinstance(optimizer, Averaged) and optimizer.average == average:
            return slots.own
        optimizer = optimizer.inner_optimizer
        slots = slots.inner
    return None


def _session(target: Any) -> Any:
    session = getattr(target, "session", target)
    if not isinstance(getattr(session, "programs", None), Mapping) or not hasattr(session, "scope"):
        raise errors.ArgumentTypeError(
            f"an average is applied to a Session or a Trainer, found {type(target).__name__}: "
            f"with average.apply(trainer): ..."
        )
    return session
