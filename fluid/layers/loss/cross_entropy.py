"""Losses between predictions and labels; most give one number per row, to be averaged by `mean`."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, axis_of, dense, describe, is_sequence, layer, like, row_dims, valid_steps, wide
from fluid.layers.checks import check_same_shape

_LOG_OF_ZERO = -1e20


@layer
def cross_entropy(
    input: Any, label: Any, soft_label: bool = False, ignore_index: int = -100, name: str | None = None
) -> Any:
    """Cross entropy of given probabilities: `-log(input[label])`, or `-sum(label * log(input))` for soft labels.

    Probabilities that come from a softmax are not used themselves: the loss is computed from the logits, which gives
    the same number and stays exact where a probability rounds to 0 or 1.

    Args:
      input: probabilities `[batch, ..., classes]`, or a SequenceBatch of them.
      label: classes `[batch, ..., 1]` of an integer dtype, or with `soft_label` probabilities of the input's shape.
      soft_label: whether labels are probabilities.
      ignore_index: a class whose rows have loss 0.
      name: instead of `cross_entropy2_N`.

    Returns:
      `[batch, ..., 1]`, one loss per row.

    Raises:
      ArgumentTypeError: hard labels are no integers.
      ShapeError: labels do not fit the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     label = fluid.layers.data("label", shape=[1], dtype="int64")
      ...     prediction = fluid.layers.fc(x, size=3, act="softmax")
      ...     return fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("cross_entropy" if soft_label else "cross_entropy2", name)
    probabilities = wide(input)
    axis = probabilities.ndim - 1
    logits = _logits_of(this, input, axis)
    if logits is None:
        core.expect_probabilities("layers.cross_entropy", input.data if is_sequence(input) else input)
        zero = probabilities == 0
        logs, total = jnp.where(zero, _LOG_OF_ZERO, jnp.log(jnp.where(zero, 1, probabilities))), 0
    else:
        logs, total = _log_parts(logits, axis)
    return this.output(like(input, _pick(this, input, logs, total, label, soft_label, ignore_index, axis)))


@layer
def softmax_with_cross_entropy(
    logits: Any,
    label: Any,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
    name: str | None = None,
) -> Any:
    """Cross entropy of the softmax of logits.

    Args:
      logits: `[batch, ..., classes]`, or a SequenceBatch of them.
      label: classes of an integer dtype, shaped as the logits but 1 along `axis`; or with `soft_label` probabilities.
      soft_label: whether labels are probabilities.
      ignore_index: a class whose rows have loss 0.
      numeric_stable_mode: has no effect; it is always stable.
      return_softmax: whether to return the probabilities too.
      axis: the dimension of the classes.
      name: instead of `softmax_with_cross_entropy_N`.

    Returns:
      The losses, 1 along `axis`; or `(losses, probabilities)`.

    Raises:
      ArgumentTypeError: hard labels are no integers.
      ShapeError: labels do not fit the logits.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     label = fluid.layers.data("label", shape=[1], dtype="int64")
      ...     return fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(x, size=3), label)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("softmax_with_cross_entropy", name)
    place = axis_of(logits, axis)
    logs, total = _log_parts(wide(logits), place)
    softmax = this.output(like(logits, jnp.exp(logs - total).astype(dense(logits).dtype)))
    loss = this.output(like(logits, _pick(this, logits, logs, total, label, soft_label, ignore_index, place)))
    return (loss, softmax) if return_softmax else loss


@layer
def sigmoid_cross_entropy_with_logits(
    x: Any, label: Any, ignore_index: int = -100, name: str | None = None, normalize: bool = False
) -> Any:
    """Cross entropy of the sigmoid of each logit: `max(x, 0) - x * label + log(1 + exp(-abs(x)))`.

    Args:
      x: logits, any shape, or a SequenceBatch.
      label: probabilities of the same shape.
      ignore_index: elements with this label have loss 0.
      name: instead of `sigmoid_cross_entropy_with_logits_N`.
      normalize: whether to divide by the number of elements that are not ignored.

    Returns:
      Same shape as `x`.

    Raises:
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     label = fluid.layers.data("label", shape=[4])
      ...     return fluid.layers.sigmoid_cross_entropy_with_logits(x, label)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 4]
    """
    this = Layer("sigmoid_cross_entropy_with_logits", name)
    check_same_shape(this, x, label)
    logits, target = wide(x), dense(label)
    kept = target != ignore_index
    probability = target.astype(logits.dtype)
    loss = jnp.maximum(logits, 0) - logits * probability + jnp.log1p(jnp.exp(-jnp.abs(logits)))
    loss = jnp.where(kept, loss, 0)
    if normalize:
        counted = kept & _valid(x, kept)
        loss = loss / jnp.maximum(jnp.sum(counted), 1).astype(loss.dtype)
    return this.output(like(x, loss))


def _logits_of(this: Layer, input: Any, axis: int) -> Any:
    logits = this.frame.fact(input, "logits")
    if logits is None:
        return None
    return wide(logits) if this.frame.fact(input, "logits_axis") % dense(logits).ndim == axis else None


def _log_parts(logits: Any, axis: int) -> tuple[Any, Any]:
    """The logarithms of a softmax as a difference, so that the total need be subtracted from the picked ones only."""
    shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=axis, keepdims=True))
    return shifted, jnp.log(jnp.sum(jnp.exp(shifted), axis=axis, keepdims=True))


def _pick(this: Layer, value: Any, logs: Any, total: Any, label: Any, soft: bool, ignore: int, axis: int) -> Any:
    if soft:
        check_same_shape(this, value, label)
        return -jnp.sum(dense(label).astype(logs.dtype) * (logs - total), axis=axis, keepdims=True)
    classes = _classes(this, value, label, axis)
    core.limit_feed(label, 0, logs.shape[axis], also=ignore)
    kept = classes != ignore
    # A class outside the range gives what is not a number, so that it shows; feeds are checked before they get here.
    inside = (classes >= 0) & (classes < logs.shape[axis])
    picked = jnp.take_along_axis(logs, jnp.where(inside, classes, 0), axis=axis)
    return jnp.where(kept, total - jnp.where(inside, picked, jnp.nan), 0)


def _classes(this: Layer, value: Any, label: Any, axis: int) -> Any:
    x, classes = dense(value), dense(label)
    if not jnp.issubdtype(classes.dtype, jnp.integer):
        raise errors.ArgumentTypeError(
            f"{this.name}: class labels are integers, found {describe(label)}; declare them so: "
            f'layers.data("label", shape=[1], dtype="int64"), or say soft_label=True for probabilities'
        )
    if row_dims(value) != row_dims(label):
        raise errors.ShapeError(
            f"{this.name}: one of input and label is a sequence batch, the other is not; "
            "declare both with lod_level=1, "
            f"or pool the sequence first: layers.sequence_pool(x, 'average')"
        )
    expected = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    if axis == x.ndim - 1 and classes.shape == expected[:-1] and x.ndim > row_dims(value):
        return classes[..., None]
    if classes.shape != expected:
        raise errors.ShapeError(
            f"{this.name}: input {describe(value)} and label {describe(label)} do not fit; expected one class per row, "
            f"a dimension of 1 in place of the {x.shape[axis]} classes, as in "
            f'layers.data("label", shape=[1], dtype="int64")'
        )
    return classes


def _valid(value: Any, array: Any) -> Any:
    return valid_steps(value, array.ndim)
