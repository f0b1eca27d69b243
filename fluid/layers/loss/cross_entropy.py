"""Cross-entropy losses of probabilities, of the softmax of logits, and of the sigmoid of each logit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, axis_of, dense, describe, layer, like, row_dims, valid_steps, wide
from fluid.layers.checks import check_same_shape
from fluid.layers.no_effect import no_effect

# PaddlePaddle Fluid uses this number as the logarithm of a probability of 0, instead of minus infinity.
_LOG_OF_ZERO = -1e20


@layer
def cross_entropy(
    input: Value, label: Value, soft_label: bool = False, ignore_index: int = -100, name: str | None = None
) -> Any:
    """Compute the cross entropy of probabilities: `-log(input[label])`; for soft labels `-sum(label * log(input))`.

    If a softmax computed the probabilities, the loss is computed from the logits of that softmax. The loss then stays
    exact where a probability is rounded to 0 or 1.

    Args:
      input: probabilities `[batch, ..., classes]`, or a SequenceBatch of them.
      label: classes `[batch, ..., 1]` of an integer dtype; with `soft_label`, probabilities in the shape of the input.
      soft_label: whether labels are probabilities.
      ignore_index: a class whose rows have loss 0.
      name: name of the layer; by default `cross_entropy2_N`.

    Returns:
      `[batch, ..., 1]`, one loss for each row.

    Raises:
      ArgumentTypeError: the hard labels are not integers.
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
        instead = 'write fc(..., act="softmax"), or use layers.softmax_with_cross_entropy(logits, label)'
        classes = "probabilities" if probabilities.shape[axis] == 1 or soft_label else "shares"
        core.expect(classes, "layers.cross_entropy", input, instead)
        if probabilities.shape[axis] == 1 and not soft_label:
            core.doubt(
                "layers.cross_entropy has one probability in each row, so that class 0 is the only one; write "
                "layers.log_loss(p, label) for the probability of one thing, or fc(x, size=2, act='softmax') for two "
                "classes"
            )
        zero = probabilities == 0
        logs = jnp.where(zero, _LOG_OF_ZERO, jnp.log(jnp.where(zero, 1, probabilities)))
        total = jnp.zeros([], logs.dtype)
    else:
        _expect_logits("the softmax in front of layers.cross_entropy", logits)
        logs, total = _log_softmax_parts(logits, axis)
    return this.output(like(input, _losses(this, input, logs, total, label, soft_label, ignore_index, axis)))


@layer
@no_effect(numeric_stable_mode="the computation is always stable")
def softmax_with_cross_entropy(
    logits: Value,
    label: Value,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
    name: str | None = None,
) -> Any:
    """Compute the cross entropy of the softmax of logits.

    Args:
      logits: `[batch, ..., classes]`, or a SequenceBatch of them.
      label: classes of an integer dtype, in the shape of the logits, but with size 1 along `axis`; with `soft_label`,
        probabilities of the same shape as the logits.
      soft_label: whether labels are probabilities.
      ignore_index: a class whose rows have loss 0.
      numeric_stable_mode: accepted for programs written for Fluid, but has no effect: the computation is always stable.
      return_softmax: whether to return the probabilities also.
      axis: the dimension of the classes.
      name: name of the layer; by default `softmax_with_cross_entropy_N`.

    Returns:
      The losses, in the shape of the logits, but with size 1 along `axis`; or `(losses, probabilities)`.

    Raises:
      ArgumentTypeError: the hard labels are not integers.
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
    if this.frame.fact(logits, "logits") is not None:
        core.doubt(
            "layers.softmax_with_cross_entropy takes logits, and is given what a softmax has computed, so that two "
            "would follow each other; leave out the first, or use layers.cross_entropy(probabilities, label)"
        )
    else:
        _expect_logits("layers.softmax_with_cross_entropy", logits)
    _doubt_one_class(dense(logits), place)
    logs, total = _log_softmax_parts(wide(logits), place)
    softmax = this.output(like(logits, jnp.exp(logs - total).astype(dense(logits).dtype)))
    loss = this.output(like(logits, _losses(this, logits, logs, total, label, soft_label, ignore_index, place)))
    return (loss, softmax) if return_softmax else loss


@layer
def sigmoid_cross_entropy_with_logits(
    x: Value, label: Value, ignore_index: int = -100, name: str | None = None, normalize: bool = False
) -> Any:
    """Compute the cross entropy of the sigmoid of each logit: `log(1 + exp(x)) - x * label`.

    Args:
      x: logits, any shape, or a SequenceBatch.
      label: probabilities, in the shape of `x`.
      ignore_index: elements with this label have loss 0.
      name: name of the layer; by default `sigmoid_cross_entropy_with_logits_N`.
      normalize: whether to divide the losses by the number of elements that are not ignored.

    Returns:
      A value of the same type and shape as `x`.

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
    core.limit_to_probabilities(label, also=ignore_index)
    instead = "leave out the activation, or use layers.log_loss(probabilities, label)"
    core.expect("logits", "layers.sigmoid_cross_entropy_with_logits", x, instead)
    if this.frame.fact(x, "feed"):
        swapped = "write layers.sigmoid_cross_entropy_with_logits(logits, label)"
        core.expect("labels", "the label of layers.sigmoid_cross_entropy_with_logits", label, swapped)
    if ignore_index in (0, 1):
        core.doubt(
            f"{this.name}: ignore_index={ignore_index} leaves out every label of {ignore_index}, so that only the "
            f"others are learnt, which are all alike; leave it out, or mark what does not count with -100"
        )
    logits = wide(x)
    target = dense(label)
    kept = target != ignore_index
    probability = target.astype(logits.dtype)
    # `softplus` has the correct gradient at a logit of exactly 0, which embeddings of zeros can produce. A formula with
    # `jnp.abs` would not, because the gradient of `jnp.abs` at 0 is 1 in JAX.
    loss = jax.nn.softplus(logits) - logits * probability
    loss = jnp.where(kept, loss, 0)
    if normalize:
        counted = kept & valid_steps(x, kept.ndim)
        loss = loss / jnp.maximum(jnp.sum(counted), 1).astype(loss.dtype)
    return this.output(like(x, loss))


def _logits_of(this: Layer, input: Value, axis: int) -> Any:
    """Return the logits whose softmax along `axis` is `input`; None if `input` is not a softmax along `axis`."""
    logits = this.frame.fact(input, "logits")
    if logits is None:
        return None
    found = this.frame.fact(input, "logits_axis") % dense(logits).ndim
    if found == axis:
        return wide(logits)
    core.doubt(
        f"layers.cross_entropy takes probabilities of classes along the last axis, {axis}, and is given "
        f"{describe(input)} of a softmax along axis {found}, so that the probabilities of the classes do not "
        f"add up to 1; write layers.softmax(x), or "
        f"layers.softmax_with_cross_entropy(logits, label, axis={found}) for classes along it"
    )
    return None


def _expect_logits(layer: str, logits: Value) -> None:
    core.expect("logits", layer, logits, "leave out that activation: fc(x, size=classes) without act= makes logits")


def _doubt_one_class(logits: Any, axis: int) -> None:
    """Warn if a softmax has only one class: its probability is always 1, so that the loss is always 0."""
    if logits.shape[axis] == 1:
        core.doubt(
            "layers.softmax_with_cross_entropy has one class, whose probability is always 1, so that the loss is 0 and "
            "nothing is learnt; for two classes give two logits a row, fc(x, size=2), or use "
            "layers.sigmoid_cross_entropy_with_logits(logit, label)"
        )


def _log_softmax_parts(logits: Any, axis: int) -> tuple[Any, Any]:
    """Return two arrays, `shifted` and `total`: `shifted - total` is the logarithm of the softmax of the logits.

    `total` has size 1 along `axis`. A caller that needs only a few log-probabilities subtracts `total` only for these.
    """
    shifted = logits - jax.lax.stop_gradient(jnp.max(logits, axis=axis, keepdims=True))
    return shifted, jnp.log(jnp.sum(jnp.exp(shifted), axis=axis, keepdims=True))


def _losses(this: Layer, value: Value, logs: Any, total: Any, label: Value, soft: bool, ignore: int, axis: int) -> Any:
    """Compute the cross entropy of each row.

    Args:
      logs: `[batch, ..., classes]`, with the classes along `axis`; `logs - total` are the log-probabilities.
    """
    if soft:
        check_same_shape(this, value, label)
        if axis == logs.ndim - 1:
            core.doubt_labels(label, "shares")
        if this.frame.fact(value, "feed"):
            core.expect("labels", f"the label of {this.name}", label, "give the prediction first, then the label")
        return -jnp.sum(dense(label).astype(logs.dtype) * (logs - total), axis=axis, keepdims=True)
    classes = _classes(this, value, label, axis)
    core.limit_feed(label, 0, logs.shape[axis], also=ignore)
    kept = classes != ignore
    # A class index out of range yields NaN, so that users notice the mistake. Fed class indices are checked earlier.
    inside = (classes >= 0) & (classes < logs.shape[axis])
    picked = jnp.take_along_axis(logs, jnp.where(inside, classes, 0), axis=axis)
    return jnp.where(kept, total - jnp.where(inside, picked, jnp.nan), 0)


def _classes(this: Layer, value: Value, label: Value, axis: int) -> Any:
    """Check class labels, and return them with size 1 along `axis`, the dimension of the classes."""
    x = dense(value)
    classes = dense(label)
    if not jnp.issubdtype(classes.dtype, jnp.integer):
        raise errors.ArgumentTypeError(
            f"{this.name}: class labels are integers, found {describe(label)}; declare them so: "
            f'layers.data("label", shape=[1], dtype="int64"), or say soft_label=True for probabilities'
        )
    if row_dims(value) != row_dims(label):
        raise errors.ShapeError(
            f"{this.name}: one of input and label is a sequence batch, the other is not; declare both with "
            f"lod_level=1, or pool the sequence first: layers.sequence_pool(x, 'average')"
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
