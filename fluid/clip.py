"""Gradient clips, which an optimizer applies before regularizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from fluid import core, errors
from fluid._util.known_names import getattr_of
from fluid._util.lazy import optax

__getattr__ = getattr_of(__name__)

# `NeedClip` is the type of `need_clip=`: a function that returns whether the gradient of a parameter is clipped; None
# clips all gradients.
NeedClip = Callable[[core.Parameter], bool] | None


@core.fitting("fluid.clip.GradientClipByValue")
@dataclass(frozen=True)
class GradientClipByValue:
    """A clip of every element of every gradient to `[min, max]`.

    Args:
      max: upper bound.
      min: lower bound, `-max` by default.
      need_clip: a function that is called with a parameter, which has `name`, `shape` and `dtype`. It returns whether
        the gradient of the parameter is clipped. By default all gradients are clipped.

    Example:
      >>> import jax.numpy as jnp
      >>> clip = GradientClipByValue(1.0).transformation()
      >>> clip.update({"w": jnp.array([-3.0, 0.5])}, clip.init({}))[0]["w"].tolist()
      [-1.0, 0.5]
    """

    max: float
    min: float | None = None
    need_clip: NeedClip = None

    def __post_init__(self) -> None:
        _check_bounds(self.max, self.min)

    def transformation(self) -> optax.GradientTransformation:
        """Return the optax transformation that clips a tree of gradients."""
        low = -self.max if self.min is None else self.min
        return _of_some(self.need_clip, lambda updates: jax.tree.map(lambda g: g.clip(low, self.max), updates))


@core.fitting("fluid.clip.GradientClipByNorm")
@dataclass(frozen=True)
class GradientClipByNorm:
    """A clip that scales each gradient separately, so that its L2 norm is at most `clip_norm`.

    Args:
      clip_norm: the largest norm.
      need_clip: a function that selects the parameters, see `GradientClipByValue`. By default all gradients are
        clipped.

    Example:
      >>> import jax.numpy as jnp
      >>> clip = GradientClipByNorm(1.0).transformation()
      >>> [round(float(v), 3) for v in clip.update({"w": jnp.array([3.0, 4.0])}, clip.init({}))[0]["w"]]
      [0.6, 0.8]
    """

    clip_norm: float
    need_clip: NeedClip = None

    def __post_init__(self) -> None:
        _check_norm("GradientClipByNorm", self.clip_norm)

    def transformation(self) -> optax.GradientTransformation:
        """Return the optax transformation that clips a tree of gradients."""
        one = optax.clip_by_global_norm(self.clip_norm)
        return _of_some(
            self.need_clip, lambda updates: {n: one.update(g, optax.EmptyState())[0] for n, g in updates.items()}
        )


@core.fitting("fluid.clip.GradientClipByGlobalNorm")
@dataclass(frozen=True)
class GradientClipByGlobalNorm:
    """A clip that scales all gradients by one factor, so that their global L2 norm is at most `clip_norm`.

    Args:
      clip_norm: the largest norm.
      group_name: accepted for programs written for Fluid; the gradients of one optimizer are one group.
      need_clip: a function that selects the parameters, see `GradientClipByValue`. The norm includes only the selected
        gradients.

    Example:
      >>> import jax.numpy as jnp
      >>> clip = GradientClipByGlobalNorm(1.0).transformation()
      >>> [round(float(v), 3) for v in clip.update({"w": jnp.array([3.0, 4.0])}, clip.init({}))[0]["w"]]
      [0.6, 0.8]
    """

    clip_norm: float
    group_name: str = "default_group"
    need_clip: NeedClip = None

    def __post_init__(self) -> None:
        _check_norm("GradientClipByGlobalNorm", self.clip_norm)

    def transformation(self) -> optax.GradientTransformation:
        """Return the optax transformation that clips a tree of gradients."""
        rule = optax.clip_by_global_norm(self.clip_norm)
        return _of_some(self.need_clip, lambda updates: rule.update(updates, optax.EmptyState())[0])


def _check_norm(owner: str, norm: Any) -> None:
    """Check that `clip_norm`, the limit of a gradient norm, is positive: 0 or less would zero or reverse gradients.

    NaN is accepted, and so is a traced value, as in a `fluid.Population`.
    """
    if isinstance(norm, int | float) and norm <= 0:
        raise errors.ArgumentError(
            f"{owner}(clip_norm={norm!r}): expected a positive number, as in clip_norm=1.0, since with 0 every "
            f"gradient is 0; to clip nothing leave grad_clip= out"
        )


def _check_bounds(high: Any, low: Any) -> None:
    """Check that clipping bounds include 0: otherwise clipping would change the sign of gradients."""
    lowest = -high if low is None and isinstance(high, int | float) else low
    if (
        isinstance(high, int | float)
        and isinstance(lowest, int | float)
        and not (lowest <= 0 <= high and lowest < high)
    ):
        raise errors.ArgumentError(
            f"GradientClipByValue(max={high!r}, min={low!r}): expected min <= 0 <= max, found {lowest!r} and {high!r}; "
            f"GradientClipByValue(1.0) clips to [-1, 1]"
        )


Clip = GradientClipByValue | GradientClipByNorm | GradientClipByGlobalNorm


def set_gradient_clip(clip: Clip | None, param_list: Sequence[Any] | None = None, program: None = None) -> None:
    """Set the gradient clip of later `minimize` calls whose optimizer has no `grad_clip=`.

    Call this function in the program function, or in the function that returns the optimizer.

    Args:
      clip: the clip; None for no clip.
      param_list: names or values of parameters, whose gradients are clipped separately. By default the clip applies to
        the gradients of all parameters.
      program: must be None, which means the running program function.

    Raises:
      ArgumentError: `program` is given, or `clip` is a global norm and `param_list` is given.
      ArgumentTypeError: `clip` is not a clip.
      OutsideProgramError: no program function and no function that returns an optimizer is running.
      UnknownNameError: a parameter is not in this program.

    Example:
      >>> import fluid
      >>> def optimizer():
      ...     fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(clip_norm=5.0))
      ...     return fluid.optimizer.Adam(learning_rate=1e-3)
      >>> fluid.optimizer.as_optimizer(optimizer).grad_clip.clip_norm
      5.0
    """
    if clip is not None and not isinstance(clip, Clip):
        raise errors.ArgumentTypeError(
            f"set_gradient_clip({clip!r}): expected a clip, as in fluid.clip.GradientClipByGlobalNorm(5.0)"
        )
    if program is not None:
        raise errors.ArgumentError("set_gradient_clip(program=...): call it inside of the program function instead")
    if param_list is None:
        core.record_gradient_clip(clip)
        return
    if isinstance(clip, GradientClipByGlobalNorm):
        raise errors.ArgumentError(
            "set_gradient_clip: param_list= clips each parameter by itself, which has no common norm; write "
            "GradientClipByGlobalNorm(5.0, need_clip=lambda parameter: parameter.name in names)"
        )
    core.clip_parameters(clip, param_list)


def _of_some(need_clip: NeedClip, clip: Callable[[Any], Any]) -> optax.GradientTransformation:
    """Return the optax transformation that applies `clip` to the gradients that `need_clip` selects."""

    def update(updates: Any) -> Any:
        if need_clip is None:
            return clip(updates)
        return {**updates, **clip({n: g for n, g in updates.items() if core.decide("need_clip", need_clip, n, g)})}

    return optax.stateless(lambda updates, _: update(updates))
