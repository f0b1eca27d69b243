"""Adam, AdamW, Adamax and LAMB: a moving mean of gradients, divided by a measure of their size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fluid._util.lazy import optax
from fluid.compat.name_hints import not_called
from fluid.core import Parameter
from fluid.optimizer.base import Optimizer
from fluid.optimizer.parts import unless, with_rate

OfTwo = Callable[[Any, Any], Any]
Step = Callable[[Any], OfTwo]


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), with epsilon added to the uncorrected root, as at the end of the paper's section 2.

    `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; p -= rate * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + epsilon)`.

    Args:
      learning_rate: as for Optimizer, like the keyword arguments.
      beta1: decay of the mean.
      beta2: decay of the mean square.
      epsilon: keeps the divisor above 0.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Adam(1e-3).beta2
      0.999
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def rule(self) -> optax.GradientTransformation:
        """Return the rule of Adam: the mean of gradients divided by their root mean square, both corrected."""

        def step(count: Any) -> OfTwo:
            correction = jnp.sqrt(1 - self.beta2**count) / (1 - self.beta1**count)
            return lambda m, v: correction * m / (jnp.sqrt(v) + self.epsilon)

        return with_rate(_moments(self.beta1, _mean_square(self.beta2), step), self.learning_rate)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with weight decay decoupled from the gradient (Loshchilov and Hutter, 2019), by `optax.adamw`.

    `p -= rate * (m' / (sqrt(v') + epsilon) + weight_decay * p)` with the corrected averages m' and v' of Adam. The
    learning rate of a ParamAttr also multiplies the decay.

    Args:
      learning_rate: as for Optimizer, like the keyword arguments.
      beta1: decay of the mean.
      beta2: decay of the mean square.
      epsilon: keeps the divisor above 0.
      weight_decay: the share of each weight that an update subtracts, multiplied by the learning rate.
      exclude_from_weight_decay_fn: a function of a parameter (its `name`, `shape` and `dtype`); True excludes the
        parameter from the decay.

    Example:
      >>> import fluid
      >>> fluid.optimizer.AdamW(1e-3, exclude_from_weight_decay_fn=lambda p: len(p.shape) < 2).weight_decay
      0.01
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None

    def rule(self) -> optax.GradientTransformation:
        """Return the rule of `optax.adamw`."""
        decayed = unless(self.exclude_from_weight_decay_fn)
        betas = (self.beta1, self.beta2, self.epsilon)
        return optax.adamw(self.learning_rate, *betas, weight_decay=self.weight_decay, mask=decayed)


@dataclass(frozen=True)
class Adamax(Optimizer):
    """Adamax (Kingma and Ba, 2015): Adam with the largest gradient instead of the mean square.

    `m = b1 m + (1 - b1) g; n = max(|g|, b2 n + epsilon); p -= rate / (1 - b1^t) * m / n`.

    Args:
      learning_rate: as for Optimizer, like the keyword arguments.
      beta1: decay of the mean.
      beta2: decay of the largest gradient.
      epsilon: keeps the divisor above 0.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Adamax(1e-3).beta1
      0.9
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def rule(self) -> optax.GradientTransformation:
        """Return the rule of Adamax: the corrected mean of gradients, divided by the largest gradient."""

        def largest(n: Any, g: Any) -> Any:
            return jnp.maximum(jnp.abs(g), self.beta2 * n + self.epsilon)

        def step(count: Any) -> OfTwo:
            correction = 1 - self.beta1**count
            return lambda m, n: m / n / correction

        return with_rate(_moments(self.beta1, largest, step), self.learning_rate)


@dataclass(frozen=True)
class Lamb(Optimizer):
    """LAMB (You et al., 2020): Adam, with a rate for each parameter that is scaled by the ratio of two norms.

    `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; r = m / (sqrt(v) + epsilon) + lamb_weight_decay * p;
    p -= rate * |p| / |r| * r`. The ratio is 1 if one of the norms is 0. As in PaddlePaddle, the averages are not
    corrected for their start; `fluid.optimizer.Optax(optax.lamb(rate))` corrects them.

    Args:
      learning_rate: as for Optimizer, like the keyword arguments.
      lamb_weight_decay: weight decay.
      beta1: decay of the mean.
      beta2: decay of the mean square.
      epsilon: keeps the divisor above 0.
      exclude_from_weight_decay_fn: as for AdamW.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Lamb(1e-3, exclude_from_weight_decay_fn=lambda p: p.name.endswith(".b_0")).epsilon
      1e-06
    """

    lamb_weight_decay: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-6
    exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None

    @property
    def whole_tables(self) -> bool:
        """True: the norms in the formula are over whole parameters."""
        return True

    def rule(self) -> optax.GradientTransformation:
        """Return the rule of LAMB: the step of Adam without correction, then weight decay, then the ratio of norms."""

        def step(count: Any) -> OfTwo:
            return lambda m, v: m / (jnp.sqrt(v) + self.epsilon)

        stages = optax.chain(
            _moments(self.beta1, _mean_square(self.beta2), step),
            optax.add_decayed_weights(self.lamb_weight_decay, unless(self.exclude_from_weight_decay_fn)),
            optax.scale_by_trust_ratio(),
        )
        return with_rate(stages, self.learning_rate)


def _mean_square(decay: float) -> OfTwo:
    return lambda v, g: decay * v + (1 - decay) * g * g


def _moments(beta1: float, size: OfTwo, step: Step) -> optax.GradientTransformation:
    """Return a rule with the state of Adam, without the learning rate.

    Its state is a moving mean of gradients, and a measure of the size of gradients, such as their mean square.

    Args:
      beta1: decay of the moving mean of gradients.
      size: a function of the old measure and a gradient that returns the new measure.
      step: a function of the number of updates, including this one. It returns a function that computes the update from
        the mean and the measure.
    """

    def init(params: Any) -> optax.ScaleByAdamState:
        zeros = optax.tree.zeros_like
        return optax.ScaleByAdamState(jnp.zeros([], jnp.int32), zeros(params), zeros(params))

    def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
        count = state.count + 1
        mu = jax.tree.map(lambda m, g: beta1 * m + (1 - beta1) * g, state.mu, grads)
        nu = jax.tree.map(size, state.nu, grads)
        scaled = jax.tree.map(step(count), mu, nu)
        return scaled, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


AdamOptimizer = Adam
AdamWOptimizer = AdamW
AdamaxOptimizer = Adamax
LambOptimizer = Lamb


not_called(__name__, "fluid.optimizer.Adam(learning_rate=1e-3)")
