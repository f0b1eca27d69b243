"""Learning rate schedules with Fluid's names and numbers: functions from the number of updates done to the rate.

They are ordinary optax schedules, and any optax schedule may stand where one of them stands.
"""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import jax.numpy as jnp

from fluid import errors
from fluid.core import whole_number

Schedule = Callable[[Any], Any]


def exponential_decay(learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False) -> Schedule:
    """`learning_rate * decay_rate ** (count / decay_steps)`.

    Args:
      learning_rate: of the first update.
      decay_steps: updates after which the rate is `decay_rate` of what it was.
      decay_rate: factor of one such period.
      staircase: whether the rate changes only when a period is over.

    Returns:
      A function from the number of updates done to the rate, for `learning_rate=` of any optimizer.

    Raises:
      ArgumentError: a number is not one, or decay_steps is not positive.

    Example:
      >>> rate = exponential_decay(0.1, decay_steps=5, decay_rate=0.5)
      >>> [round(float(rate(count)), 4) for count in (0, 5, 10)]
      [0.1, 0.05, 0.025]
    """
    _check("exponential_decay", learning_rate=learning_rate, decay_rate=decay_rate)
    periods = _periods("exponential_decay", decay_steps, staircase)
    return lambda count: learning_rate * jnp.power(jnp.float32(decay_rate), periods(count))


def natural_exp_decay(learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False) -> Schedule:
    """`learning_rate * exp(-decay_rate * count / decay_steps)`.

    Args:
      learning_rate: and the other arguments, see `exponential_decay`.
      decay_steps: length of a period.
      decay_rate: how fast the rate falls within a period.
      staircase: whether the rate changes only when a period is over.

    Returns:
      A function from the number of updates done to the rate.

    Example:
      >>> rate = natural_exp_decay(0.1, decay_steps=5, decay_rate=1.0)
      >>> round(float(rate(5)), 4)
      0.0368
    """
    _check("natural_exp_decay", learning_rate=learning_rate, decay_rate=decay_rate)
    periods = _periods("natural_exp_decay", decay_steps, staircase)
    return lambda count: learning_rate * jnp.exp(-decay_rate * periods(count))


def inverse_time_decay(
    learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False
) -> Schedule:
    """`learning_rate / (1 + decay_rate * count / decay_steps)`.

    Args:
      learning_rate: and the other arguments, see `exponential_decay`.
      decay_steps: length of a period.
      decay_rate: how fast the rate falls within a period.
      staircase: whether the rate changes only when a period is over.

    Returns:
      A function from the number of updates done to the rate.

    Example:
      >>> rate = inverse_time_decay(0.1, decay_steps=5, decay_rate=1.0)
      >>> [round(float(rate(count)), 4) for count in (0, 5)]
      [0.1, 0.05]
    """
    _check("inverse_time_decay", learning_rate=learning_rate, decay_rate=decay_rate)
    periods = _periods("inverse_time_decay", decay_steps, staircase)
    return lambda count: learning_rate / (1 + decay_rate * periods(count))


def polynomial_decay(
    learning_rate: float,
    decay_steps: float,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> Schedule:
    """From `learning_rate` to `end_learning_rate` along `(1 - count / decay_steps) ** power`.

    Args:
      learning_rate: of the first update.
      decay_steps: updates until the end.
      end_learning_rate: of all later ones.
      power: 1 falls in a straight line.
      cycle: rise again at the end: the length is then the next multiple of `decay_steps`.

    Returns:
      A function from the number of updates done to the rate.

    Example:
      >>> rate = polynomial_decay(0.1, decay_steps=10, end_learning_rate=0.0)
      >>> [round(float(rate(count)), 4) for count in (0, 5, 20)]
      [0.1, 0.05, 0.0]
    """
    function = "polynomial_decay"
    _check(function, learning_rate=learning_rate, end_learning_rate=end_learning_rate, power=power)
    _check(function, positive=True, decay_steps=decay_steps)

    def schedule(count: Any) -> Any:
        length = decay_steps * jnp.maximum(-jnp.floor_divide(-count, decay_steps), 1) if cycle else decay_steps
        left = 1 - jnp.minimum(count, length) / jnp.float32(length)
        return (learning_rate - end_learning_rate) * left**power + end_learning_rate

    return schedule


def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> Schedule:
    """One rate for each stretch of training.

    Args:
      boundaries: ascending; the first update of each stretch but the first.
      values: the rates, one more than boundaries.

    Returns:
      A function from the number of updates done to the rate.

    Raises:
      ArgumentError: boundaries do not ascend, or there is not one value more.

    Example:
      >>> rate = piecewise_decay([100, 200], [1.0, 0.5, 0.1])
      >>> [round(float(rate(count)), 4) for count in (99, 100, 200)]
      [1.0, 0.5, 0.1]
    """
    edges, rates = list(boundaries), list(values)
    if len(rates) != len(edges) + 1 or any(a >= b for a, b in zip(edges, edges[1:], strict=False)):
        raise errors.ArgumentError(
            f"piecewise_decay takes ascending boundaries and one value more than these, found boundaries={edges}, "
            f"values={rates}; write piecewise_decay(boundaries=[1000, 2000], values=[0.1, 0.01, 0.001])"
        )

    def schedule(count: Any) -> Any:
        if not edges:
            return jnp.float32(rates[0])
        return jnp.asarray(rates, jnp.float32)[jnp.searchsorted(jnp.asarray(edges), count, side="right")]

    return schedule


def noam_decay(d_model: float, warmup_steps: float, learning_rate: float = 1.0) -> Schedule:
    """The schedule of the Transformer (Vaswani et al., 2017): up in a straight line, then down as `1 / sqrt(update)`.

    `learning_rate * d_model ** -0.5 * min(n ** -0.5, n * warmup_steps ** -1.5)`, where n counts the update itself.

    Args:
      d_model: width of the model.
      warmup_steps: the update with the largest rate.
      learning_rate: factor of all rates.

    Returns:
      A function from the number of updates done to the rate.

    Example:
      >>> rate = noam_decay(d_model=64, warmup_steps=4)
      >>> [round(float(rate(count)), 4) for count in (0, 3, 15)]
      [0.0156, 0.0625, 0.0312]
    """
    _check("noam_decay", learning_rate=learning_rate)
    _check("noam_decay", positive=True, d_model=d_model, warmup_steps=warmup_steps)
    factor = learning_rate * d_model**-0.5

    def schedule(count: Any) -> Any:
        n = jnp.asarray(count + 1, jnp.float32)
        return factor * jnp.minimum(n**-0.5, n * warmup_steps**-1.5)

    return schedule


def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> Schedule:
    """Half a cosine from `learning_rate` to 0, one step down each epoch.

    Args:
      learning_rate: of the first epoch.
      step_each_epoch: updates of one epoch.
      epochs: how many epochs.

    Returns:
      A function from the number of updates done to the rate.

    Example:
      >>> rate = cosine_decay(0.1, step_each_epoch=10, epochs=2)
      >>> [round(float(rate(count)), 4) for count in (0, 9, 10, 20)]
      [0.1, 0.1, 0.05, 0.0]
    """
    _check("cosine_decay", learning_rate=learning_rate)
    _check("cosine_decay", positive=True, step_each_epoch=step_each_epoch, epochs=epochs)

    def schedule(count: Any) -> Any:
        epoch = jnp.floor_divide(count, step_each_epoch)
        return learning_rate * 0.5 * (jnp.cos(epoch * (math.pi / epochs)) + 1)

    return schedule


def warmup_cosine(
    learning_rate: float, warmup_steps: int, total_steps: int, start_lr: float = 0.0, end_lr: float = 0.0
) -> Schedule:
    """A straight line up to `learning_rate`, then half a cosine down (Loshchilov and Hutter, 2017), update by update.

    Args:
      learning_rate: at update `warmup_steps`, the largest.
      warmup_steps: updates of the warm-up, from 0 on.
      total_steps: updates until the end, those of the warm-up counted.
      start_lr: of the first update.
      end_lr: from update `total_steps` on.

    Returns:
      A function from the number of updates done to the rate.

    Raises:
      ArgumentError: a number is not one, or `total_steps` does not exceed `warmup_steps`.

    Example:
      >>> rate = warmup_cosine(0.1, warmup_steps=10, total_steps=30)
      >>> [round(float(rate(count)), 4) for count in (0, 5, 10, 20, 30)]
      [0.0, 0.05, 0.1, 0.05, 0.0]
    """
    _check("warmup_cosine", learning_rate=learning_rate, start_lr=start_lr, end_lr=end_lr)
    whole_number("warmup_cosine", "warmup_steps", warmup_steps, least=0)
    whole_number("warmup_cosine", "total_steps", total_steps, least=warmup_steps + 1)

    def schedule(count: Any) -> Any:
        line = start_lr + (learning_rate - start_lr) * (count / jnp.float32(max(warmup_steps, 1)))
        part = jnp.clip((count - warmup_steps) / jnp.float32(total_steps - warmup_steps), 0, 1)
        wave = end_lr + (learning_rate - end_lr) * 0.5 * (1 + jnp.cos(math.pi * part))
        return jnp.where(count < warmup_steps, line, wave)

    return schedule


def linear_lr_warmup(learning_rate: float | Schedule, warmup_steps: int, start_lr: float, end_lr: float) -> Schedule:
    """A straight line from `start_lr` to `end_lr`, then a rate or another schedule.

    Args:
      learning_rate: after the warm-up; a schedule goes by all updates, those of the warm-up counted.
      warmup_steps: updates of the warm-up.
      start_lr: of the first update.
      end_lr: what the line would reach at update `warmup_steps`.

    Returns:
      A function from the number of updates done to the rate.

    Example:
      >>> rate = linear_lr_warmup(cosine_decay(0.1, 10, 3), warmup_steps=4, start_lr=0.0, end_lr=0.1)
      >>> [round(float(rate(count)), 4) for count in (0, 2, 4, 10)]
      [0.0, 0.05, 0.1, 0.075]
    """
    _check("linear_lr_warmup", start_lr=start_lr, end_lr=end_lr)
    _check("linear_lr_warmup", positive=True, warmup_steps=warmup_steps)
    if not callable(learning_rate):
        _check("linear_lr_warmup", learning_rate=learning_rate)

    def schedule(count: Any) -> Any:
        line = start_lr + (end_lr - start_lr) * (count / jnp.float32(warmup_steps))
        return jnp.where(count < warmup_steps, line, learning_rate(count) if callable(learning_rate) else learning_rate)

    return schedule


def _periods(function: str, decay_steps: float, staircase: bool) -> Schedule:
    _check(function, positive=True, decay_steps=decay_steps)
    if staircase:
        return lambda count: jnp.asarray(jnp.floor_divide(count, decay_steps), jnp.float32)
    return lambda count: count / jnp.float32(decay_steps)


def _check(function: str, positive: bool = False, **numbers: Any) -> None:
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Real) or (positive and not float(value) > 0):
            kind = "a positive number" if positive else "a number"
            raise errors.ArgumentError(f"{function}({name}={value!r}): expected {kind}, as in {name}=10")
