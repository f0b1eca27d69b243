"""Gathering: all-gather parameters that are sharded over "fsdp" where a program reads them.

The optimizer updates shards. A program reads a gathered copy of a parameter; inside a stack of blocks, such as of
`layers.repeat`, each block gathers its own slice. For the backward pass, a policy of `jax.checkpoint` gathers
parameters again, instead of keeping the gathered copies.
"""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import NamedSharding

from fluid.core.equations import inner_jaxprs

# The gather and the operations that layers apply to a parameter first: their results are as large as the parameter.
_NOT_KEPT = {"sharding_constraint", "convert_element_type", "reshape", "transpose", "squeeze"}


def gathered(array: Any, parts: NamedSharding, together: NamedSharding) -> Any:
    """All-gather a sharded array on each device; its gradient is sharded again.

    Args:
      array: the array, inside a compiled step.
      parts: the sharding of the array.
      together: the sharding of the result.

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
    """Return `function`, changed so that its backward pass gathers parameters again, instead of keeping whole copies.

    So a device holds its shards, and whole parameters only of the layer that it computes. All other values are kept.
    A function that already recomputes blocks, as with `layers.repeat(remat=True)`, is returned unchanged. Its blocks
    gather their parameters inside, and the policy here would override theirs.
    """

    def call(*arguments: Any) -> Any:
        if _computes_again(jax.make_jaxpr(function)(*arguments).jaxpr):
            return function(*arguments)
        return jax.checkpoint(function, policy=_is_kept)(*arguments)

    return call


def _computes_again(jaxpr: Any) -> bool:
    return any(
        equation.primitive.name in ("checkpoint", "remat", "remat2")
        or any(map(_computes_again, inner_jaxprs(equation)))
        for equation in jaxpr.eqns
    )


def _is_kept(operation: Any, *_: Any, **settings: Any) -> bool:
    """Return True if the result of an operation is kept for the backward pass; False if it is computed again."""
    inner = settings.get("call_jaxpr")
    if operation.name != "custom_vjp_call" or inner is None:
        return operation.name not in _NOT_KEPT
    # False for the function `gather` inside of `gathered`.
    return [equation.primitive.name for equation in inner.jaxpr.eqns] != ["sharding_constraint"]
