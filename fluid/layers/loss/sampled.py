"""Losses for many classes that compute only a few scores: NCE, hierarchical sigmoid and sampled softmax."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.initializer import Constant
from fluid.layers.base import Layer, array_of, dense, describe, layer, wide
from fluid.layers.checks import check_ids
from fluid.layers.kernels.lookup_table import look_up
from fluid.param_attr import ParamSetting

_SAMPLERS = ("uniform", "log_uniform", "custom_dist")


@layer
def nce(
    input: Value,
    label: Value,
    num_total_classes: int,
    sample_weight: Value | None = None,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    num_neg_samples: int | None = None,
    name: str | None = None,
    sampler: str = "uniform",
    custom_dist: Value | Sequence[float] | None = None,
    seed: int = 0,
    is_sparse: bool = False,
) -> jax.Array:
    """Compute the noise-contrastive loss of the right class against random classes (Gutmann and Hyvärinen, 2010).

    Let `o = sigmoid(score)` and `b = num_neg_samples * probability of being drawn`. The loss of a row sums
    `-log(o / (o + b))` for the right class and `-log(b / (o + b))` for each drawn one, and divides the sum by
    `num_neg_samples + 1`.

    Args:
      input: `[batch, width]`.
      label: the right classes, `[batch, number of right classes]` of an integer dtype; usually there is one.
      num_total_classes: the number of classes.
      sample_weight: factors of the losses, `[batch]` or `[batch, 1]`.
      param_attr: ParamAttr of the weights `[num_total_classes, width]`.
      bias_attr: ParamAttr of the biases `[num_total_classes, 1]`; False for none.
      num_neg_samples: the number of classes drawn for each row; 10 by default.
      name: name of the layer; by default `nce_N`; the random draw depends on the name.
      sampler: the distribution of the draw: "uniform"; "log_uniform", for classes sorted from frequent to rare; or
        "custom_dist".
      custom_dist: the probability of each class, for "custom_dist".
      seed: if not 0, every step draws the same classes.
      is_sparse: whether to update only the used rows of the weights, as in `embedding`.

    Returns:
      `[batch, 1]`.

    Raises:
      ArgumentError: there is no such sampler, its probabilities are missing, or a number is not positive.
      ArgumentTypeError: the labels are not integers.
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
    shape = (x.shape[0], count)
    drawn = jax.random.randint(key, shape, 0, num_total_classes) if sampler == "uniform" else _draw(key, odds, shape)
    drawn = drawn.astype(right.dtype)
    classes = jnp.concatenate([right, drawn], axis=1)
    weights = this.weight(param_attr, [num_total_classes, x.shape[1]], x.dtype, rows_only=is_sparse)
    biases = _biases(this, bias_attr, num_total_classes, x.dtype, is_sparse)
    scores = wide(jnp.einsum("bd,bkd->bk", x, _rows(weights, classes, is_sparse)))
    if biases is not None:
        scores = scores + _rows(biases, classes, is_sparse)[..., 0]
    rates = (odds * count)[classes].astype(scores.dtype)
    o = jax.nn.sigmoid(scores)
    costs = jnp.log(o + rates) - jnp.where(jnp.arange(classes.shape[1]) < right.shape[1], jnp.log(o), jnp.log(rates))
    cost = jnp.sum(costs, axis=1, keepdims=True) / (count + 1)
    return this.output(cost if sample_weight is None else cost * dense(sample_weight).reshape(-1, 1))


@layer
def hsigmoid(
    input: Value,
    label: Value,
    num_classes: int,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    name: str | None = None,
    path_table: Value | None = None,
    path_code: Value | None = None,
    is_custom: bool = False,
    is_sparse: bool = False,
) -> jax.Array:
    """Compute the loss of binary decisions at the inner nodes of a tree of classes (Morin and Bengio, 2005).

    The loss of a row is the sum of the losses of the decisions on the path from the root to its class. The default tree
    is a complete binary tree. As in PaddlePaddle Fluid, a path that is `n` nodes shorter than the longest path adds `n`
    times log 2 to the loss.

    Args:
      input: `[batch, width]`.
      label: classes `[batch, 1]` of an integer dtype.
      num_classes: the number of classes; with `is_custom` the number of inner nodes.
      param_attr: ParamAttr of the weights, `[inner nodes, width]`; a complete tree has `num_classes - 1` inner nodes.
      bias_attr: ParamAttr of the biases, `[inner nodes, 1]`; False for none.
      name: name of the layer; by default `hierarchical_sigmoid_N`.
      path_table: for `is_custom`: the inner nodes on the path of each row, integers `[batch, longest path]`, padded
        with -1.
      path_code: for `is_custom`: the decision at each of these nodes, 0 or 1, in the shape of `path_table`.
      is_custom: whether `path_table` and `path_code` define the tree.
      is_sparse: whether to update only the weights of nodes on the paths, as in `embedding`.

    Returns:
      `[batch, 1]`.

    Raises:
      ArgumentError: there are fewer than two classes, or `path_table` or `path_code` is missing.
      ArgumentTypeError: labels or paths are not integers.
      ShapeError: labels or paths do not fit the input.

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
        nodes, decisions, on_path = _given_paths(this, x, path_table, path_code)
        count = num_classes
    else:
        core.limit_feed(label, 0, num_classes)
        nodes, decisions, on_path = _complete_paths(classes[:, :1], num_classes)
        count = num_classes - 1
    weights = this.weight(param_attr, [count, x.shape[1]], x.dtype, rows_only=is_sparse)
    biases = _biases(this, bias_attr, count, x.dtype, is_sparse)
    scores = wide(jnp.einsum("bd,bkd->bk", x, _rows(weights, nodes, is_sparse, on_path)))
    if biases is not None:
        scores = scores + _rows(biases, nodes, is_sparse, on_path)[..., 0]
    scores = jnp.where(on_path, jnp.clip(scores, -40, 40), 0)
    return this.output(jnp.sum(jax.nn.softplus(scores) - decisions * scores, axis=1, keepdims=True))


@layer
def sampled_softmax_with_cross_entropy(
    logits: Value,
    label: Value,
    num_samples: int,
    num_true: int = 1,
    remove_accidental_hits: bool = True,
    use_customized_samples: bool = False,
    customized_samples: Value | None = None,
    customized_probabilities: Value | None = None,
    seed: int = 0,
    name: str | None = None,
) -> jax.Array:
    """Compute the cross entropy of a softmax over the right classes and random ones (Jean et al., 2015).

    The random classes are drawn once for the whole batch, without repetition, from a log-uniform distribution.
    Therefore, sort the classes from frequent to rare. The logarithm of the expected count of each class in the draw is
    subtracted from its logit.

    Args:
      logits: `[batch, classes]`.
      label: the right classes, `[batch, num_true]` of an integer dtype.
      num_samples: the number of classes to draw.
      num_true: the number of right classes for each row; the loss is the mean over them.
      remove_accidental_hits: whether to leave a drawn class out of the rows for which it is right.
      use_customized_samples: whether `customized_samples` and `customized_probabilities` replace the random draw.
      customized_samples: classes, integers `[batch, num_true + num_samples]`, the right ones first.
      customized_probabilities: the expected count of each of these classes, in the shape of `customized_samples`.
      seed: if not 0, every step draws the same classes.
      name: name of the layer; by default `sampled_softmax_with_cross_entropy_N`; the random draw depends on the name.

    Returns:
      `[batch, 1]`.

    Raises:
      ArgumentError: there are fewer classes than `num_samples`, or customized samples are missing.
      ArgumentTypeError: the labels are not integers.
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
    instead = "leave out that activation: fc(x, size=classes) makes logits"
    core.expect("logits", "layers.sampled_softmax_with_cross_entropy", logits, instead)
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
    """Check and return the input `[batch, width]` and labels `[batch, count]`; a `count` of None allows any number."""
    rows = array_of(this, value)
    classes = check_ids(this.name, array_of(this, label))
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
    """Return the rows of a parameter table for ids `[...]`.

    If `sparse` is True, the optimizer updates only the looked-up rows. If the mask `touched` is given, the optimizer
    updates only the rows for which the mask is True.
    """
    return core.look_up(table, ids, touched) if sparse else look_up(table, ids)


def _biases(this: Layer, attr: Any, rows: int, dtype: Any, sparse: bool) -> Any:
    return None if attr is False else this.parameter("b", attr, [rows, 1], dtype, Constant(0.0), rows_only=sparse)


def _odds(this: Layer, sampler: str, custom: Any, classes: int) -> Any:
    """Return the probability of each class in the random draw of `nce`, `[classes]`."""
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
    """Return the log-uniform probabilities `[classes]`: `log((k + 2) / (k + 1)) / log(classes + 1)` for class `k`."""
    k = np.arange(classes)
    return np.log1p(1 / (k + 1)) / np.log(classes + 1)


def _draw(key: Any, odds: Any, shape: Sequence[Any]) -> Any:
    """Draw random classes with given probabilities.

    The function looks up uniform random numbers in the cumulative sum of the probabilities.

    `jax.random.categorical` draws a random number for each class instead. With 30,000 classes and 20 samples, `nce` of
    256 rows took 3,101 ms with `jax.random.categorical`, and takes 1.4 ms with this function (`benchmarks/survey.py
    nce`; jax 0.10.2, two cores, 24 November 2026).

    Args:
      odds: the probability of each class, or a multiple of it, `[classes]`.
    """
    # Without `optimization_barrier`, XLA computes the cumulative sum of constants at compile time, which takes seconds.
    odds = jax.lax.optimization_barrier(odds)
    # The probabilities are scaled to integers: a cumulative sum in float32 would lose rare classes that follow frequent
    # ones. The integer of each class with a positive probability is at least 1.
    parts = jnp.ceil(odds / jnp.sum(odds) * 2.0**31).astype(jnp.uint32)
    sums = jnp.cumsum(parts)
    found = jnp.searchsorted(sums, jax.random.randint(key, shape, 0, sums[-1], jnp.uint32), side="right")
    wrong = ~((odds >= 0) & (odds < jnp.inf))
    return jnp.where(wrong.any(), jnp.argmax(wrong), jnp.minimum(found, len(odds) - 1))


def _draw_without_repetition(key: Any, count: int, classes: int) -> tuple[Any, Any]:
    """Draw distinct classes from the log-uniform distribution.

    Returns:
      The drawn classes, integers `[count]`; and the expected count of every class in the draw, `[classes]`.
    """
    odds = _log_uniform(classes)
    # The `count` classes with the largest sums of log-probability and Gumbel noise are distributed like classes that
    # are drawn repeatedly, until `count` classes differ.
    first, second = jax.random.split(key)
    drawn = jax.lax.top_k(jnp.log(odds) + jax.random.gumbel(first, (classes,)), count)[1]
    # The number of draws, including repeated classes, is a sum of geometric random numbers, one for each new class.
    found = jnp.asarray(odds, jnp.float32)[drawn]
    left = jnp.clip(1 - (jnp.cumsum(found) - found), 1e-6, 1)
    tries = jnp.sum(jnp.ceil(jnp.log(jax.random.uniform(second, (count,), minval=1e-30)) / jnp.log1p(-left)).clip(1))
    return drawn, -jnp.expm1(tries * jnp.log1p(-jnp.asarray(odds, jnp.float32)))


def _complete_paths(classes: Any, count: int) -> tuple[Any, Any, Any]:
    """Compute the paths to classes `[batch, 1]` in a complete binary tree with `count` leaves.

    Returns:
      The inner nodes, the decisions 0 or 1, and a mask of the nodes on the path, each `[batch, longest path]`.
    """
    code = classes + count
    bit = jnp.arange(math.floor(math.log2(count - 1)) + 1 if count > 2 else 1, dtype=classes.dtype)
    # In the binary tree of classes, the root has the number 1. Node `n` has the children `2 * n` and `2 * n + 1`. So a
    # right shift of the number moves up the tree, and a result of 0 is above the root.
    above = jnp.right_shift(code, bit + 1)
    on_path = above > 0
    return jnp.where(on_path, above - 1, 0), (jnp.right_shift(code, bit) & 1).astype(jnp.float32), on_path


def _given_paths(this: Layer, x: Any, table: Any, code: Any) -> tuple[Any, Any, Any]:
    """Check the paths in the user's tree of classes, one path for each row of `x`, and return them.

    Returns:
      The inner nodes, the decisions 0 or 1, and a mask of the nodes on the path, each `[batch, longest path]`.
    """
    if table is None or code is None:
        raise errors.ArgumentError(f"{this.name}: is_custom=True needs both path_table= and path_code=")
    nodes, decisions = (check_ids(this.name, array_of(this, v)) for v in (table, code))
    if nodes.shape != decisions.shape or nodes.ndim != 2 or nodes.shape[0] != x.shape[0]:
        raise errors.ShapeError(
            f"{this.name}: path_table {describe(table)} and path_code {describe(code)} do not fit; expected both "
            f"[batch, longest path]"
        )
    on_path = jnp.cumprod(nodes >= 0, axis=1).astype(bool)
    return jnp.where(on_path, nodes, 0), decisions.astype(jnp.float32), on_path
