"""Reductions: the rule by which values of minibatches become one, and what a minibatch contributes to it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp

from fluid.core.frame import Frame


class Reduced(NamedTuple):
    """What a layer says of its result: how the values of minibatches become the value of a data set.

    It is noted as the fact "reduced" of the result. A layer that returns a mean notes its "weight" instead.

    Attributes:
      kind: "mean", "sum", "max", "min", "last" or "function".
      parts: the values that the function is a function of.
      function: of the reduced parts, in their order.
      over_steps: as in Reduction.
    """

    kind: str
    parts: tuple[Any, ...] = ()
    function: Callable[..., Any] | None = None
    over_steps: str | None = None


class Reduction(NamedTuple):
    """The rule by which the values of one output become one.

    Attributes:
      kind: "mean", which is weighted; "sum", "max", "min"; "last", also for what is the same in every minibatch;
        "rows", which are concatenated; or "function", of values that are reduced by rules of their own.
      weight: for a mean that was computed from others, the name of one of those, whose weight is also its own; None for
        the weight that is noted for the output itself, or else for the number of examples.
      parts: the rules of the values that the function is a function of.
      function: of the reduced parts, in their order.
      over_steps: how the values of training steps become one, "mean", "sum", "max", "min" or "last", where that is not
        the kind; None otherwise.
      doubt: where a value is computed that no rule is known for, so that the kind is a guess; None otherwise.
    """

    kind: str
    weight: str | None = None
    parts: tuple["Reduction", ...] = ()
    function: Callable[..., Any] | None = None
    over_steps: str | None = None
    doubt: str | None = None


def guess(shape: Sequence[int | None], doubt: str = "its program") -> Reduction:
    """The rule for an output of which nothing is known.

    Args:
      shape: of the output.
      doubt: the line that computes it.
    """
    return Reduction("mean" if tuple(shape) in ((), (1,)) else "rows", doubt=doubt)


class Part(NamedTuple):
    """What one minibatch contributes to an output.

    Attributes:
      value: the output of the minibatch; a tuple of Parts where it is a function of several values.
      weight: how much a mean weighs, a float32 scalar; None for other kinds.
    """

    value: Any
    weight: Any = None


def said_of(frame: Frame, value: Any) -> Reduction | None:
    """The rule that layers have noted for a value, or None."""
    reduced = frame.fact(value, "reduced")
    if reduced is None:
        return None if frame.fact(value, "weight") is None else Reduction("mean")
    parts = [said_of(frame, part) for part in reduced.parts]
    known = tuple(part for part in parts if part is not None)
    if len(known) < len(parts):
        return None
    return Reduction(reduced.kind, None, known, reduced.function, reduced.over_steps)


def part_of(frame: Frame, value: Any, reduction: Reduction, examples: int) -> Part:
    """What the minibatch of this run contributes to an output.

    Args:
      frame: of the run.
      value: the output.
      reduction: its rule.
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
