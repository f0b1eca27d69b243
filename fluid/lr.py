"""Learning rate schedules with the names and formulas of Fluid.

Each function of this module returns a schedule: a function from the number of past updates to the learning rate of the
next update. Optax defines schedules in the same way, so optax schedules work too.
"""

import math
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import jax.numpy as jnp

from fluid import errors
from fluid._util.known_names import getattr_of
from fluid.core import doubt_setting, is_positive, whole_number

__getattr__ = getattr_of(__name__)

# A schedule: a function from the number of past updates, an integer or an integer array, to the learning rate, float32
# of the same shape.
Schedule = Callable[[Any], Any]


def exponential_decay(learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False) -> Schedule:
    """Return the schedule `learning_rate * decay_rate ** (count / decay_steps)`.

    Args:
      learning_rate: the learning rate of the first update.
      decay_steps: the number of updates in one period.
      decay_rate: the factor by which the learning rate changes within one period.
      staircase: whether the learning rate changes only at the end of each period, instead of with every update.

    Returns:
      A function from the number of past updates to the learning rate, for `learning_rate=` of any optimizer.

    Raises:
      ArgumentError: an argument is not a number, `decay_steps` is not positive, or one of the rates is negative.

    Example:
      >>> rate = exponential_decay(0.1, decay_steps=5, decay_rate=0.5)
      >>> [round(float(rate(count)), 4) for count in (0, 5, 10)]
      [0.1, 0.05, 0.025]
    """
    _check_numbers("exponential_decay", learning_rate=learning_rate, decay_rate=decay_rate)
    if decay_rate < 0:
        raise errors.ArgumentError(
            f"exponential_decay(decay_rate={decay_rate!r}): expected a factor from 0 on, as in decay_rate=0.5, since a "
            f"power of a negative number is NaN; natural_exp_decay takes the exponent"
        )
    periods = _periods("exponential_decay", decay_steps, staircase)
    return lambda count: learning_rate * jnp.power(jnp.float32(decay_rate), periods(count))


def natural_exp_decay(learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False) -> Schedule:
    """Return the schedule `learning_rate * exp(-decay_rate * count / decay_steps)`.

    Args:
      learning_rate: the learning rate of the first update.
      decay_steps: the number of updates in one period.
      decay_rate: the exponent of one period, which changes the learning rate by the factor `exp(-decay_rate)`.
      staircase: whether the learning rate changes only at the end of each period, instead of with every update.

    Returns:
      A function from the number of past updates to the learning rate.

    Raises:
      ArgumentError: an argument is not a number, or `decay_steps` is not positive.

    Example:
      >>> rate = natural_exp_decay(0.1, decay_steps=5, decay_rate=1.0)
      >>> round(float(rate(5)), 4)
      0.0368
    """
    _check_numbers("natural_exp_decay", learning_rate=learning_rate, decay_rate=decay_rate)
    periods = _periods("natural_exp_decay", decay_steps, staircase)
    return lambda count: learning_rate * jnp.exp(-decay_rate * periods(count))


def inverse_time_decay(
    learning_rate: float, decay_steps: float, decay_rate: float, staircase: bool = False
) -> Schedule:
    """Return the schedule `learning_rate / (1 + decay_rate * count / decay_steps)`.

    Args:
      learning_rate: the learning rate of the first update.
      decay_steps: the number of updates in one period.
      decay_rate: the growth of the divisor in each period.
      staircase: whether the learning rate changes only at the end of each period, instead of with every update.

    Returns:
      A function from the number of past updates to the learning rate.

    Raises:
      ArgumentError: an argument is not a number, or `decay_steps` is not positive.

    Example:
      >>> rate = inverse_time_decay(0.1, decay_steps=5, decay_rate=1.0)
      >>> [round(float(rate(count)), 4) for count in (0, 5)]
      [0.1, 0.05]
    """
    _check_numbers("inverse_time_decay", learning_rate=learning_rate, decay_rate=decay_rate)
    periods = _periods("inverse_time_decay", decay_steps, staircase)
    return lambda count: learning_rate / (1 + decay_rate * periods(count))


def polynomial_decay(
    learning_rate: float,
    decay_steps: float,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> Schedule:
    """Return `(learning_rate - end_learning_rate) * (1 - count / decay_steps) ** power + end_learning_rate`.

    Args:
      learning_rate: the learning rate of the first update.
      decay_steps: the number of updates until the learning rate is `end_learning_rate`.
      end_learning_rate: the learning rate after `decay_steps` updates.
      power: the exponent; with 1 the learning rate is linear.
      cycle: whether the learning rate rises again after each `decay_steps` updates. If True, the formula uses the
        smallest multiple of `decay_steps` that is at least `count`, instead of `decay_steps`.

    Returns:
      A function from the number of past updates to the learning rate.

    Raises:
      ArgumentError: an argument is not a number, or `decay_steps` is not positive.

    Example:
      >>> rate = polynomial_decay(0.1, decay_steps=10, end_learning_rate=0.0)
      >>> [round(float(rate(count)), 4) for count in (0, 5, 20)]
      [0.1, 0.05, 0.0]
    """
    _check_numbers("polynomial_decay", learning_rate=learning_rate, end_learning_rate=end_learning_rate, power=power)
    if learning_rate < end_learning_rate == 0.0001:
        doubt_setting(
            f"polynomial_decay(learning_rate={learning_rate:g}) ends at end_learning_rate=0.0001, its default, which "
            f"is larger: the rate grows; write end_learning_rate=0.0"
        )
    _check_positive("polynomial_decay", decay_steps=decay_steps)

    def schedule(count: Any) -> Any:
        length: Any = decay_steps
        if cycle:
            # Two negations make the integer division round up. A float32 division would be inexact for large numbers of
            # updates.
            length = decay_steps * jnp.maximum(-jnp.floor_divide(-count, decay_steps), 1)
        left = 1 - jnp.minimum(count, length) / jnp.float32(length)
        return (learning_rate - end_learning_rate) * left**power + end_learning_rate

    return schedule


def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> Schedule:
    """Return a schedule with one constant learning rate for each section of training.

    Args:
      boundaries: the numbers of updates after which the learning rate changes, in ascending order.
      values: the learning rates: one before the first boundary, and one after each boundary.

    Returns:
      A function from the number of past updates to the learning rate.

    Raises:
      ArgumentError: the boundaries do not ascend, or the number of values is not `len(boundaries) + 1`.

    Example:
      >>> rate = piecewise_decay([100, 200], [1.0, 0.5, 0.1])
      >>> [round(float(rate(count)), 4) for count in (99, 100, 200)]
      [1.0, 0.5, 0.1]
    """
    edges = list(boundaries)
    rates = list(values)
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
    """Return the schedule of the Transformer (Vaswani et al., 2017): a linear rise, then a decay as `1 / sqrt(n)`.

    The learning rate of update `n`, counted from 1, is
    `learning_rate * d_model ** -0.5 * min(n ** -0.5, n * warmup_steps ** -1.5)`.

    Args:
      d_model: the width of the model.
      warmup_steps: the number of updates in the warm-up, during which the learning rate rises.
      learning_rate: a factor of all learning rates.

    Returns:
      A function from the number of past updates to the learning rate.

    Raises:
      ArgumentError: an argument is not a number, or `d_model` or `warmup_steps` is not positive.

    Example:
      >>> rate = noam_decay(d_model=64, warmup_steps=4)
      >>> [round(float(rate(count)), 4) for count in (0, 3, 15)]
      [0.0156, 0.0625, 0.0312]
    """
    _check_numbers("noam_decay", learning_rate=learning_rate)
    _check_positive("noam_decay", d_model=d_model, warmup_steps=warmup_steps)
    factor = learning_rate * d_model**-0.5

    def schedule(count: Any) -> Any:
        n = jnp.asarray(count + 1, jnp.float32)
        return factor * jnp.minimum(n**-0.5, n * warmup_steps**-1.5)

    return schedule


def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> Schedule:
    """Return the schedule `0.5 * learning_rate * (cos(pi * epoch / epochs) + 1)`, with one value for each epoch.

    The epoch is counted from 0, so the learning rate of the last epoch is above 0. As in Fluid, the cosine continues in
    longer training: after `epochs` epochs the learning rate rises again, and after `2 * epochs` epochs it is
    `learning_rate` again.

    Args:
      learning_rate: the learning rate of the first epoch.
      step_each_epoch: the number of updates in one epoch.
      epochs: the number of epochs from the full learning rate down to 0.

    Returns:
      A function from the number of past updates to the learning rate.

    Raises:
      ArgumentError: an argument is not a number, or `step_each_epoch` or `epochs` is not positive.

    Example:
      >>> rate = cosine_decay(0.1, step_each_epoch=10, epochs=2)
      >>> [round(float(rate(count)), 4) for count in (0, 9, 10, 20, 30, 40)]
      [0.1, 0.1, 0.05, 0.0, 0.05, 0.1]
    """
    _check_numbers("cosine_decay", learning_rate=learning_rate)
    _check_positive("cosine_decay", step_each_epoch=step_each_epoch, epochs=epochs)

    def schedule(count: Any) -> Any:
        epoch = jnp.floor_divide(count, step_each_epoch)
        return learning_rate * 0.5 * (jnp.cos(epoch * (math.pi / epochs)) + 1)

    return schedule


def warmup_cosine(
    learning_rate: float, warmup_steps: int, total_steps: int, start_lr: float = 0.0, end_lr: float = 0.0
) -> Schedule:
    """Return a schedule: a linear rise to `learning_rate`, then half a cosine down (Loshchilov and Hutter, 2017).

    The learning rate changes with every update.

    Args:
      learning_rate: the learning rate at update `warmup_steps`, which is the largest.
      warmup_steps: the number of updates in the warm-up, 0 or more.
      total_steps: the number of updates until the learning rate is `end_lr`, including the warm-up.
      start_lr: the learning rate of the first update.
      end_lr: the learning rate from update `total_steps` on.

    Returns:
      A function from the number of past updates to the learning rate.

    Raises:
      ArgumentError: an argument is not a number, or `total_steps` is not above `warmup_steps`.

    Example:
      >>> rate = warmup_cosine(0.1, warmup_steps=10, total_steps=30)
      >>> [round(float(rate(count)), 4) for count in (0, 5, 10, 20, 30)]
      [0.0, 0.05, 0.1, 0.05, 0.0]
    """
    _check_numbers("warmup_cosine", learning_rate=learning_rate, start_lr=start_lr, end_lr=end_lr)
    _check_rises("warmup_cosine", start_lr, "learning_rate", learning_rate)
    whole_number("warmup_cosine", "warmup_steps", warmup_steps, least=0)
    whole_number("warmup_cosine", "total_steps", total_steps, least=warmup_steps + 1)

    def schedule(count: Any) -> Any:
        line = start_lr + (learning_rate - start_lr) * (count / jnp.float32(max(warmup_steps, 1)))
        part = jnp.clip((count - warmup_steps) / jnp.float32(total_steps - warmup_steps), 0, 1)
        wave = end_lr + (learning_rate - end_lr) * 0.5 * (1 + jnp.cos(math.pi * part))
        return jnp.where(count < warmup_steps, line, wave)

    return schedule


def linear_lr_warmup(learning_rate: float | Schedule, warmup_steps: int, start_lr: float, end_lr: float) -> Schedule:
    """Return a schedule that rises linearly from `start_lr` to `end_lr`, then is constant or follows another schedule.

    Args:
      learning_rate: the learning rate after the warm-up, or a schedule. The schedule is called with the number of all
        past updates, including the warm-up.
      warmup_steps: the number of updates in the warm-up.
      start_lr: the learning rate of the first update.
      end_lr: the learning rate that the line would reach after `warmup_steps` updates.

    Returns:
      A function from the number of past updates to the learning rate.

    Raises:
      ArgumentError: an argument is not a number, or `warmup_steps` is not positive.

    Example:
      >>> rate = linear_lr_warmup(cosine_decay(0.1, 10, 3), warmup_steps=4, start_lr=0.0, end_lr=0.1)
      >>> [round(float(rate(count)), 4) for count in (0, 2, 4, 10)]
      [0.0, 0.05, 0.1, 0.075]
    """
    _check_numbers("linear_lr_warmup", start_lr=start_lr, end_lr=end_lr)
    _check_rises("linear_lr_warmup", start_lr, "end_lr", end_lr)
    _check_positive("linear_lr_warmup", warmup_steps=warmup_steps)
    if not callable(learning_rate):
        _check_numbers("linear_lr_warmup", learning_rate=learning_rate)

    def schedule(count: Any) -> Any:
        line = start_lr + (end_lr - start_lr) * (count / jnp.float32(warmup_steps))
        return jnp.where(count < warmup_steps, line, learning_rate(count) if callable(learning_rate) else learning_rate)

    return schedule


def _periods(function: str, decay_steps: float, staircase: bool) -> Schedule:
    """Return a function from the number of past updates to the number of periods of `decay_steps`, float32.

    With `staircase`, only complete periods count. Then the function uses integer division, which is exact for any
    number of updates.
    """
    _check_positive(function, decay_steps=decay_steps)
    if staircase:
        return lambda count: jnp.asarray(jnp.floor_divide(count, decay_steps), jnp.float32)
    return lambda count: count / jnp.float32(decay_steps)


def _check_numbers(function: str, **numbers: Any) -> None:
    for name, value in numbers.items():
        if not _is_number(value):
            raise errors.ArgumentError(f"{function}({name}={value!r}): expected a number, as in {name}=0.1")
        if name == "learning_rate" and value < 0:
            raise errors.ArgumentError(
                f"{function}({name}={value!r}): expected a rate from 0 on, since a negative one makes the loss grow: "
                f"{name}={-value!r}"
            )


def _check_rises(function: str, start: float, name: str, end: float) -> None:
    """Warn if the start rate of a warm-up is larger than its end rate."""
    if start > end:
        doubt_setting(
            f"{function}(start_lr={start!r}, {name}={end!r}): the rate falls while it warms up; a warm-up begins with "
            f"the smaller rate: {function}(start_lr={end!r}, {name}={start!r})"
        )


def _check_positive(function: str, **numbers: Any) -> None:
    for name, value in numbers.items():
        if not is_positive(value):
            raise errors.ArgumentError(f"{function}({name}={value!r}): expected a positive number, as in {name}=10")


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
