"""Optimizers and parameter averages for recorded programs; a learning rate is a number, schedule or variable."""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import jax

from fluid import errors, optimizer
from fluid.optimizer.averages import Average
from fluid.optimizer.optax_chain import replaced
from fluid.static import unique_name
from fluid.static.backward import Gradient, append_backward, excluded_parameters, pairs_of
from fluid.static.scope import global_scope
from fluid.static.tape.calls import minimized
from fluid.static.tape.program import Program, default_main_program, in_a_function
from fluid.static.tape.variable import Variable

__all__ = optimizer.__all__  # noqa: PLE0605


class LearningRate(Variable):
    """The variable of a learning rate given as a number; `Executor.run` can fetch it, but no layer can read it.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     optimizer = fluid.optimizer.SGD(0.1)
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     minimised = optimizer.minimize(loss)
      ...     optimizer._global_learning_rate()
      Variable(learning_rate_0: float32[1])
    """

    def __init__(self, program: Program, name: str):
        struct = jax.ShapeDtypeStruct((1,), "float32")
        super().__init__(program, name, (struct, struct))

    def held(self) -> Any:
        """Raise a ProgramError, because layers cannot read a LearningRate."""
        raise self._refused("no layer can read it")

    def check_assignable(self) -> None:
        """Raise a ProgramError, because layers cannot assign a LearningRate."""
        raise self._refused("no layer can assign it")

    def _refused(self, what: str) -> errors.ProgramError:
        return errors.ProgramError(
            f"{self.name!r} is the number of an optimizer, which can be fetched, and set: fluid.global_scope()."
            f"find_var({self.name!r}).get_tensor().set(...); {what}. For layers give the optimizer a variable: "
            f"rate = layers.create_global_var([1], 0.1, 'float32', persistable=True); SGD(learning_rate=rate)"
        )


class Recorded:
    """A mixin for optimizers of `fluid.optimizer`: their `minimize` is recorded into a program, which runs later.

    Attributes:
      rate: the variable of the learning rate, if layers compute the learning rate; else None.
      rates: if the learning rate is a number, a dict from each program to its variable of the learning rate.
    """

    rate: Variable | None
    rates: dict[Program, LearningRate]

    def __init__(self, *args: Any, **kwargs: Any):
        rate = kwargs.get("learning_rate", args[0] if args else None)
        computed = isinstance(rate, Variable)
        if computed and "learning_rate" in kwargs:
            kwargs["learning_rate"] = 1.0
        elif computed:
            args = (1.0, *args[1:])
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "rate", rate if computed else None)
        object.__setattr__(self, "rates", {})

    def minimize(
        self,
        loss: Any,
        startup_program: Any = None,
        parameter_list: Sequence[Any] | None = None,
        no_grad_set: Sequence[Any] | None = None,
        grad_clip: Any = None,
    ) -> tuple[list[Any], list[tuple[Any, Any]]]:
        """Record that this optimizer minimises a loss.

        Args:
          startup_program: accepted for programs written for Fluid, but has no effect: the current startup program
            creates the optimizer state.
          parameter_list: variables or names of the parameters to change; by default all trainable parameters. The
            statistics of batch_norm, which `program.all_parameters()` contains too, stay unchanged.
        """
        chosen = self if grad_clip is None else replaced(self, grad_clip=grad_clip)
        if in_a_function():
            optimizer.Minimizer.minimize(chosen, loss, parameter_list, no_grad_set)  # type: ignore[arg-type]
            return [], []
        program = loss.program
        if program.clip is not None and getattr(chosen, "grad_clip", None) is None:
            chosen = replaced(chosen, grad_clip=program.clip)
        names = None if parameter_list is None else _without_states(program, _names(parameter_list))
        excluded = tuple(excluded_parameters("minimize", program, no_grad_set))
        position = sum(call.function is minimized for call in program.ops)
        program.apply(minimized, (chosen, loss, names, excluded, _rate_of(self)))
        if _rate_of(self) is None:
            self._add_rate(program, position)
        return [], pairs_of(loss, names, excluded)

    def _add_rate(self, program: Program, position: int) -> None:
        """Add the variable of the learning rate to a program; `position` is the index of the recorded `minimize` call.

        Several `minimize` calls of one optimizer in a program share one variable.
        """
        if program not in self.rates:
            self.rates[program] = LearningRate(program, unique_name.generate("learning_rate"))
        variable = self.rates[program]
        program.variables[variable.name] = variable
        program.rates[variable.name] = (*program.rates.get(variable.name, ()), position)

    def _global_learning_rate(self, program: Program | None = None) -> Variable | None:
        return self.rates.get(program or default_main_program()) if self.rate is None else self.rate

    def backward(
        self,
        loss: Variable,
        startup_program: Any = None,
        parameter_list: Sequence[Any] | None = None,
        no_grad_set: Sequence[Any] | None = None,
        callbacks: Any = None,
    ) -> list[tuple[Variable, Gradient]]:
        """Return a list of pairs `(parameter, gradient)` for `apply_gradients`; the first half of `minimize`."""
        del startup_program
        return append_backward(loss, parameter_list, no_grad_set, callbacks)

    def apply_gradients(self, params_grads: Sequence[tuple[Variable, Gradient]]) -> list[Any]:
        """Record the update of the parameters in `params_grads` by their gradients; the second half of `minimize`.

        Raises:
          ProgramError: `params_grads` is empty, or contains a gradient that `backward` did not return.
        """
        if not params_grads or any(not isinstance(g, Gradient) or g.of is not p for p, g in params_grads):
            raise errors.ProgramError(
                "apply_gradients takes the pairs that optimizer.backward(loss) returned, all or some of them; to clip "
                "gradients use fluid.clip.set_gradient_clip(...), to decay parameters regularization="
            )
        self.minimize(params_grads[0][1].loss, parameter_list=[parameter for parameter, _ in params_grads])
        return []


class RecordedAverage:
    """A mixin that lets parameter averages, such as ExponentialMovingAverage, work in recorded programs."""

    def update(self) -> None:
        """Start to average the parameters that optimizers update in the default main program."""
        if in_a_function():
            Average.update(self)  # type: ignore[arg-type]
        else:
            default_main_program().replace_optimizers(lambda found: Average.track(self, found))  # type: ignore[arg-type]

    def apply(self, executor: Any, need_restore: bool = True) -> contextlib.AbstractContextManager[None]:
        """Return a context manager that replaces the parameters of the global scope by their averages."""
        return Average.apply(self, _session_of(executor), need_restore)  # type: ignore[arg-type]

    def restore(self, executor: Any) -> None:
        """Restore the parameters that `apply(executor, need_restore=False)` replaced."""
        Average.restore(self, _session_of(executor))  # type: ignore[arg-type]


class RecordedModelAverage(RecordedAverage):
    """A mixin for ModelAverage in recorded programs: creating a ModelAverage also starts the averaging."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        if not in_a_function():
            self.update()


def _session_of(executor: Any) -> Any:
    return global_scope().session if hasattr(executor, "place") and hasattr(executor, "close") else executor


def _rate_of(found: Any) -> Variable | None:
    inner = getattr(found, "inner_optimizer", None)
    return getattr(found, "rate", None) if inner is None else _rate_of(inner)


def _names(items: Sequence[Any]) -> tuple[str, ...]:
    return tuple(item if isinstance(item, str) else item.name for item in items)


def _without_states(program: Program, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in program.arrays or program.arrays[name].trainable is not None)


@functools.cache
def _recorded(name: str) -> Any:
    base = getattr(optimizer, name)
    if not isinstance(base, type) or base is optimizer.Minimizer:
        return base
    added: type = Recorded if issubclass(base, optimizer.Minimizer) else RecordedAverage
    if base is optimizer.ModelAverage:
        added = RecordedModelAverage
    return type(base.__name__, (added, base), {"__doc__": base.__doc__, "__module__": __name__})


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return _recorded(name)
