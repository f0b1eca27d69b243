"""Losses of many classes that look at few of them: noise contrast, a tree of classes, a sampled softmax."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.initializer import Constant
from fluid.layers.base import Layer, array_of, dense, describe, layer, wide
from fluid.layers.checks import check_ids
from fluid.layers.embedding import look_up
from fluid.param_attr import ParamSetting

_SAMPLERS = ("uniform", "log_uniform", "custom_dist")


@layer
def nce(
    input: core.Value,
    label: core.Value,
    num_total_classes: int,
    sample_weight: core.Value | None = None,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: core.Value | Sequence[float] | None = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> jax.Array:
    """Noise-contrastive estimation (Gutmann and Hyvärinen, 2010): tells the right class from a few drawn at random.

    With `o = sigmoid(score)` and `b = num_neg_samples * probability of being drawn`, the right class costs
    `-log(o / (o + b))` and each drawn one `-log(b / (o + b))`.

    Args:
      input: `[batch, width]`.
      label: classes `[batch, right ones]` of an integer dtype, mostly one.
      num_total_classes: how many classes there are.
      sample_weight: `[batch]` or `[batch, 1]`; multiplies the losses.
      param_attr: ParamAttr of the weights `[num_total_classes, width]`.
      bias_attr: ParamAttr of the biases `[num_total_classes, 1]`; False for none.
      num_neg_samples: how many classes are drawn for each row; 10 by default.
      name: instead of `nce_N`; the draw depends on it.
      sampler: how they are drawn: "uniform"; "log_uniform", for classes sorted from frequent to rare; "custom_dist".
      custom_dist: the probability of each class, for "custom_dist".
      seed: other than 0, gives the same draw at every step.
      is_sparse: whether updates touch only the rows of weights that were looked at, see `embedding`.

    Returns:
      `[batch, 1]`.

    Raises:
      ArgumentError: there is no such sampler, or its probabilities are missing.
      ArgumentTypeError: labels are no integers.
      ShapeError: labels do not fit the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[8])
      ...     word = fluid.layers.data("word", shape=[1], dtype="int64")
      ...     return fluid.layers.nce(x, word, num_total_classes=1000, num_neg_samples=5)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("nce", name)
    x, right = _rows_and_classes(this, input, label)
    core.limit_feed(label, 0, core.whole_number(this.name, "num_total_classes", num_total_classes))
    count = 10 if num_neg_samples is None else core.whole_number(this.name, "num_neg_samples", num_neg_samples)
    odds = _odds(this, sampler, custom_dist, num_total_classes)
    key = jax.random.key(seed) if seed else core.random_key(this.name)
    drawn = jax.random.categorical(key, jnp.log(odds), shape=(x.shape[0], count)).astype(right.dtype)
    classes = jnp.concatenate([right, drawn], axis=1)
    weights = this.weight(param_attr, [num_total_classes, x.shape[1]], x.dtype, rows_only=is_sparse)
    biases = _biases(this, bias_attr, num_total_classes, x.dtype, is_sparse)
    scores = wide(jnp.einsum("bd,bkd->bk", x, _rows(weights, classes, is_sparse)))
    if biases is not None:
        scores = scores + _rows(biases, classes, is_sparse)[..., 0]
    rates = (odds * count)[classes].astype(scores.dtype)
    o = jax.nn.sigmoid(scores)
    costs = jnp.log(o + rates) - jnp.where(jnp.arange(classes.shape[1]) < right.shape[1], jnp.log(o), jnp.log(rates))
    total = jnp.sum(costs, axis=1, keepdims=True)
    return this.output(total if sample_weight is None else total * dense(sample_weight).reshape(-1, 1))


@layer
def hsigmoid(
    input: core.Value,
    label: core.Value,
    num_classes: int,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    name: str | None = None,
    path_table: core.Value | None = None,
    path_code: core.Value | None = None,
    is_custom: bool = False,
    is_sparse: bool = False,
) -> jax.Array:
    """Hierarchical sigmoid (Morin and Bengio, 2005): one yes or no at each fork on the way to a class in a tree.

    The tree is complete and binary, unless a tree of your own is given. A way that is shorter than the longest one adds
    log 2 for each fork that it lacks, as in Fluid.

    Args:
      input: `[batch, width]`.
      label: classes `[batch, 1]` of an integer dtype.
      num_classes: how many classes there are; with a tree of your own, how many forks.
      param_attr: ParamAttr of the weights: `[num_classes - 1, width]`, or `[num_classes, width]`.
      bias_attr: ParamAttr of the biases, `[forks, 1]`; False for none.
      name: instead of `hierarchical_sigmoid_N`.
      path_table: the forks on the way to each row's class, integers `[batch, longest]`, -1 behind the last.
      path_code: 0 or 1 at each of them, the same shape.
      is_custom: whether `path_table` and `path_code` are used.
      is_sparse: whether updates touch only the forks on the way, see `embedding`.

    Returns:
      `[batch, 1]`.

    Raises:
      ArgumentError: there are less than two classes, or a tree of your own lacks its table or code.
      ArgumentTypeError: labels are no integers.
      ShapeError: labels or ways do not fit the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[8])
      ...     word = fluid.layers.data("word", shape=[1], dtype="int64")
      ...     return fluid.layers.hsigmoid(x, word, num_classes=1000)
      >>> p = fluid.Program(program)
      >>> print(p.outputs[0], p.parameters["hierarchical_sigmoid_0.w_0"].shape)
      float32[batch, 1] (999, 8)
    """
    this = Layer("hierarchical_sigmoid", name)
    x, classes = _rows_and_classes(this, input, label)
    core.whole_number(this.name, "num_classes", num_classes, least=1 if is_custom else 2)
    if is_custom:
        forks, bits, taken = _custom_ways(this, x, path_table, path_code)
        rows = num_classes
    else:
        core.limit_feed(label, 0, num_classes)
        forks, bits, taken = _complete_ways(classes[:, :1], num_classes)
        rows = num_classes - 1
    weights = this.weight(param_attr, [rows, x.shape[1]], x.dtype, rows_only=is_sparse)
    biases = _biases(this, bias_attr, rows, x.dtype, is_sparse)
    scores = wide(jnp.einsum("bd,bkd->bk", x, _rows(weights, forks, is_sparse, taken)))
    if biases is not None:
        scores = scores + _rows(biases, forks, is_sparse, taken)[..., 0]
    scores = jnp.where(taken, jnp.clip(scores, -40, 40), 0)
    return this.output(jnp.sum(jax.nn.softplus(scores) - bits * scores, axis=1, keepdims=True))


@layer
def sampled_softmax_with_cross_entropy(
    logits: core.Value,
    label: core.Value,
    num_samples: int,
    num_true: int = 1,
    remove_accidental_hits: bool = True,
    use_customized_samples: bool = False,
    customized_samples: core.Value | None = None,
    customized_probabilities: core.Value | None = None,
    seed: int = 0,
    name: str | None = None,
) -> jax.Array:
    """Cross entropy of a softmax over the right classes and a few drawn at random (Jean et al., 2015).

    Classes are drawn once for the whole batch, log-uniformly (so sort them from frequent to rare) and without
    repetition. Each logit is lowered by the logarithm of how often its class is expected among them.

    Args:
      logits: `[batch, classes]`.
      label: classes `[batch, num_true]` of an integer dtype.
      num_samples: how many classes are drawn.
      num_true: how many classes are right for each row; the loss is the mean of theirs.
      remove_accidental_hits: whether a drawn class that is right is left out.
      use_customized_samples: whether the next two are used instead of a draw.
      customized_samples: integers `[batch, num_true + num_samples]`, the right classes first.
      customized_probabilities: of each of them, the same shape.
      seed: other than 0, gives the same draw at every step.
      name: instead of `sampled_softmax_with_cross_entropy_N`; the draw depends on it.

    Returns:
      `[batch, 1]`.

    Raises:
      ArgumentError: there are less classes than shall be drawn, or customized samples are missing.
      ArgumentTypeError: labels are no integers.
      ShapeError: labels do not fit the logits.

    Example:
      >>> import fluid
      >>> def program():
      ...     logits = fluid.layers.fc(fluid.layers.data("x", shape=[8]), size=1000)
      ...     word = fluid.layers.data("word", shape=[1], dtype="int64")
      ...     return fluid.layers.sampled_softmax_with_cross_entropy(logits, word, num_samples=20)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("sampled_softmax_with_cross_entropy", name)
    scores, right = _rows_and_classes(this, logits, label, num_true)
    classes_there = scores.shape[1]
    core.limit_feed(label, 0, classes_there)
    if use_customized_samples:
        if customized_samples is None or customized_probabilities is None:
            raise errors.ArgumentError(f"{this.name}: give customized_samples= and customized_probabilities= together")
        classes = check_ids(this.name, array_of(this, customized_samples))
        expected = wide(array_of(this, customized_probabilities))
    else:
        key = jax.random.key(seed) if seed else core.random_key(this.name)
        core.whole_number(this.name, "num_samples", num_samples, most=classes_there)
        drawn, often = _draw_without_repetition(key, num_samples, classes_there)
        many = jnp.broadcast_to(drawn, (scores.shape[0], num_samples)).astype(right.dtype)
        classes = jnp.concatenate([right, many], axis=1)
        expected = often[classes]
    chosen = jnp.take_along_axis(wide(scores), classes, axis=1)
    adjusted = chosen - jnp.log(expected.astype(chosen.dtype))
    if remove_accidental_hits:
        hit = jnp.any(classes[:, num_true:, None] == right[:, None, :], axis=-1)
        adjusted = adjusted.at[:, num_true:].add(jnp.where(hit, -1e20, 0))
    logs = jax.nn.log_softmax(adjusted, axis=1)[:, :num_true]
    return this.output(-jnp.mean(logs, axis=1, keepdims=True))


def _rows_and_classes(this: Layer, value: Any, label: Any, count: int | None = None) -> tuple[Any, Any]:
    rows, classes = array_of(this, value), check_ids(this.name, array_of(this, label))
    if classes.ndim == 1:
        classes = classes[:, None]
    fits = rows.ndim == 2 and classes.ndim == 2 and classes.shape[0] == rows.shape[0]
    if not fits or count is not None and classes.shape[1] != count:
        raise errors.ShapeError(
            f"{this.name}: {describe(value)} and label {describe(label)} do not fit; expected [batch, width] and "
            f'[batch, {count or 1}], as from layers.data("label", shape=[{count or 1}], dtype="int64")'
        )
    return rows, classes


def _rows(table: Any, ids: Any, sparse: bool, touched: Any = None) -> Any:
    return core.look_up(table, ids, touched) if sparse else look_up(table, ids)


def _biases(this: Layer, attr: Any, rows: int, dtype: Any, sparse: bool) -> Any:
    return None if attr is False else this.parameter("b", attr, [rows, 1], dtype, Constant(0.0), rows_only=sparse)


def _odds(this: Layer, sampler: str, custom: Any, classes: int) -> Any:
    """The probability of each class to be drawn, `[classes]`."""
    if sampler not in _SAMPLERS:
        raise errors.ArgumentError(f"{this.name}: sampler={sampler!r}; expected {', '.join(map(repr, _SAMPLERS))}")
    if sampler == "uniform":
        return jnp.full(classes, 1 / classes, jnp.float32)
    if sampler == "log_uniform":
        return jnp.asarray(_log_uniform(classes), jnp.float32)
    odds = None if custom is None else wide(custom).reshape(-1)
    if odds is None or odds.shape[0] != classes:
        raise errors.ArgumentError(
            f"{this.name}: sampler='custom_dist' needs the probability of each of {classes} classes: custom_dist=[...]"
        )
    return odds


def _log_uniform(classes: int) -> np.ndarray:
    """Probabilities that fall as those of words do: `log((k + 2) / (k + 1)) / log(classes + 1)`."""
    k = np.arange(classes)
    return np.log1p(1 / (k + 1)) / np.log(classes + 1)


def _draw_without_repetition(key: Any, count: int, classes: int) -> tuple[Any, Any]:
    """Draw classes, each once, and say for all of them how often they are expected among the drawn."""
    odds = _log_uniform(classes)
    # The largest of the perturbed logarithms are distributed as draws are that go on until so many differ.
    first, second = jax.random.split(key)
    drawn = jax.lax.top_k(jnp.log(odds) + jax.random.gumbel(first, (classes,)), count)[1]
    # How many draws that took, repeated ones included: one geometric number for each class found.
    found = jnp.asarray(odds, jnp.float32)[drawn]
    left = jnp.clip(1 - (jnp.cumsum(found) - found), 1e-6, 1)
    tries = jnp.sum(jnp.ceil(jnp.log(jax.random.uniform(second, (count,), minval=1e-30)) / jnp.log1p(-left)).clip(1))
    return drawn, -jnp.expm1(tries * jnp.log1p(-jnp.asarray(odds, jnp.float32)))


def _complete_ways(classes: Any, count: int) -> tuple[Any, Any, Any]:
    """Forks, bits, and whether there is a fork, `[batch, longest]`, on the ways of a complete binary tree."""
    code = classes + count
    bit = jnp.arange(math.floor(math.log2(count - 1)) + 1 if count > 2 else 1, dtype=classes.dtype)
    above = jnp.right_shift(code, bit + 1)  # 0 beyond the root
    taken = above > 0
    return jnp.where(taken, above - 1, 0), (jnp.right_shift(code, bit) & 1).astype(jnp.float32), taken


def _custom_ways(this: Layer, x: Any, table: Any, code: Any) -> tuple[Any, Any, Any]:
    if table is None or code is None:
        raise errors.ArgumentError(f"{this.name}: a tree of your own needs path_table= and path_code=")
    forks, bits = (check_ids(this.name, array_of(this, v)) for v in (table, code))
    if forks.shape != bits.shape or forks.ndim != 2 or forks.shape[0] != x.shape[0]:
        raise errors.ShapeError(
            f"{this.name}: path_table {describe(table)} and path_code {describe(code)} do not fit; expected both "
            f"[batch, longest way]"
        )
    taken = jnp.cumprod(forks >= 0, axis=1).astype(bool)
    return jnp.where(taken, forks, 0), bits.astype(jnp.float32), taken
