"""Reductions: the rules that combine values of minibatches, and the contribution of one minibatch."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from fluid.core.frame import Frame


class Reduced(NamedTuple):
    """A layer's note about its result: the rule that combines the values of minibatches.

    A layer attaches the note to its result as the fact "reduced". A layer that returns a mean attaches a "weight".

    Attributes:
      kind: "mean", "sum", "max", "min", "last" or "function".
      parts: the arguments of the function, as values of the minibatch.
      function: called with the parts, each one reduced over all minibatches, in this order.
      over_steps: as in Reduction.
    """

    kind: str
    parts: tuple[Any, ...] = ()
    function: Callable[..., Any] | None = None
    over_steps: str | None = None


class Reduction(NamedTuple):
    """The rule that combines the values of one output over several minibatches.

    Attributes:
      kind: "mean", which is weighted; "sum", "max", "min"; "last", also for values that are equal in every minibatch;
        "rows", which are concatenated; or "function" of values with separate rules.
      weight: for a mean that was computed from other means, the name of a mean with an equal weight. None for the
        weight that is noted for the output itself, or else for the number of examples.
      parts: the rules of the arguments of the function.
      function: called with its arguments, each one reduced over all minibatches, in the order of `parts`.
      over_steps: the rule for the values of training steps, "mean", "sum", "max", "min" or "last", if this rule differs
        from `kind`; else None.
      doubt: the line that computes a value without a known rule, if the kind is a guess; else None.
    """

    kind: str
    weight: str | None = None
    parts: tuple["Reduction", ...] = ()
    function: Callable[..., Any] | None = None
    over_steps: str | None = None
    doubt: str | None = None


def guess(shape: Sequence[int | None], doubt: str = "its program") -> Reduction:
    """Return a guessed rule for an output without a known rule: "mean" for a scalar, else "rows".

    Args:
      shape: the shape of the output.
      doubt: the line that computes the output.
    """
    return Reduction("mean" if tuple(shape) in ((), (1,)) else "rows", doubt=doubt)


class Part(NamedTuple):
    """The contribution of one minibatch to an output.

    Attributes:
      value: the output of the minibatch; a tuple of Parts if the output is a function of several values.
      weight: the weight of a mean, a float32 scalar; None for other kinds.
    """

    value: Any
    weight: Any = None


def said_of(frame: Frame, value: Any) -> Reduction | None:
    """Return the rule that layers have noted for a value, or None."""
    reduced = frame.fact(value, "reduced")
    if reduced is None:
        return None if frame.fact(value, "weight") is None else Reduction("mean")
    parts = [said_of(frame, part) for part in reduced.parts]
    known = tuple(part for part in parts if part is not None)
    if len(known) < len(parts):
        return None
    return Reduction(reduced.kind, None, known, reduced.function, reduced.over_steps)


def part_of(frame: Frame, value: Any, reduction: Reduction, examples: int) -> Part:
    """Return the contribution of this run's minibatch to an output.

    Args:
      frame: the frame of the run.
      value: the output.
      reduction: the rule of the output.
      examples: the number of examples of the minibatch.
    """
    if reduction.kind == "function":
        inner = zip(frame.fact(value, "reduced").parts, reduction.parts, strict=True)
        return Part(tuple(part_of(frame, part, rule, examples) for part, rule in inner))
    if reduction.kind != "mean":
        return Part(value)
    source = value if reduction.weight is None else frame.made.values[reduction.weight]
    known = frame.fact(source, "weight")
    return Part(value, jnp.asarray(examples if known is None else known, jnp.float32))
