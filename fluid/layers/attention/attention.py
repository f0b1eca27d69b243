"""Multi-head attention, and the cache of keys and values for step-by-step decoding."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.core.rows import mark, marked
from fluid.layers.attention.position import rotate
from fluid.layers.attention.ring import attend_around, ring_of
from fluid.layers.base import Layer, dense, describe, layer, like, wide_dtype
from fluid.layers.kernels.lookup_table import times_matrix
from fluid.layers.norm.dropout import dropout
from fluid.param_attr import ParamSetting, to_attr


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AttentionCache:
    """A cache of the attention keys and values of previous decoding steps: a pytree whose first dimension is the batch.

    Attributes:
      keys: `[batch, max_length, num_heads, head_size]`.
      values: `[batch, max_length, num_heads, head_size]`.
      position: `[batch]`, int32: the number of cached steps of each row.
    """

    keys: jax.Array
    values: jax.Array
    position: jax.Array


@layer
def attention_cache(
    batch: int, max_length: int, num_heads: int, head_size: int, dtype: str = "float32", name: str | None = None
) -> AttentionCache:
    """Create an empty cache of keys and values, for decoding step by step with `multi_head_attention(cache=...)`.

    Args:
      batch: the number of rows, such as `x.shape[0]`.
      max_length: the capacity of the cache in steps.
      num_heads: the number of heads of the attention.
      head_size: the size of one head: the `size` of `multi_head_attention` divided by `num_heads`.
      dtype: the dtype of keys and values. In mixed precision, "float32" is replaced by the dtype of the computation.
      name: name of the layer; by default `attention_cache_N`.

    Returns:
      A pytree of three arrays: `keys` and `values`, `[batch, max_length, num_heads, head_size]`, and `position`,
      `[batch]`, int32.

    Raises:
      ArgumentError: a size is not a positive integer.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[1, 8])
      ...     cache = fluid.layers.attention_cache(x.shape[0], max_length=5, num_heads=2, head_size=4)
      ...     y, cache = fluid.layers.multi_head_attention(x, num_heads=2, cache=cache)
      ...     return y, cache.keys, cache.position
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 1, 8] float32[batch, 5, 2, 4] int32[batch]
    """
    this = Layer("attention_cache", name)
    sizes = {"batch": batch, "max_length": max_length, "num_heads": num_heads, "head_size": head_size}
    shape = [core.whole_number(this.name, argument, size) for argument, size in sizes.items()]
    empty = this.frame.compute(jnp.zeros(shape, dtype))
    return AttentionCache(this.output(empty), this.output(empty), this.output(jnp.zeros([batch], jnp.int32)))


@layer
def multi_head_attention(
    queries: Value,
    keys: Value | None = None,
    values: Value | None = None,
    num_heads: int = 1,
    size: int | None = None,
    causal: bool = False,
    dropout_rate: float = 0.0,
    rotary: bool = False,
    cache: AttentionCache | None = None,
    param_attr: ParamSetting | Sequence[ParamSetting] = None,
    bias_attr: ParamSetting | Sequence[ParamSetting] = None,
    name: str | None = None,
    ring: str | None = None,
) -> Any:
    """Apply multi-head attention (Vaswani et al., 2017), with projections of queries, keys, values and result.

    The weights `NAME.w_0` to `NAME.w_3`, `[width of the input, size]`, and the biases `NAME.b_0` to `NAME.b_3`,
    `[size]`, project the queries, the keys, the values and the result. Head `h` uses `size / num_heads` columns,
    beginning at column `h * size / num_heads`. If a query can attend to no key, for example because the key sequence is
    empty, the input of the last projection is zero.

    Args:
      queries: `[batch, targets, width]`, or a SequenceBatch.
      keys: `[batch, sources, width]`, or a SequenceBatch, whose padding is masked; the queries by default.
      values: `[batch, sources, width]`, or a SequenceBatch like the keys; the keys by default.
      num_heads: the number of heads, which divides `size`.
      size: the size of the result, and of all heads in total; the width of the queries by default.
      causal: whether step `i` attends only to the steps `0` to `i`; queries and keys then have equal numbers of steps.
      dropout_rate: the rate of dropout on the attention weights, in training; the remaining weights are scaled up.
      rotary: whether to rotate queries and keys by their positions, see `rotary_position`.
      cache: the cache of the previous steps, from `attention_cache`. The queries are then one or several new steps,
        which the layer appends to the cache. Each query attends to its own step and to all previous steps, also without
        `causal`. For a SequenceBatch, only valid steps are appended, so rows may have different lengths. The result of
        a step that exceeds the capacity of the cache is NaN.
      param_attr: ParamAttr of the weights, or a list of four.
      bias_attr: ParamAttr of the biases, or a list of four; False for none.
      name: name of the layer; by default `multi_head_attention_N`.
      ring: the name of a mesh axis, for ring attention. Each device along this axis holds a part of the steps, and the
        devices pass keys and values around a ring. So the maximum sequence length grows with the number of devices.
        Without a mesh (`parallel=`), and on a mesh that has only the axes of the batch, the argument is ignored.

    Returns:
      `[batch, targets, size]`, a SequenceBatch if the queries are one; with a cache the pair `(result, cache)`.

    Raises:
      ShapeError: the shapes of the inputs, or of the inputs and the cache, do not match.
      ArgumentError: `num_heads` does not divide `size`; values are given without keys; keys are given with a cache;
        dropout or a cache is used with a ring; or one name is given to all weights or to all biases.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[8], lod_level=1)
      ...     y = fluid.layers.multi_head_attention(x, num_heads=2, causal=True, rotary=True)
      ...     return fluid.layers.mean(y)
      >>> list(fluid.Program(program).parameters)[:4]  # doctest: +NORMALIZE_WHITESPACE
      ['multi_head_attention_0.w_0', 'multi_head_attention_0.b_0',
       'multi_head_attention_0.w_1', 'multi_head_attention_0.b_1']
    """
    this = Layer("multi_head_attention", name)
    sources = _sources(this, queries, keys, values, cache)
    size = dense(queries).shape[-1] if size is None else size
    _check_heads(this, num_heads, size, rotary)
    _check_cache(this, cache, queries, num_heads, size)
    _check_ring(this, ring, dropout_rate, cache)
    if causal and this.frame.discovering and dense(sources[0]).shape[1] != dense(queries).shape[1]:
        raise errors.ShapeError(
            f"{this.name}: causal=True compares steps by their index, and queries {describe(queries)} and keys "
            f"{describe(sources[0])} have other numbers of steps; expected equal numbers. New steps after earlier ones "
            f"take cache=; a target that attends to all sources takes causal=False"
        )
    axis = ring_of(f"{this.name}: ring={ring!r}", ring, causal)
    weights = _one_each(this, "param_attr", param_attr)
    biases = _one_each(this, "bias_attr", bias_attr)
    query, key, value = (
        split_heads(_project(this, dense(v), size, weight, bias), num_heads)
        for v, weight, bias in zip((queries, *sources), weights[:3], biases[:3], strict=True)
    )
    drop = dropper(dropout_rate, "upscale_in_train", name)
    if cache is not None:
        heads, longer, fits = _attend_to_cache(cache, queries, query, key, value, rotary, drop)
        result = _project(this, merge_heads(heads), size, weights[3], biases[3])
        return this.output(like(queries, jnp.where(fits[..., None], result, jnp.nan))), longer
    if rotary:
        query, key = (rotate(v, jnp.arange(v.shape[1])) for v in (query, key))
    if axis is None:
        heads = attend(query, key, value, visible(query, causal, *sources), drop)
    else:
        heads = _attend_around(this.name, axis, query, key, value, sources)
    return this.output(like(queries, _project(this, merge_heads(heads), size, weights[3], biases[3])))


def attend(query: Any, key: Any, value: Any, mask: Any = None, drop: Callable[[Any], Any] | None = None) -> Any:
    """Compute scaled dot-product attention: for each query, the mean of the values weighted by a softmax over the keys.

    Args:
      query: `[batch, targets, heads, d]`, where `d` is the size of a head.
      key: `[batch, sources, heads, d]`.
      value: `[batch, sources, heads, v]`.
      mask: bool `[batch or 1, 1, targets or 1, sources]`: true for each key that a query attends to; all by default.
      drop: a dropout function for the attention weights `[batch, heads, targets, sources]`; None for no dropout.

    Returns:
      `[batch, targets, heads, v]`; zeros for a query that attends to no key.
    """
    key = key.astype(query.dtype)
    value = value.astype(query.dtype)
    # `jax.nn.dot_product_attention` has no dropout, requires values as wide as the keys, and always computes the
    # softmax in float32.
    if drop is None and value.shape == key.shape and query.dtype != "float64":
        result = jax.nn.dot_product_attention(query, key, value, mask=mask)
    else:
        result = _weighted_mean(query, key, value, mask, drop)
    if mask is None:
        return result
    return jnp.where(jnp.swapaxes(jnp.any(mask, axis=-1, keepdims=True), 1, 2), result, 0)


def visible(query: Any, causal: bool, *sources: Any) -> Any:
    """Compute the attention mask, which is true for each key that a query attends to.

    Args:
      query: `[batch, targets, ...]`.
      sources: keys and values, `[batch, sources, ...]`; the padding of a SequenceBatch is masked.

    Returns:
      bool `[batch or 1, 1, targets or 1, sources]`, or None if each query attends to every key.
    """
    masks = [batch.mask[:, None, None, :] for batch in sources if isinstance(batch, core.SequenceBatch)]
    if causal:
        masks.append(jnp.tril(jnp.ones([query.shape[1], dense(sources[0]).shape[1]], bool))[None, None])
    return functools.reduce(operator.and_, masks) if masks else None


def split_heads(value: Any, num_heads: int) -> Any:
    """Reshape an array or SequenceBatch `[batch, time, heads * d]` to an array `[batch, time, heads, d]`."""
    array = dense(value)
    return array.reshape(*array.shape[:2], num_heads, -1)


def merge_heads(array: Any) -> Any:
    """Reshape an array `[batch, time, heads, d]` to `[batch, time, heads * d]`."""
    return array.reshape(*array.shape[:2], -1)


def dropper(rate: float, implementation: str, name: str | None) -> Callable[[Any], Any] | None:
    """Return a function that applies dropout to attention weights, or None if `rate` is 0."""
    if not rate:
        return None
    return functools.partial(dropout, dropout_prob=rate, name=name, dropout_implementation=implementation)


def _weighted_mean(query: Any, key: Any, value: Any, mask: Any, drop: Callable[[Any], Any] | None) -> Any:
    """Compute scaled dot-product attention by `einsum`, with optional dropout; see `attend` for the arguments."""
    products = jnp.einsum("btnd,bsnd->bnts", query, key, preferred_element_type=wide_dtype(query.dtype))
    products = products * query.shape[-1] ** -0.5
    if mask is not None:
        # Masked dot products become a large negative number: minus infinity would make softmax and gradient NaN for a
        # query that attends to no key.
        products = jnp.where(mask, products, jnp.finfo(products.dtype).min / 2)
    weights = jax.nn.softmax(products, axis=-1).astype(value.dtype)
    return jnp.einsum("bnts,bsnd->btnd", weights if drop is None else drop(weights), value)


def _project(this: Layer, x: Any, size: int, attr: ParamSetting, bias_attr: ParamSetting) -> Any:
    """Create a weight and a bias, and project `x`, `[batch, time, width]`, to `[batch, time, size]`."""
    product = times_matrix(x, this.weight(attr, [x.shape[-1], size], x.dtype))
    bias = this.bias(bias_attr, [size], x.dtype)
    return product if bias is None else product + bias


def _check_ring(this: Layer, ring: str | None, dropout_rate: float, cache: AttentionCache | None) -> None:
    """Check that a layer with `ring=` (ring attention) uses neither dropout nor a cache, whatever the mesh is."""
    if ring is not None and (dropout_rate or cache is not None):
        found = "dropout_rate=" if dropout_rate else "cache="
        raise errors.ArgumentError(
            f"{this.name}: found {found} beside ring={ring!r}, expected one of them: around a ring the weights are "
            f"never there as a whole; what the layer returns can be dropped instead: "
            f"dropout(multi_head_attention(x, ring={ring!r}), 0.1)"
        )


def _attend_around(name: str, axis: Any, query: Any, key: Any, value: Any, sources: tuple[Any, Any]) -> Any:
    """Compute attention on a ring of devices, without the padding of keys and values.

    `sources` holds the keys and values before projection: arrays, or SequenceBatches, which may have padding. The ring
    divides the steps and no rows, which the equations of `jax.shard_map` do not show; so the layer called `name`
    declares it.
    """
    mask = visible(query, False, *sources)
    seen = jnp.ones(key.shape[:2], bool) if mask is None else mask[:, 0, 0]
    return marked(f"{name}.ring", attend_around(axis, *mark(f"{name}.ring", (query, key, value, seen))))


def _attend_to_cache(
    cache: AttentionCache,
    queries: Value,
    query: Any,
    key: Any,
    value: Any,
    rotary: bool,
    drop: Callable[[Any], Any] | None,
) -> tuple[Any, AttentionCache, Any]:
    """Append new steps to a cache, and compute the attention of each new step to itself and to all previous steps.

    Args:
      queries: the new steps before projection, `[batch, time, width]` or a SequenceBatch.
      query: the projected queries of the new steps, `[batch, time, heads, head_size]`.

    Returns:
      The attention results of the new steps, `[batch, time, heads, head_size]`; the cache with the new steps; and a
      bool mask `[batch, time]`, which is false for each valid step that exceeds the capacity of the cache.
    """
    steps = key.shape[1]
    capacity = cache.keys.shape[1]
    places = cache.position[:, None] + jnp.arange(steps)
    if rotary:
        query, key = (rotate(v, places) for v in (query, key))
    rows = jnp.arange(key.shape[0])[:, None]
    # The keys and values of padding are written to the cache too. Later steps overwrite them before any query attends
    # to them.
    keys, values = (
        held.at[rows, places].set(new.astype(held.dtype), mode="drop")
        for held, new in ((cache.keys, key), (cache.values, value))
    )
    mask = jnp.arange(capacity) <= places[:, None, :, None]
    fits = places < capacity
    appended: Any = steps
    if isinstance(queries, core.SequenceBatch):
        fits |= ~queries.mask
        appended = queries.lengths
    return attend(query, keys, values, mask, drop), AttentionCache(keys, values, cache.position + appended), fits


def _check_cache(this: Layer, cache: AttentionCache | None, queries: Value, num_heads: int, size: int) -> None:
    """Check that an attention cache has the batch size of the queries, and the number and size of the layer's heads."""
    expected = (dense(queries).shape[0], num_heads, size // num_heads)
    if cache is not None and (cache.keys.shape[0], *cache.keys.shape[2:]) != expected:
        raise errors.ShapeError(
            f"{this.name}: the cache has keys {describe(cache.keys)}, the queries are {describe(queries)}; "
            f"expected layers.attention_cache(queries.shape[0], max_length, num_heads={num_heads}, "
            f"head_size={size // num_heads})"
        )


def _sources(this: Layer, queries: Any, keys: Any, values: Any, cache: Any) -> tuple[Any, Any]:
    """Check the shapes of keys and values, and return both; keys default to the queries, and values to the keys."""
    if keys is None and values is not None:
        raise errors.ArgumentError(f"{this.name}: values without keys; give both, as in (queries, keys, values)")
    if keys is not None and cache is not None:
        raise errors.ArgumentError(
            f"{this.name}: a cache holds the keys and values of the queries themselves; leave out keys= and values=, "
            f"or cache="
        )
    keys = queries if keys is None else keys
    values = keys if values is None else values
    shapes = [dense(v).shape for v in (queries, keys, values)]
    if any(len(s) != 3 for s in shapes) or len({s[0] for s in shapes}) > 1 or shapes[1][1] != shapes[2][1]:
        raise errors.ShapeError(
            f"{this.name}: queries {describe(queries)}, keys {describe(keys)}, values {describe(values)} do not fit; "
            f"expected [batch, targets, width], [batch, sources, width] and [batch, sources, width]"
        )
    return keys, values


def _check_heads(this: Layer, num_heads: int, size: int, rotary: bool) -> None:
    core.whole_number(this.name, "num_heads", num_heads)
    core.whole_number(this.name, "size", size)
    if size % num_heads:
        raise errors.ArgumentError(
            f"{this.name}: size={size} cannot be shared among num_heads={num_heads}; expected a multiple, as in "
            f"size={num_heads * max(1, round(size / num_heads))}"
        )
    if rotary and size // num_heads % 2:
        raise errors.ArgumentError(
            f"{this.name}: rotary=True rotates pairs of numbers, and a head has {size // num_heads}; expected an even "
            f"size / num_heads, as in num_heads={num_heads}, size={2 * size}"
        )


def _one_each(this: Layer, argument: str, attr: Any) -> list[ParamSetting]:
    """Return a list of four parameter settings, for the projections of queries, keys, values and result."""
    if isinstance(attr, list | tuple):
        if len(attr) != 4:
            raise errors.ArgumentError(
                f"{this.name}: {argument} has {len(attr)} settings; give one for all, or four: for queries, keys, "
                f"values and result"
            )
        return list(attr)
    settings = to_attr(attr)
    if settings is not None and settings.name is not None:
        names = ", ".join(f'"{settings.name}_{suffix}"' for suffix in ("q", "k", "v", "out"))
        raise errors.ArgumentError(
            f"{this.name}: {argument} gives one name, {settings.name!r}, to four parameters; give four: "
            f"{argument}=[{names}]"
        )
    return [attr] * 4
