"""Base classes of optimizers: Minimizer, Optimizer and the Optax adapter; and `as_optimizer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, ClassVar, Protocol, Self

import jax.numpy as jnp

from fluid import core, errors
from fluid._util.known_names import not_called
from fluid._util.lazy import optax
from fluid.core import warn, whole_number
from fluid.optimizer.optax_chain import (
    Rate,
    accumulate,
    add_decay,
    clip_each,
    instead_of,
    leave_out,
    multiply,
    replaced,
    same_rate,
    updates_done,
)
from fluid.param_attr import ParamAttr
from fluid.regularizer import L2Decay

_NO_RATE = (
    "an optax transformation does not say its learning rate, so that it can be neither read nor set; use an optimizer "
    "of fluid, fluid.optimizer.Adam(learning_rate=number_or_schedule), or put the transformation into one:\n"
    "    class Mine(fluid.optimizer.Optimizer):\n"
    "        def rule(self):\n"
    "            return optax.adamw(self.learning_rate)\n"
    "    fluid.Trainer(program, Mine(learning_rate=0.001))"
)

# `_NOT_NEGATIVE`: optimizer settings that must not be negative, because updates would increase the loss or be NaN.
_NOT_NEGATIVE = (
    *("epsilon", "l1", "l2", "initial_accumulator_value"),
    *("weight_decay", "lamb_weight_decay", "lars_weight_decay", "lars_coeff"),
)

not_called("fluid.optimizer", "fluid.optimizer.SGD(0.1), fluid.optimizer.Adam(1e-3) or another one of it")


class Transformation(Protocol):
    """The interface of an optax transformation: two attributes, `init` and `update`."""

    @property
    def init(self) -> Callable[..., Any]:
        """A function of the parameters that returns the initial optimizer state."""

    @property
    def update(self) -> Callable[..., Any]:
        """A function from gradients, optimizer state and parameters to updates and the next optimizer state."""


class Minimizer:
    """The base class of all optimizers: of `Optimizer`, and of wrappers around an optimizer, such as `Lookahead`.

    Attributes:
      parameter_list: names of the parameters to update if `minimize` names none; None for all trainable parameters.
      accumulate_steps: the number of steps whose gradients are accumulated for one update.
      lazy_mode: True if an update may skip embedding rows without a gradient, although the formula of the optimizer
        would change them.
      whole_tables: True if an update needs whole embedding tables, and not only the rows with a gradient.

    Example:
      >>> isinstance(Optax(optax.sgd(0.1)), Minimizer)
      True
    """

    _set_by: ClassVar = {"learning_rate": ", or set the rate of a Trainer: trainer.learning_rate = 0.01"}

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Reject arguments that the class does not have, such as `lr=`; the error names the valid arguments."""
        if args or kwargs:  # `copy.copy` calls `__new__` without arguments, and needs no check
            misfit = core.misfit_of(cls.__init__, f"fluid.optimizer.{cls.__name__}", (None, *args), kwargs)
            if misfit is not None:
                raise misfit
        core.explain_frozen(cls, f"fluid.optimizer.{cls.__name__}")
        return super().__new__(cls)

    @property
    def parameter_list(self) -> Sequence[Any] | None:
        """Names of the parameters to update; None for all trainable parameters."""
        return None

    @property
    def declared_rate(self) -> Rate | None:
        """The configured learning rate, a number or a schedule; None for an optax transformation, which hides it."""
        return None

    @property
    def accumulate_steps(self) -> int:
        """The number of steps whose gradients are accumulated for one update."""
        return 1

    @property
    def lazy_mode(self) -> bool:
        """True if an update may skip the rows of an embedding table that have no gradient."""
        return False

    @property
    def whole_tables(self) -> bool:
        """True if an update needs whole embedding tables; in this base class, only if gradients are accumulated."""
        return self.accumulate_steps > 1

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation that converts gradients to updates, which a step adds to the parameters."""
        raise NotImplementedError

    def one_update(self, settings: Mapping[str, Any]) -> optax.GradientTransformation:
        """Return the optax transformation that computes one update from gradients, or from accumulated gradients.

        Args:
          settings: the ParamAttr of each parameter, or None, by name. If a parameter is not trainable, its update is
            zero, and its optimizer state does not change.
        """
        raise NotImplementedError

    def at_rate(self, rate: Any) -> Minimizer:
        """Return a copy of the optimizer with another learning rate; the structure of the optimizer state is equal.

        Args:
          rate: a scalar, which may be traced. With a negative rate, the copy uses its configured schedule, if any.

        Raises:
          UnknownNameError: the optimizer is an optax transformation, which hides its learning rate.
        """
        raise errors.UnknownNameError(_NO_RATE)

    def current_rate(self, slots: Any) -> Any:
        """Return the learning rate of the next update, a scalar.

        Args:
          slots: the optimizer state.

        Raises:
          UnknownNameError: the optimizer is an optax transformation, which hides its learning rate.
        """
        raise NotImplementedError

    def clipped_by(self, clip: Any) -> Minimizer:
        """Return a copy of this optimizer that clips gradients by `clip`, an object of `fluid.clip`.

        If this optimizer already has a clip, it is returned unchanged.
        """
        return self

    def transformation(self, settings: Mapping[str, Any]) -> optax.GradientTransformation:
        """Return the optax transformation of one step: accumulate gradients if `accumulate_steps` > 1, then update.

        Args:
          settings: the ParamAttr of each parameter, or None, by name.
        """
        update = self.one_update(settings)
        return update if self.accumulate_steps == 1 else accumulate(update, self.accumulate_steps)

    def minimize(
        self,
        loss: Any,
        parameter_list: Sequence[Any] | None = None,
        no_grad_set: Sequence[Any] | None = None,
        startup_program: object = None,
        grad_clip: Any = None,
    ) -> None:
        """Record, inside a program function, that this optimizer minimises a loss.

        Args:
          loss: a scalar, `[]` or `[1]`.
          parameter_list: names, globs such as "head/*", or values of the parameters to update. The default is the
            `parameter_list` of the optimizer, or else every trainable parameter of the program. It does not affect the
            moving statistics of layers; `fluid.frozen` and `trainer.freeze` stop them.
          no_grad_set: names, globs or values of parameters that do not change.
          startup_program: has no effect; it exists for programs written for PaddlePaddle Fluid. A Session initialises
            the parameters without it.
          grad_clip: a clip of `fluid.clip`, used if the optimizer has no clip.

        Raises:
          OutsideProgramError: no program function is running.
          ProgramError: the loss is not a float scalar.
          UnknownNameError: a parameter does not belong to this program.

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
        clip = core.current_frame("optimizer.minimize").made.gradient_clip
        first = core.record_minimize(loss, _with_clip(self, grad_clip, clip), names, no_grad_set)
        if first is not None and not same_rate(first.declared_rate, self.declared_rate):
            core.warn(
                f"{type(self).__name__} is given another learning rate than when the program was discovered: "
                f"{_shown(self.declared_rate)}, before {_shown(first.declared_rate)}, which is the one that counts. "
                f"The program function runs only while a step is compiled. To change the rate while training goes on, "
                f"write trainer.learning_rate = 0.01 between two steps, or give a function of the number of updates: "
                f"learning_rate=lambda updates_done: 0.1 * 0.99**updates_done"
            )


@dataclass(frozen=True)
class Optimizer(Minimizer):
    """The base class of optimizers; a subclass defines its `rule`, an optax transformation.

    A training step clips the gradients, adds the weight decay of the regularizer, computes the updates by the rule, and
    multiplies each update by the `learning_rate` of its parameter's ParamAttr.

    Args:
      learning_rate: a number, or a schedule: a function of the number of completed updates.
      regularization: a decay of `fluid.regularizer`, for parameters whose ParamAttr has none.
      grad_clip: a clip of `fluid.clip`, applied to the gradients of all parameters.
      parameter_list: names and globs of the parameters to update if `minimize` names none; all trainable parameters by
        default.
      name: has no effect; it exists for programs written for PaddlePaddle Fluid.
      lazy_mode: True skips embedding rows (`embedding(is_sparse=True)`) without a gradient, although the rule would
        change these rows and their optimizer state.
      accumulate_steps: the number of steps for one update, which uses the mean of their gradients. If the loss is a
        mean over examples, the update equals one step with all these minibatches, concatenated.

    Example:
      >>> import optax
      >>> class Steps(Optimizer):
      ...     def rule(self):
      ...         return optax.sign_sgd(self.learning_rate)
      >>> Steps(0.1).learning_rate
      0.1
    """

    learning_rate: Rate = 0.001
    regularization: Any = field(default=None, kw_only=True)
    grad_clip: Any = field(default=None, kw_only=True)
    parameter_list: Sequence[Any] | None = field(default=None, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    lazy_mode: bool = field(default=False, kw_only=True)
    accumulate_steps: int = field(default=1, kw_only=True)

    def __post_init__(self) -> None:
        kind = type(self).__name__
        rate = self.learning_rate
        if type(rate) is int and rate == 0:
            warn(
                f"{kind}(learning_rate=0) trains nothing; a quotient of whole numbers is written with one slash, as "
                f"in 1 / 10, and a rate that is meant to be zero is 0.0"
            )
        if not callable(rate) and (isinstance(rate, bool) or not isinstance(rate, Real) or not 0 <= rate):
            raise errors.ArgumentError(
                f"{kind}(learning_rate={rate!r}): expected a number from 0 on, or a schedule; "
                f"write fluid.optimizer.{kind}(learning_rate=0.001)"
            )
        whole_number(kind, "accumulate_steps", self.accumulate_steps)
        if self.grad_clip is not None and not hasattr(self.grad_clip, "transformation"):
            raise errors.ArgumentTypeError(
                f"{kind}(grad_clip={self.grad_clip!r}): expected a clip, as in "
                f"grad_clip=fluid.clip.GradientClipByGlobalNorm(1.0)"
            )
        if self.regularization is not None and not hasattr(self.regularization, "gradient"):
            raise errors.ArgumentTypeError(
                f"{kind}(regularization={self.regularization!r}): expected a decay, as in "
                f"regularization=fluid.regularizer.L2Decay(1e-4)"
            )
        for name in ("beta1", "beta2"):  # if the optimizer lacks the setting, `getattr` returns 0.0, which is valid
            decay = getattr(self, name, 0.0)
            if isinstance(decay, bool) or not isinstance(decay, Real) or not 0 <= float(decay) < 1:
                raise errors.ArgumentError(
                    f"{kind}({name}={decay!r}): expected a decay from 0 to below 1, as in {name}=0.9"
                )
        # Check only optimizers of fluid: in a user's subclass, settings with these names may have another meaning.
        if type(self).__module__.startswith("fluid."):
            self._check_numbers()
            self._doubt_numbers()

    def _check_numbers(self) -> None:
        """Raise an error for settings that make it impossible to minimise a loss, such as a negative weight decay."""
        kind = type(self).__name__
        for name in ("rho", "decay", "momentum"):
            share = getattr(self, name, 0)
            if isinstance(share, int | float) and (share >= 1 or (share < 0 and name != "momentum")):
                raise errors.ArgumentError(
                    f"{kind}({name}={share!r}): expected a share from 0 to below 1, as in {name}=0.9; with 1, what is "
                    f"gathered never fades"
                )
        for name in _NOT_NEGATIVE:
            number = getattr(self, name, 0)
            if hasattr(number, "regularization_coeff"):
                raise errors.ArgumentTypeError(
                    f"{kind}({name}={number!r}): expected a number: {name}={number.regularization_coeff!r}"
                )
            if isinstance(number, int | float) and number < 0:
                raise errors.ArgumentError(
                    f"{kind}({name}={number!r}): expected 0 or a positive number: {name}={-number!r}"
                )

    def _doubt_numbers(self) -> None:
        """Warn if two arguments seem to be in the wrong order, or if two settings both cause weight decay."""
        kind = type(self).__name__
        rate = self.learning_rate
        for name, next_to in (("beta1", "beta2"), ("momentum", "")):
            share = getattr(self, name, None)
            swapped = isinstance(share, float) and (share > 0.99 if next_to else 0 < share <= 0.1)
            if swapped and isinstance(rate, float) and rate >= 0.5:
                core.doubt_setting(
                    f"{kind}({rate!r}, {share!r}): the learning rate comes first, and {rate!r} is a usual "
                    f"{name}; write {kind}(learning_rate=0.001, {name}={rate!r}"
                    f"{f', {next_to}={share!r}' if next_to else ''})"
                )
        beta1, beta2, weight_decay = (getattr(self, name, None) for name in ("beta1", "beta2", "weight_decay"))
        if beta1 is not None and beta2 is not None and beta1 > max(0.9, beta2):
            core.doubt_setting(
                f"{kind}(beta1={beta1!r}, beta2={beta2!r}): beta1, the decay of the mean, is usually the smaller one; "
                f"in the other order it is {kind}(beta1={beta2!r}, beta2={beta1!r})"
            )
        decay = self.regularization
        if weight_decay and isinstance(decay, L2Decay) and decay.regularization_coeff:
            core.doubt_setting(
                f"{kind}(regularization={decay!r}) decays weights twice: {kind} decays them beside the gradient "
                f"already, by weight_decay={weight_decay!r}. Set that alone: "
                f"{kind}(weight_decay={decay.regularization_coeff!r}); fluid.optimizer.Adam has the decay in the "
                f"gradient"
            )

    @property
    def declared_rate(self) -> Rate | None:
        """The configured learning rate, a number or a schedule."""
        return self.learning_rate

    def at_rate(self, rate: Any) -> Minimizer:
        """Return a copy of this optimizer with the learning rate `rate`, a scalar.

        If `rate` is negative, the copy keeps the configured learning rate or schedule.
        """
        return replaced(self, learning_rate=instead_of(self.learning_rate, rate))

    def clipped_by(self, clip: Any) -> Minimizer:
        """Return a copy that clips gradients by `clip`; if this optimizer has a clip, return it unchanged."""
        return self if self.grad_clip is not None else replaced(self, grad_clip=clip)

    def scaled_rule(self, factors: Mapping[str, float]) -> optax.GradientTransformation:
        """Return the rule of this optimizer, with the learning rate of each parameter multiplied by a factor.

        Args:
          factors: the factor of each parameter, by parameter name.
        """
        return optax.chain(self.rule(), multiply(factors))

    def one_update(self, settings: Mapping[str, Any]) -> optax.GradientTransformation:
        """Return one optax transformation that clips gradients, adds weight decay and applies the update rule.

        Frozen parameters stay unchanged.

        Args:
          settings: the ParamAttr of each parameter, or None, by name.
        """
        attrs = {name: attr or ParamAttr() for name, attr in settings.items()}
        clips = {n: a.gradient_clip for n, a in attrs.items() if a.gradient_clip is not None}
        stages = [clip_each(clips)] if clips else []
        if self.grad_clip is not None:
            stages.append(self.grad_clip.transformation())
        decays = {n: a.regularizer or self.regularization for n, a in attrs.items()}
        if any(decays.values()):
            stages.append(add_decay(decays))
        factors = {n: a.learning_rate for n, a in attrs.items()}
        stages.append(self.scaled_rule(factors) if any(f != 1.0 for f in factors.values()) else self.rule())
        update = optax.chain(*stages) if len(stages) > 1 else stages[0]
        frozen = frozenset(n for n, a in attrs.items() if not a.trainable)
        return leave_out(update, frozen) if frozen else update

    def current_rate(self, slots: Any) -> Any:
        """Return the learning rate of the next update, float32 `[]`; `slots` is the optimizer state."""
        rate = self.learning_rate
        return jnp.asarray(rate(updates_done(slots)) if callable(rate) else rate, jnp.float32)


@dataclass(frozen=True)
class Optax(Optimizer):
    """An adapter from any optax transformation to an optimizer with `minimize`, which respects every ParamAttr.

    `fluid.Trainer` also accepts an optax transformation without an adapter. This class is for programs that call
    `minimize`.

    Args:
      tx: an `optax.GradientTransformation`, whose updates a training step adds to the parameters.
      regularization: as for Optimizer, like all other keyword arguments.

    Raises:
      ArgumentTypeError: `tx` is not an optax transformation.

    Example:
      >>> import fluid, optax
      >>> fluid.optimizer.Optax(optax.adamw(1e-3)).rule().init({}) is not None
      True
    """

    learning_rate: Rate = field(default=1.0, init=False, repr=False, compare=False)
    tx: optax.GradientTransformation = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_optax(self.tx):
            raise errors.ArgumentTypeError(
                f"fluid.optimizer.Optax wraps a transformation such as optax.adamw(1e-3), found {self.tx!r}"
            )

    def rule(self) -> optax.GradientTransformation:
        """Return the optax transformation that was passed as `tx`."""
        return self.tx

    @property
    def declared_rate(self) -> Rate | None:
        """The learning rate is None, because an optax transformation does not expose it."""
        return None

    def at_rate(self, rate: Any) -> Minimizer:
        """Raise UnknownNameError: an optax transformation does not expose its learning rate."""
        raise errors.UnknownNameError(_NO_RATE)

    def current_rate(self, slots: Any) -> Any:
        """Raise UnknownNameError: an optax transformation does not expose its learning rate."""
        raise errors.UnknownNameError(_NO_RATE)


OptimizerLike = Minimizer | Transformation | Callable[[], Minimizer | Transformation]
"""The type of `optimizer=`: an optimizer of fluid, an optax transformation, or a function that returns one of them."""


def as_optimizer(value: OptimizerLike) -> Minimizer:
    """Convert an optimizer of fluid, an optax transformation or a function to an optimizer of fluid.

    Args:
      value: an Optimizer or Wrapper, an optax transformation, or a function without arguments that returns one.

    Raises:
      ArgumentTypeError: `value` has another type.

    Example:
      >>> import fluid
      >>> as_optimizer(lambda: fluid.optimizer.SGD(0.1)).learning_rate
      0.1
    """
    known = isinstance(value, type | Minimizer) or is_optax(value)
    if not callable(value) or known:
        return _minimizer(value)
    with core.running(core.Frame(settings_only=True)) as frame:
        found = _minimizer(value())
    return _with_clip(found, frame.made.gradient_clip)


def innermost(optimizer: Minimizer) -> Minimizer:
    """Return the optimizer inside all wrappers, such as the SGD in `Lookahead(SGD(0.1))`."""
    while hasattr(optimizer, "inner_optimizer"):
        optimizer = optimizer.inner_optimizer
    return optimizer


def _with_clip(optimizer: Minimizer, *clips: Any) -> Minimizer:
    """Return the optimizer; if it has no gradient clip, set the first of `clips` that is not None.

    Warn about each other clip that differs, because it has no effect.
    """
    given = [clip for clip in (getattr(innermost(optimizer), "grad_clip", None), *clips) if clip is not None]
    if not given:
        return optimizer
    for clip in given:
        if clip != given[0]:
            core.doubt_setting(
                f"gradients are clipped once, by the clip of the optimizer, else that of minimize, else that of "
                f"set_gradient_clip: {given[0]!r} counts, and {clip!r} has no effect; leave one of them out"
            )
    return optimizer.clipped_by(given[0])


def _minimizer(found: Any) -> Minimizer:
    """Return an optimizer unchanged, or wrap an optax transformation in Optax."""
    if isinstance(found, Minimizer):
        return found
    if is_optax(found):
        return Optax(found)
    raise errors.ArgumentTypeError(
        f"an optimizer is a fluid.optimizer (an instance, not the class), an optax transformation, or a function that "
        f"returns one; found {found!r}. Write optimizer=fluid.optimizer.Adam(learning_rate=1e-3)"
    )


def is_optax(value: Any) -> bool:
    """Return whether a value is an optax transformation: an object with functions `init` and `update`."""
    return callable(getattr(value, "init", None)) and callable(getattr(value, "update", None))


def _shown(rate: Rate | None) -> str:
    return "a schedule" if callable(rate) else "none" if rate is None else f"{float(rate):g}"
