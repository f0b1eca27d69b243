"""The tape: recorded calls of layers, and the values of variables while the calls run.

A `Call` holds a layer, its arguments with variables in place of values, its output variables, and the counters of
automatic names. A recorded program is a list of calls, and is a program function: it runs the calls again. During a run
an `Environment` holds the value of each variable, and an assignment replaces the value there. A `Block` is a list of
calls, too: `While` is one call of `layers.while_loop` over the variables that its block assigns.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core.frame import Naming
from fluid.static.tape import values
from fluid.static.tape.variable import Persistent, Variable


class Environment:
    """The values of variables at one point of a run. Each loop or branch has its own Environment.

    Args:
      outer: the environment around this one.
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
        """Return the value of a variable in this run, or None if neither this nor an outer environment has one."""
        if variable in self._values:
            return self._values[variable]
        return None if self._outer is None else self._outer.find(variable)

    def read(self, tree: Any) -> Any:
        """Replace the variables in a tree of arguments by their values.

        A function in the tree is wrapped, so that the variables in its results are replaced, too.
        """

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Variable):
                return self[leaf]
            return _with_values(leaf) if inspect.isfunction(leaf) else leaf

        return jax.tree.map(value, tree)

    def written(self) -> list[Persistent]:
        """Return the variables that are kept between runs and were assigned in this run."""
        return [v for v in self._values if isinstance(v, Persistent)]


_environment: ContextVar[Environment | None] = ContextVar("fluid_static_environment", default=None)


def running() -> Environment | None:
    """Return the environment of the current run, or None if no recorded program runs."""
    return _environment.get()


@contextlib.contextmanager
def inside(environment: Environment) -> Iterator[Environment]:
    """Make an environment the current environment within a `with` block."""
    token = _environment.set(environment)
    try:
        yield environment
    finally:
        _environment.reset(token)


def _with_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a user's function that a layer calls, so that variables in its result become values."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return outer_environment(function.__name__).read(function(*args, **kwargs))

    return call


@dataclass(eq=False)
class Call:
    """A recorded call of a layer.

    Attributes:
      function: the layer.
      args: its positional arguments, with variables in place of values.
      kwargs: its keyword arguments.
      outputs: the variables of its results, in order.
      counters: the counters of automatic names before the call.
      prefix: the beginning of the automatic names that the call creates.
      nameless: indices of the outputs that the layer itself does not name.
      assigns: True if the outputs existed before, and the call assigns them.
      site: the file and line of the user's call, for messages.
      blocks: the blocks that the call runs, for loops and branches.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    outputs: list[Variable] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    prefix: str = ""
    nameless: frozenset[int] = frozenset()
    assigns: bool = False
    site: str = ""
    blocks: tuple["Block", ...] = ()

    def on_single_steps(self) -> "Call":
        """Return a copy of the call whose layer receives rows in place of sequences of one step."""
        function = self.function

        @functools.wraps(function)
        def on_rows(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = values.single_steps((args, kwargs))
            return function(*args, **kwargs)

        return replace(self, function=on_rows)

    def on_known_sizes(self) -> "Call":
        """Return a copy of the call that replaces unknown inner sizes of arrays by the sizes of other arrays.

        Sizes are replaced only while shapes are evaluated without data; in a run all sizes are known.
        """
        function = self.function

        @functools.wraps(function)
        def on_arrays(*args: Any, **kwargs: Any) -> Any:
            unknown = core.current_frame(function.__name__).placeholder_batch
            if unknown is not None:
                args, kwargs = values.with_known_sizes((args, kwargs), unknown)
            return function(*args, **kwargs)

        return replace(self, function=on_arrays)

    @property
    def type(self) -> str:
        """Return the name of the layer."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def variables(self) -> list[Variable]:
        """Return the variables among the arguments."""
        return [leaf for leaf in jax.tree.leaves((self.args, self.kwargs)) if isinstance(leaf, Variable)]

    @property
    def sees_all(self) -> bool:
        """Return whether the call may read every variable: it runs blocks or functions of the user."""
        return bool(self.blocks) or any(callable(leaf) for leaf in jax.tree.leaves((self.args, self.kwargs)))

    def run(self, environment: Environment) -> None:
        """Call the layer inside a program function, and store its results in the outputs."""
        frame = core.current_frame("static.Executor.run")
        frame.naming = Naming(counters=dict(self.counters), prefix=self.prefix)
        around, frame.site = frame.site, self.site
        try:
            with core.as_fluid():
                result = self.function(*environment.read(self.args), **environment.read(self.kwargs))
        except Exception as error:
            error.add_note(f"written down at {self.site}")
            raise
        finally:
            frame.site = around
        for i, (variable, value) in enumerate(zip(self.outputs, values.leaves(result), strict=True)):
            if isinstance(variable, Persistent) and not self.assigns:
                continue  # the layer returned a parameter itself: it is not assigned
            named = core.record(variable.name, value) if i in self.nameless else value
            environment[variable] = _kept(frame, variable, named)


class Block:
    """Recorded calls in order: the calls of a program, or of the body of a loop or branch.

    Args:
      outer: the surrounding block; None for the block of a program.
      loop: for the block of a loop, the facts known at its start; see `layers.bounds`.

    Attributes:
      beam: for the block of a loop with a `beam_search`, the variable of the search.
    """

    def __init__(self, outer: "Block | None" = None, loop: Any = None):
        self.outer = outer
        self.loop = loop
        self.beam: Any = None
        self.calls: list[Call] = []

    def open_blocks(self) -> list["Block"]:
        """Return this block and all surrounding blocks."""
        return [self, *(self.outer.open_blocks() if self.outer else [])]

    def assigned(self) -> list[Variable]:
        """Return the variables from outside that the calls of this block assign, in order."""
        found = [v for call in self.calls if call.assigns for v in call.outputs if v.made_in is not self]
        return list(dict.fromkeys(found))


def run_calls(
    calls: Iterable[Call], held: Mapping[Any, Any] = MappingProxyType({}), outer: Environment | None = None
) -> Environment:
    """Run calls inside a program function.

    Args:
      calls: the calls, in order.
      held: the values of variables before the first call.
      outer: the surrounding environment.

    Returns:
      The values of variables after the last call.
    """
    with inside(Environment(outer)) as environment:
        for variable, value in held.items():
            environment[variable] = value
        for call in calls:
            call.run(environment)
    return environment


def as_array(value: Any) -> Any:
    """Reshape a scalar to `[1]`, as in Fluid, because later layers may rely on this shape; keep other values."""
    scalar = isinstance(value, jax.Array) and value.ndim == 0
    if not scalar:
        return value
    result = jnp.reshape(value, (1,))
    core.current_frame("static").hand_on(value, result, "weight")
    return result


def outer_environment(what: str) -> Environment:
    """Return the environment of the current run.

    Raises:
      ProgramError: no program is running.
    """
    environment = running()
    if environment is None:
        raise errors.ProgramError(f"{what} runs with its program: fluid.Executor(place).run(program)")
    return environment


def _kept(frame: core.Frame, variable: Variable, value: Any) -> Any:
    """Return the value to store in a variable: a scalar becomes `[1]`, and `stop_gradient` stops its gradient.

    The gradients of feeds and of persistable variables are not stopped.
    """
    if not values.is_value(value):
        return value
    result = as_array(value)
    if not variable.stop_gradient or variable.persistable or frame.fact(value, "feed"):
        return result
    stopped = jax.lax.stop_gradient(result)
    frame.hand_on(result, stopped, "logits", "logits_axis", "weight")
    return stopped
