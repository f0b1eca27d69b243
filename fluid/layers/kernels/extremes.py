"""Largest and smallest elements along axes, with a gradient that survives rounding."""

import functools
from typing import Any

import jax
import jax.numpy as jnp


def largest(x: Any, axis: Any, keepdims: bool = False, where: Any = None) -> Any:
    """Return the largest elements along axes; minus infinity, or the smallest integer, if there are no elements."""
    return _extreme(x, axis, keepdims, where, largest=True)


def smallest(x: Any, axis: Any, keepdims: bool = False, where: Any = None) -> Any:
    """Return the smallest elements along axes; infinity, or the largest integer, if there are no elements."""
    return _extreme(x, axis, keepdims, where, largest=False)


def _extreme(x: Any, axis: Any, keepdims: bool, where: Any, largest: bool) -> Any:
    """Return the largest or smallest elements along axes, of the elements where `where` is true."""
    if floating := jnp.issubdtype(x.dtype, jnp.floating):
        limit = -jnp.inf if largest else jnp.inf
    else:
        limit = getattr(jnp.iinfo(x.dtype), "min" if largest else "max")
    if not floating or 0 in x.shape:
        initial = None if where is None else limit
        return (jnp.max if largest else jnp.min)(x, axis, keepdims=keepdims, where=where, initial=initial)
    x = x if where is None else jnp.where(where, x, limit)
    axes = tuple(range(x.ndim)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    result = _chosen(x, tuple(a % x.ndim for a in axes), largest)
    return result if keepdims else jnp.squeeze(result, axes)


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _chosen(x: jax.Array, axes: tuple[int, ...], largest: bool) -> jax.Array:
    """Return the largest or smallest floats along axes, which stay with size 1; equal elements count as the first.

    JAX finds the elements that receive the gradient of a maximum by `x == jnp.max(x)`. XLA may compute `x` once for
    the maximum and once more for the comparison, in two kernels that round differently (jax 0.10.2, CPU). Then no
    element is equal, and the gradient is lost. An index is right however often XLA computes `x`.
    """
    return jnp.max(x, axes, keepdims=True) if largest else jnp.min(x, axes, keepdims=True)


@_chosen.defjvp
def _(axes: tuple[int, ...], largest: bool, xs: tuple[jax.Array], slopes: tuple[jax.Array]) -> tuple[Any, Any]:
    """Return the largest or smallest elements, and their tangents."""
    (x,), (slope,) = xs, slopes
    for axis in axes:
        index = (jnp.argmax if largest else jnp.argmin)(x, axis, keepdims=True)
        chosen = jax.lax.broadcasted_iota(index.dtype, x.shape, axis) == index
        slope = jnp.sum(jnp.where(chosen, slope, 0), axis, keepdims=True)
        x = _chosen(x, (axis,), largest)
    return x, slope
