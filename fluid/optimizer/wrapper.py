"""Wrappers: what stands around an optimizer and sees the parameters after its update. Lookahead is one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.lazy import optax
from fluid.optimizer.base import Minimizer, as_optimizer


class Wrapped(NamedTuple):
    """State of a wrapper: that of the optimizer inside, and its own."""

    inner: Any
    own: Any


@dataclass(frozen=True)
class Wrapper(Minimizer):
    """An optimizer around another one, which it leaves as it is but for what `after` changes.

    Args:
      inner_optimizer: a fluid optimizer or an optax transformation.
    """

    inner_optimizer: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "inner_optimizer", as_optimizer(self.inner_optimizer))

    @property
    def parameter_list(self) -> Sequence[Any] | None:
        """That of the optimizer inside."""
        return self.inner_optimizer.parameter_list

    @property
    def accumulate_steps(self) -> int:
        """That of the optimizer inside: a wrapper counts updates, not the steps between."""
        return self.inner_optimizer.accumulate_steps

    @property
    def whole_tables(self) -> bool:
        """See Minimizer: a wrapper moves on whatever the gradients are."""
        return True

    def start(self, params: Any) -> Any:
        """The wrapper's own state before the first update."""
        raise NotImplementedError

    def after(self, own: Any, before: Any, params: Any) -> tuple[Any, Any]:
        """The parameters to go on with, and the wrapper's own next state.

        Args:
          own: its state.
          before: the parameters before the update, by name.
          params: the parameters as the optimizer inside has updated them.
        """
        raise NotImplementedError

    def rule(self) -> optax.GradientTransformation:
        """See Minimizer."""
        return self.one_update({})

    def one_update(self, settings: Mapping[str, Any]) -> optax.GradientTransformation:
        """See Minimizer."""
        rule = self.inner_optimizer.one_update(settings) if settings else self.inner_optimizer.rule()

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
        """That of the optimizer inside."""
        return self.inner_optimizer.current_rate(slots)


class LookaheadState(NamedTuple):
    """Updates done, and the slow weights."""

    count: Any
    slow: Any


@dataclass(frozen=True)
class Lookahead(Wrapper):
    """Lookahead (Zhang et al., 2019): slow weights follow the optimizer inside, which starts again from them.

    Every k updates `slow += alpha * (p - slow); p = slow`. The slow weights are at first the parameters as they are
    before the first update.

    Args:
      inner_optimizer: a fluid optimizer or an optax transformation.
      alpha: how far the slow weights go towards the others.
      k: how many updates lie between.

    Raises:
      ArgumentError: alpha is not in 0..1 or k is no positive whole number.
      ArgumentTypeError: the optimizer inside is none.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Lookahead(fluid.optimizer.SGD(0.1), alpha=0.5, k=5).inner_optimizer.learning_rate
      0.1
    """

    alpha: float = 0.5
    k: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.alpha <= 1 or isinstance(self.k, bool) or not isinstance(self.k, int) or self.k < 1:
            raise errors.ArgumentError(
                f"Lookahead takes alpha in 0..1 and a positive whole number k, found alpha={self.alpha!r}, "
                f"k={self.k!r}; write fluid.optimizer.Lookahead(fluid.optimizer.SGD(0.1), alpha=0.5, k=5)"
            )

    def start(self, params: Any) -> LookaheadState:
        """See Wrapper."""
        return LookaheadState(jnp.zeros([], jnp.int32), optax.tree.zeros_like(params))

    def after(self, own: LookaheadState, before: Any, params: Any) -> tuple[Any, LookaheadState]:
        """See Wrapper."""
        count = own.count + 1
        # Parameters may be loaded after the slots were made, so the first update finds out where the slow weights are.
        slow = jax.tree.map(lambda s, p: jnp.where(own.count == 0, p, s), own.slow, before)
        meet = count % self.k == 0
        slow = jax.tree.map(lambda s, p: jnp.where(meet, s + self.alpha * (p - s), s), slow, params)
        return jax.tree.map(lambda s, p: jnp.where(meet, s, p), slow, params), LookaheadState(count, slow)


LookaheadOptimizer = Lookahead
