"""Apart: a check that a function computes each row of its results from one row of its arguments."""

from collections.abc import Iterator, Sequence
from typing import Any

from fluid.core.equations import inner_jaxprs, user_line
from fluid.core.reduction.equations import Traced, reductions_of

_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_or", "reduce_and", "reduce_prod"})


def mixed_rows(traces: Sequence[tuple[int, Any]], given: int) -> str | None:
    """Return a line where a function computes a row of its results from other rows of its arguments, or None.

    A row that is looked up by its number is not found.

    Args:
      traces: pairs of a number of rows and the equations of the function, from `jax.make_jaxpr`, for two numbers.
      given: the number of last arguments whose first dimension is rows.

    Returns:
      The user's line, or None if each row is computed apart.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def traces(function):
      ...     return [(rows, jax.make_jaxpr(function)(jnp.ones((rows, 3))).jaxpr) for rows in (4, 5)]
      >>> mixed_rows(traces(lambda x: x - x.mean(axis=1, keepdims=True)), 1) is None
      True
      >>> mixed_rows(traces(lambda x: x - x.mean(axis=0)), 1) is None
      False
    """
    first, second = (
        Traced(rows, jaxpr, jaxpr.invars[len(jaxpr.invars) - given :], jaxpr.outvars, ()) for rows, jaxpr in traces
    )
    found = reductions_of(first, second, [None] * len(first.outputs))
    doubts = (rule.doubt or "its last line" for rule in found if rule.kind != "rows" or rule.doubt)
    return next(doubts, None) or next(_moves(first.jaxpr, second.jaxpr, (first.batch, second.batch)), None)


def _moves(
    jaxpr: Any, twin: Any, counts: tuple[int, int], line: str = "its program", inside: bool = False
) -> Iterator[str]:
    """Yield the lines that change the order or the number of rows or, inside loops and branches, reduce over rows."""
    for equation, other in zip(jaxpr.eqns, twin.eqns, strict=True):
        here = user_line(equation)
        here = line if here == "unknown line" else here
        following = _following(equation.invars, other.invars)
        left = _following(equation.outvars, other.outvars)
        name = equation.primitive.name
        turned = name == "rev" and any(a != b for a, b in _sizes(equation, other))
        reduced = inside and name in _REDUCTIONS and following and not left
        if turned or reduced or any(a * counts[1] != b * counts[0] for a, b in left):
            yield here
        if name != "while":  # the condition of a loop may reduce over rows, as in "is any row left?"
            for inner, same in zip(inner_jaxprs(equation), inner_jaxprs(other), strict=True):
                if len(inner.eqns) != len(same.eqns):
                    yield here
                    return
                yield from _moves(inner, same, counts, here, inside or name not in ("jit", "pjit", "closed_call"))


def _following(variables: Sequence[Any], others: Sequence[Any]) -> list[tuple[int, int]]:
    """Return the sizes in both traces of each dimension that differs, and so follows the number of rows."""
    pairs = zip(variables, others, strict=True)
    shapes = ((v.aval.shape, w.aval.shape) for v, w in pairs if hasattr(v.aval, "shape"))
    return [(a, b) for one, two in shapes for a, b in zip(one, two, strict=True) if a != b]


def _sizes(equation: Any, other: Any) -> list[tuple[int, int]]:
    """Return the sizes in both traces of the dimensions that a `rev` equation reverses."""
    first, second = equation.invars[0].aval.shape, other.invars[0].aval.shape
    return [(first[i], second[i]) for i in equation.params["dimensions"]]
