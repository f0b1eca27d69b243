"""Metrics that a program computes: accuracy, precision, recall, the area under a curve, and others."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.initializer import Constant
from fluid.layers.base import Layer, array_of, dense, describe, is_sequence, layer, wide
from fluid.layers.checks import check_ids
from fluid.layers.no_effect import Warned, assigns, no_effect
from fluid.layers.tensor.reduce import rows_of

_COUNTS = "a = layers.accuracy(x, y); a times the number of rows is how many are correct"


@layer
@assigns(correct=_COUNTS, total=_COUNTS)
def accuracy(
    input: Value,
    label: Value,
    k: int = 1,
    correct: Value | None = None,
    total: Value | None = None,
    name: str | None = None,
) -> jax.Array:
    """Compute the fraction of rows whose label is among the `k` most probable classes.

    A single column is the probability of class 1, as from a sigmoid: 0.5 or more predicts class 1.

    Args:
      input: probabilities or scores `[batch, classes]`, or a SequenceBatch of them; or `[batch, 1]`, the probability of
        class 1 of two classes.
      label: classes `[batch, 1]` of an integer dtype, or a SequenceBatch of them.
      k: the number of classes that count as predicted.
      correct: not possible in a program function, whose values never change: use what is returned.
      total: not possible in a program function, whose values never change: use what is returned.
      name: name of the layer; by default `accuracy_N`.

    Returns:
      A scalar, `[]`, float32. `trainer.test` averages the scalar over batches, weighted by their numbers of rows.

    Raises:
      ArgumentError: `k` is not between 1 and the number of classes, or `correct` or `total` is given.
      ArgumentTypeError: the labels are not integers.
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
    if not jnp.issubdtype(dense(label).dtype, jnp.integer) and jnp.issubdtype(scores.dtype, jnp.integer):
        raise errors.ArgumentTypeError(
            f"{this.name}: input {describe(input)} looks like classes and label {describe(label)} like scores; the "
            f"scores come first: layers.accuracy(prediction, label)"
        )
    classes = check_ids(this.name, label)
    if scores.ndim < 2 or classes.size != scores.size // scores.shape[-1]:
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} do not fit; expected one class per row, "
            f'as in layers.data("label", shape=[1], dtype="int64")'
        )
    core.whole_number(this.name, "k", k, most=scores.shape[-1])
    if 1 < k == scores.shape[-1]:
        core.doubt(f"layers.accuracy(k={k}) of {k} classes is always 1: each class is among the {k} most probable ones")
    if scores.shape[-1] == 1 and jnp.issubdtype(scores.dtype, jnp.floating):
        core.limit_feed(label, 0, 2)
        core.expect(
            "probabilities", "layers.accuracy of one column", input, "write layers.accuracy(layers.sigmoid(x), y)"
        )
        best = (scores >= 0.5).astype(classes.dtype)
    else:
        best = jax.lax.top_k(scores, k)[1]
    hits = jnp.any(best == classes.reshape(*scores.shape[:-1], 1), axis=-1).astype(jnp.float32)
    if is_sequence(input):
        result = jnp.sum(hits, where=input.mask) / jnp.maximum(jnp.sum(input.mask), 1)
    else:
        result = jnp.mean(hits)
    result = this.output(result)
    this.frame.note(result, weight=rows_of(this.frame, input))
    return result


@layer
def precision(input: Value, label: Value, threshold: float = 0.5, name: str | None = None) -> jax.Array:
    """Compute the precision: the fraction of the rows predicted to be positive that are positive.

    Args:
      input: probabilities `[batch, 2]` or `[batch, 1]`; the last column is the probability of being positive.
      label: 0 or 1, `[batch, 1]` of an integer dtype.
      threshold: a row with at least this probability is predicted to be positive.
      name: name of the layer; by default `precision_N`.

    Returns:
      A scalar, `[]`, float32; 0 if no row is predicted to be positive. `trainer.test` averages the scalar over batches,
      weighted by the number of rows predicted to be positive, so that the result is exact.

    Raises:
      ArgumentTypeError: the labels are not integers.
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
    p, positive = chances(this, input, label, "precision", threshold)
    predicted = p >= threshold
    return share(this, predicted & positive, predicted)


@layer
def recall(input: Value, label: Value, threshold: float = 0.5, name: str | None = None) -> jax.Array:
    """Compute the recall: the fraction of the positive rows that are predicted to be positive.

    Args:
      input: probabilities `[batch, 2]` or `[batch, 1]`; the last column is the probability of being positive.
      label: 0 or 1, `[batch, 1]` of an integer dtype.
      threshold: a row with at least this probability is predicted to be positive.
      name: name of the layer; by default `recall_N`.

    Returns:
      A scalar, `[]`, float32; 0 if no row is positive. `trainer.test` averages the scalar over batches, weighted by the
      number of positive rows, so that the result is exact.

    Raises:
      ArgumentTypeError: the labels are not integers.
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
    p, positive = chances(this, input, label, "recall", threshold)
    return share(this, (p >= threshold) & positive, positive)


@layer
def mean_iou(input: Value, label: Value, num_classes: int, name: str | None = None) -> tuple[Any, Any, Any]:
    """Compute the mean over classes of intersection over union, the metric of semantic segmentation.

    Args:
      input: predicted classes, integers of any shape.
      label: true classes, as many as predicted ones and in the same order.
      num_classes: the number of classes.
      name: name of the layer; by default `mean_iou_N`.

    Returns:
      `(mean, wrong, correct)`: the mean over the classes that occur, a float32 scalar; and the counts of wrong and
      correct predictions of each class, int32 `[num_classes]`. A mistake counts as wrong for both the true and the
      predicted class. `trainer.test` sums the counts over all batches, and computes the mean from these sums.

    Raises:
      ArgumentError: `num_classes` is not a positive integer.
      ArgumentTypeError: classes are not integers.
      ShapeError: the numbers of predicted and true classes differ.

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
            f"{this.name}: input {describe(input)} and label {describe(label)} differ in size; expected one "
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
    result = this.output(_mean_overlap(wrong, correct).astype(jnp.float32))
    counts = (this.output(wrong), this.output(correct))
    for count in counts:
        this.frame.note(count, reduced=core.Reduced("sum"))
    this.frame.note(result, reduced=core.Reduced("function", counts, functools.partial(_mean_overlap, numpy=np)))
    return result, *counts


@layer
def metric(
    value: Any,
    reduce: str | Callable[..., Any],
    weight: Any = None,
    name: str | None = None,
) -> Any:
    """Define how to combine the values of several minibatches into one, for a test or an epoch of training.

    Means, sums and extremes over the rows of a minibatch need no `metric`, and neither do metric layers, for example
    `accuracy`: `trainer.test` combines them correctly. Use `metric` for other values that are computed from means, sums
    or extremes.

    Args:
      value: an array of any shape without a batch dimension. If `reduce` is a function, `value` is one array or a list
        of arrays. Each of them is a mean, a sum or an extreme over rows, or has one row for each example.
      reduce: "mean", weighted by the number of examples or by `weight`; "sum", "max", "min", or "last" for the value of
        the last minibatch. Or a function of the value or values, such as `jnp.sqrt`. In the program, the function gets
        the traced arrays of one minibatch. For a data set, it gets the values of the whole data set, with all rows
        concatenated, as NumPy arrays of float64 and int64.
      weight: the weight of the minibatch in a mean, a scalar such as the number of words; the number of examples by
        default.
      name: name of the layer; by default `metric_N`.

    Returns:
      The value for this minibatch; if `reduce` is a function, its result.

    Raises:
      ArgumentError: there is no such `reduce`, or `weight` is given with another `reduce` than "mean".
      ShapeError: the value has rows, or is a SequenceBatch; or the weight is not a scalar.

    Example:
      >>> import fluid, jax.numpy as jnp, numpy as np
      >>> def program():
      ...     error = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1) - fluid.layers.data("y", shape=[1])
      ...     loss = fluid.layers.mean(error**2)
      ...     worst = fluid.layers.reduce_max(error)  # known to be a maximum
      ...     return {"loss": loss, "rmse": fluid.layers.metric(loss, reduce=jnp.sqrt), "worst": worst}
      >>> reader = fluid.reader.arrays({"x": np.eye(4, 2), "y": np.ones((4, 1))}, batch_size=3)
      >>> tested = fluid.Trainer(program, fluid.optimizer.SGD(0.1)).test(reader)
      >>> bool(abs(tested["rmse"] - tested["loss"] ** 0.5) < 1e-12)
      True
    """
    this = Layer("metric", name)
    if callable(reduce):
        values = [array_of(this, v) for v in (value if isinstance(value, list | tuple) else [value])]
        kept = core.Reduced("function", tuple(values), reduce)
        value = jnp.asarray(reduce(*values))
    elif reduce in _KINDS:
        kept = core.Reduced(reduce)
        value = _without_rows(this, array_of(this, value))
    else:
        raise errors.ArgumentError(
            f"{this.name}: reduce={reduce!r}; expected {', '.join(map(repr, _KINDS))} or a function: reduce=jnp.sqrt"
        )
    if weight is not None and (reduce != "mean" or jnp.ndim(weight)):
        raise errors.ArgumentError(
            f"{this.name}: weight= is a scalar for a mean, found {describe(weight)} and reduce={reduce!r}; write "
            f'metric(value, reduce="mean", weight=layers.reduce_sum(mask))'
        )
    # Copy the array: `frame.note` attaches to one array object how the trainer combines its values over minibatches.
    # The user's array `value` must not get this rule.
    result = this.output(jnp.copy(value))
    this.frame.note(result, declared=True, **({"reduced": kept} if weight is None else {"weight": weight}))
    return result


def _without_rows(this: Layer, value: Any) -> Any:
    """Return the value of a metric unchanged, after a check that none of its dimensions is the batch."""
    if this.frame.placeholder_batch in value.shape:
        raise errors.ShapeError(
            f"{this.name}: value {describe(value)} has rows of its own; reduce them first: layers.mean(x), "
            f"layers.reduce_sum(x) or layers.reduce_max(x)"
        )
    return value


def chances(this: Layer, input: Any, label: Any, caller: str, threshold: float = 0.5) -> tuple[Any, Any]:
    """Return the predicted probability that each row is positive, and its true label as a bool, both `[batch]`.

    Args:
      input: probabilities `[batch, 1]` or `[batch, 2]`; the last column is the probability of being positive. If the
        threshold is not between 0 and 1, `input` may hold any scores.
      label: integers `[batch, 1]` or `[batch]`; a row is positive if its label is above 0.

    Raises:
      ArgumentTypeError: the labels are not integers.
      ShapeError: labels do not fit the input.
    """
    p = array_of(this, input)
    truth = check_ids(this.name, array_of(this, label))
    if p.ndim != 2 or truth.shape not in ((p.shape[0], 1), (p.shape[0],)):
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} do not fit; expected [batch, 2] and "
            f'[batch, 1], as from layers.data("label", shape=[1], dtype="int64")'
        )
    core.limit_feed(label, 0, 2)
    if 0 < threshold < 1:
        activation = "sigmoid" if p.shape[1] == 1 else "softmax"
        core.expect("probabilities", f"layers.{caller}", input, f"write layers.{caller}(layers.{activation}(x), label)")
    return wide(jax.lax.stop_gradient(p[:, -1])), truth.reshape(-1) > 0


def share(this: Layer, hits: Any, of: Any) -> Any:
    """Return `sum(hits) / sum(of)` as a result; `trainer.test` averages it over batches, weighted by `sum(of)`."""
    count = jnp.sum(of)
    result = this.output(jnp.sum(hits) / jnp.maximum(count, 1).astype(jnp.float32))
    this.frame.note(result, weight=count)
    return result


def _mean_overlap(wrong: Any, correct: Any, numpy: Any = jnp) -> Any:
    union = wrong + correct
    return numpy.sum(correct / numpy.maximum(union, 1)) / numpy.maximum(numpy.sum(union > 0), 1)


# The strings that `metric(reduce=...)` accepts.
_KINDS = ("mean", "sum", "max", "min", "last")


@layer
@no_effect(
    topk=Warned(
        "the last column of the input counts",
        asks=lambda value, given: value != 1,
        instead="put the probability of being positive there",
    )
)
def auc(
    input: Value,
    label: Value,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
    name: str | None = None,
) -> tuple[Any, Any, list[Any]]:
    """Compute the area under the curve of a binary classifier, over all training steps and over the last steps.

    The thresholds are `k / num_thresholds`, for `k` from 1 to `num_thresholds`. They divide the probabilities into
    `num_thresholds + 1` bins, the last for probabilities of exactly 1, and probabilities in one bin count as equal.
    The area is exact if no bin has rows of both classes.
    The numbers of positive and negative rows in each bin are states, which are saved with the parameters. Test mode
    does not change these states: both areas then cover only the batch that is fed. `trainer.test` returns the area over
    the whole data set, computed from the sums over all batches.

    Args:
      input: probabilities `[batch, 2]` or `[batch, 1]`; the last column is the probability of being positive.
      label: 0 or 1, `[batch, 1]` of an integer dtype.
      curve: "ROC", or "PR" for average precision.
      num_thresholds: the number of thresholds, with the same meaning as in `fluid.metrics.Auc`.
      topk: accepted for programs written for Fluid, but has no effect: the last column of the input counts.
      slide_steps: the number of last batches that the second area covers; 0 for all.
      name: name of the layer; by default `auc_N`.

    Returns:
      The area over all batches and the area over the last ones, scalars `[]`, float32; and a list of four arrays
      `[num_thresholds + 1]`, int32: the numbers of positive and negative rows in each bin, first over the last batches
      and then over all.

    Raises:
      ArgumentError: there is no such curve, or a number is too small.
      ArgumentTypeError: the labels are not integers.
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
    p, positive = chances(this, input, label, "auc")
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
    counts = [*last, *total]
    for value in (now, *counts):
        this.frame.note(value, reduced=core.Reduced("sum", over_steps="last"))
    of_all = core.Reduced("function", (now,), functools.partial(_AREAS[curve], numpy=np), over_steps="last")
    for area in areas:
        this.frame.note(area, reduced=of_all)
    return areas[0], areas[1], counts


def _counts(this: Layer, shape: list[int]) -> tuple[str, Any]:
    name = this.array_name("w")
    return name, core.create_state(name, shape, "int32", Constant(0), kind=this.automatic_kind)


def _curve(counts: Any, numpy: Any) -> tuple[Any, Any]:
    """Count the positive and negative rows at or above each threshold, from the highest threshold to the lowest.

    Args:
      counts: the positive and negative rows in each bin, `[2, bins]`.

    Returns:
      The numbers of positive and of negative rows, two arrays `[bins + 1]`. Each begins with 0, and ends with the
      number of all positive rows, or of all negative rows.
    """
    above = numpy.cumsum(counts[:, ::-1], axis=1).astype(numpy.float64 if numpy is np else numpy.float32)
    above = numpy.concatenate([numpy.zeros([2, 1], above.dtype), above], axis=1)
    return above[0], above[1]


def _roc_area(counts: Any, numpy: Any = jnp) -> Any:
    hits, false_alarms = _curve(counts, numpy)
    hit_rate = hits / numpy.maximum(hits[-1], 1)
    false_alarm_rate = false_alarms / numpy.maximum(false_alarms[-1], 1)
    return numpy.sum((false_alarm_rate[1:] - false_alarm_rate[:-1]) * (hit_rate[1:] + hit_rate[:-1]) / 2)


def _average_precision(counts: Any, numpy: Any = jnp) -> Any:
    hits, false_alarms = _curve(counts, numpy)
    found = (hits[1:] - hits[:-1]) / numpy.maximum(hits[-1], 1)
    return numpy.sum(found * hits[1:] / numpy.maximum(hits[1:] + false_alarms[1:], 1))


_AREAS = {"ROC": _roc_area, "PR": _average_precision}
