"""Averages of parameters over the training steps, and other wrappers around an inner optimizer.

Each update of the parameters also updates the average. The average is part of the optimizer state, and is saved and
restored with it. The average is not a parameter of the program, and `save_params` does not write it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid._util.lazy import optax
from fluid.core import whole_number
from fluid.optimizer.base import Minimizer, OptimizerLike, as_optimizer
from fluid.optimizer.optax_chain import Accumulated, Rate, Scaled, replaced


class Wrapped(NamedTuple):
    """The optimizer state of a Wrapper: `inner` is the state of its inner optimizer, `own` the state of the wrapper."""

    inner: Any
    own: Any


@dataclass(frozen=True)
class Wrapper(Minimizer):
    """An optimizer around an inner optimizer; after each inner update, the method `after` may change the parameters.

    Args:
      inner_optimizer: a fluid optimizer or an optax transformation.
    """

    inner_optimizer: Any  # users also pass optax transformations, which `__post_init__` converts to a Minimizer

    def __post_init__(self) -> None:
        object.__setattr__(self, "inner_optimizer", as_optimizer(self.inner_optimizer))

    @property
    def parameter_list(self) -> Sequence[Any] | None:
        """Names of the parameters that the inner optimizer updates; None for all trainable parameters."""
        return self.inner_optimizer.parameter_list

    @property
    def declared_rate(self) -> Rate | None:
        """The configured learning rate of the inner optimizer."""
        return self.inner_optimizer.declared_rate

    def at_rate(self, rate: Any) -> Minimizer:
        """Return a copy of this wrapper (an optimizer around an inner optimizer) with the learning rate `rate`."""
        return replaced(self, inner_optimizer=self.inner_optimizer.at_rate(rate))

    def clipped_by(self, clip: Any) -> Minimizer:
        """Return a copy of this wrapper whose inner optimizer clips gradients by `clip`, an object of `fluid.clip`."""
        return replaced(self, inner_optimizer=self.inner_optimizer.clipped_by(clip))

    @property
    def accumulate_steps(self) -> int:
        """The number of steps for one update of the inner optimizer, after which the method `after` runs once."""
        return self.inner_optimizer.accumulate_steps

    @property
    def whole_tables(self) -> bool:
        """True: an update needs whole embedding tables, because a wrapper may also change rows without a gradient."""
        return True

    def start(self, params: Any) -> Any:
        """Return the initial state of this wrapper of an optimizer, such as an average of the parameters.

        The state of the inner optimizer is not included.
        """
        raise NotImplementedError

    def after(self, own: Any, before: Any, params: Any) -> tuple[Any, Any]:
        """Return the new parameters and the next state of this wrapper of an optimizer; called after each update.

        Args:
          own: the state of the wrapper, without the state of its inner optimizer.
          before: the parameters before the update, by name.
          params: the parameters after the update of the inner optimizer, by name.
        """
        raise NotImplementedError

    def rule(self) -> optax.GradientTransformation:
        """Return an optax transformation that updates by the inner optimizer, then calls the method `after`.

        The method `after` is the part that this wrapper adds, such as an average of the parameters. The transformation
        ignores the settings of every ParamAttr.
        """
        return self.one_update({})

    def one_update(self, settings: Mapping[str, Any]) -> optax.GradientTransformation:
        """Return an optax transformation: the update of the inner optimizer, followed by a call of the method `after`.

        Args:
          settings: the ParamAttr of each parameter, or None, by name.
        """
        rule = self.inner_optimizer.one_update(settings)

        def init(params: Any) -> Wrapped:
            return Wrapped(rule.init(params), self.start(params))

        def update(grads: Any, state: Wrapped, params: Any = None) -> tuple[Any, Wrapped]:
            updates, inner = rule.update(grads, state.inner, params)
            updated = optax.apply_updates(params, updates)
            new, own = self.after(state.own, params, updated)
            if new is not updated:
                updates = jax.tree.map(lambda n, p: n - p, new, params)
            return updates, Wrapped(inner, own)

        return optax.GradientTransformation(init, update)

    def current_rate(self, slots: Any) -> Any:
        """Return the learning rate of the next update of the inner optimizer, a scalar."""
        return self.inner_optimizer.current_rate(slots)


class LookaheadState(NamedTuple):
    """The state of Lookahead: the number of completed updates, and the slow weights by name."""

    count: Any
    slow: Any


@dataclass(frozen=True)
class Lookahead(Wrapper):
    """Lookahead (Zhang et al., 2019): slow weights that move towards the parameters `p` of an inner optimizer.

    After every k updates, `slow += alpha * (p - slow); p = slow`. The slow weights start as the parameters before the
    first update.

    Args:
      inner_optimizer: a fluid optimizer or an optax transformation.
      alpha: the step size of the slow weights towards the parameters, above 0 and up to 1.
      k: the number of updates between two moves of the slow weights, at least 1.

    Raises:
      ArgumentError: alpha or k is out of range.
      ArgumentTypeError: `inner_optimizer` is not an optimizer.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Lookahead(fluid.optimizer.SGD(0.1), alpha=0.5, k=5).inner_optimizer.learning_rate
      0.1
    """

    alpha: float = 0.5
    k: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("Lookahead", "k", self.k)
        if not 0 < self.alpha <= 1:
            raise errors.ArgumentError(
                f"Lookahead(alpha={self.alpha!r}): expected a number above 0 and up to 1, as in alpha=0.5; with 0 the "
                f"parameters go back to where they started every {self.k} updates"
            )

    def start(self, params: Any) -> LookaheadState:
        """Return the initial state of Lookahead: slow weights of zeros; the first update copies the parameters."""
        return LookaheadState(jnp.zeros([], jnp.int32), optax.tree.zeros_like(params))

    def after(self, own: LookaheadState, before: Any, params: Any) -> tuple[Any, LookaheadState]:
        """Return the parameters after an update of Lookahead, and the next state.

        The state holds a second copy of the parameters, the slow weights. Every `k` updates, this method moves the slow
        weights towards the parameters, and returns them as the new parameters.
        """
        count = own.count + 1
        # Set the slow weights to the parameters in the first update, and not in `start`: users may load parameters
        # after the call of `start`.
        slow = jax.tree.map(lambda s, p: jnp.where(own.count == 0, p, s), own.slow, before)
        due = count % self.k == 0
        slow = jax.tree.map(lambda s, p: jnp.where(due, s + self.alpha * (p - s), s), slow, params)
        return jax.tree.map(lambda s, p: jnp.where(due, s, p), slow, params), LookaheadState(count, slow)


LookaheadOptimizer = Lookahead


@dataclass(frozen=True)
class Average:
    """The base class of averages of parameters over training updates.

    Two Average objects with equal settings refer to one average; for two averages, give each a different `name`. The
    objects hold no arrays. The optimizer state holds the averages, and the Session holds the original parameters while
    `apply` replaces them.
    """

    def start(self, params: Any) -> Any:
        """Return the initial state of the average; `params` are the parameters by name."""
        raise NotImplementedError

    def step(self, state: Any, params: Any) -> Any:
        """Include the updated parameters `params` in their average, and return the next state of the average."""
        raise NotImplementedError

    def value(self, state: Any, params: Any) -> dict[str, Any]:
        """Return the averaged parameters, by name; before the first update, return `params`."""
        raise NotImplementedError

    def update(self) -> None:
        """Start to average all parameters that `minimize` updates.

        Call this method in a program function, after `minimize`.

        Raises:
          OutsideProgramError: no program function is running.
          ProgramError: the program function has not called `minimize` yet.

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
        """Return an optimizer that updates parameters as `optimizer` does, and also averages them over the updates.

        Args:
          optimizer: a fluid optimizer or an optax transformation.
        """
        return Averaged(optimizer, self)

    def values(self, target: Any) -> dict[str, Any]:
        """Return the averaged parameters by name.

        Args:
          target: a Session, or a Trainer.

        Raises:
          ArgumentError: no program of `target` computes this average.
        """
        session = _session(target)
        value = self.value if session.engine.members is None else jax.vmap(self.value)
        found: dict[str, Any] = {}
        for program in session.programs.values():
            for minimize, slots in zip(program.minimizes, session.scope.slots[program.name], strict=True):
                state = _find(minimize.optimizer, slots, self)
                if state is not None:
                    # If two optimizers update one parameter, each computes an average of this parameter. Only the later
                    # optimizer reads the final value of the parameter in each step, so `found` keeps its average.
                    found |= value(state, {n: session.scope.arrays[n] for n in minimize.parameters})
        if not found:
            raise errors.ArgumentError(
                f"no program here keeps {self}; call its update() after minimize, or train with "
                f"fluid.Trainer(program, average.track(optimizer))"
            )
        return found

    @contextlib.contextmanager
    def apply(self, target: Any, need_restore: bool = True) -> Iterator[None]:
        """Replace the parameters by their averages in a `with` block, for tests, inference and saving.

        The end of the block keeps parameters that were loaded, assigned or copied inside it. A training step inside the
        block raises an error if it changes these parameters, because the end of the block would undo the step.

        Args:
          target: a Session, or a Trainer.
          need_restore: True restores the parameters at the end of the block; False leaves this to `restore`.

        Raises:
          ArgumentError: no program of `target` computes this average.
        """
        session = _session(target)
        values = self.values(session)
        replaced = session.engine.replaced
        first = self not in replaced  # of nested `with` blocks, only the outermost one restores
        before = {**session.scope.arrays, **self._unchanged(session)}
        replaced[self] = {n: (before[n], value) for n, value in values.items()}
        session.scope.arrays.update(values)
        try:
            yield
        finally:
            if need_restore and first and self in replaced:
                self.restore(session)

    def restore(self, target: Any) -> None:
        """Restore the parameters that `apply(target, need_restore=False)` has replaced, and that still are averages.

        Another Average object with equal settings may also have called `apply`.

        Args:
          target: a Session, or a Trainer.

        Raises:
          ArgumentError: the parameters are not replaced by averages.
        """
        session = _session(target)
        if self not in session.engine.replaced:
            raise errors.ArgumentError(
                "there is nothing to restore: `with average.apply(trainer):` restores at its end; restore() belongs to "
                "average.apply(trainer, need_restore=False)"
            )
        session.scope.arrays.update(self._unchanged(session))
        del session.engine.replaced[self]

    def _unchanged(self, session: Any) -> dict[str, Any]:
        arrays, replaced = session.scope.arrays, session.engine.replaced.get(self, {})
        return {name: original for name, (original, average) in replaced.items() if arrays[name] is average}


class ExponentialState(NamedTuple):
    """The state of an exponential moving average.

    Attributes:
      count: the number of completed updates.
      weight: the sum of the weights of all past values of a parameter.
      total: for each parameter, the sum of its values after each update, multiplied by their weights.
    """

    count: Any
    weight: Any
    total: Any


@dataclass(frozen=True)
class ExponentialMovingAverage(Average):
    """The exponential moving average of parameters, corrected for its start at 0.

    After each update of a parameter p, `total = d * total + (1 - d) * p`, with the decay d. The average is `total`
    divided by the sum of its weights, which is `1 - d ** n` after n updates with a constant d.

    Args:
      decay: the decay d, at least 0 and below 1.
      thres_steps: limits d to at most `(1 + n) / (10 + n)`, so that the first parameters soon lose their influence.
        With True, n is the number of updates, including the current one. A function computes n from this number. None
        sets no limit.
      name: a name that distinguishes averages with equal settings.

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
        """Return the initial state of the moving average of parameters: a count of 0, and sums of 0."""
        return ExponentialState(jnp.zeros([], jnp.int32), jnp.zeros([], jnp.float32), _zeros(params))

    def step(self, state: ExponentialState, params: Any) -> ExponentialState:
        """Return the next state of the average: each weighted sum becomes `decay * sum + (1 - decay) * parameter`."""
        count = state.count + 1
        decay = jnp.float32(self.decay)
        if self.thres_steps:
            n = self.thres_steps(count) if callable(self.thres_steps) else count
            decay = jnp.minimum(decay, jnp.asarray((1 + n) / (10 + n), jnp.float32))
        # Compute the sum of the weights by the same formula as the sums of weighted parameters. The rounding errors of
        # both sums are then equal, and cancel when `value` divides one sum by the other.
        weight = decay * state.weight + (1 - decay)
        total = jax.tree.map(lambda t, p: (decay * t + (1 - decay) * p).astype(t.dtype), state.total, params)
        return ExponentialState(count, weight, total)

    def value(self, state: ExponentialState, params: Any) -> dict[str, Any]:
        """Return the averages: weighted sums divided by the sum of weights. Before the first update, return `params`.

        Args:
          state: the state of the average.
          params: the parameters by name.
        """
        begun = state.count > 0
        weight = jnp.where(begun, state.weight, 1)
        return {n: jnp.where(begun, state.total[n] / weight, p).astype(p.dtype) for n, p in params.items()}


class WindowState(NamedTuple):
    """The state of a ModelAverage, which averages over two windows of updates.

    Attributes:
      count: the number of completed updates.
      size: the number of updates in the current window.
      mean: the mean of each parameter in the current window; 0 while the window is empty.
      old_size: the number of updates in the previous window; 0 while there is none.
      old_mean: the mean of each parameter in the previous window; 0 while there is none.
    """

    count: Any
    size: Any
    mean: Any
    old_size: Any
    old_mean: Any


@dataclass(frozen=True)
class ModelAverage(Average):
    """The unweighted average of parameters over the latest updates (Polyak and Juditsky, 1992).

    Successive updates form windows. After n updates in total, a window ends as soon as it contains at least
    `min_average_window` updates and at least `min(max_average_window, average_window_rate * n)` updates. The average is
    over the current and the previous window. To average the parameters of an optimizer, call `update()` after
    `optimizer.minimize(loss)`, or wrap the optimizer: `average.track(optimizer)`. Inside
    `with average.apply(trainer):` the averages replace the parameters.

    Args:
      average_window_rate: the fraction of all updates that a window must contain before it ends.
      min_average_window: the minimum number of updates in a complete window.
      max_average_window: a limit: a window with this number of updates may end even if it contains a smaller fraction
        of all updates than `average_window_rate`.
      name: a name that distinguishes averages with equal settings.
      regularization: has no effect, because an average has no gradient; it exists for programs written for Fluid.

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
        """Return the initial state of a parameter average over two windows (groups of updates), both still empty."""
        # Create a separate array for every field: a step donates each buffer of the optimizer state, but only once.
        return WindowState(
            count=jnp.zeros([], jnp.int32),
            size=jnp.zeros([], jnp.int32),
            mean=_zeros(params),
            old_size=jnp.zeros([], jnp.int32),
            old_mean=_zeros(params),
        )

    def step(self, state: WindowState, params: Any) -> WindowState:
        """Add the parameters after an update to the average, and return the new state of the average.

        The average covers windows (groups of successive updates). If the current window is complete, the next update
        begins another window.
        """
        count = state.count + 1
        size = state.size + 1
        mean = jax.tree.map(lambda m, p: (m + (p - m) / size).astype(m.dtype), state.mean, params)
        wanted = jnp.minimum(self.max_average_window, jnp.floor(count * self.average_window_rate))
        full = (size >= self.min_average_window) & (size >= wanted)
        # The average is computed over windows (spans of consecutive updates). A new window starts with a mean of 0,
        # and not with the mean of the previous window, in which a NaN would stay forever.
        ended = WindowState(count, jnp.zeros_like(size), optax.tree.zeros_like(mean), size, mean)
        continued = WindowState(count, size, mean, state.old_size, state.old_mean)
        return jax.tree.map(lambda a, b: jnp.where(full, a, b), ended, continued)

    def value(self, state: WindowState, params: Any) -> dict[str, Any]:
        """Return the mean of each parameter over the updates in the current and the previous window.

        Before the first update, return `params`.
        """
        total = jnp.maximum(state.size + state.old_size, 1)
        share = state.size / total

        def average(name: str, value: Any) -> Any:
            both = share * state.mean[name] + (1 - share) * state.old_mean[name]
            return jnp.where(state.count > 0, both, value).astype(value.dtype)

        return {n: average(n, p) for n, p in params.items()}


@dataclass(frozen=True)
class Averaged(Wrapper):
    """An optimizer that also computes an average of its parameters; `Average.track` creates it."""

    average: Average

    def start(self, params: Any) -> Any:
        """Return the initial state of the average of the parameters."""
        return self.average.start(params)

    def after(self, own: Any, before: Any, params: Any) -> tuple[Any, Any]:
        """Return the parameters `params` after an update, unchanged, and the next state of their average."""
        return params, self.average.step(own, params)


def _zeros(params: Any) -> Any:
    """Return sums of zeros for `params`, in float32 or wider.

    In bfloat16, an average stalls: a change by a thousandth of a number is less than half of the last digit.
    """
    return jax.tree.map(lambda p: jnp.zeros_like(p, dtype=jnp.promote_types(p.dtype, jnp.float32)), params)


def _find(optimizer: Minimizer, slots: Any, average: Average) -> Any:
    """Return the state of a parameter average from the optimizer state `slots`; None if `slots` has no such state."""
    # Loss scaling and gradient accumulation wrap the optimizer state in another state: take it out first.
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
