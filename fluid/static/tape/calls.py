"""The tape: recorded calls of layers, and the values of variables while the calls run.

A `Call` holds a layer, its arguments with variables in place of values, its output variables, and the counters of
automatic names. A recorded program is a list of calls, which it can run again. During a run an `Environment` holds the
value of each variable, and an assignment replaces the value in the Environment. A `Block`, for example the body of a
loop, is a list of calls, too: `While` is one call of `layers.while_loop` over the variables that the body assigns.

When a call is recorded, `jax.eval_shape` runs it at two trial batch sizes, so shapes and errors are known at once. A
`Tape` is a function that runs the calls recorded so far. Calls that assign parameters after an optimizer has
updated them, such as a weight decay written as layers, run after the update.
"""

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core.frame import Declared, Naming
from fluid.core.rows import BATCHES
from fluid.static import unique_name
from fluid.static.tape.variable import Persistent, Variable, is_leaf, is_value, leaves, single_steps, with_known_sizes


class Environment:
    """The current values of variables while a program runs. Each loop or branch body has a separate Environment."""

    def __init__(self, outer: "Environment | None" = None):
        self._outer = outer
        self._values: dict[Any, Any] = {}

    def __getitem__(self, variable: Variable) -> Any:
        found = self.find(variable)
        return variable.held() if found is None else found

    def __setitem__(self, variable: Any, value: Any) -> None:
        self._values[variable] = value

    def find(self, variable: Any) -> Any:
        """Return the current value of a variable in this block or a surrounding block; None if it has no value."""
        if variable in self._values:
            return self._values[variable]
        return None if self._outer is None else self._outer.find(variable)

    def read(self, tree: Any) -> Any:
        """Replace the variables in a pytree of arguments by their values.

        Functions in the tree are wrapped: the variables in their results are replaced, too.
        """

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Variable):
                return self[leaf]
            return _with_values(leaf) if inspect.isfunction(leaf) else leaf

        return jax.tree.map(value, tree)

    def written(self) -> list[Persistent]:
        """Return the persistable variables, such as parameters and counters, that this run has assigned."""
        return [v for v in self._values if isinstance(v, Persistent)]


_environment: ContextVar[Environment | None] = ContextVar("fluid_static_environment", default=None)


def running() -> Environment | None:
    """Return the current Environment (values of variables); None if no recorded program runs."""
    return _environment.get()


@contextlib.contextmanager
def inside(environment: Environment) -> Iterator[Environment]:
    """Make `environment` the current Environment (values of variables) within a `with` block."""
    token = _environment.set(environment)
    try:
        yield environment
    finally:
        _environment.reset(token)


def _with_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a user's function that a layer calls: replace the variables in the function's result by their values."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return outer_environment(function.__name__).read(function(*args, **kwargs))

    return call


@dataclass(eq=False)
class Call:
    """A recorded call of a layer, which a program can run again.

    Attributes:
      function: the layer.
      args: the positional arguments, with variables in place of values.
      kwargs: the keyword arguments, with variables in place of values.
      outputs: the variables of the results, in order.
      counters: the counters of automatic names before the call.
      prefix: the prefix of the automatic names that the call creates.
      nameless: indices of the outputs that the layer does not name.
      assigns: True if the call assigns its results to variables that existed before.
      site: the file and line of the user's call, for error messages.
      blocks: the blocks that the call runs, if the call is a loop or branch.
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
        """Return a copy of the call whose layer gets dense arrays in place of batches of sequences.

        Each sequence must have one time step, which becomes a row of the dense array."""
        function = self.function

        @functools.wraps(function)
        def on_rows(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = single_steps((args, kwargs))
            return function(*args, **kwargs)

        return replace(self, function=on_rows)

    def on_known_sizes(self) -> "Call":
        """Return a copy of the call that replaces unknown sizes of its array arguments by sizes of other arguments.

        The first size of a shape is not replaced. The copy replaces sizes only while shapes are evaluated without data;
        in a run all sizes are known.
        """
        function = self.function

        @functools.wraps(function)
        def on_arrays(*args: Any, **kwargs: Any) -> Any:
            unknown = core.current_frame(function.__name__).placeholder_batch
            if unknown is not None:
                args, kwargs = with_known_sizes((args, kwargs), unknown)
            return function(*args, **kwargs)

        return replace(self, function=on_arrays)

    @property
    def type(self) -> str:
        """Return the name of the call's layer, for example "fc"."""
        return getattr(self.function, "__name__", type(self.function).__name__)

    def variables(self) -> list[Variable]:
        """Return the variables among the arguments of the call."""
        return [leaf for leaf in jax.tree.leaves((self.args, self.kwargs)) if isinstance(leaf, Variable)]

    @property
    def sees_all(self) -> bool:
        """Return whether this recorded call runs a loop, a branch or a user's function, which may read any variable."""
        return bool(self.blocks) or any(callable(leaf) for leaf in jax.tree.leaves((self.args, self.kwargs)))

    def run(self, environment: Environment) -> None:
        """Run the layer of this recorded call on values of variables in `environment`; store the results there too."""
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
        for i, (variable, value) in enumerate(zip(self.outputs, leaves(result), strict=True)):
            if isinstance(variable, Persistent) and not self.assigns:
                continue  # The layer returned a parameter and assigned nothing to it: store nothing.
            named = core.record(variable.name, value) if i in self.nameless else value
            environment[variable] = _kept(frame, variable, named)


class Block:
    """An ordered list of recorded calls: the calls of a program, or of the body of a loop or branch.

    Attributes:
      beam: for the block of a loop with a `beam_search`, the BeamVariable of the search; else None.
    """

    def __init__(self, outer: "Block | None" = None, loop: Any = None):
        self.outer = outer
        self.loop = loop
        self.beam: Any = None
        self.calls: list[Call] = []

    def open_blocks(self) -> list["Block"]:
        """Return a list of this block and all surrounding blocks, the innermost first."""
        return [self, *(self.outer.open_blocks() if self.outer else [])]

    def assigned(self) -> list[Variable]:
        """Return the variables of surrounding blocks that the calls of this block assign, in order of assignment."""
        found = [v for call in self.calls if call.assigns for v in call.outputs if v.made_in is not self]
        return list(dict.fromkeys(found))


def run_calls(
    calls: Iterable[Call], held: Mapping[Any, Any] = MappingProxyType({}), outer: Environment | None = None
) -> Environment:
    """Run recorded calls while a program runs."""
    with inside(Environment(outer)) as environment:
        for variable, value in held.items():
            environment[variable] = value
        for call in calls:
            call.run(environment)
    return environment


def as_array(value: Any) -> Any:
    """Reshape a scalar to `[1]`, the shape that scalars have in PaddlePaddle; return any other value unchanged."""
    scalar = isinstance(value, jax.Array) and value.ndim == 0
    if not scalar:
        return value
    result = jnp.reshape(value, (1,))
    core.current_frame("static").hand_on(value, result, "weight")
    return result


def outer_environment(what: str) -> Environment:
    """Return the current Environment (values of variables); the error message begins with `what`, the caller's name.

    Raises:
      ProgramError: no recorded program is running.
    """
    environment = running()
    if environment is None:
        raise errors.ProgramError(f"{what} runs with its program: fluid.Executor(place).run(program)")
    return environment


def _kept(frame: core.Frame, variable: Variable, value: Any) -> Any:
    """Return the value to store for `variable`: reshape a scalar to `[1]`; stop gradients if `variable.stop_gradient`.

    Gradients of feeds and persistable variables are never stopped.
    """
    if not is_value(value):
        return value
    result = as_array(value)
    if not variable.stop_gradient or variable.persistable or frame.fact(value, "feed"):
        return result
    stopped = jax.lax.stop_gradient(result)
    frame.hand_on(result, stopped, "logits", "logits_axis", "weight")
    return stopped


class Tape:
    """A function that runs a copy of the calls that a Program has recorded so far."""

    def __init__(self, program: Any, calls: list[Call], variables: list[Variable]):
        self._program = program
        self._calls = calls
        self._variables = variables

    def __call__(self) -> dict[str, Any]:
        """Run the recorded calls; return the final values of the variables by name, with the loss (if any) first."""
        environment = self.run()
        first = self._program.first
        order = [*([first] if first is not None else []), *self._variables]
        found = {v.name: environment.find(v) for v in (*order, *environment.written())}
        results = {n: v for n, v in found.items() if v is not None and is_value(v)}
        return results or {"nothing": jnp.zeros([1])}

    def run(self) -> Environment:
        """Run the recorded layer calls, and store the states of the program that these calls assign."""
        for variable in self._program.list_vars():
            variable.check()
        environment = run_calls(self._calls)
        for variable in environment.written():
            if not variable.is_parameter:
                variable.held()  # Declares the variable as a state, even if no call reads it.
                core.set_state(variable.name, environment[variable])
        return environment


def minimized(optimizer: Any, loss: Any, parameters: Any, excluded: Any, rate: Any) -> None:
    """Call `minimize` of an optimizer while a program runs.

    Args:
      loss: the loss, `[1]`.
      rate: the learning rate `[1]`, if the program computes one; None for the learning rate of the optimizer.
    """
    optimizer.minimize(loss, parameter_list=parameters, no_grad_set=excluded)
    if rate is not None:
        made = core.current_frame("optimizer.minimize").made.minimizations
        made[-1] = made[-1]._replace(rate=jnp.reshape(rate, ()))


def changes(call: Call, name: str) -> bool:
    """Return whether `call`, a recorded `minimize` of an optimizer, changes the parameter `name`."""
    names, excluded = call.args[2:4]
    return (names is None or name in names) and name not in excluded


class Trial:
    """A trial of a recorded call: its result shapes, evaluated without data at a trial batch size.

    Args:
      shared: the functions with shared parameters (see `fluid.shared`) that the program has called, by name; the trial
        adds the shared functions that the call uses.

    Attributes:
      structs: the shape and dtype of each result.
      names: for each result, the name that the call gives it; None for a result without a name.
      tree: the JAX pytree structure of the results.
      lengths: for each result, the variable in `given` whose sequences are as long as the sequences in the result; None
        if there is no such variable.
      naming: the counters of automatic names after the call.
      feeds: the feeds that the call declares.
      arrays: the declarations of parameters and states by the program and the call.
    """

    def __init__(
        self,
        call: Call,
        given: Sequence[Variable],
        arrays: Mapping[str, core.ParameterSpec],
        shared: dict[str, core.SharedFunction],
        batch: int,
    ):
        frame = core.Frame(
            placeholder_batch=batch,
            as_fluid=True,
            plain=True,  # JAX traces fewer operations without platform-specific kernels, to the same shapes.
            declared=Declared(arrays=dict(arrays), shared=shared),
            naming=Naming(counters=dict(unique_name.counters()), prefix=unique_name.prefix()),
        )
        self.feeds = frame.declared.feeds
        self.arrays = frame.declared.arrays
        self.names: list[str | None] = []
        self.tree: Any = None
        self.lengths: list[Variable | None] = []
        number = BATCHES.index(batch)

        def trace(held: list[Any]) -> list[Any]:
            frame.given.key = jax.random.key(0)
            environment = Environment()
            for variable, value in zip(given, held, strict=True):
                environment[variable] = value
            with core.running(frame), inside(environment):
                result = call.function(*environment.read(call.args), **environment.read(call.kwargs))
                found = leaves(result)
                self.tree = jax.tree.structure(result, is_leaf=is_leaf)
                self.names = [_name_of(frame, value) for value in found]
                self.lengths = [_same_lengths(value, given, held) for value in found]
                return [as_array(value) for value in found]

        self.structs = jax.eval_shape(trace, [variable.structs[number] for variable in given])
        self.naming = frame.naming


def _name_of(frame: core.Frame, value: Any) -> str | None:
    found = [name for name, recorded in frame.made.values.items() if recorded is value]
    return found[-1] if found else frame.fact(value, "feed") or frame.fact(value, "parameter")


def _same_lengths(value: Any, given: Sequence[Variable], held: Sequence[Any]) -> Variable | None:
    """Return the variable in `given` whose sequences are as long as the sequences in `value`; None if there is none.

    `held[i]` is the value of the variable `given[i]`."""
    if not isinstance(value, core.SequenceBatch):
        return None
    pairs = zip(given, held, strict=True)
    return next((v for v, h in pairs if isinstance(h, core.SequenceBatch) and h.lengths is value.lengths), None)


def assignments_after_updates(calls: Sequence[Call]) -> list[Call]:
    """Return the recorded calls that assign parameters after the last `minimize`; empty if there is no `minimize`."""
    last = max((i for i, call in enumerate(calls) if call.function is minimized), default=len(calls))
    return [call for call in calls[last + 1 :] if call.assigns and any(map(_is_parameter, call.outputs))]


class Later:
    """The recorded layer calls that run after each training step, because they need the updated parameters.

    Attributes:
      read: names of the values that these calls need from the training step.
    """

    def __init__(self, calls: Sequence[Call]):
        last = max(i for i, call in enumerate(calls) if call.function is minimized)
        assigning = assignments_after_updates(calls)
        updated: set[Variable] = set()
        self._calls: list[Call] = []
        for call in calls[last + 1 :]:
            given = _read(call)
            if call in assigning or any(_is_parameter(v) or v in updated for v in given):
                self._calls.append(call)
                updated |= set(call.outputs)
        made = {v for call in self._calls for v in call.outputs}
        given = [v for call in self._calls for v in _read(call)]
        self._parameters = {v.name: v for v in (*given, *made) if isinstance(v, Persistent)}
        self._values = {v.name: v for v in given if not isinstance(v, Persistent) and v not in made}
        self._written = {v.name: v for call in assigning for v in call.outputs}
        self.read = list(self._values)
        self._run = jax.jit(self._traced)

    def __call__(self, arrays: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
        """Run the layer calls that depend on updated parameters; return the new values of assigned variables."""
        read = {name: found[name] for name in self._values}
        assigned: dict[str, Any] = self._run({name: arrays[name] for name in self._parameters}, read)
        return assigned

    def _traced(self, arrays: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
        specs = {name: variable.spec for name, variable in self._parameters.items()}
        frame = core.Frame(declared=Declared(arrays=specs))
        held: dict[Any, Any] = {self._parameters[name]: value for name, value in arrays.items()}
        held |= {self._values[name]: value for name, value in found.items()}
        with core.running(frame):
            environment = run_calls(self._calls, held)
        return {name: environment[variable] for name, variable in self._written.items()}


def _is_parameter(variable: Variable) -> bool:
    return isinstance(variable, Persistent) and variable.is_parameter


def _read(call: Call) -> list[Variable]:
    inner = [v for block in call.blocks for c in block.calls for v in _read(c)]
    found = [*call.variables(), *getattr(call.function, "captures", ()), *inner]
    return [v for v in found if isinstance(v, Persistent) or v.is_global]
