"""Ring attention: several devices divide the steps of sequences, and pass keys and values around a ring."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from fluid import core
from fluid.layers.base import wide_dtype


class Ring(NamedTuple):
    """A ring of devices along an axis of the mesh; each device holds an equal number of steps of the sequences.

    Attributes:
      axis: the name of the mesh axis.
      size: the number of devices.
      causal: whether a query attends only to its own step and to previous steps.
    """

    axis: str
    size: int
    causal: bool


def ring_of(owner: str, axis: str | None, causal: bool) -> Ring | None:
    """Return the ring of devices along an axis of the current mesh, or None if each device holds all steps.

    Raises:
      ArgumentError: `axis` is not a string, or the mesh lacks this axis although it has more than the batch axes.
    """
    here = core.axes_here()
    if axis is None or not core.axes_of(owner, (axis,), here)[0]:
        return None
    return Ring(axis, here[axis], causal) if here[axis] > 1 else None


def attend_around(ring: Ring, query: Any, key: Any, value: Any, seen: Any) -> Any:
    """Compute scaled dot-product attention on a ring of devices, each of which holds only a part of the steps.

    In each of `ring.size` iterations, every device multiplies its queries by its current keys, and then passes these
    keys and their values to the next device. The backward pass sends keys and values around the ring once more,
    together with their partial gradients. Products and sums are computed in float32 or wider.

    Args:
      query: `[batch, targets, heads, d]`.
      key: `[batch, sources, heads, d]`.
      value: `[batch, sources, heads, v]`.
      seen: bool `[batch, sources]`: true for valid keys, false for padding.

    Returns:
      `[batch, targets, heads, v]`; zeros for a query that attends to no key.

    References:
      Liu et al., "Ring Attention with Blockwise Transformers for Near-Infinite Context" (2023).
    """
    targets = query.shape[1]
    query, key, value, seen = (_even(array, ring.size) for array in (query, key, value, seen))
    return _around(ring, query, key.astype(query.dtype), value.astype(query.dtype), seen)[:, :targets]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _around(ring: Ring, query: Any, key: Any, value: Any, seen: Any) -> Any:
    return _forward(ring, query, key, value, seen)[0]


def _forward(ring: Ring, query: Any, key: Any, value: Any, seen: Any) -> tuple[Any, Any]:
    """Compute the attention results, and the residuals for the backward pass.

    The residuals are the inputs, the results, and the logarithms of the softmax denominators.
    """
    results, denominators = _on_each(ring, _results, 4, 2)(query, key, value, seen)
    return results, (query, key, value, seen, results, denominators)


def _backward(ring: Ring, kept: Any, slope: Any) -> tuple[Any, ...]:
    return (*_on_each(ring, _slopes, 7, 3)(*kept, slope), None)


_around.defvjp(_forward, _backward)


def _on_each(ring: Ring, function: Any, takes: int, gives: int) -> Any:
    """Return a function that runs `function` on each device of the ring, with the steps that the device holds.

    Args:
      function: a function of the ring and of arrays `[batch, steps, ...]`, which returns arrays of this shape.
    """
    steps = PartitionSpec(None, ring.axis)
    return jax.shard_map(
        functools.partial(function, ring),
        in_specs=(steps,) * takes,
        out_specs=(steps,) * gives,
        axis_names={ring.axis},
        check_vma=False,
    )


def _results(ring: Ring, query: Any, key: Any, value: Any, seen: Any) -> tuple[Any, Any]:
    """Compute attention for the queries of one device, while keys and values move around a ring of devices.

    Args:
      query: the queries of this device, `[batch, targets, heads, d]`.
      key: the keys that this device holds at first, `[batch, sources, heads, d]`.
      value: the values that this device holds at first, `[batch, sources, heads, v]`.
      seen: bool `[batch, sources]`: true for valid keys, false for padding.

    Returns:
      The results `[batch, targets, heads, v]`, and the logarithms of the denominators `[batch, targets, heads]`.
    """
    wide = wide_dtype(query.dtype)
    shape = query.shape[:3]
    lowest = jnp.finfo(wide).min / 2

    def turn(i: Any, carry: Any) -> Any:
        (key, value, seen), highest, total, sums = carry
        products, mask = _products(ring, i, query, key, seen)
        higher = jnp.maximum(highest, jnp.max(jnp.where(mask, products, lowest), axis=-1))
        weights = jnp.where(mask, jnp.exp(products - higher[..., None]), 0)
        shrunk = jnp.exp(highest - higher)
        total = total * shrunk + weights.sum(-1)
        sums = sums * shrunk[..., None] + jnp.einsum("btns,bsnd->btnd", weights, value.astype(wide))
        return _handed_on(ring, (key, value, seen)), higher, total, sums

    sums = jnp.zeros((*shape, value.shape[-1]), wide)
    begin = ((key, value, seen), jnp.full(shape, lowest, wide), jnp.zeros(shape, wide), sums)
    _, highest, total, sums = jax.lax.fori_loop(0, ring.size, turn, begin)
    # For a query that attends to no key, set the logarithm of the softmax denominator to infinity. Then all attention
    # weights of this query are zero in the backward pass.
    denominators = jnp.where(total > 0, highest + jnp.log(jnp.where(total > 0, total, 1)), jnp.inf)
    return (sums / jnp.where(total > 0, total, 1)[..., None]).astype(query.dtype), denominators


def _slopes(
    ring: Ring, query: Any, key: Any, value: Any, seen: Any, results: Any, denominators: Any, slope: Any
) -> tuple[Any, Any, Any]:
    """Compute the gradients with respect to the queries, keys and values of one device of the ring.

    `denominators` are the logarithms of the softmax denominators, from the forward pass. `slope` is the gradient of the
    attention results.
    """
    wide = wide_dtype(query.dtype)
    slope = slope.astype(wide)
    along = jnp.sum(slope * results.astype(wide), axis=-1, keepdims=True)
    scale = query.shape[-1] ** -0.5

    def turn(i: Any, carry: Any) -> Any:
        (key, value, seen, of_key, of_value), of_query = carry
        products, mask = _products(ring, i, query, key, seen)
        weights = jnp.where(mask, jnp.exp(products - denominators[..., None]), 0)
        of_value = of_value + jnp.einsum("btns,btnd->bsnd", weights, slope)
        of_products = weights * (jnp.einsum("btnd,bsnd->btns", slope, value.astype(wide)) - along) * scale
        of_query = of_query + jnp.einsum("btns,bsnd->btnd", of_products, key.astype(wide))
        of_key = of_key + jnp.einsum("btns,btnd->bsnd", of_products, query.astype(wide))
        return _handed_on(ring, (key, value, seen, of_key, of_value)), of_query

    empty = [jnp.zeros(array.shape, wide) for array in (key, value, query)]
    (_, _, _, of_key, of_value), of_query = jax.lax.fori_loop(
        0, ring.size, turn, ((key, value, seen, *empty[:2]), empty[2])
    )
    return of_query.astype(query.dtype), of_key.astype(key.dtype), of_value.astype(value.dtype)


def _products(ring: Ring, turn: Any, query: Any, key: Any, seen: Any) -> tuple[Any, Any]:
    """Compute the scaled dot products of a device's queries with its current keys, and the attention mask.

    In ring attention, the devices form a ring, and pass their keys and values to the next device after each turn.

    Args:
      query: `[batch, targets, heads, d]`.
      key: `[batch, sources, heads, d]`.
      seen: bool `[batch, sources]`: true for valid keys, false for padding.

    Returns:
      The products, `[batch, targets, heads, sources]`, and the mask, bool `[batch, targets or 1, 1, sources]`: true for
      each key that a query attends to.
    """
    products = jnp.einsum("btnd,bsnd->btns", query, key, preferred_element_type=wide_dtype(query.dtype))
    mask = seen[:, None, None, :]
    if ring.causal:
        here = jax.lax.axis_index(ring.axis)
        targets = here * query.shape[1] + jnp.arange(query.shape[1])
        sources = (here - turn) % ring.size * key.shape[1] + jnp.arange(key.shape[1])
        mask = mask & (sources <= targets[:, None])[None, :, None, :]
    return products * query.shape[-1] ** -0.5, mask


def _handed_on(ring: Ring, arrays: Any) -> Any:
    return jax.lax.ppermute(arrays, ring.axis, [(i, (i + 1) % ring.size) for i in range(ring.size)])


def _even(array: Any, count: int) -> Any:
    """Pad an array `[batch, time, ...]` with zeros at the end of `time`, to a multiple of `count` steps."""
    more = -array.shape[1] % count
    return jnp.pad(array, [(0, 0), (0, more), *[(0, 0)] * (array.ndim - 2)]) if more else array
