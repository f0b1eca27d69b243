"""Metrics, which tell how good predictions are."""

from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.initializer import Constant
from fluid.layers.base import Layer, array_of, dense, describe, is_sequence, layer, wide
from fluid.layers.checks import check_ids
from fluid.layers.no_effect import WRITES_NOTHING, Warned, no_effect
from fluid.layers.tensor.reduce import rows_of

_COUNTS = Warned(
    WRITES_NOTHING.why,
    WRITES_NOTHING.asks,
    instead="the accuracy times the number of rows is how many are correct",
)


@layer
@no_effect(correct=_COUNTS, total=_COUNTS)
def accuracy(
    input: core.Value,
    label: core.Value,
    k: int = 1,
    correct: core.Value | None = None,
    total: core.Value | None = None,
    name: str | None = None,
) -> jax.Array:
    """The fraction of rows whose class is among the `k` most probable ones.

    Args:
      input: probabilities or scores `[batch, classes]`, or a SequenceBatch of them.
      label: classes `[batch, 1]` of an integer dtype, or a SequenceBatch of them.
      k: how many classes count as predicted.
      correct: accepted for programs written for Fluid, but has no effect: values never change.
      total: accepted for programs written for Fluid, but has no effect: values never change.
      name: instead of `accuracy_N`.

    Returns:
      A scalar, `[]`, float32. `trainer.test` averages it over batches, weighted by their numbers of rows.

    Raises:
      ArgumentError: `k` is not between 1 and the number of classes.
      ArgumentTypeError: labels are no integers.
      ShapeError: labels do not fit the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     scores = fluid.layers.data("scores", shape=[10])
      ...     label = fluid.layers.data("label", shape=[1], dtype="int64")
      ...     return fluid.layers.accuracy(scores, label, k=5)
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("accuracy", name)
    scores = jax.lax.stop_gradient(dense(input))
    classes = check_ids(this.name, label)
    if scores.ndim < 2 or classes.size != scores.size // scores.shape[-1]:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} do not fit; expected one class per row, "
            f'as in layers.data("label", shape=[1], dtype="int64")'
        )
    best = jax.lax.top_k(scores, core.whole_number(this.name, "k", k, most=scores.shape[-1]))[1]
    hits = jnp.any(best == classes.reshape(*scores.shape[:-1], 1), axis=-1).astype(jnp.float32)
    if is_sequence(input):
        result = jnp.sum(hits, where=input.mask) / jnp.maximum(jnp.sum(input.mask), 1)
    else:
        result = jnp.mean(hits)
    result = this.output(result)
    this.frame.note(result, weight=rows_of(this.frame, input))
    return result


@layer
@no_effect(
    topk=Warned(
        "the last column of the input counts",
        asks=lambda value, given: value != 1,
        instead="put the probability of being positive there",
    )
)
def auc(
    input: core.Value,
    label: core.Value,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
    name: str | None = None,
) -> tuple[Any, Any, list[Any]]:
    """Area under the curve of a binary classifier, over all training steps so far and over the last ones.

    Probabilities are compared with the thresholds `k / num_thresholds`, for `k` from 1 to `num_thresholds`; those
    between the same two count as equal. There are `num_thresholds + 1` bins, the last for probabilities of exactly 1.
    The numbers of positive and negative rows in each bin are states, which are saved with the parameters. Test mode
    does not change
    them: there, both areas are those of the batch that is fed.

    Args:
      input: probabilities `[batch, 2]`, or `[batch, 1]` of being positive; the last column counts.
      label: 0 or 1, `[batch, 1]` of an integer dtype.
      curve: "ROC", or "PR" for average precision.
      num_thresholds: the number of thresholds, with the same meaning as in `fluid.metrics.Auc`.
      topk: accepted for programs written for Fluid, but has no effect: the last column of the input counts.
      slide_steps: the number of last batches that the second area is over; 0 for all.
      name: instead of `auc_N`.

    Returns:
      The area over all batches and the area over the last ones, scalars `[]`, float32; and a list of four arrays
      `[num_thresholds + 1]`, int32: the positive and negative rows in each bin, of the last batches and then of all.

    Raises:
      ArgumentError: there is no such curve, or a number is too small.
      ArgumentTypeError: labels are no integers.
      ShapeError: labels do not fit the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     p = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=2, act="softmax")
      ...     area, batch_area, _ = fluid.layers.auc(p, fluid.layers.data("label", shape=[1], dtype="int64"))
      ...     return area, batch_area
      >>> print(*fluid.Program(program).outputs)
      float32[] float32[]
    """
    this = Layer("auc", name)
    if curve not in _AREAS:
        raise errors.ArgumentError(f"{this.name}: curve={curve!r}; expected 'ROC' or 'PR'")
    core.whole_number(this.name, "num_thresholds", num_thresholds)
    core.whole_number(this.name, "slide_steps", slide_steps, least=0)
    p, positive = _chances(this, input, label)
    bins = jnp.clip((p * num_thresholds).astype(jnp.int32), 0, num_thresholds)
    empty = jnp.zeros([2, num_thresholds + 1], jnp.int32)
    now = empty.at[jnp.where(positive, 0, 1), bins].add(1)
    whole_name, whole = _counts(this, [2, num_thresholds + 1])
    last = total = now
    if this.frame.mode == core.TRAIN:
        total = whole + now
        core.set_state(whole_name, total)
        last = total if slide_steps == 0 else now
    if slide_steps > 1:
        slid_name, slid = _counts(this, [slide_steps, 2, num_thresholds + 1])
        if this.frame.mode == core.TRAIN:
            slid = jnp.concatenate([slid[1:], now[None]])
            core.set_state(slid_name, slid)
            last = jnp.sum(slid, axis=0)
    areas = [this.output(_AREAS[curve](counts)) for counts in (total, last)]
    for area in areas:
        this.frame.note(area, weight=p.shape[0])
    return areas[0], areas[1], [*last, *total]


@layer
def precision(input: core.Value, label: core.Value, threshold: float = 0.5, name: str | None = None) -> jax.Array:
    """The fraction of the rows predicted to be positive that are positive.

    Args:
      input: probabilities `[batch, 2]`, or `[batch, 1]` of being positive; the last column counts.
      label: 0 or 1, `[batch, 1]` of an integer dtype.
      threshold: a row with at least this probability is predicted to be positive.
      name: instead of `precision_N`.

    Returns:
      A scalar, `[]`, float32; 0 if no row is predicted to be positive. `trainer.test` averages it over batches,
      weighted by the numbers of these rows, so that the result is exact.

    Raises:
      ArgumentTypeError: labels are no integers.
      ShapeError: labels do not fit the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     p = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1, act="sigmoid")
      ...     return fluid.layers.precision(p, fluid.layers.data("label", shape=[1], dtype="int64"))
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("precision", name)
    p, positive = _chances(this, input, label)
    predicted = p >= threshold
    return share(this, predicted & positive, predicted)


@layer
def recall(input: core.Value, label: core.Value, threshold: float = 0.5, name: str | None = None) -> jax.Array:
    """The fraction of the positive rows that are predicted to be positive.

    Args:
      input: probabilities `[batch, 2]`, or `[batch, 1]` of being positive; the last column counts.
      label: 0 or 1, `[batch, 1]` of an integer dtype.
      threshold: a row with at least this probability is predicted to be positive.
      name: instead of `recall_N`.

    Returns:
      A scalar, `[]`, float32; 0 if no row is positive. `trainer.test` averages it over batches, weighted by the numbers
      of positive rows, so that the result is exact.

    Raises:
      ArgumentTypeError: labels are no integers.
      ShapeError: labels do not fit the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     p = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1, act="sigmoid")
      ...     return fluid.layers.recall(p, fluid.layers.data("label", shape=[1], dtype="int64"))
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("recall", name)
    p, positive = _chances(this, input, label)
    return share(this, (p >= threshold) & positive, positive)


@layer
def mean_iou(input: core.Value, label: core.Value, num_classes: int, name: str | None = None) -> tuple[Any, Any, Any]:
    """Mean over classes of intersection over union, the measure of semantic segmentation.

    Args:
      input: predicted classes, integers of any shape.
      label: true classes, the same shape.
      num_classes: the number of classes.
      name: instead of `mean_iou_N`.

    Returns:
      `(mean, wrong, correct)`: the mean over the classes that occur, a float32 scalar; and how often each class was
      wrong and correct, int32 `[num_classes]`. A mistake counts as wrong for the true class and for the predicted one.

    Raises:
      ArgumentError: `num_classes` is no positive integer.
      ArgumentTypeError: classes are no integers.
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     guess, truth = (fluid.layers.data(n, shape=[8, 8], dtype="int64") for n in ("guess", "truth"))
      ...     return fluid.layers.mean_iou(guess, truth, num_classes=3)
      >>> print(*fluid.Program(program).outputs)
      float32[] int32[3] int32[3]
    """
    this = Layer("mean_iou", name)
    core.whole_number(this.name, "num_classes", num_classes)
    guess, truth = (check_ids(this.name, array_of(this, v)) for v in (input, label))
    if guess.size != truth.size:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} differ in shape; expected one "
            f"predicted class for each true one, as from layers.argmax(x, axis=-1)"
        )
    for value in (input, label):
        core.limit_feed(value, 0, num_classes)
    guess = guess.reshape(-1)
    truth = truth.reshape(-1)
    zeros = jnp.zeros(num_classes, jnp.int32)
    correct = zeros.at[truth].add((guess == truth).astype(jnp.int32))
    mistakes = (guess != truth).astype(jnp.int32)
    wrong = zeros.at[truth].add(mistakes).at[guess].add(mistakes)
    union = wrong + correct
    overlap = correct / jnp.maximum(union, 1)
    result = jnp.sum(overlap, dtype=jnp.float32) / jnp.maximum(jnp.sum(union > 0), 1)
    return this.output(result), this.output(wrong), this.output(correct)


def _chances(this: Layer, input: Any, label: Any) -> tuple[Any, Any]:
    """Read the probability that a row is positive, and whether it is, both `[batch]`."""
    p = array_of(this, input)
    truth = check_ids(this.name, array_of(this, label))
    if p.ndim != 2 or truth.shape not in ((p.shape[0], 1), (p.shape[0],)):
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} do not fit; expected [batch, 2] and "
            f'[batch, 1], as from layers.data("label", shape=[1], dtype="int64")'
        )
    core.limit_feed(label, 0, 2)
    return wide(jax.lax.stop_gradient(p[:, -1])), truth.reshape(-1) > 0


def share(this: Layer, hits: Any, of: Any) -> Any:
    """Record a fraction, which `trainer.test` averages over batches, weighted by the denominators.

    Args:
      this: the layer.
      hits: bool or numbers, any shape; their sum is the numerator.
      of: likewise; their sum is the denominator.

    Returns:
      A scalar, float32; 0 if the denominator is 0.
    """
    count = jnp.sum(of)
    result = this.output(jnp.sum(hits) / jnp.maximum(count, 1).astype(jnp.float32))
    this.frame.note(result, weight=count)
    return result


def _counts(this: Layer, shape: list[int]) -> tuple[str, Any]:
    """The name and the value of a state that counts from 0."""
    name = this.frame.unique(f"{this.name}.w")
    return name, core.create_state(name, shape, "int32", Constant(0))


def _curve(counts: Any) -> tuple[Any, Any]:
    """The positive and the negative rows at or above each threshold, from the highest threshold to the lowest.

    Args:
      counts: the positive and negative rows in each bin, `[2, bins]`.

    Returns:
      Two arrays `[bins + 1]`, float32, from no rows to all.
    """
    above = jnp.cumsum(counts[:, ::-1], axis=1).astype(jnp.float32)
    above = jnp.concatenate([jnp.zeros([2, 1], jnp.float32), above], axis=1)
    return above[0], above[1]


def _roc_area(counts: Any) -> Any:
    hits, false_alarms = _curve(counts)
    hit_rate = hits / jnp.maximum(hits[-1], 1)
    false_alarm_rate = false_alarms / jnp.maximum(false_alarms[-1], 1)
    return jnp.sum((false_alarm_rate[1:] - false_alarm_rate[:-1]) * (hit_rate[1:] + hit_rate[:-1]) / 2)


def _average_precision(counts: Any) -> Any:
    hits, false_alarms = _curve(counts)
    found = (hits[1:] - hits[:-1]) / jnp.maximum(hits[-1], 1)
    return jnp.sum(found * hits[1:] / jnp.maximum(hits[1:] + false_alarms[1:], 1))


_AREAS = {"ROC": _roc_area, "PR": _average_precision}
