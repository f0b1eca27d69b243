"""Bodies: functions that call layers, made pure, so that JAX's loops and branches may trace them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core.frame import TRAIN, Frame, ParameterSpec, current_frame, running


class Found(NamedTuple):
    """What the first run of a body showed; discovery keeps it for all later traces of the program.

    Attributes:
      written: names of the states that it changes.
      counters: the name counters behind it.
      specs: the arrays that it was the first to name, unless they are in the outer frame already.
    """

    written: tuple[str, ...]
    counters: dict[str, int]
    specs: dict[str, ParameterSpec]


def inner_frame(frame: Frame, **changes: Any) -> Frame:
    """A frame for the inside of a loop or branch.

    Parameters, feeds and names are those of the outer frame; what a trace leaves behind (named values, states, facts)
    stays in the inner one, because it would be no value outside.

    Args:
      frame: the outer frame.
      changes: further fields to replace.
    """
    own: dict[str, Any] = dict(
        states=dict(frame.states),
        facts=dict(frame.facts),
        feed_specs=dict(frame.feed_specs),
        counters=dict(frame.counters),
        values={},
        lookups={},
        perturbations={},
        row_perturbations={},
        minimizations=[],
        written=set(),
        inner=True,
    )
    return replace(frame, **(own | changes))


def leave(frame: Frame, child: Frame, caller: str) -> None:
    """Take over from an inner frame what it says about the program as a whole.

    Args:
      frame: the outer frame.
      child: from `inner_frame`.
      caller: the public name to blame, such as "layers.scan".

    Raises:
      ProgramError: a feed was declared or `optimizer.minimize` was called inside.
    """
    for name in child.feed_specs.keys() - frame.feed_specs.keys():
        raise errors.ProgramError(
            f"fluid.{caller}: the feed {name!r} is declared inside, at {child.feed_specs[name].site}; call "
            f"layers.data({name!r}, ...) before, and use its value inside"
        )
    if child.minimizations:
        raise errors.ProgramError(
            f"fluid.{caller}: optimizer.minimize was called inside; return the loss and minimise it outside"
        )
    frame.feed_specs.update(child.feed_specs)  # a layer inside may have limited what may be fed
    frame.random |= child.random
    _advance(frame, child.counters)


class Body:
    """A function that calls layers, as a pure function of its arguments and of the states that it changes.

    While a program is discovered, making one runs the function once, which creates its parameters outside the loop that
    it is meant for. Named values inside cannot be fetched or overridden, and rows of embeddings looked up inside are
    updated densely.

    Args:
      function: takes and returns pytrees of arrays.
      examples: arguments for the first run; nothing but their shapes matters.
      caller: the public name to blame, such as "layers.scan".

    Attributes:
      written: names of the states that the function changes.

    Example:
      >>> import fluid, jax
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     body = fluid.core.Body(lambda h: fluid.layers.fc(h, size=3), [x], "layers.scan")
      ...     def step(carry, turn):
      ...         h, states = body(carry[1], turn, carry[0])
      ...         return (h, states), None
      ...     return jax.lax.scan(step, (x, body.states()), jax.numpy.arange(4))[0][0]
      >>> list(fluid.Program(program).parameters)
      ['fc_0.w_0', 'fc_0.b_0']
    """

    def __init__(self, function: Callable[..., Any], examples: Sequence[Any], caller: str):
        self._frame, self._function, self._caller = current_frame(caller), function, caller
        number = self._frame.unique(f"body of {caller}")
        self._counters = dict(self._frame.counters)
        found = self._frame.bodies.get(number)
        if found is None:
            found = self._frame.bodies[number] = self._try_out(examples)
        _advance(self._frame, found.counters)
        self._specs: dict[str, ParameterSpec] = found.specs
        self.written: tuple[str, ...] = found.written if self._frame.mode == TRAIN else ()

    def states(self) -> dict[str, Any]:
        """The present values of the states that the function changes: what a loop starts with."""
        return {name: self._frame.states[name] for name in self.written}

    def keep(self, states: Mapping[str, Any]) -> None:
        """Give these states the values that they have behind the loop."""
        self._frame.states.update(states)
        self._frame.written.update(states)

    def __call__(self, states: Mapping[str, Any], turn: Any, *args: Any) -> tuple[Any, dict[str, Any]]:
        """Run the function.

        Args:
          states: values of the states that it changes.
          turn: int32 scalar, the number of the iteration: random layers draw anew in each. None when there is but one.
          args: its arguments.

        Returns:
          Its result, and the changed states.
        """
        result, child = self._run(turn, args, states={**self._frame.states, **states})
        return result, {name: child.states[name] for name in self.written}

    def _run(self, turn: Any, args: Sequence[Any], **changes: Any) -> tuple[Any, Frame]:
        frame = self._frame
        key = frame.key if turn is None or frame.key is None else jax.random.fold_in(frame.key, turn)
        child = inner_frame(frame, key=key, counters=dict(self._counters), **changes)
        with running(child):
            result = self._function(*args)
        leave(frame, child, self._caller)
        return result, child

    def _try_out(self, examples: Sequence[Any]) -> Found:
        frame = self._frame
        if not frame.discovering:  # the function does what it did not do in discovery
            return self._abstractly(examples, {})
        child = self._run(0, examples)[1]
        # Parameters are in the outer frame already; new states, too, must be there before a loop can carry them.
        for name in child.states.keys() - frame.states.keys():
            spec = frame.array_specs[name]
            frame.states[name] = np.zeros(spec.shape, jnp.dtype(spec.dtype))
        return Found(tuple(sorted(child.written)), child.counters, {})

    def _abstractly(self, examples: Sequence[Any], changes: Mapping[str, Any]) -> Found:
        """Run it once without computing anything."""
        children: list[Frame] = []

        def trace(args: Sequence[Any]) -> None:
            children.append(self._run(0, args, **changes)[1])

        jax.eval_shape(trace, list(examples))
        child = children[-1]
        new = {n: s for n, s in child.array_specs.items() if n not in self._frame.array_specs}
        return Found(tuple(sorted(child.written)), child.counters, new)


def _advance(frame: Frame, counters: Mapping[str, int]) -> None:
    for name, count in counters.items():
        frame.counters[name] = max(count, frame.counters.get(name, 0))
