"""Adagrad, DecayedAdagrad, Adadelta, RMSProp and FTRL: optimizers that divide by the size of past gradients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid._util.known_names import not_called
from fluid._util.lazy import optax
from fluid.optimizer.base import Optimizer
from fluid.optimizer.optax_chain import Rate, with_rate


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """The optimizer Adagrad (Duchi et al., 2011).

    `m += g * g; p -= rate * g / (sqrt(m) + epsilon)` for a parameter p with the gradient g.

    Args:
      learning_rate: a number or a schedule; for the keyword arguments, see Optimizer.
      epsilon: a small number that keeps the divisor above 0.
      initial_accumulator_value: the initial value of m, the sum of squared gradients.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Adagrad(0.1).epsilon
      1e-06
    """

    epsilon: float = 1e-6
    initial_accumulator_value: float = 0.0

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation of Adagrad, which divides each gradient by the root of its sum of squares."""

        def init(params: Any) -> optax.ScaleByRssState:
            return optax.ScaleByRssState(optax.tree.full_like(params, self.initial_accumulator_value))

        def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByRssState]:
            moment = jax.tree.map(lambda m, g: m + g * g, state.sum_of_squares, grads)
            scaled = jax.tree.map(lambda g, m: g / (jnp.sqrt(m) + self.epsilon), grads, moment)
            return scaled, optax.ScaleByRssState(moment)

        return with_rate(optax.GradientTransformation(init, update), self.learning_rate)


@dataclass(frozen=True)
class DecayedAdagrad(Optimizer):
    """Adagrad with a moving mean of squared gradients instead of their sum.

    `m = decay * m + (1 - decay) * g * g; p -= rate * g / (sqrt(m) + epsilon)` for a parameter p with the gradient g.

    Args:
      learning_rate: a number or a schedule; for the keyword arguments, see Optimizer.
      decay: the decay of m, the moving mean of squared gradients.
      epsilon: a small number that keeps the divisor above 0.

    Example:
      >>> import fluid
      >>> fluid.optimizer.DecayedAdagrad(0.1).decay
      0.95
    """

    decay: float = 0.95
    epsilon: float = 1e-6

    def rule(self) -> optax.GradientTransformation:
        """Return an optax transformation that divides each gradient by the root of a moving mean of its squares."""
        scale = optax.scale_by_rms(self.decay, self.epsilon, eps_in_sqrt=False)
        return with_rate(scale, self.learning_rate)


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta (Zeiler, 2012): an optimizer whose step sizes depend on past steps and past gradients.

    `m = rho m + (1 - rho) g g; d = g sqrt(u + epsilon) / sqrt(m + epsilon); u = rho u + (1 - rho) d d; p -= rate * d`
    for a parameter p with the gradient g. With a learning rate of 1, this is the algorithm of the paper.

    Args:
      learning_rate: a number or a schedule; PaddlePaddle ignores it, fluid applies it. For the keyword arguments, see
        Optimizer.
      epsilon: a small number that makes the first steps larger than 0.
      rho: the decay of both moving means, m of squared gradients and u of squared steps.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Adadelta().learning_rate
      1.0
    """

    learning_rate: Rate = 1.0
    epsilon: float = 1e-6
    rho: float = 0.95

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation `optax.adadelta` with the settings of this optimizer."""
        return optax.adadelta(self.learning_rate, self.rho, self.epsilon)


@dataclass(frozen=True)
class RMSProp(Optimizer):
    """RMSProp (Tieleman and Hinton, 2012): an optimizer that divides gradients by their root mean square.

    `m = rho m + (1 - rho) g g; v = momentum * v + rate * g / sqrt(m + epsilon); p -= v` for a parameter p with the
    gradient g. If centered, the divisor is `sqrt(m - a a + epsilon)`, where a is the moving mean of g.

    Args:
      learning_rate: a number or a schedule; for the keyword arguments, see Optimizer.
      rho: the decay of the moving means m and a.
      epsilon: a small number that keeps the divisor above 0.
      momentum: the factor of the previous velocity v.
      centered: True divides by the standard deviation of gradients instead of their root mean square.

    Example:
      >>> import fluid
      >>> fluid.optimizer.RMSProp(0.01, centered=True).rho
      0.95
    """

    rho: float = 0.95
    epsilon: float = 1e-6
    momentum: float = 0.0
    centered: bool = False

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation `optax.rmsprop` with the settings of this optimizer."""
        return optax.rmsprop(
            self.learning_rate, self.rho, self.epsilon, centered=self.centered, momentum=self.momentum or None
        )


class FtrlState(NamedTuple):
    """The optimizer state of Ftrl.

    `count` is the number of completed updates, `squared` the sum n of squared gradients, and `linear` the linear term z
    of the FTRL formula.
    """

    count: Any
    squared: Any
    linear: Any


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """FTRL-Proximal (McMahan et al., 2013): an optimizer with an L1 penalty, which makes weights sparse.

    For a parameter p with the gradient g: `n' = n + g g; z += g - (n' ** -lr_power - n ** -lr_power) / rate * p`. Then
    p is 0 if `|z| <= l1`, else `(sign(z) * l1 - z) / (n' ** -lr_power / rate + l2)`. A weight does not change while all
    its gradients are 0.

    Args:
      learning_rate: a number or a schedule; for the keyword arguments, see Optimizer.
      l1: the factor of the penalty on the absolute values of the weights.
      l2: the factor of the penalty on the squares of the weights.
      lr_power: the exponent of the sum n of squared gradients; the learning rate of a weight falls as `n ** lr_power`.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Ftrl(0.1, l1=0.01).lr_power
      -0.5
    """

    l1: float = 0.0
    l2: float = 0.0
    lr_power: float = -0.5

    @property
    def whole_tables(self) -> bool:
        """True if a step of FTRL must update all rows of an embedding table, not only the rows with a gradient.

        In FTRL, every weight depends on the learning rate, so a schedule changes all rows. All rows are also needed if
        gradients are accumulated over several steps.
        """
        return callable(self.learning_rate) or self.accumulate_steps > 1

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation of FTRL, with one learning rate for all parameters."""
        return self.scaled_rule({})

    def scaled_rule(self, factors: Mapping[str, float]) -> optax.GradientTransformation:
        """Return the optax transformation of FTRL, with the learning rate of each parameter multiplied by a factor.

        A factor must change the rate inside the formula of FTRL; multiplying the final update would be wrong.

        Args:
          factors: the factor of each parameter, by name.
        """

        def init(params: Any) -> FtrlState:
            return FtrlState(jnp.zeros([], jnp.int32), optax.tree.zeros_like(params), optax.tree.zeros_like(params))

        def update(grads: Any, state: FtrlState, params: Any = None) -> tuple[Any, FtrlState]:
            rate = self.learning_rate(state.count) if callable(self.learning_rate) else self.learning_rate
            done = {
                name: self._step(g, params[name], state.squared[name], state.linear[name], rate * factors.get(name, 1))
                for name, g in grads.items()
            }
            updates, squared, linear = ({name: step[i] for name, step in done.items()} for i in range(3))
            return updates, FtrlState(state.count + 1, squared, linear)

        return optax.GradientTransformation(init, update)

    def _step(self, g: Any, p: Any, squared: Any, linear: Any, rate: Any) -> tuple[Any, Any, Any]:
        """Compute one FTRL step of a parameter: its update, next sum of squared gradients, and next linear term."""
        # The formula divides by the rate. At a rate of 0, for example at the start of a warm-up, `where` prevents the
        # division, and neither the parameter nor the optimizer state changes.
        moving = jnp.asarray(rate > 0)
        rate = jnp.asarray(jnp.where(moving, rate, 1), p.dtype)
        total = squared + g * g
        strength = total**-self.lr_power / rate
        pull = linear + g - (strength - squared**-self.lr_power / rate) * p
        shrunk = (jnp.sign(pull) * self.l1 - pull) / jnp.where(total > 0, strength + self.l2, 1)
        target = jnp.where(total > 0, jnp.where(jnp.abs(pull) > self.l1, shrunk, 0), p)
        return jnp.where(moving, target - p, 0), jnp.where(moving, total, squared), jnp.where(moving, pull, linear)


AdagradOptimizer = Adagrad
DecayedAdagradOptimizer = DecayedAdagrad
AdadeltaOptimizer = Adadelta
RMSPropOptimizer = RMSProp
FtrlOptimizer = Ftrl


not_called(__name__, "fluid.optimizer.Adagrad(learning_rate=0.1)")
