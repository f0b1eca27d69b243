"""The tape: calls of layers as they were written down, and what variables hold while it runs."""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core.frame import Naming
from fluid.static.tape import values
from fluid.static.tape.variable import Persistent, Variable


class Environment:
    """What variables hold at one point of a run. The inside of a loop or branch has one of its own.

    Args:
      outer: the one around it.
    """

    def __init__(self, outer: "Environment | None" = None):
        self._outer = outer
        self._values: dict[Any, Any] = {}

    def __getitem__(self, variable: Variable) -> Any:
        found = self.find(variable)
        return variable.held() if found is None else found

    def __setitem__(self, variable: Any, value: Any) -> None:
        self._values[variable] = value

    def find(self, variable: Any) -> Any:
        """What a variable was given in this run, or None."""
        if variable in self._values:
            return self._values[variable]
        return None if self._outer is None else self._outer.find(variable)

    def read(self, tree: Any) -> Any:
        """A tree of arguments with values in the places of the variables, also of those that functions return."""

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Variable):
                return self[leaf]
            return _with_values(leaf) if inspect.isfunction(leaf) else leaf

        return jax.tree.map(value, tree)

    def written(self) -> list[Persistent]:
        """What outlives the run and was given a value in it."""
        return [v for v in self._values if isinstance(v, Persistent)]


_environment: ContextVar[Environment | None] = ContextVar("fluid_static_environment", default=None)


def running() -> Environment | None:
    """The environment of the run that is on, or None."""
    return _environment.get()


@contextlib.contextmanager
def inside(environment: Environment) -> Iterator[Environment]:
    """Let variables hold what they hold in an environment."""
    token = _environment.set(environment)
    try:
        yield environment
    finally:
        _environment.reset(token)


def _with_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the user that a layer calls, whose result may have variables for values."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return outer_environment(function.__name__).read(function(*args, **kwargs))

    return call


@dataclass(eq=False)
class Call:
    """One call of a layer.

    Attributes:
      function: the layer.
      args: its arguments, in which variables stand for values.
      kwargs: those by name.
      outputs: the variables that hold its results, in order.
      counters: where the automatic names that it uses stood.
      nameless: which of the outputs the layer itself gives no name.
      assigns: whether the outputs were there before, and are given another value.
      site: the user's line.
      blocks: those that it runs, for loops and branches.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: list[Variable] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    nameless: frozenset[int] = frozenset()
    assigns: bool = False
    site: str = ""
    blocks: tuple["Block", ...] = ()

    @property
    def type(self) -> str:
        """The name of the layer."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def variables(self) -> list[Variable]:
        """The variables among its arguments."""
        return [leaf for leaf in jax.tree.leaves((self.args, self.kwargs)) if isinstance(leaf, Variable)]

    def run(self, environment: Environment) -> None:
        """Call the layer inside a program function, and let the outputs hold its results."""
        frame = core.current_frame("static.Executor.run")
        frame.naming = Naming(counters=dict(self.counters))
        try:
            with core.as_fluid():
                result = self.function(*environment.read(self.args), **environment.read(self.kwargs))
        except Exception as error:
            error.add_note(f"written down at {self.site}")
            raise
        for i, (variable, value) in enumerate(zip(self.outputs, values.leaves(result), strict=True)):
            if isinstance(variable, Persistent) and not self.assigns:
                continue  # a parameter that the layer itself returns
            named = core.record(variable.name, value) if i in self.nameless else value
            environment[variable] = _kept(frame, variable, named)


class Block:
    """Calls in order: those of a program, or of the inside of a loop or branch.

    Args:
      outer: the block that it stands in; None for that of a program.
      loop: for that of a loop, what is known where it begins; see `layers.bounds`.

    Attributes:
      beam: for that of a loop in which `beam_search` stands, the variable of the search.
    """

    def __init__(self, outer: "Block | None" = None, loop: Any = None):
        self.outer = outer
        self.loop = loop
        self.beam: Any = None
        self.calls: list[Call] = []

    def open_blocks(self) -> list["Block"]:
        """Itself and those around it."""
        return [self, *(self.outer.open_blocks() if self.outer else [])]

    def assigned(self) -> list[Variable]:
        """The variables from outside that its calls give another value, in order."""
        found = [v for call in self.calls if call.assigns for v in call.outputs if v.made_in is not self]
        return list(dict.fromkeys(found))


def run_calls(
    calls: Iterable[Call], held: Mapping[Any, Any] = MappingProxyType({}), outer: Environment | None = None
) -> Environment:
    """Make calls inside a program function.

    Args:
      calls: in order.
      held: what variables hold before the first of them.
      outer: the environment around theirs.

    Returns:
      What variables hold behind the last one.
    """
    with inside(Environment(outer)) as environment:
        for variable, value in held.items():
            environment[variable] = value
        for call in calls:
            call.run(environment)
    return environment


def as_array(value: Any) -> Any:
    """A scalar as the array of one element that it is in Fluid, whose layers may count on it."""
    scalar = isinstance(value, jax.Array) and value.ndim == 0
    if not scalar:
        return value
    result = jnp.reshape(value, (1,))
    core.current_frame("static").hand_on(value, result, "weight")
    return result


def outer_environment(what: str) -> Environment:
    """The environment of the run that is on.

    Raises:
      ProgramError: there is none.
    """
    environment = running()
    if environment is None:
        raise errors.ProgramError(f"{what} runs with its program: fluid.Executor(place).run(program)")
    return environment


def _kept(frame: core.Frame, variable: Variable, value: Any) -> Any:
    """What a variable holds of a result: without its gradient, if the user says so."""
    if not values.is_value(value):
        return value
    result = as_array(value)
    if not variable.stop_gradient or variable.persistable or frame.fact(value, "feed"):
        return result
    stopped = jax.lax.stop_gradient(result)
    frame.hand_on(result, stopped, "logits", "logits_axis", "weight")
    return stopped
