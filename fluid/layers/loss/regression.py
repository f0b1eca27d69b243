"""Losses between numbers: squared and absolute differences, ranking, divergence and similarity."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import (
    Layer,
    array_of,
    dense,
    describe,
    filled,
    is_sequence,
    layer,
    like,
    on_data,
    row_dims,
    valid_steps,
    wide,
)
from fluid.layers.checks import check_same_shape
from fluid.layers.tensor.reduce import rows_of


@layer
def square_error_cost(input: Value, label: Value, name: str | None = None) -> Any:
    """Compute the squared difference of each element and its label.

    Args:
      input: an array of any shape, or a SequenceBatch.
      label: a value of the shape of `input`.
      name: name of the layer; by default `square_error_cost_N`.

    Returns:
      A value of the same type and shape as the input.

    Raises:
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[13])
      ...     price = fluid.layers.data("price", shape=[1])
      ...     return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), price))
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("square_error_cost", name)
    _check_two_values(this, input, label)
    difference = this.output(on_data(lambda a, b: wide(a) - wide(b), input, label))
    return this.output(on_data(jnp.square, difference))


@layer
def mse_loss(input: Value, label: Value, name: str | None = None) -> jax.Array:
    """Compute the mean of the squared differences of all elements.

    Args:
      input: an array of any shape, or a SequenceBatch, in which only the valid steps count.
      label: a value of the shape of `input`.
      name: name of the layer; by default `mse_loss_N`.

    Returns:
      A scalar, `[]`.

    Raises:
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[3]), fluid.layers.data("y", shape=[3])
      ...     return fluid.layers.mse_loss(x, y)
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("mse_loss", name)
    _check_two_values(this, input, label)
    squares = jnp.square(wide(input) - wide(label))
    if is_sequence(input):
        valid = jnp.broadcast_to(valid_steps(input, squares.ndim), squares.shape)
        result = jnp.sum(squares, where=valid) / jnp.maximum(jnp.sum(valid), 1)
    else:
        result = jnp.mean(squares)
    result = this.output(result)
    this.frame.note(result, weight=rows_of(this.frame, input))
    return result


@layer
def huber_loss(input: Value, label: Value, delta: float = 1.0, name: str | None = None) -> Any:
    """Compute the Huber loss: half the squared difference, linear beyond `delta` (Huber, 1964).

    Args:
      input: numbers of any shape, such as `[batch, 1]`, or a SequenceBatch.
      label: a value of the shape of `input`.
      delta: the difference beyond which the loss is linear.
      name: name of the layer; by default `huber_loss_N`.

    Returns:
      A value of the same type and shape as the input.

    Raises:
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[1]), fluid.layers.data("y", shape=[1])
      ...     return fluid.layers.huber_loss(x, y, delta=1.0)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("huber_loss", name)
    if isinstance(delta, int | float) and delta <= 0:
        raise errors.ArgumentError(f"{this.name}: delta={delta!r}; expected a number above 0, as in delta=1.0")
    _check_two_values(this, input, label)
    away = jnp.abs(wide(label) - wide(input))
    return this.output(like(input, jnp.where(away <= delta, 0.5 * away * away, delta * (away - 0.5 * delta))))


@layer
def smooth_l1(
    x: Value,
    y: Value,
    inside_weight: Value | None = None,
    outside_weight: Value | None = None,
    sigma: float | None = None,
    name: str | None = None,
) -> Any:
    """Compute the smooth L1 loss, summed over each row (Girshick, 2015).

    The loss of a difference `d` is `0.5 * (sigma * d) ** 2` between `-1 / sigma ** 2` and `1 / sigma ** 2`, and
    `abs(d) - 0.5 / sigma ** 2` beyond.

    Args:
      x: `[batch, ...]`, or a SequenceBatch.
      y: a value of the shape of `x`.
      inside_weight: factors of the differences, in the shape of `x`.
      outside_weight: factors of the losses, in the shape of `x`.
      sigma: the scale of the differences; 1 by default.
      name: name of the layer; by default `smooth_l1_loss_N`.

    Returns:
      `[batch, 1]`; a SequenceBatch `[batch, time, 1]` if `x` is a SequenceBatch.

    Raises:
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[4])
      ...     return fluid.layers.smooth_l1(x, y)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("smooth_l1_loss", name)
    for argument, value in (("y", y), ("inside_weight", inside_weight), ("outside_weight", outside_weight)):
        if value is not None:
            check_same_shape(this, x, value, ("x", argument))
    if isinstance(sigma, int | float) and sigma <= 0:
        raise errors.ArgumentError(f"{this.name}: sigma={sigma!r}; expected a number above 0, as in sigma=1.0")
    _check_not_itself(this, x, y, ("x", "y"))
    squared = 1.0 if sigma is None else sigma * sigma
    difference = wide(x) - wide(y)
    difference = difference if inside_weight is None else difference * dense(inside_weight)
    away = jnp.abs(difference)
    loss = jnp.where(away < 1 / squared, 0.5 * squared * difference * difference, away - 0.5 / squared)
    loss = loss if outside_weight is None else loss * dense(outside_weight)
    return this.output(like(x, jnp.sum(loss.reshape(*loss.shape[: row_dims(x)], -1), axis=-1, keepdims=True)))


@layer
def log_loss(input: Value, label: Value, epsilon: float = 1e-4, name: str | None = None) -> Any:
    """Compute the binary cross entropy `-label * log(p + epsilon) - (1 - label) * log(1 - p + epsilon)`.

    Args:
      input: probabilities of any shape, such as `[batch, 1]`, or a SequenceBatch.
      label: 0 or 1, in the shape of `input`.
      epsilon: added to each probability, to keep the logarithm finite.
      name: name of the layer; by default `log_loss_N`.

    Returns:
      A value of the same type and shape as the input.

    Raises:
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     p, label = fluid.layers.data("p", shape=[1]), fluid.layers.data("label", shape=[1])
      ...     return fluid.layers.log_loss(p, label)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("log_loss", name)
    check_same_shape(this, input, label)
    core.limit_to_probabilities(label)
    instead = 'write fc(..., act="sigmoid"), or use layers.sigmoid_cross_entropy_with_logits(logit, label)'
    core.expect("probabilities", "layers.log_loss", input, instead)
    if this.frame.fact(input, "feed"):
        core.expect("labels", "the label of layers.log_loss", label, "write layers.log_loss(prediction, label)")
    p = wide(filled(input, 0.5))
    target = wide(label)
    loss = -target * jnp.log(p + epsilon) - (1 - target) * jnp.log(1 - p + epsilon)
    return this.output(like(input, loss))


@layer
def rank_loss(label: Value, left: Value, right: Value, name: str | None = None) -> Any:
    """Compute RankNet's loss of pairs (Burges et al., 2005): `log(1 + exp(left - right)) - label * (left - right)`.

    Args:
      label: `[batch, 1]`: 1 where left is ranked higher, 0 where right is, 0.5 for a tie.
      left: scores `[batch, 1]`.
      right: scores `[batch, 1]`.
      name: name of the layer; by default `rank_loss_N`.

    Returns:
      `[batch, 1]`.

    Raises:
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     label, left, right = [fluid.layers.data(n, shape=[1]) for n in ("label", "left", "right")]
      ...     return fluid.layers.rank_loss(label, left, right)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("rank_loss", name)
    check_same_shape(this, left, right, ("left", "right"))
    check_same_shape(this, left, label, ("left", "label"))
    _check_not_itself(this, left, right, ("left", "right"))
    core.expect("probabilities", "the label of layers.rank_loss", label, "write layers.rank_loss(label, left, right)")
    core.limit_to_probabilities(label)
    for score in (left, right):
        core.expect("scores", "layers.rank_loss", score, "leave out that activation: fc(x, size=1) makes scores")
    ahead = wide(left) - wide(right)
    return this.output(like(left, jax.nn.softplus(ahead) - dense(label) * ahead))


@layer
def margin_rank_loss(label: Value, left: Value, right: Value, margin: float = 0.1, name: str | None = None) -> Any:
    """Compute the ranking loss of pairs with a margin: `max(0, margin - label * (left - right))`.

    Args:
      label: `[batch, 1]`: 1 where left is ranked higher, -1 where right is.
      left: scores `[batch, 1]`.
      right: scores `[batch, 1]`.
      margin: the smallest difference of scores with a loss of 0.
      name: name of the layer; by default `margin_rank_loss_N`.

    Returns:
      `[batch, 1]`.

    Raises:
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     label, left, right = [fluid.layers.data(n, shape=[1]) for n in ("label", "left", "right")]
      ...     return fluid.layers.margin_rank_loss(label, left, right)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("margin_rank_loss", name)
    check_same_shape(this, left, right, ("left", "right"))
    check_same_shape(this, left, label, ("left", "label"))
    _check_not_itself(this, left, right, ("left", "right"))
    core.doubt_labels(label, "signs")
    return this.output(like(left, jax.nn.relu(margin - dense(label) * (wide(left) - wide(right)))))


@layer
def kldiv_loss(x: Value, target: Value, reduction: str = "mean", name: str | None = None) -> Any:
    """Compute the Kullback-Leibler divergence: `target * (log(target) - x)`, 0 where the target is 0.

    Args:
      x: the logarithms of probabilities, `[batch, ...]`.
      target: probabilities, in the shape of `x`.
      reduction: "mean" over all elements, "batchmean" for the sum divided by the batch size, "sum", or "none".
      name: name of the layer; by default `kldiv_loss_N`.

    Returns:
      A scalar, `[]`; for "none", a value of the same type and shape as `x`.

    Raises:
      ArgumentError: there is no such reduction.
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, target = fluid.layers.data("x", shape=[4]), fluid.layers.data("target", shape=[4])
      ...     return fluid.layers.kldiv_loss(fluid.layers.log_softmax(x), target)
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("kldiv_loss", name)
    check_same_shape(this, x, target, ("x", "target"))
    if reduction not in ("mean", "batchmean", "sum", "none"):
        raise errors.ArgumentError(
            f"{this.name}: reduction={reduction!r}; expected 'mean', 'batchmean', 'sum' or 'none'"
        )
    instead = "write layers.log_softmax(x), or layers.log(p) of probabilities"
    core.expect("logarithms", "layers.kldiv_loss", x, instead)
    core.expect("probabilities", "the target of layers.kldiv_loss", target, "write layers.softmax(target)")
    core.limit_to_probabilities(target)
    wanted = wide(target if reduction == "none" else array_of(this, target))
    positive = wanted > 0
    loss = jnp.where(positive, wanted * (jnp.log(jnp.where(positive, wanted, 1)) - wide(x)), 0)
    if reduction == "none":
        return this.output(like(x, loss))
    total = {"mean": loss.size, "batchmean": loss.shape[0], "sum": 1}[reduction]
    result = this.output(jnp.sum(loss) / total)
    if reduction != "sum":
        this.frame.note(result, weight=loss.shape[0])
    return result


@layer
def npair_loss(
    anchor: Value, positive: Value, labels: Value, l2_reg: float = 0.002, name: str | None = None
) -> jax.Array:
    """Compute the N-pair loss: cross entropy of anchor-positive similarities, plus an L2 term (Sohn, 2016).

    Args:
      anchor: embeddings `[batch, width]`.
      positive: embeddings of the matching examples, `[batch, width]`.
      labels: classes `[batch]` or `[batch, 1]`; examples of one class match.
      l2_reg: the weight of the L2 term.
      name: name of the layer; by default `npair_loss_N`.

    Returns:
      A scalar, `[]`.

    Raises:
      ShapeError: the shapes do not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     anchor, positive = fluid.layers.data("a", shape=[8]), fluid.layers.data("p", shape=[8])
      ...     return fluid.layers.npair_loss(anchor, positive, fluid.layers.data("label", shape=[1]))
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("npair_loss", name)
    check_same_shape(this, anchor, positive, ("anchor", "positive"))
    _check_not_itself(this, anchor, positive, ("anchor", "positive"))
    first = wide(array_of(this, anchor))
    second = wide(positive)
    classes = array_of(this, labels).reshape(-1)
    if first.ndim != 2 or classes.shape[0] != first.shape[0]:
        raise errors.ShapeError(
            f"{this.name}: anchor {describe(anchor)} and labels {describe(labels)} do not fit; expected [batch, width] "
            f"and one label for each row, as from layers.fc(x, size=8)"
        )
    same = (classes[:, None] == classes[None, :]).astype(first.dtype)
    target = same / jnp.sum(same, axis=1, keepdims=True)
    penalty = jnp.mean(jnp.sum(first**2, axis=1)) + jnp.mean(jnp.sum(second**2, axis=1))
    logs = jax.nn.log_softmax(first @ second.T, axis=1)
    result = this.output(jnp.mean(-jnp.sum(target * logs, axis=1)) + 0.25 * l2_reg * penalty)
    this.frame.note(result, weight=first.shape[0])
    return result


def _check_two_values(this: Layer, input: Value, label: Value) -> None:
    check_same_shape(this, input, label)
    _check_not_itself(this, input, label, ("input", "label"))


def _check_not_itself(this: Layer, first: Value, second: Value, names: tuple[str, str]) -> None:
    """Warn if a layer compares a value with itself."""
    if first is second:
        core.doubt(
            f"{this.name} compares a value with itself, so that there is nothing to learn: {names[0]} and {names[1]} "
            f"are both {describe(first)}; give two values, such as a prediction and a label"
        )
