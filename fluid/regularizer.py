"""Regularizers: what is added to a gradient so that parameters stay small."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from fluid.core import fitting
from fluid.missing import of_regularizer as __getattr__  # noqa: F401


@fitting("fluid.regularizer.L2Decay")
@dataclass(frozen=True)
class L2Decay:
    """Adds `coeff * parameter` to the gradient, the derivative of half its squared norm.

    Example:
      >>> L2Decay(0.1).gradient(2.0)
      0.2
    """

    regularization_coeff: float = 0.0

    def gradient(self, parameter: Any) -> Any:
        """The term to add, of the parameter's shape."""
        return self.regularization_coeff * parameter


@fitting("fluid.regularizer.L1Decay")
@dataclass(frozen=True)
class L1Decay:
    """Adds `coeff * sign(parameter)` to the gradient.

    Example:
      >>> float(L1Decay(0.1).gradient(-2.0))
      -0.10000000149011612
    """

    regularization_coeff: float = 0.0

    def gradient(self, parameter: Any) -> Any:
        """The term to add, of the parameter's shape."""
        return self.regularization_coeff * jnp.sign(parameter)


L1DecayRegularizer = L1Decay
L2DecayRegularizer = L2Decay
