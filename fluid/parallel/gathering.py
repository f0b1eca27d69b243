"""Parameters that lie in parts, brought together where a program reads them, and again on the way back."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding

# What brings a parameter together, and what layers do to it before they compute: results as large as it is.
_NOT_KEPT = {"sharding_constraint", "convert_element_type", "reshape", "transpose", "squeeze"}


def gathered(array: Any, parts: NamedSharding, together: NamedSharding) -> Any:
    """An array that lies in parts, together on each device; its gradient lies in parts again.

    Args:
      array: inside a compiled step.
      parts: how it lies.
      together: how it is wanted.

    References:
      Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (2020).
    """

    @jax.custom_vjp
    def gather(value: Any) -> Any:
        return jax.lax.with_sharding_constraint(value, together)

    def forward(value: Any) -> tuple[Any, None]:
        return gather(value), None

    def backward(_: None, gradient: Any) -> tuple[Any]:
        return (jax.lax.with_sharding_constraint(gradient, parts),)

    gather.defvjp(forward, backward)
    return gather(array)


def gathering_again(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, whose gradient brings parameters together again instead of keeping them until it needs them.

    So a device holds the parts, and together only what the layer at work reads. All other values are kept, as always.
    """
    return jax.checkpoint(function, policy=_is_kept)


def _is_kept(operation: Any, *_: Any, **settings: Any) -> bool:
    """Whether the result of an operation is kept for the gradient."""
    inner = settings.get("call_jaxpr")
    if operation.name != "custom_vjp_call" or inner is None:
        return operation.name not in _NOT_KEPT
    return [equation.primitive.name for equation in inner.jaxpr.eqns] != ["sharding_constraint"]  # not `gather` above
