"""Learning rate schedules as variables: each training run computes the learning rate of its update."""

import functools
from collections.abc import Callable
from typing import Any

import jax

from fluid import layers, lr
from fluid.static.layers.assign import autoincreased_step_counter
from fluid.static.tape.recording import in_a_function, recorded

# The counter that all schedules of a program share, as in Fluid.
_COUNTER = "@LR_DECAY_COUNTER@"


def _as_variable(schedule: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a function that returns a schedule to a function that returns a variable of its learning rates."""

    @functools.wraps(schedule)
    def call(*args: Any, **kwargs: Any) -> Any:
        if in_a_function():
            return schedule(*args, **kwargs)
        # The counter has Fluid's name and first number, so that a counter that PaddlePaddle saved can be loaded.
        counter = autoincreased_step_counter(_COUNTER, begin=int(schedule is lr.noam_decay), step=1)
        begin = int(counter.spec.initializer.value) + 1
        return counter.program.apply(_rate, (_Schedule(schedule, begin), counter, args, kwargs))

    return call


class _Schedule:
    """A function that creates a schedule, as a leaf among the arguments of a call.

    Args:
      make: a function of `fluid.lr`.
      begin: the value of the counter in the first run.
    """

    def __init__(self, make: Callable[..., Any], begin: int):
        self.make = make
        self.begin = begin


def _rate(schedule: _Schedule, counter: Any, args: Any, kwargs: Any) -> Any:
    """Return the learning rate `[1]` of the update whose number `counter` holds."""
    given, named = jax.tree.map(lambda v: _constant_rate(v) if isinstance(v, jax.Array) else v, (args, kwargs))
    return layers.assign(schedule.make(*given, **named)(counter.reshape(()) - schedule.begin))


def _constant_rate(value: Any) -> Callable[[Any], Any]:
    """Convert the current learning rate, which another schedule or the program computes, to a constant schedule."""
    return lambda count: value.reshape(())


def _decay_step_counter(begin: int = 0) -> Any:
    """Return a counter of the runs of a program from `begin` on, float32 `[1]`; all schedules share this counter."""
    return recorded(layers.cast)(autoincreased_step_counter(_COUNTER, begin=begin, step=1), "float32")


exponential_decay = _as_variable(lr.exponential_decay)
natural_exp_decay = _as_variable(lr.natural_exp_decay)
inverse_time_decay = _as_variable(lr.inverse_time_decay)
polynomial_decay = _as_variable(lr.polynomial_decay)
piecewise_decay = _as_variable(lr.piecewise_decay)
noam_decay = _as_variable(lr.noam_decay)
cosine_decay = _as_variable(lr.cosine_decay)
linear_lr_warmup = _as_variable(lr.linear_lr_warmup)
warmup_cosine = _as_variable(lr.warmup_cosine)
