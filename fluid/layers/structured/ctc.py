"""Connectionist temporal classification: labels of sequences that nobody has aligned."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, dense, describe, layer, wide
from fluid.layers.sequence.steps import alike, packed, sequences, shifted, step_ids

# Stands for the logarithm of 0: far below any path, and yet a number, so that gradients are numbers too.
_NEVER = -1e30


@layer
def warpctc(
    input: Any,
    label: Any,
    blank: int = 0,
    norm_by_times: bool = False,
    input_length: Any = None,
    label_length: Any = None,
    name: str | None = None,
) -> Any:
    """Connectionist temporal classification (Graves et al., 2006): the cost of a label without an alignment.

    At each step the softmax of the input chooses a class or the blank; a label is what remains when repetitions are
    merged and blanks left out. The cost is minus the logarithm of the probability of all choices that give the label.

    Args:
      input: logits, blank included: a SequenceBatch `[batch, time, classes + 1]`; or an array, time first,
        `[time, batch, classes + 1]`, with `input_length`.
      label: classes of an integer dtype: a SequenceBatch `[batch, label time, 1]`; or an array `[batch, label time]`
        with `label_length`.
      blank: which class is the blank.
      norm_by_times: whether the gradient of each row is divided by its number of steps; the cost is not.
      input_length: integers `[batch]` or `[batch, 1]`, when the input is an array.
      label_length: integers `[batch]` or `[batch, 1]`, when the label is an array.
      name: instead of `warpctc_N`.

    Returns:
      `[batch, 1]`. A row with less steps than its label needs costs 0, as in Fluid, and so does not train.

    Raises:
      ArgumentError: there is no such class as the blank.
      ArgumentTypeError: labels are no integers.
      ShapeError: input, label and lengths do not fit.

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
    batch = _logits(this, sequences(this, input, input_length, "input_length"), blank)
    truth = sequences(this, label, label_length, "label_length", "label")
    if truth.shape[0] != batch.shape[0]:
        raise errors.ShapeError(
            f"{this.name}: input with {batch.shape[0]} rows and label {describe(label)} do not fit; arrays are "
            f"[time, batch, classes + 1] and [batch, label time]"
        )
    core.limit_feed(label, 0, batch.shape[2])
    logits = wide(batch)
    if norm_by_times:
        logits = _scaled_back(logits, 1 / jnp.maximum(batch.lengths, 1).astype(logits.dtype)[:, None, None])
    return this.output(_cost(batch.with_data(logits), step_ids(this, truth, "label"), truth.lengths, blank)[:, None])


@layer
def ctc_greedy_decoder(
    input: Any, blank: int, input_length: Any = None, padding_value: int = 0, name: str | None = None
) -> Any:
    """Read the most probable class of each step, merge repetitions, leave out blanks.

    Args:
      input: probabilities or logits, blank included: a SequenceBatch `[batch, time, classes + 1]`, or such an array,
        batch first, with `input_length`.
      blank: which class is the blank.
      input_length: integers `[batch]` or `[batch, 1]`, when the input is an array.
      padding_value: what stands behind the end of a row.
      name: instead of `ctc_greedy_decoder_N`.

    Returns:
      For a SequenceBatch, a SequenceBatch of classes, int32 `[batch, time, 1]`. For an array, `(classes, lengths)`,
      int32 `[batch, time]` and `[batch, 1]`.

    Raises:
      ArgumentError: there is no such class as the blank.
      ShapeError: input and lengths do not fit.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[8], lod_level=1)
      ...     return fluid.layers.ctc_greedy_decoder(fluid.layers.fc(x, size=27), blank=26)
      >>> print(fluid.Program(program).outputs[0].dtype)
      int32
    """
    this = Layer("ctc_greedy_decoder", name)
    batch = _logits(this, sequences(this, input, input_length, "input_length"), blank)
    best = jnp.argmax(dense(batch), axis=2).astype(jnp.int32)
    said = batch.mask & (best != blank) & (best != shifted(best, -1, blank))
    classes = packed(batch.with_data(best), said)
    if isinstance(input, core.SequenceBatch):
        return this.output(classes.with_data(classes.data[..., None]))
    return this.output(jnp.where(classes.mask, classes.data, padding_value)), this.output(classes.lengths[:, None])


def _logits(this: Layer, batch: core.SequenceBatch, blank: int) -> core.SequenceBatch:
    if batch.data.ndim != 3 or not jnp.issubdtype(batch.dtype, jnp.floating):
        raise errors.ShapeError(
            f"{this.name}: input {describe(batch)} is no score for each class of each step; expected floats with "
            f"the classes last, as from layers.fc(x, size=classes + 1)"
        )
    if isinstance(blank, bool) or not isinstance(blank, int) or not 0 <= blank < batch.shape[2]:
        raise errors.ArgumentError(
            f"{this.name}: blank={blank!r} is none of the {batch.shape[2]} classes of the input {describe(batch)}; "
            f"expected 0 to {batch.shape[2] - 1}"
        )
    return batch


@jax.custom_jvp
def _scaled_back(x: Any, scale: Any) -> Any:
    """The value itself; its gradient times a scale."""
    return x


@_scaled_back.defjvp
def _scaled_back_jvp(primals: Any, tangents: Any) -> Any:
    return primals[0], tangents[0] * primals[1]


def _cost(batch: core.SequenceBatch, labels: Any, lengths: Any, blank: int) -> Any:
    """Minus the logarithms of the probabilities of labels `[batch, label time]`, `[batch]`.

    Paths are told apart by where they stand: in a label, or in the blank before it, one more behind the last.
    """
    # A class outside the input gives what is not a number, so that it shows; feeds are checked before they get here.
    logs = jnp.maximum(jax.nn.log_softmax(dense(batch), axis=2), _NEVER)
    wanted = jnp.broadcast_to(labels[:, None], (*batch.shape[:2], labels.shape[1]))
    known = (labels >= 0) & (labels < batch.shape[2])
    said = jnp.where(known[:, None], jnp.take_along_axis(logs, jnp.where(known[:, None], wanted, 0), axis=2), jnp.nan)
    repeated = (labels == jnp.roll(labels, 1, axis=1)) & (jnp.arange(labels.shape[1]) > 0)

    def step(state: Any, now: Any) -> tuple[Any, None]:
        in_blank, in_label = state
        silence, speech, real = now
        arrived = jnp.logaddexp(in_blank, _pushed(in_label))
        new_blank = arrived + silence
        # A label may follow the one before it without a blank, unless it is the same.
        entered = jnp.where(repeated, in_blank[:, :-1], arrived[:, :-1])
        new_label = jnp.logaddexp(in_label, entered) + speech
        real = real[:, None]
        return (jnp.where(real, new_blank, in_blank), jnp.where(real, new_label, in_label)), None

    never = jnp.full(labels.shape, _NEVER, said.dtype)
    start = jnp.pad(never, ((0, 0), (1, 0))), never
    times = (jnp.moveaxis(logs[:, :, blank, None], 1, 0), jnp.moveaxis(said, 1, 0), batch.mask.T)
    (in_blank, in_label), _ = jax.lax.scan(step, start, times)
    ends = lengths[:, None]
    total = jnp.logaddexp(
        jnp.take_along_axis(in_blank, ends, axis=1)[:, 0],
        jnp.take_along_axis(_pushed(in_label), ends, axis=1)[:, 0],
    )
    inside = jnp.arange(labels.shape[1]) < ends
    needed = lengths + jnp.sum(repeated & inside, axis=1)
    return jnp.where(needed <= batch.lengths, -total, 0)


def _pushed(in_label: Any) -> Any:
    """The label before each blank; there is none before the first."""
    return jnp.pad(in_label, ((0, 0), (1, 0)), constant_values=_NEVER)
