"""SGD, Momentum, LarsMomentum, Lion and Muon: optimizers without state, or with a moving mean of gradients as state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fluid._util.known_names import not_called
from fluid._util.lazy import optax
from fluid.core import Parameter, decide
from fluid.optimizer.adam import Adam
from fluid.optimizer.base import Optimizer
from fluid.optimizer.optax_chain import Rate, unless


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent: `p -= rate * g` for a parameter p with the gradient g.

    Args:
      learning_rate: a number or a schedule; for the keyword arguments, see Optimizer.

    Example:
      >>> import fluid
      >>> fluid.optimizer.SGD(learning_rate=0.1).learning_rate
      0.1
    """

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation `optax.sgd` with the learning rate of this optimizer."""
        return optax.sgd(self.learning_rate)


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Gradient descent with momentum: `v = momentum * v + g; p -= rate * v` for a parameter p with the gradient g.

    Args:
      learning_rate: a number or a schedule; for the keyword arguments, see Optimizer.
      momentum: the factor of the previous velocity v.
      use_nesterov: use Nesterov's momentum: `p -= rate * (g + momentum * v)`.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Momentum(0.1, momentum=0.9).momentum
      0.9
    """

    momentum: float = 0.9
    use_nesterov: bool = False

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation `optax.sgd` with the learning rate and momentum of this optimizer."""
        return optax.sgd(self.learning_rate, self.momentum, self.use_nesterov)


@dataclass(frozen=True)
class LarsMomentum(Optimizer):
    """LARS (You et al., 2017): momentum with a learning rate that is scaled for each parameter by a ratio of norms.

    `v = momentum * v + rate * ratio * (g + lars_weight_decay * p); p -= v` for a parameter p with the gradient g. The
    ratio is `lars_coeff * |p| / (|g| + lars_weight_decay * |p|)`. If the parameter or its gradient is all zeros, the
    ratio is 1, so that training changes a parameter that starts at zero.

    Args:
      learning_rate: a number or a schedule; for the keyword arguments, see Optimizer.
      momentum: the factor of the previous velocity v.
      lars_coeff: the factor of the ratio, called trust coefficient in the paper.
      lars_weight_decay: the weight decay, which is added to the gradient and is part of the ratio.

    Example:
      >>> import fluid
      >>> fluid.optimizer.LarsMomentum(0.1, momentum=0.9).lars_coeff
      0.001
    """

    momentum: float = 0.9
    lars_coeff: float = 0.001
    lars_weight_decay: float = 0.0005

    @property
    def whole_tables(self) -> bool:
        """True: an update needs whole embedding tables, because the formula contains norms of whole parameters."""
        return True

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation of LARS: weight decay, scaling by ratio and learning rate, then momentum."""

        def scale(g: Any, p: Any) -> Any:
            p_norm = optax.safe_norm(p, 0.0)
            g_norm = optax.safe_norm(g, 0.0)
            divisor = g_norm + self.lars_weight_decay * p_norm
            known = (p_norm > 0) & (g_norm > 0)
            ratio = jnp.where(known, self.lars_coeff * p_norm / jnp.where(known, divisor, 1), 1)
            return ratio.astype(g.dtype) * (g + self.lars_weight_decay * p)

        return optax.chain(
            optax.stateless(lambda grads, params: jax.tree.map(scale, grads, params)),
            optax.scale_by_learning_rate(self.learning_rate),
            optax.trace(self.momentum),
        )


@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion (Chen et al., 2023): an optimizer that uses the sign of a mean of gradients.

    `p -= rate * (sign(b1 m + (1 - b1) g) + weight_decay * p); m = b2 m + (1 - b2) g` for a parameter p with the
    gradient g. The paper advises a learning rate three to ten times smaller than for Adam, and a weight decay that is
    larger by the same factor.

    Args:
      learning_rate: a number or a schedule; for the keyword arguments, see Optimizer.
      beta1: b1, the weight of the moving mean m in the step; the gradient has the weight `1 - b1`.
      beta2: b2, the decay of the moving mean m.
      weight_decay: the weight decay, decoupled from the gradient.
      exclude_from_weight_decay_fn: a function of a parameter (its `name`, `shape` and `dtype`); True excludes the
        parameter from the decay.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Lion(1e-4).beta2
      0.99
    """

    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.01
    exclude_from_weight_decay_fn: Callable[[Parameter], bool] | None = None

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation `optax.lion` with the settings of this optimizer."""
        decayed = unless(self.exclude_from_weight_decay_fn)
        return optax.lion(self.learning_rate, self.beta1, self.beta2, weight_decay=self.weight_decay, mask=decayed)


@dataclass(frozen=True)
class Muon(Optimizer):
    """Muon (Jordan et al., 2024): momentum for matrices, with steps that Newton-Schulz iterations orthogonalise.

    Adam updates all parameters that are no matrices, and the matrices for which `use_adam_fn` returns True.

    Args:
      learning_rate: the learning rate of the matrices, a number or a schedule; for the keyword arguments, see
        Optimizer.
      momentum: the factor of the previous velocity.
      use_nesterov: use Nesterov's momentum.
      ns_steps: the number of Newton-Schulz iterations.
      weight_decay: the weight decay of the matrices, decoupled from the gradient.
      adam_learning_rate: the learning rate of the parameters that Adam updates, a number or a schedule. Setting
        `trainer.learning_rate` changes only the rate of the matrices, not this rate.
      beta1: the decay of the mean of gradients in Adam.
      beta2: the decay of the mean of squared gradients in Adam.
      epsilon: a small number that keeps divisors in Adam and Muon above 0.
      use_adam_fn: a function of a parameter (its `name`, `shape` and `dtype`); True lets Adam update the parameter
        although it is a matrix, as is usual for embeddings and for the last layer.

    Example:
      >>> import fluid
      >>> optimizer = fluid.optimizer.Muon(0.02, use_adam_fn=lambda p: p.name.startswith("embedding"))
      >>> optimizer.ns_steps
      5
    """

    learning_rate: Rate = 0.02
    momentum: float = 0.95
    use_nesterov: bool = True
    ns_steps: int = 5
    weight_decay: float = 0.0
    adam_learning_rate: Rate = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    use_adam_fn: Callable[[Parameter], bool] | None = None

    @property
    def whole_tables(self) -> bool:
        """True: an update needs whole embedding tables, because Muon orthogonalises whole matrices."""
        return True

    def rule(self) -> optax.GradientTransformation:
        """Return an optax transformation: Adam for the matrices of `use_adam_fn` and for non-matrices, else Muon."""
        by_adam = self.use_adam_fn or (lambda parameter: False)

        def label(name: str, value: Any) -> str:
            return "muon" if value.ndim == 2 and not decide("use_adam_fn", by_adam, name, value) else "adam"

        def labels(params: Any) -> Any:
            return {name: label(name, value) for name, value in params.items()}

        muon = optax.contrib.muon(
            self.learning_rate,
            ns_steps=self.ns_steps,
            beta=self.momentum,
            eps=self.epsilon,
            weight_decay=self.weight_decay,
            nesterov=self.use_nesterov,
        )
        adam = Adam(self.adam_learning_rate, self.beta1, self.beta2, self.epsilon)
        return optax.partition({"muon": muon, "adam": adam.rule()}, labels)


SGDOptimizer = SGD
MomentumOptimizer = Momentum
LarsMomentumOptimizer = LarsMomentum
LionOptimizer = Lion
MuonOptimizer = Muon


not_called(__name__, "fluid.optimizer.Momentum(learning_rate=0.1, momentum=0.9)")
