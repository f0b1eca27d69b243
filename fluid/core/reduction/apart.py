"""Whether a function computes each row of its results from one row of what it is given."""

from collections.abc import Sequence
from typing import Any

from fluid.core.reduction.equations import Traced, reductions_of


def mixed_rows(traces: Sequence[tuple[int, Any]], given: int) -> str | None:
    """Where a function computes a row of its results from others than this row of its arguments; None where nowhere.

    Loops, and functions with derivatives of their own, count as computing each row by itself.

    Args:
      traces: two numbers of rows, and for each the equations of the function, as from `jax.make_jaxpr`.
      given: how many of the last arguments have rows, as their first dimension.

    Returns:
      The user's line.

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
    return next((rule.doubt or "its last line" for rule in found if rule.kind != "rows" or rule.doubt), None)
