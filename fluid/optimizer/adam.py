"""Adam, AdamW, Adamax and LAMB: optimizers that divide a moving mean of gradients by the size of the gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fluid._util.known_names import not_called
from fluid._util.lazy import optax
from fluid.core import Parameter
from fluid.optimizer.base import Optimizer
from fluid.optimizer.optax_chain import unless, with_rate

OfTwo = Callable[[Any, Any], Any]
Step = Callable[[Any], OfTwo]


@dataclass(frozen=True)
class Adam(Optimizer):
    """The optimizer Adam (Kingma and Ba, 2015), with the formula at the end of the paper's section 2.

    `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; p -= rate * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + epsilon)`
    for a parameter p with the gradient g in the t-th update. Epsilon is added to the root of v without bias correction.

    Args:
      learning_rate: a number or a schedule; for the keyword arguments, see Optimizer.
      beta1: b1, the decay of the mean m of gradients.
      beta2: b2, the decay of the mean v of squared gradients.
      epsilon: a small number that keeps the divisor above 0.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Adam(1e-3).beta2
      0.999
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation of Adam: mean of gradients / root mean square, both with bias correction."""

        def step(count: Any) -> OfTwo:
            correction = jnp.sqrt(1 - self.beta2**count) / (1 - self.beta1**count)
            return lambda m, v: correction * m / (jnp.sqrt(v) + self.epsilon)

        return with_rate(_moments(self.beta1, _mean_square(self.beta2), step), self.learning_rate)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with weight decay decoupled from the gradient (Loshchilov and Hutter, 2019), by `optax.adamw`.

    `p -= rate * (m' / (sqrt(v') + epsilon) + weight_decay * p)`, with the bias-corrected averages m' of the gradients
    and v' of their squares. The learning rate of a ParamAttr also multiplies the weight decay.

    Args:
      learning_rate: a number or a schedule; for the keyword arguments, see Optimizer.
      beta1: the decay of the mean of gradients.
      beta2: the decay of the mean of squared gradients.
      epsilon: a small number that keeps the divisor above 0.
      weight_decay: the factor of the parameter in the formula.
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
        """Return the optax transformation `optax.adamw` with the settings of this optimizer."""
        decayed = unless(self.exclude_from_weight_decay_fn)
        betas = (self.beta1, self.beta2, self.epsilon)
        return optax.adamw(self.learning_rate, *betas, weight_decay=self.weight_decay, mask=decayed)


@dataclass(frozen=True)
class Adamax(Optimizer):
    """Adamax (Kingma and Ba, 2015): Adam with a decaying maximum of gradients instead of the root mean square.

    `m = b1 m + (1 - b1) g; n = max(|g|, b2 n + epsilon); p -= rate / (1 - b1^t) * m / n` for a parameter p with the
    gradient g in the t-th update.

    Args:
      learning_rate: a number or a schedule; for the keyword arguments, see Optimizer.
      beta1: b1, the decay of the mean m of gradients.
      beta2: b2, the decay of the maximum n.
      epsilon: a small number that keeps the divisor above 0.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Adamax(1e-3).beta1
      0.9
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation of Adamax: bias-corrected mean of gradients / decaying maximum."""

        def largest(n: Any, g: Any) -> Any:
            return jnp.maximum(jnp.abs(g), self.beta2 * n + self.epsilon)

        def step(count: Any) -> OfTwo:
            correction = 1 - self.beta1**count
            return lambda m, n: m / n / correction

        return with_rate(_moments(self.beta1, largest, step), self.learning_rate)


@dataclass(frozen=True)
class Lamb(Optimizer):
    """LAMB (You et al., 2020): Adam with a learning rate that is scaled for each parameter by a ratio of norms.

    `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; r = m / (sqrt(v) + epsilon) + lamb_weight_decay * p;
    p -= rate * |p| / |r| * r` for a parameter p with the gradient g. The ratio `|p| / |r|` is 1 if one of the norms is
    0. As in PaddlePaddle, the averages m and v have no bias correction; `fluid.optimizer.Optax(optax.lamb(rate))` has
    this correction.

    Args:
      learning_rate: a number or a schedule; for the keyword arguments, see Optimizer.
      lamb_weight_decay: the weight decay, the factor of the parameter in the formula.
      beta1: b1, the decay of the mean m of gradients.
      beta2: b2, the decay of the mean v of squared gradients.
      epsilon: a small number that keeps the divisor above 0.
      exclude_from_weight_decay_fn: a function of a parameter (its `name`, `shape` and `dtype`); True excludes the
        parameter from the decay.

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
        """True: an update of LAMB needs whole embedding tables, because LAMB computes norms of whole parameters."""
        return True

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation of LAMB: Adam without bias correction, weight decay, then ratio of norms."""

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
    """Return an optax transformation like Adam, without the learning rate.

    The optimizer state is a moving mean of gradients, and a size of the gradients, such as their mean square.

    Args:
      step: a function of the number of updates, including the current one. It returns a function that computes the
        update from the mean and the size.
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
