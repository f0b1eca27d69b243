"""Attention of several heads, and the cache of keys and values with which one step follows another."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.attention.position import rotate
from fluid.layers.base import Layer, dense, describe, filled, layer, like, times_matrix, wide_dtype
from fluid.layers.norm.dropout import dropout
from fluid.param_attr import to_attr


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AttentionCache:
    """Keys and values of the steps that were there before; a pytree, and the batch leads in each of its arrays.

    Attributes:
      keys: `[batch, max_length, num_heads, head_size]`.
      values: the same.
      position: `[batch]`, int32: how many steps each row holds.
    """

    keys: Any
    values: Any
    position: Any


@layer
def attention_cache(
    batch: int, max_length: int, num_heads: int, head_size: int, dtype: str = "float32", name: str | None = None
) -> AttentionCache:
    """An empty cache for `multi_head_attention(..., cache=)`, which decoding carries from step to step.

    Args:
      batch: number of rows, such as `x.shape[0]`.
      max_length: how many steps fit into it.
      num_heads: of the attention.
      head_size: of the attention: its size divided by `num_heads`.
      dtype: of the keys and values; a program of mixed precision holds "float32" as what it computes in.
      name: instead of `attention_cache_N`.

    Returns:
      A pytree of arrays that begin with the batch: `keys` and `values` `[batch, max_length, num_heads, head_size]`,
      and `position` `[batch]`, int32.

    Raises:
      ArgumentError: a size is no positive integer.

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
    for argument, size in sizes.items():
        _check_count(this.name, argument, size)
    empty = this.frame.compute(jnp.zeros(tuple(sizes.values()), dtype))
    return AttentionCache(this.output(empty), this.output(empty), this.output(jnp.zeros([batch], jnp.int32)))


@layer
def multi_head_attention(
    queries: Any,
    keys: Any = None,
    values: Any = None,
    num_heads: int = 1,
    size: int | None = None,
    causal: bool = False,
    dropout_rate: float = 0.0,
    rotary: bool = False,
    cache: AttentionCache | None = None,
    param_attr: Any = None,
    bias_attr: Any = None,
    name: str | None = None,
) -> Any:
    """Attention of several heads (Vaswani et al., 2017), with its four projections.

    Queries, keys, values and the result are projected by `NAME.w_0` to `NAME.w_3`, `[width of the input, size]`, and
    `NAME.b_0` to `NAME.b_3`, `[size]`; head `h` has the columns from `h * size / num_heads` on. A query that may see no
    key at all, as those of an empty sequence, gives zeros to the last projection.

    Args:
      queries: `[batch, targets, width]`, or a SequenceBatch.
      keys: `[batch, sources, width]`, or a SequenceBatch, whose padding is not seen; the queries by default.
      values: `[batch, sources, width]`, or a SequenceBatch as the keys; the keys by default.
      num_heads: divides `size`.
      size: of the result, and of all heads together; the width of the queries by default.
      causal: whether step `i` sees the steps `0` to `i` only.
      dropout_rate: of dropout on the weights of the keys, in training; what is kept is scaled up.
      rotary: whether queries and keys are turned by their positions, see `rotary_position`.
      cache: from `attention_cache`: the queries are the steps that follow those in it, one or several. They are written
        behind those, and each sees all before it and itself, `causal` or not. Of a SequenceBatch only the valid
        steps count, so rows may be of different lengths. Steps that find no room give what is not a number.
      param_attr: ParamAttr of the weights, or a list of four.
      bias_attr: ParamAttr of the biases, or a list of four; False for none.
      name: instead of `multi_head_attention_N`.

    Returns:
      `[batch, targets, size]`, a SequenceBatch if the queries are one; with a cache `(result, cache)`.

    Raises:
      ShapeError: the inputs do not fit together, or not the cache.
      ArgumentError: `num_heads` does not divide `size`, there are values without keys, keys beside a cache, or one
        name for all parameters.

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
    weights, biases = _each(this, "param_attr", param_attr), _each(this, "bias_attr", bias_attr)
    query, key, value = (
        split_heads(_project(this, filled(v, 0), size, w, b), num_heads)
        for v, w, b in zip((queries, *sources), weights, biases, strict=False)
    )
    if rotary:
        start = jnp.zeros([1], jnp.int32) if cache is None else cache.position
        query, key = (rotate(v, start[:, None] + jnp.arange(v.shape[1])) for v in (query, key))
    if cache is None:
        mask = visible(query, causal, *sources)
    else:
        cache, mask, fits = _write(this, cache, queries, key, value)
        key, value = cache.keys, cache.values
    seen = attend(query, key, value, mask, dropper(dropout_rate, "upscale_in_train", name))
    result = _project(this, seen.reshape(*seen.shape[:2], size), size, weights[3], biases[3])
    if cache is None:
        return this.output(like(queries, result))
    return this.output(like(queries, jnp.where(fits[..., None], result, jnp.nan))), cache


def attend(query: Any, key: Any, value: Any, mask: Any = None, drop: Callable[[Any], Any] | None = None) -> Any:
    """For each query the mean of the values, weighed by the softmax of its products with the keys.

    Args:
      query: `[batch, targets, heads, d]`.
      key: `[batch, sources, heads, d]`.
      value: `[batch, sources, heads, v]`.
      mask: bool `[batch or 1, 1, targets or 1, sources]`: what a query may see; all by default.
      drop: applied to the weights `[batch, heads, targets, sources]`.

    Returns:
      `[batch, targets, heads, v]`; zeros for a query that may see nothing.
    """
    key, value = key.astype(query.dtype), value.astype(query.dtype)
    # The library's function has no dropout, has values as wide as keys, and makes its softmax in float32 always.
    if drop is None and value.shape == key.shape and query.dtype != "float64":
        result = jax.nn.dot_product_attention(query, key, value, mask=mask)
    else:
        result = _by_weights(query, key, value, mask, drop)
    if mask is None:
        return result
    return jnp.where(jnp.swapaxes(jnp.any(mask, axis=-1, keepdims=True), 1, 2), result, 0)


def visible(query: Any, causal: bool, *sources: Any) -> Any:
    """The mask for `attend`: which steps of the sources (keys, values) exist and are not after the query; or None."""
    mask = None
    for batch in (v for v in sources if isinstance(v, core.SequenceBatch)):
        exists = batch.mask[:, None, None, :]
        mask = exists if mask is None else mask & exists
    if causal:
        before = jnp.tril(jnp.ones([query.shape[1], dense(sources[0]).shape[1]], bool))[None, None]
        mask = before if mask is None else mask & before
    return mask


def split_heads(value: Any, num_heads: int) -> Any:
    """The array `[batch, time, heads, d]` of a value `[batch, time, heads * d]`."""
    array = dense(value)
    return array.reshape(*array.shape[:2], num_heads, -1)


def dropper(rate: float, implementation: str, name: str | None) -> Callable[[Any], Any] | None:
    """Dropout for `attend`, or None where nothing is dropped."""
    if not rate:
        return None
    return functools.partial(dropout, dropout_prob=rate, name=name, dropout_implementation=implementation)


def _by_weights(query: Any, key: Any, value: Any, mask: Any, drop: Callable[[Any], Any] | None) -> Any:
    products = jnp.einsum("btnd,bsnd->bnts", query, key, preferred_element_type=wide_dtype(query.dtype))
    products = products * query.shape[-1] ** -0.5
    if mask is not None:
        # Not -inf: where all is masked, the softmax and its gradient would not be numbers.
        products = jnp.where(mask, products, jnp.finfo(products.dtype).min / 2)
    weights = jax.nn.softmax(products, axis=-1).astype(value.dtype)
    return jnp.einsum("bnts,bsnd->btnd", weights if drop is None else drop(weights), value)


def _project(this: Layer, value: Any, size: int, attr: Any, bias_attr: Any) -> Any:
    x = dense(value)
    product = times_matrix(x, this.weight(attr, [x.shape[-1], size], x.dtype))
    bias = this.bias(bias_attr, [size], x.dtype)
    return product if bias is None else product + bias


def _write(this: Layer, cache: AttentionCache, queries: Any, key: Any, value: Any) -> tuple[AttentionCache, Any, Any]:
    """Put new steps behind those in a cache: the cache, the mask for `attend`, and which steps `[batch, time]` fit."""
    expected = (key.shape[0], *key.shape[2:])
    found = (cache.keys.shape[0], *cache.keys.shape[2:])
    if found != expected:
        raise errors.ShapeError(
            f"{this.name}: the cache has keys {describe(cache.keys)}, the queries are {describe(queries)}; "
            f"expected layers.attention_cache(queries.shape[0], max_length, num_heads={expected[1]}, "
            f"head_size={expected[2]})"
        )
    rows, steps, room = jnp.arange(key.shape[0])[:, None], key.shape[1], cache.keys.shape[1]
    places = cache.position[:, None] + jnp.arange(steps)
    # Steps that are padding are written too: nobody sees them before the next ones take their places.
    keys, values = (
        held.at[rows, places].set(new.astype(held.dtype), mode="drop")
        for held, new in ((cache.keys, key), (cache.values, value))
    )
    ragged = isinstance(queries, core.SequenceBatch)
    after = AttentionCache(keys, values, cache.position + (queries.lengths if ragged else steps))
    mask = jnp.arange(room) <= places[:, None, :, None]
    return after, mask, (places < room) | (~queries.mask if ragged else False)


def _sources(this: Layer, queries: Any, keys: Any, values: Any, cache: Any) -> tuple[Any, Any]:
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
    for argument, count in (("num_heads", num_heads), ("size", size)):
        _check_count(this.name, argument, count)
    if size % num_heads:
        raise errors.ArgumentError(
            f"{this.name}: size={size} cannot be shared among num_heads={num_heads}; expected a multiple, as in "
            f"size={num_heads * max(1, round(size / num_heads))}"
        )
    if rotary and size // num_heads % 2:
        raise errors.ArgumentError(
            f"{this.name}: rotary=True turns pairs of numbers, and a head has {size // num_heads}; expected an even "
            f"size / num_heads, as in num_heads={num_heads}, size={2 * size}"
        )


def _check_count(layer_name: str, argument: str, value: Any) -> None:
    if not core.is_size(value) or value < 1:
        raise errors.ArgumentError(
            f"{layer_name}: {argument}={value!r}; expected a positive integer, as in {argument}=4"
        )


def _each(this: Layer, argument: str, attr: Any) -> list[Any]:
    """One setting for each projection: queries, keys, values, result."""
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
