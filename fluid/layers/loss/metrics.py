"""Metrics: numbers that tell how good predictions are."""

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
    """Share of rows whose class is among the `k` most probable.

    Args:
      input: probabilities or scores `[batch, classes]`, or a SequenceBatch of them.
      label: classes `[batch, 1]` of an integer dtype, or a SequenceBatch of them.
      k: how many guesses count.
      correct: accepted for programs written for Fluid, but has no effect: values never change.
      total: accepted for programs written for Fluid, but has no effect: values never change.
      name: instead of `accuracy_N`.

    Returns:
      A scalar, `[]`, float32. `trainer.test` weighs it by the number of rows.

    Raises:
      ArgumentError: there are less than `k` classes.
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
    scores, classes = jax.lax.stop_gradient(dense(input)), check_ids(this.name, label)
    if scores.ndim < 2 or classes.size != scores.size // scores.shape[-1]:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} do not fit; expected one class per "
            "row, as "
            f'in layers.data("label", shape=[1], dtype="int64")'
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

    Probabilities are counted in `num_thresholds + 1` bins of equal width; the counts are states, saved with the
    parameters. Testing leaves them alone: there, both areas are those of the batch that is fed.

    Args:
      input: probabilities `[batch, 2]`, or `[batch, 1]` of being positive; the last column counts.
      label: 0 or 1, `[batch, 1]` of an integer dtype.
      curve: "ROC", or "PR" for average precision.
      num_thresholds: how finely probabilities are told apart.
      topk: accepted for programs written for Fluid, but has no effect: the last column of the input counts.
      slide_steps: over how many last batches the second area is; 0 for all.
      name: instead of `auc_N`.

    Returns:
      `(area, area of the last batches, [positives and negatives by bin of the last batches, and of all])`; areas are
      scalars, float32.

    Raises:
      ArgumentError: there is no such curve, or a number is not positive.
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
    last, total = now, now
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
    """Share of rows called positive that are positive.

    Args:
      input: probabilities `[batch, 2]`, or `[batch, 1]` of being positive; the last column counts.
      label: 0 or 1, `[batch, 1]` of an integer dtype.
      threshold: a row is called positive from here on.
      name: instead of `precision_N`.

    Returns:
      A scalar, `[]`, float32, 0 when no row is called positive. `trainer.test` weighs it by the rows called positive,
      so that it is exact over batches.

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
    called = p >= threshold
    return share(this, called & positive, called)


@layer
def recall(input: core.Value, label: core.Value, threshold: float = 0.5, name: str | None = None) -> jax.Array:
    """Share of positive rows that are called positive.

    Args:
      input: probabilities `[batch, 2]`, or `[batch, 1]` of being positive; the last column counts.
      label: 0 or 1, `[batch, 1]` of an integer dtype.
      threshold: a row is called positive from here on.
      name: instead of `recall_N`.

    Returns:
      A scalar, `[]`, float32, 0 when no row is positive. `trainer.test` weighs it by the positive rows, so that it is
      exact over batches.

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
      num_classes: how many classes there are.
      name: instead of `mean_iou_N`.

    Returns:
      `(mean, wrong, correct)`: a float32 scalar over the classes that occur, and counts `[num_classes]`; a mistake is
      counted as wrong for the class it is and for the one it was taken for.

    Raises:
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
    guess, truth = (check_ids(this.name, array_of(this, v)) for v in (input, label))
    if guess.size != truth.size:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} differ in shape; expected one "
            f"predicted class for each true one, as from layers.argmax(x, axis=-1)"
        )
    for value in (input, label):
        core.limit_feed(value, 0, num_classes)
    guess, truth = guess.reshape(-1), truth.reshape(-1)
    zeros = jnp.zeros(num_classes, jnp.int32)
    correct = zeros.at[truth].add((guess == truth).astype(jnp.int32))
    mistakes = (guess != truth).astype(jnp.int32)
    wrong = zeros.at[truth].add(mistakes).at[guess].add(mistakes)
    union = wrong + correct
    share = correct / jnp.maximum(union, 1)
    result = jnp.sum(share, dtype=jnp.float32) / jnp.maximum(jnp.sum(union > 0), 1)
    return this.output(result), this.output(wrong), this.output(correct)


def _chances(this: Layer, input: Any, label: Any) -> tuple[Any, Any]:
    """Probabilities of being positive, and whether a row is, both `[batch]`."""
    p, truth = array_of(this, input), check_ids(this.name, array_of(this, label))
    if p.ndim != 2 or truth.shape not in ((p.shape[0], 1), (p.shape[0],)):
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} do not fit; expected [batch, 2] and "
            f'[batch, 1], as from layers.data("label", shape=[1], dtype="int64")'
        )
    core.limit_feed(label, 0, 2)
    return wide(jax.lax.stop_gradient(p[:, -1])), truth.reshape(-1) > 0


def share(this: Layer, hits: Any, of: Any) -> Any:
    """Record what part the hits are of something, 0 of nothing; `trainer.test` weighs it by that something."""
    count = jnp.sum(of)
    result = this.output(jnp.sum(hits) / jnp.maximum(count, 1).astype(jnp.float32))
    this.frame.note(result, weight=count)
    return result


def _counts(this: Layer, shape: list[int]) -> tuple[str, Any]:
    name = this.frame.unique(f"{this.name}.w")
    return name, core.create_state(name, shape, "int32", Constant(0))


def _curve(counts: Any) -> tuple[Any, Any]:
    """Positives and negatives `[bins + 1]` that lie at or above each threshold, from none to all."""
    above = jnp.cumsum(counts[:, ::-1], axis=1).astype(jnp.float32)
    above = jnp.concatenate([jnp.zeros([2, 1], jnp.float32), above], axis=1)
    return above[0], above[1]


def _roc_area(counts: Any) -> Any:
    hits, false_alarms = _curve(counts)
    hits, false_alarms = hits / jnp.maximum(hits[-1], 1), false_alarms / jnp.maximum(false_alarms[-1], 1)
    return jnp.sum((false_alarms[1:] - false_alarms[:-1]) * (hits[1:] + hits[:-1]) / 2)


def _average_precision(counts: Any) -> Any:
    hits, false_alarms = _curve(counts)
    found = (hits[1:] - hits[:-1]) / jnp.maximum(hits[-1], 1)
    return jnp.sum(found * hits[1:] / jnp.maximum(hits[1:] + false_alarms[1:], 1))


_AREAS = {"ROC": _roc_area, "PR": _average_precision}
