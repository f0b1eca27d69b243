"""Loop bodies: functions that call layers, converted to pure functions for the loops and branches of JAX.

In the first traced run of a program, each body runs one additional time outside the loop, which creates its parameters
there. The findings of this additional run are stored, so later traces run the body only inside the loop. Random keys
are computed from the iteration number. A `StackedBody` is a body that runs several times, each time with separate
arrays.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core.frame import TRAIN, Frame, Made, ParameterSpec, current_frame, running
from fluid.core.variables import create_parameter, create_state


class BodyFindings(NamedTuple):
    """The results of the first run of a loop body. Later traces of the program reuse them.

    Attributes:
      written: names of the states that the body changes.
      counters: the counters for automatic layer names, after the body.
      specs: the ParameterSpecs (shapes, dtypes) of the parameters and states that the body created, by name; empty if
        the Frame (state) of the program already has them.
    """

    written: tuple[str, ...]
    counters: dict[str, int]
    specs: dict[str, ParameterSpec]


def inner_frame(frame: Frame) -> Frame:
    """Return a frame (the record of a running program function) for the inside of a loop or branch.

    The inner frame reads the parameters, feeds and names of the outer frame. Values of the trace (named values,
    states, annotations) stay in the inner frame, because they do not exist outside the loop.
    """
    return replace(
        frame,
        inside_loop=True,
        given=replace(frame.given, states=frame.states, perturbations={}, row_perturbations={}),
        declared=replace(frame.declared, feeds=dict(frame.declared.feeds)),
        made=Made(),
        naming=replace(frame.naming, counters=dict(frame.naming.counters)),
        annotations=dict(frame.annotations),
    )


def leave(frame: Frame, child: Frame, caller: str) -> None:
    """Copy the records of a traced loop or branch to the outer Frame; a Frame is the state of one trace.

    The records are feeds, warnings, name counters and the flags for random numbers and for the mode.

    Raises:
      ProgramError: the loop or branch declared a feed, or called `optimizer.minimize`.
    """
    for name in child.declared.feeds.keys() - frame.declared.feeds.keys():
        raise errors.ProgramError(
            f"fluid.{caller}: the feed {name!r} is declared inside, at {child.declared.feeds[name].site}; call "
            f"layers.data({name!r}, ...) before, and use its value inside"
        )
    if child.made.minimizations:
        raise errors.ProgramError(
            f"fluid.{caller}: optimizer.minimize was called inside; return the loss and minimise it outside"
        )
    # Copy the declarations of feeds, because a layer inside the loop may have limited the range of a feed.
    frame.declared.feeds.update(child.declared.feeds)
    frame.declared.uses_randomness |= child.declared.uses_randomness
    frame.declared.asks_mode |= child.declared.asks_mode
    frame.made.doubts.extend(child.made.doubts)
    frame.made.training_doubts.extend(child.made.training_doubts)
    _advance(frame, child.naming.counters)


class Body:
    """A function that calls layers, converted to a pure function of its arguments and of the states that it changes.

    In the first traced run of a program, the constructor runs the function once, which creates its parameters outside
    the loop. If a feed overrides a named value inside the loop, the feed replaces this value in every iteration.
    Embedding tables that the function reads get dense updates, which change all rows.

    Attributes:
      written: names of the states that the function changes.

    Example:
      >>> import fluid, jax
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     body = fluid.core.Body(lambda h: fluid.layers.fc(h, size=3), [x], "layers.scan")
      ...     def step(carry, i):
      ...         h, states = body(carry[1], i, carry[0])
      ...         return (h, states), None
      ...     return jax.lax.scan(step, (x, body.states()), jax.numpy.arange(4))[0][0]
      >>> list(fluid.Program(program).parameters)
      ['fc_0.w_0', 'fc_0.b_0']
    """

    def __init__(self, function: Callable[..., Any], examples: Sequence[Any], caller: str):
        self._frame = current_frame(caller)
        self._function = function
        self._caller = caller
        number = self._frame.unique(f"body of {caller}")
        self._counters = dict(self._frame.naming.counters)
        known = self._frame.declared.bodies
        found = known.get(number)
        if found is None:
            found = known[number] = self._try_out(examples)
        _advance(self._frame, found.counters)
        self._specs: dict[str, ParameterSpec] = found.specs
        self.written: tuple[str, ...] = found.written if self._frame.mode == TRAIN else ()

    def states(self) -> dict[str, Any]:
        """Return the initial values, by name, of the states that the loop's function changes, such as moving means."""
        now = self._frame.states
        return {name: now[name] for name in self.written}

    def keep(self, states: Mapping[str, Any]) -> None:
        """Set the states outside the loop to `states`, their values after the last iteration."""
        self._frame.made.states.update(states)

    def __call__(self, states: Mapping[str, Any], iteration: Any, *args: Any) -> tuple[Any, dict[str, Any]]:
        """Run the function for one iteration.

        Args:
          iteration: the number of the iteration, an int32 scalar, from which random layers compute new keys. None if
            there is only one iteration.
        """
        child = self._child(iteration)
        child.given.states |= states
        result = self._run(child, args)
        now = child.states
        return result, {name: now[name] for name in self.written}

    def _child(self, iteration: Any) -> Frame:
        """Return a Frame (state of a run) for one iteration, with a random key computed from the iteration number."""
        child = inner_frame(self._frame)
        child.naming.counters = dict(self._counters)
        if iteration is not None and child.given.key is not None:
            child.given.key = jax.random.fold_in(child.given.key, iteration)
        return child

    def _first_child(self) -> Frame:
        return self._child(0)

    def _run(self, child: Frame, args: Sequence[Any]) -> Any:
        with running(child):
            result = self._function(*args)
        leave(self._frame, child, self._caller)
        return result

    def _try_out(self, examples: Sequence[Any]) -> BodyFindings:
        frame = self._frame
        # Normally the first trace of a program also traces each loop body. If the first trace has not reached this
        # body, trace the body here.
        if not frame.discovering:
            return self._abstractly(examples)
        child = self._first_child()
        self._run(child, examples)
        # This run of the loop body may have created parameters and states. The outer Frame (the state of the program
        # run) already has the parameters. Add the states too, because the loop carries the states of the outer Frame.
        for name in child.given.states.keys() - frame.given.states.keys():
            spec = frame.declared.arrays[name]
            frame.given.states[name] = np.zeros(spec.shape, jnp.dtype(spec.dtype))
        return BodyFindings(tuple(sorted(child.made.states)), child.naming.counters, {})

    def _abstractly(self, examples: Sequence[Any]) -> BodyFindings:
        """Trace the function once without computing, and return the recorded names and ParameterSpecs."""
        children: list[Frame] = []

        def trace(args: Sequence[Any]) -> None:
            children.append(self._first_child())
            self._run(children[-1], args)

        jax.eval_shape(trace, list(examples))
        child = children[-1]
        known = self._frame.declared.arrays
        new = {n: s for n, s in child.declared.arrays.items() if s is not known.get(n)}
        return BodyFindings(tuple(sorted(child.made.states)), child.naming.counters, new)


def _advance(frame: Frame, counters: Mapping[str, int]) -> None:
    for name, count in counters.items():
        frame.naming.counters[name] = max(count, frame.naming.counters.get(name, 0))


@dataclass(frozen=True)
class Stacked:
    """An initializer that draws several arrays, each from a separate random key, and stacks them.

    Attributes:
      one: the initializer of one array.
      key_name: the name from which the random key is computed.
      axis: the mesh axis over which the stacked array is sharded; None if each device has the full array.
    """

    one: Callable[..., Any]
    key_name: str
    axis: str | None = None

    def __call__(self, key: jax.Array, shape: Sequence[int], dtype: Any) -> jax.Array:
        """Draw `shape[0]` arrays of shape `shape[1:]`, and stack them along a new first dimension."""
        count, *rest = shape
        return jnp.stack([jnp.asarray(self.one(jax.random.fold_in(key, i), tuple(rest), dtype)) for i in range(count)])


def stack_axes(spec: ParameterSpec) -> tuple[str | None, ...]:
    """Return the mesh axis of each stacked dimension of a parameter, outermost first; None for no sharding.

    Repeated blocks stack their parameters, which adds one leading dimension for each level of repetition.

    Example:
      >>> blocks = Stacked(jnp.zeros, "w", axis="stage")
      >>> stack_axes(ParameterSpec("repeat_0/fc_0.w_0", (12, 4, 4), "float32", blocks, True))
      ('stage',)
    """
    axes = []
    initializer = spec.initializer
    while isinstance(initializer, Stacked):
        axes.append(initializer.axis)
        initializer = initializer.one
    return tuple(axes)


def stack_depth(spec: ParameterSpec) -> int:
    """Return the number of leading dimensions of a parameter that come from stacking repeated blocks.

    Example:
      >>> stack_depth(ParameterSpec("repeat_0/fc_0.w_0", (12, 4, 4), "float32", Stacked(jnp.zeros, "w"), True))
      1
    """
    return len(stack_axes(spec))


def check_stages(owner: str, axis: str, count: int, size: int) -> None:
    """Check that `count` repeated blocks can be divided evenly over a mesh axis of `size` devices.

    Raises:
      ArgumentError: `count` is not a multiple of `size`.
    """
    if count % size:
        down = max(size, count - count % size)
        raise errors.ArgumentError(
            f"{owner}: {count} blocks cannot be divided evenly into the {size} stages of the axis {axis!r}; take "
            f"{down} or {down + size} blocks, or a mesh such as fluid.Mesh({axis}={math.gcd(count, size)})"
        )


class StackedBody(Body):
    """A loop body that runs `count` times, each time with separate parameters and states.

    Arrays whose names begin with `scope` are created as one stacked array `[count, ...]`. All runs share the arrays
    with other names, which come from `ParamAttr(name=...)`.

    Attributes:
      arrays: the stacked parameters and states, by name. The argument `states` of a call includes one slice of each.

    Example:
      >>> import fluid, jax
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     stack = fluid.core.StackedBody(lambda h: fluid.layers.fc(h, size=3), [x], "layers.repeat", 4, "tower")
      ...     return jax.lax.scan(lambda h, slices: (stack(slices, None, h)[0], None), x, stack.arrays)[0]
      >>> {name: spec.shape for name, spec in fluid.Program(program).parameters.items()}
      {'tower/fc_0.w_0': (4, 3, 3), 'tower/fc_0.b_0': (4, 3)}
    """

    def __init__(
        self,
        function: Callable[..., Any],
        examples: Sequence[Any],
        caller: str,
        count: int,
        scope: str,
        axis: str | None = None,
    ):
        self._scope = scope
        self._prefix = current_frame(caller).array_name(scope) + "/"
        self._axis = axis
        super().__init__(function, examples, caller)
        self._own = {name: spec for name, spec in self._specs.items() if self._is_own(name)}
        made = {name: self._create(spec, count) for name, spec in self._specs.items()}
        self.arrays = {name: made[name] for name in self._own}

    def states(self) -> dict[str, Any]:
        """Return the current values of the states that the repeated function changes, by name.

        Only states that all runs of the function share are included.
        """
        now = self._frame.states
        return {name: now[name] for name in self.written if name not in self._own}

    def __call__(self, states: Mapping[str, Any], iteration: Any, *args: Any) -> tuple[Any, dict[str, Any]]:
        """Run the repeated function once, for example for one block of `layers.repeat`.

        The parameters of all runs are stacked in arrays. The dict `states` must include, by name, the slices for this
        run.
        """
        child = self._child(iteration)
        slices = {name: states[name] for name in self._own}
        gather = child.given.gather or (lambda _, array: array)
        child.given.parameters |= {n: gather(n, v) for n, v in slices.items() if self._own[n].trainable is not None}
        child.given.states |= states
        child.declared.arrays |= self._own
        result = self._run(child, args)
        now = child.states
        return result, {name: now[name] for name in self.written}

    def _child(self, iteration: Any) -> Frame:
        """Return the Frame (state of a trace) of one run of the repeated function.

        The Frame has no stacked arrays, which hold the parameters of all runs. `__call__` adds the slices of this run.
        """
        child = super()._child(iteration)
        given = child.given
        given.parameters = self._others(given.parameters)
        given.states = self._others(given.states)
        stacks = self._frame.declared.arrays.keys() - self._others(self._frame.declared.arrays)
        given.overrides = {n: v for n, v in given.overrides.items() if n not in stacks}
        child.declared.arrays = self._others(child.declared.arrays)
        child.naming.scopes = (self._scope,)
        return child

    def _try_out(self, examples: Sequence[Any]) -> BodyFindings:
        return self._abstractly(examples)

    def _first_child(self) -> Frame:
        child = super()._first_child()
        # In the first trace of a program, layers create dummy parameters; a dummy batch size marks this trace. Repeated
        # blocks need dummy slices of their parameters in any trace, so replace a missing batch size by -1.
        child.placeholder_batch = child.placeholder_batch or -1
        return child

    def _create(self, spec: ParameterSpec, count: int) -> Any:
        shape = spec.shape
        initializer = spec.initializer
        if self._is_own(spec.name):
            shape = (count, *shape)
            initializer = Stacked(initializer, getattr(initializer, "key_name", spec.name), self._axis)
        if spec.trainable is None:
            return create_state(spec.name, shape, spec.dtype, initializer, spec.layer, spec.kind)
        return create_parameter(
            spec.name, shape, spec.dtype, initializer, spec.trainable, spec.settings, kind=spec.kind, layer=spec.layer
        )

    def _is_own(self, name: str) -> bool:
        return name.startswith(self._prefix)

    def _others(self, named: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in named.items() if not self._is_own(name)}


class Stages:
    """A recorder that converts the body of a `with` statement to a function that JAX can call.

    JAX traces functions, and the body of a `with` is not a function. So `argument` starts to trace a function in a
    greenlet, a coroutine with its own call stack. The function passes its argument out and waits. JAX traces the code
    after `argument` as the body of the function. `close` passes the results back in, and the function returns them.
    Each further argument begins a nested function, called a stage.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> vector = jax.ShapeDtypeStruct((2,), "float32")
      >>> stages = Stages()
      >>> x = stages.argument(vector)
      >>> doubled = 2 * x
      >>> h = stages.argument(vector)
      >>> function = stages.close([doubled + h])
      >>> function([jnp.ones(2), jnp.zeros(2)])[0].tolist()
      [2.0, 2.0]
    """

    def __init__(self) -> None:
        self._open: list[_Stage] = []

    def argument(self, example: Any) -> Any:
        """Return a tracer for the next argument of the recorded function."""
        stage = _Stage()
        value = stage.start(example)
        self._open.append(stage)
        return value

    def close(self, results: Sequence[Any], probes: Sequence[Any] = ()) -> "Staged":
        """End the recorded function and return it. Tracers from inside the function can no longer be used."""
        jaxprs: list[Any] = []
        values = [*results, *probes]
        places: list[int | None] = list(range(len(values)))
        while self._open:
            closed = self._open.pop().finish(values)
            # Recorded functions (stages) are nested. A value from outside a stage is a constant of this stage: search
            # for its computation in the next outer stage.
            constants = {id(v): i for i, v in enumerate(closed.jaxpr.constvars)}
            places = [None if p is None else constants.get(id(closed.jaxpr.outvars[p])) for p in places]
            values = list(closed.consts)
            jaxprs.insert(0, closed.jaxpr)
        return Staged(jaxprs, values, len(results), [p is None for p in places[len(results) :]])

    def abandon(self) -> None:
        """End the recorded function without a result, for example after an exception."""
        while self._open:
            self._open.pop().abandon()


class Staged:
    """A recorded function, from `Stages.close`. It takes a list of arguments and returns a list of results.

    Attributes:
      inside: for each of the `probes` of `Stages.close`, True if the function computed it, False if other code did.
    """

    def __init__(self, jaxprs: Sequence[Any], values: Sequence[Any], count: int, inside: list[bool]):
        self._jaxprs = jaxprs
        self._values = values
        self._count = count
        self.inside = inside

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the recorded body of a `with` on a list of pytrees, one for each argument; return the list of results."""
        values = list(self._values)
        for jaxpr, argument in zip(self._jaxprs, arguments, strict=True):
            values = jax.core.eval_jaxpr(jaxpr, values, *jax.tree.leaves(argument))
        return values[: self._count]


class _Stage:
    """A function that JAX traces in a separate greenlet, a coroutine with its own call stack."""

    def start(self, example: Any) -> Any:
        from greenlet import getcurrent, greenlet

        def function(argument: Any) -> Any:
            return getcurrent().parent.switch(argument)

        # All greenlets of a thread share the current JAX trace, so JAX traces the code that runs after `start`. Each
        # greenlet has its own context variables (measured with greenlet 3.3.2), so that code still finds the Frame
        # (state) of its program.
        self._greenlet = greenlet(lambda: jax.make_jaxpr(function)(example))
        return self._greenlet.switch()

    def finish(self, results: Sequence[Any]) -> Any:
        return self._greenlet.switch(list(results))

    def abandon(self) -> None:
        self._greenlet.throw()
