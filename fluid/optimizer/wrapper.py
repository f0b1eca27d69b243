"""Wrappers: optimizers that change the parameters after the update of an inner optimizer, such as Lookahead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import errors
from fluid._util.lazy import optax
from fluid.core import whole_number
from fluid.optimizer.base import Minimizer, as_optimizer
from fluid.optimizer.parts import Rate, replaced


class Wrapped(NamedTuple):
    """The optimizer state of a Wrapper: the state of its inner optimizer, and the state of the wrapper itself."""

    inner: Any
    own: Any


@dataclass(frozen=True)
class Wrapper(Minimizer):
    """An optimizer around an inner optimizer: the inner optimizer updates the parameters, then `after` changes them.

    Args:
      inner_optimizer: a fluid optimizer or an optax transformation.
    """

    inner_optimizer: Any  # an OptimizerLike as argument; __post_init__ converts it to a Minimizer

    def __post_init__(self) -> None:
        object.__setattr__(self, "inner_optimizer", as_optimizer(self.inner_optimizer))

    @property
    def parameter_list(self) -> Sequence[Any] | None:
        """The `parameter_list` of the inner optimizer."""
        return self.inner_optimizer.parameter_list

    @property
    def declared_rate(self) -> Rate | None:
        """The configured learning rate of the inner optimizer."""
        return self.inner_optimizer.declared_rate

    def at_rate(self, rate: Any) -> Minimizer:
        """Return a copy of this wrapper whose inner optimizer has another learning rate."""
        return replaced(self, inner_optimizer=self.inner_optimizer.at_rate(rate))

    def clipped_by(self, clip: Any) -> Minimizer:
        """Return a copy of this wrapper whose inner optimizer clips its gradients."""
        return replaced(self, inner_optimizer=self.inner_optimizer.clipped_by(clip))

    @property
    def accumulate_steps(self) -> int:
        """The `accumulate_steps` of the inner optimizer: `after` is called after each update, not after each step."""
        return self.inner_optimizer.accumulate_steps

    @property
    def whole_tables(self) -> bool:
        """True: a wrapper may change rows that have no gradient."""
        return True

    def start(self, params: Any) -> Any:
        """Return the state of the wrapper itself before the first update."""
        raise NotImplementedError

    def after(self, own: Any, before: Any, params: Any) -> tuple[Any, Any]:
        """Return the parameters to continue with, and the next state of the wrapper itself.

        Args:
          own: the state of the wrapper itself.
          before: the parameters before the update, by name.
          params: the parameters after the update of the inner optimizer, by name.
        """
        raise NotImplementedError

    def rule(self) -> optax.GradientTransformation:
        """Return the rule of the inner optimizer, followed by `after`, without ParamAttr settings."""
        return self.one_update({})

    def one_update(self, settings: Mapping[str, Any]) -> optax.GradientTransformation:
        """Return the optax transformation that updates by the inner optimizer, and then calls `after`."""
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
        """Return the learning rate of the next update of the inner optimizer, a scalar."""
        return self.inner_optimizer.current_rate(slots)


class LookaheadState(NamedTuple):
    """The state of Lookahead: the number of updates done, and the slow weights by name."""

    count: Any
    slow: Any


@dataclass(frozen=True)
class Lookahead(Wrapper):
    """Lookahead (Zhang et al., 2019): slow weights follow the inner optimizer, which restarts from the slow weights.

    Every k updates `slow += alpha * (p - slow); p = slow`. The slow weights start as the parameters before the first
    update.

    Args:
      inner_optimizer: a fluid optimizer or an optax transformation.
      alpha: the share of the way to the parameters that the slow weights move, above 0 and up to 1.
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
        """Return the state before the first update: slow weights of zeros, which the first update replaces."""
        return LookaheadState(jnp.zeros([], jnp.int32), optax.tree.zeros_like(params))

    def after(self, own: LookaheadState, before: Any, params: Any) -> tuple[Any, LookaheadState]:
        """Return the parameters and the next state; every k updates, slow weights move and become the parameters."""
        count = own.count + 1
        # The slow weights are set here and not in `start`, because parameters may be loaded after `start` was called.
        slow = jax.tree.map(lambda s, p: jnp.where(own.count == 0, p, s), own.slow, before)
        due = count % self.k == 0
        slow = jax.tree.map(lambda s, p: jnp.where(due, s + self.alpha * (p - s), s), slow, params)
        return jax.tree.map(lambda s, p: jnp.where(due, s, p), slow, params), LookaheadState(count, slow)


LookaheadOptimizer = Lookahead
