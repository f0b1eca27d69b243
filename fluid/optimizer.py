"""Optimizers: Fluid's names and numbers, optax underneath; any optax transformation is accepted beside them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import optax

from fluid import core, errors
from fluid.param_attr import ParamAttr

Rate = float | Callable[[Any], Any]


@dataclass(frozen=True)
class Optimizer:
    """What all optimizers have in common; a subclass says its `rule`.

    Gradients are clipped, then the decay of the regularizer is added, then the rule makes an update of them, which the
    `learning_rate` of each ParamAttr multiplies.

    Args:
      learning_rate: a number, or a schedule: a function of the number of updates done.
      regularization: of `fluid.regularizer`; that of a ParamAttr takes its place.
      grad_clip: of `fluid.clip`.
      parameter_list: names of the parameters to change when `minimize` is not told; all trainable ones by default.
      name: not used; accepted for programs that give one.
    """

    learning_rate: Rate = 0.001
    regularization: Any = field(default=None, kw_only=True)
    grad_clip: Any = field(default=None, kw_only=True)
    parameter_list: Sequence[str] | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        rate = self.learning_rate
        if not callable(rate) and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate):
            raise errors.ArgumentError(
                f"{type(self).__name__}(learning_rate={rate!r}): expected a number from 0 on, or a schedule; "
                f"write fluid.optimizer.{type(self).__name__}(learning_rate=0.001)"
            )

    def rule(self) -> optax.GradientTransformation:
        """The optax transformation from gradients to the updates that are added to the parameters."""
        raise NotImplementedError

    def transformation(self, settings: Mapping[str, Any]) -> optax.GradientTransformation:
        """The whole optax transformation for parameters of these names.

        Args:
          settings: the ParamAttr of each parameter, or None, by name.
        """
        attrs = {name: attr or ParamAttr() for name, attr in settings.items()}
        stages = [_clip_each(attrs)] if any(a.gradient_clip for a in attrs.values()) else []
        if self.grad_clip is not None:
            stages.append(self.grad_clip.transformation())
        decays = {n: a.regularizer or self.regularization for n, a in attrs.items()}
        if any(decays.values()):
            stages.append(_add_decay(decays))
        stages.append(self.rule())
        if any(a.learning_rate != 1.0 for a in attrs.values()):
            stages.append(_multiply({n: a.learning_rate for n, a in attrs.items()}))
        return optax.chain(*stages) if len(stages) > 1 else stages[0]

    def minimize(
        self, loss: Any, parameter_list: Sequence[Any] | None = None, no_grad_set: Sequence[Any] | None = None
    ) -> None:
        """Inside a program function: record that this optimizer minimises the loss.

        Args:
          loss: a scalar.
          parameter_list: names or values of the parameters to change; by default the optimizer's own `parameter_list`,
            or else every trainable parameter of the program.
          no_grad_set: names or values of parameters to leave alone.

        Raises:
          OutsideProgramError: no program function is running.
          ProgramError: the loss is no float scalar.
          UnknownNameError: a parameter is not of this program.

        Example:
          >>> import fluid
          >>> def program():
          ...     x = fluid.layers.data("x", shape=[4])
          ...     loss = fluid.layers.mean(fluid.layers.fc(x, size=1))
          ...     fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["fc_0.b_0"])
          ...     return loss
          >>> fluid.Program(program).minimizes[0].parameters
          ('fc_0.b_0',)
        """
        names = self.parameter_list if parameter_list is None else parameter_list
        core.record_minimize(loss, self, names, no_grad_set)


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent: `p -= rate * g`.

    Args:
      learning_rate: and the other arguments, see Optimizer.

    Example:
      >>> import fluid
      >>> fluid.optimizer.SGD(learning_rate=0.1).learning_rate
      0.1
    """

    def rule(self) -> optax.GradientTransformation:
        """See Optimizer."""
        return optax.sgd(self.learning_rate)


@dataclass(frozen=True)
class Momentum(Optimizer):
    """Gradient descent with momentum: `v = momentum * v + g; p -= rate * v`.

    Args:
      learning_rate: and the keyword arguments, see Optimizer.
      momentum: share of the velocity that stays.
      use_nesterov: look ahead: `p -= rate * (g + momentum * v)`.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Momentum(0.1, momentum=0.9).momentum
      0.9
    """

    momentum: float = 0.9
    use_nesterov: bool = False

    def rule(self) -> optax.GradientTransformation:
        """See Optimizer."""
        return optax.sgd(self.learning_rate, self.momentum, self.use_nesterov)


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad (Duchi et al., 2011): `m += g * g; p -= rate * g / (sqrt(m) + epsilon)`.

    Args:
      learning_rate: and the keyword arguments, see Optimizer.
      epsilon: keeps the divisor from 0.
      initial_accumulator_value: of m.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Adagrad(0.1).epsilon
      1e-06
    """

    epsilon: float = 1e-6
    initial_accumulator_value: float = 0.0

    def rule(self) -> optax.GradientTransformation:
        """See Optimizer."""

        def init(params: Any) -> optax.ScaleByRssState:
            return optax.ScaleByRssState(optax.tree.full_like(params, self.initial_accumulator_value))

        def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByRssState]:
            moment = jax.tree.map(lambda m, g: m + g * g, state.sum_of_squares, grads)
            scaled = jax.tree.map(lambda g, m: g / (jnp.sqrt(m) + self.epsilon), grads, moment)
            return scaled, optax.ScaleByRssState(moment)

        return _with_rate(optax.GradientTransformation(init, update), self.learning_rate)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), with epsilon added to the uncorrected root, as at the end of the paper's section 2.

    `m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g g; p -= rate * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + epsilon)`.

    Args:
      learning_rate: and the keyword arguments, see Optimizer.
      beta1: decay of the mean.
      beta2: decay of the mean square.
      epsilon: keeps the divisor from 0.

    Example:
      >>> import fluid
      >>> fluid.optimizer.Adam(1e-3).beta2
      0.999
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def rule(self) -> optax.GradientTransformation:
        """See Optimizer."""

        def init(params: Any) -> optax.ScaleByAdamState:
            zeros = optax.tree.zeros_like
            return optax.ScaleByAdamState(jnp.zeros([], jnp.int32), zeros(params), zeros(params))

        def update(grads: Any, state: Any, params: Any = None) -> tuple[Any, optax.ScaleByAdamState]:
            count = state.count + 1
            mu = jax.tree.map(lambda m, g: self.beta1 * m + (1 - self.beta1) * g, state.mu, grads)
            nu = jax.tree.map(lambda v, g: self.beta2 * v + (1 - self.beta2) * g * g, state.nu, grads)
            correction = jnp.sqrt(1 - self.beta2**count) / (1 - self.beta1**count)
            scaled = jax.tree.map(lambda m, v: correction * m / (jnp.sqrt(v) + self.epsilon), mu, nu)
            return scaled, optax.ScaleByAdamState(count, mu, nu)

        return _with_rate(optax.GradientTransformation(init, update), self.learning_rate)


class Optax(Optimizer):
    """Any optax transformation as an optimizer, so that it has `minimize` and heeds every ParamAttr.

    `fluid.Trainer` accepts the bare transformation too; this form is for programs that call `minimize`.

    Args:
      transformation: an `optax.GradientTransformation` whose updates are added to the parameters.
      regularization: and `grad_clip`, `parameter_list`, see Optimizer.

    Example:
      >>> import fluid, optax
      >>> fluid.optimizer.Optax(optax.adamw(1e-3)).tx.init({}) is not None
      True
    """

    tx: optax.GradientTransformation

    def __init__(self, transformation: optax.GradientTransformation, **common: Any):
        if not _is_optax(transformation):
            raise errors.ArgumentTypeError(
                f"fluid.optimizer.Optax wraps a transformation such as optax.adamw(1e-3), found {transformation!r}"
            )
        super().__init__(**common)
        object.__setattr__(self, "tx", transformation)

    def rule(self) -> optax.GradientTransformation:
        """See Optimizer."""
        return self.tx


def as_optimizer(value: Any) -> Optimizer:
    """Understand what is accepted as an optimizer.

    Args:
      value: an Optimizer, an optax transformation, or a function without arguments that returns one of them.

    Raises:
      ArgumentTypeError: it is none of those.

    Example:
      >>> as_optimizer(lambda: SGD(0.1)).learning_rate
      0.1
    """
    found = value() if callable(value) and not isinstance(value, type | Optimizer) and not _is_optax(value) else value
    if isinstance(found, Optimizer):
        return found
    if _is_optax(found):
        return Optax(found)
    raise errors.ArgumentTypeError(
        f"an optimizer is a fluid.optimizer (an instance, not the class), an optax transformation, or a function that "
        f"returns one; found {found!r}. Write optimizer=fluid.optimizer.Adam(learning_rate=1e-3)"
    )


def _is_optax(value: Any) -> bool:
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def _with_rate(scale: optax.GradientTransformation, rate: Rate) -> optax.GradientTransformation:
    return optax.chain(scale, optax.scale_by_learning_rate(rate))


def _clip_each(attrs: Mapping[str, ParamAttr]) -> optax.GradientTransformation:
    clips = {n: a.gradient_clip.transformation() for n, a in attrs.items() if a.gradient_clip is not None}

    def clip(grads: Any, params: Any) -> Any:
        done = {n: clip.update({n: grads[n]}, clip.init({n: grads[n]}))[0][n] for n, clip in clips.items()}
        return {**grads, **done}

    return optax.stateless(clip)


def _add_decay(decays: Mapping[str, Any]) -> optax.GradientTransformation:
    return optax.stateless(
        lambda grads, params: {n: g + decays[n].gradient(params[n]) if decays[n] else g for n, g in grads.items()}
    )


def _multiply(rates: Mapping[str, float]) -> optax.GradientTransformation:
    return optax.stateless(lambda updates, _: {n: u * rates[n] for n, u in updates.items()})


SGDOptimizer = SGD
MomentumOptimizer = Momentum
AdagradOptimizer = Adagrad
AdamOptimizer = Adam
