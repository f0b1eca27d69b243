"""`auc`: the area under the ROC or precision-recall curve of a binary classifier."""

import functools
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.initializer import Constant
from fluid.layers.base import Layer, layer
from fluid.layers.loss.metrics import chances
from fluid.layers.no_effect import Warned, no_effect


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
    """Compute the area under the curve of a binary classifier, over all training steps and over the last ones.

    The thresholds are `k / num_thresholds`, for `k` from 1 to `num_thresholds`. They divide the probabilities into
    `num_thresholds + 1` bins, the last for probabilities of exactly 1, and probabilities in one bin count as equal.
    The area is exact if no bin has rows of both classes.
    The numbers of positive and negative rows in each bin are states, which are saved with the parameters. Test mode
    does not change them: both areas then cover only the batch that is fed. `trainer.test` returns the area over the
    whole data set, computed from the sums over all batches.

    Args:
      input: probabilities `[batch, 2]`, or `[batch, 1]` of being positive; the last column counts.
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
    """Create a state of counts that starts at 0, and return its name and value."""
    name = this.array_name("w")
    return name, core.create_state(name, shape, "int32", Constant(0))


def _curve(counts: Any, numpy: Any) -> tuple[Any, Any]:
    """Count the positive and negative rows at or above each threshold, from the highest threshold to the lowest.

    Args:
      counts: the positive and negative rows in each bin, `[2, bins]`.
      numpy: the array module, `numpy` for float64 or `jax.numpy` for float32.

    Returns:
      Two arrays `[bins + 1]`, from no rows to all.
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
