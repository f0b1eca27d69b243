"""Connectionist temporal classification: costs and decoding of labels that are not aligned with the steps."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, dense, describe, layer, wide
from fluid.layers.no_effect import no_effect
from fluid.layers.sequence.step_selection import alike, packed, sequences, shifted, step_ids

# `_LOG_ZERO` stands for the logarithm of 0. It is far below the log-probability of any path, and finite, so that
# gradients are finite too.
_LOG_ZERO = -1e30


@layer
@no_effect(use_cudnn="XLA chooses the kernels")
def warpctc(
    input: Value,
    label: Value,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Value | None = None,
    label_length: Value | None = None,
    name: str | None = None,
    use_cudnn: bool = False,
) -> jax.Array:
    """Compute the cost of a label without an alignment: connectionist temporal classification (Graves et al., 2006).

    At each step the softmax of the input gives the probabilities of the classes and of the blank. A path selects a
    class or the blank at each step. A path stands for the label that remains after merging repetitions and removing
    blanks. The cost is minus the logarithm of the total probability of all paths that stand for the given label.

    Args:
      input: logits, blank included: a SequenceBatch `[batch, time, classes + 1]`; or an array, time first,
        `[time, batch, classes + 1]`, with `input_length`.
      label: classes of an integer dtype: a SequenceBatch `[batch, label time, 1]`; or an array `[batch, label time]`
        with `label_length`.
      blank: the index of the blank.
      norm_by_times: whether the gradient of each row is divided by its number of steps; the cost is not.
      input_length: integers `[batch]` or `[batch, 1]`, if the input is an array.
      label_length: integers `[batch]` or `[batch, 1]`, if the label is an array.
      name: name of the layer; by default `warpctc_N`.
      use_cudnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.

    Returns:
      `[batch, 1]`. A row with fewer steps than its label needs costs 0, as in Fluid, and so does not train.

    Raises:
      ArgumentError: the blank is not the index of a class.
      ArgumentTypeError: labels are not integers.
      ShapeError: the shapes of input, label and lengths do not match.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[8], lod_level=1)
      ...     text = fluid.layers.data("text", shape=[1], dtype="int64", lod_level=1)
      ...     return fluid.layers.warpctc(fluid.layers.fc(x, size=27), text, blank=26)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("warpctc", name)
    alike(this, input, label)
    if not isinstance(input, core.SequenceBatch):
        input = jnp.swapaxes(dense(input), 0, 1) if dense(input).ndim == 3 else input
    batch = _check_logits(this, sequences(this, input, input_length, "input_length"))
    blank = core.whole_number(this.name, "blank", blank, least=0, most=batch.shape[2] - 1)
    truth = sequences(this, label, label_length, "label_length", "label")
    if truth.shape[0] != batch.shape[0]:
        raise errors.ShapeError(
            f"{this.name}: input with {batch.shape[0]} rows and label {describe(label)} do not fit; arrays are "
            f"[time, batch, classes + 1] and [batch, label time]"
        )
    core.expect("logits", "layers.warpctc", batch, "leave out that activation: fc(x, size=classes + 1) makes logits")
    # A label array may contain the blank as padding, so only labels in a SequenceBatch are checked for the blank.
    first, last = (blank == 0, blank == batch.shape[2] - 1) if isinstance(label, core.SequenceBatch) else (0, 0)
    core.limit_feed(label, int(first), batch.shape[2] - int(last))
    logits = wide(batch)
    if norm_by_times:
        logits = _scale_gradient(logits, 1 / jnp.maximum(batch.lengths, 1).astype(logits.dtype)[:, None, None])
    labels = step_ids(this, truth, "label")
    cost = _negative_log_likelihood(batch.with_data(logits), labels, truth.lengths, blank)[:, None]
    return _with_blank(this, this.output(cost), blank, batch.shape[2])


@layer
def ctc_greedy_decoder(
    input: Value,
    blank: int,
    input_length: Value | None = None,
    padding_value: int = 0,
    name: str | None = None,
) -> Any:
    """Take the most probable class of each step, merge repetitions, and remove blanks.

    Args:
      input: probabilities or logits, blank included: a SequenceBatch `[batch, time, classes + 1]`, or an array of this
        shape with `input_length`.
      blank: the index of the blank.
      input_length: integers `[batch]` or `[batch, 1]`, if the input is an array.
      padding_value: the value that fills each row after its last class, if the input is an array.
      name: name of the layer; by default `ctc_greedy_decoder_N`.

    Returns:
      For a SequenceBatch, a SequenceBatch of classes, int32 `[batch, time, 1]`. For an array, `(classes, lengths)`,
      int32 `[batch, time]` and `[batch, 1]`.

    Raises:
      ArgumentError: the blank is not the index of a class.
      ShapeError: the shapes of input and lengths do not match.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[8], lod_level=1)
      ...     return fluid.layers.ctc_greedy_decoder(fluid.layers.fc(x, size=27), blank=26)
      >>> print(fluid.Program(program).outputs[0].dtype)
      int32
    """
    this = Layer("ctc_greedy_decoder", name)
    batch = _check_logits(this, sequences(this, input, input_length, "input_length"))
    blank = core.whole_number(this.name, "blank", blank, least=0, most=batch.shape[2] - 1)
    best = jnp.argmax(dense(batch), axis=2).astype(jnp.int32)
    kept = batch.mask & (best != blank) & (best != shifted(best, -1, blank))
    classes = packed(batch.with_data(best), kept)
    if isinstance(input, core.SequenceBatch):
        return _with_blank(this, this.output(classes.with_data(classes.data[..., None])), blank, batch.shape[2])
    decoded = this.output(jnp.where(classes.mask, classes.data, padding_value))
    return _with_blank(this, decoded, blank, batch.shape[2]), this.output(classes.lengths[:, None])


def _with_blank(this: Layer, result: Any, blank: int, classes: int) -> Any:
    """Record the blank index of a CTC layer; warn if an earlier layer with equally many classes has another blank."""
    for other in this.frame.made.values.values():
        layer, before = this.frame.fact(other, f"blank of {classes}") or ("", blank)
        if before != blank:
            core.doubt(
                f"{this.name} has blank={blank}, and {layer} has blank={before} for the same {classes} classes; give "
                f"both the same, as in blank={before}"
            )
    this.frame.note(result, **{f"blank of {classes}": (this.name, blank)})
    return result


def _check_logits(this: Layer, batch: core.SequenceBatch) -> core.SequenceBatch:
    """Check that the CTC input holds floats `[batch, time, classes + 1]`, and return the input."""
    if batch.data.ndim != 3 or not jnp.issubdtype(batch.dtype, jnp.floating):
        raise errors.ShapeError(
            f"{this.name}: input {describe(batch)} is no score for each class of each step; expected floats with "
            f"the classes last, as from layers.fc(x, size=classes + 1)"
        )
    return batch


@jax.custom_jvp
def _scale_gradient(x: jax.Array, scale: jax.Array) -> jax.Array:
    return x


@_scale_gradient.defjvp
def _scale_gradient_jvp(primals: Any, tangents: Any) -> Any:
    return primals[0], tangents[0] * primals[1]


def _negative_log_likelihood(batch: core.SequenceBatch, labels: jax.Array, lengths: jax.Array, blank: int) -> jax.Array:
    """Return minus the log-probabilities of labels, computed by the CTC forward algorithm (Graves et al., 2006).

    A forward variable is the log-probability that a path is at one position of the label after a step. `at_label[:, i]`
    covers the paths at class `i` of the label. `at_blank[:, i]` covers the paths at the blank before class `i`; one
    more blank follows the last class.

    Args:
      batch: logits, `[batch, time, classes + 1]`.
      labels: `[batch, label time]`.
      lengths: the lengths of the labels, `[batch]`.

    Returns:
      `[batch]`; 0 if a row has fewer steps than its label needs.
    """
    log_probs = jnp.maximum(jax.nn.log_softmax(dense(batch), axis=2), _LOG_ZERO)
    of_labels = _log_probs_of(labels, log_probs)
    repeated = (labels == jnp.roll(labels, 1, axis=1)) & (jnp.arange(labels.shape[1]) > 0)

    def step(forward: Any, now: Any) -> tuple[Any, None]:
        at_blank, at_label = forward
        of_blank, of_label, real = now
        arrived = jnp.logaddexp(at_blank, _before_blanks(at_label))
        new_blank = arrived + of_blank
        # A class may follow the previous class without a blank between them, unless the two classes are equal.
        entered = jnp.where(repeated, at_blank[:, :-1], arrived[:, :-1])
        new_label = jnp.logaddexp(at_label, entered) + of_label
        real = real[:, None]
        return (jnp.where(real, new_blank, at_blank), jnp.where(real, new_label, at_label)), None

    nowhere = jnp.full(labels.shape, _LOG_ZERO, log_probs.dtype)
    at_first_blank = jnp.pad(nowhere, ((0, 0), (1, 0)))
    steps = (jnp.moveaxis(log_probs[:, :, blank, None], 1, 0), jnp.moveaxis(of_labels, 1, 0), batch.mask.T)
    (at_blank, at_label), _ = jax.lax.scan(step, (at_first_blank, nowhere), steps)
    ends = lengths[:, None]
    total = jnp.logaddexp(
        jnp.take_along_axis(at_blank, ends, axis=1)[:, 0],
        jnp.take_along_axis(_before_blanks(at_label), ends, axis=1)[:, 0],
    )
    inside = jnp.arange(labels.shape[1]) < ends
    needed = lengths + jnp.sum(repeated & inside, axis=1)
    return jnp.where(needed <= batch.lengths, -total, 0)


def _log_probs_of(labels: jax.Array, log_probs: jax.Array) -> jax.Array:
    """Return the log-probability of each of `labels [batch, n]` at each step, `[batch, time, n]`.

    The log-probability of an integer that is not a class is NaN.
    """
    batch, time, classes = log_probs.shape
    wanted = jnp.broadcast_to(labels[:, None], (batch, time, labels.shape[1]))
    known = ((labels >= 0) & (labels < classes))[:, None]
    found = jnp.take_along_axis(log_probs, jnp.where(known, wanted, 0), axis=2)
    # A label that is not a class of the input gives NaN, so that the mistake becomes visible. For fed labels, an
    # earlier check raises an error.
    return jnp.where(known, found, jnp.nan)


def _before_blanks(at_label: jax.Array) -> jax.Array:
    """Move the CTC forward variable of each class, `[batch, n]`, to the blank after this class, `[batch, n + 1]`.

    A forward variable is the log-probability that a path is at one position of the label after a step. No class
    precedes the first blank, so this blank gets `_LOG_ZERO`, which stands for the logarithm of 0.
    """
    return jnp.pad(at_label, ((0, 0), (1, 0)), constant_values=_LOG_ZERO)
