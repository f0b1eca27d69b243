"""Regularizers: terms that an optimizer adds to gradients, so that parameters stay small."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from fluid import errors
from fluid._util.known_names import getattr_of
from fluid.core import fitting

__getattr__ = getattr_of(__name__)


@fitting("fluid.regularizer.L2Decay")
@dataclass(frozen=True)
class L2Decay:
    """A regularizer that adds `regularization_coeff * parameter` to the gradient.

    The added term is the derivative of `regularization_coeff / 2` times the squared norm.

    Example:
      >>> L2Decay(0.1).gradient(2.0)
      0.2
    """

    regularization_coeff: float = 0.0

    def __post_init__(self) -> None:
        _check("L2Decay", self.regularization_coeff)

    def gradient(self, parameter: Any) -> Any:
        """Return the term that L2 regularization adds to the gradient of `parameter`, in the shape of `parameter`."""
        return self.regularization_coeff * parameter


@fitting("fluid.regularizer.L1Decay")
@dataclass(frozen=True)
class L1Decay:
    """A regularizer that adds `regularization_coeff * sign(parameter)` to the gradient.

    Example:
      >>> float(L1Decay(0.1).gradient(-2.0))
      -0.10000000149011612
    """

    regularization_coeff: float = 0.0

    def __post_init__(self) -> None:
        _check("L1Decay", self.regularization_coeff)

    def gradient(self, parameter: Any) -> Any:
        """Return the term that L1 regularization adds to the gradient of `parameter`, in the shape of `parameter`."""
        return self.regularization_coeff * jnp.sign(parameter)


def _check(owner: str, coefficient: Any) -> None:
    """Check that the coefficient of a decay is not negative, which would make parameters grow."""
    if isinstance(coefficient, int | float) and coefficient < 0:
        raise errors.ArgumentError(
            f"{owner}({coefficient!r}): expected 0 or a positive number, since a negative decay makes parameters grow "
            f"without bound: {owner}({-coefficient!r})"
        )


L1DecayRegularizer = L1Decay
L2DecayRegularizer = L2Decay
