"""Ensembles: the members of a population as one model, whose outputs are the means over the members."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core import NestedSequenceBatch, SequenceBatch
from fluid.population.session import PopulationSession


def mean_of_members(results: Any) -> Any:
    """Return the mean over the members of each result of a test-mode run."""
    return jax.tree.map(_mean, results, is_leaf=_is_sequence)


def each_member(results: Any) -> Any:
    """Return each result of a test-mode run with the axis of members after the axis of the batch."""
    return jax.tree.map(_behind_rows, results, is_leaf=_is_sequence)


class Separately:
    """Parameters of an ensemble for an Inferencer that returns the outputs of each member; see `Population.each`.

    Args:
      make: a function that returns the session for a program function, a place and a precision.
    """

    def __init__(self, make: Callable[..., PopulationSession]):
        self.inference_session = make


def _mean(value: Any) -> Any:
    if _is_sequence(value):
        raise errors.ArgumentError(
            "an ensemble gives the mean of what its members compute, found a sequence, expected an array; ask for what "
            "each member computes: fluid.Inferencer(program, params=population[i])"
        )
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        raise errors.ArgumentError(
            f"an ensemble gives the mean of what its members compute, found {value.dtype}{list(value.shape[1:])}, "
            f"expected floating-point numbers, such as probabilities; fetch those, or ask for what each member "
            f"computes: fluid.Inferencer(program, params=population.each)"
        )
    return value.mean(axis=0)


def _behind_rows(value: Any) -> Any:
    if _is_sequence(value):
        raise errors.ArgumentError(
            "the members of an ensemble give arrays, found a sequence; ask one of them: "
            "fluid.Inferencer(program, params=population[i])"
        )
    return jnp.moveaxis(value, 0, min(1, value.ndim - 1))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, SequenceBatch | NestedSequenceBatch)
