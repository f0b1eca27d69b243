"""How the values that the minibatches of a data set give for one output become one value of the data set."""

from fluid.core.reduction.apart import mixed_rows
from fluid.core.reduction.rule import Part, Reduced, Reduction, guess, part_of, said_of
from fluid.core.reduction.trace import find_reductions

__all__ = ["Part", "Reduced", "Reduction", "find_reductions", "guess", "mixed_rows", "part_of", "said_of"]
