"""Reduction: rules that combine the values of an output for minibatches into one value for the data set."""

from fluid.core.reduction.equations import mixed_rows
from fluid.core.reduction.rule import Part, Reduced, Reduction, guess, part_of, said_of
from fluid.core.reduction.trace import find_reductions

__all__ = ["Part", "Reduced", "Reduction", "find_reductions", "guess", "mixed_rows", "part_of", "said_of"]
