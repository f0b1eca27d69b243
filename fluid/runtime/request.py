"""Request: a description of one compiled step (mode, results, feeds), and the lookup of requested values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fluid import errors
from fluid.core import TEST, TRAIN, Applied, Program, data_of
from fluid.core.equation_values import with_equation_values
from fluid.runtime.fetch import GRAD, GRAD_NORM, LOSS_SCALE, RATE, UPDATE_RATIO, is_inner


@dataclass(frozen=True)
class Request:
    """A description of one compiled step: its mode, results and feeds. Equal requests share a compilation.

    Attributes:
      mode: "train" or "test".
      fetch: names of the values to return, or None for the outputs of the program.
      feeds: names of the feeds that are given.
      overrides: names of the values that arrays from the user replace.
      parts: True also returns the contribution of this minibatch to the value of each output over several minibatches,
        such as a value and its weight; see `Applied.parts`. In a test, the contributions replace the outputs.
      also: names of further values to return, separate from `fetch`.
      updates: False for a train-mode run that changes no arrays.
    """

    mode: str
    fetch: tuple[str, ...] | None
    feeds: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    parts: bool = False
    also: tuple[str, ...] = ()
    updates: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all values that a step returns for this request."""
        return (*(self.fetch or ()), *self.also)

    @property
    def trains(self) -> bool:
        """True if the step changes parameters and states."""
        return self.mode == TRAIN and self.updates


def checked_mode(mode: str) -> str:
    """Check that `mode` is "train" or "test", and return it unchanged.

    Raises:
      ArgumentError: `mode` is neither "train" nor "test".
    """
    if mode not in (TRAIN, TEST):
        raise errors.ArgumentError(f'mode={mode!r}: expected "train" or "test"')
    return mode


class Found(NamedTuple):
    """The values that a Request names, computed by the step of the Request.

    Attributes:
      fetched: the values that `Request.fetch` names.
      also: the values that `Request.also` names.
      parts: with `Request.parts`, the contribution of this minibatch to the value of each output over several
        minibatches.
    """

    fetched: tuple[Any, ...]
    also: tuple[Any, ...]
    parts: tuple[Any, ...]


class RequestedValues:
    """The names in a Request, grouped by the kind of their values, and the lookup of these values after a step.

    Attributes:
      gradients: names of the values whose gradient is requested; aliases are replaced by the recorded names.
      inner: names of the requested values inside loops and branches, see `Program.equation_values`.
      of_rules: the requested values of update rules, each as a pair: its kind, such as "grad_norm", and the index of
        its `minimize` call.
    """

    def __init__(self, program: Program, request: Request, rules: int):
        names = request.names
        kinds = (RATE, GRAD_NORM, UPDATE_RATIO, LOSS_SCALE)
        of_rules = {f"{kind}_{i}": (kind, i) for kind in kinds for i in range(rules)}
        self._program = program
        self._request = request
        self._outputs = program.output_names or ()
        self.inner = [self.recorded(name) for name in names if is_inner(program, name)]
        self.gradients = [self.recorded(name.removesuffix(GRAD)) for name in names if name.endswith(GRAD)]
        self.of_rules = frozenset(of_rules[name] for name in names if name in of_rules)

    @property
    def names(self) -> list[str]:
        """The names of the values to fetch; an alias (additional name) is replaced by the name in the program."""
        return [self.recorded(name) for name in self._request.names]

    def recorded(self, name: str) -> str:
        """Return the name under which the program records a value: the target of an alias, or the name itself."""
        return self._program.aliases.get(name, self.inside(name))

    def inside(self, name: str) -> str:
        """Return the recorded name of a value inside a loop or branch; else return `name`."""
        return self._program.equation_values[name].name if is_inner(self._program, name) else name

    def last_needed(self) -> frozenset[str] | None:
        """Return the names of the values after which the program function may stop; None to run it to its end.

        If every feed is given, as in training and tests, the function runs to its end, so that effects such as
        `layers.Print` happen.
        """
        request, program = self._request, self._program
        if request.mode != TEST or request.parts or request.fetch is None or self.gradients or self.inner:
            return None
        if all(name in request.feeds for name in program.feeds):
            return None
        outputs = program.returned
        names = {outputs.get(n) if n in self._outputs else self.recorded(n) for n in request.names}
        known = {*program.feeds, *program.parameters, *program.states}
        return None if None in names else frozenset(name for name in names if name) - known

    def check_custom_step(self) -> None:
        """Raise an error if the request (the list of values to fetch) names a gradient of a custom step.

        In a custom step, only the user's step function computes gradients.

        Raises:
          UnknownNameError: a gradient, or the norm of one, is requested.
        """
        for name in self._request.names:
            if name.endswith(GRAD) or name.startswith(f"{GRAD_NORM}_"):
                raise errors.UnknownNameError(
                    f"{name!r} cannot be fetched from a training step with step=, which may compute several gradients, "
                    f"or none; fetch it in test mode, or return it among the outputs: "
                    f"dataclasses.replace(here, outputs=[...])"
                )

    def found(self, outputs: Any, parts: Any, values: Mapping[str, Any], gradients_of: Callable[[int], Any]) -> Found:
        """Select the requested values from all values of a step."""
        program, request = self._program, self._request
        named = {} if outputs else {n: values[program.returned[n]] for n in request.names if n in self._outputs}
        # If an output and another value (or an alias) have the same name, the name stands for the output.
        known = {**values, **named, **dict(zip(self._outputs, outputs, strict=False))}

        def value(name: str) -> Any:
            if name.endswith(GRAD):
                return self._gradient(self.recorded(name.removesuffix(GRAD)), gradients_of, values)
            return known[name if name in known else self.recorded(name)]

        all_outputs = () if request.parts and request.mode == TEST else tuple(outputs)
        fetched = all_outputs if request.fetch is None else tuple(map(value, request.fetch))
        return Found(fetched, tuple(map(value, request.also)), tuple(parts) if request.parts else ())

    def _gradient(self, name: str, gradients_of: Callable[[int], Any], values: Mapping[str, Any]) -> Any:
        """Return the gradient of a loss with respect to the value that the program records as `name`.

        If the value is a parameter, the loss is the loss of the first `minimize` call that trains this parameter.
        Otherwise it is the first loss of the program.
        """
        mine = [i for i, m in enumerate(self._program.minimizes) if name in m.parameters]
        found = gradients_of(mine[0] if mine else 0)
        if name in found.arrays:
            return found.arrays[name]
        gradient = found.perturbations[name]
        is_array = gradient is data_of(gradient)
        # The gradient of a sequence batch has no lengths. So the result gets the lengths of the differentiated value.
        return gradient if is_array else values[name].with_data(gradient.data)


def with_inner(apply: Callable[[Any], Applied], variables: Any, program: Program, names: Sequence[str]) -> Applied:
    """Run a program, and add to its named values some values inside loops and branches.

    Raises:
      UnknownNameError: the program does not compute a value in the mode of this run.
    """
    applied, values = with_equation_values(apply, variables, names)
    if absent := [name for name in names if name not in values]:
        raise errors.UnknownNameError(
            f"{absent[0]!r} is a value of the program {program.name} in train mode, and a run in test mode does not "
            f'compute it; write mode="train"'
        )
    return replace(applied, values={**applied.values, **values})
