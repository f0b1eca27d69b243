"""Averages of parameters over the course of training: ExponentialMovingAverage, ModelAverage.

An average is kept among the optimizer's slots and follows each change of the parameters; it is saved and restored with
the slots, and neither `save_params` nor the list of parameters knows it.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.lazy import optax
from fluid.optimizer.base import Minimizer
from fluid.optimizer.wrapper import Wrapped, Wrapper


@dataclass(frozen=True)
class Average:
    """What averages of parameters have in common.

    An average is known by what it says, not by which object it is: equal ones are the same average.
    """

    _replaced: Any = field(default_factory=weakref.WeakKeyDictionary, init=False, repr=False, compare=False)

    def start(self, params: Any) -> Any:
        """The average's state before the first update."""
        raise NotImplementedError

    def step(self, state: Any, params: Any) -> Any:
        """The average's next state, when an update has given the parameters these values."""
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

    def track(self, optimizer: Any) -> Minimizer:
        """An optimizer that does what the given one does, and keeps this average of its parameters.

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
        found: dict[str, Any] = {}
        for program in session.programs.values():
            for minimize, slots in zip(program.minimizes, session.scope.slots[program.name], strict=True):
                state = _find(minimize.optimizer, slots, self)
                if state is not None:
                    # Where two minimize one parameter, the later one sees what the step ends with.
                    found |= self.value(state, {n: session.scope.arrays[n] for n in minimize.parameters})
        if not found:
            raise errors.ArgumentError(
                f"no program here keeps {self}; call its update() after minimize, or train with "
                f"fluid.Trainer(program, average.track(optimizer))"
            )
        return found

    @contextlib.contextmanager
    def apply(self, target: Any, need_restore: bool = True) -> Iterator[None]:
        """Put the averaged parameters in the place of the parameters while a block runs.

        The block may test, infer and save; training goes on after it.

        Args:
          target: a Session, or a Trainer.
          need_restore: False to leave them there at the end, until `restore`.

        Raises:
          ArgumentError: no program of it keeps this average.
        """
        session = _session(target)
        values = self.values(session)
        replaced = {n: session.scope.arrays[n] for n in values}
        session.scope.arrays.update(values)
        if not need_restore:
            self._replaced.setdefault(session, replaced)
        try:
            yield
        finally:
            if need_restore:
                session.scope.arrays.update(replaced)

    def restore(self, target: Any) -> None:
        """Put the parameters back that `apply(target, need_restore=False)` has replaced.

        Raises:
          ArgumentError: nothing is replaced.
        """
        session = _session(target)
        if session not in self._replaced:
            raise errors.ArgumentError(
                "there is nothing to restore: `with average.apply(trainer):` restores at its end; restore() belongs to "
                "average.apply(trainer, need_restore=False)"
            )
        session.scope.arrays.update(self._replaced.pop(session))


class ExponentialState(NamedTuple):
    """Updates done, how much all of them weigh, and the sums weighed so."""

    count: Any
    weight: Any
    total: Any


@dataclass(frozen=True)
class ExponentialMovingAverage(Average):
    """The exponential moving average of parameters, of which the start at 0 is corrected.

    `total = d * total + (1 - d) * p`, and the average is total divided by the weight of the parameters in it, which is
    `1 - d ** n` after n updates with one d.

    Args:
      decay: d, from 0 up to 1.
      thres_steps: d is at most `(1 + n) / (10 + n)`, so that the average forgets the beginning quickly: True takes n as
        the number of updates, this one counted; a function makes another n of that number; None leaves d as it is.
      name: tells averages with equal settings apart.

    Raises:
      ArgumentError: the decay is not in 0..1, or is 1.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[2])
      ...     return fluid.layers.mean(fluid.layers.fc(x, size=1, bias_attr=False))
      >>> ema = fluid.optimizer.ExponentialMovingAverage(0.9)
      >>> trainer = fluid.Trainer(program, ema.track(fluid.optimizer.SGD(0.1)))
      >>> trainer.train([[(np.ones(2, "float32"),)]], num_epochs=3)
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

    def start(self, params: Any) -> ExponentialState:
        """See Average."""
        return ExponentialState(jnp.zeros([], jnp.int32), jnp.zeros([], jnp.float32), optax.tree.zeros_like(params))

    def step(self, state: ExponentialState, params: Any) -> ExponentialState:
        """See Average."""
        count = state.count + 1
        decay = jnp.float32(self.decay)
        if self.thres_steps:
            n = self.thres_steps(count) if callable(self.thres_steps) else count
            decay = jnp.minimum(decay, jnp.asarray((1 + n) / (10 + n), jnp.float32))
        # The weight is summed up like the parameters, so that its rounding cancels theirs.
        weight = decay * state.weight + (1 - decay)
        total = jax.tree.map(lambda t, p: (decay * t + (1 - decay) * p).astype(t.dtype), state.total, params)
        return ExponentialState(count, weight, total)

    def value(self, state: ExponentialState, params: Any) -> dict[str, Any]:
        """See Average."""
        some, weight = state.count > 0, jnp.where(state.count > 0, state.weight, 1)
        return {n: jnp.where(some, state.total[n] / weight, p).astype(p.dtype) for n, p in params.items()}


class WindowState(NamedTuple):
    """Updates done; then, for the current window and for the one before: how many updates, and their mean."""

    count: Any
    size: Any
    mean: Any
    old_size: Any
    old_mean: Any


@dataclass(frozen=True)
class ModelAverage(Average):
    """The plain average of parameters over a window at the end of training (Polyak and Juditsky, 1992).

    A window is closed when it holds at least `min_average_window` updates and at least the smaller of
    `max_average_window` and `average_window_rate` times all updates; then the next one begins. The average is over the
    current window and the one before. `update()` after `minimize`, or `track`, says which parameters are averaged.

    Args:
      average_window_rate: share of all updates that a window shall hold.
      min_average_window: updates that a window holds at least.
      max_average_window: updates from which it is closed whatever the rate says.
      name: tells averages with equal settings apart.

    Raises:
      ArgumentError: a window is not positive.

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

    def __post_init__(self) -> None:
        if self.average_window_rate < 0 or self.min_average_window < 1 or self.max_average_window < 1:
            raise errors.ArgumentError(
                f"{self}: expected a rate from 0 on and windows of at least 1; "
                f"write ModelAverage(0.15, min_average_window=10000, max_average_window=10000)"
            )

    def start(self, params: Any) -> WindowState:
        """See Average."""
        # Arrays of their own each, since a step takes the buffers of its slots over.
        empty = [(jnp.zeros([], jnp.int32), optax.tree.zeros_like(params)) for _ in range(2)]
        return WindowState(jnp.zeros([], jnp.int32), *empty[0], *empty[1])

    def step(self, state: WindowState, params: Any) -> WindowState:
        """See Average."""
        count, size = state.count + 1, state.size + 1
        mean = jax.tree.map(lambda m, p: (m + (p - m) / size).astype(m.dtype), state.mean, params)
        wanted = jnp.minimum(self.max_average_window, jnp.floor(count * self.average_window_rate))
        full = (size >= self.min_average_window) & (size >= wanted)
        old_size, old_mean = _choose(full, (size, mean), (state.old_size, state.old_mean))
        # A mean over no updates does not count, whatever it is.
        return WindowState(count, jnp.where(full, 0, size), mean, old_size, old_mean)

    def value(self, state: WindowState, params: Any) -> dict[str, Any]:
        """See Average."""
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
        """See Wrapper."""
        return self.average.start(params)

    def after(self, own: Any, before: Any, params: Any) -> tuple[Any, Any]:
        """See Wrapper."""
        return params, self.average.step(own, params)


def _choose(condition: Any, first: Any, second: Any) -> Any:
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)


def _find(optimizer: Minimizer, slots: Any, average: Average) -> Any:
    slots = getattr(slots, "inner", slots) if optimizer.accumulate_steps > 1 else slots
    while isinstance(optimizer, Wrapper) and isinstance(slots, Wrapped):
        if isinstance(optimizer, Averaged) and optimizer.average == average:
            return slots.own
        optimizer, slots = optimizer.inner_optimizer, slots.inner
    return None


def _session(target: Any) -> Any:
    session = getattr(target, "session", target)
    if not isinstance(getattr(session, "programs", None), Mapping) or not hasattr(session, "scope"):
        raise errors.ArgumentTypeError(
            f"an average is applied to a Session or a Trainer, found {type(target).__name__}: "
            f"with average.apply(trainer): ..."
        )
    return session
