"""Optimizers whose `minimize` is written down, with the learning rate a number, a schedule, or a variable."""

import functools
from collections.abc import Sequence
from typing import Any

from fluid import optimizer
from fluid.optimizer.parts import replaced
from fluid.static.backward import pairs_of
from fluid.static.tape.program import minimized
from fluid.static.tape.recording import in_a_function
from fluid.static.tape.variable import Variable

__all__ = optimizer.__all__  # noqa: PLE0605


class Recorded:
    """What the optimizers of this module add to those of `fluid.optimizer`."""

    def __init__(self, *args: Any, **kwargs: Any):
        rate = kwargs.get("learning_rate", args[0] if args else None)
        computed = isinstance(rate, Variable)
        if computed and "learning_rate" in kwargs:
            kwargs["learning_rate"] = 1.0
        elif computed:
            args = (1.0, *args[1:])
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "rate", rate if computed else None)

    def minimize(
        self,
        loss: Any,
        startup_program: Any = None,
        parameter_list: Sequence[Any] | None = None,
        no_grad_set: Sequence[Any] | None = None,
        grad_clip: Any = None,
    ) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Write down that this optimizer minimises a loss.

        Args:
          loss: a variable of one float.
          startup_program: accepted for programs written for Fluid, but has no effect: the startup program in force
            creates the optimizer's slots.
          parameter_list: variables or names of the parameters to change; by default all that are trainable.
          no_grad_set: variables or names of parameters that stay as they are.
          grad_clip: a clip of `fluid.clip` for the gradients of all parameters.

        Returns:
          No operators, and the pairs of each parameter and its gradient.
        """
        chosen = self if grad_clip is None else replaced(self, grad_clip=grad_clip)
        if in_a_function():
            optimizer.Minimizer.minimize(chosen, loss, parameter_list, no_grad_set)  # type: ignore[arg-type]
            return [], []
        program = loss.program
        if program.clip is not None and getattr(chosen, "grad_clip", None) is None:
            chosen = replaced(chosen, grad_clip=program.clip)
        names = None if parameter_list is None else _names(parameter_list)
        excluded = _names(no_grad_set or ())
        program.apply(minimized, (chosen, loss, names, excluded, getattr(self, "rate", None)))
        return [], pairs_of(program, parameter_list, excluded)


def _names(items: Sequence[Any]) -> tuple[str, ...]:
    return tuple(item if isinstance(item, str) else item.name for item in items)


@functools.cache
def _recorded(name: str) -> Any:
    base = getattr(optimizer, name)
    if not isinstance(base, type) or not issubclass(base, optimizer.Minimizer) or base is optimizer.Minimizer:
        return base
    return type(base.__name__, (Recorded, base), {"__doc__": base.__doc__, "__module__": __name__})


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return _recorded(name)
